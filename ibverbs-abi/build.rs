//! Gives the library its name and its version nodes; src/exports.rs puts the symbols into them.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=nodes.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={folder}/nodes.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Its threads, and its handlers of signals and forks, stay when a program unloads it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
