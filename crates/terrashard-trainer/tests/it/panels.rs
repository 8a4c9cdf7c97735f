//! Pictures of what a model makes of a window while it is trained: they disturb nothing and show what they say.

use std::fs;
use std::io::Cursor;

use crate::saves::tensors;
use crate::scenario::{SCALE, Scenario};

/// Side of a chip of the scenario on the fine grid, and pixels between two pictures.
const SIDE: usize = 32 * SCALE;
const GAP: usize = 8;

const BACKGROUND: [u8; 3] = [236, 233, 225];
const FOREGROUND: [u8; 3] = [37, 99, 168];

/// Width, height and RGB pixels.
fn decoded(bytes: Vec<u8>) -> (usize, usize, Vec<[u8; 3]>) {
    let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let (pixels, _) = pixels.as_chunks::<3>();
    (info.width as usize, info.height as usize, pixels.to_vec())
}

#[test]
fn the_training_is_the_same_with_and_without_pictures() {
    let scenario = Scenario::new();
    let cases: [&[&str]; 4] = [
        &["zero.ranks=1", "zero.stage=0"],
        &["zero.ranks=2", "zero.stage=2", "train.ema=0.9"],
        &["zero.ranks=3", "zero.stage=3", "zero.prefetch=1"],
        &["zero.ranks=2", "zero.stage=3", "zero.offload=parameters"],
    ];
    for (index, case) in cases.into_iter().enumerate() {
        let (plain, with) = (format!("plain{index}"), format!("with{index}"));
        scenario.fit(&plain, None, &[case, &["log.panels=0"]].concat());
        scenario.fit(&with, None, &[case, &["log.panels=1"]].concat());
        for step in [2, 6] {
            let [plain, with] = [&plain, &with].map(|run| tensors(&scenario, run, step));
            assert!(plain == with, "{case:?} at step {step}");
        }
        assert!(!scenario.run(&plain).panels().exists());
        let drawn = scenario.run(&with).drawn().unwrap();
        let steps: Vec<u64> = drawn.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5, 6], "{case:?}");
    }
}

#[test]
fn a_picture_holds_image_label_and_map_and_stands_in_report_and_event_file() {
    let scenario = Scenario::new();
    let fit = ["fit", "run.toml", "--run", "run", "--quiet"];
    let lr = ["--set", "train.lr=1e-2", "--set", "train.steps=40"];
    let output = scenario.terrashard(&[&fit[..], &lr].concat());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    let run = scenario.run("run");
    // As often as a checkpoint, where nothing is said.
    let drawn = run.drawn().unwrap();
    assert_eq!(drawn.len(), 20);
    let last = fs::read(&drawn[19].1).unwrap();
    let (width, height, pixels) = decoded(last.clone());
    assert_eq!((width, height), (3 * SIDE + 2 * GAP, SIDE));
    let part = |index: usize| -> Vec<[u8; 3]> {
        let from = index * (SIDE + GAP);
        let rows = pixels.chunks_exact(width);
        rows.flat_map(|row| row[from..from + SIDE].to_vec())
            .collect()
    };
    let (label, map) = (part(1), part(2));
    for classes in [&label, &map] {
        assert!(
            classes
                .iter()
                .all(|pixel| [BACKGROUND, FOREGROUND].contains(pixel))
        );
    }
    let share = |classes: &[[u8; 3]]| {
        let foreground = classes.iter().filter(|pixel| **pixel == FOREGROUND);
        foreground.count() as f64 / classes.len() as f64
    };
    // A window with both classes is chosen; and what was learned is nearer to it than a map of one class.
    assert!((0.05..0.95).contains(&share(&label)), "{}", share(&label));
    let wrong = label.iter().zip(&map).filter(|(label, map)| label != map);
    let wrong = wrong.count() as f64 / label.len() as f64;
    assert!(wrong < share(&label).min(1.0 - share(&label)), "{wrong}");
    // Each 10 m pixel of the image is 5 x 5.
    let image = part(0);
    for (index, pixel) in image.iter().enumerate() {
        let (row, column) = (index / SIDE / SCALE * SCALE, index % SIDE / SCALE * SCALE);
        assert_eq!(*pixel, image[row * SIDE + column], "{index}");
    }

    let page = fs::read_to_string(scenario.path("run/report.html")).unwrap();
    assert!(page.contains("As it learned: image, label and map of one window"));
    assert_eq!(page.matches("<figcaption>after step ").count(), 6);
    let files = fs::read_dir(scenario.path("run")).unwrap();
    let mut events = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("tfevents"));
    let events = fs::read(events.next().unwrap()).unwrap();
    let holds = |part: &[u8]| events.windows(part.len()).any(|window| window == part);
    assert!(holds(b"panels/image, label, prediction") && holds(&last));
}

#[test]
fn a_run_that_goes_on_forgets_later_pictures() {
    let scenario = Scenario::new();
    let every = ["log.panels=1", "checkpoint.every=3"];
    scenario.fit("run", Some(3), &every);
    let run = scenario.run("run");
    fs::copy(
        &run.drawn().unwrap()[0].1,
        run.panels().join("step-000005.png"),
    )
    .unwrap();
    scenario.fit("run", Some(4), &every);
    let steps: Vec<u64> = run.drawn().unwrap().iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [1, 2, 3, 4]);
}
