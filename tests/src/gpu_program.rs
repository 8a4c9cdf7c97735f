//! Programs that check and time kernels on a GPU.

use std::process::ExitCode;
use std::time::Instant;

use terrashard_torch::tch::Cuda;
use terrashard_torch::{Error, load_cuda};

/// Runs the checks of the program `name`, which return how many failed, where there is a GPU.
pub fn on_a_gpu(name: &str, checks: impl FnOnce() -> Result<usize, Error>) -> ExitCode {
    if let Err(error) = load_cuda() {
        eprintln!("{name}: {error}");
        return ExitCode::FAILURE;
    }
    if Cuda::device_count() == 0 {
        eprintln!("{name}: no gpu");
        return ExitCode::FAILURE;
    }
    match checks() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Milliseconds of one call: the median of twenty times ten.
///
/// # Errors
/// That of the call.
pub fn median(mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    call()?;
    let mut times = Vec::new();
    for _ in 0..20 {
        Cuda::synchronize(0);
        let start = Instant::now();
        for _ in 0..10 {
            call()?;
        }
        Cuda::synchronize(0);
        times.push(start.elapsed().as_secs_f64() * 1e2);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[10])
}
