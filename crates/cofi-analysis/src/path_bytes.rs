//! Paths in files, byte by byte: they need not be text.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_os_str().as_bytes().serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Vec::deserialize(from).map(|bytes| OsString::from_vec(bytes).into())
}

/// The same where there may be none.
pub(crate) mod optional {
    use super::{
        Deserialize, Deserializer, OsStrExt, OsString, OsStringExt, PathBuf, Serialize, Serializer,
    };

    pub(crate) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes = path.as_ref().map(|path| path.as_os_str().as_bytes());
        bytes.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        let bytes: Option<Vec<u8>> = Option::deserialize(from)?;
        Ok(bytes.map(|bytes| OsString::from_vec(bytes).into()))
    }
}
