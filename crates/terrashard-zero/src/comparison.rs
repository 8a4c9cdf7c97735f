//! Whether all ranks have built the same table, and where they have not.

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_layout::ShardTable;

use crate::error::{Error, Result};
use crate::reading::read_f64;

/// Compares the table's hash with rank 0's. Where one differs, all ranks tell the first row in which it does.
///
/// # Errors
/// [`Error::TableMismatch`] on every rank.
pub(crate) fn compare_tables(
    table: &ShardTable,
    communicator: &dyn Communicator,
    device: &Device,
) -> Result<()> {
    let channel = Channel {
        communicator,
        device,
    };
    // Sixteen bits at a time are exact in any float type that is reduced.
    let hash = table.hash();
    let parts = (0..4).map(|part| ((hash >> (16 * part)) & 0xffff) as f64);
    let all = channel.all_gather(parts.collect())?;
    let Some(rank) = all.chunks(4).position(|parts| parts != &all[..4]) else {
        return Ok(());
    };
    let own = lines(table).join("\n");
    let lengths = channel.all_gather(vec![own.len() as f64])?;
    let first = channel.broadcast(&own, lengths[0] as usize, 0)?;
    let other = channel.broadcast(&own, lengths[rank] as usize, rank)?;
    let (expected, got) = first_difference(&first, &other);
    Err(Error::TableMismatch {
        rank,
        expected,
        got,
    })
}

/// What the hash is of, line by line: first what concerns all rows.
fn lines(table: &ShardTable) -> Vec<String> {
    let all = format!(
        "stage {} on {} ranks with buckets of {} bytes",
        table.stage(),
        table.ranks(),
        table.bucket_bytes()
    );
    let rows = table.rows().iter().map(|row| {
        let parameter = &row.parameter;
        let trained = match parameter.trainable {
            true => "",
            false => ", frozen",
        };
        let tied = match &parameter.tied_to {
            Some(owner) => format!(", tied to `{owner}`"),
            None => String::new(),
        };
        let whole = match table.keeps_whole(row) {
            true => ", whole",
            false => "",
        };
        format!(
            "`{}` {:?} {} in group {}{trained}{tied}{whole}, number {} of the model",
            parameter.name,
            parameter.shape,
            parameter.dtype.name(),
            parameter.group,
            row.order + 1
        )
    });
    std::iter::once(all).chain(rows).collect()
}

/// The first lines that differ; what one text has no line for is nothing.
fn first_difference(first: &str, other: &str) -> (String, String) {
    let (mut first, mut other) = (first.lines(), other.lines());
    loop {
        match (first.next(), other.next()) {
            (a, b) if a == b && a.is_some() => {}
            (a, b) => {
                // Only the hash has seen the difference where there is none.
                let told = |line: Option<&str>| line.unwrap_or("nothing more").to_owned();
                return (told(a), told(b));
            }
        }
    }
}

/// Numbers and text between ranks.
struct Channel<'a> {
    communicator: &'a dyn Communicator,
    device: &'a Device,
}

impl Channel<'_> {
    fn tensor(&self, values: &[f64]) -> Tensor<1> {
        Tensor::from_data(TensorData::from(values), (self.device, DType::F64))
    }

    fn all_gather(&self, own: Vec<f64>) -> Result<Vec<f64>> {
        let gathered = self.communicator.all_gather(self.tensor(&own))?;
        read_f64(gathered.wait()?)
    }

    /// The text of rank `root`, which is `length` bytes long; every rank gives its own.
    fn broadcast(&self, own: &str, length: usize, root: usize) -> Result<String> {
        let bytes = own.bytes().chain(std::iter::repeat(0)).take(length);
        let bytes: Vec<f64> = bytes.map(f64::from).collect();
        let sent = self.communicator.broadcast(self.tensor(&bytes), root)?;
        let bytes = read_f64(sent.wait()?)?;
        let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte as u8).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lines_that_differ_are_told() {
        let check = |first: &str, other: &str, expected: (&str, &str)| {
            let (a, b) = first_difference(first, other);
            assert_eq!((a.as_str(), b.as_str()), expected);
        };
        check("a\nb\nc", "a\nx\nc", ("b", "x"));
        check("a\nb", "a", ("b", "nothing more"));
        check("a", "a\nb", ("nothing more", "b"));
        check("a", "a", ("nothing more", "nothing more"));
    }
}
