//! The losses' kernels on a GPU, against double precision on the CPU and LibTorch's own derivatives.
//!
//! Prints a line for each check that failed and ends with 1 if one did. Needs a GPU.

use std::process::ExitCode;

use terrashard_tests::gpu_program::{median, on_a_gpu};
use terrashard_torch::tch::{Device, Kind, Tensor};
use terrashard_torch::{Error, LossAndSlope, MaskLoss, Numbers, l1_loss, mask_loss};

/// Samples, rows and columns of the small map, and the factor of enlargement.
const MAPS: [([i64; 3], i64); 6] = [
    ([1, 1, 1], 5),
    ([2, 7, 9], 5),
    ([3, 16, 33], 2),
    ([2, 40, 24], 1),
    ([1, 12, 5], 3),
    ([2, 128, 128], 10),
];

fn main() -> ExitCode {
    on_a_gpu("gpu_losses", run)
}

fn run() -> Result<usize, Error> {
    let (mut checks, mut failed) = (0, 0);
    for (kind, allowed) in [
        (Kind::Float, 1e-6),
        (Kind::BFloat16, 4e-3),
        (Kind::Half, 6e-4),
    ] {
        for (shape, factor) in MAPS {
            let masks = [0.0, 0.3, 1.0].map(|ignored| check_mask(kind, shape, factor, ignored));
            let images = [check_l1(kind, shape, factor)];
            for check in masks.into_iter().chain(images) {
                for (what, off) in check? {
                    checks += 1;
                    if off.is_nan() || off > allowed {
                        failed += 1;
                        println!("FAILED {kind:?} {shape:?} by {factor}: {what} is {off:.1e} off");
                    }
                }
            }
        }
    }
    println!("gpu_losses: {checks} checks, {failed} failed");
    time()?;
    Ok(failed)
}

type Found = Vec<(String, f64)>;

fn random(shape: &[i64], kind: Kind) -> Tensor {
    (Tensor::randn(shape, (Kind::Float, Device::Cuda(0))) * 2.0).to_kind(kind)
}

/// 0 and 1, and this share of 255.
fn labels(shape: &[i64], ignored: f64) -> Tensor {
    let draw = || Tensor::rand(shape, (Kind::Float, Device::Cuda(0)));
    let labels = draw().lt(0.4).to_kind(Kind::Uint8);
    // `lt(1)` of numbers below 1 is all of them.
    labels.masked_fill(&draw().lt(ignored), 255)
}

fn wide(tensor: &Tensor) -> Tensor {
    tensor.to_device(Device::Cpu).to_kind(Kind::Double)
}

/// A map by classes as pixels: `[n, c classes, h, w]` to `[n, c, factor h, factor w]`.
fn pixels(map: &Tensor, factor: i64) -> Tensor {
    let size = map.size();
    let (n, h, w, classes) = (size[0], size[2], size[3], factor.min(3));
    let channels = size[1] / (classes * classes);
    let kinds: Vec<i64> = (0..factor)
        .map(|pixel| match pixel {
            0 => 0,
            pixel if pixel < factor - 1 => 1,
            _ => classes - 1,
        })
        .collect();
    let kinds = Tensor::from_slice(&kinds);
    map.view([n, channels, classes, classes, h, w])
        .index_select(2, &kinds)
        .index_select(3, &kinds)
        .permute([0, 1, 4, 2, 5, 3])
        .reshape([n, channels, h * factor, w * factor])
}

/// How far a loss and its gradient are from those of `expected`, a function of the map by pixels.
fn compare(
    what: &str,
    map: &Tensor,
    factor: i64,
    got: Option<LossAndSlope>,
    expected: impl Fn(&Tensor) -> Tensor,
) -> Found {
    let Some(got) = got else {
        return vec![(format!("{what}, for which there is no kernel,"), f64::NAN)];
    };
    let leaf = wide(map).set_requires_grad(true);
    let value = expected(&pixels(&leaf, factor));
    value.backward();
    let off = |got: &Tensor, expected: &Tensor| {
        let difference = (wide(got) - expected).norm().double_value(&[]);
        difference / expected.norm().double_value(&[]).max(1e-9)
    };
    let mut found = vec![(
        format!("{what}'s value"),
        off(&got.value, &value.detach().view([1])),
    )];
    if let Some(slope) = &got.slope {
        found.push((format!("{what}'s gradient"), off(slope, &leaf.grad())));
    }
    found
}

fn check_mask(kind: Kind, [n, h, w]: [i64; 3], factor: i64, ignored: f64) -> Result<Found, Error> {
    let classes = factor.min(3);
    let map = random(&[n, classes * classes, h, w], kind);
    let mask = labels(&[n, h * factor, w * factor], ignored);
    let (positive, negative) = (wide(&mask.eq(1)), wide(&mask.eq(0)));
    let shape = [n, 1, h * factor, w * factor];
    let (positive, negative) = (positive.view(shape), negative.view(shape));
    let valid = &positive + &negative;
    let sum = |map: Tensor| map.sum(Kind::Double);

    let run = |loss, slopes| mask_loss(&map, &mask, factor, loss, slopes);
    let mut found = Vec::new();
    for gamma in [2.0, 1.5] {
        let got = run(MaskLoss::Focal { alpha: 0.75, gamma }, true)?;
        found.extend(compare("focal", &map, factor, got, |x| {
            let (p, q) = (x.sigmoid(), (-x).sigmoid());
            let up = q.pow_tensor_scalar(gamma) * x.log_sigmoid() * &positive * -0.75;
            let down = p.pow_tensor_scalar(gamma) * (-x).log_sigmoid() * &negative * -0.25;
            sum(up + down)
        }));
    }
    let got = run(MaskLoss::SoftBce { softening: 0.1 }, true)?;
    found.extend(compare("cross-entropy", &map, factor, got, |x| {
        let target = &positive * 0.9 + &negative * 0.1;
        let rest = &valid - &target;
        sum(-(x.log_sigmoid() * target) - (-x).log_sigmoid() * rest)
    }));
    // Both sums weighed by these are the function whose gradient is taken.
    let (of_positive, of_negative) = (-0.7, 0.2);
    let slope = run(
        MaskLoss::DiceSlope {
            of_negative,
            of_positive,
        },
        true,
    )?;
    let sums = run(MaskLoss::DiceSums, false)?;
    let got = sums.zip(slope).map(|(sums, slope)| LossAndSlope {
        value: (sums.value.get(0) * (of_positive - of_negative) + sums.value.get(1) * of_negative)
            .view([1]),
        slope: slope.slope,
    });
    found.extend(compare("dice", &map, factor, got, |x| {
        let weight = &positive * of_positive + &negative * of_negative;
        sum(x.sigmoid() * weight)
    }));
    Ok(found)
}

fn check_l1(kind: Kind, [n, h, w]: [i64; 3], factor: i64) -> Result<Found, Error> {
    let classes = factor.min(3);
    let map = random(&[n, 4 * classes * classes, h, w], kind);
    let shape = [n, 4, h * factor, w * factor];
    let target = random(&shape, Kind::Float);
    let missing = Tensor::rand(shape, (Kind::Float, Device::Cuda(0))).lt(0.2);
    let target = target.masked_fill(&missing, f64::NAN);
    let got = l1_loss(&map, &target, None, factor, true)?;
    let there = wide(&missing.logical_not());
    let known = wide(&target.nan_to_num(0.0, None, None));
    let mut found = compare("l1", &map, factor, got, |x| {
        ((x - &known).abs() * &there).sum(Kind::Double)
    });
    // Numbers over the whole range of 16 bits, and what they mean made by LibTorch.
    let bits = Tensor::randint_low(
        i64::from(i16::MIN),
        i64::from(i16::MAX) + 1,
        shape,
        (Kind::Int16, Device::Cuda(0)),
    );
    let numbers = Numbers {
        offset: -32_768.0,
        scale: 1e-4,
        missing: 65_535,
    };
    let bits = bits.masked_fill(&missing, -1);
    let whole = bits.to_kind(Kind::Int).bitwise_and(0xffff);
    let reflectance = (whole.to_kind(Kind::Float) - 32_768.0) * f64::from(numbers.scale);
    let reflectance = reflectance.masked_fill(&bits.eq(-1), f64::NAN);
    let got = l1_loss(&map, &bits, Some(numbers), factor, true)?;
    let same = l1_loss(&map, &reflectance, None, factor, true)?;
    let [Some(got), Some(same)] = [got, same] else {
        return Ok(vec![(
            "l1 of numbers, for which there is no kernel,".into(),
            f64::NAN,
        )]);
    };
    let off = |a: &Tensor, b: &Tensor| (wide(a) - wide(b)).abs().max().double_value(&[]);
    found.push((
        "l1 of numbers, beside what they mean,".into(),
        off(&got.value, &same.value),
    ));
    if let (Some(got), Some(same)) = (&got.slope, &same.slope) {
        found.push(("l1 of numbers' gradient".into(), off(got, same)));
    }
    Ok(found)
}

fn time() -> Result<(), Error> {
    let (n, h, w, factor) = (8, 512, 512, 5);
    let map = random(&[n, 9, h, w], Kind::BFloat16);
    let image = random(&[n, 36, h, w], Kind::BFloat16);
    let mask = labels(&[n, h * factor, w * factor], 0.1);
    let target = random(&[n, 4, h * factor, w * factor], Kind::Float);
    let loss = MaskLoss::Focal {
        alpha: 0.75,
        gamma: 2.0,
    };
    let focal = median(|| mask_loss(&map, &mask, factor, loss, true).map(drop))?;
    let l1 = median(|| l1_loss(&image, &target, None, factor, true).map(drop))?;
    let bits = Tensor::zeros(target.size(), (Kind::Int16, Device::Cuda(0)));
    let numbers = Numbers {
        offset: 0.0,
        scale: 1e-4,
        missing: 0,
    };
    let of_numbers = median(|| l1_loss(&image, &bits, Some(numbers), factor, true).map(drop))?;
    // Read once, and gradients written.
    let gigabytes = (target.numel() * 4 + image.numel() * 4) as f64 / 1e9;
    println!(
        "8 x 512 x 512 by 5, bf16: focal {focal:.3} ms; l1 {l1:.3} ms, {:.0} GB/s; of numbers {of_numbers:.3} ms",
        gigabytes / l1 * 1e3
    );
    Ok(())
}
