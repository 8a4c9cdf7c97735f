//! How much energy GPUs take, where NVIDIA's management library (NVML) is there to tell: it is opened at run time, and where it is not,
//! or a GPU has no counter, nothing is told.

use std::fmt;
use std::time::{Duration, Instant};

use crate::config::Device;

/// The counter of one GPU.
pub(crate) trait Counter: Send {
    /// Joules since some time in the past; none where the GPU does not tell any more.
    fn joules(&mut self) -> Option<f64>;
}

/// Drivers renew their counters about this often, and a reading takes a while.
const RENEWED: Duration = Duration::from_millis(100);

/// What one rank's GPU takes, from one reading to the next.
pub(crate) struct EnergyMeter {
    counter: Option<Box<dyn Counter>>,
    /// Joules at the last reading.
    read: Option<f64>,
    at: Instant,
    every: Duration,
}

impl fmt::Debug for EnergyMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.counter.is_some();
        f.debug_struct("EnergyMeter")
            .field("counted", &counted)
            .finish_non_exhaustive()
    }
}

impl EnergyMeter {
    /// That of the GPU that this process sees under a number. One of the processor never tells anything.
    pub(crate) fn of(device: Device, gpu: usize) -> Self {
        let counter = match device {
            Device::Cuda => nvml::counter(gpu),
            Device::Cpu | Device::CpuLibTorch => None,
        };
        Self::new(counter, RENEWED)
    }

    fn new(counter: Option<Box<dyn Counter>>, every: Duration) -> Self {
        let mut meter = Self {
            counter,
            read: None,
            at: Instant::now(),
            every,
        };
        meter.read = meter.counter.as_mut().and_then(|counter| counter.joules());
        meter
    }

    /// Joules since the last reading; 0 where nobody tells, or the last reading was a moment ago.
    pub(crate) fn take(&mut self) -> f64 {
        if self.at.elapsed() < self.every {
            return 0.0;
        }
        let Some(now) = self.counter.as_mut().and_then(|counter| counter.joules()) else {
            return 0.0;
        };
        self.at = Instant::now();
        let before = self.read.replace(now);
        // A driver that was loaded again counts from 0.
        before.map_or(0.0, |before| (now - before).max(0.0))
    }
}

#[cfg(feature = "tch")]
mod nvml {
    use nvml_wrapper::Nvml;

    use super::Counter;

    struct Gpu {
        nvml: Nvml,
        name: Name,
    }

    /// How NVML finds a GPU.
    enum Name {
        Index(u32),
        Uuid(String),
    }

    pub(super) fn counter(gpu: usize) -> Option<Box<dyn Counter>> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let name = super::visible(visible.as_deref(), gpu)?;
        let name = match name.parse() {
            Ok(index) => Name::Index(index),
            Err(_) => Name::Uuid(name),
        };
        let mut counter = Gpu {
            nvml: Nvml::init().ok()?,
            name,
        };
        counter.joules()?;
        Some(Box::new(counter))
    }

    impl Counter for Gpu {
        fn joules(&mut self) -> Option<f64> {
            let device = match &self.name {
                Name::Index(index) => self.nvml.device_by_index(*index),
                Name::Uuid(uuid) => self.nvml.device_by_uuid(uuid.as_str()),
            };
            let millijoules = device.and_then(|device| device.total_energy_consumption());
            Some(millijoules.ok()? as f64 / 1e3)
        }
    }
}

/// What a build without GPUs has of it.
#[cfg(not(feature = "tch"))]
mod nvml {
    use super::Counter;

    pub(super) fn counter(_: usize) -> Option<Box<dyn Counter>> {
        None
    }
}

/// The number or the UUID of the GPU that CUDA shows under a number. Numbers are taken in the order of the bus, as NVML has them; where
/// GPUs of several kinds are in a machine, CUDA does so with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
#[cfg(any(feature = "tch", test))]
fn visible(visible: Option<&str>, gpu: usize) -> Option<String> {
    match visible {
        None => Some(gpu.to_string()),
        Some(list) => {
            let name = list.split(',').map(str::trim).nth(gpu)?;
            (!name.is_empty()).then(|| name.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Readings(Vec<Option<f64>>);

    impl Counter for Readings {
        fn joules(&mut self) -> Option<f64> {
            self.0.remove(0)
        }
    }

    #[test]
    fn energy_is_what_was_added_between_two_readings() {
        let readings = [
            Some(1000.0),
            Some(1250.0),
            Some(1250.0),
            None,
            Some(1400.0),
            Some(30.0),
            Some(50.0),
        ];
        let mut meter = EnergyMeter::new(Some(Box::new(Readings(readings.into()))), Duration::ZERO);
        // A reading that fails loses nothing, and a counter that begins anew takes nothing away.
        let taken: Vec<f64> = (0..6).map(|_| meter.take()).collect();
        assert_eq!(taken, [250.0, 0.0, 0.0, 150.0, 0.0, 20.0]);
    }

    #[test]
    fn readings_do_not_follow_each_other_at_once() {
        let readings = Readings(vec![Some(1.0)]);
        let mut meter = EnergyMeter::new(Some(Box::new(readings)), Duration::from_secs(3600));
        // A second one would panic.
        assert_eq!((meter.take(), meter.take()), (0.0, 0.0));
    }

    #[test]
    fn the_processor_tells_nothing() {
        assert_eq!(EnergyMeter::of(Device::Cpu, 0).take(), 0.0);
    }

    #[test]
    fn the_gpu_is_that_which_the_process_sees() {
        assert_eq!(visible(None, 2).as_deref(), Some("2"));
        assert_eq!(visible(Some("5, 3"), 1).as_deref(), Some("3"));
        assert_eq!(
            visible(Some("GPU-1b4f,GPU-77"), 0).as_deref(),
            Some("GPU-1b4f")
        );
        assert_eq!(visible(Some(""), 0), None);
        assert_eq!(visible(Some("0"), 1), None);
    }
}
