//! Memory that does not grow with what is read: what users of other tools ran into, each named by its number in the list of
//! their problems.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};

use terrashard_data::Scene;
use terrashard_raster::{
    DataType, GeoTiffSink, Georeference, Raster, RasterSink, RasterSpec, Samples, Window,
};
use terrashard_trainer::config::Config;
use terrashard_trainer::dataset::Dataset;

use crate::scenario::{Scenario, TRANSFORM};

const MIB: u64 = 1 << 20;

/// The most bytes that were resident while the command ran, as the system counts them until just before its end.
fn peak(mut command: Command) -> u64 {
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        most = most.max(kib.unwrap_or(0) * 1024);
        std::thread::yield_now();
    }
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    most
}

/// A scene of `side` times `side` pixels with a label on the same grid.
fn square(scenario: &Scenario, side: usize) -> String {
    let ground = Georeference {
        epsg: Some(32633),
        transform: Some(TRANSFORM),
    };
    let file =
        |name: String, bands: usize, data_type: DataType, block: &dyn Fn(Window) -> Samples| {
            let spec = RasterSpec::new(side, side, bands, data_type).georeference(ground);
            let path = scenario.path(&name);
            let mut sink: Box<dyn RasterSink> =
                Box::new(GeoTiffSink::create(path, spec.tile(256)).unwrap());
            for row in (0..side).step_by(256) {
                let window = Window::new(0, row, side, 256.min(side - row));
                let raster = Raster::new(window, bands, block(window)).unwrap();
                sink.write(&raster).unwrap();
            }
            sink.finish().unwrap();
            name
        };
    let noise = |window: Window, at: usize| (window.row * 31 + at * 7919) % 4099;
    let image = file(format!("image-{side}.tif"), 2, DataType::U16, &|window| {
        let value = |at| 500 + noise(window, at) as u16;
        Samples::U16((0..2 * window.pixels()).map(value).collect())
    });
    let mask = file(format!("mask-{side}.tif"), 1, DataType::U8, &|window| {
        let value = |at| u8::from(noise(window, at) % 3 == 0);
        Samples::U8((0..window.pixels()).map(value).collect())
    });
    format!("data.scenes=[{{ image = \"{image}\", mask = \"{mask}\" }}]")
}

#[test]
fn geo_02_a_larger_scene_takes_no_more_memory() {
    let scenario = Scenario::new();
    let scenes = [2048, 4096].map(|side| square(&scenario, side));
    for command in ["check", "stats", "chip"] {
        let [small, large] = [0, 1].map(|index| {
            let line = [command, "run.toml", "--set", &scenes[index]];
            let settings = ["model.scale=1", "data.cache_bytes=8388608", "data.chip=256"];
            let settings = settings.iter().flat_map(|setting| ["--set", setting]);
            let line: Vec<&str> = line.into_iter().chain(settings).collect();
            peak(scenario.command(&line))
        });
        // Caches and windows have bounds of their own, which a small scene does not reach. All of the large one would be 60 MiB
        // more as it is stored, and 144 as floats.
        assert!(
            large < small + 40 * MIB,
            "{command}: {} MiB for a scene four times as large as one of {} MiB",
            large / MIB,
            small / MIB
        );
    }
}

#[test]
fn geo_02_a_larger_label_is_laid_onto_its_grid_in_no_more_memory() {
    let scenario = Scenario::new();
    let [small, large] = [2048, 4096].map(|side| {
        square(&scenario, side);
        let names = ["image", "mask"].map(|name| format!("{name}-{side}.tif"));
        let output = format!("aligned-{side}");
        let onto = ["align", "--onto", &names[0], "--mask", &names[1]];
        let to = ["--output", &output, "--scale", "2"];
        peak(scenario.command(&[&onto[..], &to].concat()))
    });
    // All of the large one would be 48 MiB more as it is written.
    assert!(
        large < small + 40 * MIB,
        "{} MiB for a label four times as large as one of {} MiB",
        large / MIB,
        small / MIB
    );
}

#[test]
fn geo_03_what_is_kept_of_a_scene_is_gone_before_the_next_is_tested() {
    let scenario = Scenario::new();
    let sound = "{ image = \"image.tif\", mask = \"mask.tif\" }";
    let scenes = format!("data.scenes=[{}]", [sound; 50].join(", "));
    let config = Config::load(&scenario.path("run.toml"), &[scenes]).unwrap();
    let mut before: Option<Weak<Scene>> = None;
    let mut count = 0;
    for (scene, region) in Dataset::stream(&config).unwrap().into_test_regions() {
        scene.labels(region).unwrap();
        // Its readers' tiles with it: memory is that of one scene, however many there are.
        assert!(before.is_none_or(|before| before.upgrade().is_none()));
        before = Some(Arc::downgrade(&scene));
        count += 1;
    }
    assert_eq!(count, 50);
}
