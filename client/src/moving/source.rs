//! The server that has the partition, over the one connection that the copy lives on.

use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_schema::limits::COPY_PIECE_BYTES;
use lodestore_schema::{Copied, CopyStep, FailureCode, Reply, Request, RequestBody, WireError};
use lodestore_store::ArrivingCatalog;

use super::PAUSE;
use super::ends::{is_busy, stalled};
use crate::connection::{Connection, time_left};
use crate::{Address, ClientConfig, ClientError};

/// Most bytes of a catalog's pairs: so many times those of the files, and some. One with more has not
/// been compacted for long.
const PAIRS_BYTES_MAX: (u64, u64) = (64, 1 << 30);

/// A copy that the source keeps open.
pub(super) struct PartSource {
    address: Address,
    connection: Connection,
    part: PartId,
    /// For each step.
    deadline: Duration,
    opened: Copied,
}

impl PartSource {
    /// Begins a copy; waits within the deadline while the source is busy.
    pub(super) fn open(
        address: &Address,
        config: &ClientConfig,
        part: PartId,
        id: u64,
    ) -> Result<Self, ClientError> {
        let end = Instant::now() + config.deadline;
        let connection = Connection::open(address, &config.security, end)
            .map_err(|error| stalled(error, config.deadline))?;
        let (address, deadline) = (address.clone(), config.deadline);
        let opened = Copied::default();
        let mut this = Self { address, connection, part, deadline, opened };
        loop {
            match this.step(CopyStep::Open { id }, &mut Vec::new()) {
                Ok(opened) => {
                    this.opened = opened;
                    return Ok(this);
                }
                Err(error) if is_busy(&error) && Instant::now() + PAUSE < end => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the step of the seal; waits within the deadline while the source must take puts.
    pub(super) fn seal(&mut self) -> Result<Copied, ClientError> {
        let end = Instant::now() + self.deadline;
        loop {
            match self.step(CopyStep::Seal, &mut Vec::new()) {
                Err(ClientError::Refused { failure, .. })
                    if failure.code == FailureCode::Overloaded
                        && Instant::now() + failure.retry_after.max(PAUSE) < end =>
                {
                    std::thread::sleep(failure.retry_after.max(PAUSE));
                }
                sealed => return sealed,
            }
        }
    }

    /// Whether the same move has taken the partition away before.
    pub(super) fn is_given_up(&self) -> bool {
        self.opened.is_given_up
    }

    pub(super) fn version(&self) -> u32 {
        self.opened.version
    }

    pub(super) fn files(&self) -> &[(String, u64)] {
        &self.opened.files
    }

    /// Takes a step; `piece` is what came with the answer, and nothing else.
    pub(super) fn step(
        &mut self,
        step: CopyStep,
        piece: &mut Vec<u8>,
    ) -> Result<Copied, ClientError> {
        let deadline = Instant::now() + self.deadline;
        let left = Some(time_left(&self.address, deadline)?);
        let body = RequestBody::Copy { part: self.part.0, step };
        let request = Request { deadline: left, ..Request::new(body) };
        piece.clear();
        let sent = self.connection.send(&request, &[], deadline);
        let answer = sent.and_then(|()| self.connection.receive_piece(piece, deadline));
        let answer = answer.map_err(|error| stalled(error, self.deadline))?;
        let Reply::Copied(copied) = answer else {
            return Err(ClientError::Confused { address: self.address.clone() });
        };
        let found = crc32fast::hash(piece);
        if found != copied.crc32 {
            let expected = copied.crc32;
            let reason = format!("a piece has checksum {found:#010x}, not {expected:#010x}");
            return Err(self.broken(reason));
        }
        Ok(copied)
    }

    /// Fails for a piece that others follow and that has nothing, or too much: it would never end.
    pub(super) fn check_piece(&self, piece: &[u8]) -> Result<(), ClientError> {
        if (1..=COPY_PIECE_BYTES).contains(&piece.len()) {
            return Ok(());
        }
        Err(self.broken(format!("a piece of {} bytes, and more to come", piece.len())))
    }

    /// Fails for a file that does not have as many bytes as were told.
    pub(super) fn check_length(
        &self,
        name: &str,
        expected: u64,
        found: u64,
        is_last: bool,
    ) -> Result<(), ClientError> {
        if found == expected || (found < expected && !is_last) {
            return Ok(());
        }
        Err(self.broken(format!("{found} bytes of {name}, which has {expected}")))
    }

    /// Fetches pairs until there are no more; gives their bytes.
    pub(super) fn pairs(
        &mut self,
        catalog: &ArrivingCatalog,
        piece: &mut Vec<u8>,
    ) -> Result<u64, ClientError> {
        let (times, more) = PAIRS_BYTES_MAX;
        let of_files = self.opened.files.iter().map(|(_, n_bytes)| *n_bytes);
        let most = of_files.fold(0, u64::saturating_add).saturating_mul(times).saturating_add(more);
        let mut n_bytes = 0;
        loop {
            let is_last = self.step(CopyStep::Pairs, piece)?.is_last;
            n_bytes += piece.len() as u64;
            if n_bytes > most {
                let reason = format!("more than {most} bytes of pairs; compact the source first");
                return Err(self.broken(reason));
            }
            catalog.write(piece)?;
            if is_last {
                return Ok(n_bytes);
            }
            if piece.is_empty() {
                return Err(self.broken("an empty piece, and more to come".to_owned()));
            }
        }
    }

    fn broken(&self, reason: String) -> ClientError {
        let source = WireError::Malformed { message: "copy", reason };
        ClientError::Wire { address: self.address.clone(), source }
    }
}
