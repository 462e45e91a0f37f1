//! The rows of a batch, on the device.

use cudarc::driver::CudaSlice;

use super::DeviceError;
use super::cuda;

/// Memory on a device for the rows of a batch, back to back in the order of the ids. Made by
/// [`crate::device::DeviceTier::tensor`], filled by [`crate::device::DeviceTier::gather`], used
/// again for batch after batch. To prepare a batch while another one is in use, take two.
pub struct BatchTensor {
    pub(crate) rows: Rows,
    /// Bytes of the batch that was gathered last.
    n_bytes: usize,
}

pub(crate) enum Rows {
    Host(Vec<u8>),
    Cuda(CudaSlice<u8>),
}

impl BatchTensor {
    pub(crate) fn new(rows: Rows) -> Self {
        Self { rows, n_bytes: 0 }
    }

    /// Prepares for a batch of this many bytes.
    pub(crate) fn begin(&mut self, n_bytes: usize) -> Result<(), DeviceError> {
        let capacity = self.capacity_bytes();
        if n_bytes > capacity {
            return Err(DeviceError::TensorTooSmall { capacity, needed: n_bytes });
        }
        self.n_bytes = n_bytes;
        Ok(())
    }

    /// Returns the bytes that fit.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        match &self.rows {
            Rows::Host(rows) => rows.len(),
            Rows::Cuda(rows) => rows.len(),
        }
    }

    /// Returns the bytes of the batch that was gathered last.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Returns the rows, where they are in host memory.
    #[must_use]
    pub fn as_host(&self) -> Option<&[u8]> {
        match &self.rows {
            Rows::Host(rows) => Some(&rows[..self.n_bytes]),
            Rows::Cuda(_) => None,
        }
    }

    /// Returns the memory, where it is a CUDA device's; the batch is its first
    /// [`BatchTensor::n_bytes`]. It is used like any `CudaSlice`, on any stream of the device. By
    /// cudarc the use waits for the gather, and the next gather for the use.
    #[must_use]
    pub fn as_cuda(&self) -> Option<&CudaSlice<u8>> {
        match &self.rows {
            Rows::Host(_) => None,
            Rows::Cuda(rows) => Some(rows),
        }
    }

    /// Copies the batch to host memory. Waits for it.
    ///
    /// Fails when the device does.
    ///
    /// # Panics
    ///
    /// Unless `out` has [`BatchTensor::n_bytes`] bytes.
    pub fn read(&self, out: &mut [u8]) -> Result<(), DeviceError> {
        assert_eq!(out.len(), self.n_bytes, "bytes of the batch");
        match &self.rows {
            Rows::Host(rows) => out.copy_from_slice(&rows[..self.n_bytes]),
            Rows::Cuda(rows) => cuda::read_tensor(rows, out)?,
        }
        Ok(())
    }
}
