//! `align`: images at high resolution and labels onto the fine grid over an image, with an index of what was made and from what.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use terrashard_data::{AlignOptions, Aligned, Content, Resampling, Shift, align, ground, measure};
use terrashard_raster::RasterSource;

use crate::error::{Error, Result};
use crate::output_file;
use crate::run_directory::replace;
use crate::training::TOOL;

/// What `align` is asked for.
#[derive(Debug, Clone)]
pub struct AlignRequest {
    /// The image whose ground it is.
    pub onto: PathBuf,
    /// Images at high resolution.
    pub images: Vec<PathBuf>,
    /// Labels.
    pub labels: Vec<PathBuf>,
    /// The folder for what is made, with `index.geojson`.
    pub output: PathBuf,
    /// Fine pixels per image pixel along one side.
    pub scale: usize,
    /// How values of images are made, in place of what suits them.
    pub resampling: Option<Resampling>,
    /// Number that means "no data", in place of what the files declare.
    pub nodata: Option<f64>,
}

/// What was made: what `align --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Made {
    /// The index.
    pub index: PathBuf,
    /// The image whose ground it is.
    pub onto: PathBuf,
    /// Each file.
    pub files: Vec<MadeFile>,
    /// What should be looked at, in words.
    pub warnings: Vec<String>,
}

/// One file.
#[derive(Debug, Clone, Serialize)]
pub struct MadeFile {
    /// What it is, and from what.
    #[serde(flatten)]
    pub aligned: Aligned,
    /// How far it lies from the image, in pixels of the image; none of a label, or where it cannot be told.
    pub shift: Option<Shift>,
}

/// Lays everything onto the grid of one image, and measures how far images lie from it.
///
/// # Errors
/// [`Error::InvalidValue`], [`Error::Data`], [`Error::Raster`], [`Error::Write`]. A file that fails is not there.
pub fn run(request: &AlignRequest) -> Result<Made> {
    let onto = terrashard_raster::open(&request.onto)?;
    let images = request.images.iter().map(|path| (path, Content::Image));
    let labels = request.labels.iter().map(|path| (path, Content::Label));
    let sources: Vec<_> = images.chain(labels).collect();
    if sources.is_empty() {
        let expected = "one image or label at least: `--highres FILE`, `--mask FILE`";
        return Err(Error::invalid("--highres", "nothing", expected));
    }
    if !(1..=64).contains(&request.scale) {
        return Err(Error::invalid("--scale", request.scale, "1 to 64"));
    }
    std::fs::create_dir_all(&request.output).map_err(Error::write(&request.output))?;
    let index = request.output.join("index.geojson");
    let outputs: Vec<PathBuf> = sources
        .iter()
        .map(|(path, _)| place(&request.output, path))
        .collect();
    for (at, output) in outputs.iter().enumerate() {
        let read = sources
            .iter()
            .map(|(path, _)| path.as_path())
            .chain([request.onto.as_path()]);
        output_file::check("--output", output, read)?;
        if outputs[..at].contains(output) {
            let expected = "files of different names";
            return Err(Error::invalid(
                "--highres",
                sources[at].0.display(),
                expected,
            ));
        }
    }
    let mut made = Made {
        index,
        onto: request.onto.clone(),
        files: Vec::new(),
        warnings: Vec::new(),
    };
    for ((path, content), output) in sources.iter().zip(&outputs) {
        let source = terrashard_raster::open(path)?;
        let options = AlignOptions {
            scale: request.scale,
            content: *content,
            resampling: request.resampling.filter(|_| *content == Content::Image),
            nodata: request.nodata.filter(|_| *content == Content::Image),
        };
        let aligned = align(onto.metadata(), &*source, output, &options)?;
        let shift = match content {
            Content::Image => measure(&*onto, &*terrashard_raster::open(output)?, request.scale)?,
            Content::Label => None,
        };
        made.warnings
            .extend(warning(*content, output, shift.as_ref()));
        made.files.push(MadeFile { aligned, shift });
    }
    replace(&made.index, index_of(&made, &*onto)?.to_string().as_bytes())?;
    Ok(made)
}

/// `OUT/name.tif`.
fn place(folder: &Path, source: &Path) -> PathBuf {
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    folder.join(format!("{name}.tif"))
}

fn warning(content: Content, file: &Path, shift: Option<&Shift>) -> Option<String> {
    match (content, shift) {
        (Content::Image, Some(shift)) if shift.is_large() => Some(format!(
            "{}: it lies {:.2} pixels of the image away from it ({:.2} right, {:.2} down), above {}: its georeference or the image's \
             is wrong by that, and a model would learn edges in the wrong places",
            file.display(),
            shift.length(),
            shift.right,
            shift.down,
            terrashard_data::LARGEST_SHIFT
        )),
        (Content::Image, None) => Some(format!(
            "{}: its shift against the image could not be measured: there is too little data or detail in both",
            file.display()
        )),
        _ => None,
    }
}

/// GeoJSON of what was made, in longitude and latitude.
fn index_of(made: &Made, onto: &dyn RasterSource) -> Result<Value> {
    let ring = ground(onto.metadata(), onto.metadata().window())?;
    let geometry = ring.map(|ring| json!({ "type": "Polygon", "coordinates": [ring] }));
    let feature = |file: &MadeFile| {
        let mut properties = json!(file);
        properties["onto"] = json!(made.onto);
        properties["tool"] = json!(TOOL);
        json!({ "type": "Feature", "geometry": geometry, "properties": properties })
    };
    Ok(json!({
        "type": "FeatureCollection",
        "features": made.files.iter().map(feature).collect::<Vec<_>>(),
    }))
}
