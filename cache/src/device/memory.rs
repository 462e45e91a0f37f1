//! Operations of a device tier on bytes, on any device.

use bytemuck::{Pod, Zeroable};

use crate::arena::Arena;
use crate::slots::NO_SLOT;

use super::cuda::CudaMemory;
use super::tensor::{BatchTensor, Rows};
use super::{Device, DeviceError, Kind};

/// A row is copied from one place to another; both are counted in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RowMove {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// Slots of rows on a device, and the staging buffers through which rows get there.
///
/// Operations take effect in the order of their calls. On a CUDA device they are only begun: a
/// reader of the tensor waits for them.
pub(crate) struct Memory {
    bytes: Bytes,
    device: Device,
    row_bytes: usize,
    staging_rows: usize,
}

enum Bytes {
    Host(HostMemory),
    Cuda(Box<CudaMemory>),
}

/// Slots and one staging buffer in host memory: for machines without a device.
struct HostMemory {
    slots: Arena,
    staging: Vec<u8>,
}

impl Memory {
    /// Allocates slots, and staging for as many rows as `staging_bytes` hold, at least one.
    pub(crate) fn new(
        device: &Device,
        n_slots: u32,
        row_bytes: usize,
        staging_bytes: usize,
    ) -> Result<Self, DeviceError> {
        if row_bytes == 0 || row_bytes > MOST_ROW_BYTES {
            return Err(DeviceError::RowBytes { most: MOST_ROW_BYTES, found: row_bytes });
        }
        let staging_rows = staging_rows(row_bytes, staging_bytes);
        let bytes = match &device.kind {
            Kind::Host => Bytes::Host(HostMemory {
                slots: Arena::new(n_slots, row_bytes)?,
                staging: vec![0; staging_rows * row_bytes],
            }),
            Kind::Cuda(cuda) => {
                Bytes::Cuda(Box::new(CudaMemory::new(cuda, n_slots, row_bytes, staging_rows)?))
            }
        };
        Ok(Self { bytes, device: device.clone(), row_bytes, staging_rows })
    }

    /// Returns the number of staging buffers that rows take turns in.
    pub(crate) fn n_staging_buffers(device: &Device) -> usize {
        if device.is_host() { 1 } else { 2 }
    }

    /// Returns the memory of all staging on the device itself, in bytes.
    pub(crate) fn staged_bytes(device: &Device, row_bytes: usize, staging_bytes: usize) -> usize {
        let staging_rows = staging_rows(row_bytes, staging_bytes);
        match &device.kind {
            Kind::Host => staging_rows.saturating_mul(row_bytes),
            Kind::Cuda(_) => CudaMemory::landed_bytes(row_bytes, staging_rows),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the number of rows that one staging buffer holds.
    pub(crate) fn staging_rows(&self) -> usize {
        self.staging_rows
    }

    /// Returns the memory of slots and staging, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.bytes {
            Bytes::Host(host) => host.slots.bytes() + host.staging.len(),
            Bytes::Cuda(cuda) => cuda.bytes(),
        }
    }

    /// Returns a tensor with room for `n_rows`.
    pub(crate) fn tensor(&self, n_rows: usize) -> Result<BatchTensor, DeviceError> {
        let bytes = n_rows.saturating_mul(self.row_bytes);
        let rows = match &self.bytes {
            Bytes::Host(_) => Rows::Host(vec![0; bytes]),
            Bytes::Cuda(cuda) => Rows::Cuda(cuda.tensor(bytes)?),
        };
        Ok(BatchTensor::new(rows))
    }

    /// Returns a staging buffer whose rows are all on their way, to be filled from its start. The
    /// next operation must be one that takes staged rows.
    pub(crate) fn staging(&mut self) -> Result<&mut [u8], DeviceError> {
        match &mut self.bytes {
            Bytes::Host(host) => Ok(&mut host.staging),
            Bytes::Cuda(cuda) => cuda.staging(),
        }
    }

    /// Copies the row in each slot to its place in the tensor. [`NO_SLOT`] leaves what is there.
    pub(crate) fn gather(
        &mut self,
        slots: &[u32],
        tensor: &mut BatchTensor,
    ) -> Result<(), DeviceError> {
        match (&mut self.bytes, &mut tensor.rows) {
            (Bytes::Host(host), Rows::Host(tensor)) => host.gather(slots, tensor),
            (Bytes::Cuda(cuda), Rows::Cuda(tensor)) => return cuda.gather(slots, tensor),
            _ => return Err(self.other_device()),
        }
        Ok(())
    }

    /// Copies the staged rows, from the first on, to these positions of the tensor.
    pub(crate) fn place_staged(
        &mut self,
        positions: &[u32],
        tensor: &mut BatchTensor,
    ) -> Result<(), DeviceError> {
        match (&mut self.bytes, &mut tensor.rows) {
            (Bytes::Host(host), Rows::Host(tensor)) => host.place_staged(positions, tensor),
            (Bytes::Cuda(cuda), Rows::Cuda(tensor)) => return cuda.place_staged(positions, tensor),
            _ => return Err(self.other_device()),
        }
        Ok(())
    }

    /// Copies rows of the tensor to slots.
    pub(crate) fn keep(
        &mut self,
        tensor: &BatchTensor,
        moves: &[RowMove],
    ) -> Result<(), DeviceError> {
        match (&mut self.bytes, &tensor.rows) {
            (Bytes::Host(host), Rows::Host(tensor)) => host.keep(tensor, moves),
            (Bytes::Cuda(cuda), Rows::Cuda(tensor)) => return cuda.keep(tensor, moves),
            _ => return Err(self.other_device()),
        }
        Ok(())
    }

    /// Reads slots to host memory, one row per slot. Waits.
    pub(crate) fn read(&mut self, slots: &[u32], out: &mut [u8]) -> Result<(), DeviceError> {
        match &mut self.bytes {
            Bytes::Host(host) => {
                host.gather(slots, out);
                Ok(())
            }
            Bytes::Cuda(cuda) => cuda.read(slots, out),
        }
    }

    fn other_device(&self) -> DeviceError {
        DeviceError::OtherDevice { device: self.device.to_string() }
    }
}

impl HostMemory {
    fn gather(&self, slots: &[u32], out: &mut [u8]) {
        for (&slot, row) in slots.iter().zip(out.chunks_exact_mut(self.slots.row_bytes())) {
            if slot != NO_SLOT {
                row.copy_from_slice(self.slots.row(slot));
            }
        }
    }

    fn place_staged(&self, positions: &[u32], tensor: &mut [u8]) {
        let row_bytes = self.slots.row_bytes();
        for (&position, row) in positions.iter().zip(self.staging.chunks_exact(row_bytes)) {
            tensor[position as usize * row_bytes..][..row_bytes].copy_from_slice(row);
        }
    }

    fn keep(&mut self, tensor: &[u8], moves: &[RowMove]) {
        let row_bytes = self.slots.row_bytes();
        for &RowMove { from, to } in moves {
            let row = &tensor[from as usize * row_bytes..][..row_bytes];
            self.slots.row_mut(to).copy_from_slice(row);
        }
    }
}

/// Returns the rows that a staging buffer of `n` bytes holds.
fn staging_rows(row_bytes: usize, staging_bytes: usize) -> usize {
    staging_bytes.checked_div(row_bytes).unwrap_or(0).clamp(1, u32::MAX as usize)
}

/// The kernel counts the bytes of a row in 32 bits.
const MOST_ROW_BYTES: usize = 1 << 30;
