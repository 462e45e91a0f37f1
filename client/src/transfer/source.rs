//! The server that holds the partition, over the single connection of the move.

use std::time::Duration;

use lodestore_graph::PartId;
use lodestore_schema::name::ServerAddress;
use lodestore_schema::reply::Copied;
use lodestore_schema::request::CopyStep;
use lodestore_store::follow::Manifest;
use lodestore_store::transfer::{Arrival, ArrivingCatalog};

use super::preflight::{stalled, while_busy};
use crate::address::Address;
use crate::error::ClientError;
use crate::follow::{Fetched, Link, Progress, fetch_part};
use crate::remote::ClientConfig;

/// A copy that the source keeps open.
pub(super) struct PartSource {
    link: Link,
    /// Time limit of each step.
    deadline: Duration,
}

impl PartSource {
    /// Starts a copy; waits until the deadline while the source is busy. Returns `None` if an
    /// earlier run of the same move has taken the partition away.
    pub(super) fn open(
        address: &Address,
        config: &ClientConfig,
        part: PartId,
        id: u64,
    ) -> Result<Option<Self>, ClientError> {
        let deadline = config.deadline;
        let link = Link::open(address, config, part).map_err(|error| stalled(error, deadline))?;
        let mut this = Self { link, deadline };
        let is_given_up = this.step_when_free(CopyStep::Open { id })?.is_given_up;
        Ok((!is_given_up).then_some(this))
    }

    /// Seals the partition, waiting until the deadline while the source is busy; returns its
    /// version.
    pub(super) fn seal(&mut self) -> Result<u32, ClientError> {
        Ok(self.step_when_free(CopyStep::Seal)?.version)
    }

    /// Has the source release the partition for good, and announce `to` as its new server.
    pub(super) fn release(&mut self, to: Option<&Address>) -> Result<(), ClientError> {
        // A longer address is not announced: followers then need it from their operator.
        let to = to.and_then(|to| ServerAddress::new(&absolute(to).to_string()).ok());
        self.step(CopyStep::Release { to }, &mut Vec::new()).map(drop)
    }

    /// Returns the newest version. The source holds its files from now on.
    pub(super) fn manifest(&mut self) -> Result<Manifest, ClientError> {
        self.link.manifest().map_err(|error| stalled(error, self.deadline))
    }

    /// Like [`Self::manifest`], for a partition that is sealed at `version`.
    pub(super) fn manifest_of(&mut self, version: u32) -> Result<Manifest, ClientError> {
        let manifest = self.manifest()?;
        if manifest.version() == version {
            return Ok(manifest);
        }
        let found = manifest.version();
        Err(self.link.broken(format!("files of version {found}, expected version {version}")))
    }

    /// Returns the bytes of the files of the last manifest that are missing.
    pub(super) fn missing_bytes(&self, arrival: &Arrival) -> Result<u64, ClientError> {
        self.link.files().iter().try_fold(0, |sum: u64, (name, n_bytes)| {
            let missing = if arrival.has(name, *n_bytes)? { 0 } else { *n_bytes };
            Ok(sum.saturating_add(missing))
        })
    }

    /// Fetches the files of the last manifest that are missing.
    pub(super) fn fetch(
        &mut self,
        arrival: &Arrival,
        manifest: &Manifest,
        progress: &mut Progress<'_>,
    ) -> Result<Fetched, ClientError> {
        let fetched = fetch_part(&mut self.link, arrival, manifest, progress);
        fetched.map_err(|error| stalled(error, self.deadline))
    }

    /// Fetches the pending rows; returns their bytes.
    pub(super) fn pending(
        &mut self,
        catalog: &ArrivingCatalog,
        manifest: &Manifest,
    ) -> Result<u64, ClientError> {
        let (mut n_bytes, mut piece) = (0, Vec::new());
        loop {
            let is_last = self.step(CopyStep::Pending, &mut piece)?.is_last;
            if piece.is_empty() && !is_last {
                return Err(self.link.broken("an empty piece that is not the last".to_owned()));
            }
            catalog.put(manifest, &piece)?;
            n_bytes += piece.len() as u64;
            if is_last {
                return Ok(n_bytes);
            }
        }
    }

    fn step(&mut self, step: CopyStep, piece: &mut Vec<u8>) -> Result<Copied, ClientError> {
        self.link.copy(step, piece).map_err(|error| stalled(error, self.deadline))
    }

    /// Runs a step without a body, waiting until the deadline while the source is busy.
    fn step_when_free(&mut self, step: CopyStep) -> Result<Copied, ClientError> {
        while_busy(self.deadline, |_| self.step(step, &mut Vec::new()))
    }
}

/// Returns an address that does not depend on the working directory.
fn absolute(address: &Address) -> Address {
    match address {
        Address::Unix(path) => Address::Unix(std::path::absolute(path).unwrap_or(path.clone())),
        other => other.clone(),
    }
}
