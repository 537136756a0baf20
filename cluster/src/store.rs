//! What `cofi archive --into s3://…` runs: keeps a catalogue in an object store, and is asked for each step ([`cofi_archive::wire`]).
//!
//! A store has no locks. Who adds or prunes makes an object in `incoming` that says so, *then* looks for such objects of others, and goes on if no one is in the
//! way: of two who do so at the same time, at least one sees the other. The object is made anew every [`BEAT`]. One that is older than [`GONE`], by the store's own
//! clock, is that of somebody dead, and removed. Who was only asleep finds his own gone, and never makes it again: the object is made anew only as long as it
//! is the one that was made last.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use cofi_archive::wire::{self, Object, Piece, Reply, Request, Work};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3;
use object_store::path::Path as Key;
use object_store::{
    Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
    UpdateVersion, WriteMultipart,
};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::objects::{SCHEME, bucket_of, within};

/// So often it is said that somebody is still at work.
const BEAT: Duration = Duration::from_secs(60);
/// Who has not said so for so long is dead.
const GONE: chrono::TimeDelta = chrono::TimeDelta::minutes(10);
/// An object of more bytes is written in parts of so many.
const PART: u64 = 16 << 20;
/// A store copies no more bytes at once.
const MOST: u64 = 5 << 30;
/// So many objects are read at the same time.
const AT_ONCE: usize = 32;

/// Where what is being written lies, and what is said of who is at work.
const INCOMING: &str = "incoming";

/// Arguments of `cofi-cluster store`.
#[derive(Args, Debug)]
pub(crate) struct StoreArgs {
    /// Where the catalogue is.
    #[arg(value_name = "s3://BUCKET/PREFIX")]
    address: String,
}

/// Replies to requests until there are none.
pub(crate) async fn run(args: &StoreArgs) -> Result<()> {
    let mut store = Store::open(&args.address)?;
    // Ctrl-C ends who asks, and thereby this.
    tokio::spawn(async { while tokio::signal::ctrl_c().await.is_ok() {} });
    let (to, mut requests) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut input = BufReader::new(std::io::stdin());
        while let Ok(Some(request)) = wire::read::<Request>(&mut input) {
            if to.blocking_send(request).is_err() {
                break;
            }
        }
    });
    while let Some(request) = requests.recv().await {
        let reply = tokio::select! {
            reply = store.reply(&request) => reply,
            // Nothing is asked before the reply: it is the end.
            _ = requests.recv() => break,
        };
        let (reply, bytes) = reply.unwrap_or_else(|error| {
            let failed = Reply::Failed {
                is_missing: is_missing(&error),
                reason: format!("{error:#}"),
            };
            (failed, Vec::new())
        });
        let mut out = std::io::stdout().lock();
        wire::write(&mut out, &reply)?;
        for bytes in bytes {
            out.write_all(&bytes)?;
        }
        out.flush()?;
    }
    store.release().await
}

/// A catalogue in a store.
struct Store {
    objects: Arc<AmazonS3>,
    root: Key,
    held: Option<Held>,
    /// How many of the dead were removed.
    removed: u64,
}

/// What says that this process is at work.
struct Held {
    key: Key,
    /// It has been there all the time.
    is_held: Arc<AtomicBool>,
    beat: JoinHandle<()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.beat.abort();
    }
}

/// A number that nobody else has.
fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn sorted(mut objects: Vec<ObjectMeta>) -> Vec<ObjectMeta> {
    objects.sort_by(|one, other| one.location.cmp(&other.location));
    objects
}

impl Store {
    fn open(address: &str) -> Result<Self> {
        let expected = || format!("{address}: expected s3://BUCKET/PREFIX");
        let place = address.strip_prefix(SCHEME).with_context(expected)?;
        let (bucket, root) = place.split_once('/').unwrap_or((place, ""));
        if bucket.is_empty() {
            bail!(expected());
        }
        Ok(Self {
            objects: Arc::new(bucket_of(bucket)?),
            root: Key::parse(root.trim_end_matches('/')).with_context(expected)?,
            held: None,
            removed: 0,
        })
    }

    /// An object by its name in the catalogue, which is a whole path: no part of it is empty or leads elsewhere.
    fn key(&self, name: &str) -> Result<Key> {
        Ok(within(&self.root, name)?)
    }

    /// The reply, and the bytes that follow it.
    async fn reply(&mut self, request: &Request) -> Result<(Reply, Vec<Bytes>)> {
        let reply = match request {
            Request::Hello { version } => Reply::Flag(*version == wire::VERSION),
            Request::IsEmpty => Reply::Flag(self.is_empty().await?),
            Request::Hold { work } => Reply::Flag(self.hold(*work).await?),
            Request::IsHeld => Reply::Flag(self.is_held().await?),
            Request::Release => {
                self.release().await?;
                Reply::Done
            }
            Request::List { folder } => {
                let objects = self.list(folder).await?;
                Reply::Objects(objects.iter().map(|it| self.object(it)).collect())
            }
            Request::Look { name } => match self.objects.head(&self.key(name)?).await {
                Ok(found) => Reply::Objects(vec![self.object(&found)]),
                Err(Error::NotFound { .. }) => Reply::Objects(Vec::new()),
                Err(error) => return Err(error.into()),
            },
            Request::Heads { names, size } => return self.heads(names, *size).await,
            Request::Read { name, from, size } => {
                let (bytes, whole) = self.read(&self.key(name)?, *from, *size).await?;
                let size = bytes.len() as u64;
                let reply = Reply::Bytes(vec![Some(Piece { size, whole })]);
                return Ok((reply, vec![bytes]));
            }
            Request::Put {
                name,
                file,
                only_new,
            } => Reply::Flag(self.put(&self.key(name)?, file, *only_new).await?),
            Request::Remove { name } => {
                self.remove(&self.key(name)?).await?;
                Reply::Done
            }
            Request::Clear => Reply::Count(self.clear().await?),
        };
        Ok((reply, Vec::new()))
    }

    fn object(&self, found: &ObjectMeta) -> Object {
        let name = found.location.prefix_match(&self.root);
        let name: Option<Vec<_>> =
            name.map(|parts| parts.map(|it| it.as_ref().to_owned()).collect());
        Object {
            name: name.unwrap_or_default().join("/"),
            size: found.size,
            changed: u64::try_from(found.last_modified.timestamp()).unwrap_or(0),
        }
    }

    async fn is_empty(&self) -> Result<bool> {
        let root = (!self.root.as_ref().is_empty()).then_some(&self.root);
        Ok(self.objects.list(root).next().await.transpose()?.is_none())
    }

    /// All objects of a folder and of those in it. That of the folder itself, which some programs make, is none of them.
    async fn list(&self, folder: &str) -> Result<Vec<ObjectMeta>> {
        let key = self.key(folder)?;
        let objects: object_store::Result<Vec<ObjectMeta>> =
            self.objects.list(Some(&key)).try_collect().await;
        Ok(sorted(
            objects.with_context(|| format!("cannot list {folder}"))?,
        ))
    }

    async fn read(&self, key: &Key, from: u64, size: u64) -> Result<(Bytes, u64)> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(from..from.saturating_add(size))),
            ..GetOptions::default()
        };
        match self.objects.get_opts(key, options).await {
            Ok(got) => {
                let whole = got.meta.size;
                Ok((got.bytes().await?, whole))
            }
            Err(error @ Error::NotFound { .. }) => Err(error.into()),
            // What is empty has no first byte that could be asked for.
            Err(error) => match self.objects.head(key).await?.size {
                whole if from >= whole => Ok((Bytes::new(), whole)),
                _ => Err(error.into()),
            },
        }
    }

    async fn heads(&self, names: &[String], size: u64) -> Result<(Reply, Vec<Bytes>)> {
        let keys: Vec<Key> = names
            .iter()
            .map(|name| self.key(name))
            .collect::<Result<_>>()?;
        let heads = stream::iter(&keys).map(|key| async move {
            match self.read(key, 0, size).await {
                Ok(head) => Ok(Some(head)),
                // It was removed meanwhile.
                Err(error) if is_missing(&error) => Ok(None),
                Err(error) => Err(error),
            }
        });
        let heads: Vec<_> = heads.buffered(AT_ONCE).try_collect().await?;
        let pieces = heads.iter().map(|head| {
            let (bytes, whole) = head.as_ref()?;
            let (size, whole) = (bytes.len() as u64, *whole);
            Some(Piece { size, whole })
        });
        let reply = Reply::Bytes(pieces.collect());
        Ok((
            reply,
            heads
                .into_iter()
                .flatten()
                .map(|(bytes, _)| bytes)
                .collect(),
        ))
    }

    /// Makes an object of a file; whether it was made.
    async fn put(&self, key: &Key, path: &Path, only_new: bool) -> Result<bool> {
        let unread = || format!("cannot read {}", path.display());
        let mut file = tokio::fs::File::open(path).await.with_context(unread)?;
        let size = file.metadata().await.with_context(unread)?.len();
        if size > MOST {
            bail!("an object of more than 5 GiB cannot be added; a folder takes it");
        }
        if size <= PART {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).await.with_context(unread)?;
            let mode = match only_new {
                true => PutMode::Create,
                false => PutMode::Overwrite,
            };
            let put = self
                .objects
                .put_opts(key, PutPayload::from(bytes), mode.into());
            return made(put.await.map(drop));
        }
        // Parts come to be an object all at once; and if it must be new, that is for its copy.
        let first = match only_new {
            true => self.key(&format!("{INCOMING}/{:016x}", number()))?,
            false => key.clone(),
        };
        let upload = self.objects.put_multipart(&first).await?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART as usize);
        let mut bytes = vec![0; PART as usize];
        loop {
            let count = file.read(&mut bytes).await.with_context(unread)?;
            if count == 0 {
                break;
            }
            upload.wait_for_capacity(2).await?;
            upload.write(&bytes[..count]);
        }
        upload.finish().await?;
        if !only_new {
            return Ok(true);
        }
        let copied = made(self.objects.copy_if_not_exists(&first, key).await);
        // What stays goes with the next pruning.
        let _ = self.remove(&first).await;
        copied
    }

    async fn remove(&self, key: &Key) -> Result<()> {
        match self.objects.delete(key).await {
            Err(error) if !matches!(error, Error::NotFound { .. }) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Says that this process is at work, unless others are in the way.
    async fn hold(&mut self, work: Work) -> Result<bool> {
        if self.held.is_none() {
            let name = match work {
                Work::Adding => "adds",
                Work::Pruning => "prunes",
            };
            let key = self.key(&format!("{INCOMING}/{name}-{:016x}", number()))?;
            self.held = Some(Held::begin(self.objects.clone(), key).await?);
        }
        let Some(held) = &self.held else {
            return Ok(false);
        };
        let own = held.key.clone();
        let now = self.objects.head(&own).await?.last_modified;
        let (mut adding, mut pruning) = (false, false);
        for other in self.list(INCOMING).await? {
            let name = other.location.filename().unwrap_or_default();
            let (adds, prunes) = (name.starts_with("adds-"), name.starts_with("prunes-"));
            if other.location == own || !adds && !prunes {
                continue;
            }
            if now - other.last_modified > GONE {
                self.remove(&other.location).await?;
                self.removed += 1;
                continue;
            }
            adding |= adds;
            pruning |= prunes;
        }
        let is_free = match work {
            Work::Adding => !pruning,
            Work::Pruning => !adding && !pruning,
        };
        if is_free {
            return Ok(true);
        }
        // Nobody goes on while this process says that it prunes; but of several who do, all make way.
        if pruning {
            self.release().await?;
        }
        let moment = 300 + number() % 700;
        tokio::time::sleep(Duration::from_millis(moment)).await;
        Ok(false)
    }

    async fn is_held(&self) -> Result<bool> {
        let Some(held) = &self.held else {
            return Ok(false);
        };
        if !held.is_held.load(Ordering::SeqCst) {
            return Ok(false);
        }
        match self.objects.head(&held.key).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn release(&mut self) -> Result<()> {
        match self.held.take() {
            Some(held) => {
                // A beat that is under way could make it again.
                held.beat.abort();
                self.remove(&held.key).await
            }
            None => Ok(()),
        }
    }

    /// Removes what is in `incoming`, but for what says that this process is at work: all of it is that of the dead.
    async fn clear(&mut self) -> Result<u64> {
        let own = self.held.as_ref().map(|held| held.key.clone());
        for object in self.list(INCOMING).await? {
            if Some(&object.location) != own.as_ref() {
                self.remove(&object.location).await?;
                self.removed += 1;
            }
        }
        Ok(std::mem::take(&mut self.removed))
    }
}

/// Whether there is no such object.
fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::NotFound { .. }))
}

/// Whether something new was made, or was there.
fn made(done: object_store::Result<()>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(Error::AlreadyExists { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Held {
    /// Makes the object, and makes it anew from time to time.
    async fn begin(objects: Arc<AmazonS3>, key: Key) -> Result<Self> {
        let first = objects.put_opts(&key, "0".into(), PutMode::Create.into());
        let mut last: UpdateVersion = first.await?.into();
        let is_held = Arc::new(AtomicBool::new(true));
        let (of_key, of_held) = (key.clone(), is_held.clone());
        let beat = tokio::spawn(async move {
            for count in 1_u64.. {
                tokio::time::sleep(BEAT).await;
                let mode = PutMode::Update(last.clone());
                let text = count.to_string();
                match objects.put_opts(&of_key, text.into(), mode.into()).await {
                    Ok(made) => last = made.into(),
                    // Somebody has removed it.
                    Err(Error::Precondition { .. } | Error::NotFound { .. }) => break,
                    // It is tried again; if that takes too long, somebody removes it.
                    Err(_) => {}
                }
            }
            of_held.store(false, Ordering::SeqCst);
        });
        Ok(Self { key, is_held, beat })
    }
}
