//! Messages, as they stand in the stream: `Content-Length: N`, an empty line, and N bytes of JSON.

use std::io::{self, BufRead, Write};

use serde_json::Value;

/// A message is not longer.
const LONGEST: usize = 64 << 20;
/// A line of a head is not longer.
const LINE: u64 = 4096;

/// Why a message could not be read. Where the next one begins is not known then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The stream broke.
    #[error("the client's messages cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The head is none.
    #[error("not a head of the Debug Adapter Protocol: {0:?}")]
    Head(String),
    /// The content is longer than any message is.
    #[error("a message of {0} bytes")]
    Length(usize),
    /// The content is no JSON.
    #[error("a message that is no JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Reads a message; none at the end of the stream.
pub(crate) fn read(input: &mut impl BufRead) -> Result<Option<Value>, MessageError> {
    let mut length = None;
    let mut is_first = true;
    loop {
        let mut line = Vec::new();
        io::Read::take(&mut *input, LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() && is_first {
            return Ok(None);
        }
        is_first = false;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() && line.ends_with(b"\n") {
            break;
        }
        let wrong = || MessageError::Head(text.to_owned());
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse::<usize>().map_err(|_| wrong())?);
        }
    }
    let length = length.ok_or_else(|| MessageError::Head("no Content-Length".to_owned()))?;
    if length > LONGEST {
        return Err(MessageError::Length(length));
    }
    let mut content = vec![0; length];
    input.read_exact(&mut content)?;
    Ok(Some(serde_json::from_slice(&content)?))
}

/// Writes a message.
pub(crate) fn write(output: &mut impl Write, message: &Value) -> io::Result<()> {
    let content = message.to_string();
    write!(output, "Content-Length: {}\r\n\r\n{content}", content.len())?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_come_back() {
        let all = [
            json!({"seq": 1, "text": "ä\r\n\r\n"}),
            json!([]),
            json!({"x": null}),
        ];
        let mut stream = Vec::new();
        for message in &all {
            write(&mut stream, message).expect("memory");
        }
        let mut input = stream.as_slice();
        for message in &all {
            assert_eq!(read(&mut input).expect("a message").as_ref(), Some(message));
        }
        assert!(read(&mut input).expect("the end").is_none());
        // Cut anywhere, it is an error or the end, and no panic.
        for len in 0..stream.len() {
            let mut input = &stream[..len];
            while let Ok(Some(_)) = read(&mut input) {}
        }
    }

    #[test]
    fn what_is_no_head_is_refused() {
        for text in [
            "x\r\n\r\n",
            "\r\n",
            "Content-Length: x\r\n\r\n",
            "Content-Length: 99999999999999\r\n\r\n",
            "Content-Length: 3\r\n\r\n{x}",
            "Content-Length: 30\r\n\r\n{}",
        ] {
            assert!(read(&mut text.as_bytes()).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut input = bytes.as_slice();
            while let Ok(Some(_)) = read(&mut input) {}
        }
    }
}
