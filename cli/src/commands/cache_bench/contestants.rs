//! The policies that compete, each with what it is told.

use std::sync::Arc;

use anyhow::Result;
use lodestore_cache::{
    Candidate, DecaySpec, PolicyKind, PolicySpec, Scoreboard, Telling, TierSizes, Trace, next_uses,
    rank_by_degree, rank_by_frequency,
};
use lodestore_graph::NodeId;
use lodestore_store::Graph;
use serde::Serialize;

use crate::policies::overlap_ratios;
use crate::topology::open_topology;

/// Which policies, and the parameters of `decay`.
pub(super) struct Choice {
    /// Each once, `oracle` and `unbounded` among them.
    pub(super) kinds: Vec<PolicyKind>,
    pub(super) gammas: Vec<f64>,
    pub(super) deltas: Vec<u32>,
    pub(super) ahead: bool,
    /// `overlap` competes with its opposite.
    pub(super) lowest_overlap: bool,
}

/// A policy with what it is told.
pub(super) struct Contestant {
    pub(super) kind: PolicyKind,
    pub(super) gamma: Option<f64>,
    pub(super) delta: Option<u32>,
    /// Which rows come first, if not those that the policy's name promises.
    pub(super) priority: Option<&'static str>,
    pub(super) spec: PolicySpec,
    pub(super) telling: Telling,
    /// What it was told, in words; none for those that learn from what they see.
    pub(super) knew: Option<String>,
}

/// A policy that was left out.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Omitted {
    pub(super) policy: &'static str,
    pub(super) reason: &'static str,
}

/// Whether a policy can only be told what it needs by a graph.
pub(super) fn needs_graph(kind: PolicyKind) -> bool {
    matches!(kind, PolicyKind::Degree | PolicyKind::Overlap)
}

/// Prepares the policies for a trace; those whose needs nobody knows are left out.
pub(super) fn contestants(
    choice: &Choice,
    trace: &Trace,
    graph: Option<&Graph>,
) -> Result<(Vec<Contestant>, Vec<Omitted>)> {
    let (mut contestants, mut omitted) = (Vec::new(), Vec::new());
    let wants = |kind| choice.kinds.contains(&kind);
    let ranked = wants(PolicyKind::Degree) || wants(PolicyKind::Decay);
    let degrees = if ranked { graph.map(|graph| degrees(graph, trace)).transpose()? } else { None };
    for &kind in &choice.kinds {
        let before = contestants.len();
        match kind {
            PolicyKind::Decay => contestants.extend(decay(choice, trace, degrees.as_ref())),
            PolicyKind::Degree => contestants.extend(degrees.as_ref().map(by_degree)),
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
        contestant.telling.ahead = choice.ahead;
    }
    Ok((contestants, omitted))
}

impl Contestant {
    fn of(kind: PolicyKind, spec: PolicySpec, knew: Option<String>) -> Self {
        let telling = Telling::default();
        Self { kind, gamma: None, delta: None, priority: None, spec, telling, knew }
    }

    /// `overlap` the other way round: what the fewest partitions need stays (CaPGNN, Fig. 14).
    fn opposite(&self) -> Option<Self> {
        let PolicySpec::Overlap(ratios) = &self.spec else { return None };
        let most = ratios.iter().copied().max().unwrap_or(0);
        let spec = PolicySpec::Overlap(ratios.iter().map(|ratio| most - ratio).collect());
        let opposite = Self::of(self.kind, spec, self.knew.clone());
        Some(Self { priority: Some("lowest"), ..opposite })
    }

    /// The policy, and its parameters if it has some.
    pub(super) fn label(&self) -> String {
        match (self.gamma, self.delta) {
            (Some(gamma), Some(delta)) => format!("{} {gamma}/{delta}", self.kind),
            _ => match self.priority {
                Some(priority) => format!("{}, {priority} first", self.kind),
                None => self.kind.to_string(),
            },
        }
    }

    /// The tiers that it has: what no two tiers can pass is what one of their size can do.
    pub(super) fn sizes(&self, sizes: TierSizes) -> TierSizes {
        match self.kind {
            PolicyKind::Oracle | PolicyKind::Unbounded | PolicyKind::None => {
                TierSizes::One(sizes.rows())
            }
            _ => sizes,
        }
    }

    /// Whether capacities change nothing.
    pub(super) fn ignores_capacity(&self) -> bool {
        matches!(self.kind, PolicyKind::None | PolicyKind::Unbounded)
    }
}

/// The different ids of the trace, and the in-degree of each.
struct Degrees {
    ids: Vec<u32>,
    degrees: Vec<u32>,
}

fn degrees(graph: &Graph, trace: &Trace) -> Result<Degrees> {
    let topology = open_topology(graph)?;
    let ids = trace.distinct();
    let degree = |&id: &u32| topology.in_degree(NodeId(trace.given(id)));
    let degrees = ids.iter().map(degree).collect();
    Ok(Degrees { ids, degrees })
}

fn by_degree(known: &Degrees) -> Contestant {
    let ranking = rank_by_degree(&known.ids, &known.degrees);
    let knew = "in-degrees, of the rows that the trace asks for".to_owned();
    Contestant::of(PolicyKind::Degree, PolicySpec::Degree(ranking.into()), Some(knew))
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
    contestant.telling.rankings = Some(rankings);
    contestant
}

fn overlap(graph: &Graph, trace: &Trace) -> Result<Contestant> {
    let ratio_of = overlap_ratios(graph)?;
    let ratios = (0..trace.id_space()).map(|id| ratio_of[trace.given(id) as usize]).collect();
    let knew = format!("overlap ratios over {} partitions", graph.book().n_parts());
    Ok(Contestant::of(PolicyKind::Overlap, PolicySpec::Overlap(ratios), Some(knew)))
}

fn oracle(trace: &Trace) -> Result<Contestant> {
    let uses = next_uses(trace.ids(), trace.bounds())?;
    let spec = PolicySpec::Oracle { n_batches: trace.n_batches() };
    let knew = "when each row is asked for next".to_owned();
    let mut contestant = Contestant::of(PolicyKind::Oracle, spec, Some(knew));
    contestant.telling.next_uses = Some(uses.into());
    Ok(contestant)
}

/// One for each γ and Δ.
fn decay(choice: &Choice, trace: &Trace, degrees: Option<&Degrees>) -> Vec<Contestant> {
    let (candidates, knew): (Arc<[Candidate]>, _) = match degrees {
        Some(known) => {
            let pairs = known.ids.iter().zip(&known.degrees);
            let candidates =
                pairs.map(|(&id, &degree)| Candidate { id, degree, is_halo: true }).collect();
            (candidates, "the rows that the trace asks for, and their in-degrees")
        }
        None => {
            let candidate = |id| Candidate { id, degree: 0, is_halo: true };
            let candidates = trace.distinct().into_iter().map(candidate).collect();
            (candidates, "the rows that the trace asks for; no degrees, so low ids came first")
        }
    };
    let mut contestants = Vec::new();
    for &gamma in &choice.gammas {
        for &interval in &choice.deltas {
            let candidates = Arc::clone(&candidates);
            let scoreboard = Scoreboard::Dense;
            let spec = DecaySpec { candidates, gamma, interval, scoreboard };
            let spec = PolicySpec::Decay(spec);
            let contestant = Contestant::of(PolicyKind::Decay, spec, Some(knew.to_owned()));
            let (gamma, delta) = (Some(gamma), Some(interval));
            contestants.push(Contestant { gamma, delta, ..contestant });
        }
    }
    contestants
}
