//! The server that has the partition, over the one connection that the copy lives on.

use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_schema::limits::COPY_PIECE_BYTES;
use lodestore_schema::{Copied, CopyStep, FailureCode, Reply, Request, RequestBody, WireError};
use lodestore_store::ArrivingCatalog;

use crate::connection::{Connection, time_left};
use crate::{Address, ClientConfig, ClientError};

/// Pause before a source that is busy (it compacts, somebody else copies) is asked again.
const PAUSE: Duration = Duration::from_millis(100);

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
        let connection = Connection::open(address, &config.security, end)?;
        let (address, deadline) = (address.clone(), config.deadline);
        let opened = Copied::default();
        let mut this = Self { address, connection, part, deadline, opened };
        loop {
            match this.step(CopyStep::Open { id }, &mut Vec::new()) {
                Ok(opened) => {
                    this.opened = opened;
                    return Ok(this);
                }
                Err(ClientError::Refused { failure, .. })
                    if failure.code == FailureCode::Overloaded && Instant::now() + PAUSE < end =>
                {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
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
        self.connection.send(&request, &[], deadline)?;
        piece.clear();
        let Reply::Copied(copied) = self.connection.receive_piece(piece, deadline)? else {
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

    /// Fetches pairs until there are no more; gives their bytes.
    pub(super) fn pairs(
        &mut self,
        catalog: &ArrivingCatalog,
        piece: &mut Vec<u8>,
    ) -> Result<u64, ClientError> {
        let mut n_bytes = 0;
        loop {
            let is_last = self.step(CopyStep::Pairs, piece)?.is_last;
            catalog.write(piece)?;
            n_bytes += piece.len() as u64;
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
