//! The bytes of a checkpoint.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | `LODECKPT` |
//! | 8..12 | format version, u32: 2 |
//! | 12..16 | R: replicas, u32 |
//! | 16..32 | uuid of the graph |
//! | 32..36 | epoch of the next step, u32 |
//! | 36..40 | the next step of that epoch, u32 |
//! | 40..44 | S: bytes of the settings, u32 |
//! | 44..48 | M: bytes of what was measured, u32 |
//! | 48..56 | P: elements of all parameters, u64 |
//! | 56..64 | L: losses, u64 |
//! | 64..68 | epoch of the best parameters, u32 |
//! | 68..72 | epoch of the last evaluation, u32 |
//! | 72..76 | bit 0: best parameters follow; bits 1, 2: with accuracy on validation, test nodes |
//! | 76..80 | zero |
//! | 80..96 | the two accuracies, 2 × f64; 0 where not known |
//! | then | S bytes of UTF-8: `name = value` lines; M bytes of JSON |
//! | then | updates of each replica, R × u32 |
//! | then | parameters of a replica, Adam's means, its variances, P × f32 each; R times |
//! | then | best parameters if there are, P × f32 |
//! | then | losses, L × f64 |
//! | last 32 | BLAKE3 of all bytes before |
//!
//! All numbers are little-endian. P and R are checked against the run's, every length against the
//! file's, before memory is taken for it.

use bytemuck::{Pod, Zeroable, bytes_of, cast_slice, pod_collect_to_vec, pod_read_unaligned};
use lodestore_models::adam::ReplicaState;
use lodestore_models::metric::Accuracy;

use super::settings::removed_setting;
use super::{Checkpoint, CheckpointError, CheckpointFault, Identity, Measured, Place};
use crate::best_model::BestModel;

const MAGIC: [u8; 8] = *b"LODECKPT";
const VERSION: u32 = 2;
pub(super) const HEADER_BYTES: usize = size_of::<Header>();
const DIGEST_BYTES: usize = 32;
const _: () = assert!(HEADER_BYTES == 96);

const MAX_SETTINGS_BYTES: u64 = 1 << 16;
const MAX_MEASURED_BYTES: u64 = 1 << 28;
/// The report of one takes about a kilobyte.
const MAX_EPOCH_BYTES: u64 = 1 << 12;

const HAS_BEST: u32 = 1;
const HAS_VALIDATION: u32 = 2;
const HAS_TEST: u32 = 4;

/// The first bytes of a checkpoint, as the table has them. Lengths are in their bounds; nothing
/// else has been checked. Machines are little-endian: see `graph/src/map.rs`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Header {
    magic: [u8; 8],
    version: u32,
    pub(super) n_replicas: u32,
    graph_uuid: [u8; 16],
    epoch: u32,
    step: u32,
    pub(super) settings_bytes: u32,
    measured_bytes: u32,
    pub(super) n_elements: u64,
    pub(super) n_losses: u64,
    best_epoch: u32,
    evaluated: u32,
    flags: u32,
    zero: u32,
    accuracies: [f64; 2],
}

impl Header {
    /// Reads the header at the front of `bytes`.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, CheckpointFault> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            let (found_bytes, expected_bytes) = (bytes.len() as u64, HEADER_BYTES as u64);
            return Err(CheckpointFault::Length { found_bytes, expected_bytes });
        };
        let header: Self = pod_read_unaligned(bytes);
        if header.magic != MAGIC {
            return Err(CheckpointFault::Magic { found: header.magic });
        }
        let (found, known) = (header.version, VERSION);
        if found != known {
            return Err(CheckpointFault::Version { found, known });
        }
        for (what, most, found) in [
            ("bytes of settings", MAX_SETTINGS_BYTES, header.settings_bytes.into()),
            ("bytes of measurements", header.max_measured_bytes(), header.measured_bytes.into()),
        ] {
            if found > most {
                return Err(CheckpointFault::TooLarge { what, most, found });
            }
        }
        Ok(header)
    }

    /// Returns the limit of the bytes of measurements, for the epochs that are over and the present
    /// one.
    fn max_measured_bytes(&self) -> u64 {
        MAX_MEASURED_BYTES.min(MAX_EPOCH_BYTES * (u64::from(self.epoch) + 1))
    }

    /// Fails unless a file of this many bytes holds the promises of the header, and no more.
    pub(super) fn check_length(&self, found_bytes: u64) -> Result<(), CheckpointFault> {
        let n_replicas = u64::from(self.n_replicas);
        let n_lists = 3 * n_replicas + u64::from(self.has(HAS_BEST));
        let elements = self.n_elements.saturating_mul(4 * n_lists);
        let others = (HEADER_BYTES + DIGEST_BYTES) as u64
            + u64::from(self.settings_bytes)
            + u64::from(self.measured_bytes)
            + 4 * n_replicas;
        let losses = self.n_losses.saturating_mul(8);
        let expected_bytes = elements.saturating_add(losses).saturating_add(others);
        if found_bytes == expected_bytes {
            return Ok(());
        }
        Err(CheckpointFault::Length { found_bytes, expected_bytes })
    }

    /// Returns the place of the next step.
    pub(super) fn place(&self) -> Place {
        Place { epoch: self.epoch, step: self.step }
    }

    /// Returns whether a flag is set.
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns the best parameters with the header's figures of them.
    fn best(&self, parameters: Vec<Vec<f32>>) -> BestModel {
        let [validation, test] = self.accuracies;
        let accuracy = Accuracy {
            validation: self.has(HAS_VALIDATION).then_some(validation),
            test: self.has(HAS_TEST).then_some(test),
        };
        BestModel { epoch: self.best_epoch, accuracy, parameters, evaluated: self.evaluated }
    }
}

/// Returns the bytes of `checkpoint`.
pub(super) fn encode(
    checkpoint: &Checkpoint<'_>,
    identity: &Identity,
) -> Result<Vec<u8>, CheckpointError> {
    let Checkpoint { place, replicas, best, measured, step_losses } = checkpoint;
    let measured = serde_json::to_vec(measured).map_err(|error| CheckpointError::Io {
        path: "what was measured".into(),
        action: "write down",
        source: error.into(),
    })?;
    let settings = identity.settings.as_str();
    let Accuracy { validation, test } = best.accuracy;
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        n_replicas: replicas.len() as u32,
        graph_uuid: identity.graph_uuid,
        epoch: place.epoch,
        step: place.step,
        settings_bytes: settings.len() as u32,
        measured_bytes: u32::try_from(measured.len()).unwrap_or(u32::MAX),
        n_elements: identity.n_elements(),
        n_losses: step_losses.len() as u64,
        best_epoch: best.epoch,
        evaluated: best.evaluated,
        flags: flag(!best.parameters.is_empty(), HAS_BEST)
            | flag(validation.is_some(), HAS_VALIDATION)
            | flag(test.is_some(), HAS_TEST),
        zero: 0,
        accuracies: [validation.unwrap_or_default(), test.unwrap_or_default()],
    };
    let mut bytes = bytes_of(&header).to_vec();
    bytes.extend_from_slice(settings.as_bytes());
    bytes.extend_from_slice(&measured);
    bytes.extend(replicas.iter().flat_map(|replica| replica.n_steps.to_le_bytes()));
    let lists = replicas.iter().flat_map(|of| [&of.values, &of.means, &of.variances]);
    for values in lists.chain([&best.parameters]).flatten() {
        bytes.extend_from_slice(cast_slice(values));
    }
    bytes.extend_from_slice(cast_slice(step_losses));
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    Ok(bytes)
}

/// Reads a checkpoint that must belong to `identity`.
pub(super) fn decode(
    bytes: &[u8],
    identity: &Identity,
) -> Result<Checkpoint<'static>, CheckpointFault> {
    let header = Header::decode(bytes)?;
    header.check_length(bytes.len() as u64)?;
    let (content, expected) = bytes.split_at(bytes.len() - DIGEST_BYTES);
    let found = blake3::hash(content);
    if found.as_bytes() != expected {
        let (expected, found) = (hex(expected), hex(found.as_bytes()));
        return Err(CheckpointFault::Digest { expected, found });
    }
    let mut rest = &content[HEADER_BYTES..];
    check_identity(&header, take(&mut rest, header.settings_bytes as usize), identity)?;
    let measured = serde_json::from_slice(take(&mut rest, header.measured_bytes as usize));
    let measured: Measured = measured.map_err(|error| CheckpointFault::Contradiction {
        what: format!("measurements: {error}"),
    })?;
    let n_steps: Vec<u32> = pod_collect_to_vec(take(&mut rest, 4 * header.n_replicas as usize));
    let mut lists = || -> Vec<Vec<f32>> {
        identity.lengths.iter().map(|n| pod_collect_to_vec(take(&mut rest, 4 * n))).collect()
    };
    let replica = |n_steps| {
        let [values, means, variances] = [lists(), lists(), lists()];
        ReplicaState { n_steps, values, means, variances }
    };
    let replicas = n_steps.into_iter().map(replica).collect();
    let parameters = if header.has(HAS_BEST) { lists() } else { Vec::new() };
    let checkpoint = Checkpoint {
        place: header.place(),
        replicas,
        best: header.best(parameters),
        measured,
        step_losses: pod_collect_to_vec(rest),
    };
    checkpoint.check(identity.updates_each_step)?;
    Ok(checkpoint)
}

/// Fails unless a checkpoint with this header and these settings is one of `identity`.
pub(super) fn check_identity(
    header: &Header,
    settings: &[u8],
    identity: &Identity,
) -> Result<(), CheckpointFault> {
    if header.graph_uuid != identity.graph_uuid {
        let (expected, found) = (hex(&identity.graph_uuid), hex(&header.graph_uuid));
        return Err(CheckpointFault::Graph { expected, found });
    }
    let settings = String::from_utf8_lossy(settings);
    if let Some(setting) = removed_setting(&settings) {
        return Err(CheckpointFault::Removed { setting });
    }
    if let Some((expected, found)) = identity.settings.differences(&settings) {
        return Err(CheckpointFault::Settings { expected, found });
    }
    let (found, expected) = (header.n_elements, identity.n_elements());
    if found != expected {
        let what = format!("{found} parameters where the model has {expected}");
        return Err(CheckpointFault::Contradiction { what });
    }
    let (found, expected) = (header.n_replicas, identity.n_replicas);
    if found != expected {
        let what = format!("{found} replicas where the run has {expected}");
        return Err(CheckpointFault::Contradiction { what });
    }
    Ok(())
}

impl Checkpoint<'_> {
    /// Fails unless its parts agree on how far the run got.
    fn check(&self, updates_each_step: bool) -> Result<(), CheckpointFault> {
        let Place { epoch, step } = self.place;
        let fault = |what| Err(CheckpointFault::Contradiction { what });
        let epochs = &self.measured.epochs;
        if epochs.len() as u64 != u64::from(epoch) {
            return fault(format!("{} epochs of measurements in epoch {epoch}", epochs.len()));
        }
        let steps = epochs.iter().map(|epoch| u64::from(epoch.steps)).sum::<u64>();
        let (n_losses, n_steps) = (self.step_losses.len() as u64, steps + u64::from(step));
        let is_other =
            |replica: &&ReplicaState| updates_each_step && u64::from(replica.n_steps) != n_steps;
        let other = self.replicas.iter().find(is_other).map(|replica| u64::from(replica.n_steps));
        if n_losses != n_steps || other.is_some() {
            let n_updates = other.unwrap_or(n_steps);
            return fault(format!("{n_losses} losses and {n_updates} updates in {n_steps} steps"));
        }
        let BestModel { epoch: best, evaluated, .. } = self.best;
        if best > evaluated || evaluated > epoch {
            return fault(format!("best epoch {best} of {evaluated} evaluated in epoch {epoch}"));
        }
        Ok(())
    }
}

/// Returns the first `n` bytes of `rest`, whose length has been checked.
fn take<'a>(rest: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at(n);
    *rest = left;
    taken
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
