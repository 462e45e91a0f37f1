//! The ways to train that are compared.

use anyhow::{Context, Result};
use lodestore_graph::rapa::DeviceProfile;
use lodestore_store::reader::available_memory_bytes;
use lodestore_trainer::config::{Compression, FullConfig, Halo};
use lodestore_trainer::profile::profile_device;
use lodestore_trainer::{Strategy, TrainConfig};
use serde::Serialize;

use lode_cli::human;

/// Rows of the matrices of a profile, and runs of each job.
const PROFILE: (usize, u32) = (1024, 5);

/// A way to train on p partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CapWay {
    /// The graph in one partition.
    Whole,
    /// Rows of halos of each epoch.
    Exact,
    /// The same, nothing computed while they travel.
    Waiting,
    /// Zeros in their place.
    Zero,
    /// Rows of up to this age in epochs.
    Stale(u32),
    /// Rows and gradients in half precision.
    F16,
    /// The same in 255 steps.
    Int8,
    /// 255 steps, and up to this age in epochs.
    StaleInt8(u32),
    /// Without the replicas that RAPA gives up.
    Rapa,
    /// The same, nothing computed while rows travel.
    RapaWaiting,
    /// Features pulled again in each epoch, nothing computed while rows travel.
    Resent,
    /// The same without the replicas that RAPA gives up.
    ResentRapa,
}

impl CapWay {
    /// Returns all ways of a table of accuracies.
    pub(super) fn all(staleness: &[u32]) -> Vec<Self> {
        let most = staleness.iter().copied().max();
        let mut ways = vec![Self::Whole, Self::Exact, Self::Zero];
        ways.extend(staleness.iter().map(|&epochs| Self::Stale(epochs)));
        ways.extend([Self::F16, Self::Int8]);
        ways.extend(most.map(Self::StaleInt8));
        ways.push(Self::Rapa);
        ways
    }

    pub(super) fn label(self) -> String {
        match self {
            Self::Whole => "one partition".to_owned(),
            Self::Exact => "exact".to_owned(),
            Self::Waiting => "exact, no overlap".to_owned(),
            Self::Zero => "zero halos".to_owned(),
            Self::Stale(epochs) => format!("{} old", human::counted(epochs.into(), "epoch")),
            Self::F16 => "f16".to_owned(),
            Self::Int8 => "int8".to_owned(),
            Self::StaleInt8(epochs) => format!("{}, int8", Self::Stale(epochs).label()),
            Self::Rapa => "rapa".to_owned(),
            Self::RapaWaiting => "rapa, no overlap".to_owned(),
            Self::Resent => "inputs resent, no overlap".to_owned(),
            Self::ResentRapa => "inputs resent, rapa, no overlap".to_owned(),
        }
    }

    /// Returns the row of the paper's Table 8 that this is.
    pub(super) fn ablation(self) -> &'static str {
        match self {
            Self::Resent => "Vanilla",
            Self::Waiting => "+JACA",
            Self::ResentRapa => "+RAPA",
            Self::RapaWaiting => "+JACA+RAPA",
            Self::Rapa => "+Pipe",
            _ => "",
        }
    }

    /// Returns whether features of halos are pulled again in each epoch.
    pub(super) fn resends_inputs(self) -> bool {
        matches!(self, Self::Resent | Self::ResentRapa)
    }

    /// Returns `usual` settings in this way, with a worker for each of `devices`.
    pub(super) fn settings(self, usual: &TrainConfig, devices: &[DeviceProfile]) -> TrainConfig {
        let exact = FullConfig::default();
        let int8 = Some(Compression::Int8);
        let full = match self {
            Self::Whole | Self::Exact => exact,
            Self::Waiting | Self::Resent => FullConfig { overlap: false, ..exact },
            Self::Zero => FullConfig { halo: Halo::Zero, ..exact },
            Self::Stale(staleness) => FullConfig { staleness, ..exact },
            Self::F16 => FullConfig { compress: Some(Compression::F16), ..exact },
            Self::Int8 => FullConfig { compress: int8, ..exact },
            Self::StaleInt8(staleness) => FullConfig { staleness, compress: int8, ..exact },
            Self::Rapa => FullConfig { devices: devices.to_vec(), ..exact },
            Self::RapaWaiting | Self::ResentRapa => {
                FullConfig { devices: devices.to_vec(), overlap: false, ..exact }
            }
        };
        let workers = if self == Self::Whole { 1 } else { devices.len() as u32 };
        TrainConfig { workers, strategy: Strategy::Full(full), ..usual.clone() }
    }
}

/// Measures this device, and returns `n` profiles of it; the first is half as fast.
pub(super) fn profiles(n: u16) -> Result<Vec<DeviceProfile>> {
    let memory =
        available_memory_bytes().context("the system does not say how much memory it has")?;
    let measured = profile_device(PROFILE.0, PROFILE.1, memory, &mut |_, _| {})?;
    let usual = DeviceProfile { name: "usual".to_owned(), ..measured };
    let slow = DeviceProfile {
        name: "half as fast".to_owned(),
        h2d_seconds: 2.0 * usual.h2d_seconds,
        d2h_seconds: 2.0 * usual.d2h_seconds,
        idt_seconds: 2.0 * usual.idt_seconds,
        spmm_seconds: 2.0 * usual.spmm_seconds,
        mm_seconds: 2.0 * usual.mm_seconds,
        memory_bytes: usual.memory_bytes,
    };
    let mut all = vec![usual; usize::from(n)];
    if let Some(first) = all.first_mut() {
        *first = slow;
    }
    Ok(all)
}
