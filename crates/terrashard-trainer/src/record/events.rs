//! Event files of TensorBoard, beside `metrics.jsonl`: the same numbers of each step, as curves.
//!
//! A file is a row of records, each its length, a checksum of that, a message and its checksum
//! ([TFRecord](https://www.tensorflow.org/tutorials/load_data/tfrecord)); a message is an
//! [`Event`](https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto) in the wire format of Protocol Buffers.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{StepRecord, ValidationRecord};
use crate::error::{Error, Result};
use crate::training::metrics;

/// The name under which pictures stand.
const PANEL: &str = "panels/image, label, prediction";

/// One call's event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Begins a file in `folder` for the steps after `step`: what files beside it say of those is void.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn create(folder: &Path, step: u64) -> Result<Self> {
        let now = now();
        let name = format!(
            "events.out.tfevents.{:010}.{}.terrashard",
            now as u64,
            std::process::id()
        );
        let path = folder.join(name);
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::write(&path))?;
        let mut events = Self { path, file };
        events.write(&version(now))?;
        events.write(&start(now, step + 1))?;
        Ok(events)
    }

    /// Appends a step's numbers, those that are finite.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn append(&mut self, record: &StepRecord) -> Result<()> {
        self.write(&summary(now(), record.step, &scalars(record)))
    }

    /// Appends what a validation found.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn append_validation(&mut self, record: &ValidationRecord) -> Result<()> {
        let there =
            |(name, value): (&str, Option<f64>)| Some((format!("validation/{name}"), value?));
        let scalars: Vec<_> = metrics(record).filter_map(there).collect();
        self.write(&summary(now(), record.step, &scalars))
    }

    /// Appends a picture of so many pixels across and down, as the bytes of a PNG.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn append_panel(&mut self, step: u64, png: &[u8], size: [usize; 2]) -> Result<()> {
        self.write(&event(now(), step, &picture(PANEL, png, size)))
    }

    /// One record in one write, so that a killed run leaves whole ones.
    fn write(&mut self, message: &[u8]) -> Result<()> {
        let length = (message.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked(&length).to_le_bytes());
        record.extend(message);
        record.extend(masked(message).to_le_bytes());
        self.file
            .write_all(&record)
            .map_err(Error::write(&self.path))
    }
}

/// What is drawn of a step.
fn scalars(record: &StepRecord) -> Vec<(String, f64)> {
    let StepRecord {
        loss,
        lr,
        images_s,
        grad_norm,
        skipped,
        left_out,
        seconds,
        terms,
        times,
        sent,
        joules,
        ..
    } = record;
    let mut scalars: Vec<(String, f64)> = [
        ("train/loss", *loss),
        ("train/lr", *lr),
        ("train/grad_norm", *grad_norm),
        ("train/skipped", f64::from(u8::from(*skipped))),
        ("train/left_out", *left_out as f64),
        ("speed/images_s", *images_s),
        ("speed/seconds", *seconds),
        ("times/data", times.data),
        ("times/compute", times.compute),
        ("times/communication", times.communication),
        ("times/optimizer", times.optimizer),
        ("times/checkpoint", times.checkpoint),
        ("times/validation", times.validation),
        ("speed/sent_bytes", sent.total() as f64),
    ]
    .map(|(tag, value)| (tag.to_owned(), value))
    .into();
    scalars.extend(
        terms
            .iter()
            .map(|(term, value)| (format!("terms/{term}"), *value)),
    );
    if *joules > 0.0 {
        scalars.push(("speed/joules".into(), *joules));
    }
    scalars.retain(|(_, value)| value.is_finite());
    scalars
}

/// `Event { wall_time, file_version }`, the first of a file.
fn version(wall_time: f64) -> Vec<u8> {
    let mut event = double(1, wall_time);
    event.extend(bytes(3, b"brain.Event:2"));
    event
}

/// `Event { wall_time, step, session_log: SessionLog { status: START } }`: what came of this step and later ones before is void.
fn start(wall_time: f64, step: u64) -> Vec<u8> {
    let mut event = double(1, wall_time);
    event.extend(varint_field(2, step));
    event.extend(bytes(7, &varint_field(1, 1)));
    event
}

/// `Event { wall_time, step, summary: Summary { value: [{ tag, simple_value }] } }`.
fn summary(wall_time: f64, step: u64, scalars: &[(String, f64)]) -> Vec<u8> {
    let value = |(tag, value): &(String, f64)| {
        let mut fields = bytes(1, tag.as_bytes());
        fields.push(2 << 3 | FIXED32);
        fields.extend((*value as f32).to_le_bytes());
        bytes(1, &fields)
    };
    let values: Vec<u8> = scalars.iter().flat_map(value).collect();
    event(wall_time, step, &values)
}

/// `Summary { value: [{ tag, image: Image { height, width, colorspace: RGB, encoded_image_string } }] }`.
fn picture(tag: &str, png: &[u8], [width, height]: [usize; 2]) -> Vec<u8> {
    const RGB: u64 = 3;
    let image = [
        varint_field(1, height as u64),
        varint_field(2, width as u64),
        varint_field(3, RGB),
        bytes(4, png),
    ];
    let value = [bytes(1, tag.as_bytes()), bytes(4, &image.concat())];
    bytes(1, &value.concat())
}

/// `Event { wall_time, step, summary }`.
fn event(wall_time: f64, step: u64, summary: &[u8]) -> Vec<u8> {
    let mut event = double(1, wall_time);
    event.extend(varint_field(2, step));
    event.extend(bytes(5, summary));
    event
}

/// Wire types of Protocol Buffers, <https://protobuf.dev/programming-guides/encoding/>.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const DELIMITED: u8 = 2;
const FIXED32: u8 = 5;

fn double(field: u8, value: f64) -> Vec<u8> {
    [&[field << 3 | FIXED64], &value.to_le_bytes()[..]].concat()
}

fn varint_field(field: u8, value: u64) -> Vec<u8> {
    [vec![field << 3 | VARINT], varint(value)].concat()
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    [
        vec![field << 3 | DELIMITED],
        varint(value.len() as u64),
        value.to_vec(),
    ]
    .concat()
}

/// Seven bits a byte, the lowest first; all bytes but the last have their highest bit set.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// CRC-32C as TFRecord keeps it: rotated, and with a constant added, since a checksum of data that hold checksums says little.
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: a step's message is a few hundred bytes, and pictures are rare.
fn crc32c(data: &[u8]) -> u32 {
    const REVERSED: u32 = 0x82f6_3b78;
    !data.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| match crc & 1 {
            1 => crc >> 1 ^ REVERSED,
            _ => crc >> 1,
        })
    })
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_have_their_published_values() {
        // RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and 0 to 31.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&Vec::from_iter(0..32)), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn numbers_are_written_seven_bits_a_byte() {
        assert_eq!(varint(1), [1]);
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(varint(u64::MAX).len(), 10);
    }

    /// The records of a file, read as the format says and with their checksums compared.
    fn records(file: &[u8]) -> Vec<Vec<u8>> {
        let (mut rest, mut found) = (file, Vec::new());
        let unmasked = |bytes: &[u8]| {
            let masked = u32::from_le_bytes(bytes.try_into().unwrap());
            masked.wrapping_sub(0xa282_ead8).rotate_left(15)
        };
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(unmasked(&rest[8..12]), crc32c(&rest[..8]));
            let message = &rest[12..12 + length];
            assert_eq!(unmasked(&rest[12 + length..16 + length]), crc32c(message));
            found.push(message.to_vec());
            rest = &rest[16 + length..];
        }
        found
    }

    #[test]
    fn a_file_holds_version_start_and_steps() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(folder.path(), 300).unwrap();
        let record = StepRecord {
            step: 301,
            loss: 0.25,
            lr: f64::NAN,
            terms: [("dice".to_owned(), 2.0)].into(),
            ..StepRecord::default()
        };
        events.append(&record).unwrap();
        let name = events.path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("events.out.tfevents."), "{name}");
        let records = records(&std::fs::read(&events.path).unwrap());
        assert_eq!(records.len(), 3);
        // Field 1, a double, is the time; field 3 the version.
        assert_eq!(records[0][0], 0x09);
        assert_eq!(&records[0][9..], b"\x1a\x0dbrain.Event:2");
        // Field 2 is the step 301 = 0b10_0101101, field 7 a message whose field 1 is START.
        assert_eq!(&records[1][9..], b"\x10\xad\x02\x3a\x02\x08\x01");
        assert_eq!(&records[2][9..12], b"\x10\xad\x02");
        // Field 5 is the summary; its first value is tag "train/loss" and the float 0.25 = 0x3e800000.
        assert_eq!(records[2][12], 0x2a);
        let loss = b"\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\x80\x3e";
        let dice = b"\x0a\x11\x0a\x0aterms/dice\x15\x00\x00\x00\x40";
        let holds = |part: &[u8]| records[2].windows(part.len()).any(|window| window == part);
        assert!(holds(loss) && holds(dice));
        assert!(!holds(b"train/lr"), "what is no number is left out");
    }

    #[test]
    fn a_picture_is_a_summary_with_its_size_and_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(folder.path(), 0).unwrap();
        events.append_panel(3, b"PNG", [300, 5]).unwrap();
        let records = records(&std::fs::read(&events.path).unwrap());
        let message = &records[2];
        // Fields of Image: 5 high, 300 = 0b10_0101100 wide, 3 for RGB, three bytes.
        let image = b"\x08\x05\x10\xac\x02\x18\x03\x22\x03PNG";
        let holds = |part: &[u8]| message.windows(part.len()).any(|window| window == part);
        assert!(holds(image) && holds(PANEL.as_bytes()));
        // Field 4 of the value is the image, with its length before it.
        assert!(holds(&[&[0x22, image.len() as u8], &image[..]].concat()));
    }
}
