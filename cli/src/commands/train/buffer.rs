//! MassiveGNN's buffer: how large, and when it lets rows go.

use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context as _, Result};
use clap::Args;
use lodestore_cache::Tier;
use lodestore_cache::policy::Candidate;
use lodestore_client::halo_buffer::HaloBuffer;
use lodestore_client::keep::policy_inputs::PolicyInputs;
use lodestore_client::keep::scored::ScoredRules;
use lodestore_client::source::PullStats;
use lodestore_client::{ClientError, RowSource};
use lodestore_trainer::Strategy;

use super::tiers::Tiers;
use crate::candidates::{RuleArgs, RuleReport, rows_of_share};
use crate::usage::{UsageError, first_given};

/// Rows of a buffer, for each halo node of its worker (the paper's f_p^h).
const SHARE: f64 = 0.25;
/// Factor of scores (γ).
const GAMMA: f64 = 0.9995;
/// Batches between rounds (Δ).
const DELTA: u32 = 64;

/// Flags of `--strategy massive`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "MassiveGNN: --strategy massive")]
pub(super) struct BufferArgs {
    /// massive: rows of each worker's buffer, as a share of its halo [default: 0.25].
    #[arg(long, value_name = "SHARE")]
    buffer: Option<f64>,
    /// massive: what the score of a row is multiplied with in each batch that does not use it
    /// [default: 0.9995].
    #[arg(long, value_name = "G")]
    gamma: Option<f64>,
    /// massive: batches from one round of eviction to the next [default: 64].
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..))]
    delta: Option<u32>,
    /// massive: keep the rows of the first fill: the halo's of the highest rank, then others.
    #[arg(long, conflicts_with_all = ["gamma", "delta", "replace", "scoreboard"])]
    no_eviction: bool,
    #[command(flatten)]
    rules: RuleArgs,
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
pub struct BufferChoice {
    size: BufferSize,
    eviction: Option<(f64, u32)>,
    rules: ScoredRules,
}

impl BufferChoice {
    /// Returns a buffer of `n_rows` rows that stay as they are at first.
    pub fn without_eviction(n_rows: u32) -> Self {
        Self { size: BufferSize::Rows(n_rows), eviction: None, rules: ScoredRules::default() }
    }

    /// Returns a buffer of `n_rows` rows with this γ and Δ.
    pub fn with_eviction(n_rows: u32, gamma: f64, delta: u32) -> Self {
        let (size, eviction) = (BufferSize::Rows(n_rows), Some((gamma, delta)));
        Self { size, eviction, rules: ScoredRules::default() }
    }
}

impl BufferArgs {
    pub(super) fn check(&self, strategy: &Strategy) -> Result<Option<BufferChoice>, UsageError> {
        if !matches!(strategy, Strategy::Massive(_)) {
            let used = [
                ("--buffer", self.buffer.is_some()),
                ("--gamma", self.gamma.is_some()),
                ("--delta", self.delta.is_some()),
                ("--no-eviction", self.no_eviction),
            ];
            return match first_given(&used).or(self.rules.used()) {
                Some(flag) => Err(UsageError::new(format!("{flag} is for --strategy massive"))),
                None => Ok(None),
            };
        }
        let (share, gamma) = (self.buffer.unwrap_or(SHARE), self.gamma.unwrap_or(GAMMA));
        if !(share >= 0.0 && share.is_finite()) {
            return Err(UsageError::new(format!("--buffer must be 0 or more, found {share}")));
        }
        if share > 1.0 && self.rules.keeps_halo_alone() {
            return Err(UsageError::new(format!(
                "--buffer must be at most 1 with --candidates halo, found {share}: no other rows are kept"
            )));
        }
        if !(gamma > 0.0 && gamma <= 1.0) {
            let message = format!("--gamma must be above 0 and at most 1, found {gamma}");
            return Err(UsageError::new(message));
        }
        let eviction = (!self.no_eviction).then_some((gamma, self.delta.unwrap_or(DELTA)));
        Ok(Some(BufferChoice {
            size: BufferSize::HaloShare(share),
            eviction,
            rules: self.rules.rules(),
        }))
    }
}

impl Tiers {
    /// Returns the tier of a worker's buffer, by MassiveGNN's rules (Algorithm 1).
    pub(super) fn of_buffer(
        &mut self,
        choice: BufferChoice,
        worker: u32,
        remote: &Arc<dyn RowSource>,
        tensor: &str,
        known: &PolicyInputs<'_>,
    ) -> Result<Tier> {
        let BufferChoice { size, eviction, rules } = choice;
        let candidates: Arc<[Candidate]> = rules.of_worker(known.view(worker)).into();
        let n_rows = match size {
            BufferSize::HaloShare(share) => {
                let n_halo = candidates.iter().filter(|candidate| candidate.is_halo).count();
                rows_of_share(share, n_halo as u32)
            }
            BufferSize::Rows(n_rows) => n_rows,
        };
        let (row_bytes, n_nodes) = (remote.tensor(tensor)?.row_bytes(), remote.book().n_nodes());
        let policy = rules.policy(&candidates, eviction, n_nodes);
        // No other row is ever kept.
        let n_rows = n_rows.min(candidates.len() as u32);
        let tier = Tier::of_slots(n_rows, row_bytes, n_nodes, &policy)?;
        self.take(tier.bytes()).context("--buffer")?;
        self.rules = Some(RuleReport::new(rules, &policy));
        Ok(tier)
    }

    /// Fills the buffers before `remote` of workers whose tiers these are, each in a thread of its
    /// own. Returns the buffers, and what each pulled.
    pub(super) fn fill(
        &mut self,
        tiers: Vec<Tier>,
        remote: &Arc<dyn RowSource>,
        tensor: &str,
    ) -> Result<Vec<(Arc<HaloBuffer>, PullStats)>> {
        let filled: Vec<_> = thread::scope(|scope| {
            let fill = |tier| scope.spawn(|| HaloBuffer::new(Arc::clone(remote), tensor, tier));
            let threads: Vec<_> = tiers.into_iter().map(fill).collect();
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or(Err(ClientError::Panicked { thread: "fill" }))
            };
            threads.into_iter().map(join).collect()
        });
        let mut buffers = Vec::new();
        for filled in filled {
            let (buffer, pulled) = filled?;
            let buffer = Arc::new(buffer);
            self.filled_rows += pulled.rows;
            self.buffers.push(Arc::clone(&buffer));
            buffers.push((buffer, pulled));
        }
        Ok(buffers)
    }
}
