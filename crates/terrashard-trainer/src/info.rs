//! `terrashard info`: what a raster is, as a table or as JSON.

use std::path::Path;

use terrashard_raster::{Summary, open, summarize};

use crate::Result;
use crate::record::counted;

/// Reads the whole raster once and describes it.
///
/// # Errors
/// [`Error::Raster`](crate::Error::Raster) where a part of it cannot be read.
pub fn info(path: &Path) -> Result<Summary> {
    Ok(summarize(&open(path)?)?)
}

/// A line for each fact.
pub fn table(summary: &Summary) -> String {
    let Summary {
        width,
        height,
        bands,
        dtype,
        epsg,
        affine,
        nodata,
        overviews,
        mean,
        descriptions,
        scales,
        offsets,
        mask,
        gcps,
        tags,
    } = summary;
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".into());
    let affine = match (affine, gcps) {
        (Some(letters), _) => format!("{letters:?}"),
        (None, 0) => "none: no georeference".into(),
        (None, points) => format!(
            "none: no georeference but {}",
            counted(*points, "control point")
        ),
    };
    let overviews: Vec<String> = overviews.iter().map(ToString::to_string).collect();
    let overviews = (!overviews.is_empty()).then(|| overviews.join(", "));
    let mut lines = vec![
        format!(
            "size        {width} x {height} pixels, {} of {dtype}",
            counted(*bands, "band")
        ),
        format!(
            "reference   {}",
            or_none(epsg.map(|code| format!("EPSG:{code}")))
        ),
        format!("affine      {affine}"),
        format!(
            "nodata      {}",
            or_none(nodata.map(|value| value.to_string()))
        ),
        format!("mask        {}", mask.join(", ").replace('_', " ")),
        format!("overviews   {}", or_none(overviews)),
    ];
    for (band, (mean, description)) in mean.iter().zip(descriptions).enumerate() {
        let mean = or_none(mean.map(|mean| format!("{mean:.4}")));
        let scaling = match (scales[band], offsets[band]) {
            (1.0, 0.0) => String::new(),
            (scale, offset) => format!(", scale {scale}, offset {offset}"),
        };
        lines.push(format!(
            "band {:<6} {:<10} mean {mean}{scaling}",
            band + 1,
            description.as_deref().unwrap_or("")
        ));
    }
    // Texts of many lines, such as XML, are for `--json`.
    let short = tags.iter().filter(|(_, value)| !value.contains('\n'));
    lines.extend(short.map(|(name, value)| format!("tag         {name} = {value}")));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn awkward(name: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path: PathBuf = folder.join("../terrashard-raster/tests/data").join(name);
        table(&info(&path).unwrap())
    }

    #[test]
    fn says_what_is_not_there() {
        let text = awkward("gg_tiepoints_only.tif");
        assert!(
            text.contains("affine      none: no georeference but 4 control points\n"),
            "{text}"
        );
        let text = awkward("rt_uint8_rgb_internal_mask.tif");
        assert!(
            text.contains("mask        per dataset\noverviews   2, 4\n"),
            "{text}"
        );
        let text = awkward("gr_scale_offset.tif");
        assert!(
            text.contains("mean 68.4716, scale 1.2, offset 12\n"),
            "{text}"
        );
        assert!(!text.contains("xmpmeta"), "{text}");
    }
}
