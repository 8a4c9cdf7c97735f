//! `cargo xtask libtorch`: LibTorch, which the feature `tch` needs, in a virtual environment; and where other commands find
//! it.
//!
//! A link `target/libtorch/torch` leads to LibTorch, and `.cargo/config.toml` names it as the `LIBTORCH` of every build that has no
//! other: so nothing is downloaded unasked by a build script.

use std::path::{Path, PathBuf, absolute};
use std::{env, fs, io};

use crate::error::{Error, Result};
use crate::step::{Step, quoted};
use crate::workspace;

/// What is installed. LibTorch has no stable interface: another version has to build and pass the tests first.
const PINNED: &str = "2.11.0";

/// What the C++ of this workspace is written for, whatever comes after the second dot.
const NEEDED: &str = "2.11.";

/// Said before the download.
const SIZE: &str = "on Linux about 2.5 GB to download and 5 GB on disk, with all that GPUs need; a tenth of it from an index of builds \
     for the CPU (--index-url)";

/// Prints where LibTorch is, without importing it.
const WHERE: &str = "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The Python that makes the virtual environment.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Use this virtual environment, which has torch already, and install nothing.
    #[arg(long)]
    venv: Option<PathBuf>,
    /// Where pip looks, for example an index of builds for the CPU alone, which are much smaller.
    #[arg(long)]
    index_url: Option<String>,
}

/// Sets LibTorch up and prints the environment, for `eval "$(cargo xtask libtorch)"`. All else goes to standard error.
pub(crate) fn run(args: &Args) -> Result<()> {
    let libtorch = set_up(args, &home())?;
    eprintln!(
        "LibTorch {} in {}",
        version(&libtorch.folder).unwrap_or_default(),
        libtorch.folder.display()
    );
    print!("{}", libtorch.exports());
    Ok(())
}

/// The folder of ours: the virtual environment, and the link to LibTorch wherever it is.
fn home() -> PathBuf {
    workspace::root().join("target/libtorch")
}

/// A LibTorch that can be used.
#[derive(Debug)]
pub(crate) struct LibTorch {
    folder: PathBuf,
}

impl LibTorch {
    /// The one of the variable `LIBTORCH`, else the one that was set up.
    pub(crate) fn found() -> Result<Self> {
        let folder = env::var_os("LIBTORCH").map_or_else(|| home().join("torch"), PathBuf::from);
        Self::at(folder)
    }

    fn at(folder: PathBuf) -> Result<Self> {
        let found = match version(&folder) {
            Some(version) if version.starts_with(NEEDED) => return Ok(Self { folder }),
            Some(version) => format!("is {version}"),
            None => "is not there".to_owned(),
        };
        Err(Error::Usage {
            message: format!(
                "LibTorch {PINNED} is needed, that in {} {found}: run `cargo xtask libtorch`",
                folder.display()
            ),
        })
    }

    fn env(&self) -> [(&'static str, String); 4] {
        let libraries = self.folder.join("lib");
        let before = env::var_os("LD_LIBRARY_PATH").filter(|path| !path.is_empty());
        let paths = [libraries.into_os_string()].into_iter().chain(before);
        let paths: Vec<_> = paths
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        let [folder, bypass, abi] = self.fixed();
        [folder, bypass, abi, ("LD_LIBRARY_PATH", paths.join(":"))]
    }

    /// The step in the environment that building and running needs.
    pub(crate) fn surround(&self, step: Step) -> Step {
        let env = self.env().into_iter();
        env.fold(step, |step, (key, value)| step.env(key, value))
    }

    fn fixed(&self) -> [(&'static str, String); 3] {
        [
            ("LIBTORCH", self.folder.to_string_lossy().into_owned()),
            // The bindings were written for an earlier version; what of it we use, the tests cover.
            ("LIBTORCH_BYPASS_VERSION_CHECK", "1".to_owned()),
            ("LIBTORCH_CXX11_ABI", "1".to_owned()),
        ]
    }

    /// The environment as lines for a shell.
    fn exports(&self) -> String {
        let fixed = self.fixed();
        let lines = fixed
            .iter()
            .map(|(key, value)| format!("export {key}={}\n", quoted(value)));
        let libraries = self.folder.join("lib");
        let last = format!(
            "export LD_LIBRARY_PATH={}\"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"\n",
            quoted(&libraries.to_string_lossy())
        );
        lines.chain([last]).collect()
    }
}

/// From the header that every distribution has: `#define TORCH_VERSION_MAJOR 2`, and so on.
fn version(folder: &Path) -> Option<String> {
    let text = fs::read_to_string(folder.join("include/torch/headeronly/version.h")).ok()?;
    let part = |name: &str| {
        let define = format!("#define TORCH_VERSION_{name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&define))?;
        Some(line.trim().to_owned())
    };
    Some([part("MAJOR")?, part("MINOR")?, part("PATCH")?].join("."))
}

fn set_up(args: &Args, home: &Path) -> Result<LibTorch> {
    let folder = match &args.venv {
        Some(venv) => existing(venv)?,
        None => installed(args, home)?,
    };
    fs::create_dir_all(home).map_err(|source| Error::file(home, source))?;
    // The same path as `.cargo/config.toml` has: another one would build the bindings, and burn, once more.
    let linked = home.join("torch");
    link(&folder, &linked)?;
    Ok(LibTorch { folder: linked })
}

/// LibTorch of a virtual environment that is not ours to change.
fn existing(venv: &Path) -> Result<PathBuf> {
    let venv = absolute(venv).map_err(|source| Error::file(venv, source))?;
    let python = interpreter(&venv);
    let folder = if python.exists() {
        in_environment(&python)?
    } else {
        None
    };
    let found = folder.as_deref().and_then(version);
    match (folder, found) {
        (Some(folder), Some(version)) if version.starts_with(NEEDED) => Ok(folder),
        (_, found) => Err(Error::Usage {
            message: format!(
                "the virtual environment {} has {}: run `{} -m pip install torch=={PINNED}`, or leave out --venv",
                venv.display(),
                found.map_or("no LibTorch".to_owned(), |version| format!(
                    "LibTorch {version}"
                )),
                python.display()
            ),
        }),
    }
}

/// LibTorch of our own virtual environment, made and filled where it has to be.
fn installed(args: &Args, venv: &Path) -> Result<PathBuf> {
    let python = interpreter(venv);
    if !python.exists() {
        Step::new(&args.python.to_string_lossy(), &args.python)
            .args(["-m", "venv"])
            .arg(venv)
            .run_beside_output()?;
    }
    let usable =
        |folder: &PathBuf| version(folder).is_some_and(|version| version.starts_with(NEEDED));
    if let Some(folder) = in_environment(&python)?.filter(usable) {
        return Ok(folder);
    }
    eprintln!("LibTorch {PINNED}: {SIZE}");
    let mut pip = Step::new(&python.to_string_lossy(), &python)
        .args(["-m", "pip", "--disable-pip-version-check", "install"])
        .arg(format!("torch=={PINNED}"));
    if let Some(url) = &args.index_url {
        pip = pip.args(["--index-url", url]);
    }
    pip.run_beside_output()?;
    let folder = in_environment(&python)?.ok_or_else(|| {
        Error::content(
            venv.display(),
            "pip reports success, but there is no torch in it: remove the folder and run `cargo xtask libtorch` again",
        )
    })?;
    Ok(LibTorch::at(folder)?.folder)
}

fn interpreter(venv: &Path) -> PathBuf {
    if cfg!(windows) {
        venv.join("Scripts/python.exe")
    } else {
        venv.join("bin/python")
    }
}

/// The folder `torch` of an environment, if it has one.
fn in_environment(python: &Path) -> Result<Option<PathBuf>> {
    let output = Step::new(&python.to_string_lossy(), python)
        .args(["-c", WHERE])
        .capture()?;
    let folder = output.trim();
    Ok((!folder.is_empty()).then(|| PathBuf::from(folder)))
}

/// Makes `link` lead to `folder`, wherever it led before.
fn link(folder: &Path, link: &Path) -> Result<()> {
    if link.is_symlink() {
        fs::remove_file(link).map_err(|source| Error::file(link, source))?;
    }
    symlink(folder, link).map_err(|source| Error::file(link, source))
}

#[cfg(unix)]
fn symlink(folder: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(folder, link)
}

#[cfg(windows)]
fn symlink(folder: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_dir(folder, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Python that knows what is asked of it here: `-m venv`, `-m pip install` of what the file `offer` beside it names,
    /// and where torch is. It writes down what it was asked.
    const PYTHON: &str = r#"#!/bin/sh
here=$(dirname "$(dirname "$0")")
echo "$*" >> "$here/asked"
case "$2" in
venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$here/offer" "$3/offer" ;;
pip) version=$(cat "$here/offer"); [ -n "$version" ] || exit 3
    set -- $(echo "$version" | tr . ' ')
    mkdir -p "$here/site/torch/include/torch/headeronly"
    printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH %s\n' "$1" "$2" "$3" \
        > "$here/site/torch/include/torch/headeronly/version.h"
    echo "noise on standard output" ;;
*) [ -d "$here/site/torch" ] && echo "$here/site/torch"; true ;;
esac
"#;

    struct Place {
        dir: tempfile::TempDir,
    }

    impl Place {
        /// With a Python whose pip has this version.
        fn new(offer: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let script = "mkdir -p bin && printf %s \"$1\" > bin/python && chmod +x bin/python && printf %s \"$2\" > offer";
            // Written by another process: while a file is open for writing anywhere in ours, nobody can start it.
            Step::new("sh", "sh")
                .args(["-c", script, "sh", PYTHON, offer])
                .dir(dir.path().to_owned())
                .capture()
                .unwrap();
            Self { dir }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn set_up(&self, venv: Option<PathBuf>) -> Result<LibTorch> {
            let args = Args {
                python: self.path("bin/python"),
                venv,
                index_url: Some("file:wheels".to_owned()),
            };
            set_up(&args, &self.path("home"))
        }

        fn asked(&self, name: &str) -> Vec<String> {
            let text = fs::read_to_string(self.path(name).join("asked")).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        }
    }

    #[test]
    fn an_environment_is_made_and_filled_once() {
        let place = Place::new("2.11.0");
        let first = place.set_up(None).unwrap();
        assert_eq!(first.folder, place.path("home/torch"));
        let site = place.path("home/site/torch").canonicalize().unwrap();
        assert_eq!(first.folder.canonicalize().unwrap(), site);
        assert!(LibTorch::at(place.path("home/torch")).is_ok());
        assert_eq!(place.asked(".").len(), 1, "one `-m venv`");
        let pip =
            "-m pip --disable-pip-version-check install torch==2.11.0 --index-url file:wheels";
        assert_eq!(place.asked("home")[1], pip);

        place.set_up(None).unwrap();
        let asked = place.asked("home");
        assert_eq!(
            asked.iter().filter(|line| *line == pip).count(),
            1,
            "{asked:?}"
        );
    }

    #[test]
    fn what_pip_cannot_do_is_its_exit_code() {
        let error = Place::new("").set_up(None).unwrap_err();
        assert!(matches!(error, Error::Exit { code: 3, .. }), "{error}");
    }

    #[test]
    fn another_version_is_replaced_in_our_environment_alone() {
        let place = Place::new("2.12.1");
        let error = place.set_up(None).unwrap_err().to_string();
        assert!(error.contains("LibTorch 2.11.0 is needed"), "{error}");
        assert!(
            error.contains("home/site/torch is 2.12.1: run `cargo xtask libtorch`"),
            "{error}"
        );
        fs::write(place.path("home/offer"), "2.11.3").unwrap();
        assert!(place.set_up(None).is_ok());

        fs::write(place.path("home/offer"), "2.9.0").unwrap();
        Step::new("pip", place.path("home/bin/python"))
            .args(["-m", "pip", "install"])
            .capture()
            .unwrap();
        let error = place.set_up(Some(place.path("home"))).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("has LibTorch 2.9.0: run `"), "{error}");
        assert!(error.contains("-m pip install torch==2.11.0`"), "{error}");
    }

    #[test]
    fn an_surround_someone_else_is_used_as_it_is() {
        let place = Place::new("2.11.0");
        place.set_up(None).unwrap();
        let before = place.asked("home").len();
        fs::remove_file(place.path("home/torch")).unwrap();
        let libtorch = place.set_up(Some(place.path("home"))).unwrap();
        let site = place.path("home/site/torch").canonicalize().unwrap();
        assert_eq!(libtorch.folder.canonicalize().unwrap(), site);
        assert_eq!(
            place.asked("home").len(),
            before + 1,
            "asked where, no more"
        );

        let error = place.set_up(Some(place.path("nowhere"))).unwrap_err();
        assert!(
            error.to_string().contains("nowhere has no LibTorch: run `"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_one_is_one_message() {
        let place = Place::new("");
        let error = LibTorch::at(place.path("torch")).unwrap_err().to_string();
        let expected = format!(
            "LibTorch 2.11.0 is needed, that in {} is not there: run `cargo xtask libtorch`",
            place.path("torch").display()
        );
        assert_eq!(error, expected);
    }

    #[test]
    fn a_shell_understands_the_environment() {
        let libtorch = LibTorch {
            folder: PathBuf::from("/some where/torch"),
        };
        let script = format!(
            "{}printf '%s\\n' \"$LIBTORCH\" \"$LD_LIBRARY_PATH\" \"$LIBTORCH_CXX11_ABI$LIBTORCH_BYPASS_VERSION_CHECK\"",
            libtorch.exports()
        );
        let output = Step::new("sh", "sh")
            .args(["-c", &script])
            .env("LD_LIBRARY_PATH", "/before")
            .capture()
            .unwrap();
        let lines: Vec<_> = output.lines().collect();
        assert_eq!(
            lines,
            ["/some where/torch", "/some where/torch/lib:/before", "11"]
        );
    }
}
