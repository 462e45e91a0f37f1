//! MassiveGNN's buffer: how large, and when it lets rows go.

use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context as _, Result};
use clap::Args;
use lodestore_cache::{Candidate, DecaySpec, PolicySpec, Scoreboard, Tier};
use lodestore_client::{ClientError, HaloBuffer, PullStats, RowSource};
use lodestore_trainer::Strategy;

use super::known::Known;
use super::tiers::Tiers;
use crate::usage::UsageError;

/// Rows of a buffer, for each halo node of its worker (the paper's f_p^h).
const SHARE: f64 = 0.25;
/// What scores are multiplied with (γ).
const GAMMA: f64 = 0.995;
/// Batches between rounds (Δ).
const DELTA: u32 = 64;

/// Flags of `--strategy massive`.
#[derive(Args, Clone, Debug)]
pub(super) struct BufferArgs {
    /// massive: rows of each worker's buffer, as a share of its halo [default: 0.25].
    #[arg(long, value_name = "SHARE")]
    buffer: Option<f64>,
    /// massive: what the score of a row is multiplied with in each batch that does not use it
    /// [default: 0.995].
    #[arg(long, value_name = "G")]
    gamma: Option<f64>,
    /// massive: batches from one round of eviction to the next [default: 64].
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..))]
    delta: Option<u32>,
    /// massive: keep the rows of the first fill: the halo's of the highest degree, then others.
    #[arg(long, conflicts_with_all = ["gamma", "delta"])]
    no_eviction: bool,
}

/// Rows of a buffer, at most those of all nodes.
#[derive(Clone, Copy, Debug)]
enum BufferSize {
    /// For each halo node of its worker.
    HaloShare(f64),
    Rows(u32),
}

/// A buffer; no γ and Δ without eviction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferChoice {
    size: BufferSize,
    eviction: Option<(f64, u32)>,
}

impl BufferChoice {
    /// A buffer of `n_rows` rows, with the usual eviction or without.
    pub(crate) fn of_rows(n_rows: u32, evicts: bool) -> Self {
        Self { size: BufferSize::Rows(n_rows), eviction: evicts.then_some((GAMMA, DELTA)) }
    }

    /// A buffer of `n_rows` rows with this γ and Δ.
    pub(crate) fn with_eviction(n_rows: u32, gamma: f64, delta: u32) -> Self {
        Self { size: BufferSize::Rows(n_rows), eviction: Some((gamma, delta)) }
    }
}

impl BufferArgs {
    pub(super) fn check(&self, strategy: Strategy) -> Result<Option<BufferChoice>, UsageError> {
        if strategy != Strategy::Massive {
            let used = [
                ("--buffer", self.buffer.is_some()),
                ("--gamma", self.gamma.is_some()),
                ("--delta", self.delta.is_some()),
                ("--no-eviction", self.no_eviction),
            ];
            return match used.into_iter().find(|(_, used)| *used) {
                Some((flag, _)) => {
                    Err(UsageError::new(format!("{flag} is for --strategy massive")))
                }
                None => Ok(None),
            };
        }
        let (share, gamma) = (self.buffer.unwrap_or(SHARE), self.gamma.unwrap_or(GAMMA));
        if !(share >= 0.0 && share.is_finite()) {
            return Err(UsageError::new(format!("--buffer must be 0 or more, found {share}")));
        }
        if !(gamma > 0.0 && gamma <= 1.0) {
            let message = format!("--gamma must be above 0 and at most 1, found {gamma}");
            return Err(UsageError::new(message));
        }
        let eviction = (!self.no_eviction).then_some((gamma, self.delta.unwrap_or(DELTA)));
        Ok(Some(BufferChoice { size: BufferSize::HaloShare(share), eviction }))
    }
}

impl Tiers {
    /// What a worker's buffer keeps its rows in: of its halo first, then of others (MassiveGNN,
    /// Algorithm 1). Candidates are all nodes that it does not own: batches of more than one hop reach
    /// past the halo, which has the sources of one.
    pub(super) fn of_buffer(
        &mut self,
        choice: BufferChoice,
        worker: u32,
        remote: &Arc<dyn RowSource>,
        tensor: &str,
        known: &Known<'_>,
    ) -> Result<Tier> {
        let halo = known.halo(worker)?;
        let n_rows = match choice.size {
            BufferSize::HaloShare(share) => (share * halo.len() as f64).round() as u32,
            BufferSize::Rows(n_rows) => n_rows,
        };
        let spec = policy(choice.eviction, worker, &halo, known);
        let (row_bytes, n_nodes) = (remote.tensor(tensor)?.row_bytes(), remote.book().n_nodes());
        // A share of more than all nodes is all nodes.
        let tier = Tier::of_slots(n_rows, row_bytes, n_nodes, &spec)?;
        self.take(tier.bytes()).context("--buffer")?;
        self.has_eviction = choice.eviction.is_some();
        Ok(tier)
    }

    /// The buffers before `remote` of workers whose tiers these are, each filled in a thread of its own,
    /// and what that pulled.
    pub(super) fn fill(
        &mut self,
        tiers: Vec<Tier>,
        remote: &Arc<dyn RowSource>,
        tensor: &str,
    ) -> Result<Vec<(Arc<dyn RowSource>, PullStats)>> {
        let filled: Vec<_> = thread::scope(|scope| {
            let fill = |tier| scope.spawn(|| HaloBuffer::new(Arc::clone(remote), tensor, tier));
            let threads: Vec<_> = tiers.into_iter().map(fill).collect();
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or(Err(ClientError::Panicked { thread: "fill" }))
            };
            threads.into_iter().map(join).collect()
        });
        let mut sources = Vec::new();
        for filled in filled {
            let (buffer, pulled) = filled?;
            let buffer = Arc::new(buffer);
            self.filled_rows += pulled.rows;
            self.buffers.push(Arc::clone(&buffer));
            sources.push((buffer as Arc<dyn RowSource>, pulled));
        }
        Ok(sources)
    }
}

/// Which rows a worker's buffer keeps; `halo` ascends.
fn policy(
    eviction: Option<(f64, u32)>,
    worker: u32,
    halo: &[u32],
    known: &Known<'_>,
) -> PolicySpec {
    let Some((gamma, interval)) = eviction else {
        let by_degree = known.remote_by_degree(Some(worker));
        let is_halo = |id: &&u32| halo.binary_search(id).is_ok();
        let others = by_degree.iter().filter(|id| !is_halo(id));
        return PolicySpec::Degree(
            by_degree.iter().filter(is_halo).chain(others).copied().collect(),
        );
    };
    let (ids, degrees) = known.remote(Some(worker));
    let mut halo = halo.iter().peekable();
    let candidates = ids.into_iter().zip(degrees).map(|(id, degree)| {
        let is_halo = halo.next_if_eq(&&id).is_some();
        Candidate { id, degree, is_halo }
    });
    let (candidates, scoreboard) = (candidates.collect(), Scoreboard::Dense);
    PolicySpec::Decay(DecaySpec { candidates, gamma, interval, scoreboard })
}
