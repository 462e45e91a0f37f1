//! Two tiers, a device's over the host's, behind one lookup.

use crate::Directory;
use crate::bypass::Bypass;
use crate::device::{BatchTensor, Device, DeviceError, DeviceTier, GatherError};
use crate::index::NO_SLOT;
use crate::policy::PolicyKind;

mod host_level;
mod spec;

use host_level::HostLevel;
pub use spec::{Inclusion, LevelsError, LevelsSpec, LevelsStats};

/// A device tier over a host tier (CaPGNN, section 4.2), for the rows of one tensor and one owner.
///
/// A batch is looked up on the device; what misses there, in the host tier; what misses there too
/// is fetched by the owner, in the order of the batch. All of it ends up in one tensor.
pub struct Levels {
    device: DeviceTier,
    host: HostLevel,
    inclusion: Inclusion,
    bypass: Option<Bypass>,
    /// Hits and accesses of the epoch, of both tiers together.
    epoch_hits: u64,
    epoch_accesses: u64,
    stats: LevelsStats,
    /// Rows on their way from the device to the host.
    demoted: Vec<u8>,
    /// Ids to be fetched, or that leave the host.
    missed: Vec<u32>,
}

impl Levels {
    /// Fails when the host's policy is `oracle`, the policies' inputs or the width make no sense,
    /// or the device or the system refuses the memory.
    pub fn new(device: &Device, spec: &LevelsSpec) -> Result<Self, LevelsError> {
        let kind = spec.host_policy.kind();
        if kind == PolicyKind::Oracle {
            return Err(LevelsError::Policy { kind });
        }
        let device = DeviceTier::new(
            device,
            spec.device_rows,
            spec.row_bytes,
            spec.id_space,
            &spec.device_policy,
            spec.settings,
        )?;
        Ok(Self {
            device,
            host: HostLevel::new(spec)?,
            inclusion: spec.inclusion,
            bypass: spec.bypass.map(Bypass::new),
            epoch_hits: 0,
            epoch_accesses: 0,
            stats: LevelsStats::default(),
            demoted: Vec::new(),
            missed: Vec::new(),
        })
    }

    /// A tensor on the device for batches of up to `n_rows` ids.
    ///
    /// Fails when the device has no memory for it.
    pub fn tensor(&self, n_rows: usize) -> Result<BatchTensor, DeviceError> {
        self.device.tensor(n_rows)
    }

    /// Puts the rows of `ids` into `tensor`, in their order; see [`DeviceTier::gather`]. `fetch`
    /// is asked for what neither tier has.
    ///
    /// Fails when the fetch or the device does, or the tensor is too small or on another device;
    /// then the tensor's contents mean nothing. After a failed fetch both tiers go on, without
    /// the rows that were about to move.
    pub fn gather<E>(
        &mut self,
        ids: &[u32],
        tensor: &mut BatchTensor,
        mut fetch: impl FnMut(&[u32], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), GatherError<E>> {
        if self.is_bypassed() {
            return self.go_past(ids, tensor, fetch);
        }
        self.device.begin(ids, tensor)?;
        self.host.begin(ids, &self.device.misses, &mut self.device.stamps);
        let host = &self.host;
        let copy_up = |positions: &[u32], rows: &mut [u8]| host.copy(positions, rows);
        self.device.bring(&host.hits, tensor, copy_up).map_err(GatherError::without_fetch)?;
        self.count_batch(ids.len());
        self.device.admit_misses(ids);
        self.settle(ids)?;

        let (device, host, missed) = (&mut self.device, &mut self.host, &mut self.missed);
        let misses = std::mem::take(&mut host.misses);
        let brought = device.bring(&misses, tensor, |positions, rows| {
            missed.clear();
            missed.extend(positions.iter().map(|&position| ids[position as usize]));
            fetch(missed, rows)?;
            host.keep(positions, rows);
            Ok(())
        });
        host.misses = misses;
        if brought.is_err() {
            device.retract();
            host.retract();
        }
        brought?;
        Ok(device.keep(tensor)?)
    }

    /// Both tiers as they are; every row is fetched.
    fn go_past<E>(
        &mut self,
        ids: &[u32],
        tensor: &mut BatchTensor,
        mut fetch: impl FnMut(&[u32], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), GatherError<E>> {
        tensor.begin(ids.len().saturating_mul(self.device.row_bytes()))?;
        self.stats.bypassed += ids.len() as u64;
        let positions: Vec<u32> = (0..ids.len() as u32).collect();
        self.device.bring(&positions, tensor, |positions, rows| {
            let first = positions[0] as usize;
            fetch(&ids[first..first + positions.len()], rows)
        })
    }

    fn count_batch(&mut self, n_ids: usize) {
        self.epoch_accesses += n_ids as u64;
        self.epoch_hits += (n_ids - self.host.misses.len()) as u64;
    }

    /// The device has decided what stays of a batch or an offer and what goes for it; the host
    /// decides what it keeps of the rest.
    fn settle(&mut self, ids: &[u32]) -> Result<(), DeviceError> {
        let (device, host) = (&mut self.device, &mut self.host);
        let positions = device.placements.iter().map(|placed| placed.position);
        let moves_up = |position: &u32| host.is_hit(*position);
        self.stats.promotions += positions.clone().filter(moves_up).count() as u64;
        if self.inclusion == Inclusion::Inclusive {
            host.admit(ids, &device.stamps, |_| true);
            return Ok(());
        }
        self.missed.clear();
        self.missed.extend(positions.map(|position| ids[position as usize]));
        device.read_evicted(&mut self.demoted)?;
        host.remove(&self.missed);
        self.stats.demotions += host.take(&device.evicted, &self.demoted);
        let directory = device.residents.directory();
        host.admit(ids, &device.stamps, |id| directory.slot_of(id) == NO_SLOT);
        Ok(())
    }

    /// Offers rows of the current epoch beside a batch: what [`Levels::wanted`] asked for, or a
    /// hot set; see [`DeviceTier::offer`].
    ///
    /// Fails when the device does.
    ///
    /// # Panics
    ///
    /// Unless there is exactly one row per id.
    pub fn offer(&mut self, ids: &[u32], rows: &[u8]) -> Result<(), DeviceError> {
        self.device.check_rows(ids, rows);
        self.device.admit_all(ids);
        self.host.begin_offer(ids.len());
        self.settle(ids)?;
        self.host.keep_all(rows);
        self.device.load(rows)
    }

    /// Writes the current epoch's rows over those of `ids` that are resident in either tier.
    ///
    /// Fails when the device does.
    ///
    /// # Panics
    ///
    /// Unless there is exactly one row per id.
    pub fn refresh(&mut self, ids: &[u32], rows: &[u8]) -> Result<(), DeviceError> {
        self.device.check_rows(ids, rows);
        self.host.refresh(ids, rows);
        self.device.refresh(ids, rows)
    }

    /// Takes rows out of both, for they have changed elsewhere.
    pub fn remove(&mut self, ids: &[u32]) {
        self.device.remove(ids);
        self.host.remove(ids);
    }

    /// An epoch ends and another begins: rows older than the bound are fetched again, and whether
    /// the tiers are worth their while is decided by the hit rate of the one that ends.
    pub fn begin_epoch(&mut self, epoch: u32) {
        if let Some(bypass) = &mut self.bypass {
            bypass.end_epoch(self.epoch_hits, self.epoch_accesses);
        }
        (self.epoch_hits, self.epoch_accesses) = (0, 0);
        self.device.begin_epoch(epoch);
        self.host.begin_epoch(epoch);
    }

    /// Whether batches go past both tiers.
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.bypass.as_ref().is_some_and(Bypass::is_bypassing)
    }

    /// For an `oracle` on the device: see [`Directory::announce`].
    pub fn announce(&mut self, next_uses: &[u32]) {
        self.device.announce(next_uses);
    }

    /// For `frequency`: the last batch is over, and these are the rows of the next epoch, the best
    /// first, on the device and in host memory; see [`Directory::retarget`].
    pub fn retarget(&mut self, device_ids: &[u32], host_ids: &[u32]) {
        self.device.end_batch();
        self.device.retarget(device_ids);
        self.host.retarget(host_ids);
    }

    /// Rows that either policy wants and neither tier has: see [`Directory::wanted`].
    pub fn wanted(&self, ids: &mut Vec<u32>) {
        self.device.wanted(ids);
        let mut of_host = Vec::new();
        self.host.directory().wanted(&mut of_host);
        let has = |&id: &u32| self.device.directory().slot_of(id) != NO_SLOT;
        ids.extend(of_host.iter().filter(|id| !has(id)));
        ids.sort_unstable();
        ids.dedup();
    }

    /// The tier on the device.
    #[must_use]
    pub fn device(&self) -> &DeviceTier {
        &self.device
    }

    /// What is resident in host memory, and why.
    #[must_use]
    pub fn host(&self) -> &Directory {
        self.host.directory()
    }

    /// Memory of both with all bookkeeping, in bytes, wherever it is. Tensors are extra.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.device.bytes() + self.host.bytes()
    }

    /// Counts since the start.
    #[must_use]
    pub fn stats(&self) -> LevelsStats {
        let (device, host) = (self.device.stats(), self.host.stats());
        let stale = self.device.n_stale() + self.host.n_stale();
        LevelsStats { device, host, stale, ..self.stats }
    }
}

#[cfg(test)]
mod tests;
