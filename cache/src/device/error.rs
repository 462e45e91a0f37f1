//! Errors of a device.

use cudarc::driver::DriverError;
use thiserror::Error;

use crate::directory::DirectoryError;
use crate::huge_vec::MemoryError;

/// Reason why a device, a tier on it, or a batch from it is not available.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// A library of CUDA is not installed, or not where the loader looks.
    #[error("cannot load {library}: install it, or add its folder to LD_LIBRARY_PATH")]
    NoLibrary {
        /// Its usual name.
        library: &'static str,
    },
    /// The library is there, but not what this program was built for.
    #[error("the CUDA library cannot be used ({reason}); a driver for CUDA 12 or later is needed")]
    Unusable {
        /// The error of the binding.
        reason: String,
    },
    /// There is no such device.
    #[error("no CUDA device {ordinal}: the driver knows of {n_devices}")]
    NoDevice {
        /// The device asked for, from 0.
        ordinal: usize,
        /// How many there are.
        n_devices: usize,
    },
    /// The driver refused.
    #[error("CUDA failed to {action}: {source}")]
    Driver {
        /// The operation.
        action: &'static str,
        /// The error of the driver.
        source: DriverError,
    },
    /// The gather kernel does not compile.
    #[error("NVRTC cannot compile the gather kernel: {log}")]
    Kernel {
        /// The error of the compiler.
        log: String,
    },
    /// An earlier operation failed, so the contents of the slots are unknown.
    #[error("this tier is lost since CUDA failed to {action}; make another, or continue without")]
    Lost {
        /// The operation that failed.
        action: &'static str,
    },
    /// The rows do not fit the kernel's or the staging buffers' arithmetic.
    #[error("a row must have 1 to {most} bytes, found {found}")]
    RowBytes {
        /// The most there can be.
        most: usize,
        /// The given value.
        found: usize,
    },
    /// The batch does not fit.
    #[error(
        "the batch tensor holds {capacity} bytes, but the batch has {needed}; make a larger one"
    )]
    TensorTooSmall {
        /// Bytes that it holds.
        capacity: usize,
        /// Bytes of the batch.
        needed: usize,
    },
    /// The batch tensor belongs to another device.
    #[error("the batch tensor is not on this tier's device ({device}); make it with this tier")]
    OtherDevice {
        /// The tier's device.
        device: String,
    },
    /// The bookkeeping cannot be allocated.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

impl From<MemoryError> for DeviceError {
    fn from(error: MemoryError) -> Self {
        Self::Directory(error.into())
    }
}

/// Why a batch could not be gathered. The tier continues after a failed fetch.
#[derive(Debug, Error)]
pub enum GatherError<E> {
    /// The device failed, or the batch does not fit its tensor.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The fetch of the missing rows failed.
    #[error("cannot fetch the rows that the cache does not hold")]
    Fetch(#[source] E),
}
