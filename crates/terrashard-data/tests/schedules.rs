//! The loader's threads, whose every step a scheduler chooses: none of its orders deadlocks or changes what comes (`cargo xtask schedules`).

use std::env;
use std::sync::{Arc, OnceLock};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, replay};
use terrashard_data::{
    BandSelection, ChipOptions, Chips, Loader, LoaderOptions, MicroBatch, Scene, SceneOptions,
};
use terrashard_layout::SampleOrder;
use terrashard_raster::{DataType, Georeference, MemorySource, Metadata, RasterSource, Samples};

/// Schedules of each kind that a test takes.
const SCHEDULES: usize = 1_000;

/// Changes of the running thread in a schedule of PCT.
const CHANGES: usize = 4;

/// Takes many schedules of `body`, or that one which the environment names.
fn any_schedule(body: impl Fn() + Send + Sync + Copy + 'static) {
    // What they share is made once.
    chips();
    if let Ok(schedule) = env::var("TERRASHARD_SCHEDULE") {
        return replay(body, &schedule);
    }
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config
    };
    Runner::new(RandomScheduler::new_from_seed(1, SCHEDULES), config()).run(body);
    let scheduler = PctScheduler::new_from_seed(2, CHANGES, SCHEDULES);
    Runner::new(scheduler, config()).run(body);
}

/// Nine chips of a scene in memory.
fn chips() -> Arc<Chips> {
    static CHIPS: OnceLock<Arc<Chips>> = OnceLock::new();
    let raster = |name: &str, samples: Samples| -> Box<dyn RasterSource> {
        let metadata = Metadata {
            width: 12,
            height: 12,
            bands: 1,
            data_type: DataType::U8,
            georeference: Georeference::default(),
            nodata: None,
            descriptions: vec![None],
            overviews: Vec::new(),
            block: (12, 1),
        };
        Box::new(MemorySource::new(name, metadata, samples).expect("filled"))
    };
    let make = || {
        let image = (0..144u16).collect();
        let labels = (0..144).map(|at| (at % 3 == 0).into()).collect();
        let options = SceneOptions {
            scale: 1,
            ..SceneOptions::new(BandSelection::All(1))
        };
        let mask = raster("mask", Samples::U8(labels));
        let scene = Scene::new(raster("image", Samples::U16(image)), Some(mask), options);
        let scene = Arc::new(scene.expect("sound"));
        let options = ChipOptions {
            chip: 4,
            stride: 4,
            ..ChipOptions::default()
        };
        let window = scene.window();
        Arc::new(Chips::new(vec![(scene, window)], options).expect("chips"))
    };
    CHIPS.get_or_init(make).clone()
}

/// Two epochs in windows of two micro-batches, by so many threads.
fn loader(prefetch: usize) -> Loader {
    let options = LoaderOptions {
        rank: 1,
        ranks: 2,
        micro_batch: 2,
        accumulate: 2,
        cursor: 0,
        end: Some(18),
        steps: None,
        prefetch,
    };
    let order = SampleOrder::new(chips().len(), 5).expect("samples");
    Loader::new(chips(), order, options).expect("sound")
}

fn loaded(prefetch: usize, count: usize) -> Vec<MicroBatch> {
    let batches = loader(prefetch).take(count);
    batches
        .map(|batch| batch.expect("it is in memory"))
        .collect()
}

#[test]
fn no_schedule_changes_what_comes_or_when() {
    any_schedule(|| {
        // Eighteen samples in windows of eight: two whole ones and a partial one.
        let alone = loaded(1, usize::MAX);
        assert_eq!(alone.len(), 6);
        assert_eq!(loaded(3, usize::MAX), alone);
    });
}

#[test]
fn no_schedule_of_a_loader_that_is_dropped_deadlocks() {
    any_schedule(|| {
        for count in [0, 1, 4] {
            assert_eq!(loaded(3, count).len(), count);
        }
    });
}
