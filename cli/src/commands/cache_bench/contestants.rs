//! The policies that compete, each with its inputs.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use lodestore_cache::policy::{Candidate, next_uses, rank_by_frequency};
use lodestore_cache::replay::{ReplayInputs, TierSizes};
use lodestore_cache::{PolicyKind, PolicySpec, Trace};
use lodestore_client::keep::scored::{ScoredRules, WorkerView};
use lodestore_store::Graph;
use serde::Serialize;

use super::Misses;
use super::capacity::Capacities;
use crate::traces::{LoadedTrace, TracedWorker};
use crate::usage::UsageError;

/// Chosen policies, and the parameters of `decay`.
pub(super) struct Choice {
    /// Each once, `oracle` and `unbounded` among them.
    pub(super) kinds: Vec<PolicyKind>,
    pub(super) gammas: Vec<f64>,
    pub(super) deltas: Vec<u32>,
    /// Those of `decay` and `degree`.
    pub(super) rules: ScoredRules,
    pub(super) ahead: bool,
    /// `overlap` competes with its opposite.
    pub(super) lowest_overlap: bool,
}

impl Choice {
    /// Returns whether a policy competes that keeps rows by MassiveGNN's rules.
    pub(super) fn follows_rules(&self) -> bool {
        self.kinds.iter().any(|&kind| follows_rules(kind))
    }

    /// Returns whether a policy competes that knows rows which it wants before they are missed.
    pub(super) fn plans(&self) -> bool {
        let plans = |&kind: &PolicyKind| {
            matches!(kind, PolicyKind::Frequency | PolicyKind::Overlap) || follows_rules(kind)
        };
        self.kinds.iter().any(plans)
    }
}

/// A policy with its inputs.
pub(super) struct Contestant {
    pub(super) kind: PolicyKind,
    pub(super) gamma: Option<f64>,
    pub(super) delta: Option<u32>,
    /// Which rows come first, if not those that the policy's name promises.
    pub(super) priority: Option<&'static str>,
    pub(super) spec: PolicySpec,
    pub(super) inputs: ReplayInputs,
    /// Its inputs, in words; none for those that learn from the requests.
    pub(super) knew: Option<String>,
}

/// Returns whether a policy keeps what MassiveGNN's rules say.
fn follows_rules(kind: PolicyKind) -> bool {
    matches!(kind, PolicyKind::Decay | PolicyKind::Degree)
}

/// A policy that was left out.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Omitted {
    pub(super) policy: &'static str,
    pub(super) reason: &'static str,
}

/// Returns whether only a graph has the inputs of a policy.
fn needs_graph(kind: PolicyKind) -> bool {
    matches!(kind, PolicyKind::Degree | PolicyKind::Overlap)
}

/// The nodes whose rows `decay` and `degree` may keep, as a trainer knows them, and in words.
pub(super) struct CandidateInputs {
    pub(super) candidates: Arc<[Candidate]>,
    in_words: String,
}

impl CandidateInputs {
    /// Collects the inputs of candidates: ids of one worker's remote rows by its rules, else of all
    /// nodes, or of all ids without a graph.
    pub(super) fn new(rules: ScoredRules, loaded: &LoadedTrace) -> Result<Self> {
        let Some(graph) = &loaded.graph else {
            let candidate = |id| Candidate { id, degree: 0, is_halo: true };
            let candidates = (0..loaded.trace.id_space()).map(candidate).collect();
            let in_words = "all ids, and no degrees, so low ids came first".to_owned();
            return Ok(Self { candidates, in_words });
        };
        let topology = graph.open_topology()?;
        let Some(TracedWorker { worker, n_workers }) = loaded.worker else {
            let in_words = "all nodes of the graph, and their degrees".to_owned();
            return Ok(Self { candidates: rules.of_all(&topology).into(), in_words });
        };
        let view = WorkerView { topology: &topology, book: graph.book(), worker, n_workers };
        let candidates = rules.of_worker(view).into();
        let in_words = "what a trainer does: its worker's candidates, and their degrees".to_owned();
        Ok(Self { candidates, in_words })
    }

    /// Returns the number of halo nodes.
    pub(super) fn n_halo(&self) -> u32 {
        self.candidates.iter().filter(|candidate| candidate.is_halo).count() as u32
    }
}

/// Prepares the policies for a trace; those without their inputs are left out.
pub(super) fn contestants(
    choice: &Choice,
    loaded: &LoadedTrace,
    known: Option<&CandidateInputs>,
) -> Result<(Vec<Contestant>, Vec<Omitted>)> {
    let (mut contestants, mut omitted) = (Vec::new(), Vec::new());
    let (trace, graph) = (&loaded.trace, loaded.graph.as_ref());
    for &kind in &choice.kinds {
        let before = contestants.len();
        match kind {
            PolicyKind::Decay => {
                contestants.extend(known.into_iter().flat_map(|known| decay(choice, trace, known)));
            }
            PolicyKind::Degree => {
                let known = known.filter(|_| graph.is_some());
                contestants.extend(known.map(|known| kept(choice, trace, known)));
            }
            PolicyKind::Frequency => contestants.push(frequency(trace)),
            PolicyKind::Overlap => {
                let overlap = graph.map(|graph| overlap(graph, trace)).transpose()?;
                let opposite = overlap.as_ref().filter(|_| choice.lowest_overlap);
                let opposite = opposite.and_then(Contestant::opposite);
                contestants.extend(overlap.into_iter().chain(opposite));
            }
            PolicyKind::Oracle => contestants.push(oracle(trace)?),
            kind => contestants.push(Contestant::of(kind, PolicySpec::try_from(kind)?, None)),
        }
        if contestants.len() == before {
            omitted.push(Omitted { policy: kind.name(), reason: "needs --graph" });
        }
    }
    for contestant in &mut contestants {
        contestant.inputs.ahead = choice.ahead;
    }
    Ok((contestants, omitted))
}

impl Contestant {
    fn of(kind: PolicyKind, spec: PolicySpec, knew: Option<String>) -> Self {
        let inputs = ReplayInputs::default();
        Self { kind, gamma: None, delta: None, priority: None, spec, inputs, knew }
    }

    /// Returns `overlap` the other way round: what the fewest partitions need stays (CaPGNN, Fig.
    /// 14).
    fn opposite(&self) -> Option<Self> {
        let PolicySpec::Overlap(ratios) = &self.spec else { return None };
        let most = ratios.iter().copied().max().unwrap_or(0);
        let spec = PolicySpec::Overlap(ratios.iter().map(|ratio| most - ratio).collect());
        let opposite = Self::of(self.kind, spec, self.knew.clone());
        Some(Self { priority: Some("lowest"), ..opposite })
    }

    /// Returns the name of the policy, with its parameters if it has some.
    pub(super) fn label(&self) -> String {
        match (self.gamma, self.delta) {
            (Some(gamma), Some(delta)) => format!("{} {gamma}/{delta}", self.kind),
            _ => match self.priority {
                Some(priority) => format!("{}, {priority} first", self.kind),
                None => self.kind.to_string(),
            },
        }
    }

    /// Returns its tiers. The bounds of two tiers are those of one tier of their size.
    pub(super) fn sizes(&self, sizes: TierSizes) -> TierSizes {
        match self.kind {
            PolicyKind::Oracle | PolicyKind::Unbounded | PolicyKind::None => {
                TierSizes::One(sizes.rows())
            }
            _ => sizes,
        }
    }

    /// Returns whether it keeps rows by MassiveGNN's rules.
    pub(super) fn follows_rules(&self) -> bool {
        follows_rules(self.kind)
    }

    /// Returns whether capacities change nothing.
    pub(super) fn ignores_capacity(&self) -> bool {
        matches!(self.kind, PolicyKind::None | PolicyKind::Unbounded)
    }
}

/// Returns the first fill as it stays.
fn kept(choice: &Choice, trace: &Trace, known: &CandidateInputs) -> Contestant {
    let spec = choice.rules.policy(&known.candidates, None, trace.id_space());
    Contestant::of(PolicyKind::Degree, spec, Some(known.in_words.clone()))
}

fn frequency(trace: &Trace) -> Contestant {
    let ranking = |epoch| Arc::from(rank_by_frequency(trace.epoch_ids(epoch)));
    let rankings: Arc<[Arc<[u32]>]> = (0..trace.epochs().len()).map(ranking).collect();
    let knew = match rankings.len() {
        1 => "how often the whole trace asks for each row".to_owned(),
        n => format!("how often each of {n} epochs asks for each row, at its start"),
    };
    let spec = PolicySpec::Frequency(Arc::clone(&rankings[0]));
    let mut contestant = Contestant::of(PolicyKind::Frequency, spec, Some(knew));
    contestant.inputs.rankings = Some(rankings);
    contestant
}

fn overlap(graph: &Graph, trace: &Trace) -> Result<Contestant> {
    let ratio_of = graph.overlap_ratios()?;
    let ratios = (0..trace.id_space()).map(|id| ratio_of[trace.given(id) as usize]).collect();
    let knew = format!("overlap ratios over {} partitions", graph.book().n_parts());
    Ok(Contestant::of(PolicyKind::Overlap, PolicySpec::Overlap(ratios), Some(knew)))
}

fn oracle(trace: &Trace) -> Result<Contestant> {
    let uses = next_uses(trace.ids(), trace.bounds())?;
    let spec = PolicySpec::Oracle { n_batches: trace.n_batches() };
    let knew = "when each row is asked for next".to_owned();
    let mut contestant = Contestant::of(PolicyKind::Oracle, spec, Some(knew));
    contestant.inputs.next_uses = Some(uses.into());
    Ok(contestant)
}

/// Returns a contestant for each γ and Δ.
fn decay(choice: &Choice, trace: &Trace, known: &CandidateInputs) -> Vec<Contestant> {
    let mut contestants = Vec::new();
    for &gamma in &choice.gammas {
        for &delta in &choice.deltas {
            let eviction = Some((gamma, delta));
            let spec = choice.rules.policy(&known.candidates, eviction, trace.id_space());
            let contestant = Contestant::of(PolicyKind::Decay, spec, Some(known.in_words.clone()));
            let (gamma, delta) = (Some(gamma), Some(delta));
            contestants.push(Contestant { gamma, delta, ..contestant });
        }
    }
    contestants
}

/// Returns the misses to write: those of one policy at one capacity.
pub(super) fn misses_of(
    prefix: PathBuf,
    policies: &[String],
    choice: &Choice,
    capacities: &[Capacities],
) -> Result<Misses, UsageError> {
    let error = || {
        let message = "--misses is for one policy at one capacity; name one of each, and for decay \
                       one --gamma and one --delta";
        UsageError::new(message)
    };
    let ([policy], [_]) = (policies, capacities) else { return Err(error()) };
    let kind: PolicyKind = policy.trim().parse().map_err(|_| error())?;
    let is_one = choice.gammas.len() == 1 && choice.deltas.len() == 1;
    if kind == PolicyKind::Decay && !is_one {
        return Err(error());
    }
    Ok(Misses { kind, prefix })
}

/// Returns the policies named, each once, in the order of [`PolicyKind::ALL`]; `oracle` and
/// `unbounded` compete in any case.
pub(super) fn kinds(names: &[String], has_graph: bool) -> Result<Vec<PolicyKind>, UsageError> {
    let mut named = vec![PolicyKind::Oracle, PolicyKind::Unbounded];
    for name in names {
        if name == "all" {
            named.extend(PolicyKind::ALL);
            continue;
        }
        let kind: PolicyKind = name.trim().parse().map_err(UsageError::of)?;
        if needs_graph(kind) && !has_graph {
            let message = format!("policy {kind} needs the graph of the trace; add --graph");
            return Err(UsageError::new(message));
        }
        named.push(kind);
    }
    Ok(PolicyKind::ALL.into_iter().filter(|kind| named.contains(kind)).collect())
}

/// Returns each value once, in the order given.
pub(super) fn distinct<T: PartialEq>(values: Vec<T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}
