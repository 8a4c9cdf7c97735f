//! A [STAC item](https://github.com/radiantearth/stac-spec/blob/v1.1.0/item-spec/item-spec.md) that describes what was made of a scene.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use terrashard_raster::RasterSpec;

use super::lonlat::LonLat;
use super::products::Product;
use crate::error::Result;
use crate::run_directory::replace;

/// The flag that asks for it.
pub(crate) const FLAG: &str = "--stac";

/// A file of a scene.
pub(crate) struct Asset<'a> {
    pub(crate) product: Product,
    pub(crate) path: &'a Path,
    pub(crate) spec: RasterSpec,
}

/// Where the item of an output lies.
pub(crate) fn beside(output: &Path) -> PathBuf {
    output.with_extension("json")
}

/// Writes the item of a scene beside its first file, whose name without its ending is the item's.
///
/// # Errors
/// [`crate::Error::InvalidValue`] where the map says not where it lies, [`crate::Error::Write`].
pub(crate) fn write(output: &Path, image: &Path, model: &Path, assets: &[Asset<'_>]) -> Result<()> {
    let item = item(output, image, model, assets, SystemTime::now())?;
    let text = serde_json::to_string_pretty(&item).expect("an item is plain data") + "\n";
    replace(&beside(output), text.as_bytes())
}

fn item(
    output: &Path,
    image: &Path,
    model: &Path,
    assets: &[Asset<'_>],
    now: SystemTime,
) -> Result<Value> {
    let spec = &assets[0].spec;
    let lonlat = LonLat::new(FLAG, output, &spec.georeference)?;
    let (w, h) = (spec.width, spec.height);
    // Counter-clockwise where north is up.
    let corners = [(0, 0), (0, h), (w, h), (w, 0), (0, 0)];
    let ring = corners.iter().map(|corner| lonlat.at(FLAG, *corner));
    let ring = ring.collect::<Result<Vec<_>>>()?;
    let bound = |axis: usize, pick: fn(f64, f64) -> f64, from: f64| {
        ring.iter().map(|point| point[axis]).fold(from, pick)
    };
    let (least, most) = (f64::INFINITY, f64::NEG_INFINITY);
    let bounds = [
        bound(0, f64::min, least),
        bound(1, f64::min, least),
        bound(0, f64::max, most),
        bound(1, f64::max, most),
    ];
    let name = |path: &Path| {
        path.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let created = text(now);
    // The day that the product's name tells; without one, a place in time that is known.
    let datetime = day_in(&name(image)).unwrap_or_else(|| created.clone());
    let transform = spec.georeference.transform.map(|t| t.coefficients());
    let code = spec.georeference.epsg.map(|epsg| format!("EPSG:{epsg}"));
    let asset = |asset: &Asset<'_>| {
        let bands = (0..asset.spec.bands).map(|band| {
            let name = asset.spec.descriptions.get(band).cloned().flatten();
            let mut properties = Map::new();
            properties.insert("name".into(), json!(name.unwrap_or((band + 1).to_string())));
            properties.insert("data_type".into(), json!(asset.spec.data_type.name()));
            let nodata = asset.spec.nodata.map(|v| match v.is_nan() {
                true => json!("nan"),
                false => json!(v),
            });
            properties.insert("nodata".into(), json!(nodata));
            if let Some((scale, offset)) = asset.spec.scaling.get(band) {
                properties.insert("raster:scale".into(), json!(scale));
                properties.insert("raster:offset".into(), json!(offset));
            }
            Value::Object(properties)
        });
        let folder = output.parent().unwrap_or(Path::new(""));
        let href = match asset.path.strip_prefix(folder) {
            Ok(inside) => format!("./{}", inside.display()),
            Err(_) => asset.path.display().to_string(),
        };
        let described = json!({
            "href": href,
            "type": "image/tiff; application=geotiff; profile=cloud-optimized",
            "roles": ["data"],
            "bands": bands.collect::<Vec<_>>(),
        });
        (asset.product.name().to_string(), described)
    };
    Ok(json!({
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": [
            "https://stac-extensions.github.io/projection/v2.0.0/schema.json",
            "https://stac-extensions.github.io/raster/v2.0.0/schema.json",
            "https://stac-extensions.github.io/processing/v1.2.0/schema.json",
        ],
        "id": name(output),
        "geometry": { "type": "Polygon", "coordinates": [ring] },
        "bbox": bounds,
        "properties": {
            "datetime": datetime,
            "created": created,
            "gsd": spec.georeference.transform.map(|t| t.pixel_size()),
            "proj:code": code,
            "proj:shape": [h, w],
            "proj:transform": transform,
            "processing:software": { "terrashard": env!("CARGO_PKG_VERSION") },
            "terrashard:model": name(model),
        },
        "links": [{
            "rel": "derived_from",
            "href": image.display().to_string(),
            "type": "image/tiff; application=geotiff",
        }],
        "assets": assets.iter().map(asset).collect::<Map<_, _>>(),
    }))
}

/// A time as RFC 3339 has it, in UTC.
fn text(time: SystemTime) -> String {
    // A clock before 1970 is no clock.
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date of a day counted from 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the day that is leapt comes last (Hinnant, chrono-compatible date algorithms).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// The first date in a name such as `S2A_T33UUU_20170216_L1C` or `S2B_MSIL2A_20220616T104619_N0400`.
fn day_in(name: &str) -> Option<String> {
    let part = |part: &str| -> Option<String> {
        let (day, time) = match part.split_once('T') {
            Some((day, time)) => (day, time),
            None => (part, "000000"),
        };
        let digits = |text: &str, length| {
            text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(day, 8) || !digits(time, 6) {
            return None;
        }
        let within = |text: &str, range: std::ops::RangeInclusive<u32>| {
            text.parse().is_ok_and(|value: u32| range.contains(&value))
        };
        let plausible = within(&day[..4], 1970..=2100)
            && within(&day[4..6], 1..=12)
            && within(&day[6..], 1..=31)
            && within(&time[..2], 0..=23)
            && within(&time[2..4], 0..=59)
            && within(&time[4..], 0..=59);
        plausible.then(|| {
            let (year, month, date) = (&day[..4], &day[4..6], &day[6..]);
            let (hour, minute, second) = (&time[..2], &time[2..4], &time[4..]);
            format!("{year}-{month}-{date}T{hour}:{minute}:{second}Z")
        })
    };
    name.split(['_', '-', '.']).find_map(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_those_of_the_calendar() {
        // Of `date -u -d @N`.
        let check = |seconds, expected| {
            assert_eq!(text(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        };
        check(0, "1970-01-01T00:00:00Z");
        check(951_782_399, "2000-02-28T23:59:59Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(1_709_251_199, "2024-02-29T23:59:59Z");
        check(4_107_542_400, "2100-03-01T00:00:00Z");
    }

    #[test]
    fn days_are_found_in_the_names_of_products() {
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(day_in(name).as_deref(), expected, "{name}");
        };
        check(
            "S2A_T33UUU_20170216_L1C_6band",
            Some("2017-02-16T00:00:00Z"),
        );
        check(
            "S2B_MSIL2A_20220616T104619_N0400_R051",
            Some("2022-06-16T10:46:19Z"),
        );
        check("tile_12345678", None);
        check("scene", None);
    }
}
