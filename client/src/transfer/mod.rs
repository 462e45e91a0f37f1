//! A partition that is copied or moved from a running server into a folder of this machine.
//!
//! `docs/replication.md` has the steps and the owner of the partition at each.
//! [`PartitionTransfer`] takes them one by one, so that its caller can stop between any two;
//! nothing is lost then.

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

/// Pause before a server that is busy (it compacts, another partition comes or goes) is asked
/// again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the source is asked to give the partition up: reads of it may outlast its wait.
const RELEASES_MAX: usize = 3;
/// How often files are fetched that the source has made since, before it is sealed.
const ROUNDS_MAX: usize = 8;
/// Bytes of files that may be fetched while the source is sealed.
const SEALED_BYTES: u64 = 4 << 20;

/// The partition to copy, and its destination.
#[derive(Clone, Debug)]
pub struct TransferPlan {
    /// The server that has the partition.
    pub from: Address,
    /// The partition.
    pub part: PartId,
    /// Folder of the graph where it goes; made if it is not there.
    pub into: PathBuf,
    /// The server of that folder, which takes it over. A move needs one, or `unserved`.
    pub to: Option<Address>,
    /// The partition may end up without a server.
    pub unserved: bool,
    /// Whether the source keeps it; then neither source nor target may take puts.
    pub keep: bool,
    /// Time for one step, and what servers are shown.
    pub config: ClientConfig,
}

/// A move in progress, or a copy.
pub struct PartitionTransfer {
    plan: TransferPlan,
    arrival: Arrival,
    /// From the files on until the seal.
    catalog: Option<ArrivingCatalog>,
    /// `None` once the source has given the partition up.
    source: Option<PartSource>,
    stats: TransferStats,
}

/// Bytes that were moved and the time that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferStats {
    /// Files fetched, and those that an earlier run had left whole.
    pub files: u64,
    /// Those of them that were there already.
    pub files_kept: u64,
    /// Bytes of the files fetched.
    pub file_bytes: u64,
    /// Bytes of the rows that were not committed.
    pub pending_bytes: u64,
    /// Bytes of these and of files that came while it was sealed.
    pub late_bytes: u64,
    /// Committed version of the partition.
    pub version: u32,
    /// Time in which it took no puts, until it was given up.
    pub sealed: Duration,
    /// It was in its place already: an earlier run had moved or copied it.
    pub was_here: bool,
}

impl PartitionTransfer {
    /// Checks both ends, and continues with what an earlier run has left in the folder.
    ///
    /// # Errors
    /// The reason why the partition cannot be moved so, found before any fetch.
    pub fn begin(plan: TransferPlan) -> Result<Self, ClientError> {
        check_ends(&plan)?;
        // Never 0, which is the number of copies that take nothing away.
        let id = Uuid::new_v4().as_u64_pair().1 | 1;
        let arrival = Arrival::find_or_begin(&plan.into, plan.part, id)?;
        // Before anything is fetched; what comes is given at the end.
        let given = arrival.give_to_owner().map_err(ClientError::from);
        let expect = || ask_target(&plan, CopyStep::Expect { id: arrival.id() });
        if let Err(error) = given.and_then(|()| expect()) {
            // What this run has made in a folder that is not the server's is in nobody's way.
            if arrival.id() == id {
                arrival.remove()?;
            }
            return Err(error);
        }
        let stats = TransferStats::default();
        Ok(Self { plan, arrival, catalog: None, source: None, stats })
    }

    /// Finds the decision of an earlier run that ended before the transfer was done. Returns `true`
    /// if the source had given the partition up, or it is in its place already. Then
    /// [`PartitionTransfer::take`] is next. Else the copy begins.
    ///
    /// # Errors
    /// The reason why the source cannot be asked; a copy in its place is of an earlier time.
    pub fn open(&mut self) -> Result<bool, ClientError> {
        if self.arrival.is_taken() {
            check_taken(&self.plan)?;
            return Ok(true);
        }
        let id = if self.plan.keep { 0 } else { self.arrival.id() };
        self.source = PartSource::open(&self.plan.from, &self.plan.config, self.plan.part, id)?;
        Ok(self.source.is_none())
    }

    /// Fetches and checks the files of the newest version, and those that the source makes
    /// meanwhile, until few are missing; clients continue. `progress` receives bytes fetched and to
    /// fetch.
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

    /// Has the source take no puts and commits for a moment, and fetches what it has made since,
    /// and the rows that are not committed.
    ///
    /// # Errors
    /// The failure; the source continues by itself.
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
        // While the partition is the source's: the folder's server must be able to open it.
        self.arrival.give_to_owner()?;
        self.stats.version = version;
        self.stats.files += fetched.files;
        self.stats.file_bytes += fetched.n_bytes;
        self.stats.pending_bytes = pending_bytes;
        self.stats.late_bytes = pending_bytes + fetched.n_bytes;
        self.stats.sealed = start.elapsed();
        Ok(())
    }

    /// Has the source give the partition up for good, unless it is a mere copy.
    ///
    /// # Errors
    /// The failure. Then only the source knows whether it has: [`PartitionTransfer::open`] asks.
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

    /// Moves the partition to its place in the folder, and has the folder's server serve it.
    ///
    /// # Errors
    /// The reason why the folder cannot be renamed, or the server cannot open it. Mend that, and
    /// repeat the same move from its start.
    pub fn take(self) -> Result<TransferStats, ClientError> {
        assert!(self.source.is_none(), "the source has released it");
        let (plan, stats) = (self.plan, self.stats);
        self.arrival.give_to_owner()?;
        self.arrival.take()?;
        ask_target(&plan, CopyStep::Adopt)?;
        Ok(stats)
    }

    /// Returns all of it.
    ///
    /// # Errors
    /// As those of the steps.
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
                // Reads at the source did not end in time: its copy is over, and files that have
                // come need not come again.
                Err(error) if attempts_left > 0 && is_busy(&error) => {}
                Err(error) => return Err(error),
            }
        }
        this.take()
    }
}
