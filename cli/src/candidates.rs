//! MassiveGNN's rules as flags.

use clap::{Args, ValueEnum};
use lodestore_cache::PolicySpec;
use lodestore_cache::policy::{Replacement, Scoreboard};
use lodestore_client::keep::scored::{Candidates, Rank, ScoredRules};
use serde::Serialize;

use crate::usage::first_given;

/// The rules as flags of `lode train --strategy massive` and of `lode cache-bench`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct RuleArgs {
    /// Nodes whose rows MassiveGNN's buffer may keep [default: remote]. With `halo` they are one
    /// hop from the worker's own, as in the paper. With `remote` they are all that the worker does
    /// not own, which batches of several hops reach.
    #[arg(long, value_enum, value_name = "C", hide_possible_values = true)]
    candidates: Option<CandidatesArg>,
    /// Nodes whose rows may replace others in MassiveGNN's buffer [default: missed]. With `missed`
    /// they were missed at least once since they last left. With `scored` their S_A is above 0, as
    /// in the paper; this includes nodes that left with a rest of their score. With `any` all may.
    #[arg(long, value_enum, value_name = "R", hide_possible_values = true)]
    replace: Option<Replace>,
    /// Order of the rows that MassiveGNN's buffer begins with [default: lists]. With `lists` it is
    /// by the number of neighbour lists of the worker's own nodes that the node is in. With
    /// `degree` it is by in-degree, as in the paper. Both are the same where the graph is
    /// undirected and whole.
    #[arg(long, value_enum, value_name = "R", hide_possible_values = true)]
    rank: Option<RankArg>,
    /// Storage of scores in MassiveGNN's buffer: `dense` (24 bytes for each node of the graph) or
    /// `compact` (for each candidate, found by a search). Decisions are the same. Unless given, it
    /// is dense up to 64 MiB.
    #[arg(long, value_enum, value_name = "S", hide_possible_values = true)]
    scoreboard: Option<Board>,
}

/// [`Candidates`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CandidatesArg {
    Halo,
    Remote,
}

impl From<CandidatesArg> for Candidates {
    fn from(arg: CandidatesArg) -> Self {
        match arg {
            CandidatesArg::Halo => Self::Halo,
            CandidatesArg::Remote => Self::Remote,
        }
    }
}

/// [`Replacement`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Replace {
    Missed,
    Scored,
    Any,
}

impl From<Replace> for Replacement {
    fn from(arg: Replace) -> Self {
        match arg {
            Replace::Missed => Self::Missed,
            Replace::Scored => Self::Scored,
            Replace::Any => Self::Any,
        }
    }
}

/// [`Rank`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RankArg {
    Lists,
    Degree,
}

impl From<RankArg> for Rank {
    fn from(arg: RankArg) -> Self {
        match arg {
            RankArg::Lists => Self::Lists,
            RankArg::Degree => Self::Degree,
        }
    }
}

/// [`Scoreboard`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Board {
    Dense,
    Compact,
}

impl From<Board> for Scoreboard {
    fn from(arg: Board) -> Self {
        match arg {
            Board::Dense => Self::Dense,
            Board::Compact => Self::Compact,
        }
    }
}

/// Returns the rows that a share of `n_rows` is, rounded up, counting the share in millionths of a
/// percent.
pub(crate) fn rows_of_share(share: f64, n_rows: u32) -> u32 {
    let millionths = (share * 1e8).round() as u128;
    u32::try_from(millionths.saturating_mul(n_rows.into()).div_ceil(100_000_000))
        .unwrap_or(u32::MAX)
}

/// The rules that a buffer follows, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RuleReport {
    pub(crate) candidates: &'static str,
    pub(crate) rank: &'static str,
    /// None without eviction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replace: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scoreboard: Option<&'static str>,
}

impl RuleArgs {
    /// Returns the first of the flags that is given.
    pub(crate) fn used(self) -> Option<&'static str> {
        let used = [("--candidates", self.candidates.is_some()), ("--rank", self.rank.is_some())];
        first_given(&used).or(self.used_by_eviction())
    }

    /// Returns the first of the flags that is given and is for eviction only.
    pub(crate) fn used_by_eviction(self) -> Option<&'static str> {
        first_given(&[
            ("--replace", self.replace.is_some()),
            ("--scoreboard", self.scoreboard.is_some()),
        ])
    }

    /// Returns whether `--candidates` is given.
    pub(crate) fn names_candidates(self) -> bool {
        self.candidates.is_some()
    }

    /// Returns whether nodes beyond the halo are no candidates.
    pub(crate) fn keeps_halo_alone(self) -> bool {
        self.candidates == Some(CandidatesArg::Halo)
    }

    /// Returns the rules.
    pub(crate) fn rules(self) -> ScoredRules {
        let usual = ScoredRules::default();
        ScoredRules {
            candidates: self.candidates.map_or(usual.candidates, Into::into),
            rank: self.rank.map_or(usual.rank, Into::into),
            replacement: self.replace.map_or(usual.replacement, Into::into),
            scoreboard: self.scoreboard.map(Into::into),
        }
    }
}

impl RuleReport {
    /// Describes `rules` and the resulting policy.
    pub(crate) fn new(rules: ScoredRules, policy: &PolicySpec) -> Self {
        let (mut replace, mut scoreboard) = (None, None);
        if let PolicySpec::Decay(spec) = policy {
            replace = Some(match spec.replacement {
                Replacement::Missed => "missed",
                Replacement::Scored => "scored",
                Replacement::Any => "any",
            });
            scoreboard = Some(match spec.scoreboard {
                Scoreboard::Dense => "dense",
                Scoreboard::Compact => "compact",
            });
        }
        let candidates = match rules.candidates {
            Candidates::Halo => "halo",
            Candidates::Remote => "remote",
        };
        let rank = match rules.rank {
            Rank::Lists => "lists",
            Rank::Degree => "degree",
        };
        Self { candidates, rank, replace, scoreboard }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn shares_are_rounded_up_and_exact_where_they_are_whole() {
        assert_eq!(rows_of_share(0.1, 30), 3);
        assert_eq!(rows_of_share(0.1, 31), 4);
        assert_eq!(rows_of_share(0.0, 31), 0);
        assert_eq!(rows_of_share(1.0, u32::MAX), u32::MAX);
        assert_eq!(rows_of_share(1e30, 7), u32::MAX);
    }

    #[test]
    fn rules_are_told_in_the_words_of_the_flags() {
        let rules = ScoredRules::default();
        let kept = rules.policy(&Arc::from([]), None, 6);
        assert_eq!(RuleReport::new(rules, &kept).replace, None);
        let evicting = rules.policy(&Arc::from([]), Some((0.9, 4)), 6);
        let words = RuleReport::new(rules, &evicting);
        assert_eq!((words.candidates, words.replace), ("remote", Some("missed")));
        assert_eq!((words.rank, words.scoreboard), ("lists", Some("dense")));
    }
}
