//! Traces of real processors, as their `case.json` tells of them.

use std::path::Path;

/// The options that give the code of one of these traces: a folder with a `case.json`.
pub(crate) fn options(folder: &Path) -> Vec<String> {
    let case = std::fs::read(folder.join("case.json")).expect("the case");
    let case: serde_json::Value = serde_json::from_slice(&case).expect("JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let mut options: Vec<String> = ["--format", "pt", "--cpu", "6/79"].map(Into::into).into();
    for image in case["images"].as_array().into_iter().flatten() {
        let file = folder.join(text(&image["file"]));
        options.push("--raw".into());
        options.push(format!("{}:{}", file.display(), text(&image["base"])));
    }
    if case["elf"].is_string() {
        let elf = folder.join(text(&case["elf"]));
        options.extend(["--elf".into(), elf.display().to_string()]);
    }
    options
}
