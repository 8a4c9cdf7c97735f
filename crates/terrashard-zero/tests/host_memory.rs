//! What is offloaded has to fit into host memory, or training does not start.

use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Shape, Tensor};
use terrashard_collectives::local;
use terrashard_layout::Stage;
use terrashard_zero::{Error, Initial, Offload, ZeroConfig, ZeroOptimizer};

#[derive(Module, Debug)]
struct Huge {
    weight: Param<Tensor<2>>,
}

#[test]
fn o1_too_little_host_memory_is_refused_with_both_numbers_before_anything_is_made() {
    let results = local::run(2, |communicator| -> Result<_, Error> {
        let shape = [1 << 21, 1 << 21];
        let never = move |_: &Device, _: bool| panic!("nothing is initialised");
        let weight = Param::uninitialized(
            ParamId::new(),
            never,
            Device::flex(),
            true,
            Shape::from(shape),
        );
        let config = ZeroConfig {
            stage: Stage::Three,
            offload: Offload::Optimizer,
            offload_fraction: 0.5,
            ..ZeroConfig::default()
        };
        let initial = |_: &str, _: &[usize]| panic!("no value is asked for");
        let communicator = Arc::new(communicator);
        let made = ZeroOptimizer::new(
            &Huge { weight },
            config,
            Initial::Keyed(&initial),
            communicator,
            &Device::flex(),
        );
        Ok(made.err())
    });
    for refused in results.unwrap() {
        let Some(Error::HostMemory { needed, available }) = refused else {
            panic!("{refused:?}")
        };
        // Half of the master weights and of two moments, in four bytes each; both ranks are on this host.
        assert_eq!(needed, 3 * 4 * (1 << 42) / 2);
        assert!(0 < available && available < needed);
        let text = Error::HostMemory { needed, available }.to_string();
        assert!(text.contains(&needed.to_string()) && text.contains(&available.to_string()));
    }
}
