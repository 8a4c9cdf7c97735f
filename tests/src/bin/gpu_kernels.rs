//! Kernels of our own on a GPU, against double precision on the CPU and against the time of LibTorch's.
//!
//! Prints a line for each check and ends with 1 if one failed. Needs a GPU.

use std::process::ExitCode;

use terrashard_tests::gpu_program::{median, on_a_gpu};
use terrashard_torch::tch::{Device, Kind, Tensor};
use terrashard_torch::{
    Error, columns, columns_backward, layer_norm, layer_norm_backward, resize_bilinear,
    resize_bilinear_backward,
};

const EPSILON: f64 = 1e-6;

/// Lengths of rows: of the models, and some that LibTorch's kernels have to take.
const COLUMNS: [i64; 13] = [
    8, 24, 32, 64, 100, 128, 160, 256, 320, 512, 1024, 1536, 2048,
];

const ROWS: [i64; 4] = [1, 7, 1000, 24_579];

/// Shapes of the models' largest normalisations.
const TIMED: [[i64; 2]; 5] = [
    [393_216, 64],
    [98_304, 128],
    [24_576, 320],
    [6_144, 512],
    [12_288, 1024],
];

fn main() -> ExitCode {
    on_a_gpu("gpu_kernels", run)
}

fn run() -> Result<usize, Error> {
    let (mut checks, mut failed) = (0, 0);
    for (kind, allowed) in [
        (Kind::Float, 1e-5),
        (Kind::BFloat16, 4e-3),
        (Kind::Half, 6e-4),
    ] {
        for columns in COLUMNS {
            for rows in ROWS {
                let (what, worst) = check(kind, rows, columns)?;
                checks += 1;
                if worst.is_nan() || worst > allowed {
                    failed += 1;
                    println!("FAILED {kind:?} {rows} x {columns}: {what} is {worst:.1e} off");
                }
            }
        }
    }
    for (kind, allowed) in [
        (Kind::Float, 1e-6),
        (Kind::BFloat16, 4e-3),
        (Kind::Half, 6e-4),
    ] {
        for shape in MAPS {
            let worst = check_columns(kind, shape)?;
            checks += 1;
            if worst.is_nan() || worst > allowed {
                failed += 1;
                println!("FAILED columns of {kind:?} {shape:?}: {worst:.1e} off");
            }
        }
    }
    // LibTorch rounds more than once.
    for (kind, allowed) in [
        (Kind::Float, 1e-6),
        (Kind::BFloat16, 8e-3),
        (Kind::Half, 1e-3),
    ] {
        for (shape, to) in RESIZED {
            let worst = check_resize(kind, shape, to)?;
            checks += 1;
            if worst.is_nan() || worst > allowed {
                failed += 1;
                println!("FAILED {kind:?} {shape:?} resized to {to:?}: {worst:.1e} off");
            }
        }
    }
    println!("gpu_kernels: {checks} checks, {failed} failed");
    time_columns()?;
    time_resize()?;
    for [rows, columns] in TIMED {
        for kind in [Kind::BFloat16, Kind::Float] {
            time(kind, rows, columns)?;
        }
    }
    Ok(failed)
}

/// Of which some have rows that LibTorch's kernels have to take.
const MAPS: [[i64; 4]; 6] = [
    [1, 1, 1, 8],
    [2, 3, 5, 16],
    [1, 8, 128, 128],
    [3, 2, 7, 24],
    [2, 2, 9, 13],
    [1, 4, 3, 4],
];

/// The relative error of copies, which have to be exact, or of their sum.
fn check_columns(kind: Kind, [n, c, h, w]: [i64; 4]) -> Result<f64, Error> {
    let x = random(n * c * h, w, kind).view([n, c, h, w]);
    let copies = columns(&x)?;
    let wide = |tensor: &Tensor| tensor.to_device(Device::Cpu).to_kind(Kind::Double);
    let one = [1, 1];
    let expected = wide(&x).im2col([3, 3], one, one, one);
    if !wide(&copies).equal(&expected) {
        return Ok(f64::INFINITY);
    }
    let gradient = random(n * c * 9 * h, w, kind).view([n, c * 9, h * w]);
    let sum = columns_backward(&gradient, [h, w])?;
    let expected = wide(&gradient).col2im([h, w], [3, 3], one, one, one);
    let norm = expected.norm().double_value(&[]);
    Ok((wide(&sum) - expected).norm().double_value(&[]) / norm)
}

fn time_columns() -> Result<(), Error> {
    let x = random(8 * 512, 512, Kind::BFloat16).view([1, 8, 512, 512]);
    let copies = columns(&x)?;
    let one = [1, 1];
    let forward = median(|| columns(&x).map(drop))?;
    let backward = median(|| columns_backward(&copies, [512, 512]).map(drop))?;
    let theirs = median(|| {
        let _copies = x.im2col([3, 3], one, one, one);
        Ok(())
    })?;
    let their_sum = median(|| {
        let _sum = copies.col2im([512, 512], [3, 3], one, one, one);
        Ok(())
    })?;
    println!(
        "shifted copies of 8 x 512 x 512: {forward:.3} ms, libtorch's {theirs:.3}; their sum {backward:.3} ms, libtorch's {their_sum:.3}"
    );
    Ok(())
}

/// Maps and the sizes that they are resized to; some are left to LibTorch's kernels.
const RESIZED: [([i64; 4], [i64; 2]); 7] = [
    ([1, 8, 1, 1], [1, 4]),
    ([2, 16, 4, 4], [8, 8]),
    ([1, 256, 16, 16], [128, 128]),
    ([2, 24, 5, 7], [20, 28]),
    ([1, 8, 3, 5], [7, 11]),
    ([1, 8, 6, 6], [3, 3]),
    ([2, 5, 4, 4], [8, 8]),
];

/// Maps whose channels lie side by side.
fn maps([n, c, h, w]: [i64; 4], kind: Kind) -> Tensor {
    random(n * h * w, c, kind)
        .view([n, h, w, c])
        .permute([0, 3, 1, 2])
}

/// The larger relative error of the result and of the gradient.
fn check_resize(kind: Kind, shape: [i64; 4], to: [i64; 2]) -> Result<f64, Error> {
    let [n, c, h, w] = shape;
    let wide = |tensor: &Tensor| tensor.to_device(Device::Cpu).to_kind(Kind::Double);
    let off = |got: &Tensor, expected: &Tensor| {
        (wide(got) - expected).norm().double_value(&[]) / expected.norm().double_value(&[])
    };
    let x = maps(shape, kind);
    let expected = wide(&x).upsample_bilinear2d(to, false, None, None);
    let first = off(&resize_bilinear(&x, to)?, &expected);
    let gradient = maps([n, c, to[0], to[1]], kind);
    let size = [n, c, h, w];
    let expected =
        Tensor::upsample_bilinear2d_backward(&wide(&gradient), to, size, false, None, None);
    let second = off(&resize_bilinear_backward(&gradient, [h, w])?, &expected);
    Ok(if first.is_nan() || first > second {
        first
    } else {
        second
    })
}

fn time_resize() -> Result<(), Error> {
    let (small, large) = ([8, 256, 16, 16], [128, 128]);
    let x = maps(small, Kind::BFloat16);
    let gradient = maps([8, 256, 128, 128], Kind::BFloat16);
    let forward = median(|| resize_bilinear(&x, large).map(drop))?;
    let backward = median(|| resize_bilinear_backward(&gradient, [16, 16]).map(drop))?;
    let theirs = median(|| {
        let _large = x.upsample_bilinear2d(large, false, None, None);
        Ok(())
    })?;
    let their_backward = median(|| {
        let _small =
            Tensor::upsample_bilinear2d_backward(&gradient, large, small, false, None, None);
        Ok(())
    })?;
    println!(
        "8 x 256 maps of 16 px to 128: {forward:.3} ms, libtorch's {theirs:.3}; backward {backward:.3} ms, libtorch's {their_backward:.3}"
    );
    Ok(())
}

fn random(rows: i64, columns: i64, kind: Kind) -> Tensor {
    let like = (Kind::Float, Device::Cuda(0));
    (Tensor::randn([rows, columns], like) * 1.5 + 0.5).to_kind(kind)
}

/// The name and the relative error of what is furthest off.
fn check(kind: Kind, rows: i64, columns: i64) -> Result<(&'static str, f64), Error> {
    let x = random(rows, columns, kind);
    let gradient = random(rows, columns, kind);
    let [weight, bias] = [(); 2].map(|()| random(1, columns, kind).view([columns]));
    let [y, mean, inverse] = layer_norm(&x, &weight, &bias, EPSILON)?;
    let [gx, gw, gb] = layer_norm_backward(&gradient, &x, [&mean, &inverse], &weight, [true; 3])?;

    let wide = |tensor: &Tensor| tensor.to_device(Device::Cpu).to_kind(Kind::Double);
    let [x, gradient, weight, bias] = [&x, &gradient, &weight, &bias].map(wide);
    let over = |tensor: &Tensor| tensor.mean_dim([1].as_slice(), true, Kind::Double);
    let centred = &x - over(&x);
    let deviation = (over(&centred.square()) + EPSILON).rsqrt();
    let normal = centred * &deviation;
    let expected = &normal * &weight + &bias;
    let weighted = &gradient * &weight;
    let expected_gx =
        (&weighted - over(&weighted) - &normal * over(&(&weighted * &normal))) * &deviation;
    let sum = |tensor: Tensor| tensor.sum_dim_intlist([0].as_slice(), false, Kind::Double);
    let off = |got: &Tensor, expected: &Tensor| {
        let difference = (wide(got) - expected).norm().double_value(&[]);
        difference / expected.norm().double_value(&[]).max(1e-30)
    };
    let missing = Tensor::from_slice(&[f64::NAN]);
    let gradients = [gx, gw, gb].map(|it| it.unwrap_or_else(|| missing.shallow_clone()));
    let pairs = [
        ("the result", off(&y, &expected)),
        ("the gradient of x", off(&gradients[0], &expected_gx)),
        (
            "the weight's gradient",
            off(&gradients[1], &sum(&gradient * &normal)),
        ),
        ("the bias's gradient", off(&gradients[2], &sum(gradient))),
    ];
    let worse = |a: (&'static str, f64), b: (&'static str, f64)| match b.1.is_nan() || b.1 > a.1 {
        true => b,
        false => a,
    };
    Ok(pairs.into_iter().fold(("nothing", 0.0), worse))
}

/// Prints milliseconds of ours and of LibTorch's.
fn time(kind: Kind, rows: i64, columns: i64) -> Result<(), Error> {
    let (x, gradient) = (random(rows, columns, kind), random(rows, columns, kind));
    let [weight, bias] = [(); 2].map(|()| random(1, columns, kind).view([columns]));
    let [_, mean, inverse] = layer_norm(&x, &weight, &bias, EPSILON)?;
    let forward = median(|| layer_norm(&x, &weight, &bias, EPSILON).map(drop))?;
    let backward = median(|| {
        layer_norm_backward(&gradient, &x, [&mean, &inverse], &weight, [true; 3]).map(drop)
    })?;
    let theirs = median(|| {
        let _all = x.native_layer_norm([columns], Some(&weight), Some(&bias), EPSILON);
        Ok(())
    })?;
    println!(
        "{kind:?} {rows} x {columns}: forward {forward:.3} ms, libtorch's {theirs:.3}; backward {backward:.3} ms"
    );
    Ok(())
}
