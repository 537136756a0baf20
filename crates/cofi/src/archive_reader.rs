//! What is in an archive, and reading it.
//!
//! Nothing of an archive is written anywhere, and no name in it is ever opened: a member is a range of the archive's own
//! bytes, a path in it is what a mapping of the trace is compared with.

use crate::rtit::RtitArgs;
use anyhow::{Context, Result, bail};
use cofi_image::{BuildId, CodeFile};
use cofi_session::{PackedCode, TraceFile};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the first member.
pub(crate) const MANIFEST: &str = "cofi-archive.json";

/// The version of the manifest that is written; others are refused.
const VERSION: u64 = 1;

/// What the members of an archive are.
#[derive(Clone, Default, Debug)]
pub(crate) struct Manifest {
    /// The trace.
    pub(crate) trace: String,
    /// Where it was, and the members with its other parts by where they were.
    pub(crate) path: Vec<u8>,
    pub(crate) parts: Vec<(Vec<u8>, String)>,
    /// What it was said to be, if anything was.
    pub(crate) format: Option<String>,
    pub(crate) cpu: Option<String>,
    pub(crate) errata: Option<String>,
    /// What was said of bare packets' code, as on the command line.
    pub(crate) elf: Vec<String>,
    pub(crate) raw: Vec<String>,
    /// What was said of bare RTIT packets.
    pub(crate) rtit: Option<RtitArgs>,
    /// Paths of jitdumps that the trace does not name.
    pub(crate) jitdumps: Vec<Vec<u8>>,
    /// The names of the kernel's functions.
    pub(crate) kallsyms: Option<String>,
    /// Its code.
    pub(crate) kernel: Option<String>,
    pub(crate) files: Vec<File>,
}

/// A file of code.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) member: String,
    /// As the trace names it.
    pub(crate) path: Vec<u8>,
    /// As the trace tells it.
    pub(crate) build_id: Option<BuildId>,
    /// The member with its debugging information.
    pub(crate) debug: Option<String>,
}

/// A path as JSON: a text, or the numbers of its bytes where it is none.
fn path_value(path: &[u8]) -> Value {
    match std::str::from_utf8(path) {
        Ok(text) => text.into(),
        Err(_) => path.into(),
    }
}

fn path_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Array(bytes) => bytes
            .iter()
            .map(|byte| u8::try_from(byte.as_u64()?).ok())
            .collect(),
        _ => None,
    }
}

impl Manifest {
    /// As it stands in the archive.
    pub(crate) fn text(&self) -> Result<String> {
        let files: Vec<Value> = self
            .files
            .iter()
            .map(|file| {
                json!({
                    "member": file.member,
                    "path": path_value(&file.path),
                    "build_id": file.build_id.map(|id| id.to_string()),
                    "debug": file.debug,
                })
            })
            .collect();
        let jitdumps: Vec<Value> = self.jitdumps.iter().map(|path| path_value(path)).collect();
        let parts = self.parts.iter();
        let parts: Vec<Value> = parts
            .map(|(path, member)| json!({ "member": member, "path": path_value(path) }))
            .collect();
        let value = json!({
            "cofi_archive": VERSION,
            "trace": self.trace,
            "path": path_value(&self.path),
            "parts": parts,
            "format": self.format,
            "cpu": self.cpu,
            "errata": self.errata,
            "elf": self.elf,
            "raw": self.raw,
            "rtit": self.rtit.as_ref().map(RtitArgs::value),
            "jitdumps": jitdumps,
            "kallsyms": self.kallsyms,
            "kernel": self.kernel,
            "files": files,
        });
        Ok(serde_json::to_string_pretty(&value)? + "\n")
    }

    fn parse(text: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(text).context("its manifest is damaged")?;
        match value["cofi_archive"].as_u64() {
            Some(VERSION) => {}
            Some(other) => {
                bail!("version {other} of archives is not known to this version of cofi")
            }
            None => bail!("its manifest tells no version"),
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let texts = |value: &Value| list(value).iter().filter_map(text).collect();
        let file = |value: &Value| {
            Some(File {
                member: text(&value["member"])?,
                path: path_of(&value["path"])?,
                build_id: value["build_id"].as_str().and_then(BuildId::parse),
                debug: text(&value["debug"]),
            })
        };
        let part = |value: &Value| Some((path_of(&value["path"])?, text(&value["member"])?));
        Ok(Self {
            path: path_of(&value["path"]).unwrap_or_default(),
            parts: list(&value["parts"]).iter().filter_map(part).collect(),
            trace: text(&value["trace"]).context("its manifest names no trace")?,
            format: text(&value["format"]),
            cpu: text(&value["cpu"]),
            errata: text(&value["errata"]),
            elf: texts(&value["elf"]),
            raw: texts(&value["raw"]),
            rtit: match &value["rtit"] {
                Value::Null => None,
                told => Some(RtitArgs::parse(told).context("its manifest is damaged")?),
            },
            jitdumps: list(&value["jitdumps"])
                .iter()
                .filter_map(path_of)
                .collect(),
            kallsyms: text(&value["kallsyms"]),
            kernel: text(&value["kernel"]),
            files: list(&value["files"]).iter().filter_map(file).collect(),
        })
    }
}

/// An archive, opened.
#[derive(Debug)]
pub(crate) struct Packed<'a> {
    bytes: &'a [u8],
    members: HashMap<Vec<u8>, Range<usize>>,
    pub(crate) manifest: Manifest,
}

impl<'a> Packed<'a> {
    /// Whether these are the first bytes of an archive.
    pub(crate) fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(MANIFEST.as_bytes()) && bytes.get(257..262) == Some(b"ustar")
    }

    /// Opens an archive; `None` if it is something else.
    ///
    /// # Errors
    /// When it is damaged. One that is cut off is read as far as it goes.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Option<Self>> {
        if !Self::is_one(bytes) {
            return Ok(None);
        }
        let opened = Self::read(bytes).context("the archive cannot be read")?;
        Ok(Some(opened))
    }

    fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut members = HashMap::new();
        let mut archive = tar::Archive::new(bytes);
        // What stands behind a damaged header cannot be told apart.
        for entry in archive.entries()?.map_while(Result::ok) {
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let range = usize::try_from(entry.raw_file_position())
                .ok()
                .zip(usize::try_from(entry.size()).ok())
                .and_then(|(start, len)| Some(start..start.checked_add(len)?))
                .filter(|range| range.end <= bytes.len());
            if let Some(range) = range {
                members
                    .entry(entry.path_bytes().into_owned())
                    .or_insert(range);
            }
        }
        let mut this = Self {
            bytes,
            members,
            manifest: Manifest::default(),
        };
        let text = this.member(MANIFEST).context("its manifest is cut off")?;
        this.manifest = Manifest::parse(text)?;
        Ok(this)
    }

    fn member(&self, name: &str) -> Option<&'a [u8]> {
        self.bytes.get(self.members.get(name.as_bytes())?.clone())
    }

    /// The trace.
    pub(crate) fn trace(&self) -> Result<&'a [u8]> {
        self.member(&self.manifest.trace)
            .context("the archive is cut off: the trace is not in it")
    }

    /// The list of the kernel's functions.
    pub(crate) fn kallsyms(&self) -> Option<&'a [u8]> {
        self.member(self.manifest.kallsyms.as_deref()?)
    }

    /// The code that is there.
    pub(crate) fn code(&self) -> PackedCode {
        // A member is one file's: many that name the same would take many times its size.
        let mut seen = std::collections::HashSet::new();
        // Debugging information may be that of several files, and is in memory once.
        let mut debugs = HashMap::<&str, Arc<[u8]>>::new();
        let files = self.manifest.files.iter();
        let files = files.filter(|file| seen.insert(&file.member));
        let files = files.filter_map(|file| {
            let path = PathBuf::from(OsString::from_vec(file.path.clone()));
            let debug = file.debug.as_deref().and_then(|name| {
                let known = debugs.get(name).cloned();
                let debug = known.or_else(|| Some(self.member(name)?.into()))?;
                debugs.insert(name, debug.clone());
                Some(debug)
            });
            let bytes = self.member(&file.member)?;
            Some(CodeFile::packed(path, file.build_id, bytes, debug))
        });
        let kernel = self.manifest.kernel.as_deref();
        let kernel = kernel.and_then(|name| self.member(name));
        {
            let mut new_packed = PackedCode::default();
            new_packed.files = files.collect();
            new_packed.kernel = kernel.map(|bytes| CodeFile::packed("[kernel]", None, bytes, None));
            new_packed.parts = self.parts();
            new_packed
        }
    }

    /// The parts of the trace that are there.
    pub(crate) fn parts(&self) -> Vec<TraceFile> {
        let mut seen = std::collections::HashSet::new();
        let parts = self.manifest.parts.iter();
        parts
            .filter(|(_, member)| seen.insert(member))
            .filter_map(|(path, member)| {
                let path = PathBuf::from(OsString::from_vec(path.clone()));
                Some((path, self.member(member)?.into()))
            })
            .collect()
    }

    /// A file that the archive names must be in it: nothing else is opened on its word.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        let path = path.as_os_str().as_encoded_bytes();
        let mut files = self.manifest.files.iter();
        if files.any(|file| file.path == path && self.members.contains_key(file.member.as_bytes()))
        {
            return Ok(());
        }
        let path = String::from_utf8_lossy(path);
        bail!("the archive is cut off or damaged: {path} is not in it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive of a hundred files whose debugging information is one member.
    fn archive() -> Vec<u8> {
        let files: Vec<File> = (0..100)
            .map(|number| File {
                member: format!("files/{number}"),
                path: format!("/bin/{number}").into_bytes(),
                build_id: None,
                debug: Some("debug".into()),
            })
            .collect();
        let names: Vec<String> = files.iter().map(|file| file.member.clone()).collect();
        let manifest = Manifest {
            trace: "debug".into(),
            files,
            ..Manifest::default()
        };
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, bytes).unwrap();
        };
        add(MANIFEST, manifest.text().unwrap().as_bytes());
        add("debug", &[7; 1000]);
        for name in names {
            add(&name, &[0x90]);
        }
        archive.into_inner().unwrap()
    }

    #[test]
    fn debugging_information_that_many_files_name_is_in_memory_once() {
        let bytes = archive();
        let code = Packed::open(&bytes).unwrap().unwrap().code();
        let mut places: Vec<*const u8> = code
            .files
            .iter()
            .map(|file| file.debug_bytes().unwrap().as_ptr())
            .collect();
        assert_eq!(places.len(), 100);
        places.dedup();
        assert_eq!(places.len(), 1);
    }
}
