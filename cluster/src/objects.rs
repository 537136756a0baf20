//! Recordings in an object store, fetched into files: the decoder reads files, and goes to and fro in them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use futures::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;

/// Why an object cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum ObjectError {
    /// The address is none.
    #[error("{address}: expected s3://BUCKET/KEY")]
    Address {
        /// As it was given.
        address: String,
    },
    /// The store does not give it.
    #[error("cannot fetch {address}: {error}")]
    Store {
        /// As it was given.
        address: String,
        /// Why.
        error: object_store::Error,
    },
    /// There is no place for it.
    #[error("cannot write {}: {error}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

const SCHEME: &str = "s3://";

/// Whether a recording is an object, and no file.
pub(crate) fn is_object(place: &str) -> bool {
    place.starts_with(SCHEME)
}

/// The bucket and the key of an address.
fn parts_of(address: &str) -> Option<(&str, &str)> {
    let (bucket, key) = address.strip_prefix(SCHEME)?.split_once('/')?;
    (!bucket.is_empty() && !key.is_empty()).then_some((bucket, key))
}

/// A folder with objects that were fetched.
#[derive(Debug)]
pub(crate) struct Objects {
    folder: PathBuf,
}

impl Objects {
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_path_buf(),
        }
    }

    /// The file of an object, which is fetched if it has changed since or never was, together with what the recorder puts beside a recording: the
    /// objects below its key with `.code/` behind. To be called within a runtime, by a thread that may wait.
    ///
    /// # Errors
    /// When it cannot be fetched.
    pub(crate) fn fetch(&self, address: &str) -> Result<PathBuf, ObjectError> {
        let parts = parts_of(address);
        let (bucket, key) = parts.ok_or_else(|| ObjectError::Address {
            address: address.to_owned(),
        })?;
        Handle::current().block_on(self.fetch_all(address, bucket, key))
    }

    async fn fetch_all(
        &self,
        address: &str,
        bucket: &str,
        key: &str,
    ) -> Result<PathBuf, ObjectError> {
        let failed = |error| ObjectError::Store {
            address: address.to_owned(),
            error,
        };
        let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        let store = builder.build().map_err(failed)?;
        let key = Key::parse(key).map_err(|error| failed(error.into()))?;
        let object = store.head(&key).await.map_err(failed)?;
        let beside = Key::from(format!("{key}.code"));
        let mut beside: Vec<ObjectMeta> = store
            .list(Some(&beside))
            .try_collect()
            .await
            .map_err(failed)?;
        beside.sort_by(|one, other| one.location.cmp(&other.location));
        // A folder for each state of all of them, so that a file never changes under who reads it.
        let mut state = DefaultHasher::new();
        for object in [&object].into_iter().chain(&beside) {
            (&object.location, object.size, &object.e_tag).hash(&mut state);
        }
        let name = format!("{bucket}-{:016x}", state.finish());
        let folder = self.folder.join(name);
        let file = folder.join(key.filename().unwrap_or("recording"));
        if file.exists() {
            return Ok(file);
        }
        for object in &beside {
            let tail = object.location.as_ref().get(key.as_ref().len()..);
            let name = format!("{}{}", file.display(), tail.unwrap_or_default());
            fetch_one(&store, object, Path::new(&name), address).await?;
        }
        // It comes last: where it is, all are.
        fetch_one(&store, &object, &file, address).await?;
        Ok(file)
    }
}

/// Fetches an object into a file, which appears when it is whole.
async fn fetch_one(
    store: &AmazonS3,
    object: &ObjectMeta,
    path: &Path,
    address: &str,
) -> Result<(), ObjectError> {
    let failed = |error| ObjectError::Store {
        address: address.to_owned(),
        error,
    };
    let unwritten = |error| ObjectError::Write {
        path: path.to_path_buf(),
        error,
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    tokio::fs::create_dir_all(folder).await.map_err(unwritten)?;
    let part = tempfile::NamedTempFile::new_in(folder).map_err(unwritten)?;
    let copy = part.reopen().map_err(unwritten)?;
    let mut out = tokio::fs::File::from_std(copy);
    let got = store.get(&object.location).await.map_err(failed)?;
    let mut pieces = got.into_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(failed)?;
        out.write_all(&piece).await.map_err(unwritten)?;
    }
    out.flush().await.map_err(unwritten)?;
    part.persist(path).map_err(|error| unwritten(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_bucket_and_a_key() {
        assert_eq!(parts_of("s3://runs/a/b.data"), Some(("runs", "a/b.data")));
        for wrong in [
            "s3://runs",
            "s3://runs/",
            "s3:///a",
            "/runs/a",
            "http://a/b",
        ] {
            assert_eq!(parts_of(wrong), None, "{wrong}");
        }
        assert!(is_object("s3://runs/a") && !is_object("runs/a"));
    }
}
