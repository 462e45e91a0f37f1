//! The connection of a follower or a mover to the server that holds a partition.

use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_schema::limits::{COPY_PIECE_BYTES, WIRE_VERSION_IDENTITY};
use lodestore_schema::reply::{Copied, Followed, PartState};
use lodestore_schema::request::{CopyStep, FollowStep};
use lodestore_schema::versions::VersionTag;
use lodestore_schema::{Reply, Request, RequestBody, WireError};
use lodestore_store::StoreError;
use lodestore_store::follow::Manifest;

use crate::address::Address;
use crate::connection::{Connection, time_left};
use crate::error::ClientError;
use crate::remote::ClientConfig;

/// A connection to the server of a partition, which holds the files of the last manifest for it.
pub(crate) struct Link {
    address: Address,
    connection: Connection,
    part: PartId,
    /// Time limit of each step.
    deadline: Duration,
    /// Files of the last manifest, with their lengths.
    files: Vec<(String, u64)>,
}

impl Link {
    pub(crate) fn open(
        address: &Address,
        config: &ClientConfig,
        part: PartId,
    ) -> Result<Self, ClientError> {
        let deadline = config.deadline;
        let connection = Connection::open(address, &config.security, Instant::now() + deadline)?;
        Ok(Self { address: address.clone(), connection, part, deadline, files: Vec::new() })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the current state of the partition on the server, if the server holds it.
    pub(super) fn state(&mut self) -> Result<Option<PartState>, ClientError> {
        let deadline = Instant::now() + self.deadline;
        match self.connection.ask(Request::new(RequestBody::Describe), &[], deadline)? {
            Reply::Description(description) => Ok(description.state(self.part.0)),
            _ => Err(ClientError::Confused { address: self.address.clone() }),
        }
    }

    /// Returns the newest version. The writer holds its files from now on.
    pub(crate) fn manifest(&mut self) -> Result<Manifest, ClientError> {
        let mut bytes = Vec::new();
        let followed = self.step(FollowStep::Manifest, &mut bytes)?;
        self.files = followed.files;
        let refused = |reason: String| {
            ClientError::from(StoreError::FollowRefused { part: self.part, reason })
        };
        let manifest = Manifest::from_bytes(&bytes)
            .map_err(|reason| refused(format!("invalid manifest: {reason}")))?;
        let is_whole = manifest.files().all(|file| self.files.iter().any(|(name, _)| name == file));
        if manifest.part() != self.part || !is_whole {
            return Err(refused("the writer lacks files of its manifest".to_owned()));
        }
        Ok(manifest)
    }

    /// Reports the version that the follower serves. A server before wire version 6 does not accept
    /// reports.
    pub(super) fn serves(&mut self, version: VersionTag, instance: u64) -> Result<(), ClientError> {
        if self.connection.version() < WIRE_VERSION_IDENTITY {
            return Ok(());
        }
        self.step(FollowStep::Serves { version, instance }, &mut Vec::new()).map(drop)
    }

    /// Returns the indices of the files that a manifest names.
    pub(super) fn files_of(&self, manifest: &Manifest) -> Vec<u16> {
        let all = (0..self.n_files()).zip(&self.files);
        let named = all.filter(|(_, (name, _))| manifest.files().any(|it| it == name));
        named.map(|(at, _)| at).collect()
    }

    pub(super) fn n_files(&self) -> u16 {
        u16::try_from(self.files.len()).unwrap_or(u16::MAX)
    }

    pub(super) fn file(&self, at: u16) -> (String, u64) {
        self.files[usize::from(at)].clone()
    }

    /// Returns the names and the lengths of the files of the last manifest.
    pub(crate) fn files(&self) -> &[(String, u64)] {
        &self.files
    }

    /// Fetches a piece of a file, which replaces the content of `piece`; returns whether it is the
    /// last.
    pub(super) fn read(
        &mut self,
        file: u16,
        offset: u64,
        piece: &mut Vec<u8>,
    ) -> Result<bool, ClientError> {
        let followed = self.step(FollowStep::Read { file, offset }, piece)?;
        if !followed.is_last && !(1..=COPY_PIECE_BYTES).contains(&piece.len()) {
            return Err(
                self.broken(format!("a piece of {} bytes that is not the last", piece.len()))
            );
        }
        Ok(followed.is_last)
    }

    /// Fails if a file does not have its listed length.
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
        Err(self.broken(format!("{found} bytes of {name}, expected {expected}")))
    }

    fn step(&mut self, step: FollowStep, body: &mut Vec<u8>) -> Result<Followed, ClientError> {
        let request = RequestBody::Follow { part: self.part.0, step };
        let Reply::Followed(followed) = self.ask(request, body)? else {
            return Err(ClientError::Confused { address: self.address.clone() });
        };
        self.check_piece(body, followed.crc32)?;
        Ok(followed)
    }

    /// Runs a step of a move. `piece` receives the body of the reply, and nothing else.
    pub(crate) fn copy(
        &mut self,
        step: CopyStep,
        piece: &mut Vec<u8>,
    ) -> Result<Copied, ClientError> {
        let request = RequestBody::Copy { part: self.part.0, step };
        let Reply::Copied(copied) = self.ask(request, piece)? else {
            return Err(ClientError::Confused { address: self.address.clone() });
        };
        self.check_piece(piece, copied.crc32)?;
        Ok(copied)
    }

    fn ask(&mut self, body: RequestBody, piece: &mut Vec<u8>) -> Result<Reply, ClientError> {
        let deadline = Instant::now() + self.deadline;
        let time = Some(time_left(&self.address, deadline)?);
        let request = Request { deadline: time, ..Request::new(body) };
        piece.clear();
        self.connection.send(&request, &[], deadline)?;
        self.connection.receive_piece(piece, deadline)
    }

    fn check_piece(&self, piece: &[u8], expected: u32) -> Result<(), ClientError> {
        let found = crc32fast::hash(piece);
        if found == expected {
            return Ok(());
        }
        Err(self.broken(format!("a piece has checksum {found:#010x}, expected {expected:#010x}")))
    }

    /// Returns the error for an impossible reply.
    pub(crate) fn broken(&self, reason: String) -> ClientError {
        let source = WireError::Malformed { message: "followed", reason };
        ClientError::Wire { address: self.address.clone(), source }
    }
}
