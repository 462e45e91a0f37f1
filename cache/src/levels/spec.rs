//! How two tiers are made, and what they did.

use thiserror::Error;

use crate::arena::ArenaError;
use crate::bypass::BypassSettings;
use crate::device::{DeviceError, DeviceSettings};
use crate::directory::{DirectoryError, TierStats};
use crate::policy::{PolicyKind, PolicySpec};

/// Which rows the two tiers may have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inclusion {
    /// What is fetched is offered to both, and what the host has is offered to the device and
    /// stays. Each tier evicts by itself: a device hit is no news to the host, and its copy may go
    /// first.
    Inclusive,
    /// A row is in one tier at most. What is fetched is offered to the device, and to the host if
    /// the device does not take it; what the host has moves up if the device takes it; what the
    /// device evicts moves down if the host takes it. A batch that evicts waits for the device,
    /// once, to bring those rows down.
    Exclusive,
}

/// How two tiers are made.
#[derive(Clone, Debug)]
pub struct LevelsSpec {
    /// Slots on the device, and what is kept there.
    pub device_rows: u32,
    /// See [`LevelsSpec::device_rows`].
    pub device_policy: PolicySpec,
    /// Slots in host memory, and what is kept there. Not `oracle`: which rows the device will not
    /// have is in no schedule.
    pub host_rows: u32,
    /// See [`LevelsSpec::host_rows`].
    pub host_policy: PolicySpec,
    /// Bytes of one row, in both.
    pub row_bytes: usize,
    /// Ids are below this.
    pub id_space: u32,
    /// Which rows they may have in common.
    pub inclusion: Inclusion,
    /// Staging, and the staleness bound of both.
    pub settings: DeviceSettings,
    /// When to go without; `None` for never.
    pub bypass: Option<BypassSettings>,
}

/// Why there are no two tiers.
#[derive(Debug, Error)]
pub enum LevelsError {
    /// The device's could not be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The host's could not be had.
    #[error(transparent)]
    Host(#[from] DirectoryError),
    /// The host sees only what the device misses.
    #[error("the host tier under a device tier cannot be `{kind}`: its future is not known")]
    Policy {
        /// The policy asked for.
        kind: PolicyKind,
    },
}

impl From<ArenaError> for LevelsError {
    fn from(error: ArenaError) -> Self {
        Self::Host(error.into())
    }
}

/// What two tiers did since they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelsStats {
    /// Lookups and changes of the device's tier.
    pub device: TierStats,
    /// Lookups and changes of the host's, which sees what the device misses.
    pub host: TierStats,
    /// Rows that went from the host to the device.
    pub promotions: u64,
    /// Rows that the device evicted and the host took.
    pub demotions: u64,
    /// Positions that found a row which was too old, in either.
    pub stale: u64,
    /// Positions of batches that went past both tiers.
    pub bypassed: u64,
}
