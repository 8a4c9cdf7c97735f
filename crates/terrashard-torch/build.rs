//! Builds `src/shim.cc` against LibTorch's headers, for the feature `tch` alone.

#[cfg(feature = "tch")]
mod libtorch {
    use std::path::{Path, PathBuf};

    /// The version that `src/shim.cc` is written for, whatever comes after the second dot.
    const NEEDED: &str = "2.11";

    /// Where LibTorch lies, and why it cannot be used.
    fn found() -> Result<PathBuf, String> {
        let remedy = "run `cargo xtask libtorch`, or set LIBTORCH to the folder `torch` of an environment that has it";
        println!("cargo::rerun-if-env-changed=LIBTORCH");
        let Some(folder) = std::env::var_os("LIBTORCH").map(PathBuf::from) else {
            return Err(format!("LibTorch {NEEDED} not found: {remedy}"));
        };
        match version(&folder) {
            None => Err(format!(
                "LibTorch {NEEDED} not found in {}: {remedy}",
                folder.display()
            )),
            Some(version) if !version.starts_with(&format!("{NEEDED}.")) => Err(format!(
                "LibTorch in {} is {version}, not {NEEDED}: {remedy}",
                folder.display()
            )),
            Some(_) => Ok(folder),
        }
    }

    /// From the header that every distribution has: `#define TORCH_VERSION_MAJOR 2`, and so on.
    fn version(folder: &Path) -> Option<String> {
        let header = folder.join("include/torch/headeronly/version.h");
        println!("cargo::rerun-if-changed={}", header.display());
        let text = std::fs::read_to_string(header).ok()?;
        let part = |name: &str| {
            let define = format!("#define TORCH_VERSION_{name} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&define))?;
            Some(line.trim().to_owned())
        };
        Some([part("MAJOR")?, part("MINOR")?, part("PATCH")?].join("."))
    }

    pub(super) fn build() {
        println!("cargo::rerun-if-changed=src");
        let folder = match found() {
            Ok(folder) => folder,
            Err(message) => {
                println!("cargo::error={message}");
                return;
            }
        };
        println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
        let abi = std::env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_owned());
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .warnings(false)
            .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
            .include(folder.join("include"))
            .include(folder.join("include/torch/csrc/api/include"))
            .files([
                "src/shim.cc",
                "src/attention.cc",
                "src/branch.cc",
                "src/columns.cc",
                "src/compiled.cc",
                "src/depthwise.cc",
                "src/flat.cc",
                "src/graph.cc",
                "src/host_buffer.cc",
                "src/loss.cc",
                "src/norm.cc",
                "src/products.cc",
                "src/profile.cc",
                "src/resize.cc",
                "src/sums.cc",
                "src/view.cc",
            ])
            .compile("terrashard_shim");
        let libraries = folder.join("lib");
        println!("cargo::rustc-link-search=native={}", libraries.display());
        for library in ["torch_cpu", "c10"] {
            println!("cargo::rustc-link-lib={library}");
        }
    }
}

fn main() {
    #[cfg(feature = "tch")]
    libtorch::build();
}
