//! Says where this crate's source is, to the build script of the crate that makes the plugin of it and carries it along.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::metadata=folder={folder}");
}
