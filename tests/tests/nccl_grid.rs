//! What `nccl_stages` does on GPUs holds on LibTorch's CPU part with ranks that are threads.

use std::sync::Arc;

use terrashard_collectives::{Communicator, local};
use terrashard_tests::backend::Backend;
use terrashard_tests::gpu_ranks::Checks;
use terrashard_tests::stage_grid;

#[test]
fn the_grid_holds_on_threads() {
    let device = Backend::Tch.device();
    let cells = stage_grid::cells(2, 20, &device);
    assert_eq!(cells.len(), 4 * 4 + 3 + 1);
    let told = local::run(2, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let alone = communicator.split(communicator.rank())?;
        let mut checks = Checks::new("stages", communicator.rank() == 0);
        stage_grid::run(&mut checks, &communicator, &alone, &cells);
        checks.summary()
    });
    assert!(told.is_ok(), "{}", told.expect_err("not ok"));
}
