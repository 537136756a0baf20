//! Recordings in an object store, fetched into files: the decoder reads files, and goes to and fro in them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use cofi_archive::{Archive, MARKER, RECORDINGS};
use futures::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3CopyIfNotExists};
use object_store::path::Path as Key;
use object_store::{ClientConfigKey, ObjectMeta, ObjectStore, ObjectStoreExt};
use tempfile::NamedTempFile;
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

pub(crate) const SCHEME: &str = "s3://";

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

    /// The file of an object, which is fetched if it has changed since or never was, together with what lies beside a recording: the
    /// objects below its key with `.code/` behind, and the one with `.parts` behind. One of a catalogue is fetched with the code that it needs. To be called within a runtime, by a thread that may wait.
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
        let store = bucket_of(bucket).map_err(failed)?;
        let key = Key::parse(key).map_err(|error| failed(error.into()))?;
        let object = store.head(&key).await.map_err(failed)?;
        let beside = Key::parse(format!("{key}.code")).map_err(|error| failed(error.into()))?;
        let mut beside: Vec<ObjectMeta> = store
            .list(Some(&beside))
            .try_collect()
            .await
            .map_err(failed)?;
        // What `cofi sql --keep-parts` keeps beside it. Without it more is decoded, so it is no error that it cannot be had.
        let parts = Key::parse(format!("{key}.parts")).map_err(|error| failed(error.into()))?;
        let parts = store.head(&parts).await.ok();
        beside.extend(parts.clone());
        beside.sort_by(|one, other| one.location.cmp(&other.location));
        // A folder for each state of all of them, so that a file never changes under who reads it.
        let mut state = DefaultHasher::new();
        for object in [&object].into_iter().chain(&beside) {
            (&object.location, object.size, &object.e_tag).hash(&mut state);
        }
        let state = state.finish();
        let name = key.filename().unwrap_or("recording");
        let of = Bucket {
            store: &store,
            bucket,
        };
        if let Some(root) = of.catalogue_of(&key).await.map_err(failed)? {
            let name = format!("{state:016x}-{name}");
            return self
                .fetch_kept(&of, &root, (&object, parts.as_ref()), &name)
                .await;
        }
        let folder = self.folder.join(format!("{bucket}-{state:016x}"));
        let file = folder.join(name);
        if file.exists() {
            return Ok(file);
        }
        for object in &beside {
            let tail = object.location.as_ref().get(key.as_ref().len()..);
            let name = format!("{}{}", file.display(), tail.unwrap_or_default());
            let fetched = of.fetch(&object.location, Path::new(&name)).await;
            if parts.as_ref() != Some(object) {
                fetched?;
            }
        }
        // It comes last: where it is, all are.
        of.fetch(&object.location, &file).await?;
        Ok(file)
    }

    /// Fetches a recording of a catalogue, with the code that it needs, into a folder that is a catalogue of what was fetched of that one.
    async fn fetch_kept(
        &self,
        of: &Bucket<'_>,
        root: &Key,
        (object, parts): (&ObjectMeta, Option<&ObjectMeta>),
        name: &str,
    ) -> Result<PathBuf, ObjectError> {
        let mut which = DefaultHasher::new();
        (of.bucket, root.as_ref()).hash(&mut which);
        let folder = format!("{}-catalogue-{:016x}", of.bucket, which.finish());
        let folder = self.folder.join(folder);
        let file = folder.join(RECORDINGS).join(name);
        if file.exists() {
            return Ok(file);
        }
        of.fetch_of(root, MARKER, &folder.join(MARKER)).await?;
        let part = of.fetch_part(&object.location, &file).await?;
        let bytes = cofi_file::file(part.path()).map_err(unwritten(&file))?;
        // What is damaged is said by who opens it.
        let archive = Archive::open(&bytes, None).ok().flatten();
        let kept = archive.as_ref().and_then(|it| it.manifest().kept.as_ref());
        for (member, size) in kept.map_or(&[][..], |kept| &kept.shared[..]) {
            let path = folder.join(member);
            let is_there = tokio::fs::metadata(&path).await;
            if !is_there.is_ok_and(|about| about.len() == *size) {
                of.fetch_of(root, member, &path).await?;
            }
        }
        if let Some(parts) = parts {
            let beside = format!("{}.parts", file.display());
            // It need not be there.
            let _ = of.fetch(&parts.location, Path::new(&beside)).await;
        }
        let persisted = part.persist(&file).map_err(|error| error.error);
        persisted.map_err(unwritten(&file))?;
        Ok(file)
    }
}

/// The name of an object within a catalogue.
///
/// # Errors
/// When there can be none of that name: a part of it is empty, or leads elsewhere.
pub(crate) fn within(root: &Key, name: &str) -> object_store::Result<Key> {
    let whole = match root.as_ref() {
        "" => Key::parse(name),
        root => Key::parse(format!("{root}/{name}")),
    };
    Ok(whole?)
}

/// What became of a file that cannot be written.
fn unwritten(path: &Path) -> impl FnOnce(std::io::Error) -> ObjectError + use<> {
    let path = path.to_path_buf();
    |error| ObjectError::Write { path, error }
}

/// A bucket, by what the environment says of stores.
pub(crate) fn bucket_of(bucket: &str) -> object_store::Result<AmazonS3> {
    AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        // A large object may take long.
        .with_config(
            AmazonS3ConfigKey::Client(ClientConfigKey::Timeout),
            "1 hour",
        )
        .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
        .build()
}

/// A bucket that is being read.
struct Bucket<'b> {
    store: &'b AmazonS3,
    bucket: &'b str,
}

impl Bucket<'_> {
    fn failed(&self, key: &Key, error: object_store::Error) -> ObjectError {
        ObjectError::Store {
            address: format!("{SCHEME}{}/{key}", self.bucket),
            error,
        }
    }

    /// The catalogue in which a recording lies, if it is one of a catalogue: `ROOT/recordings/NAME`.
    async fn catalogue_of(&self, key: &Key) -> object_store::Result<Option<Key>> {
        let names: Vec<_> = key.parts().collect();
        let [root @ .., folder, _] = &names[..] else {
            return Ok(None);
        };
        if folder.as_ref() != RECORDINGS {
            return Ok(None);
        }
        let root: Key = root.iter().cloned().collect();
        match self.store.head(&within(&root, MARKER)?).await {
            Ok(_) => Ok(Some(root)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fetches an object into a file beside its place, without a name of its own yet.
    async fn fetch_part(&self, key: &Key, path: &Path) -> Result<NamedTempFile, ObjectError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let made = tokio::fs::create_dir_all(folder).await;
        made.map_err(unwritten(path))?;
        let part = NamedTempFile::new_in(folder).map_err(unwritten(path))?;
        let copy = part.reopen().map_err(unwritten(path))?;
        let mut out = tokio::fs::File::from_std(copy);
        let got = self.store.get(key).await;
        let mut pieces = got.map_err(|error| self.failed(key, error))?.into_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| self.failed(key, error))?;
            out.write_all(&piece).await.map_err(unwritten(path))?;
        }
        out.flush().await.map_err(unwritten(path))?;
        Ok(part)
    }

    /// Fetches an object into a file, which appears when it is whole.
    async fn fetch(&self, key: &Key, path: &Path) -> Result<(), ObjectError> {
        let part = self.fetch_part(key, path).await?;
        let persisted = part.persist(path).map_err(|error| error.error);
        persisted.map(drop).map_err(unwritten(path))
    }

    /// The same of one of a catalogue.
    async fn fetch_of(&self, root: &Key, name: &str, path: &Path) -> Result<(), ObjectError> {
        let key = within(root, name).map_err(|error| self.failed(root, error))?;
        self.fetch(&key, path).await
    }
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
