//! The slots of a device tier in a device's memory.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};

use super::super::{DeviceError, RowMove};
use super::kernel::{List, ListKind};
use super::ring::Ring;
use super::{CudaDevice, failed};

/// Words of a list that travels without rows: most batches are one launch.
const WORDS_PER_LIST: usize = 1 << 18;

/// Slots, staging, and the two streams of all work. `copies` brings rows and lists from pinned host
/// memory, and `rows` moves rows within the device. So rows of the next piece travel while those of
/// the last are being placed.
///
/// Events that cudarc records for every allocation order the streams: a use waits for writes before
/// it, and a write for reads. Pinned memory has events of its own.
pub(in super::super) struct CudaMemory {
    device: Arc<CudaDevice>,
    slots: CudaSlice<u8>,
    /// Rows with where they go, and lists alone.
    staging: Ring,
    lists: Ring,
    copies: Arc<CudaStream>,
    rows: Arc<CudaStream>,
    row_bytes: u32,
    /// The first failure: after that the contents of the memory are unknown.
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
        let ring = |rows_bytes, n_words| {
            Ring::new(&rows, rows_bytes, n_words).map_err(failed("allocate staging buffers"))
        };
        Ok(Self {
            slots,
            staging: ring(staging_rows * row_bytes, staging_rows)?,
            lists: ring(0, WORDS_PER_LIST)?,
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

    /// Returns the device memory of a staging buffer for this many rows, in bytes.
    pub(in super::super) fn landed_bytes(row_bytes: usize, staging_rows: usize) -> usize {
        let staged = staging_rows.saturating_mul(row_bytes.saturating_add(size_of::<u32>()));
        let lap = staged.saturating_add(WORDS_PER_LIST * size_of::<u32>());
        // Two laps of each ring; that of lists alone has a byte for its rows.
        lap.saturating_add(1).saturating_mul(2)
    }

    /// Returns the bytes of pinned memory and of memory of the device.
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
        slots: &[u32],
        tensor: &mut CudaSlice<u8>,
    ) -> Result<(), DeviceError> {
        self.check_slots(slots);
        assert!(slots.len() <= self.n_rows(tensor.len()), "a batch larger than its tensor");
        self.guarded("gather rows", |memory| {
            let mut first = 0;
            for slots in slots.chunks(WORDS_PER_LIST) {
                let lap = memory.lists.current();
                lap.send(&memory.copies, 0, slots)?;
                let list = List::new(&lap.landed_words, slots.len(), ListKind::Sources, first);
                let blocks = (&memory.slots, &mut *tensor);
                launch(&memory.device, &memory.rows, blocks, &list, memory.row_bytes)?;
                memory.lists.turn();
                first += slots.len() as u32;
            }
            Ok(())
        })
    }

    pub(in super::super) fn keep(
        &mut self,
        tensor: &CudaSlice<u8>,
        moves: &[RowMove],
    ) -> Result<(), DeviceError> {
        let (n_from, n_to) = (self.n_rows(tensor.len()), self.n_rows(self.slots.len()));
        let inside = |row: &RowMove| (row.from as usize) < n_from && (row.to as usize) < n_to;
        assert!(moves.iter().all(inside), "a row outside {n_from} or {n_to} rows");
        self.guarded("keep rows", |memory| {
            for moves in moves.chunks(WORDS_PER_LIST / 2) {
                let lap = memory.lists.current();
                lap.send(&memory.copies, 0, bytemuck::cast_slice(moves))?;
                let list = List::new(&lap.landed_words, moves.len(), ListKind::Pairs, 0);
                let blocks = (tensor, &mut memory.slots);
                launch(&memory.device, &memory.rows, blocks, &list, memory.row_bytes)?;
                memory.lists.turn();
            }
            Ok(())
        })
    }

    pub(in super::super) fn place_staged(
        &mut self,
        positions: &[u32],
        tensor: &mut CudaSlice<u8>,
    ) -> Result<(), DeviceError> {
        let n_rows = self.n_rows(tensor.len());
        let most = positions.iter().fold(0, |most, &position| most.max(position));
        assert!(positions.is_empty() || (most as usize) < n_rows, "position {most} of {n_rows}");
        self.guarded("place staged rows", |memory| {
            let lap = memory.staging.current();
            lap.send(&memory.copies, positions.len() * memory.row_bytes as usize, positions)?;
            let list = List::new(&lap.landed_words, positions.len(), ListKind::Targets, 0);
            let blocks = (&lap.landed_rows, tensor);
            launch(&memory.device, &memory.rows, blocks, &list, memory.row_bytes)?;
            memory.staging.turn();
            Ok(())
        })
    }

    pub(in super::super) fn read(
        &mut self,
        slots: &[u32],
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.check_slots(slots);
        let n_lap_bytes = self.staging.current().landed_rows.len();
        let rows_per_lap = self.n_rows(n_lap_bytes);
        let pieces = out.chunks_mut(rows_per_lap * self.row_bytes as usize);
        for (slots, out) in slots.chunks(rows_per_lap).zip(pieces) {
            self.guarded("read rows", |memory| memory.read_lap(slots, out))?;
        }
        Ok(())
    }

    fn read_lap(&mut self, slots: &[u32], out: &mut [u8]) -> Result<(), DriverError> {
        let lap = self.staging.current();
        lap.send(&self.copies, 0, slots)?;
        let list = List::new(&lap.landed_words, slots.len(), ListKind::Sources, 0);
        let blocks = (&self.slots, &mut lap.landed_rows);
        launch(&self.device, &self.rows, blocks, &list, self.row_bytes)?;
        let (pinned, landed) = lap.rows_and_landed()?;
        let pinned = &mut pinned[..out.len()];
        self.rows.memcpy_dtoh(&landed.slice(..out.len()), pinned)?;
        self.rows.synchronize()?;
        out.copy_from_slice(pinned);
        Ok(())
    }

    fn n_rows(&self, n_bytes: usize) -> usize {
        n_bytes / self.row_bytes as usize
    }

    /// # Panics
    ///
    /// Unless each is a slot or none: a kernel would read other memory.
    fn check_slots(&self, slots: &[u32]) {
        let n_slots = self.n_rows(self.slots.len());
        // With 1 added none is 0 and the largest is distinct; no branch, so that it takes next to
        // no time.
        let most = slots.iter().fold(0, |most, slot| most.max(slot.wrapping_add(1)));
        assert!(most as usize <= n_slots, "slot {} of {n_slots}", most.wrapping_sub(1));
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
    /// Waits for all copies, since pinned memory is freed immediately.
    fn drop(&mut self) {
        self.finish();
    }
}

#[expect(unsafe_code, reason = "a kernel trusts its arguments")]
fn launch(
    device: &CudaDevice,
    stream: &CudaStream,
    blocks: (&CudaSlice<u8>, &mut CudaSlice<u8>),
    list: &List<'_>,
    row_bytes: u32,
) -> Result<(), DriverError> {
    let (from, to) = blocks;
    // SAFETY: every caller has checked that the rows of its list are inside of both blocks, and the
    // launch waits until the list has landed. No two rows have the same target: positions of a
    // batch, rows of a lap and slots of an admission are unique in the list.
    unsafe { device.move_rows.launch(stream, from, to, list, row_bytes) }
}
