//! Batch normalisation over ranks with unequal batches, and with none.

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};
use std::sync::{Arc, Barrier, Mutex};
use terrashard_ops::{BatchNorm, Initial, Mode, Pass, Running, SumOverRanks};

const CHANNELS: usize = 3;

/// Sums over threads, in the order of ranks.
#[derive(Debug)]
struct Group {
    barrier: Barrier,
    shares: Mutex<Vec<Vec<f64>>>,
}

impl Group {
    fn new(ranks: usize) -> Arc<Self> {
        Arc::new(Self {
            barrier: Barrier::new(ranks),
            shares: Mutex::new(vec![Vec::new(); ranks]),
        })
    }
}

#[derive(Debug)]
struct Member {
    group: Arc<Group>,
    rank: usize,
}

impl SumOverRanks for Member {
    fn sum(&self, values: &mut [f64]) {
        self.group.shares.lock().expect("no rank panics")[self.rank] = values.to_vec();
        self.group.barrier.wait();
        values.fill(0.0);
        for share in self.group.shares.lock().expect("no rank panics").iter() {
            for (value, share) in values.iter_mut().zip(share) {
                *value += share;
            }
        }
        self.group.barrier.wait();
    }
}

/// A batch of noise on an offset, channels first.
#[derive(Clone)]
struct Tile {
    shape: [usize; 4],
    values: Vec<f64>,
    /// In which it is computed.
    dtype: DType,
}

impl Tile {
    fn new(name: &str, samples: usize, side: usize) -> Self {
        let shape = [samples, CHANNELS, side, side];
        let count = shape.iter().product();
        let values = Initial::Normal { deviation: 2.0 }.values(name, count, 0);
        Self {
            shape,
            // Tiles of other sizes have other means, or their weights would not show.
            values: values.iter().map(|x| f64::from(*x) + side as f64).collect(),
            dtype: DType::F64,
        }
    }

    fn channel(&self, channel: usize) -> Vec<f64> {
        let plane = self.shape[2] * self.shape[3];
        let planes = self.values.chunks(plane.max(1)).skip(channel);
        planes.step_by(CHANNELS).flatten().copied().collect()
    }

    fn tensor(&self, device: &Device) -> Tensor<4> {
        let data = TensorData::new(self.values.clone(), self.shape);
        Tensor::from_data(data, (device, self.dtype))
    }

    /// In another type, with the values that it has there.
    fn of(self, dtype: DType) -> Self {
        let data = TensorData::new(self.values, self.shape).convert_dtype(dtype);
        let values = data.iter::<f64>().collect();
        Self {
            shape: self.shape,
            values,
            dtype,
        }
    }
}

/// What a rank has after one forward and backward pass.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    output: Vec<f64>,
    /// Of the input, the weight and the bias.
    gradients: [Vec<f64>; 3],
    running: Running,
}

/// One pass with the sum of cubes as its loss, whose gradient the statistics do not cancel.
fn pass(tile: &Tile, ranks: Arc<dyn SumOverRanks>) -> Seen {
    let device = Device::flex().autodiff();
    let mut norm = BatchNorm::new(CHANNELS, &device);
    let parameter = |values: [f64; CHANNELS]| {
        let tensor = Tensor::<1>::from_data(TensorData::from(values), (&device, tile.dtype));
        Param::from_tensor(tensor.require_grad())
    };
    norm.weight = parameter([0.5, 1.0, 2.0]);
    norm.bias = parameter([0.1, 0.2, 0.3]);
    let x = tile.tensor(&device).require_grad();
    let pass = Pass {
        ranks,
        ..Pass::new(Mode::Training)
    };
    let y = norm.forward(x.clone(), &pass);
    assert_eq!(y.dtype(), tile.dtype);
    let gradients = (y.clone() * y.clone() * y.clone()).sum().backward();
    let host = |data: TensorData| data.iter::<f64>().collect::<Vec<_>>();
    let weights = [norm.weight.val(), norm.bias.val()];
    let [gw, gb] = weights.map(|w| host(w.grad(&gradients).expect("a gradient").into_data()));
    let gx = host(x.grad(&gradients).expect("a gradient").into_data());
    Seen {
        output: host(y.into_data()),
        gradients: [gx, gw, gb],
        running: norm.running(),
    }
}

/// The same on ranks that are threads, one for each tile.
fn on_ranks(tiles: &[Tile]) -> Vec<Seen> {
    let group = Group::new(tiles.len());
    std::thread::scope(|scope| {
        let ranks: Vec<_> = tiles
            .iter()
            .enumerate()
            .map(|(rank, tile)| {
                let group = group.clone();
                scope.spawn(move || pass(tile, Arc::new(Member { group, rank })))
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("no rank panics"))
            .collect()
    })
}

#[track_caller]
fn check_near(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    let size = expected.iter().fold(0.0, |size: f64, x| size.max(x.abs()));
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-10 * size, "{got} {expected}");
    }
}

#[test]
fn b2_tiles_of_different_sizes_have_the_statistics_of_one_process() {
    let tiles = [Tile::new("a", 1, 30), Tile::new("b", 1, 50)];
    let seen = on_ranks(&tiles);

    // By hand: each value counts once, whichever rank it is on.
    for channel in 0..CHANNELS {
        let values = [tiles[0].channel(channel), tiles[1].channel(channel)].concat();
        let count = values.len() as f64;
        assert_eq!(count, 3400.0);
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        for rank in &seen {
            let Running {
                mean: got,
                variance,
            } = &rank.running;
            check_near(&[got[channel]], &[0.1 * mean]);
            check_near(&[variance[channel]], &[0.9 + 0.1 * squares / (count - 1.0)]);
        }
        let scale = [0.5, 1.0, 2.0][channel] / (squares / count + 1e-5).sqrt();
        let bias = [0.1, 0.2, 0.3][channel];
        for (rank, tile) in seen.iter().zip(&tiles) {
            let output = Tile {
                values: rank.output.clone(),
                ..tile.clone()
            };
            let expected: Vec<f64> = tile
                .channel(channel)
                .iter()
                .map(|x| (x - mean) * scale + bias)
                .collect();
            check_near(&output.channel(channel), &expected);
        }
    }

    // In one process the values of both are a batch of single rows.
    let whole = Tile {
        shape: [1, CHANNELS, 1, 3400],
        values: (0..CHANNELS)
            .flat_map(|c| [tiles[0].channel(c), tiles[1].channel(c)].concat())
            .collect(),
        dtype: DType::F64,
    };
    let expected = on_ranks(std::slice::from_ref(&whole)).remove(0);
    let gradient = |of: &Seen, tile: &Tile| Tile {
        values: of.gradients[0].clone(),
        ..tile.clone()
    };
    for channel in 0..CHANNELS {
        let own = |rank: usize| gradient(&seen[rank], &tiles[rank]).channel(channel);
        check_near(
            &[own(0), own(1)].concat(),
            &gradient(&expected, &whole).channel(channel),
        );
    }
    // Gradients of parameters are summed over ranks.
    for parameter in [1, 2] {
        let sum = |channel: usize| {
            let shares = seen.iter().map(|rank| rank.gradients[parameter][channel]);
            shares.sum::<f64>()
        };
        let sums: Vec<f64> = (0..CHANNELS).map(sum).collect();
        check_near(&sums, &expected.gradients[parameter]);
    }
}

/// Statistics are those of the values as they are, whatever type these are in: it is no type of the statistics.
#[test]
fn b2_narrow_types_have_the_statistics_of_double_precision() {
    for (dtype, rounding) in [
        (DType::F32, 1e-6),
        (DType::F16, 2e-3),
        (DType::BF16, 1.6e-2),
    ] {
        let tiles = [Tile::new("a", 1, 30), Tile::new("b", 1, 50)].map(|tile| tile.of(dtype));
        let wide = tiles.clone().map(|tile| Tile {
            dtype: DType::F64,
            ..tile
        });
        let (seen, expected) = (on_ranks(&tiles), on_ranks(&wide));
        assert_eq!(seen[0].running, seen[1].running, "the same on both ranks");
        for (seen, expected) in seen.iter().zip(&expected) {
            let near = |got: &[f64], expected: &[f64], bound: f64| {
                for (got, expected) in got.iter().zip(expected) {
                    let far = (got - expected).abs();
                    assert!(
                        far <= bound * (1.0 + expected.abs()),
                        "{dtype:?}: {got} {expected}"
                    );
                }
            };
            near(&seen.running.mean, &expected.running.mean, 1e-6);
            near(&seen.running.variance, &expected.running.variance, 1e-6);
            near(&seen.output, &expected.output, 4.0 * rounding);
        }
    }
}

#[test]
fn a_rank_without_samples_changes_nothing() {
    let tiles = [Tile::new("a", 2, 5), Tile::new("b", 1, 7)];
    let expected = on_ranks(&tiles);
    for idle in 0..3 {
        let mut with_idle = tiles.to_vec();
        with_idle.insert(idle, Tile::new("idle", 0, 5));
        let mut seen = on_ranks(&with_idle);
        let rank = seen.remove(idle);
        assert_eq!(seen, expected);
        let zeros = vec![0.0; CHANNELS];
        let nothing = Seen {
            output: Vec::new(),
            gradients: [Vec::new(), zeros.clone(), zeros],
            running: expected[0].running.clone(),
        };
        assert_eq!(rank, nothing);
    }
}

#[test]
fn where_no_rank_has_a_sample_nothing_moves() {
    let seen = on_ranks(&[Tile::new("a", 0, 5), Tile::new("b", 0, 5)]);
    for rank in seen {
        let initial = Running {
            mean: vec![0.0; CHANNELS],
            variance: vec![1.0; CHANNELS],
        };
        assert_eq!(rank.running, initial);
        assert_eq!(rank.gradients[1], [0.0; CHANNELS]);
    }
}
