//! The settings of `full`.

use lodestore_graph::{rapa::DeviceProfile, sampler::Fanout};
use lodestore_models::model::MAX_LAYERS;
use serde::Serialize;

use crate::config::TrainConfig;
use crate::error::{TrainError, check};
use crate::options::by_name;

/// Settings of partitions that train together under `full`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FullConfig {
    /// Rows of halos.
    pub halo: Halo,
    /// Age in epochs that rows of halos and their gradients may have: partitions exchange them
    /// every `n + 1` epochs. 0 is exact.
    pub staleness: u32,
    /// Precision of rows and gradients in messages between partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compress: Option<Compression>,
    /// Whether partitions compute while messages are in flight.
    pub overlap: bool,
    /// RAPA: a profile for each worker; none leaves partitions as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceProfile>,
}

/// Rows of halos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Halo {
    /// Features are pulled once; owners send rows of layers.
    Exchange,
    /// Zeros instead of features and of rows of all layers, without messages: the control.
    Zero,
}

/// Precision of elements in messages, relative to a scale for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Half precision.
    F16,
    /// 255 steps.
    Int8,
}

impl Default for FullConfig {
    fn default() -> Self {
        let (halo, overlap, devices) = (Halo::Exchange, true, Vec::new());
        Self { halo, staleness: 0, compress: None, overlap, devices }
    }
}

impl FullConfig {
    /// Fails for settings of `full` that cannot work.
    pub(super) fn check(&self, config: &TrainConfig) -> Result<(), TrainError> {
        let n_layers = config.fanouts.len();
        let layers = format!("1 to {MAX_LAYERS}");
        check((1..=MAX_LAYERS).contains(&n_layers), "layers", &layers, n_layers)?;
        let other = config.fanouts.iter().find(|fanout| **fanout != Fanout::All);
        let found = other.map_or_else(String::new, ToString::to_string);
        check(other.is_none(), "fanouts", "all neighbours under the strategy full", found)?;
        let Self { halo, staleness, compress, ref devices, .. } = *self;
        let exchanges = halo == Halo::Exchange;
        check(exchanges || staleness == 0, "staleness", "0 where halos are zeros", staleness)?;
        let found = compress.map_or_else(String::new, |compress| compress.to_string());
        check(exchanges || compress.is_none(), "compress", "none where halos are zeros", found)?;
        let replays = config.replay.is_some();
        check(!replays, "replay", "none under the strategy full", "a recording")?;
        let (found, n_workers) = (devices.len(), config.workers);
        let expected = format!("one profile for each of the {n_workers} workers");
        check(found == 0 || found as u64 == u64::from(n_workers), "devices", &expected, found)
    }
}

by_name!(Halo, "halo", Exchange = "exchange", Zero = "zero");
by_name!(Compression, "compression", F16 = "f16", Int8 = "int8");
