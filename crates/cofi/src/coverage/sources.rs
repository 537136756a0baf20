//! What ran by source files: those of all files of code together.

use super::Share;
use cofi_analysis::{FileCode, LineCount, SourceCover};
use cofi_session::compact;
use std::collections::BTreeMap;
use std::path::Path;

/// A function of a source file.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: u32,
    pub(crate) calls: u64,
    pub(crate) insns: u64,
}

/// What of a source file ran.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) lines: BTreeMap<u32, LineCount>,
    /// By line.
    pub(crate) functions: Vec<Function>,
}

/// A file of code that has no debugging information.
#[derive(Debug)]
pub(crate) struct Bare {
    pub(crate) path: String,
    pub(crate) functions: Share,
    pub(crate) insns: u64,
}

/// What ran by source files.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// By path.
    pub(crate) list: Vec<Source>,
    /// The one with the most instructions first.
    pub(crate) bare: Vec<Bare>,
    /// The names of the libraries that are left out.
    pub(crate) left_out: Vec<String>,
}

/// Whether a file is a library of the system, or of the kernel.
pub(crate) fn is_of_system(path: &Path) -> bool {
    let folders = [
        "/lib",
        "/lib32",
        "/lib64",
        "/usr/lib",
        "/usr/lib32",
        "/usr/lib64",
    ];
    !cofi_host::is_absolute(path) || folders.iter().any(|folder| path.starts_with(folder))
}

impl Sources {
    /// Those whose paths contain one of the words, if there are any. Without `all`, libraries of the system are left out, unless nothing else ran.
    pub(crate) fn of(files: &[FileCode], words: &[String], all: bool) -> Self {
        let all = all || files.iter().all(|code| is_of_system(code.path()));
        let mut left_out = Vec::new();
        let is_wanted =
            |path: &str| words.is_empty() || words.iter().any(|word| path.contains(word));
        let mut sources: BTreeMap<String, Source> = BTreeMap::new();
        let mut bare = Vec::new();
        for code in files {
            if !all && is_of_system(code.path()) {
                let name = code.path().file_name().unwrap_or(code.path().as_os_str());
                left_out.push(name.to_string_lossy().into_owned());
                continue;
            }
            let cover = SourceCover::of(code);
            if !cover.has_lines {
                if words.is_empty() {
                    bare.push(Bare::of(code, &cover));
                }
                continue;
            }
            for ((file, line), count) in cover.lines {
                let Some(path) = cover
                    .files
                    .get(file as usize)
                    .filter(|path| is_wanted(path))
                else {
                    continue;
                };
                let source = source(&mut sources, path);
                let sum = source.lines.entry(line).or_default();
                sum.count += count.count;
                sum.insns += count.insns;
                sum.branches.extend(count.branches);
            }
            for function in cover.functions {
                let Some((file, line)) = function.declared else {
                    continue;
                };
                let path = cover.files.get(file as usize);
                if let Some(path) = path.filter(|path| is_wanted(path)) {
                    source(&mut sources, path).functions.push(Function {
                        name: function.name,
                        line,
                        calls: function.calls,
                        insns: function.insns,
                    });
                }
            }
        }
        let mut list: Vec<Source> = sources.into_values().collect();
        for source in &mut list {
            source.join_functions();
        }
        Self {
            list,
            bare,
            left_out,
        }
    }
}

fn source<'s>(sources: &'s mut BTreeMap<String, Source>, path: &str) -> &'s mut Source {
    if !sources.contains_key(path) {
        let path = path.to_owned();
        let source = Source {
            path: path.clone(),
            ..Source::default()
        };
        sources.insert(path, source);
    }
    sources.entry(path.to_owned()).or_default()
}

impl Source {
    /// A function of which several files have code is one.
    fn join_functions(&mut self) {
        compact::sort_by(&mut self.functions, |a, b| {
            (a.line, &a.name).cmp(&(b.line, &b.name))
        });
        self.functions.dedup_by(|next, kept| {
            let is_same = (next.line, &next.name) == (kept.line, &kept.name);
            if is_same {
                kept.calls += next.calls;
                kept.insns += next.insns;
            }
            is_same
        });
    }
}

impl Bare {
    fn of(code: &FileCode, cover: &SourceCover) -> Self {
        let mut functions = Share::default();
        for function in &cover.functions {
            functions.add(function.insns > 0);
        }
        Self {
            path: code.path().display().to_string(),
            functions,
            insns: code.total(),
        }
    }
}
