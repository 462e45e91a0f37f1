//! Which policies compete, out of what was named.

use std::path::PathBuf;

use lodestore_cache::PolicyKind;

use super::Misses;
use super::capacity::Capacities;
use super::contestants::{Choice, needs_graph};
use crate::usage::UsageError;

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
