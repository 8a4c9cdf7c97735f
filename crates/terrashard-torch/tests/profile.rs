//! A profile counts what was done while it was taken.

use terrashard_torch::Profile;
use terrashard_torch::tch::{Device, Kind, Tensor};

#[test]
fn operations_are_counted_by_name() {
    let a = Tensor::ones([32, 32], (Kind::Float, Device::Cpu));
    let _before = a.mm(&a);
    let profile = Profile::start(false).unwrap();
    for _ in 0..3 {
        let _product = a.mm(&a);
    }
    let rows = profile.finish().unwrap();
    let product = rows.iter().find(|row| row.name == "aten::mm").unwrap();
    assert_eq!((product.calls, product.on_device), (3, false));
    assert!(
        product.seconds > 0.0 && product.seconds < 60.0,
        "{product:?}"
    );

    // Another one begins at nought.
    let profile = Profile::start(false).unwrap();
    let _sum = a.sum(Kind::Float);
    let rows = profile.finish().unwrap();
    assert!(rows.iter().any(|row| row.name == "aten::sum"), "{rows:?}");
    assert!(rows.iter().all(|row| row.name != "aten::mm"), "{rows:?}");
}
