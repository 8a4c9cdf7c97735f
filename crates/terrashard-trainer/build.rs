//! Lets the program find LibTorch where it was when the program was built: otherwise the loader ends it before it can say a word, unless
//! `LD_LIBRARY_PATH` leads there. That still comes first.

use std::env;
use std::path::{Path, absolute};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    let is_used = ["CARGO_FEATURE_TCH", "CARGO_CFG_UNIX"]
        .into_iter()
        .all(|name| env::var_os(name).is_some());
    let folder = env::var_os("LIBTORCH").and_then(|folder| absolute(folder).ok());
    if let (true, Some(folder)) = (is_used, folder) {
        let libraries = Path::new(&folder).join("lib");
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", libraries.display());
    }
}
