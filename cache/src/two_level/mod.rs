//! A device's tier over the host's, behind one lookup.

use std::sync::Arc;

use crate::bypass::{BypassSettings, Watch};
use crate::device::{BatchTensor, DeviceError, DeviceTier, GatherError};
use crate::directory::TierStats;
use crate::shared::{Invalidation, SharedTier};
use crate::slots::NO_SLOT;

mod host;

use host::HostLevel;

/// Which rows the two tiers may have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inclusion {
    /// Fetched rows are offered to both; rows of the host are offered to the device and stay. Each
    /// tier evicts by itself: a device hit is no news to the host, and its copy may go first.
    #[default]
    Inclusive,
    /// A row is in one tier at most. Fetched rows are offered to the device, and to the host if the
    /// device does not take them. Rows of the host move up if the device takes them, and evicted
    /// rows of the device move down if the host takes them. A batch that evicts waits for the
    /// device, once, to bring those rows down.
    ///
    /// Over a host tier of several workers that holds for each worker by itself. A row that moves
    /// up is lost to the others. One that two devices have may be on the host as well when one of
    /// them evicts it.
    Exclusive,
}

/// One worker's device tier, over the host tier of its machine if there is one (CaPGNN, section
/// 4.2), for the rows of one tensor.
///
/// A batch is looked up on the device, and its misses in the host tier. Rows that miss in both are
/// fetched by the owner, in the order of the batch. All of it ends up in one tensor. Time is
/// counted in batches of the worker that is ahead, and rows that are too old by that miss.
pub struct TwoLevelTier {
    device: DeviceTier,
    below: Option<HostLevel>,
    watch: Watch,
    n_batches: u32,
    n_bypassed: u64,
}

/// Rows of a batch that were not fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// On the device.
    pub device: u64,
    /// In host memory.
    pub host: u64,
}

/// Counters of two tiers since they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwoLevelStats {
    /// Lookups and changes of the device's tier.
    pub device: TierStats,
    /// Lookups and changes of the host's, which sees what devices miss: those of all workers.
    pub host: TierStats,
    /// Rows that went from the host to the device.
    pub promotions: u64,
    /// Rows that the device evicted and the host took.
    pub demotions: u64,
}

impl TwoLevelTier {
    /// Returns a device tier that is always used, over nothing.
    #[must_use]
    pub fn new(device: DeviceTier) -> Self {
        let watch = Watch::default();
        Self { device, below: None, watch, n_batches: 0, n_bypassed: 0 }
    }

    /// Returns the same over the host's tier.
    ///
    /// # Panics
    ///
    /// When the tiers have rows of different widths.
    #[must_use]
    pub fn over(mut self, host: Arc<SharedTier>, inclusion: Inclusion) -> Self {
        assert_eq!(host.row_bytes(), self.device.row_bytes(), "rows of one tensor");
        self.below = Some(HostLevel::new(host, inclusion));
        self
    }

    /// Makes batches go past the device while its hit rate stays too low. The host's tier has a
    /// bypass of its own: [`crate::shared::SharedSettings`].
    #[must_use]
    pub fn with_bypass(mut self, settings: Option<BypassSettings>) -> Self {
        self.watch = Watch::new(settings);
        self
    }

    /// Returns a tensor on the device for batches of up to `n_rows` ids.
    ///
    /// Fails when the device has no memory for it.
    pub fn tensor(&self, n_rows: usize) -> Result<BatchTensor, DeviceError> {
        self.device.tensor(n_rows)
    }

    /// Puts the rows of `ids` into `tensor`, in their order; see [`DeviceTier::gather`]. `fetch`
    /// is asked for what neither tier has, in pieces.
    ///
    /// Fails when the fetch or the device does, or the tensor is too small or on another device;
    /// then the tensor's contents mean nothing. After a failed fetch the tiers continue, without
    /// the rows that were about to move.
    pub fn gather<E>(
        &mut self,
        ids: &[u32],
        tensor: &mut BatchTensor,
        mut fetch: impl FnMut(&[u32], &mut [u8]) -> Result<(), E>,
    ) -> Result<Found, GatherError<E>> {
        self.begin_batch();
        if self.watch.is_resting() {
            self.watch.count(0, 0, self.device.directory().n_resident());
            return self.go_past(ids, tensor, fetch);
        }
        let found = match &mut self.below {
            None => {
                self.device.gather(ids, tensor, fetch)?;
                Found { device: (ids.len() - self.device.misses.len()) as u64, host: 0 }
            }
            Some(below) => gather(&mut self.device, below, ids, tensor, &mut fetch)?,
        };
        let n_resident = self.device.directory().n_resident();
        self.watch.count(found.device as usize, ids.len(), n_resident);
        Ok(found)
    }

    fn begin_batch(&mut self) {
        self.device.settle();
        self.n_batches = self.n_batches.saturating_add(1);
        let host = self.below.as_ref().map(HostLevel::host);
        let now = host.map_or(self.n_batches, |host| host.advance(self.n_batches));
        self.device.advance(now);
    }

    /// Returns the device's tier as it is. Rows that it has stay its own: an exclusive host does
    /// not take them.
    fn go_past<E>(
        &mut self,
        ids: &[u32],
        tensor: &mut BatchTensor,
        mut fetch: impl FnMut(&[u32], &mut [u8]) -> Result<(), E>,
    ) -> Result<Found, GatherError<E>> {
        tensor.begin(ids.len().saturating_mul(self.device.row_bytes()))?;
        self.n_bypassed += ids.len() as u64;
        let positions: Vec<u32> = (0..ids.len() as u32).collect();
        let below = &mut self.below;
        if let Some(below) = below {
            let directory = self.device.directory();
            below.begin(ids.iter().map(|&id| directory.slot_of(id) != NO_SLOT));
        }
        let mut host = 0;
        self.device.bring(&positions, tensor, |positions, rows| {
            let first = positions[0] as usize;
            match below {
                None => fetch(&ids[first..first + positions.len()], rows),
                Some(below) => {
                    let ids = positions.iter().map(|&at| ids[at as usize]);
                    host += below.bring(ids, first, rows, &[], &mut fetch)?;
                    Ok(())
                }
            }
        })?;
        Ok(Found { device: 0, host })
    }

    /// Takes rows out of the device's tier, for they have changed elsewhere. A host's tier under it
    /// has to forget them first, by [`SharedTier::remove`], for this one could fill itself from it.
    /// `below` is the result of that, and every worker's tier must receive each removal there, in
    /// their order. From one that has missed one nothing moves down any more.
    pub fn remove(&mut self, ids: &[u32], below: Option<Invalidation>) {
        self.device.remove(ids);
        if let (Some(below), Some(Invalidation(number))) = (&mut self.below, below)
            && number == below.n_removals + 1
        {
            below.n_removals = number;
        }
    }

    /// Ends the last batch and sets, for `frequency`, the rows of the next epoch, the best first;
    /// see [`crate::directory::Directory::retarget`].
    pub(crate) fn retarget(&mut self, ids: &[u32]) {
        self.device.retarget(ids);
    }

    /// Returns the tier on the device.
    #[must_use]
    pub fn device(&self) -> &DeviceTier {
        &self.device
    }

    /// Returns counts since the start.
    #[must_use]
    pub fn stats(&self) -> TwoLevelStats {
        let below = self.below.as_ref();
        TwoLevelStats {
            device: TierStats { bypassed: self.n_bypassed, ..self.device.stats() },
            host: below.map_or_else(TierStats::default, |below| below.host().stats()),
            promotions: below.map_or(0, |below| below.n_promoted),
            demotions: below.map_or(0, |below| below.n_demoted),
        }
    }
}

/// Gathers a batch through both tiers. The device decides first, by ids alone: so the host knows
/// which rows it need not keep, and which move down.
fn gather<E>(
    device: &mut DeviceTier,
    below: &mut HostLevel,
    ids: &[u32],
    tensor: &mut BatchTensor,
    fetch: &mut impl FnMut(&[u32], &mut [u8]) -> Result<(), E>,
) -> Result<Found, GatherError<E>> {
    device.begin(ids, tensor)?;
    device.admit_misses(ids);
    let misses = std::mem::take(&mut device.misses);
    let mut stamps = std::mem::take(&mut device.stamps);
    let directory = device.residents.directory();
    let is_above = |&position: &u32| directory.slot_of(ids[position as usize]) != NO_SLOT;
    below.begin(misses.iter().map(is_above));
    if below.is_exclusive() {
        device.read_evicted(&mut below.evicted_rows)?;
    }
    let (mut first, mut n_host) = (0, 0);
    let evicted = std::mem::take(&mut device.evicted);
    let brought = device.bring(&misses, tensor, |positions, rows| {
        let missing = positions.iter().map(|&at| ids[at as usize]);
        n_host += below.bring(missing, first, rows, &evicted, fetch)?;
        below.stamps().zip(positions).for_each(|(stamp, &at)| stamps[at as usize] = stamp);
        first += positions.len();
        Ok(())
    });
    (device.evicted, device.stamps) = (evicted, stamps);
    if brought.is_err() {
        device.settle();
    }
    brought?;
    below.count_promotions(&misses, &device.placements);
    let found = Found { device: (ids.len() - misses.len()) as u64, host: n_host };
    device.misses = misses;
    device.keep(tensor)?;
    Ok(found)
}

#[cfg(test)]
mod tests;
