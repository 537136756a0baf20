//! No start files and no libraries: what needs one does not link. Nobody is there to relocate the program, either.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
