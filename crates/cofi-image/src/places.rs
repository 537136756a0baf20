//! Where files of code and their symbols are looked for.

use std::env;
use std::path::{Component, Path, PathBuf};

use crate::build_id::BuildId;

/// Where to look for files, besides at their own paths. Nothing is fetched over a network.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Places {
    /// The paths of the trace are meant below this folder: it holds (a copy of) the file system of the traced machine.
    pub symfs: Option<PathBuf>,
    /// perf's cache of files by their build ids.
    pub build_ids: Option<PathBuf>,
    /// The folder in which a client of debuginfod keeps what it has fetched.
    pub debuginfod: Option<PathBuf>,
    /// Use what stands at a path although its build id is another, or although the file was deleted when the trace was taken.
    pub ignore_build_ids: bool,
    /// The folder of the kernel's own vDSO files for the kernel that was traced, `/lib/modules/RELEASE/vdso`.
    pub vdso: Option<PathBuf>,
    /// Files of the running machine may stand for those of the traced one if their build id is right: its vDSO.
    pub this_machine: bool,
}

/// Where distributions put the files of debugging information.
const DEBUG: &str = "usr/lib/debug";

/// Where a file may be.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    /// Only a build id that is known and equal makes it the right file.
    pub(crate) only_if_equal: bool,
}

impl Places {
    /// Those that this user's programs use: perf's cache in `$HOME/.debug`, and the cache of debuginfod
    /// (`DEBUGINFOD_CACHE_PATH`, or below `XDG_CACHE_HOME` or `$HOME/.cache`).
    #[must_use]
    pub fn of_environment() -> Self {
        let folder = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let home = folder("HOME").map(PathBuf::from);
        let cache = folder("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(home.as_ref()?.join(".cache")));
        Self {
            build_ids: home.map(|home| home.join(".debug")),
            debuginfod: folder("DEBUGINFOD_CACHE_PATH")
                .map(PathBuf::from)
                .or_else(|| Some(cache?.join("debuginfod_client"))),
            this_machine: true,
            ..Self::default()
        }
    }

    /// `path` as it is named on the traced machine, here.
    pub(crate) fn here(&self, path: &Path) -> PathBuf {
        match &self.symfs {
            None => path.to_owned(),
            // Steps upwards would lead out of the folder.
            Some(symfs) => path
                .components()
                .filter(|step| matches!(step, Component::Normal(_)))
                .fold(symfs.clone(), |path, step| path.join(step)),
        }
    }

    /// Where the code of a file with this build id may be, by the build id alone.
    pub(crate) fn of_build_id(&self, id: &BuildId, name: &str) -> Vec<PathBuf> {
        let (first, rest) = split(id);
        let mut found = Vec::new();
        if let Some(cache) = &self.build_ids {
            let link = cache.join(".build-id").join(&first).join(&rest);
            found.push(link.join(name));
            // perf of old linked to the file itself.
            found.push(link);
        }
        if name == "elf" {
            if let Some(cache) = &self.debuginfod {
                found.push(cache.join(id.to_string()).join("executable"));
            }
            let debug = self.here(&Path::new("/").join(DEBUG));
            found.push(debug.join(".build-id").join(first).join(rest));
        }
        found
    }

    /// Where the debugging information of the file at `path` may be.
    pub(crate) fn of_debug(
        &self,
        path: &Path,
        id: Option<&BuildId>,
        link: Option<&[u8]>,
    ) -> Vec<PathBuf> {
        let debug = self.here(&Path::new("/").join(DEBUG));
        let mut found = Vec::new();
        if let Some(id) = id {
            let (first, rest) = split(id);
            found.push(
                debug
                    .join(".build-id")
                    .join(&first)
                    .join(format!("{rest}.debug")),
            );
            if let Some(cache) = &self.build_ids {
                found.push(cache.join(".build-id").join(first).join(rest).join("debug"));
            }
            if let Some(cache) = &self.debuginfod {
                found.push(cache.join(id.to_string()).join("debuginfo"));
            }
        }
        let link = link.and_then(|link| std::str::from_utf8(link).ok());
        // A name only: it must not lead elsewhere.
        let link = link.filter(|link| !link.is_empty() && !link.contains('/') && *link != "..");
        if let (Some(link), Some(folder)) = (link, path.parent()) {
            found.push(folder.join(link));
            found.push(folder.join(".debug").join(link));
            if let Ok(inside) = folder.strip_prefix("/") {
                found.push(debug.join(inside).join(link));
            }
        }
        found.retain(|found| found != path);
        found
    }

    /// Where the code of a file may be that a mapping names `path`.
    pub(crate) fn of_code(&self, path: &Path, id: Option<&BuildId>) -> Vec<Candidate> {
        let maybe = |path| Candidate {
            path,
            only_if_equal: false,
        };
        let equal = |path| Candidate {
            path,
            only_if_equal: true,
        };
        let mut found = Vec::new();
        if path.as_os_str() == VDSO {
            if let Some(id) = id {
                found.extend(self.of_build_id(id, "vdso").into_iter().map(equal));
                if let Some(folder) = &self.vdso {
                    let names = ["vdso64.so", "vdso32.so", "vdsox32.so"];
                    found.extend(names.map(|name| equal(self.here(&folder.join(name)))));
                }
            }
            return found;
        }
        if is_real_path(path) {
            found.push(maybe(self.here(path)));
            if let Some(path) = without_deleted(path) {
                found.push(Candidate {
                    path: self.here(&path),
                    only_if_equal: !self.ignore_build_ids,
                });
            }
        }
        if let Some(id) = id {
            found.extend(self.of_build_id(id, "elf").into_iter().map(equal));
        }
        found
    }
}

/// The name of the vDSO's mapping, of 64 and 32 bits alike.
pub(crate) const VDSO: &str = "[vdso]";

fn split(id: &BuildId) -> (String, String) {
    let text = id.to_string();
    let (first, rest) = text.split_at(2);
    (first.to_owned(), rest.to_owned())
}

/// Whether the name a kernel gave a mapping can be a file's path. `//anon` and its like begin with two slashes.
pub(crate) fn is_real_path(path: &Path) -> bool {
    let bytes = cofi_host::bytes_of(path);
    cofi_host::is_absolute(path) && !bytes.starts_with(b"//")
}

/// The path that a file had which was deleted before it was mapped, or while it was.
pub(crate) fn without_deleted(path: &Path) -> Option<PathBuf> {
    let bytes = cofi_host::bytes_of(path);
    let before = bytes.strip_suffix(b" (deleted)")?;
    Some(cofi_host::path_of(before).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_of_symfs() {
        let places = Places {
            symfs: Some("/sys-root".into()),
            ..Places::default()
        };
        for (path, here) in [
            ("/usr/bin/a", "/sys-root/usr/bin/a"),
            ("/../../etc/passwd", "/sys-root/etc/passwd"),
            ("/a/./b", "/sys-root/a/b"),
        ] {
            assert_eq!(places.here(Path::new(path)), Path::new(here));
        }
        assert_eq!(Places::default().here(Path::new("/a/b")), Path::new("/a/b"));
    }

    #[test]
    fn a_debug_link_is_a_name() {
        let places = Places::default();
        let found = |link: &[u8]| places.of_debug(Path::new("/bin/a"), None, Some(link));
        assert!(found(b"../../etc/passwd").is_empty());
        assert!(found(b"..").is_empty());
        assert_eq!(
            found(b"a.debug"),
            [
                "/bin/a.debug",
                "/bin/.debug/a.debug",
                "/usr/lib/debug/bin/a.debug"
            ]
            .map(PathBuf::from)
        );
        assert_eq!(found(b"a").len(), 2, "not the file itself");
    }

    #[test]
    fn deleted_files() {
        assert_eq!(
            without_deleted(Path::new("/a b (deleted)")),
            Some("/a b".into())
        );
        assert_eq!(without_deleted(Path::new("/a (deleted) b")), None);
    }
}
