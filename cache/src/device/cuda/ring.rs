//! Pinned buffers and what they are copied to, two of each: while one is on its way to the device
//! the other is filled.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DriverError, PinnedHostSlice};
use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

/// Two laps that take turns.
pub(super) struct Ring {
    laps: [Lap; 2],
    current: usize,
}

/// Rows and a list of where they go from there: from pinned host memory to the device.
pub(super) struct Lap {
    rows: PinnedHostSlice<u8>,
    words: PinnedHostSlice<u32>,
    /// Recorded after the last copy out of `rows` and `words`.
    copied: CudaEvent,
    pub(super) landed_rows: CudaSlice<u8>,
    pub(super) landed_words: CudaSlice<u32>,
}

impl Ring {
    /// Returns laps of `rows_bytes` and `n_words`, whose memory on the device is allocated on
    /// `stream`.
    pub(super) fn new(
        stream: &Arc<CudaStream>,
        rows_bytes: usize,
        n_words: usize,
    ) -> Result<Self, DriverError> {
        let lap = || Lap::new(stream, rows_bytes, n_words);
        Ok(Self { laps: [lap()?, lap()?], current: 0 })
    }

    /// Returns the lap that was used longest ago.
    pub(super) fn current(&mut self) -> &mut Lap {
        &mut self.laps[self.current]
    }

    /// Ends the current lap's turn.
    pub(super) fn turn(&mut self) {
        self.current = 1 - self.current;
    }

    /// Returns the memory of both, in bytes: pinned and on the device.
    pub(super) fn bytes(&self) -> (usize, usize) {
        let laps = || self.laps.iter();
        (
            laps().map(|lap| lap.rows.num_bytes() + lap.words.num_bytes()).sum(),
            laps().map(|lap| lap.landed_rows.num_bytes() + lap.landed_words.num_bytes()).sum(),
        )
    }
}

impl Lap {
    fn new(
        stream: &Arc<CudaStream>,
        rows_bytes: usize,
        n_words: usize,
    ) -> Result<Self, DriverError> {
        let context = stream.context();
        // The driver refuses allocations of nothing.
        let (rows_bytes, n_words) = (rows_bytes.max(1), n_words.max(1));
        Ok(Self {
            rows: pinned(context, rows_bytes)?,
            words: pinned(context, n_words)?,
            copied: context.new_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC))?,
            landed_rows: stream.alloc_zeros(rows_bytes)?,
            landed_words: stream.alloc_zeros(n_words)?,
        })
    }

    /// Waits until nothing is copied out of this lap any more.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        self.copied.synchronize()
    }

    /// Returns the pinned rows, after a [`Lap::wait`].
    pub(super) fn rows_mut(&mut self) -> Result<&mut [u8], DriverError> {
        self.rows.as_mut_slice()
    }

    /// Returns the pinned rows and their counterpart on the device.
    pub(super) fn rows_and_landed(&mut self) -> Result<(&mut [u8], &CudaSlice<u8>), DriverError> {
        Ok((self.rows.as_mut_slice()?, &self.landed_rows))
    }

    /// Begins to copy the first `n_row_bytes` of the rows, and `words`, to the device.
    pub(super) fn send(
        &mut self,
        copies: &Arc<CudaStream>,
        n_row_bytes: usize,
        words: &[u32],
    ) -> Result<(), DriverError> {
        self.wait()?;
        let sent = self.begin_copies(copies, n_row_bytes, words);
        // Also when the second copy could not be begun: the first may be on its way.
        self.copied.record(copies)?;
        sent
    }

    /// Starts the copies of rows and a list. cudarc does not track them, as it takes parts of
    /// pinned memory for ordinary slices; `copied` does.
    fn begin_copies(
        &mut self,
        copies: &Arc<CudaStream>,
        n_row_bytes: usize,
        words: &[u32],
    ) -> Result<(), DriverError> {
        let list = &mut self.words.as_mut_slice()?[..words.len()];
        list.copy_from_slice(words);
        copies.memcpy_htod(list, &mut self.landed_words.slice_mut(..words.len()))?;
        if n_row_bytes > 0 {
            let rows = &self.rows.as_slice()?[..n_row_bytes];
            copies.memcpy_htod(rows, &mut self.landed_rows.slice_mut(..n_row_bytes))?;
        }
        Ok(())
    }
}

/// Returns page-locked memory of zeros. Not write-combined: staged rows are read again on the host.
#[expect(unsafe_code, reason = "the driver allocates uninitialised memory")]
fn pinned<T: DeviceRepr + ValidAsZeroBits>(
    context: &Arc<CudaContext>,
    len: usize,
) -> Result<PinnedHostSlice<T>, DriverError> {
    // SAFETY: it is written below before any read.
    let mut memory = unsafe { context.alloc_pinned_with_flags::<T>(len, 0) }?;
    let start = memory.as_mut_ptr()?;
    // SAFETY: the allocation has `len` values, aligned for `T`, and zero is a valid `T`.
    unsafe { start.write_bytes(0, len) };
    Ok(memory)
}
