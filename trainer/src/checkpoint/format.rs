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

use super::header::{DIGEST_BYTES, HAS_BEST, HAS_TEST, HAS_VALIDATION, HEADER_BYTES, Header};
use super::{Checkpoint, CheckpointError, CheckpointFault, Identity, Measured, Place};
use crate::best_model::BestModel;
use crate::metric::Accuracy;
use crate::replica::ReplicaState;

/// Returns the bytes of `checkpoint`.
pub(super) fn encode(
    checkpoint: &Checkpoint,
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
        n_replicas: replicas.len() as u32,
        graph_uuid: identity.graph_uuid,
        place: *place,
        settings_bytes: settings.len() as u32,
        measured_bytes: u32::try_from(measured.len()).unwrap_or(u32::MAX),
        n_elements: identity.n_elements(),
        n_losses: step_losses.len() as u64,
        best_epoch: best.epoch,
        evaluated: best.evaluated,
        flags: flag(!best.parameters.is_empty(), HAS_BEST)
            | flag(validation.is_some(), HAS_VALIDATION)
            | flag(test.is_some(), HAS_TEST),
        accuracies: [validation.unwrap_or_default(), test.unwrap_or_default()],
    };
    let mut bytes = header.encode();
    bytes.extend_from_slice(settings.as_bytes());
    bytes.extend_from_slice(&measured);
    bytes.extend(replicas.iter().flat_map(|replica| replica.n_steps.to_le_bytes()));
    let lists = replicas.iter().flat_map(|of| [&of.values, &of.means, &of.variances]);
    for values in lists.chain([&best.parameters]).flatten().flatten() {
        bytes.extend_from_slice(&values.to_le_bytes());
    }
    bytes.extend(step_losses.iter().flat_map(|loss| loss.to_le_bytes()));
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    Ok(bytes)
}

/// Reads a checkpoint that must belong to `identity`.
pub(super) fn decode(bytes: &[u8], identity: &Identity) -> Result<Checkpoint, CheckpointFault> {
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
    let n_steps = take(&mut rest, 4 * header.n_replicas as usize).as_chunks().0;
    let mut lists = || -> Vec<Vec<f32>> {
        identity.lengths.iter().map(|n| floats(take(&mut rest, 4 * n))).collect()
    };
    let replica = |n_steps: &[u8; 4]| {
        let [values, means, variances] = [lists(), lists(), lists()];
        ReplicaState { n_steps: u32::from_le_bytes(*n_steps), values, means, variances }
    };
    let replicas = n_steps.iter().map(replica).collect();
    let parameters = if header.has(HAS_BEST) { lists() } else { Vec::new() };
    let losses = rest.as_chunks::<8>().0.iter().map(|loss| f64::from_le_bytes(*loss));
    let checkpoint = Checkpoint {
        place: header.place,
        replicas,
        best: header.best(parameters),
        measured,
        step_losses: losses.collect(),
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
    if let Some((expected, found)) =
        identity.settings.differences(&String::from_utf8_lossy(settings))
    {
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

impl Checkpoint {
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

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
