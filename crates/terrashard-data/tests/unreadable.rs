//! Chips that cannot be read: an error, or samples of weight 0 beside which all others are as they were.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrashard_data::{
    Augmentation, BandSelection, Batch, ChipOptions, Chips, IGNORE, Jitter, OnUnreadable, Scene,
    SceneOptions,
};
use terrashard_layout::SampleOrder;
use terrashard_raster::{
    DataType, Error, Georeference, MemorySource, Metadata, Raster, RasterSource, Result, Samples,
    Window,
};

const SIDE: usize = 32;
const CHIP: usize = 16;
/// Of the four chips, that which goes bad.
const BAD: Window = Window {
    col: 16,
    row: 0,
    width: 16,
    height: 16,
};

fn raster(name: &str, side: usize, samples: Samples) -> MemorySource {
    let bands = samples.len() / (side * side);
    let metadata = Metadata {
        width: side,
        height: side,
        bands,
        data_type: DataType::U8,
        georeference: Georeference::default(),
        nodata: None,
        descriptions: vec![None; bands],
        overviews: Vec::new(),
        block: (side, 1),
    };
    MemorySource::new(name, metadata, samples).expect("filled")
}

/// An image of which a part cannot be read once it is damaged.
#[derive(Debug)]
struct Perishable {
    image: MemorySource,
    is_damaged: Arc<AtomicBool>,
}

impl RasterSource for Perishable {
    fn metadata(&self) -> &Metadata {
        self.image.metadata()
    }

    fn path(&self) -> &Path {
        self.image.path()
    }

    fn read_window(&self, window: Window) -> Result<Raster> {
        let apart = window.col_end() <= BAD.col || window.row >= BAD.row_end();
        if self.is_damaged.load(Ordering::Relaxed) && !apart {
            return Err(Error::Empty {
                path: self.path().to_owned(),
            });
        }
        self.image.read_window(window)
    }
}

/// The chips of a scene, damaged before they are cut or not, with what damages it then.
fn chips(
    unreadable: OnUnreadable,
    jitter: Jitter,
    is_damaged: bool,
) -> (terrashard_data::Result<Chips>, Arc<AtomicBool>) {
    let damage = Arc::new(AtomicBool::new(is_damaged));
    let image = (0..2 * SIDE * SIDE).map(|at| 500 + at as u16).collect();
    let image = Perishable {
        image: raster("image", SIDE, Samples::U16(image)),
        is_damaged: damage.clone(),
    };
    let fine = 2 * SIDE;
    let labels = (0..fine * fine).map(|at| [0, 1, IGNORE][at % 3]).collect();
    let options = SceneOptions {
        scale: 2,
        // What is read is not kept: damage is seen at once.
        cache_bytes: 0,
        ..SceneOptions::new(BandSelection::All(2))
    };
    let mask = Box::new(raster("mask", fine, Samples::U8(labels)));
    let scene = Scene::new(Box::new(image), Some(mask), options).expect("sound");
    let scene = Arc::new(scene);
    let options = ChipOptions {
        chip: CHIP,
        stride: CHIP,
        augmentation: Augmentation {
            seed: 3,
            orientations: true,
            jitter,
        },
        unreadable,
        ..ChipOptions::default()
    };
    (
        Chips::new(vec![(scene.clone(), scene.window())], options),
        damage,
    )
}

fn epoch(chips: &Chips) -> terrashard_data::Result<Batch> {
    let order = SampleOrder::new(chips.len(), 11).expect("samples");
    chips.batch_at(&order, 0..chips.len() as u64)
}

#[test]
fn h12_a_chip_that_goes_bad_is_an_error_that_names_the_file() {
    let (chips, damage) = chips(OnUnreadable::Abort, Jitter::default(), false);
    let chips = chips.expect("sound");
    epoch(&chips).expect("sound");
    damage.store(true, Ordering::Relaxed);
    let error = epoch(&chips).expect_err("damaged").to_string();
    assert!(error.contains("image"), "{error}");
    let (chips, _) = self::chips(OnUnreadable::Abort, Jitter::default(), true);
    chips.expect_err("damaged before");
}

#[test]
fn h12_a_chip_that_goes_bad_is_of_weight_0_beside_others_that_are_as_they_were() {
    let (chips, damage) = chips(OnUnreadable::SkipTile, Jitter::default(), false);
    let chips = chips.expect("sound");
    let whole = epoch(&chips).expect("sound");
    assert!(whole.left_out.is_empty() && chips.unreadable().is_empty());
    damage.store(true, Ordering::Relaxed);
    let batch = epoch(&chips).expect("goes on");
    let [left_out] = batch.left_out.as_slice() else {
        panic!("{:?}", batch.left_out)
    };
    assert_eq!(left_out.window, BAD);
    // Two of three labels are of a class; there is no image at high resolution.
    let counted = chips.chips().iter().find(|chip| chip.window == BAD);
    let counted = counted.expect("cut").counts.iter().sum::<u64>();
    assert!(counted > 600 && counted < 700);
    assert_eq!(
        (left_out.valid_pixels, left_out.target_values),
        (counted, 0)
    );
    let told = left_out.to_string();
    assert!(
        told.contains("of image: ") && told.contains("empty"),
        "{told}"
    );
    assert_eq!((batch.samples, &batch.ids), (4, &whole.ids));
    let images = 2 * CHIP * CHIP;
    let masks = 4 * CHIP * CHIP;
    for (at, id) in batch.ids.iter().enumerate() {
        let image = at * images..(at + 1) * images;
        let mask = at * masks..(at + 1) * masks;
        let chip = chips.chip(*id as usize).expect("a sample");
        if chip.window == BAD {
            assert!(batch.images[image].iter().all(|value| *value == 0.0));
            assert!(batch.masks[mask].iter().all(|label| *label == IGNORE));
            assert_eq!(batch.valid[at], [0, 0]);
        } else {
            assert_eq!(batch.images[image.clone()], whole.images[image]);
            assert_eq!(batch.masks[mask.clone()], whole.masks[mask]);
            assert_eq!(batch.valid[at], whole.valid[at]);
        }
    }
}

/// A training that goes on after the damage has the samples, and their order, that it had before.
#[test]
fn h12_a_chip_that_is_bad_when_it_is_cut_stays_a_sample_of_weight_0() {
    let jitter = Jitter {
        scale: 0.2,
        band_scale: 0.05,
        noise: 0.01,
    };
    let (before, damage) = chips(OnUnreadable::SkipTile, jitter, false);
    let before = before.expect("sound");
    damage.store(true, Ordering::Relaxed);
    let (after, mended) = chips(OnUnreadable::SkipTile, jitter, true);
    let after = after.expect("goes on");
    assert_eq!(after.len(), before.len());
    let [unreadable] = after.unreadable() else {
        panic!("{:?}", after.unreadable())
    };
    assert_eq!((unreadable.window, unreadable.valid_pixels), (BAD, 0));
    // Also where it can be read again: it was not counted.
    mended.store(false, Ordering::Relaxed);
    let (before, after) = (epoch(&before), epoch(&after));
    let (before, after) = (before.expect("goes on"), after.expect("goes on"));
    assert_eq!(before.images, after.images);
    assert_eq!((before.masks, before.valid), (after.masks, after.valid));
}

#[test]
fn h12_scenes_of_which_nothing_can_be_read_are_refused() {
    let (chips, damage) = chips(OnUnreadable::SkipTile, Jitter::default(), true);
    chips.expect("three chips are left");
    let image = Perishable {
        image: raster("image", SIDE, Samples::U16(vec![1; SIDE * SIDE])),
        is_damaged: damage,
    };
    let mask = Box::new(raster("mask", SIDE, Samples::U8(vec![1; SIDE * SIDE])));
    let options = SceneOptions {
        scale: 1,
        ..SceneOptions::new(BandSelection::All(1))
    };
    let scene = Scene::new(Box::new(image), Some(mask), options).expect("opens");
    let options = ChipOptions {
        chip: CHIP,
        stride: CHIP,
        unreadable: OnUnreadable::SkipTile,
        ..ChipOptions::default()
    };
    let error = Chips::new(vec![(Arc::new(scene), BAD)], options).expect_err("nothing");
    assert!(error.to_string().contains("empty"), "{error}");
}
