//! A partition that is copied or moved from a running server into a folder of this machine.
//!
//! `docs/moving.md` has the steps and who owns the partition at each. [`PartMove`] takes them one by
//! one, so that whoever drives it can stop between any two; nothing is lost then.

mod ends;
mod source;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_schema::CopyStep;
use lodestore_store::Arrival;

use crate::{Address, ClientConfig, ClientError};
use ends::{Kind, ask_target, check_ends, check_taken, is_busy, is_in_place, was_here};
use source::PartSource;

/// Pause before a server that is busy (it compacts, another partition comes or goes) is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the source is asked to give the partition up: reads of it may outlast its patience.
const RELEASES_MAX: usize = 3;

/// What is to be copied, and where it goes.
#[derive(Clone, Debug)]
pub struct MovePlan {
    /// The server that has the partition.
    pub from: Address,
    /// The partition.
    pub part: PartId,
    /// Folder of the graph where it goes; made if it is not there.
    pub into: PathBuf,
    /// The server of that folder, which is told. A move needs one, or `unserved`.
    pub to: Option<Address>,
    /// The partition may be left where nobody serves it.
    pub unserved: bool,
    /// Whether the source keeps it; then neither source nor target may take puts.
    pub keep: bool,
    /// Time for one step, and what servers are shown.
    pub config: ClientConfig,
}

/// A move under way, or a copy.
pub struct PartMove {
    plan: MovePlan,
    kind: Kind,
    arrival: Arrival,
    /// `None` once the source has given the partition up.
    source: Option<PartSource>,
    stats: MoveStats,
}

/// What was moved and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveStats {
    /// Files fetched, and those that an earlier run had left whole.
    pub files: u64,
    /// Of these, the ones that were there.
    pub files_kept: u64,
    /// Bytes of the files fetched.
    pub file_bytes: u64,
    /// Bytes of pairs of the catalog, and how many of them after the seal.
    pub catalog_bytes: u64,
    /// Of these, after the seal.
    pub late_bytes: u64,
    /// Committed version of the partition.
    pub version: u32,
    /// Time in which it took no puts, until it was given up.
    pub sealed: Duration,
    /// It was in its place already: an earlier run had moved or copied it.
    pub was_here: bool,
}

impl PartMove {
    /// Checks both ends, and goes on with what an earlier run has left in the folder.
    ///
    /// # Errors
    /// What keeps the partition from being moved so, before anything is fetched.
    pub fn begin(plan: MovePlan) -> Result<Self, ClientError> {
        let kind = check_ends(&plan)?;
        // Never 0, which is the number of copies that take nothing away.
        let id = RandomState::new().build_hasher().finish() | 1;
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
        Ok(Self { plan, kind, arrival, source: None, stats: MoveStats::default() })
    }

    /// What an earlier run may have left undone after its decision: `true` if the source had given
    /// the partition up, or it is in its place already, so that
    /// [`PartMove::take`] is next. Else the copy begins.
    ///
    /// # Errors
    /// What keeps the source from being asked, and a copy in its place that is of an earlier time.
    pub fn open(&mut self) -> Result<bool, ClientError> {
        if self.arrival.is_taken() {
            check_taken(&self.plan, self.kind)?;
            return Ok(true);
        }
        let id = if self.kind == Kind::Copy { 0 } else { self.arrival.id() };
        let source = PartSource::open(&self.plan.from, &self.plan.config, self.plan.part, id)?;
        self.stats.version = source.version();
        let is_given_up = source.is_given_up();
        self.source = (!is_given_up).then_some(source);
        Ok(is_given_up)
    }

    /// Fetches files and catalog and reads all of it; clients go on meanwhile. `progress` is told
    /// bytes fetched and to fetch.
    ///
    /// # Errors
    /// What broke; nothing has changed at the source.
    pub fn fetch(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), ClientError> {
        let Some(source) = &mut self.source else { return Ok(()) };
        let files = source.files().to_vec();
        let total = files.iter().fold(0, |sum: u64, (_, n_bytes)| sum.saturating_add(*n_bytes));
        let (mut done, mut piece) = (0, Vec::new());
        for (at, (name, n_bytes)) in (0u16..).zip(&files) {
            if self.arrival.has(name, *n_bytes)? {
                self.stats.files_kept += 1;
                done = u64::saturating_add(done, *n_bytes);
                continue;
            }
            let (mut file, mut offset) = (self.arrival.file(name)?, 0);
            loop {
                let step = CopyStep::Read { file: at, offset };
                let is_last = source.step(step, &mut piece)?.is_last;
                offset += piece.len() as u64;
                source.check_length(name, *n_bytes, offset, is_last)?;
                file.append(&piece)?;
                progress(done.saturating_add(offset), total);
                if is_last {
                    break;
                }
                source.check_piece(&piece)?;
            }
            file.finish()?;
            done = done.saturating_add(offset);
            self.stats.files += 1;
            self.stats.file_bytes += offset;
        }
        let catalog = self.arrival.catalog()?;
        self.stats.catalog_bytes = source.pairs(&catalog, &mut piece)?;
        catalog.close()?;
        self.arrival.check(&mut |_, _| {})?;
        Ok(())
    }

    /// Has the source take no puts for a moment, and fetches what was put since the start.
    ///
    /// # Errors
    /// What broke; the source goes on by itself.
    pub fn seal(&mut self) -> Result<(), ClientError> {
        let Some(source) = &mut self.source else { return Ok(()) };
        let catalog = self.arrival.catalog_again()?;
        let start = Instant::now();
        self.stats.version = source.seal()?.version;
        self.stats.late_bytes = source.pairs(&catalog, &mut Vec::new())?;
        self.stats.catalog_bytes += self.stats.late_bytes;
        catalog.close()?;
        self.arrival.sync()?;
        // While the partition is the source's: the folder's server must be able to open it.
        self.arrival.give_to_owner()?;
        self.stats.sealed = start.elapsed();
        Ok(())
    }

    /// Has the source give the partition up for good, unless it is a mere copy.
    ///
    /// # Errors
    /// What broke. Then nobody but the source knows whether it has: [`PartMove::open`] asks.
    pub fn release(&mut self) -> Result<(), ClientError> {
        let Some(mut source) = self.source.take() else { return Ok(()) };
        let start = Instant::now();
        match self.kind {
            Kind::Copy => return Ok(()),
            Kind::Move => drop(source.step(CopyStep::Release, &mut Vec::new())?),
        }
        self.stats.sealed += start.elapsed();
        Ok(())
    }

    /// Moves the partition to its place in the folder, and has the folder's server serve it.
    ///
    /// # Errors
    /// What keeps the folder from being renamed, or the server from opening it: mend that, and take
    /// the same move again from its start.
    pub fn take(self) -> Result<MoveStats, ClientError> {
        assert!(self.source.is_none(), "the source has let go of it");
        let (plan, stats) = (self.plan, self.stats);
        self.arrival.give_to_owner()?;
        self.arrival.take()?;
        ask_target(&plan, CopyStep::Adopt)?;
        Ok(stats)
    }

    /// All of it.
    ///
    /// # Errors
    /// As those of the steps.
    pub fn run(
        plan: MovePlan,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<MoveStats, ClientError> {
        let kind = check_ends(&plan)?;
        if !Arrival::is_begun(&plan.into, plan.part)? && is_in_place(&plan.into, plan.part) {
            return was_here(&plan, kind);
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
                // Reads at the source did not end in time: its copy is over, and files that have come
                // need not come again.
                Err(error) if attempts_left > 0 && is_busy(&error) => {}
                Err(error) => return Err(error),
            }
        }
        this.take()
    }
}
