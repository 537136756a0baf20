//! The text of source files.

use std::fs::File;
use std::io::Read;

use serde_json::{Value, json};

/// A source file is no longer than this.
const LONGEST: u64 = 16 << 20;

/// The lines of a file that code of the recording was made of; null if it is not there, with the reason.
pub(crate) fn read(path: &str) -> Value {
    let lines = (|| {
        let known = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if !known.is_file() {
            return Err("not a file".to_owned());
        }
        if known.len() > LONGEST || !path.starts_with('/') {
            return Err("too large, or not found by a whole path".to_owned());
        }
        // No more than its length: a file of /proc, which a trace may name as well, may have no end.
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(known.len()).read_to_end(&mut bytes))
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.lines().map(str::to_owned).collect::<Vec<_>>())
    })();
    match lines {
        Ok(lines) => json!({"path": path, "lines": lines}),
        Err(error) => json!({"path": path, "lines": null, "error": error}),
    }
}
