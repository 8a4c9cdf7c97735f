//! Where an enlargement puts what it is given.

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_ops::{Factor, resize_bilinear, upsample_conv2d};

/// Where the weight of an impulse at `[row, column]` lies in a map of one channel, in pixels of that map from its corner.
fn centroid(map: Tensor<4>) -> [f64; 2] {
    let [_, _, _, width] = map.dims();
    let values: Vec<f64> = map.into_data().iter::<f64>().collect();
    let total: f64 = values.iter().sum();
    let along = |place: &dyn Fn(usize) -> usize| {
        let weighed = values.iter().enumerate();
        let sum: f64 = weighed
            .map(|(at, value)| (place(at) as f64 + 0.5) * value)
            .sum();
        sum / total
    };
    [along(&|at| at / width), along(&|at| at % width)]
}

/// What the model's enlargements make of a pixel lies over that pixel.
#[test]
fn geo_33_enlargement_moves_nothing() {
    const SIDE: usize = 9;
    let device = Device::flex();
    let tensor = |values: Vec<f64>, shape: [usize; 4]| {
        Tensor::<4>::from_data(TensorData::new(values, shape), (&device, DType::F64))
    };
    let impulse = |row: usize, column: usize| {
        let mut values = vec![0.0; SIDE * SIDE];
        values[row * SIDE + column] = 1.0;
        tensor(values, [1, 1, SIDE, SIDE])
    };
    // The same on all sides.
    let kernel = vec![1.0, 2.0, 1.0, 2.0, 5.0, 2.0, 1.0, 2.0, 1.0];
    let kernel = tensor(kernel, [1, 1, 3, 3]);
    let apart = |map: Tensor<4>, factor: f64, (row, column): (usize, usize)| {
        let [y, x] = centroid(map);
        let expected = [row, column].map(|place| (place as f64 + 0.5) * factor);
        [y - expected[0], x - expected[1]].map(|apart| apart / factor)
    };
    for place in [(3, 5), (4, 4), (5, 2)] {
        for factor in [1, 2, 3, 4, 5] {
            let size = [SIDE * factor; 2];
            let resized = resize_bilinear(impulse(place.0, place.1), size);
            let enlarged = upsample_conv2d(impulse(place.0, place.1), kernel.clone(), None, factor);
            for map in [resized, enlarged] {
                let apart = apart(map, factor as f64, place);
                assert!(
                    apart.iter().all(|apart| apart.abs() < 1e-12),
                    "x{factor}, {place:?}: {apart:?} of a pixel apart"
                );
            }
        }
        // By 2.5 pixels become three and two by turns: a quarter of a fine pixel apart on the average.
        let map = upsample_conv2d(
            impulse(place.0, place.1),
            kernel.clone(),
            None,
            Factor::FiveHalves,
        );
        let apart = apart(map, 2.5, place);
        assert!(
            apart.iter().all(|apart| (0.0..=0.101).contains(apart)),
            "x2.5, {place:?}: {apart:?} of a pixel apart"
        );
    }
}
