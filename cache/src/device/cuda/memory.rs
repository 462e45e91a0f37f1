//! The slots of a device tier in a device's memory.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};

use super::super::{DeviceError, RowMove};
use super::ring::Ring;
use super::{CudaDevice, failed};

/// Moves that travel together when no rows do: most batches are one launch.
const MOVES_PER_LIST: usize = 1 << 17;

/// Slots, staging, and the two streams that everything is done on: `copies` brings rows and moves
/// from pinned host memory, `rows` moves rows within the device. So rows of the next piece travel
/// while those of the last are being placed.
///
/// Order between the streams is kept by the events that cudarc records for every allocation: a use
/// waits for what was written, a write for what was read. Pinned memory has events of its own.
pub(in super::super) struct CudaMemory {
    device: Arc<CudaDevice>,
    slots: CudaSlice<u8>,
    /// Rows with their moves, and moves alone.
    staging: Ring,
    lists: Ring,
    copies: Arc<CudaStream>,
    rows: Arc<CudaStream>,
    row_bytes: u32,
    /// What failed first: after that nobody knows what the memory holds.
    lost: Option<&'static str>,
}

impl CudaMemory {
    pub(in super::super) fn new(
        device: &Arc<CudaDevice>,
        n_slots: u32,
        row_bytes: usize,
        staging_rows: usize,
    ) -> Result<Self, DeviceError> {
        let stream = || device.context.new_stream().map_err(failed("make a stream"));
        let (copies, rows) = (stream()?, stream()?);
        let slots_bytes = (n_slots as usize).saturating_mul(row_bytes).max(1);
        let allocated = failed("allocate the slots; give the tier a smaller capacity");
        let slots = rows.alloc_zeros(slots_bytes).map_err(allocated)?;
        let ring = |rows_bytes, n_moves| {
            Ring::new(&rows, rows_bytes, n_moves).map_err(failed("allocate staging buffers"))
        };
        Ok(Self {
            slots,
            staging: ring(staging_rows * row_bytes, staging_rows)?,
            lists: ring(0, MOVES_PER_LIST)?,
            device: Arc::clone(device),
            copies,
            rows,
            row_bytes: row_bytes as u32,
            lost: None,
        })
    }

    pub(in super::super) fn tensor(&self, bytes: usize) -> Result<CudaSlice<u8>, DeviceError> {
        self.rows.alloc_zeros(bytes.max(1)).map_err(failed("allocate a batch tensor"))
    }

    /// What staging for so many rows takes of the device's memory, in bytes.
    pub(in super::super) fn landed_bytes(row_bytes: usize, staging_rows: usize) -> usize {
        let staged = staging_rows.saturating_mul(row_bytes.saturating_add(size_of::<RowMove>()));
        let lap = staged.saturating_add(MOVES_PER_LIST * size_of::<RowMove>());
        // Two laps of each ring; that of moves alone has a byte for its rows.
        lap.saturating_add(1).saturating_mul(2)
    }

    /// Pinned memory and memory of the device.
    pub(in super::super) fn bytes(&self) -> usize {
        let rings = [self.staging.bytes(), self.lists.bytes()];
        self.slots.len() + rings.iter().map(|(pinned, landed)| pinned + landed).sum::<usize>()
    }

    pub(in super::super) fn staging(&mut self) -> Result<&mut [u8], DeviceError> {
        self.guarded("wait for a staging buffer", |memory| memory.staging.current().wait())?;
        self.staging.current().rows_mut().map_err(failed("use a staging buffer"))
    }

    pub(in super::super) fn gather(
        &mut self,
        moves: &[RowMove],
        tensor: &mut CudaSlice<u8>,
    ) -> Result<(), DeviceError> {
        self.check(moves, self.slots.len(), tensor.len());
        self.guarded("gather rows", |memory| {
            for moves in moves.chunks(MOVES_PER_LIST) {
                let lap = memory.lists.current();
                lap.send(&memory.copies, 0, moves)?;
                let list = (&lap.landed_moves, moves.len() as u32);
                let blocks = (&memory.slots, &mut *tensor);
                launch(&memory.device, &memory.rows, blocks, list, memory.row_bytes)?;
                memory.lists.turn();
            }
            Ok(())
        })
    }

    pub(in super::super) fn keep(
        &mut self,
        tensor: &CudaSlice<u8>,
        moves: &[RowMove],
    ) -> Result<(), DeviceError> {
        self.check(moves, tensor.len(), self.slots.len());
        self.guarded("keep rows", |memory| {
            for moves in moves.chunks(MOVES_PER_LIST) {
                let lap = memory.lists.current();
                lap.send(&memory.copies, 0, moves)?;
                let list = (&lap.landed_moves, moves.len() as u32);
                let blocks = (tensor, &mut memory.slots);
                launch(&memory.device, &memory.rows, blocks, list, memory.row_bytes)?;
                memory.lists.turn();
            }
            Ok(())
        })
    }

    pub(in super::super) fn place_staged(
        &mut self,
        moves: &[RowMove],
        tensor: &mut CudaSlice<u8>,
    ) -> Result<(), DeviceError> {
        let n_row_bytes = self.staged_bytes(moves);
        self.check(moves, n_row_bytes, tensor.len());
        self.guarded("place staged rows", |memory| {
            let lap = memory.staging.current();
            lap.send(&memory.copies, n_row_bytes, moves)?;
            let list = (&lap.landed_moves, moves.len() as u32);
            let blocks = (&lap.landed_rows, tensor);
            launch(&memory.device, &memory.rows, blocks, list, memory.row_bytes)?;
            memory.staging.turn();
            Ok(())
        })
    }

    pub(in super::super) fn read(
        &mut self,
        slots: &[u32],
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        let row_bytes = self.row_bytes as usize;
        let rows_per_lap = self.staging.current().landed_rows.len() / row_bytes;
        let pieces = slots.chunks(rows_per_lap).zip(out.chunks_mut(rows_per_lap * row_bytes));
        for (slots, out) in pieces {
            let moves: Vec<RowMove> =
                (0..).zip(slots).map(|(to, &from)| RowMove { from, to }).collect();
            self.check(&moves, self.slots.len(), out.len());
            self.guarded("read rows", |memory| memory.read_lap(&moves, out))?;
        }
        Ok(())
    }

    fn read_lap(&mut self, moves: &[RowMove], out: &mut [u8]) -> Result<(), DriverError> {
        let lap = self.staging.current();
        lap.send(&self.copies, 0, moves)?;
        let list = (&lap.landed_moves, moves.len() as u32);
        let blocks = (&self.slots, &mut lap.landed_rows);
        launch(&self.device, &self.rows, blocks, list, self.row_bytes)?;
        let (pinned, landed) = lap.rows_and_landed()?;
        let pinned = &mut pinned[..out.len()];
        self.rows.memcpy_dtoh(&landed.slice(..out.len()), pinned)?;
        self.rows.synchronize()?;
        out.copy_from_slice(pinned);
        Ok(())
    }

    /// Staged rows are filled and sent from the start on.
    fn staged_bytes(&self, moves: &[RowMove]) -> usize {
        let n_rows = moves.iter().map(|row| row.from as usize + 1).max().unwrap_or(0);
        n_rows * self.row_bytes as usize
    }

    /// # Panics
    ///
    /// Unless all moves are from rows within `from_bytes` to rows within `to_bytes`: a kernel
    /// would write over other memory.
    fn check(&self, moves: &[RowMove], from_bytes: usize, to_bytes: usize) {
        let row_bytes = self.row_bytes as usize;
        let (n_from, n_to) = (from_bytes / row_bytes, to_bytes / row_bytes);
        let inside = |row: &RowMove| (row.from as usize) < n_from && (row.to as usize) < n_to;
        assert!(moves.iter().all(inside), "a row outside {n_from} or {n_to} rows");
    }

    pub(in super::super) fn check_not_lost(&self) -> Result<(), DeviceError> {
        self.lost.map_or(Ok(()), |action| Err(DeviceError::Lost { action }))
    }

    /// Does something unless something failed before; when it fails, waits until the device is
    /// done with our memory.
    fn guarded<T>(
        &mut self,
        action: &'static str,
        operation: impl FnOnce(&mut Self) -> Result<T, DriverError>,
    ) -> Result<T, DeviceError> {
        self.check_not_lost()?;
        // Where nothing can be returned, as on the way into a launch, cudarc keeps the error.
        let done = operation(self).and_then(|done| self.device.context.check_err().map(|()| done));
        done.map_err(|source| {
            self.lost = Some(action);
            self.finish();
            DeviceError::Driver { action, source }
        })
    }

    /// Waits for both streams. A stream that fails has stopped.
    fn finish(&self) {
        let _stopped_if_failed = self.copies.synchronize();
        let _stopped_if_failed = self.rows.synchronize();
    }
}

impl Drop for CudaMemory {
    /// Pinned memory is freed at once, so nothing may be copied out of it any more.
    fn drop(&mut self) {
        self.finish();
    }
}

#[expect(unsafe_code, reason = "a kernel trusts its arguments")]
fn launch(
    device: &CudaDevice,
    stream: &CudaStream,
    blocks: (&CudaSlice<u8>, &mut CudaSlice<u8>),
    list: (&CudaSlice<u32>, u32),
    row_bytes: u32,
) -> Result<(), DriverError> {
    if list.1 == 0 {
        return Ok(());
    }
    // SAFETY: every caller has checked that the moves that it sent are inside of both blocks, and
    // the launch waits until they have landed. No two of a list have the same target: positions
    // of a batch, rows of a lap and slots of an admission stand there once each.
    unsafe { device.move_rows.launch(stream, blocks, list, row_bytes) }
}
