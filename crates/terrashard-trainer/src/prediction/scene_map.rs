//! One scene's prediction on its way into its files.

use std::time::{Duration, Instant};

use terrashard_data::Block;

use super::histogram::Histogram;
use super::journal::{Finished, Journal};
use super::products::{Output, Product};
use crate::error::Result;
use crate::mapping::Receive;
use crate::record::Progress;

/// Makes the products of each block, notes them in the journal and writes them.
pub(crate) struct SceneMap {
    pub(crate) outputs: Vec<Output>,
    pub(crate) journal: Journal,
    /// Channels of the segmentation, which come first.
    pub(crate) classes: usize,
    pub(crate) threshold: f32,
    pub(crate) histogram: Histogram,
    /// Pixels of the image that are zero in every band.
    pub(crate) zeros: u64,
    /// Windows that were done before.
    pub(crate) done: usize,
    /// Time that threads read and decoded, added up, and that this one wrote.
    pub(crate) reading: Duration,
    pub(crate) writing: Duration,
    pub(crate) progress: Progress,
}

/// What is known of a scene whose files are in place.
pub(crate) struct Done {
    pub(crate) histogram: Histogram,
    pub(crate) zeros: u64,
    pub(crate) reading: Duration,
    pub(crate) writing: Duration,
}

impl SceneMap {
    /// Takes over what an earlier call has finished.
    ///
    /// # Errors
    /// [`crate::Error::Write`], [`crate::Error::Raster`].
    pub(crate) fn take_over(&mut self) -> Result<()> {
        let Self {
            outputs,
            journal,
            histogram,
            zeros,
            ..
        } = self;
        journal.replay(|finished| count_and_write(&finished, outputs, histogram, zeros))
    }

    /// Puts the files in place; then nothing is left of the journal.
    ///
    /// # Errors
    /// [`crate::Error::Write`], [`crate::Error::Raster`].
    pub(crate) fn finish(self) -> Result<Done> {
        self.progress.finish();
        let began = Instant::now();
        for output in self.outputs {
            output.finish()?;
        }
        self.journal.remove()?;
        Ok(Done {
            histogram: self.histogram,
            zeros: self.zeros,
            reading: self.reading,
            writing: self.writing + began.elapsed(),
        })
    }
}

fn count_and_write(
    finished: &Finished,
    outputs: &mut [Output],
    histogram: &mut Histogram,
    zeros: &mut u64,
) -> Result<()> {
    *zeros += finished.zeros;
    for (class, pixels) in &finished.classes {
        histogram.add_count(*class, *pixels);
    }
    for (output, raster) in outputs.iter_mut().zip(&finished.rasters) {
        output.write(raster)?;
    }
    Ok(())
}

impl Receive for SceneMap {
    fn block(&mut self, block: Block, zeros: u64) -> Result<()> {
        let make = |product: Product| product.raster(&block, self.classes, self.threshold);
        let rasters = self.outputs.iter().map(|output| make(output.product));
        let rasters = rasters.collect::<Result<Vec<_>>>()?;
        let mut counted = Histogram::new(0);
        let place = |output: &Output| output.product == Product::Classes;
        match self.outputs.iter().position(place) {
            Some(at) => counted.add(&rasters[at]),
            None => counted.add(&make(Product::Classes)?),
        }
        let finished = Finished {
            zeros,
            classes: counted.counts().collect(),
            rasters,
        };
        let began = Instant::now();
        self.journal.add(&finished)?;
        let Self {
            outputs,
            histogram,
            zeros,
            ..
        } = self;
        count_and_write(&finished, outputs, histogram, zeros)?;
        self.writing += began.elapsed();
        Ok(())
    }

    fn window(&mut self, done: usize, windows: usize, reading: Duration) {
        self.reading += reading;
        self.progress.set_length((self.done + windows) as u64);
        self.progress.advance((self.done + done) as u64, None, 1);
    }
}
