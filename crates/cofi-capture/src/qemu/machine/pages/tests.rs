//! Pages put together from blocks.

use super::super::log::Log;
use super::*;

const MACHINE: Pid = 7;

fn put(pages: &mut Pages, log: &mut Log, space: Pid, start: u64, code: &[u8]) -> Vec<String> {
    pages.place(log, MACHINE, space, start, code);
    log.take()
}

fn flushed(pages: &mut Pages, log: &mut Log) -> Vec<String> {
    pages.flush(log);
    log.take()
}

#[test]
fn bytes_come_together() {
    let (mut pages, mut log) = (Pages::default(), Log::default());
    let epoch = pages.epoch;
    assert_eq!(put(&mut pages, &mut log, 1, 0x1010, &[1, 2]), [""; 0]);
    assert_eq!(put(&mut pages, &mut log, 1, 0x1011, &[2, 3]), [""; 0]);
    assert_eq!(put(&mut pages, &mut log, 2, 0x1010, &[9]), [""; 0]);
    assert_eq!(pages.epoch, epoch, "what was in place is not any more");
    assert_eq!(
        flushed(&mut pages, &mut log),
        [
            "page 1000 of 1 since 0 10:1 11:2 12:3",
            "page 1000 of 2 since 0 10:9"
        ]
    );
}

#[test]
fn other_bytes_make_a_version() {
    let (mut pages, mut log) = (Pages::default(), Log::default());
    put(&mut pages, &mut log, 1, 0x1010, &[1, 2]);
    let epoch = pages.epoch;
    // What was is told with its beginning, before the change.
    assert_eq!(
        put(&mut pages, &mut log, 1, 0x1011, &[5]),
        ["page 1000 of 1 since 0 10:1 11:2", "change 1"]
    );
    assert_ne!(pages.epoch, epoch);
    assert_eq!(
        put(&mut pages, &mut log, 1, 0x1011, &[2]),
        ["page 1000 of 1 since 1 11:5", "change 2"]
    );
    assert_eq!(
        flushed(&mut pages, &mut log),
        ["page 1000 of 1 since 2 11:2"]
    );
}

#[test]
fn blocks_stand_across_pages() {
    let (mut pages, mut log) = (Pages::default(), Log::default());
    let top = 0xffff_ffff_ffff_fffe;
    put(&mut pages, &mut log, 1, 0x1ffe, &[1, 2, 3, 4]);
    // At the end of the address space they go on at its beginning.
    put(&mut pages, &mut log, 1, top, &[5, 6, 7]);
    assert_eq!(
        flushed(&mut pages, &mut log),
        [
            "page 0 of 1 since 0 0:7",
            "page 1000 of 1 since 0 ffe:1 fff:2",
            "page 2000 of 1 since 0 0:3 1:4",
            "page fffffffffffff000 of 1 since 0 ffe:5 fff:6",
        ]
    );
}

#[test]
fn what_comes_after_a_flush_is_a_change() {
    let (mut pages, mut log) = (Pages::default(), Log::default());
    put(&mut pages, &mut log, 1, 0x1000, &[1]);
    let epoch = pages.epoch;
    assert_eq!(
        flushed(&mut pages, &mut log),
        ["page 1000 of 1 since 0 0:1"]
    );
    assert_ne!(pages.epoch, epoch, "blocks are not in place any more");
    assert_eq!(put(&mut pages, &mut log, 1, 0x1001, &[2]), ["change 1"]);
    assert_eq!(
        flushed(&mut pages, &mut log),
        ["page 1000 of 1 since 1 1:2"]
    );
    assert_eq!(flushed(&mut pages, &mut log), [""; 0]);
}
