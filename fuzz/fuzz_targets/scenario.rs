//! Any text as a scenario of the trace unit: what is wrong is named with a place in the text, and what comes out is the same each time.
#![no_main]

#[allow(dead_code)]
#[path = "scenario/unit.rs"]
mod unit;

use libfuzzer_sys::fuzz_target;

/// Whether a text may ask for so much that a case takes long: as many operations as a scenario may have are allowed, and slow here.
fn is_long(text: &str) -> bool {
    text.len() > 1 << 14 || text.contains("times") && text.contains("000")
}

fuzz_target!(|text: &str| {
    if is_long(text) {
        return;
    }
    let played = unit::packets(text);
    assert_eq!(played, unit::packets(text), "another time it is otherwise");
    if let Err(told) = played {
        let mut words = told.splitn(3, ':');
        let line: usize = words.next().and_then(|word| word.parse().ok()).expect("a line");
        let column: usize = words.next().and_then(|word| word.parse().ok()).expect("a column");
        assert!(!words.next().expect("a sentence").trim().is_empty());
        let lines = text.split('\n').nth(line - 1).expect("a line of the text");
        assert!(column <= lines.chars().count() + 1, "{told}: outside of the line");
    }
});
