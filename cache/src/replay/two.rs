//! A device's tier over the host's, with rows of one byte.

use std::convert::Infallible;

use crate::device::{BatchTensor, Device, DeviceSettings, GatherError};
use crate::levels::{Inclusion, Levels, LevelsError, LevelsSpec};
use crate::policy::PolicySpec;

/// Rows staged at once, at one byte each.
const STAGING_BYTES: usize = 1 << 20;

/// Two levels over host memory. Their rows have one byte, for what moves is counted, not timed.
pub(super) struct TwoTiers {
    pub(super) levels: Levels,
    tensor: BatchTensor,
    /// Ids of the last batch that neither tier had.
    pub(super) missed: Vec<u32>,
    /// Rows that the host's ranking leaves to the device.
    n_above: usize,
}

impl TwoTiers {
    pub(super) fn new(
        (device_rows, host_rows): (u32, u32),
        inclusion: Inclusion,
        id_space: u32,
        longest_batch: usize,
        spec: &PolicySpec,
    ) -> Result<Self, LevelsError> {
        let n_above = if inclusion == Inclusion::Exclusive { device_rows as usize } else { 0 };
        let below = |ranking: &[u32]| ranking.get(n_above..).unwrap_or_default().into();
        let host_policy = match spec {
            PolicySpec::Degree(ranking) => PolicySpec::Degree(below(ranking)),
            PolicySpec::Frequency(ranking) => PolicySpec::Frequency(below(ranking)),
            other => other.clone(),
        };
        let levels = Levels::new(
            &Device::host(),
            &LevelsSpec {
                device_rows,
                device_policy: spec.clone(),
                host_rows,
                host_policy,
                row_bytes: 1,
                id_space,
                inclusion,
                settings: DeviceSettings { staging_bytes: STAGING_BYTES, max_age_epochs: None },
                bypass: None,
            },
        )?;
        let tensor = levels.tensor(longest_batch)?;
        Ok(Self { levels, tensor, missed: Vec::new(), n_above })
    }

    pub(super) fn serve(&mut self, ids: &[u32]) {
        let Self { levels, tensor, missed, .. } = self;
        missed.clear();
        let fetch = |ids: &[u32], _: &mut [u8]| {
            missed.extend_from_slice(ids);
            Ok::<(), Infallible>(())
        };
        match levels.gather(ids, tensor, fetch) {
            Ok(()) => {}
            Err(GatherError::Fetch(never)) => match never {},
            // Memory that is there, and a tensor for the longest batch.
            Err(GatherError::Device(error)) => unreachable!("host memory does not fail: {error}"),
        }
    }

    /// The last batch is over, and both policies are told of the next epoch.
    pub(super) fn retarget(&mut self, ranking: &[u32]) {
        self.levels.retarget(ranking, ranking.get(self.n_above..).unwrap_or_default());
    }
}
