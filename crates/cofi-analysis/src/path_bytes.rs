//! Paths in files, byte by byte: they need not be text.

use std::path::{Path, PathBuf};

use cofi_host::{bytes_of, path_of};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    bytes_of(path).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    let bytes: Vec<u8> = Vec::deserialize(from)?;
    Ok(path_of(&bytes).into_owned())
}

/// The same where there may be none.
pub(crate) mod optional {
    use super::{Deserialize, Deserializer, PathBuf, Serialize, Serializer, bytes_of, path_of};

    pub(crate) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes = path.as_ref().map(|path| bytes_of(path));
        bytes.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        let bytes: Option<Vec<u8>> = Option::deserialize(from)?;
        Ok(bytes.map(|bytes| path_of(&bytes).into_owned()))
    }
}
