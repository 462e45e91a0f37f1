//! Rows on an accelerator, or, where there is none, in host memory behind the same interface.
//!
//! Tests run the CUDA side on a GPU where there is one; `benches/notes/gpu.md` has figures of an
//! H100. Everywhere they run it on a simulated driver that executes everything as late as CUDA's
//! rules allow.

mod cuda;
mod error;
mod memory;
#[cfg(test)]
mod simulated;
mod tensor;
mod tier;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use error::{DeviceError, GatherError};
pub use tensor::BatchTensor;
pub use tier::{DeviceSettings, DeviceTier, TierShape};

pub(crate) use memory::{Memory, RowMove};

use cuda::CudaDevice;

/// Memory of the rows of a [`DeviceTier`]. Cheap to clone; all clones share the compiled kernel.
#[derive(Clone)]
pub struct Device {
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Host,
    Cuda(Arc<CudaDevice>),
}

impl Device {
    /// Returns host memory.
    #[must_use]
    pub fn host() -> Self {
        Self { kind: Kind::Host }
    }

    /// Returns the CUDA device of this number, from 0. Loads the driver's library and compiles the
    /// gather kernel; neither is needed to build or to start this program. Not for a process that
    /// forks afterwards: CUDA does not survive that.
    ///
    /// Fails, and never panics, when a library or the device is not there or does not work.
    pub fn cuda(ordinal: usize) -> Result<Self, DeviceError> {
        Ok(Self { kind: Kind::Cuda(Arc::new(CudaDevice::open(ordinal)?)) })
    }

    /// Returns the first CUDA device, or host memory; the first time that it comes to that, one
    /// warning says why.
    #[must_use]
    pub fn best() -> Self {
        // No `Once`: in a child of a fork in the midst of it, it would never end.
        static HAS_WARNED: AtomicBool = AtomicBool::new(false);
        Self::cuda(0).unwrap_or_else(|error| {
            if !HAS_WARNED.swap(true, Ordering::Relaxed) {
                tracing::warn!("device: host, for there is no other: {error}");
            }
            Self::host()
        })
    }

    /// Returns whether rows are in host memory.
    #[must_use]
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host)
    }

    /// Returns the bytes that the device has free (`cuMemGetInfo`). It is `None` for host memory:
    /// the system and its control groups have that number.
    ///
    /// Fails when the driver does.
    pub fn free_bytes(&self) -> Result<Option<u64>, DeviceError> {
        match &self.kind {
            Kind::Host => Ok(None),
            Kind::Cuda(cuda) => cuda.free_bytes().map(Some),
        }
    }
}

/// `host`, or the name of the device.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Host => f.write_str("host"),
            Kind::Cuda(cuda) => f.write_str(cuda.name()),
        }
    }
}
