//! Attention of many queries on few keys, as in a Mix Transformer's first stage, and what it costs.

#[cfg(feature = "tch")]
fn main() -> terrashard_torch::Result<()> {
    use std::time::Instant;
    use terrashard_torch::tch::{Device, Kind, Tensor};
    use terrashard_torch::{Attention, version};

    println!("LibTorch {}", version());
    let random = |rows: i64| Tensor::randn([1, 1, rows, 32], (Kind::Float, Device::Cpu));
    let (q, k, v) = (random(4096), random(64), random(64));
    let started = Instant::now();
    let attention = Attention::forward(&q, &k, &v, 32f64.powf(-0.5))?;
    let gradients = attention.backward(attention.output(), &q, &k, &v)?;
    println!(
        "result {:?}, gradients {:?}, {:?}",
        attention.output().size(),
        gradients.map(|gradient| gradient.size()),
        started.elapsed()
    );

    // What LibTorch throws is an error like any other.
    if let Err(error) = Attention::forward(&q, &k.transpose(2, 3), &v, 1.0) {
        println!("{error}");
    }
    Ok(())
}

#[cfg(not(feature = "tch"))]
fn main() {
    println!("built without the feature `tch`; `cargo xtask libtorch` sets LibTorch up");
}
