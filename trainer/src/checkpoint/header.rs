//! The first bytes of a checkpoint: see `format.rs` for their table.

use super::{CheckpointFault, Place};
use crate::best_model::BestModel;
use crate::metric::Accuracy;

const MAGIC: [u8; 8] = *b"LODECKPT";
const VERSION: u32 = 2;
pub(super) const HEADER_BYTES: usize = 96;
pub(super) const DIGEST_BYTES: usize = 32;

const MAX_SETTINGS_BYTES: u64 = 1 << 16;
const MAX_MEASURED_BYTES: u64 = 1 << 28;
/// The report of one takes about a kilobyte.
const MAX_EPOCH_BYTES: u64 = 1 << 12;

pub(super) const HAS_BEST: u32 = 1;
pub(super) const HAS_VALIDATION: u32 = 2;
pub(super) const HAS_TEST: u32 = 4;

/// A header whose lengths are in their bounds; nothing else has been checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) n_replicas: u32,
    pub(super) graph_uuid: [u8; 16],
    pub(super) place: Place,
    pub(super) settings_bytes: u32,
    pub(super) measured_bytes: u32,
    pub(super) n_elements: u64,
    pub(super) n_losses: u64,
    pub(super) best_epoch: u32,
    pub(super) evaluated: u32,
    pub(super) flags: u32,
    pub(super) accuracies: [f64; 2],
}

impl Header {
    /// Returns the bytes of the header.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.n_replicas.to_le_bytes());
        bytes.extend_from_slice(&self.graph_uuid);
        let Place { epoch, step } = self.place;
        for number in [epoch, step, self.settings_bytes, self.measured_bytes] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.n_elements.to_le_bytes());
        bytes.extend_from_slice(&self.n_losses.to_le_bytes());
        for number in [self.best_epoch, self.evaluated, self.flags, 0] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for accuracy in self.accuracies {
            bytes.extend_from_slice(&accuracy.to_le_bytes());
        }
        bytes
    }

    /// Reads the header at the front of `bytes`.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, CheckpointFault> {
        let Some(page) = bytes.first_chunk::<HEADER_BYTES>() else {
            let (found_bytes, expected_bytes) = (bytes.len() as u64, HEADER_BYTES as u64);
            return Err(CheckpointFault::Length { found_bytes, expected_bytes });
        };
        if field(page, 0) != MAGIC {
            return Err(CheckpointFault::Magic { found: field(page, 0) });
        }
        let u32_at = |at| u32::from_le_bytes(field(page, at));
        let u64_at = |at| u64::from_le_bytes(field(page, at));
        let (found, known) = (u32_at(8), VERSION);
        if found != known {
            return Err(CheckpointFault::Version { found, known });
        }
        let header = Self {
            n_replicas: u32_at(12),
            graph_uuid: field(page, 16),
            place: Place { epoch: u32_at(32), step: u32_at(36) },
            settings_bytes: u32_at(40),
            measured_bytes: u32_at(44),
            n_elements: u64_at(48),
            n_losses: u64_at(56),
            best_epoch: u32_at(64),
            evaluated: u32_at(68),
            flags: u32_at(72),
            accuracies: [f64::from_bits(u64_at(80)), f64::from_bits(u64_at(88))],
        };
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
        MAX_MEASURED_BYTES.min(MAX_EPOCH_BYTES * (u64::from(self.place.epoch) + 1))
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

    /// Returns whether a flag is set.
    pub(super) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns the best parameters with the header's figures of them.
    pub(super) fn best(&self, parameters: Vec<Vec<f32>>) -> BestModel {
        let [validation, test] = self.accuracies;
        let accuracy = Accuracy {
            validation: self.has(HAS_VALIDATION).then_some(validation),
            test: self.has(HAS_TEST).then_some(test),
        };
        BestModel { epoch: self.best_epoch, accuracy, parameters, evaluated: self.evaluated }
    }
}

fn field<const N: usize>(page: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&page[at..at + N]);
    bytes
}
