//! A loader's micro-batches as tensors of the rank's device.

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_data::{Batch, LeftOut, Loader, TargetImages};
use terrashard_models::SUPERRES_CHANNELS;
use terrashard_ops::{Coding, Image, Labels};
use terrashard_zero::Precision;

use crate::error::Result;

/// What a forward pass takes.
#[derive(Debug)]
pub(super) struct Fed {
    /// `[N, bands, side, side]` in the type of the computation, on the device that remembers gradients.
    pub(super) images: Tensor<4>,
    /// `[N, scale side, scale side]`.
    pub(super) labels: Labels,
    /// `[N, 4, scale side, scale side]`: digital numbers as they are stored, or reflectance in 32 bits.
    pub(super) superres: Option<Image>,
    /// Sample ids.
    pub(super) ids: Vec<u64>,
    /// Samples of them that could not be read, and are of weight 0.
    pub(super) left_out: Vec<LeftOut>,
}

/// Where batches go.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub(super) device: Device,
    pub(super) precision: Precision,
    /// LibTorch's own name of the device, if LibTorch computes there.
    #[cfg(feature = "tch")]
    pub(super) libtorch: Option<terrashard_torch::tch::Device>,
}

/// The micro-batches of one rank, one after the other.
#[derive(Debug)]
pub(super) enum Feed {
    /// Become tensors when they are taken.
    Taken(Box<Loader>, Destination),
    /// Are on their way to the device while the one before is computed on. One more than is taken is there.
    #[cfg(feature = "tch")]
    Ahead(Box<ahead::Ahead>),
}

impl Feed {
    /// # Errors
    /// [`Error::Panicked`](crate::Error::Panicked) if the system refuses a thread.
    pub(super) fn new(loader: Loader, to: Destination) -> Result<Self> {
        #[cfg(feature = "tch")]
        // In double precision there is nothing to be gained: it serves comparisons.
        if let (Some(device), Some(kind)) = (to.libtorch, ahead::kind(to.precision)) {
            let ahead = ahead::Ahead::new(loader, device, kind)?;
            return Ok(Self::Ahead(Box::new(ahead)));
        }
        Ok(Self::Taken(Box::new(loader), to))
    }

    /// The next micro-batch; after an error, or the last step, none.
    pub(super) fn next(&mut self) -> Option<Result<Fed>> {
        match self {
            Self::Taken(loader, to) => {
                let next = loader.next()?;
                Some(next.map(|next| to.take(next.batch)).map_err(Into::into))
            }
            #[cfg(feature = "tch")]
            Self::Ahead(ahead) => ahead.next(),
        }
    }
}

/// The type of the computation.
pub(super) fn element(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::F64 => DType::F64,
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
    }
}

/// What numbers mean, as losses are told.
fn coding(meaning: terrashard_data::Coding) -> Coding {
    let terrashard_data::Coding {
        offset,
        scale,
        missing,
    } = meaning;
    Coding {
        offset,
        scale,
        missing,
    }
}

impl Destination {
    fn take(&self, batch: Batch) -> Fed {
        let Batch {
            samples,
            bands,
            side,
            scale,
            images,
            masks,
            targets,
            ids,
            left_out,
            ..
        } = batch;
        let element = element(self.precision);
        let data = TensorData::new(images, [samples, bands, side, side]);
        let fine = side * scale;
        Fed {
            images: Tensor::from_data(data, (&self.device.clone().autodiff(), element)),
            labels: Labels::new(masks, [samples, fine, fine], &self.device),
            superres: targets.map(|targets| {
                let shape = [samples, SUPERRES_CHANNELS, fine, fine];
                match targets {
                    TargetImages::Reflectance(values) => {
                        let data = TensorData::new(values, shape);
                        Tensor::from_data(data, (&self.device, DType::F32)).into()
                    }
                    TargetImages::Numbers(numbers, meaning) => {
                        Image::numbers(numbers, shape, coding(meaning), &self.device)
                    }
                }
            }),
            ids,
            left_out,
        }
    }
}

#[cfg(feature = "tch")]
mod ahead {
    //! Three hands: the loader's threads decode, one thread lays a batch down where the GPU can fetch it, and the GPU fetches it
    //! while it computes.

    use std::sync::mpsc::{Receiver, sync_channel};
    use std::thread::JoinHandle;

    use burn::tensor::{Int, Tensor};
    use terrashard_data::{Batch, IGNORE, LeftOut, Loader, TargetImages};
    use terrashard_models::SUPERRES_CHANNELS;
    use terrashard_ops::{Coding, Image, Labels};
    use terrashard_torch::tch::{self, Kind};
    use terrashard_torch::{HostBuffer, LibTorch, Upload, outer};
    use terrashard_zero::Precision;

    use super::{Fed, coding};
    use crate::error::{Error, Result};

    /// The element type of images, where it is one that batches are fed in ahead.
    pub(super) fn kind(precision: Precision) -> Option<Kind> {
        match precision {
            Precision::F32 => Some(Kind::Float),
            Precision::Bf16 => Some(Kind::BFloat16),
            Precision::F16 => Some(Kind::Half),
            Precision::F64 => None,
        }
    }

    /// Batches that go to the device ahead of the computation. Dropping it ends its thread.
    #[derive(Debug)]
    pub(in crate::training) struct Ahead {
        staged: Option<Receiver<Result<Staged>>>,
        thread: Option<JoinHandle<()>>,
        /// On its way, or why it is not.
        next: Option<Result<Uploading>>,
        device: tch::Device,
        kind: Kind,
    }

    impl Ahead {
        pub(super) fn new(loader: Loader, device: tch::Device, kind: Kind) -> Result<Self> {
            let (sender, staged) = sync_channel(1);
            let stage = move || {
                for item in loader {
                    let item = item
                        .map_err(Error::from)
                        .and_then(|item| Staged::new(&item.batch));
                    if sender.send(item).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("feed".into()).spawn(stage);
            let thread = thread.map_err(|error| Error::Panicked {
                who: "the start of a thread".into(),
                message: error.to_string(),
            })?;
            Ok(Self {
                staged: Some(staged),
                thread: Some(thread),
                next: None,
                device,
                kind,
            })
        }

        pub(super) fn next(&mut self) -> Option<Result<Fed>> {
            let current = match self.next.take() {
                Some(current) => current,
                None => {
                    let staged = self.staged.as_ref()?.recv();
                    let Ok(staged) = staged else {
                        return self.ended();
                    };
                    staged.and_then(|staged| staged.begin(self.device))
                }
            };
            let fed = current.and_then(|current| current.arrive(self.kind));
            if let Some(Ok(staged)) = self.staged.as_ref().map(Receiver::try_recv) {
                self.next = Some(staged.and_then(|staged| staged.begin(self.device)));
            }
            Some(fed)
        }

        /// The thread has no more.
        fn ended(&mut self) -> Option<Result<Fed>> {
            self.staged = None;
            let panicked = self.thread.take()?.join().is_err();
            panicked.then(|| {
                Err(Error::Panicked {
                    who: "the thread that feeds the device".into(),
                    message: "its message stands above".into(),
                })
            })
        }
    }

    impl Drop for Ahead {
        fn drop(&mut self) {
            self.staged = None;
            if let Some(thread) = self.thread.take() {
                // A panic of the thread was told by its message.
                let _ = thread.join();
            }
        }
    }

    /// A batch that lies where the device can fetch it.
    #[derive(Debug)]
    struct Staged {
        images: (HostBuffer, [i64; 4]),
        masks: (HostBuffer, [i64; 3]),
        /// With what numbers mean, where they are none of reflectance.
        targets: Option<(HostBuffer, [i64; 4], Option<Coding>)>,
        counts: [u64; 256],
        ids: Vec<u64>,
        left_out: Vec<LeftOut>,
    }

    impl Staged {
        fn new(batch: &Batch) -> Result<Self> {
            let [samples, bands, side, scale] =
                [batch.samples, batch.bands, batch.side, batch.scale].map(|extent| extent as i64);
            let fine = side * scale;
            let mut counts = [0; 256];
            for (class, count) in batch.class_counts().into_iter().enumerate() {
                counts[class] = count;
            }
            // What belongs to no class is ignored.
            counts[usize::from(IGNORE)] = batch.masks.len() as u64 - counts.iter().sum::<u64>();
            let targets = batch.targets.as_ref().map(|targets| {
                let shape = [samples, SUPERRES_CHANNELS as i64, fine, fine];
                let (bytes, meaning) = match targets {
                    TargetImages::Reflectance(values) => (bytemuck::cast_slice(values), None),
                    TargetImages::Numbers(numbers, meaning) => {
                        (bytemuck::cast_slice(numbers), Some(coding(*meaning)))
                    }
                };
                Ok::<_, Error>((laid(bytes)?, shape, meaning))
            });
            Ok(Self {
                images: (
                    laid(bytemuck::cast_slice(&batch.images))?,
                    [samples, bands, side, side],
                ),
                masks: (laid(&batch.masks)?, [samples, fine, fine]),
                targets: targets.transpose()?,
                counts,
                ids: batch.ids.clone(),
                left_out: batch.left_out.clone(),
            })
        }

        fn begin(self, device: tch::Device) -> Result<Uploading> {
            let (images, images_shape) = self.images;
            let (masks, masks_shape) = self.masks;
            let begin = |buffer, shape: &[i64], kind| {
                Upload::begin(buffer, shape, kind, device).map_err(failed)
            };
            let targets = self.targets.map(|(buffer, shape, meaning)| {
                let kind = meaning.map_or(Kind::Float, |_| Kind::Int16);
                Ok::<_, Error>((begin(buffer, &shape, kind)?, meaning))
            });
            Ok(Uploading {
                images: begin(images, &images_shape, Kind::Float)?,
                masks: begin(masks, &masks_shape, Kind::Uint8)?,
                targets: targets.transpose()?,
                counts: self.counts,
                ids: self.ids,
                left_out: self.left_out,
            })
        }
    }

    /// The values in memory of their own that the device reads.
    fn laid(bytes: &[u8]) -> Result<HostBuffer> {
        let mut buffer = HostBuffer::new(bytes.len()).map_err(failed)?;
        buffer.bytes().map_err(failed)?.copy_from_slice(bytes);
        Ok(buffer)
    }

    fn failed(error: terrashard_torch::Error) -> Error {
        Error::LibTorch(format!("a batch does not reach the device: {error}"))
    }

    /// A batch on its way.
    #[derive(Debug)]
    struct Uploading {
        images: Upload,
        masks: Upload,
        targets: Option<(Upload, Option<Coding>)>,
        counts: [u64; 256],
        ids: Vec<u64>,
        left_out: Vec<LeftOut>,
    }

    impl Uploading {
        fn arrive(self, kind: Kind) -> Result<Fed> {
            let images = self.images.arrive().map_err(failed)?.to_kind(kind);
            let masks = self.masks.arrive().map_err(failed)?;
            let float = |tensor| Tensor::<4>::from_primitive::<LibTorch>(outer(tensor));
            let targets = self.targets.map(|(targets, meaning)| {
                let values = targets.arrive().map_err(failed)?;
                Ok::<_, Error>(match meaning {
                    None => Image::Reflectance(float(values)),
                    Some(coding) => {
                        let bits = Tensor::<4, Int>::from_primitive::<LibTorch>(outer(values));
                        Image::Numbers(bits, coding)
                    }
                })
            });
            let masks: Tensor<3, Int> = Tensor::from_primitive::<LibTorch>(outer(masks));
            Ok(Fed {
                images: float(images).autodiff(),
                labels: Labels::counted(masks, self.counts),
                superres: targets.transpose()?,
                ids: self.ids,
                left_out: self.left_out,
            })
        }
    }

    #[cfg(test)]
    mod tests {
        use burn::tensor::DType;

        use super::super::Destination;
        use super::*;

        #[test]
        fn what_is_fed_ahead_is_what_is_taken() {
            let (samples, bands, side, scale) = (2, 3, 4, 2);
            let fine = side * scale;
            let masks: Vec<u8> = (0..samples * fine * fine)
                .map(|i| [0, 1, 255, 0, 1][i % 5])
                .collect();
            let count = |of: &[u8]| {
                let count = |class| of.iter().filter(|label| **label == class).count() as u64;
                vec![count(0), count(1)]
            };
            let batch = Batch {
                samples,
                bands,
                side,
                scale,
                images: (0..samples * bands * side * side)
                    .map(|i| i as f32 * 0.37 - 3.0)
                    .collect(),
                valid: masks.chunks(fine * fine).map(count).collect(),
                masks,
                targets: None,
                ids: vec![7, 3],
                left_out: Vec::new(),
            };
            let values = 0..samples * SUPERRES_CHANNELS * fine * fine;
            let reflectance = |i| if i % 7 == 0 { f32::NAN } else { i as f32 };
            let meaning = terrashard_data::Coding {
                offset: -1000.0,
                scale: 1e-4,
                missing: 254,
            };
            let numbers = values.clone().map(|i| (i * 127) as u16).collect();
            let targets = [
                TargetImages::Reflectance(values.map(reflectance).collect()),
                TargetImages::Numbers(numbers, meaning),
            ];
            let types = [Precision::F32, Precision::Bf16];
            for (precision, targets) in types.into_iter().zip(targets) {
                let batch = Batch {
                    targets: Some(targets.clone()),
                    ..batch.clone()
                };
                let staged = Staged::new(&batch).expect("memory");
                let uploading = staged.begin(tch::Device::Cpu).expect("memory");
                let kind = kind(precision).expect("a narrow type");
                let ahead = uploading.arrive(kind).expect("a batch");
                let taken = Destination {
                    device: terrashard_torch::cpu(),
                    precision,
                    libtorch: None,
                }
                .take(batch.clone());
                let values = |tensor: &Tensor<4>| {
                    let data = tensor.clone().inner().cast(DType::F32).into_data();
                    data.iter::<f32>().map(f32::to_bits).collect::<Vec<u32>>()
                };
                assert_eq!(values(&ahead.images), values(&taken.images));
                assert_eq!(ahead.images.dtype(), taken.images.dtype());
                assert_eq!(ahead.ids, taken.ids);
                let labels = |labels: &Labels| {
                    let data = labels.tensor().clone().into_data();
                    (data.iter::<i64>().collect::<Vec<i64>>(), labels.shape())
                };
                assert_eq!(labels(&ahead.labels), labels(&taken.labels));
                for label in 0..=u8::MAX {
                    assert_eq!(ahead.labels.of(label), taken.labels.of(label));
                }
                let bits = |values: Vec<f32>| -> Vec<u32> {
                    values.into_iter().map(f32::to_bits).collect()
                };
                let expected = bits(targets.reflectance());
                for fed in [ahead, taken] {
                    let image = fed.superres.expect("given");
                    let is_of_numbers = matches!(image, Image::Numbers(..));
                    assert_eq!(is_of_numbers, matches!(targets, TargetImages::Numbers(..)));
                    let values = image.reflectance().into_data();
                    assert_eq!(bits(values.iter::<f32>().collect()), expected);
                }
            }
        }
    }
}
