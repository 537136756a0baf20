//! Paths there and back, and files at a place.

use super::*;
use proptest::prelude::*;

#[test]
fn paths_are_the_bytes_of_the_trace() {
    for bytes in [
        &b"/usr/bin/gzip"[..],
        b"[vdso]",
        b"//anon",
        b"",
        b"/a\xff b\xc3",
    ] {
        assert_eq!(*bytes_of(&path_of(bytes)), *bytes);
    }
    assert!(is_absolute(&path_of(b"/a")));
    assert!(!is_absolute(&path_of(b"a/b")));
}

#[test]
fn surrogates_stand_for_bytes_that_are_no_text() {
    assert_eq!(surrogates::units_of(b"a\xffb"), [0x61, 0xdcff, 0x62]);
    // The bytes that a surrogate would have in UTF-8, which has none, are three that are no text.
    let three = [0xed, 0xb3, 0xbf];
    assert_eq!(surrogates::units_of(&three), [0xdced, 0xdcb3, 0xdcbf]);
    assert_eq!(
        surrogates::bytes_of([0xd800].into_iter()),
        [0xed, 0xa0, 0x80]
    );
    assert_eq!(
        surrogates::bytes_of([0xdc41].into_iter()),
        [0xed, 0xb1, 0x81]
    );
    assert_eq!(
        surrogates::bytes_of([0xd83d, 0xde00].into_iter()),
        "😀".as_bytes()
    );
}

proptest! {
    #[test]
    fn all_bytes_come_back_from_units(bytes: Vec<u8>) {
        let units = surrogates::units_of(&bytes);
        prop_assert_eq!(surrogates::bytes_of(units.into_iter()), bytes);
    }
}

#[test]
fn files_are_read_and_written_at_a_place() {
    let file = tempfile::tempfile().unwrap();
    write_all_at(&file, b"there", 3).unwrap();
    let mut bytes = [1; 8];
    read_exact_at(&file, &mut bytes, 0).unwrap();
    assert_eq!(bytes, *b"\0\0\0there");
    let mut more = [0; 6];
    assert_eq!(read_at(&file, &mut more, 5).unwrap(), 3);
    let cut = read_exact_at(&file, &mut more, 5).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::UnexpectedEof);
}

#[cfg(unix)]
#[test]
fn permissions_and_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, []).unwrap();
    set_mode(&path, 0o640).unwrap();
    let about = path.metadata().unwrap();
    assert_eq!(mode_of(&about) & 0o777, 0o640);
    let written = about.modified().unwrap();
    let written = written
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    assert!(changed(&about) >= written.as_secs());
    assert!(is_trusted(&path));
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(!is_trusted(&link) && !is_trusted(folder.path()));
}
