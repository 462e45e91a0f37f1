//! A tier for each of some devices, before one host tier that they share (CaPGNN, section 4.2),
//! with rows of one byte.

use std::convert::Infallible;
use std::sync::Arc;

use crate::device::{BatchTensor, Device, DeviceSettings, DeviceTier, GatherError, TierShape};
use crate::directory::TierStats;
use crate::policy::PolicySpec;
use crate::shared::{SharedSettings, SharedTier};
use crate::trace::Trace;
use crate::two_level::{Inclusion, TwoLevelStats, TwoLevelTier};

use super::ReplayError;

/// Rows have one byte, for moves are counted, not timed; a batch is staged as a whole.
const ROW_BYTES: usize = 1;

/// The levels of trainers, over host memory.
pub(super) struct TwoLevels {
    devices: Vec<TwoLevelTier>,
    /// For `frequency`: the ids that each device asks for.
    asked: Vec<Vec<bool>>,
    host: Arc<SharedTier>,
    /// Rows of a ranking that the host leaves to the device.
    n_above: usize,
    /// Whose the next batch is.
    next: usize,
    tensor: BatchTensor,
    /// Ids of the last batch that neither tier had.
    pub(super) missed: Vec<u32>,
}

/// Rows of [`TwoLevels`], and which of them the levels may have in common.
#[derive(Clone, Copy)]
pub(super) struct TwoLevelSizes {
    pub(super) n_devices: u16,
    /// Rows of each device's tier.
    pub(super) device_rows: u32,
    pub(super) host_rows: u32,
    pub(super) inclusion: Inclusion,
}

impl TwoLevels {
    /// Returns tiers of devices that take the batches of each epoch in turn. A device's planned
    /// policy ranks the ids that the device looks up, and the host's those of all devices. Under
    /// one exclusive device the host's policy ranks what the device leaves.
    pub(super) fn new(
        sizes: TwoLevelSizes,
        trace: &Trace,
        spec: &PolicySpec,
    ) -> Result<Self, ReplayError> {
        let TwoLevelSizes { n_devices, device_rows, host_rows, inclusion } = sizes;
        let (id_space, asked) = (trace.id_space(), asked(trace, n_devices));
        let is_above = inclusion == Inclusion::Exclusive && n_devices == 1;
        let n_above = if is_above { device_rows as usize } else { 0 };
        let below = |ranking: &[u32]| ranking.get(n_above..).unwrap_or_default().into();
        let host_spec = match spec {
            PolicySpec::Degree(ranking) => PolicySpec::Degree(below(ranking)),
            PolicySpec::Frequency(ranking) => PolicySpec::Frequency(below(ranking)),
            other => other.clone(),
        };
        let settings = SharedSettings::default();
        let host = SharedTier::of_slots(host_rows, ROW_BYTES, id_space, &host_spec, settings)?;
        let host = Arc::new(host);
        let staging_bytes = trace.longest_batch().max(1) * ROW_BYTES;
        let settings = DeviceSettings { staging_bytes, max_age: None };
        let device = |asked: &Vec<bool>| {
            let (device, spec) = (Device::host(), spec.among(|id| asked[id as usize]));
            DeviceTier::new(
                &device,
                TierShape { capacity_rows: device_rows, row_bytes: ROW_BYTES, id_space },
                &spec,
                settings,
            )
            .map(|device| TwoLevelTier::new(device).over(Arc::clone(&host), inclusion))
        };
        let devices = asked.iter().map(device).collect::<Result<Vec<_>, _>>()?;
        let tensor = devices[0].tensor(trace.longest_batch())?;
        Ok(Self { devices, asked, host, n_above, next: 0, tensor, missed: Vec::new() })
    }

    pub(super) fn begin_epoch(&mut self) {
        self.next = 0;
    }

    pub(super) fn serve(&mut self, ids: &[u32]) {
        let Self { devices, next, tensor, missed, .. } = self;
        let device = &mut devices[*next];
        *next = (*next + 1) % self.asked.len();
        missed.clear();
        let fetch = |ids: &[u32], _: &mut [u8]| {
            missed.extend_from_slice(ids);
            Ok::<(), Infallible>(())
        };
        match device.gather(ids, tensor, fetch) {
            Ok(_) => {}
            Err(GatherError::Fetch(never)) => match never {},
            // Memory that is there, and a tensor for the longest batch.
            Err(GatherError::Device(error)) => unreachable!("host memory does not fail: {error}"),
        }
    }

    /// Ends the last batch and passes the next epoch to all policies.
    pub(super) fn retarget(&mut self, ranking: &[u32]) {
        for (device, asked) in self.devices.iter_mut().zip(&self.asked) {
            let own = ranking.iter().copied().filter(|&id| asked[id as usize]);
            device.retarget(&own.collect::<Vec<u32>>());
        }
        self.host.retarget(ranking.get(self.n_above..).unwrap_or_default());
    }

    pub(super) fn stats(&self) -> TwoLevelStats {
        let mut sum = TwoLevelStats { host: self.host.stats(), ..TwoLevelStats::default() };
        for device in &self.devices {
            let TwoLevelStats { device, promotions, demotions, .. } = device.stats();
            sum.device = TierStats {
                hits: sum.device.hits + device.hits,
                misses: sum.device.misses + device.misses,
                admissions: sum.device.admissions + device.admissions,
                evictions: sum.device.evictions + device.evictions,
                removals: sum.device.removals + device.removals,
                ..TierStats::default()
            };
            sum.promotions += promotions;
            sum.demotions += demotions;
        }
        sum
    }

    /// Returns the memory of both tiers beside rows, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let devices = self.devices.iter().map(|levels| levels.device().residents.bytes());
        devices.sum::<usize>() + self.host.bookkeeping_bytes()
    }
}

/// Returns for each device which ids it asks for.
fn asked(trace: &Trace, n_devices: u16) -> Vec<Vec<bool>> {
    let mut asked = vec![vec![false; trace.id_space() as usize]; n_devices.into()];
    let ends = trace.epochs().iter().skip(1).copied().chain([trace.n_batches()]);
    for (&first, end) in trace.epochs().iter().zip(ends) {
        for batch in first..end {
            let own = &mut asked[((batch - first) % u32::from(n_devices)) as usize];
            trace.ids()[trace.range(batch)].iter().for_each(|&id| own[id as usize] = true);
        }
    }
    asked
}
