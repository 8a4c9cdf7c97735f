//! Buffers of the host that a GPU reads and writes by itself while the host goes on.

use tch::{Device, Kind, Tensor};

use crate::shim::host_buffer::{self as shim, Event};
use crate::{Error, Result};

/// Bytes in the host's memory. A copy from or to a GPU may be under way with them; whoever looks at them waits for that. Dropped
/// before, they stay until it is over: LibTorch keeps pinned memory until the GPU is done, and copies of other memory itself.
#[derive(Debug)]
pub struct HostBuffer {
    bytes: Tensor,
    is_pinned: bool,
    under_way: Option<Event>,
    /// Whether what is under way writes here.
    is_read_into: bool,
}

impl HostBuffer {
    /// Uninitialised bytes on pages that stay where they are, which a GPU copies at its full speed; on usual ones where the
    /// system or LibTorch has no such.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if memory is used up.
    pub fn new(bytes: usize) -> Result<Self> {
        let (bytes, is_pinned) = match shim::new(bytes, true) {
            Ok(pinned) => (pinned, true),
            Err(Error::Exception { .. }) => (shim::new(bytes, false)?, false),
            Err(error) => return Err(error),
        };
        Ok(Self {
            bytes,
            is_pinned,
            under_way: None,
            is_read_into: false,
        })
    }

    /// Whether its pages stay where they are.
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// Lets a tensor's elements come here, once all that the device was told before is done.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if it has not as many bytes.
    pub fn read(&mut self, from: &Tensor) -> Result<()> {
        self.wait()?;
        self.under_way = shim::copy_down(from, &mut self.bytes)?;
        self.is_read_into = true;
        Ok(())
    }

    /// Lets what is here go into a tensor before all that the device is told from now on.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if it has not as many bytes.
    pub fn write(&mut self, to: &mut Tensor) -> Result<()> {
        self.wait()?;
        self.under_way = shim::copy_up(&self.bytes, to)?;
        Ok(())
    }

    /// The same for as many bytes as the tensor has, from byte `start` on. Copies of other parts may be under way.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if there are not as many.
    pub fn write_part(&mut self, start: usize, to: &mut Tensor) -> Result<()> {
        if self.is_read_into {
            self.wait()?;
        }
        let bytes = (to.numel() * to.kind().elt_size_in_bytes()) as i64;
        let part = self.bytes.f_narrow(0, start as i64, bytes);
        let part = part.map_err(|error| Error::Exception {
            call: "narrow",
            text: error.to_string(),
        })?;
        // Copies to the device end in the order in which they begin: the last one's event is that of all.
        if let Some(event) = shim::copy_up(&part, to)? {
            self.under_way = Some(event);
        }
        Ok(())
    }

    /// The bytes, once no copy is under way with them.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if the device has failed.
    pub fn bytes(&mut self) -> Result<&mut [u8]> {
        self.wait()?;
        Ok(shim::bytes(&mut self.bytes))
    }

    fn wait(&mut self) -> Result<()> {
        self.is_read_into = false;
        self.under_way.take().map_or(Ok(()), Event::wait)
    }
}

/// A tensor on its way to a GPU beside what that computes.
#[derive(Debug)]
pub struct Upload {
    to: Tensor,
    event: Option<Event>,
    /// Has to stay until the copy is over, as [`HostBuffer`] says.
    buffer: HostBuffer,
}

impl Upload {
    /// Begins to copy what is in a buffer to a new tensor.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if the buffer has not as many bytes as the tensor, or memory is used up.
    pub fn begin(
        mut buffer: HostBuffer,
        shape: &[i64],
        kind: Kind,
        device: Device,
    ) -> Result<Self> {
        buffer.wait()?;
        let mut to = Tensor::empty(shape, (kind, device));
        let event = shim::copy_beside(&buffer.bytes, &mut to)?;
        Ok(Self { to, event, buffer })
    }

    /// The tensor. The host does not wait; what the GPU is told from now on does.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if the device has failed.
    pub fn arrive(self) -> Result<Tensor> {
        let Self { to, event, buffer } = self;
        event.map_or(Ok(()), Event::follow)?;
        drop(buffer);
        Ok(to)
    }
}
