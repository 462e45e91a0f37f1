//! The best γ and Δ of each capacity (MassiveGNN, Table IV).

use lodestore_cache::PolicyKind;
use serde::Serialize;

use super::report::BenchResult;
use crate::human;
use crate::table::Table;

/// The γ and Δ of `decay` that move the fewest rows at one capacity, beside prefetch without
/// eviction.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BestDecay {
    capacity: String,
    gamma: Option<f64>,
    delta: Option<u32>,
    #[serde(flatten)]
    moved: Moved,
    /// `degree`, if it competes.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_eviction: Option<Moved>,
}

/// Hits and moves of a policy.
#[derive(Clone, Copy, Debug, Serialize)]
struct Moved {
    hit_rate: f64,
    moved_rows: u64,
    moved_bytes: u64,
    /// For each row that would move without a cache.
    moved_share: f64,
}

impl Moved {
    fn of(result: &BenchResult) -> Self {
        let &BenchResult { hit_rate, moved_rows, moved_bytes, .. } = result;
        Self { hit_rate, moved_rows, moved_bytes, moved_share: 1.0 - result.unmoved() }
    }
}

/// Returns the best of each capacity, where `decay` has more than one γ or Δ.
pub(super) fn best(results: &[BenchResult]) -> Vec<BestDecay> {
    let of_capacity = results.chunk_by(|a, b| a.at == b.at);
    of_capacity.filter_map(best_of).collect()
}

fn best_of(results: &[BenchResult]) -> Option<BestDecay> {
    let of = |kind: PolicyKind| results.iter().filter(move |result| result.policy == kind.name());
    if of(PolicyKind::Decay).count() < 2 {
        return None;
    }
    let best = of(PolicyKind::Decay).min_by_key(|result| result.moved_rows)?;
    Some(BestDecay {
        capacity: best.capacity.clone(),
        gamma: best.gamma,
        delta: best.delta,
        moved: Moved::of(best),
        without_eviction: of(PolicyKind::Degree).next().map(Moved::of),
    })
}

/// Returns a table with one line per capacity.
pub(super) fn table(best: &[BestDecay]) -> String {
    let heads = ["fewest rows moved", "gamma", "delta", "hits", "moved", "bytes"];
    let mut table = Table::new(heads.into_iter().chain(["kept: hits", "moved", "bytes"]));
    for BestDecay { capacity, gamma, delta, moved, without_eviction } in best {
        let mut cells = vec![capacity.clone()];
        cells.push(gamma.map_or_else(String::new, |gamma| gamma.to_string()));
        cells.push(delta.map_or_else(String::new, |delta| delta.to_string()));
        for moved in [Some(moved), without_eviction.as_ref()] {
            match moved {
                Some(moved) => cells.extend([
                    human::percent(moved.hit_rate),
                    human::percent(moved.moved_share),
                    human::bytes(moved.moved_bytes),
                ]),
                None => cells.extend(["-", "-", "-"].map(str::to_owned)),
            }
        }
        table.row(cells);
    }
    table.to_string()
}
