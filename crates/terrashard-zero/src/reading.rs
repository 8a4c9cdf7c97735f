//! Numbers back from the device.

use burn::tensor::Tensor;

use crate::error::{Error, Result};

/// A tensor's values as doubles.
pub(crate) fn read_f64(tensor: Tensor<1>) -> Result<Vec<f64>> {
    let data = tensor.try_into_data_as::<f64>();
    let data = data.map_err(|error| Error::Device {
        reason: error.to_string(),
    })?;
    data.try_to_vec::<f64>().map_err(|error| Error::Device {
        reason: format!("{error:?}"),
    })
}
