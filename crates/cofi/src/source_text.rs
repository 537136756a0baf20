//! The text of source files.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

/// The lines of source files, each read once.
#[derive(Debug, Default)]
pub(crate) struct SourceText(HashMap<Rc<str>, Option<Vec<String>>>);

impl SourceText {
    /// A line, if the file is there.
    pub(crate) fn line(&mut self, file: &Rc<str>, number: u32) -> Option<&str> {
        /// A source file is no longer than this.
        const MOST: u64 = 64 << 20;
        let lines = self.0.entry(file.clone()).or_insert_with(|| {
            let path = Path::new(&**file);
            let metadata = std::fs::metadata(path).ok()?;
            if !metadata.is_file() || metadata.len() > MOST {
                return None;
            }
            let bytes = std::fs::read(path).ok()?;
            let text = String::from_utf8_lossy(&bytes);
            Some(text.lines().map(str::to_owned).collect())
        });
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        lines.as_ref()?.get(index).map(String::as_str)
    }

    /// Whether a file of which a line was asked for is not there.
    pub(crate) fn is_missing(&self, file: &str) -> bool {
        self.0.get(file).is_some_and(Option::is_none)
    }
}
