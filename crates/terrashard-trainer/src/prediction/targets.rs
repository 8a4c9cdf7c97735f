//! Where everything goes that is made of the scenes of one call.

use std::path::{Path, PathBuf};

use super::products::Product;
use super::{PredictOptions, polygons, stac};
use crate::error::{Error, Result};
use crate::output_file;
use crate::trained_model::TrainedModel;

/// The flag for a map over all scenes.
pub(crate) const MOSAIC: &str = "--mosaic";

/// The files that are written: none is read by the same call, and no two are one.
#[derive(Debug)]
pub(crate) struct Targets {
    /// What is asked for, each with a file for each scene.
    pub(crate) products: Vec<(Product, Vec<PathBuf>)>,
    /// The areas of each scene, if they are wanted.
    pub(crate) polygons: Vec<PathBuf>,
    /// The item of each scene, if it is wanted.
    pub(crate) items: Vec<PathBuf>,
    /// The map over all scenes, if it is wanted.
    pub(crate) mosaic: Option<PathBuf>,
}

impl Targets {
    /// Those of a call.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] naming the flag that does not fit.
    pub(crate) fn new(options: &PredictOptions, trained: &TrainedModel) -> Result<Self> {
        let asked = [
            (Product::Classes, &options.output),
            (
                Product::Probability(options.probability_type),
                &options.probability,
            ),
            (Product::Image, &options.image),
        ];
        let mut products: Vec<(Product, Vec<PathBuf>)> = Vec::new();
        for (product, path) in asked {
            let Some(path) = path else { continue };
            if product == Product::Image && !trained.model.superres {
                let expected =
                    "a model with a super-resolution branch, trained with `model.superres = true`";
                return Err(Error::invalid(product.flag(), path.display(), expected));
            }
            products.push((product, files(options, product.flag(), path, "tif")?));
        }
        let Some((_, first)) = products.first() else {
            return Err(Error::invalid(
                "--output",
                "nothing",
                "at least one of `--output`, `--probability` and `--image`",
            ));
        };
        let items = match options.stac {
            true => first.iter().map(|file| stac::beside(file)).collect(),
            false => Vec::new(),
        };
        for (flag, path) in [
            (polygons::FLAG, &options.polygons),
            (MOSAIC, &options.mosaic),
        ] {
            if let (Some(path), None) = (path, &options.output) {
                let expected = "`--output` beside it, for the maps that it is made of";
                return Err(Error::invalid(flag, path.display(), expected));
            }
        }
        let polygons = match &options.polygons {
            Some(path) => {
                polygons::check(path)?;
                files(options, polygons::FLAG, path, "geojson")?
            }
            None => Vec::new(),
        };
        let targets = Self {
            products,
            polygons,
            items,
            mosaic: options.mosaic.clone(),
        };
        targets.check(options)?;
        Ok(targets)
    }

    /// The products of one scene with their files.
    pub(crate) fn of_scene(&self, index: usize) -> Vec<(Product, &Path)> {
        self.products
            .iter()
            .map(|(product, files)| (*product, files[index].as_path()))
            .collect()
    }

    /// The files of the products that `is` holds for, scene by scene.
    pub(crate) fn files(&self, is: impl Fn(Product) -> bool) -> Vec<PathBuf> {
        let of = self.products.iter().filter(|(product, _)| is(*product));
        of.flat_map(|(_, files)| files.clone()).collect()
    }

    /// All files with the flags that ask for them.
    fn all(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let products = self.products.iter();
        let products =
            products.flat_map(|(product, files)| files.iter().map(|file| (product.flag(), file)));
        let polygons = self.polygons.iter().map(|file| (polygons::FLAG, file));
        let items = self.items.iter().map(|file| (stac::FLAG, file));
        let mosaic = self.mosaic.iter().map(|file| (MOSAIC, file));
        products.chain(polygons).chain(items).chain(mosaic)
    }

    fn check(&self, options: &PredictOptions) -> Result<()> {
        for (index, (flag, file)) in self.all().enumerate() {
            let bands = options.bands.iter().map(|band| band.path.as_path());
            let inputs = options.inputs.iter().map(PathBuf::as_path);
            let read = inputs.chain(bands).chain([options.checkpoint.as_path()]);
            output_file::check(flag, file, read)?;
            if self
                .all()
                .take(index)
                .any(|(_, other)| output_file::same(other, file))
            {
                let expected = "another file than the map, or another folder";
                return Err(Error::invalid(flag, file.display(), expected));
            }
        }
        Ok(())
    }
}

/// Where the result of each input goes: `output`, the value of the flag `key`, or a file with this ending in the folder that it is.
fn files(options: &PredictOptions, key: &str, output: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let several = options.inputs.len() > 1 || output.is_dir();
    let in_folder = |input: &PathBuf| {
        output
            .join(input.file_stem().unwrap_or_default())
            .with_extension(ending)
    };
    match (options.inputs.is_empty(), options.bands.is_empty()) {
        (true, true) => Err(Error::invalid(
            "IN",
            "nothing",
            "one or more scenes, or `--bands NAME=FILE,…`",
        )),
        (false, false) => Err(Error::invalid(
            "--bands",
            "a scene beside it",
            "either scenes or `--bands`",
        )),
        (true, false) if output.is_dir() => Err(Error::invalid(
            key,
            output.display(),
            "a file, for one scene of `--bands`",
        )),
        (true, false) => Ok(vec![output.to_owned()]),
        (false, true) if several => {
            let outputs: Vec<PathBuf> = options.inputs.iter().map(in_folder).collect();
            let twice = outputs
                .iter()
                .enumerate()
                .find(|(index, path)| outputs[..*index].contains(path));
            match twice {
                Some((_, path)) => Err(Error::invalid(
                    "IN",
                    format!("two scenes that give {}", path.display()),
                    "different names",
                )),
                None => Ok(outputs),
            }
        }
        (false, true) => Ok(vec![output.to_owned()]),
    }
}
