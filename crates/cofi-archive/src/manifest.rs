//! What stands in the first member of an archive.

use cofi_image::BuildId;
use serde_json::{Value, json};

use crate::bare::BareArgs;
use crate::error::ArchiveError;

/// The name of the first member.
pub const MANIFEST: &str = "cofi-archive.json";

/// The version of the manifest that is written; others are refused.
const VERSION: u64 = 1;

/// The version of that of a recording in a catalogue.
const VERSION_OF_KEPT: u64 = 2;

/// What the members of an archive are, and what was said of the trace.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct Manifest {
    /// The trace.
    pub trace: String,
    /// Where it was.
    pub path: Vec<u8>,
    /// The members with its other parts, by where they were.
    pub parts: Vec<(Vec<u8>, String)>,
    /// What it was said to be, if anything was: `pt`, `rtit` or `perf`.
    pub format: Option<String>,
    /// The processor that was named.
    pub cpu: Option<String>,
    /// The errata that were named.
    pub errata: Option<String>,
    /// ELF files of bare packets, as `--elf` has them.
    pub elf: Vec<String>,
    /// Raw code of bare packets, as `--raw` has it.
    pub raw: Vec<String>,
    /// What was said of bare RTIT packets.
    pub rtit: Option<BareArgs>,
    /// Paths of jitdumps that the trace does not name.
    pub jitdumps: Vec<Vec<u8>>,
    /// The names of the kernel's functions.
    pub kallsyms: Option<String>,
    /// Its code.
    pub kernel: Option<String>,
    /// Files of code.
    pub files: Vec<PackedFile>,
    /// What is to be said of a recording of a catalogue, whose code lies outside of it.
    pub kept: Option<Kept>,
}

/// A recording of a catalogue.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// When it was added, in seconds since 1970.
    pub added: u64,
    /// How many instructions were decoded then.
    pub instructions: Option<u64>,
    /// The members that lie in the catalogue, where others share them, and their sizes in bytes.
    pub shared: Vec<(String, u64)>,
}

impl Kept {
    fn value(&self) -> Value {
        let shared = self.shared.iter();
        let shared: Vec<Value> = shared
            .map(|(member, size)| json!({ "member": member, "size": size }))
            .collect();
        json!({
            "added": self.added,
            "instructions": self.instructions,
            "shared": shared,
        })
    }

    fn parse(value: &Value) -> Result<Self, ArchiveError> {
        let wrong = |reason: &str| ArchiveError::Manifest {
            reason: reason.into(),
        };
        let shared = value["shared"].as_array();
        let shared = shared.ok_or_else(|| wrong("no list of what it shares"))?;
        let one = |value: &Value| {
            let member = value["member"]
                .as_str()
                .filter(|name| is_shared_name(name))?;
            Some((member.to_owned(), value["size"].as_u64()?))
        };
        let shared: Option<Vec<_>> = shared.iter().map(one).collect();
        Ok(Self {
            added: value["added"].as_u64().ok_or_else(|| wrong("no time"))?,
            instructions: value["instructions"].as_u64(),
            shared: shared.ok_or_else(|| wrong("a name of no file of a catalogue"))?,
        })
    }
}

/// Whether this is the name of a file in a catalogue: `code`, a build id or `none`, and a SHA-256, which name nothing else.
pub(crate) fn is_shared_name(name: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    match *name.split('/').collect::<Vec<_>>() {
        ["code", id, hash] => {
            let is_id =
                id == NO_BUILD_ID || is_hex(id) && (2..=2 * BuildId::MAX).contains(&id.len());
            is_id && is_hex(hash) && hash.len() == 64
        }
        _ => false,
    }
}

/// Stands for the build id of a file that has none.
pub(crate) const NO_BUILD_ID: &str = "none";

/// A file of code.
#[derive(Clone, Debug)]
pub struct PackedFile {
    /// The member with its bytes.
    pub member: String,
    /// As the trace names it.
    pub path: Vec<u8>,
    /// As the trace tells it.
    pub build_id: Option<BuildId>,
    /// The member with its debugging information.
    pub debug: Option<String>,
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
    #[must_use]
    pub fn text(&self) -> String {
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
        let mut value = json!({
            "cofi_archive": if self.kept.is_some() { VERSION_OF_KEPT } else { VERSION },
            "trace": self.trace,
            "path": path_value(&self.path),
            "parts": parts,
            "format": self.format,
            "cpu": self.cpu,
            "errata": self.errata,
            "elf": self.elf,
            "raw": self.raw,
            "rtit": self.rtit.as_ref().map(BareArgs::value),
            "jitdumps": jitdumps,
            "kallsyms": self.kallsyms,
            "kernel": self.kernel,
            "files": files,
        });
        if let (Some(kept), Value::Object(object)) = (&self.kept, &mut value) {
            object.insert("kept".into(), kept.value());
        }
        format!("{value:#}\n")
    }

    /// The inverse of [`text`](Self::text).
    ///
    /// # Errors
    /// When it is no manifest, or one of another version.
    pub fn parse(text: &[u8]) -> Result<Self, ArchiveError> {
        let wrong = |reason: String| ArchiveError::Manifest { reason };
        let value: Value =
            serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        let kept = match value["cofi_archive"].as_u64() {
            Some(VERSION) => None,
            Some(VERSION_OF_KEPT) => Some(Kept::parse(&value["kept"])?),
            Some(found) => return Err(ArchiveError::Version { found }),
            None => return Err(wrong("it tells no version".into())),
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let texts = |value: &Value| list(value).iter().filter_map(text).collect();
        let file = |value: &Value| {
            Some(PackedFile {
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
            trace: text(&value["trace"]).ok_or_else(|| wrong("it names no trace".into()))?,
            format: text(&value["format"]),
            cpu: text(&value["cpu"]),
            errata: text(&value["errata"]),
            elf: texts(&value["elf"]),
            raw: texts(&value["raw"]),
            rtit: match &value["rtit"] {
                Value::Null => None,
                told => Some(BareArgs::parse(told).map_err(wrong)?),
            },
            jitdumps: list(&value["jitdumps"])
                .iter()
                .filter_map(path_of)
                .collect(),
            kallsyms: text(&value["kallsyms"]),
            kernel: text(&value["kernel"]),
            files: list(&value["files"]).iter().filter_map(file).collect(),
            kept,
        })
    }
}
