//! A tier on a device: a directory of rows, and batches gathered where they are used.

use crate::aged::{AgedDirectory, Evicted};
use crate::capacity::TierSpec;
use crate::directory::{Directory, Placement, TierStats};
use crate::policy::PolicySpec;
use crate::slots::absent;

use super::{BatchTensor, Device, DeviceError, GatherError, Memory, RowMove};

/// Rows of one tensor on a device, gathered and filled in batches by one owner.
///
/// Rows that are resident are gathered on the device; the others are fetched by the owner into
/// staging memory and copied from there. Both end up in one [`BatchTensor`], and what the policy
/// likes of the fetched rows stays. Over host memory the same happens, with the same result.
///
/// ```
/// use lodestore_cache::{DeviceTier, PolicySpec};
/// use lodestore_cache::device::{Device, DeviceSettings, TierShape};
///
/// let settings = DeviceSettings::default();
/// let shape = TierShape { capacity_rows: 2, row_bytes: 4, id_space: 1000 };
/// let mut tier = DeviceTier::new(&Device::host(), shape, &PolicySpec::Lru, settings)?;
/// let mut tensor = tier.tensor(3)?;
/// let fetch = |ids: &[u32], rows: &mut [u8]| {
///     for (id, row) in ids.iter().zip(rows.chunks_exact_mut(4)) {
///         row.copy_from_slice(&id.to_le_bytes());
///     }
///     Ok::<(), std::io::Error>(())
/// };
/// tier.gather(&[7, 9], &mut tensor, fetch)?;
/// tier.gather(&[9, 5, 7], &mut tensor, fetch)?; // fetches 5 only
/// let mut rows = [0; 12];
/// tensor.read(&mut rows)?;
/// assert_eq!(rows, [9, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0]);
/// assert_eq!(tier.stats().misses, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeviceTier {
    pub(crate) residents: AgedDirectory,
    memory: Memory,
    slots: Vec<u32>,
    /// Positions of the current batch that are not resident, ascending.
    pub(crate) misses: Vec<u32>,
    /// When each position's row was right.
    pub(crate) stamps: Vec<u32>,
    /// Rows that the last admission keeps and evicts.
    pub(crate) placements: Vec<Placement>,
    pub(crate) evicted: Vec<Evicted>,
    /// The rows of the last admission have not come yet.
    is_open: bool,
    moves: Vec<RowMove>,
}

/// Options of a device tier beside its size and policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Bytes of each of the two staging buffers, which are pinned for a CUDA device. A fetch is
    /// asked for at most as many rows as fit, or one.
    pub staging_bytes: usize,
    /// Greatest age at which a row may be used, in the time of [`DeviceTier::advance`] (CaPGNN,
    /// section 4.2: the staleness bound ε). `None` for rows that never change.
    pub max_age: Option<u32>,
}

impl Default for DeviceSettings {
    /// Returns settings with 8 MiB for each of the two staging buffers, and no bound on age.
    fn default() -> Self {
        Self { staging_bytes: 8 << 20, max_age: None }
    }
}

/// Staging takes at most one part in this many of the room that a tier is given.
const STAGING_PART: usize = 8;

/// Size of a tier, and of what it caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierShape {
    /// Slots of the tier.
    pub capacity_rows: u32,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// All ids are below this.
    pub id_space: u32,
}

impl DeviceTier {
    /// Returns a tier within the free room, for the wanted rows. On a device the room is for slots
    /// and staging, in host memory for all of [`DeviceTier::bytes`]. Staging takes at most an
    /// eighth of it, but always enough for one row.
    ///
    /// Fails as [`DeviceTier::new`].
    pub fn within(
        device: &Device,
        room: TierSpec,
        id_space: u32,
        spec: &PolicySpec,
        max_age: Option<u32>,
    ) -> Result<Self, DeviceError> {
        let row_bytes = usize::try_from(room.row_bytes).unwrap_or(usize::MAX);
        let free_bytes = room.free_bytes.saturating_sub(room.reserve_bytes);
        let most = usize::try_from(free_bytes).unwrap_or(usize::MAX) / STAGING_PART;
        let usual = DeviceSettings { max_age, ..DeviceSettings::default() };
        let staging_bytes = usual.staging_bytes.min(most / Memory::n_staging_buffers(device));
        let staged = Memory::staged_bytes(device, row_bytes, staging_bytes) as u64;
        let room = TierSpec { reserve_bytes: room.reserve_bytes.saturating_add(staged), ..room };
        let n_rows = if device.is_host() {
            room.rows_with_bookkeeping(AgedDirectory::slot_bytes(max_age), id_space, spec)
        } else {
            room.rows()
        };
        let settings = DeviceSettings { staging_bytes, ..usual };
        let shape = TierShape { capacity_rows: n_rows, row_bytes, id_space };
        Self::new(device, shape, spec, settings)
    }

    /// Returns a tier of this shape; see [`Directory::new`].
    ///
    /// Fails when `row_bytes` is 0 or above 2³⁰, the policy's inputs make no sense, or the device
    /// or the system refuses the memory.
    pub fn new(
        device: &Device,
        shape: TierShape,
        spec: &PolicySpec,
        settings: DeviceSettings,
    ) -> Result<Self, DeviceError> {
        let TierShape { capacity_rows, row_bytes, id_space } = shape;
        let residents = AgedDirectory::new(capacity_rows, id_space, spec, settings.max_age)?;
        let n_slots = residents.directory().n_slots();
        Ok(Self {
            residents,
            memory: Memory::new(device, n_slots, row_bytes, settings.staging_bytes)?,
            slots: Vec::new(),
            misses: Vec::new(),
            stamps: Vec::new(),
            placements: Vec::new(),
            evicted: Vec::new(),
            is_open: false,
            moves: Vec::new(),
        })
    }

    /// Returns a tensor on this tier's device with room for batches of up to `n_rows` ids.
    ///
    /// Fails when the device has no memory for it.
    pub fn tensor(&self, n_rows: usize) -> Result<BatchTensor, DeviceError> {
        self.memory.tensor(n_rows)
    }

    /// Puts the rows of `ids` into `tensor`, in their order, and keeps what the policy likes of
    /// those that had to be fetched. `fetch` is called with ids, in the order of the batch, and the
    /// memory for their rows, back to back. It must fill all of it with the rows as they are by
    /// now. While it runs, the rows before are on their way to the device. A repeated id that is
    /// not resident is fetched twice.
    ///
    /// On a CUDA device the gather has only begun when this returns: see
    /// [`BatchTensor::as_cuda`] and [`BatchTensor::read`].
    ///
    /// Fails when the fetch or the device does, or the tensor is too small or on another device;
    /// then the tensor's contents mean nothing. After a failed fetch the tier is as it was.
    pub fn gather<E>(
        &mut self,
        ids: &[u32],
        tensor: &mut BatchTensor,
        mut fetch: impl FnMut(&[u32], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), GatherError<E>> {
        self.begin(ids, tensor)?;
        let misses = std::mem::take(&mut self.misses);
        let mut missed = Vec::with_capacity(misses.len().min(self.memory.staging_rows()));
        let brought = self.bring(&misses, tensor, |positions, rows| {
            missed.clear();
            missed.extend(positions.iter().map(|&position| ids[position as usize]));
            fetch(&missed, rows)
        });
        self.misses = misses;
        brought?;
        self.admit_misses(ids);
        Ok(self.keep(tensor)?)
    }

    /// Puts the rows in `slots` into `tensor`, for an owner that knows from
    /// [`DeviceTier::directory`] what is where. No policy learns of it: this is the gather alone,
    /// as it is measured beside a copy within the device.
    ///
    /// Fails like [`DeviceTier::gather`].
    ///
    /// # Panics
    ///
    /// When one of them is not a slot.
    pub fn gather_slots(
        &mut self,
        slots: &[u32],
        tensor: &mut BatchTensor,
    ) -> Result<(), DeviceError> {
        tensor.begin(slots.len().saturating_mul(self.row_bytes()))?;
        self.memory.gather(slots, tensor)
    }

    /// Begins a batch: gathers the resident rows, and writes the positions of the others to
    /// `misses`.
    pub(crate) fn begin(
        &mut self,
        ids: &[u32],
        tensor: &mut BatchTensor,
    ) -> Result<(), DeviceError> {
        tensor.begin(ids.len().saturating_mul(self.row_bytes()))?;
        self.settle();
        self.residents.lookup(ids, &mut self.slots);
        self.misses.clear();
        self.misses.extend(absent(&self.slots));
        self.stamps.clear();
        self.stamps.resize(ids.len(), self.residents.now());
        if self.misses.len() == ids.len() {
            Ok(())
        } else {
            self.memory.gather(&self.slots, tensor)
        }
    }

    /// Brings the rows at `positions` into the tensor: `fill` is called for as many of them as
    /// fit into a staging buffer.
    pub(crate) fn bring<E>(
        &mut self,
        positions: &[u32],
        tensor: &mut BatchTensor,
        mut fill: impl FnMut(&[u32], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), GatherError<E>> {
        for positions in positions.chunks(self.memory.staging_rows()) {
            let n_bytes = positions.len() * self.row_bytes();
            let staging = &mut self.memory.staging()?[..n_bytes];
            fill(positions, staging).map_err(GatherError::Fetch)?;
            self.memory.place_staged(positions, tensor)?;
        }
        Ok(())
    }

    /// Decides which of the misses stay.
    pub(crate) fn admit_misses(&mut self, ids: &[u32]) {
        let Self { residents, stamps, misses, placements, evicted, .. } = self;
        self.is_open = true;
        residents.admit(ids, stamps, misses, placements, evicted);
    }

    /// Copies what was admitted from the tensor to its slots, with the stamps that it has come
    /// with.
    pub(crate) fn keep(&mut self, tensor: &BatchTensor) -> Result<(), DeviceError> {
        self.moves.clear();
        for &Placement { position, slot } in &self.placements {
            self.residents.restamp(slot, self.stamps[position as usize]);
            self.moves.push(RowMove { from: position, to: slot });
        }
        self.memory.keep(tensor, &self.moves)?;
        self.is_open = false;
        Ok(())
    }

    /// Takes back an admission whose rows did not come, because a fetch or the device failed or
    /// panicked.
    pub(crate) fn settle(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.residents.retract(&self.placements);
        }
    }

    /// Reads the rows that the last admission evicts, before it is carried out.
    pub(crate) fn read_evicted(&mut self, rows: &mut Vec<u8>) -> Result<(), DeviceError> {
        self.slots.clear();
        self.slots.extend(self.evicted.iter().map(|evicted| evicted.slot));
        rows.resize(self.slots.len() * self.row_bytes(), 0);
        self.memory.read(&self.slots, rows)
    }

    /// Takes rows out, for they have changed elsewhere; see [`Directory::remove`].
    pub fn remove(&mut self, ids: &[u32]) {
        self.residents.remove(ids);
    }

    /// Sets the time to `now`, which never runs back. Rows fetched from here on are of `now`, and
    /// those older than the bound are fetched again.
    pub fn advance(&mut self, now: u32) {
        self.residents.advance(now);
    }

    /// Ends the last batch and sets the rows for `frequency`, see [`Directory::retarget`].
    pub(crate) fn retarget(&mut self, ids: &[u32]) {
        self.residents.retarget(ids);
    }

    /// Returns what is resident, and why.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        self.residents.directory()
    }

    /// Returns the device, as reports name it.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.memory.device()
    }

    /// Returns the bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.memory.row_bytes()
    }

    /// Returns the memory of slots, staging and bookkeeping, in bytes, wherever it is. Tensors are
    /// extra.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes() + self.residents.bytes()
    }

    /// Returns counts since the tier was made. A row that was too old is a miss.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        self.residents.stats()
    }
}

#[cfg(test)]
mod tests;
