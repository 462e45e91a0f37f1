//! A partition that is copied or moved from a running server into a folder on this machine.
//!
//! `docs/replication.md` has the steps, and the owner of the partition at each.
//! [`PartitionTransfer`] runs them one by one, so that its caller can stop between any two without
//! losing anything.

mod preflight;
mod source;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_schema::request::CopyStep;
use lodestore_store::transfer::{Arrival, ArrivingCatalog};
use uuid::Uuid;

use crate::address::Address;
use crate::error::ClientError;
use crate::remote::ClientConfig;
use preflight::{ask_target, check_ends, check_taken, is_busy, is_in_place, was_here};
use source::PartSource;

/// Pause before a busy server (it compacts, or another partition moves) is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the source is asked to release the partition: reads of it may outlast its wait.
const RELEASES_MAX: usize = 3;
/// How often new files of the source are fetched before it is sealed.
const ROUNDS_MAX: usize = 8;
/// Bytes of files that may be fetched while the source is sealed.
const SEALED_BYTES: u64 = 4 << 20;

/// The partition to move or copy, and its destination.
#[derive(Clone, Debug)]
pub struct TransferPlan {
    /// The server that holds the partition.
    pub from: Address,
    /// The partition.
    pub part: PartId,
    /// Folder of the graph that receives it; created if missing.
    pub into: PathBuf,
    /// The server of that folder, which takes the partition over. A move needs one, or `unserved`.
    pub to: Option<Address>,
    /// Whether the partition may end up without a server.
    pub unserved: bool,
    /// Whether the source keeps the partition; then neither source nor target may accept puts.
    pub keep: bool,
    /// Time limit of one step, and credentials.
    pub config: ClientConfig,
}

/// A move or a copy in progress.
pub struct PartitionTransfer {
    plan: TransferPlan,
    arrival: Arrival,
    /// Present from the fetch of the files until the seal.
    catalog: Option<ArrivingCatalog>,
    /// `None` once the source has released the partition.
    source: Option<PartSource>,
    stats: TransferStats,
}

/// Bytes that were moved, and times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferStats {
    /// Files fetched.
    pub files: u64,
    /// Files that an earlier run had left complete.
    pub files_kept: u64,
    /// Bytes of the files fetched.
    pub file_bytes: u64,
    /// Bytes of the pending rows.
    pub pending_bytes: u64,
    /// Bytes of the pending rows, and of the files fetched while the partition was sealed.
    pub late_bytes: u64,
    /// Committed version of the partition.
    pub version: u32,
    /// Time in which the partition accepted no puts, from the seal to the release.
    pub sealed: Duration,
    /// Whether the partition was in its place already: an earlier run had moved or copied it.
    pub was_here: bool,
}

impl PartitionTransfer {
    /// Checks source and target, and continues with what an earlier run has left in the folder.
    ///
    /// # Errors
    /// The reason why the partition cannot be moved, found before any fetch.
    pub fn begin(plan: TransferPlan) -> Result<Self, ClientError> {
        check_ends(&plan)?;
        // Never 0, which is the number of mere copies.
        let id = Uuid::new_v4().as_u64_pair().1 | 1;
        let arrival = Arrival::find_or_begin(&plan.into, plan.part, id)?;
        // Before anything is fetched; fetched files are given to the owner at the end.
        let given = arrival.give_to_owner().map_err(ClientError::from);
        let expect = || ask_target(&plan, CopyStep::Expect { id: arrival.id() });
        if let Err(error) = given.and_then(|()| expect()) {
            // Leaves nothing of this run in a folder that is not the server's.
            if arrival.id() == id {
                arrival.remove()?;
            }
            return Err(error);
        }
        let stats = TransferStats::default();
        Ok(Self { plan, arrival, catalog: None, source: None, stats })
    }

    /// Finds out what an unfinished earlier run has decided. Returns `true` if the source has
    /// released the partition, or the partition is in its place already: then
    /// [`PartitionTransfer::take`] is next. Otherwise starts the copy.
    ///
    /// # Errors
    /// The source cannot be asked, or has not released a partition whose copy is in its place.
    pub fn open(&mut self) -> Result<bool, ClientError> {
        if self.arrival.is_taken() {
            check_taken(&self.plan)?;
            return Ok(true);
        }
        let id = if self.plan.keep { 0 } else { self.arrival.id() };
        self.source = PartSource::open(&self.plan.from, &self.plan.config, self.plan.part, id)?;
        Ok(self.source.is_none())
    }

    /// Fetches and checks the files of the newest version, and those that the source creates
    /// meanwhile, until few are missing. Clients of the source continue. `progress` receives the
    /// bytes fetched and the bytes to fetch.
    ///
    /// # Errors
    /// The failure; the source has not changed.
    pub fn fetch(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), ClientError> {
        let Some(source) = &mut self.source else { return Ok(()) };
        for round in 0..ROUNDS_MAX {
            let manifest = source.manifest()?;
            if round > 0 && source.missing_bytes(&self.arrival)? <= SEALED_BYTES {
                break;
            }
            let fetched = source.fetch(&self.arrival, &manifest, progress)?;
            self.stats.files_kept += if round == 0 { fetched.kept } else { 0 };
            self.stats.files += fetched.files;
            self.stats.file_bytes += fetched.n_bytes;
        }
        self.arrival.check_lists()?;
        self.catalog = Some(self.arrival.catalog()?);
        Ok(())
    }

    /// Has the source reject puts and commits for a moment, and fetches the files that it has
    /// created since, and its pending rows.
    ///
    /// # Errors
    /// The failure; the seal ends by itself.
    pub fn seal(&mut self) -> Result<(), ClientError> {
        let Some(source) = &mut self.source else { return Ok(()) };
        let catalog = match self.catalog.take() {
            Some(catalog) => catalog,
            None => self.arrival.catalog()?,
        };
        let version = source.seal()?;
        let start = Instant::now();
        let manifest = source.manifest_of(version)?;
        let fetched = source.fetch(&self.arrival, &manifest, &mut |_, _| {})?;
        catalog.install(&manifest)?;
        let pending_bytes = source.pending(&catalog, &manifest)?;
        catalog.close()?;
        self.arrival.graph()?.remove_strays(&manifest)?;
        self.arrival.sync()?;
        // The source still owns the partition: the folder's server must be able to open it.
        self.arrival.give_to_owner()?;
        self.stats.version = version;
        self.stats.files += fetched.files;
        self.stats.file_bytes += fetched.n_bytes;
        self.stats.pending_bytes = pending_bytes;
        self.stats.late_bytes = pending_bytes + fetched.n_bytes;
        self.stats.sealed = start.elapsed();
        Ok(())
    }

    /// Has the source release the partition for good, unless this is a copy.
    ///
    /// # Errors
    /// The failure. Only the source knows then whether it has released the partition:
    /// [`PartitionTransfer::open`] asks it.
    pub fn release(&mut self) -> Result<(), ClientError> {
        let Some(mut source) = self.source.take() else { return Ok(()) };
        if self.plan.keep {
            return Ok(());
        }
        let start = Instant::now();
        source.release(self.plan.to.as_ref())?;
        self.stats.sealed += start.elapsed();
        Ok(())
    }

    /// Moves the partition to its place in the folder, and has the folder's server adopt it.
    ///
    /// # Errors
    /// The reason why the folder cannot be renamed, or the server cannot open it. Fix that, and
    /// repeat the same move from its start.
    pub fn take(self) -> Result<TransferStats, ClientError> {
        assert!(self.source.is_none(), "the source has released it");
        let (plan, stats) = (self.plan, self.stats);
        self.arrival.give_to_owner()?;
        self.arrival.take()?;
        ask_target(&plan, CopyStep::Adopt)?;
        Ok(stats)
    }

    /// Runs all steps.
    ///
    /// # Errors
    /// Returns the error of the step that failed.
    pub fn run(
        plan: TransferPlan,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<TransferStats, ClientError> {
        check_ends(&plan)?;
        if !Arrival::is_begun(&plan.into, plan.part)? && is_in_place(&plan.into, plan.part) {
            return was_here(&plan);
        }
        let mut this = Self::begin(plan)?;
        for attempts_left in (0..RELEASES_MAX).rev() {
            if this.open()? {
                break;
            }
            this.fetch(progress)?;
            this.seal()?;
            match this.release() {
                Ok(()) => break,
                // Reads at the source did not end in time, which ended its copy. Fetched files are
                // not fetched again.
                Err(error) if attempts_left > 0 && is_busy(&error) => {}
                Err(error) => return Err(error),
            }
        }
        this.take()
    }
}
