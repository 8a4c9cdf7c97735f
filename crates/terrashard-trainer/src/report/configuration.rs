//! The configuration as the page shows it: without the paths of the machine that made it.

use std::path::{Path, PathBuf};

use crate::config::{Config, Resume};

/// The configuration as TOML, its paths relative to `folder` where they lie in it, else only the file's name.
pub(super) fn shown(config: &Config, folder: &Path) -> String {
    let mut config = config.clone();
    for scene in &mut config.data.scenes {
        shorten(&mut scene.image, folder);
        if let Some(mask) = &mut scene.mask {
            shorten(mask, folder);
        }
    }
    if let Resume::From(path) = &mut config.checkpoint.resume {
        shorten(path, folder);
    }
    config.to_toml()
}

fn shorten(path: &mut PathBuf, folder: &Path) {
    let short = match (path.strip_prefix(folder), path.file_name()) {
        (Ok(inside), _) => inside.into(),
        (Err(_), Some(name)) => name.into(),
        (Err(_), None) => return,
    };
    *path = short;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_what_lies_above() {
        let text = r#"
            [data]
            scenes = [{ image = "scenes/a.tif", mask = "/home/someone/b.tif" }]
            [checkpoint]
            resume = "/home/someone/runs/first"
        "#;
        let config =
            Config::parse(text, Path::new("run.toml"), Path::new("/project"), &[]).unwrap();
        let shown = shown(&config, Path::new("/project"));
        assert!(shown.contains("image = \"scenes/a.tif\""), "{shown}");
        assert!(shown.contains("mask = \"b.tif\""), "{shown}");
        assert!(shown.contains("resume = \"first\""), "{shown}");
    }
}
