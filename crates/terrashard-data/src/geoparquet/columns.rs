//! The columns of a file of areas.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::GroundArea;

/// Areas that are written together, and lie in memory until then.
const GROUP: usize = 10_000;

const SCHEMA: &str = "message areas {
    required int32 class (INTEGER(8,false));
    required int64 pixels (INTEGER(64,false));
    required binary geometry;
}";

/// Writes a file of areas, a group of them in memory at a time.
pub(super) struct GeoParquet<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    classes: Vec<i32>,
    pixels: Vec<i64>,
    polygons: Vec<ByteArray>,
    /// West, south, east and north of all.
    bounds: [f64; 4],
}

impl<W: Write + Send> GeoParquet<W> {
    /// Begins a file.
    pub(super) fn new(file: W) -> Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::GZIP(Default::default()))
            .set_created_by(format!("terrashard {}", env!("CARGO_PKG_VERSION")))
            .build();
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        Ok(Self {
            writer: SerializedFileWriter::new(file, schema, Arc::new(properties))?,
            classes: Vec::new(),
            pixels: Vec::new(),
            polygons: Vec::new(),
            bounds: [
                f64::INFINITY,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NEG_INFINITY,
            ],
        })
    }

    /// Adds an area.
    pub(super) fn add(&mut self, area: &GroundArea) -> Result<()> {
        let GroundArea {
            class,
            pixels,
            rings,
        } = area;
        let [west, south, east, north] = &mut self.bounds;
        for [longitude, latitude] in rings.iter().flatten() {
            (*west, *east) = (west.min(*longitude), east.max(*longitude));
            (*south, *north) = (south.min(*latitude), north.max(*latitude));
        }
        self.classes.push((*class).into());
        self.pixels.push(*pixels as i64);
        self.polygons.push(polygon(rings).into());
        match self.classes.len() == GROUP {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        let mut group = self.writer.next_row_group()?;
        // In the order of the schema.
        if let Some(mut column) = group.next_column()? {
            let values = column.typed::<Int32Type>();
            values.write_batch(&self.classes, None, None)?;
            column.close()?;
        }
        if let Some(mut column) = group.next_column()? {
            let values = column.typed::<Int64Type>();
            values.write_batch(&self.pixels, None, None)?;
            column.close()?;
        }
        if let Some(mut column) = group.next_column()? {
            let values = column.typed::<ByteArrayType>();
            values.write_batch(&self.polygons, None, None)?;
            column.close()?;
        }
        group.close()?;
        self.classes.clear();
        self.pixels.clear();
        self.polygons.clear();
        Ok(())
    }

    /// Writes the rest and returns the file.
    pub(super) fn finish(mut self) -> Result<W> {
        if !self.classes.is_empty() {
            self.flush()?;
        }
        let mut column = serde_json::json!({
            "encoding": "WKB",
            "geometry_types": ["Polygon"],
            "orientation": "counterclockwise",
        });
        // Without a reference system it is longitude and latitude on WGS 84.
        if self.bounds[0].is_finite() {
            column["bbox"] = self.bounds.into();
        }
        let geo = serde_json::json!({
            "version": "1.1.0",
            "primary_column": "geometry",
            "columns": { "geometry": column },
        });
        let geo = KeyValue::new("geo".to_owned(), geo.to_string());
        self.writer.append_key_value_metadata(geo);
        self.writer.into_inner()
    }
}

/// Well-known binary of a polygon, little-endian.
fn polygon(rings: &[Vec<[f64; 2]>]) -> Vec<u8> {
    const LITTLE_ENDIAN: u8 = 1;
    const POLYGON: u32 = 3;
    let points = rings.iter().map(Vec::len).sum::<usize>();
    let mut bytes = Vec::with_capacity(9 + 4 * rings.len() + 16 * points);
    bytes.push(LITTLE_ENDIAN);
    bytes.extend(POLYGON.to_le_bytes());
    bytes.extend((rings.len() as u32).to_le_bytes());
    for ring in rings {
        bytes.extend((ring.len() as u32).to_le_bytes());
        bytes.extend(ring.iter().flatten().flat_map(|v| v.to_le_bytes()));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;

    fn square(west: f64, south: f64, side: f64) -> Vec<[f64; 2]> {
        let (east, north) = (west + side, south + side);
        vec![
            [west, south],
            [east, south],
            [east, north],
            [west, north],
            [west, south],
        ]
    }

    fn opened(file: GeoParquet<File>) -> SerializedFileReader<File> {
        SerializedFileReader::new(file.finish().expect("finishes")).expect("reads")
    }

    fn begun() -> GeoParquet<File> {
        GeoParquet::new(tempfile::tempfile().expect("a file")).expect("begins")
    }

    /// The bytes follow from OGC 06-103r4, 8.2.
    #[test]
    fn a_polygon_is_well_known_binary() {
        let bytes = polygon(&[vec![[1.0, 2.0], [-0.5, 0.0]]]);
        let mut expected = vec![1, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
        expected.extend([0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0x40]);
        expected.extend([0, 0, 0, 0, 0, 0, 0xe0, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn areas_are_read_back_over_several_groups() {
        let count = GROUP + 3;
        let mut file = begun();
        let rings = |index: usize| match index % 2 {
            0 => vec![square(index as f64 / 100.0, 50.0, 0.5)],
            _ => {
                let mut hole = square(0.1, 50.1, 0.1);
                hole.reverse();
                vec![square(0.0, 50.0, 1.0), hole]
            }
        };
        for index in 0..count {
            let class = [1, 200][index % 2];
            file.add(&GroundArea {
                class,
                pixels: (1 << 40) + index as u64,
                rings: rings(index),
            })
            .expect("adds");
        }
        let reader = opened(file);
        assert_eq!(reader.metadata().num_row_groups(), 2);
        let said = reader.metadata().file_metadata().key_value_metadata();
        let said = said.and_then(|all| all.iter().find(|pair| pair.key == "geo"));
        let geo: serde_json::Value =
            serde_json::from_str(said.and_then(|pair| pair.value.as_deref()).expect("geo"))
                .expect("JSON");
        let column = &geo["columns"]["geometry"];
        assert_eq!(geo["version"], "1.1.0");
        assert_eq!(geo["primary_column"], "geometry");
        assert_eq!(column["encoding"], "WKB");
        let last = (count - 1) as f64 / 100.0;
        assert_eq!(
            column["bbox"],
            serde_json::json!([0.0, 50.0, last + 0.5, 51.0])
        );
        let mut rows = 0;
        for (index, row) in reader.get_row_iter(None).expect("rows").enumerate() {
            use parquet::record::RowAccessor;
            let row = row.expect("a row");
            assert_eq!(row.get_ubyte(0).expect("class"), [1, 200][index % 2]);
            assert_eq!(row.get_ulong(1).expect("pixels"), (1 << 40) + index as u64);
            assert_eq!(
                row.get_bytes(2).expect("geometry").data(),
                polygon(&rings(index))
            );
            rows += 1;
        }
        assert_eq!(rows, count);
    }

    #[test]
    fn a_map_without_areas_is_a_file_without_rows() {
        let reader = opened(begun());
        assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
    }
}
