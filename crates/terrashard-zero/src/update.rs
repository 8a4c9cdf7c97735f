//! The optimizer's states of one bucket, on the device and in host memory, and their update.
//!
//! Offloaded states are updated in host memory. On a device that is host memory itself, everything is: the tensors'
//! buffers are taken, updated in place and given back, so that offloading changes where the states are and not a bit
//! of the result.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use terrashard_layout::{Bucket, Residence, Row, ShardTable};

use crate::config::{Offload, Optimizer, ZeroConfig};
use crate::error::Result;
use crate::packing::{join, zeros};
use crate::parameters::dtype;
use crate::policy::Policy;
use crate::rule::{Part, Update, host_copy, host_zeros};
use crate::state::StateKind;
use crate::values::Resident;

/// The states of one bucket in the stage's extent: elements `..split` in host memory, the others on the device.
#[derive(Debug)]
pub(crate) struct BucketStates {
    split: usize,
    len: usize,
    host: Part<TensorData>,
    on_device: Part<Tensor<1>>,
    device: Device,
}

impl BucketStates {
    /// States of zeros for `bucket`; [`Self::set_masters`] comes before the first update.
    pub(crate) fn zeros(
        table: &ShardTable,
        bucket: &Bucket,
        config: &ZeroConfig,
        device: &Device,
    ) -> Self {
        let len = Policy::of(config.stage)
            .extent
            .elements(bucket, table.ranks());
        let split = offloaded(len, config);
        let element = dtype(config.precision.master());
        let host = |len| host_zeros(len, element);
        let tensor = |len| zeros(len, device, element);
        let mut states = Self {
            split,
            len,
            host: part(config, split, config.offload == Offload::Optimizer, host),
            on_device: part(config, len - split, false, tensor),
            device: device.clone(),
        };
        // Master weights are set before they are used: zeros in their place would be there twice for a moment.
        states.host.master = states.host.master.map(|_| host(0));
        states.on_device.master = states.on_device.master.map(|_| tensor(0));
        states
    }

    /// Whether some of the master weights are not the parameters themselves.
    pub(crate) fn has_masters(&self) -> bool {
        self.host.master.is_some() || self.on_device.master.is_some()
    }

    /// Whether all master weights are separate from the parameters.
    pub(crate) fn has_all_masters(&self) -> bool {
        (self.host.master.is_some() || self.split == 0)
            && (self.on_device.master.is_some() || self.split == self.len)
    }

    /// Whether there is a moving average of the weights.
    pub(crate) fn has_average(&self) -> bool {
        self.host.ema.is_some() || self.on_device.ema.is_some()
    }

    /// Fills master weights from `weights`, `[len]` in their type.
    pub(crate) fn set_masters(&mut self, weights: Tensor<1>) {
        if let Some(master) = &mut self.host.master {
            *master = host_copy(&weights.clone().slice(0..self.split).into_data());
        }
        if let Some(master) = &mut self.on_device.master {
            *master = own(weights, self.split..self.len);
        }
    }

    /// One state, `[len]` in the type of the master weights; `parameter` is this bucket's parameters, for the elements
    /// whose master weights they are. `None` if the rule does not have the state.
    pub(crate) fn state(
        &self,
        kind: StateKind,
        parameter: impl FnOnce() -> Tensor<1>,
    ) -> Option<Tensor<1>> {
        let host = select(&self.host, kind).as_ref();
        let on_device = select(&self.on_device, kind).as_ref();
        let element = |data: &TensorData| data.dtype();
        let lift =
            |data: &TensorData| Tensor::from_data(data.clone(), (&self.device, element(data)));
        let host = host.map(lift);
        let on_device = on_device.cloned();
        if kind != StateKind::Parameter {
            // Parts without elements have no states.
            return match (host, on_device) {
                (Some(host), Some(on_device)) => Some(Tensor::cat(vec![host, on_device], 0)),
                (host, on_device) => host.or(on_device),
            };
        }
        let parts = if self.has_all_masters() {
            [host, on_device]
        } else {
            let parameter = parameter();
            let cut = |range: std::ops::Range<usize>| {
                (!range.is_empty()).then(|| parameter.clone().slice(range))
            };
            [
                host.or_else(|| cut(0..self.split)),
                on_device.or_else(|| cut(self.split..self.len)),
            ]
        };
        let mut parts: Vec<_> = parts.into_iter().flatten().collect();
        match parts.len() {
            1 => parts.pop(),
            _ => Some(Tensor::cat(parts, 0)),
        }
    }

    /// Replaces one state by `[len]` elements in the type of the master weights. Not for parameters.
    pub(crate) fn set(&mut self, kind: StateKind, values: Tensor<1>) {
        if let Some(state) = select_mut(&mut self.host, kind) {
            *state = host_copy(&values.clone().slice(0..self.split).into_data());
        }
        if let Some(state) = select_mut(&mut self.on_device, kind) {
            *state = own(values, self.split..self.len);
        }
    }

    /// Bytes on the device and in host memory.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let tensor = |tensor: &Tensor<1>| tensor.dims()[0] * tensor.dtype().size();
        let device = self.on_device.states().map(tensor).sum();
        let host = self.host.states().map(|data| data.as_bytes().len()).sum();
        (device, host)
    }

    /// The gradient where its update will read it: on its way to host memory, where all states are there.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn arrival(&self, gradient: Tensor<1>) -> Result<Arrival> {
        #[cfg(feature = "tch")]
        if self.split == self.len
            && let Some(elements) = crate::libtorch::HostElements::of(&gradient)?
        {
            return Ok(Arrival::Host(elements));
        }
        Ok(Arrival::Device(gradient))
    }

    /// Updates the states and returns the parameters, where `parameter` was: in the type of the computation, or on a device
    /// that is not host memory in that of the master weights, whose memory they then share.
    ///
    /// # Shapes
    /// All `[len]`. `parameter` may be left out where all master weights are separate.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn update(
        &mut self,
        update: &Update,
        parameter: Option<Resident>,
        gradient: Arrival,
    ) -> Result<Renewed> {
        #[cfg_attr(
            not(feature = "tch"),
            expect(
                clippy::infallible_destructuring_match,
                reason = "LibTorch has another"
            )
        )]
        let gradient = match gradient {
            Arrival::Device(gradient) => gradient,
            #[cfg(feature = "tch")]
            Arrival::Host(elements) => return self.update_offloaded(update, parameter, elements),
        };
        let in_host = parameter.as_ref().is_some_and(Resident::is_in_host_memory);
        let parameter = parameter.map(|resident| resident.into_tensor(&self.device));
        let updated = if self.split == self.len {
            let value = self.update_host(update, parameter, gradient);
            return Ok(Renewed::Resident(match in_host {
                true => Resident::Host(value),
                false => Resident::Device(Resident::Host(value).into_tensor(&self.device)),
            }));
        } else if self.split == 0 {
            self.update_device(update, parameter, gradient)?
        } else {
            let (first, second) = cut(parameter, self.split, self.len);
            let (host_gradient, device_gradient) = cut(Some(gradient), self.split, self.len);
            let gradients = host_gradient.zip(device_gradient);
            let (host_gradient, device_gradient) = gradients.expect("there was a gradient to cut");
            let host = self.update_host(update, first, host_gradient);
            let host = Resident::Host(host).into_tensor(&self.device);
            let on_device = self.update_device(update, second, device_gradient)?;
            let on_device = on_device.cast(host.dtype());
            Tensor::cat(vec![host, on_device], 0)
        };
        Ok(Renewed::Resident(match in_host {
            true => Resident::placed(updated.cast(dtype(update.compute)), Offload::Parameters),
            false => Resident::Device(updated),
        }))
    }

    /// All states are in host memory, and so is the gradient, or soon.
    #[cfg(feature = "tch")]
    fn update_offloaded(
        &mut self,
        update: &Update,
        parameter: Option<Resident>,
        mut gradient: crate::libtorch::HostElements,
    ) -> Result<Renewed> {
        let stays = parameter.as_ref().is_some_and(Resident::is_in_host_memory);
        if self.host.master.is_none() {
            let parameter = match parameter {
                Some(Resident::Host(data)) => Some(data),
                other => other.map(|resident| resident.into_tensor(&self.device).into_data()),
            };
            let gradient = gradient.elements()?;
            let value = Resident::Host(update.in_host_memory(&mut self.host, parameter, gradient));
            return Ok(Renewed::Resident(match stays {
                true => value,
                false => Resident::Device(value.into_tensor(&self.device)),
            }));
        }
        // What was there before goes first: its memory is taken again.
        drop(parameter);
        let mut copy = crate::libtorch::HostElements::new(self.len, dtype(update.compute))?;
        update.update_host_buffer(&mut self.host, gradient.elements()?, copy.bytes()?);
        Ok(match stays {
            true => Renewed::Resident(Resident::Shared(copy.into())),
            false => Renewed::Host(copy),
        })
    }

    fn update_host(
        &mut self,
        update: &Update,
        parameter: Option<Tensor<1>>,
        gradient: Tensor<1>,
    ) -> TensorData {
        let parameter = parameter.map(Tensor::into_data);
        update.in_host_memory(&mut self.host, parameter, (&gradient.into_data()).into())
    }

    fn update_device(
        &mut self,
        update: &Update,
        parameter: Option<Tensor<1>>,
        gradient: Tensor<1>,
    ) -> Result<Tensor<1>> {
        if self.device != Device::flex() {
            return update.on_device(&mut self.on_device, parameter, gradient);
        }
        let mut part = std::mem::take(&mut self.on_device).map(Tensor::into_data);
        let parameter = parameter.map(Tensor::into_data);
        let updated = update.in_host_memory(&mut part, parameter, (&gradient.into_data()).into());
        let lift = |data: TensorData| Resident::Host(data).into_tensor(&self.device);
        self.on_device = part.map(lift);
        Ok(lift(updated))
    }
}

/// A gradient where its update reads it.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// On the device.
    Device(Tensor<1>),
    /// In host memory, or on its way there.
    #[cfg(feature = "tch")]
    Host(crate::libtorch::HostElements),
}

/// Parameters after their update.
#[derive(Debug)]
#[cfg_attr(
    feature = "tch",
    expect(clippy::large_enum_variant, reason = "one for each bucket, moved once")
)]
pub(crate) enum Renewed {
    /// Where they stay, or on the device.
    Resident(Resident),
    /// In host memory, to travel to the device.
    #[cfg(feature = "tch")]
    Host(crate::libtorch::HostElements),
}

impl Renewed {
    /// The parameters where they stay, or on `device`.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn resident(self, device: &Device) -> Result<Resident> {
        let _ = device;
        match self {
            Self::Resident(resident) => Ok(resident),
            #[cfg(feature = "tch")]
            Self::Host(elements) => elements.into_tensor(device).map(Resident::Device),
        }
    }
}

/// How many of `len` elements' states are in host memory.
fn offloaded(len: usize, config: &ZeroConfig) -> usize {
    match config.offload {
        Offload::None => 0,
        Offload::Optimizer | Offload::Parameters => {
            ((len as f64 * config.offload_fraction).round() as usize).min(len)
        }
    }
}

/// The states of `len` elements, none for none.
fn part<X>(config: &ZeroConfig, len: usize, apart: bool, zeros: impl Fn(usize) -> X) -> Part<X> {
    if len == 0 {
        return Part::default();
    }
    let state = |there: bool| there.then(|| zeros(len));
    let (m, v) = match config.optimizer {
        Optimizer::AdamW(_) => (true, true),
        Optimizer::Sgd(rule) => (rule.momentum > 0.0, false),
    };
    Part {
        master: state(apart || config.precision.is_mixed()),
        m: state(m),
        v: state(v),
        ema: state(config.ema.is_some()),
    }
}

fn select<X>(part: &Part<X>, kind: StateKind) -> &Option<X> {
    match kind {
        StateKind::Parameter => &part.master,
        StateKind::Momentum => &part.m,
        StateKind::Variance => &part.v,
        StateKind::Ema => &part.ema,
    }
}

fn select_mut<X>(part: &mut Part<X>, kind: StateKind) -> &mut Option<X> {
    match kind {
        StateKind::Parameter => &mut part.master,
        StateKind::Momentum => &mut part.m,
        StateKind::Variance => &mut part.v,
        StateKind::Ema => &mut part.ema,
    }
}

/// Some of the elements, in memory of their own.
fn own(values: Tensor<1>, range: Range<usize>) -> Tensor<1> {
    // There, updates are made in place.
    #[cfg(feature = "tch")]
    if let Some(own) = crate::libtorch::owned(&values.clone().slice(range.clone())) {
        return own;
    }
    match range.len() == values.dims()[0] {
        true => values,
        false => join(vec![values.slice(range)]),
    }
}

fn cut(tensor: Option<Tensor<1>>, at: usize, len: usize) -> (Option<Tensor<1>>, Option<Tensor<1>>) {
    match tensor {
        None => (None, None),
        Some(tensor) => (
            Some(tensor.clone().slice(0..at)),
            Some(tensor.slice(at..len)),
        ),
    }
}

/// Bytes of parameters and states in host memory that this rank will hold.
pub(crate) fn host_bytes(table: &ShardTable, config: &ZeroConfig) -> usize {
    let policy = Policy::of(config.stage);
    let master = config.precision.master().bytes();
    let states = |bucket: &Bucket| {
        let len = policy.extent.elements(bucket, table.ranks());
        let apart = config.offload == Offload::Optimizer;
        let part = part(config, offloaded(len, config), apart, |len| len * master);
        part.states().sum::<usize>()
    };
    let values = |row: &Row| match table.residence(row) {
        Residence::Shard if row.parameter.tied_to.is_none() => {
            row.shard_len(table.ranks()) * row.parameter.dtype.bytes()
        }
        _ => 0,
    };
    let states = table.buckets().iter().map(states).sum::<usize>();
    match config.offload {
        Offload::Parameters => states + table.rows().iter().map(values).sum::<usize>(),
        Offload::None | Offload::Optimizer => states,
    }
}
