//! Where the plugin and the memory that it shares with us are kept: folders of our own, which nobody else can read or write, and
//! which the next run removes if this one is killed.

use nix::sys::statvfs::{FsFlags, statvfs};
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Our folders' names begin so.
const PREFIX: &str = "cofi-";
/// A file in each, which is locked as long as its owner lives.
const ALIVE: &str = "alive";
/// With so many bytes free a place is as good as any.
const ENOUGH: u64 = 16 << 20;
/// With less it is none.
const LEAST: u64 = 2 << 20;

/// A folder of our own, until it is dropped.
#[derive(Debug)]
pub(super) struct RuntimeDir {
    folder: TempDir,
    /// Locked: we live.
    _alive: File,
}

impl RuntimeDir {
    fn new(parent: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        // Whatever our mask is.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700))?;
        // Who finds the file finds it locked.
        let hidden = folder.path().join(".alive");
        let alive = File::create_new(&hidden)?;
        alive.lock()?;
        fs::rename(hidden, folder.path().join(ALIVE))?;
        Ok(Self {
            folder,
            _alive: alive,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A folder in which we may make ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Parent {
    path: PathBuf,
    /// Bytes that are free.
    room: u64,
    /// Programs and libraries may be loaded from it.
    executes: bool,
}

/// The folders that there are, the best first: what is in memory is never written to a disk.
pub(super) fn parents() -> Vec<Parent> {
    let mut found: Vec<Parent> = Vec::new();
    let names = [
        "/dev/shm".into(),
        std::env::temp_dir(),
        "/tmp".into(),
        "/var/tmp".into(),
    ];
    for path in names {
        let Ok(path) = path.canonicalize() else {
            continue;
        };
        let Ok(about) = statvfs(&path) else {
            continue;
        };
        if path.is_dir() && found.iter().all(|parent| parent.path != path) {
            found.push(Parent {
                path,
                room: about
                    .blocks_available()
                    .saturating_mul(about.fragment_size()),
                executes: !about.flags().contains(FsFlags::ST_NOEXEC),
            });
        }
    }
    found
}

/// In which order to try them for memory: the first that has enough, else the one that has most.
fn by_room(parents: &[Parent]) -> Vec<&Parent> {
    let (mut order, mut others): (Vec<_>, Vec<_>) =
        parents.iter().partition(|parent| parent.room >= ENOUGH);
    others.retain(|parent| parent.room >= LEAST);
    others.sort_by_key(|parent| std::cmp::Reverse(parent.room));
    order.extend(others);
    order
}

/// Why there is no place.
#[derive(Debug)]
pub(super) struct NoPlace {
    /// Where one was looked for.
    pub(super) looked: String,
    /// The last refusal, if there was room at all.
    pub(super) source: io::Error,
}

/// Makes a folder for shared memory, and one for a library if they cannot be one.
pub(super) fn make(parents: &[Parent]) -> Result<(RuntimeDir, Option<RuntimeDir>), NoPlace> {
    for parent in parents {
        remove_leftovers(&parent.path);
    }
    let order = by_room(parents);
    let (memory, at) = first(parents, &order)?;
    if at.executes {
        return Ok((memory, None));
    }
    let order: Vec<_> = order.into_iter().filter(|other| other.executes).collect();
    let (library, _) = first(parents, &order)?;
    Ok((memory, Some(library)))
}

fn first<'p>(all: &[Parent], order: &[&'p Parent]) -> Result<(RuntimeDir, &'p Parent), NoPlace> {
    let mut source = io::ErrorKind::StorageFull.into();
    for parent in order {
        match RuntimeDir::new(&parent.path) {
            Ok(place) => return Ok((place, parent)),
            Err(error) => source = error,
        }
    }
    let about = |parent: &Parent| {
        let (path, room) = (parent.path.display(), parent.room >> 10);
        let executes = if parent.executes { "" } else { ", noexec" };
        format!("{path} ({room} KiB free{executes})")
    };
    let looked: Vec<_> = all.iter().map(about).collect();
    let looked = looked.join(", ");
    Err(NoPlace { looked, source })
}

/// Removes folders whose owners were killed. What cannot be removed stays: it is no reason not to record.
fn remove_leftovers(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
            && is_leftover(&entry.path())
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether this is one of our folders, and its owner is gone.
fn is_leftover(folder: &Path) -> bool {
    let ours = |data: fs::Metadata| data.is_dir() && data.uid() == nix::unistd::geteuid().as_raw();
    if !fs::symlink_metadata(folder).is_ok_and(ours) {
        return false;
    }
    match File::open(folder.join(ALIVE)) {
        Ok(alive) => !matches!(
            alive.try_lock(),
            Err(TryLockError::WouldBlock | TryLockError::Error(_))
        ),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(path: &Path, room: u64, executes: bool) -> Parent {
        let path = path.to_owned();
        Parent {
            path,
            room,
            executes,
        }
    }

    #[test]
    fn the_first_with_enough_room_else_the_largest() {
        let [a, b, c] = ["/a", "/b", "/c"].map(Path::new);
        let order = |rooms: [u64; 3]| {
            let parents = [(a, rooms[0]), (b, rooms[1]), (c, rooms[2])]
                .map(|(path, room)| parent(path, room, true));
            let paths = by_room(&parents)
                .into_iter()
                .map(|parent| parent.path.clone());
            paths.collect::<Vec<_>>()
        };
        assert_eq!(order([ENOUGH, 2 * ENOUGH, LEAST]), [a, b, c]);
        assert_eq!(order([LEAST, LEAST - 1, LEAST + 1]), [c, a]);
        assert_eq!(order([0, LEAST, ENOUGH]), [c, b]);
    }

    #[test]
    fn a_library_is_where_it_can_be_loaded() {
        let [shm, tmp] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let parents = [
            parent(shm.path(), ENOUGH, false),
            parent(tmp.path(), LEAST, true),
        ];
        let (memory, library) = make(&parents).unwrap();
        assert!(memory.path().starts_with(shm.path()));
        assert!(library.unwrap().path().starts_with(tmp.path()));
        let error = make(&parents[..1]).unwrap_err();
        assert!(error.looked.contains("noexec"), "{}", error.looked);
    }

    #[test]
    fn no_room_is_told_with_places() {
        let tmp = tempfile::tempdir().unwrap();
        let error = make(&[parent(tmp.path(), LEAST - 1, true)]).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
        assert!(error.looked.contains("2047 KiB free"), "{}", error.looked);
    }

    #[test]
    fn folders_are_for_their_owner_alone_and_leftovers_are_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let alive = RuntimeDir::new(tmp.path()).unwrap();
        let mode = fs::metadata(alive.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        // Killed: the lock is gone, the folder is there.
        let killed = RuntimeDir::new(tmp.path()).unwrap();
        let RuntimeDir { folder, _alive } = killed;
        drop(_alive);
        let left = folder.keep();
        let others = tmp.path().join("cofi-other");
        fs::create_dir(&others).unwrap();
        remove_leftovers(tmp.path());
        assert!(!left.exists());
        assert!(alive.path().exists() && others.exists());
    }
}
