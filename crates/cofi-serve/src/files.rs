//! The page's files, as they are in the binary.

/// A file of the page: its name, its kind and its content.
type File = (&'static str, &'static str, &'static [u8]);

const FILES: &[File] = &[
    (
        "",
        "text/html; charset=utf-8",
        include_bytes!("../page/dist/index.html"),
    ),
    (
        "app.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../page/dist/app.js"),
    ),
    (
        "style.css",
        "text/css; charset=utf-8",
        include_bytes!("../page/dist/style.css"),
    ),
    (
        "icon.svg",
        "image/svg+xml",
        include_bytes!("../page/dist/icon.svg"),
    ),
];

/// The file of a name: its kind and its content.
pub(crate) fn get(name: &str) -> Option<(&'static str, &'static [u8])> {
    let (_, kind, bytes) = FILES.iter().find(|(known, ..)| *known == name)?;
    Some((kind, bytes))
}
