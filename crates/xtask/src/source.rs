//! The source files of the workspace, as the checks read them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// All files below `folder` whose name ends in `.rs`, in a stable order; build output is left out.
pub(crate) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The file's text.
pub(crate) fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// `text` without line comments and without its unit tests (from `#[cfg(test)]` on an inline module to the file's end).
pub(crate) fn code_only(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let bare = line.trim();
        if bare == "#[cfg(test)]" {
            match lines.peek().map(|next| next.trim()) {
                Some(next) if next.starts_with("mod") && next.ends_with('{') => break,
                Some(_) => {
                    lines.next();
                    continue;
                }
                None => break,
            }
        }
        out.push_str(line.split("//").next().unwrap_or_default());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::code_only;

    #[test]
    fn comments_and_tests_are_no_code() {
        let text = "use core::fmt; // not std::fmt\n#[cfg(test)]\nmod sibling_tests;\nfn a() {}\n#[cfg(test)]\nmod tests {\n    use std::vec;\n}\n";
        assert_eq!(code_only(text), "use core::fmt; \nfn a() {}\n");
    }
}
