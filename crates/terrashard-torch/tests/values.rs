//! LibTorch on the CPU against values computed by hand, and its exceptions as errors.

use terrashard_torch::tch::{Device, Kind, Tensor};
use terrashard_torch::{
    AdamW, Attention, Error, HostBuffer, MaskLoss, Memory, Pieces, Upload, conv2d_backward,
    is_deterministic, l1_loss, layer_norm_backward, mask_loss, set_deterministic, sums_of_squares,
    version,
};

fn tensor(values: &[f64], shape: &[i64]) -> Tensor {
    Tensor::from_slice(values).reshape(shape)
}

fn values(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.to_kind(Kind::Double).contiguous().reshape([-1]);
    Vec::try_from(&flat).expect("flat and f64")
}

fn check(got: &Tensor, expected: &[f64]) {
    let got = values(got);
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-7, "{got} not {expected}");
    }
}

#[test]
fn convolution() {
    let x = tensor(&[1., 2., 3., 4., 5., 6., 7., 8., 9.], &[1, 1, 3, 3]);
    let weight = tensor(&[1., 2., 3., 4.], &[1, 1, 2, 2]);
    let gradient = tensor(&[1.; 4], &[1, 1, 2, 2]);
    let [gx, gw, gb] =
        conv2d_backward(&gradient, &x, &weight, [1, 0, 1], [true; 3]).expect("shapes fit");
    check(&gx.expect("wanted"), &[1., 3., 2., 4., 10., 6., 3., 7., 4.]);
    check(&gw.expect("wanted"), &[12., 16., 24., 28.]);
    check(&gb.expect("wanted"), &[4.]);

    let [gx, gw, gb] = conv2d_backward(&gradient, &x, &weight, [1, 0, 1], [false, true, false])
        .expect("shapes fit");
    assert!(gx.is_none() && gb.is_none(), "nobody wants them");
    check(&gw.expect("wanted"), &[12., 16., 24., 28.]);
}

#[test]
fn layer_normalisation() {
    let x = tensor(&[1., 2., 3.], &[1, 3]);
    let weight = tensor(&[1.; 3], &[3]);
    let gradient = tensor(&[1., 0., 0.], &[1, 3]);
    let r = 1.5f64.sqrt();
    let (mean, inverse) = (tensor(&[2.], &[1, 1]), tensor(&[r], &[1, 1]));
    let [gx, gw, gb] =
        layer_norm_backward(&gradient, &x, [&mean, &inverse], &weight, [true; 3]).expect("fits");
    check(&gx.expect("wanted"), &[r / 6., -r / 3., r / 6.]);
    check(&gw.expect("wanted"), &[-r, 0., 0.]);
    check(&gb.expect("wanted"), &[1., 0., 0.]);
}

#[test]
fn attention() {
    // A query that is nought attends to both keys alike.
    let q = tensor(&[0., 0.], &[1, 1, 1, 2]);
    let k = tensor(&[0., 0., 1., 0.], &[1, 1, 2, 2]);
    let v = tensor(&[1., 0., 3., 0.], &[1, 1, 2, 2]);
    let attention = Attention::forward(&q, &k, &v, 1.0).expect("shapes fit");
    check(attention.output(), &[2., 0.]);
    let gradient = tensor(&[1., 0.], &[1, 1, 1, 2]);
    let [gq, gk, gv] = attention
        .backward(&gradient, &q, &k, &v)
        .expect("shapes fit");
    check(&gq, &[0.5, 0.]);
    check(&gk, &[0.; 4]);
    check(&gv, &[0.5, 0., 0.5, 0.]);
}

#[test]
fn two_steps_of_adamw() {
    let settings = AdamW {
        lr: 0.1,
        betas: [0.9, 0.999],
        epsilon: 1e-12,
        weight_decay: 0.1,
        gradient_factor: 0.25,
    };
    let mut parameter = tensor(&[1.], &[1]);
    let (mut momentum, mut variance) = (tensor(&[0.], &[1]), tensor(&[0.], &[1]));
    for (step, gradient, expected) in [(1, 2.0, 0.89), (2, -2.0, 0.886_363_157_9)] {
        let mut gradient = tensor(&[gradient], &[1]);
        settings
            .step(
                step,
                &mut parameter,
                &mut gradient,
                [&mut momentum, &mut variance],
                None,
            )
            .expect("all alike");
        check(&parameter, &[expected]);
    }
    check(&momentum, &[-0.005]);
    check(&variance, &[0.000_499_75]);
}

#[test]
fn what_is_thrown_is_an_error_with_its_text() {
    let of = |shape: &[i64]| Tensor::ones(shape, (Kind::Float, Device::Cpu));
    let error = conv2d_backward(
        &of(&[1, 1, 3, 3]),
        &of(&[1, 2, 3, 3]),
        &of(&[1, 1, 3, 3]),
        [1, 1, 1],
        [true; 3],
    )
    .expect_err("two channels into one");
    let message = error.to_string();
    assert!(
        message.starts_with("libtorch cannot do convolution's backward: "),
        "{message}"
    );
    let Error::Exception { text, .. } = error else {
        panic!("not an exception: {message}");
    };
    assert!(text.contains("channels"), "{text}");
    assert!(!text.contains("Exception raised from"), "{text}");

    let (q, k) = (of(&[1, 1, 4, 8]), of(&[1, 1, 4, 4]));
    assert!(Attention::forward(&q, &k, &k, 1.0).is_err());
    let kept = Attention::forward(&q, &q, &q, 1.0).expect("shapes fit");
    assert!(kept.backward(&of(&[1, 1, 4, 9]), &q, &k, &k).is_err());
}

#[test]
fn nothing_is_recorded() {
    let x = Tensor::ones([1, 1, 4, 4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let weight = Tensor::ones([1, 1, 3, 3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let results = conv2d_backward(&x, &x, &weight, [1, 1, 1], [true; 3]).expect("shapes fit");
    assert!(
        results
            .iter()
            .flatten()
            .all(|result| !result.requires_grad())
    );
}

#[test]
fn determinism_is_switched() {
    assert!(!is_deterministic());
    set_deterministic(true).expect("a flag");
    assert!(is_deterministic());
    set_deterministic(false).expect("a flag");
    assert!(!is_deterministic());
}

#[test]
fn memory_is_counted_where_there_is_a_gpu() {
    match Memory::of(0) {
        Ok(memory) => {
            assert!(memory.allocated <= memory.allocated_peak);
            assert!(memory.allocated <= memory.reserved && memory.reserved <= memory.reserved_peak);
            Memory::reset_peak(0).expect("there is one");
        }
        Err(error) => assert!(
            error
                .to_string()
                .starts_with("libtorch cannot do the count of the device's memory: "),
            "{error}"
        ),
    }
}

#[test]
fn the_version_is_the_pinned_one() {
    assert!(version().starts_with("2.11."), "{}", version());
}

/// Two rows; the second tensor fills one piece and a half, the third is not there.
fn pieces() -> Pieces {
    Pieces {
        rows: 2,
        columns: 6,
        offsets: vec![0, 2, 4],
        lengths: vec![2, 2, 2],
    }
}

#[test]
fn tensors_go_into_a_buffer_and_come_back() {
    let turned = tensor(&[1., 3., 2., 4.], &[2, 2]).transpose(0, 1);
    let short = tensor(&[5., 6., 7.], &[3]).to_kind(Kind::BFloat16);
    let mut buffer = Tensor::full([12], 9., (Kind::Float, Device::Cpu));
    let tensors = [Some(&turned), Some(&short), None];
    pieces().pack(&tensors, &mut buffer).expect("they fit");
    check(&buffer, &[1., 2., 5., 6., 0., 0., 3., 4., 7., 0., 0., 0.]);

    let zeros = |n, kind| Tensor::zeros([n], (kind, Device::Cpu));
    let mut back = [
        zeros(4, Kind::BFloat16),
        zeros(3, Kind::Double),
        zeros(1, Kind::Float),
    ];
    pieces().unpack(&buffer, &mut back).expect("they fit");
    check(&back[0], &[1., 2., 3., 4.]);
    check(&back[1], &[5., 6., 7.]);
    check(&back[2], &[0.]);
}

#[test]
fn pieces_that_do_not_fit_are_errors() {
    let refused = |pieces: &Pieces, tensors: &[Option<&Tensor>], len: i64| {
        let mut buffer = Tensor::zeros([len], (Kind::Float, Device::Cpu));
        let refused = pieces
            .pack(tensors, &mut buffer)
            .expect_err("it does not fit");
        assert!(values(&buffer).iter().all(|value| *value == 0.0));
        refused.to_string()
    };
    let long = tensor(&[1.; 5], &[5]);
    assert!(refused(&pieces(), &[Some(&long), None, None], 12).contains("more elements"));
    assert!(refused(&pieces(), &[None, None, None], 11).contains("2 rows of 6"));
    assert!(refused(&pieces(), &[None], 12).contains("1 tensors"));
    let beyond = Pieces {
        offsets: vec![0, 2, 5],
        ..pieces()
    };
    assert!(refused(&beyond, &[None, None, None], 12).contains("piece 2 is not in a row"));
}

#[test]
fn squares_are_added_up_in_wide_types() {
    let single = tensor(&[3., 4.], &[2]).to_kind(Kind::Float);
    // Beyond what 8 bits of fraction hold: 1 + 300 * 2^-8.
    let half = Tensor::full([301], 0.0625, (Kind::BFloat16, Device::Cpu));
    check(
        &sums_of_squares(&[&single, &single]).expect("alike"),
        &[25., 25.],
    );
    let halves = values(&sums_of_squares(&[&half]).expect("one"));
    assert!((halves[0] - 301. / 256.).abs() < 1e-6, "{halves:?}");
}

#[test]
fn shifted_copies() {
    // One map of 2 x 3 pixels.
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).view([1, 1, 2, 3]);
    let copies = terrashard_torch::columns(&x).unwrap();
    assert_eq!(copies.size(), [1, 9, 6]);
    let row = |tap: i64| Vec::<f32>::try_from(copies.get(0).get(tap)).unwrap();
    // The upper left neighbour of each pixel, the pixel itself, its right neighbour.
    assert_eq!(row(0), [0.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
    assert_eq!(row(4), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(row(5), [2.0, 3.0, 0.0, 5.0, 6.0, 0.0]);

    // Each pixel comes back as often as it was copied: 4 times in a corner, 6 times between two.
    let sum = terrashard_torch::columns_backward(&copies, [2, 3]).unwrap();
    let sum = Vec::<f32>::try_from(sum.view([6])).unwrap();
    assert_eq!(sum, [4.0, 12.0, 12.0, 16.0, 30.0, 24.0]);

    let wrong = terrashard_torch::columns_backward(&copies, [2, 2]).unwrap_err();
    assert!(
        matches!(
            wrong,
            Error::Count {
                expected: 4,
                got: 6,
                ..
            }
        ),
        "{wrong}"
    );
    let wrong = terrashard_torch::columns(&x.get(0)).unwrap_err();
    assert!(
        matches!(
            wrong,
            Error::Count {
                expected: 4,
                got: 3,
                ..
            }
        ),
        "{wrong}"
    );
}

#[test]
fn enlargement_by_two() {
    let x = Tensor::from_slice(&[1.0f32, 3.0]).view([1, 1, 1, 2]);
    let large = terrashard_torch::resize_bilinear(&x, [1, 4]).unwrap();
    // A quarter of the way between the two, and the ends as they are.
    assert_eq!(
        Vec::<f32>::try_from(large.view([4])).unwrap(),
        [1.0, 1.5, 2.5, 3.0]
    );

    let gradient = Tensor::from_slice(&[1.0f32, 0.0, 4.0, 0.0]).view([1, 1, 1, 4]);
    let small = terrashard_torch::resize_bilinear_backward(&gradient, [1, 2]).unwrap();
    // The third pixel is a quarter of the first and three of the second.
    assert_eq!(Vec::<f32>::try_from(small.view([2])).unwrap(), [2.0, 3.0]);

    let wrong = terrashard_torch::resize_bilinear(&x.get(0), [1, 4]).unwrap_err();
    assert!(
        matches!(
            wrong,
            Error::Count {
                expected: 4,
                got: 3,
                ..
            }
        ),
        "{wrong}"
    );
}

#[test]
fn a_buffer_of_the_host_takes_and_gives_elements() {
    let from = tensor(&[1., -2., 3.], &[3]).to_kind(Kind::Float);
    let mut buffer = HostBuffer::new(12).expect("twelve bytes");
    buffer.read(&from).expect("as many bytes");
    let bytes = buffer.bytes().expect("nothing is under way");
    assert_eq!(bytes[4..8], (-2f32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&5f32.to_ne_bytes());
    let mut to = tensor(&[0.; 3], &[3]).to_kind(Kind::Float);
    buffer.write(&mut to).expect("as many bytes");
    check(&to, &[1., 5., 3.]);
    let other = tensor(&[1.; 3], &[3]);
    let message = buffer.read(&other).expect_err("24 bytes").to_string();
    assert!(
        message.contains("a buffer of 12 bytes does not hold 3 elements"),
        "{message}"
    );
    assert!(
        HostBuffer::new(0)
            .expect("none")
            .bytes()
            .expect("none")
            .is_empty()
    );
}

#[test]
fn losses_on_a_processor_are_left_to_the_caller() {
    let (map, mask) = (tensor(&[0.5; 9], &[1, 9, 1, 1]), [1u8; 25]);
    let labels = Tensor::from_slice(&mask).view([1, 5, 5]);
    let loss = MaskLoss::SoftBce { softening: 0.1 };
    assert!(matches!(mask_loss(&map, &labels, 5, loss, true), Ok(None)));
    let image = tensor(&[0.5; 25], &[1, 1, 5, 5]);
    assert!(matches!(l1_loss(&map, &image, None, 5, true), Ok(None)));
    // What does not cover the same pixels is found anywhere.
    for wrong in [
        mask_loss(&map, &labels, 4, loss, true),
        mask_loss(&map, &labels.view([25]), 5, loss, true),
        mask_loss(&tensor(&[0.5; 4], &[1, 4, 1, 1]), &labels, 5, loss, true),
        l1_loss(&map, &image, None, 2, true),
        l1_loss(&map.view([9]), &image, None, 5, true),
    ] {
        assert!(matches!(wrong, Err(Error::Count { .. })), "{wrong:?}");
    }
}

#[test]
fn what_is_uploaded_arrives() {
    let mut buffer = HostBuffer::new(12).expect("memory");
    let bytes: Vec<u8> = [1.5_f32, -2.0, 3.25]
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    buffer.bytes().expect("no copy").copy_from_slice(&bytes);
    let upload = Upload::begin(buffer, &[3, 1], Kind::Float, Device::Cpu).expect("as many bytes");
    let tensor = upload.arrive().expect("a tensor");
    assert_eq!(
        (tensor.size(), values(&tensor)),
        (vec![3, 1], vec![1.5, -2.0, 3.25])
    );
    let short = HostBuffer::new(8).expect("memory");
    assert!(Upload::begin(short, &[3], Kind::Float, Device::Cpu).is_err());
}

/// The elements of a transposed tensor are read in its own order, which takes a copy; others stay where they are.
#[test]
fn another_shape_of_the_same_elements() {
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).view([2, 3]);
    let values = |x: &Tensor| Vec::<f32>::try_from(x.flatten(0, -1)).unwrap();
    let reshaped = |x: &Tensor, shape: &[usize]| {
        let reshaped =
            terrashard_torch::reshaped(&terrashard_torch::outer(x.shallow_clone()), shape);
        reshaped.map(|reshaped| terrashard_torch::inner(&reshaped).shallow_clone())
    };
    let part = x.narrow(0, 1, 1);
    let same = reshaped(&part, &[3, 1, 1]).unwrap();
    assert_eq!(
        (same.size(), values(&same)),
        (vec![3, 1, 1], vec![4.0, 5.0, 6.0])
    );
    assert_eq!(same.data_ptr(), part.data_ptr());

    let turned = reshaped(&x.tr(), &[6]).unwrap();
    assert_eq!(values(&turned), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);

    let wrong = reshaped(&x, &[4]).unwrap_err();
    assert!(
        wrong.to_string().contains("[2, 3] cannot be one of [4]"),
        "{wrong}"
    );
}
