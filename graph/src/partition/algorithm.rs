//! Algorithms that assign nodes to partitions, by name.

use std::fmt;
use std::str::FromStr;

use super::{PartitionError, SpringParams};

/// How nodes are given to partitions.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// By a hash of the id: even, and blind to the edges.
    Hash,
    /// By ranges of ids: as good as the order of the input.
    Range,
    /// Edges by the hash of their poorer end (Xie et al., NIPS 2014).
    Dbh,
    /// Edges by PowerGraph's greedy rule (Gonzalez et al., OSDI 2012).
    Greedy,
    /// Edges by HDRF's score (Petroni et al., CIKM 2015).
    Hdrf,
    /// Edges by clusters and a score of two partitions (Mayer et al., ICDE 2022).
    TwoPsL,
    /// SPRING (SDT-GNN, Algorithm 1).
    Spring(SpringParams),
    /// METIS, which holds the whole graph; only where the crate is built with feature `metis`.
    Metis,
}

impl Algorithm {
    /// Returns all that this build has, with default parameters, from the simplest.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Hash,
            Self::Range,
            Self::Dbh,
            Self::Greedy,
            Self::Hdrf,
            Self::TwoPsL,
            Self::Spring(SpringParams::default()),
        ];
        if cfg!(feature = "metis") {
            all.push(Self::Metis);
        }
        all
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hash => "hash",
            Self::Range => "range",
            Self::Dbh => "dbh",
            Self::Greedy => "greedy",
            Self::Hdrf => "hdrf",
            Self::TwoPsL => "2ps-l",
            Self::Spring(_) => "spring",
            Self::Metis => "metis",
        })
    }
}

impl FromStr for Algorithm {
    type Err = PartitionError;

    /// Takes an algorithm by name, with its default parameters.
    fn from_str(name: &str) -> Result<Self, PartitionError> {
        if name == "metis" && !cfg!(feature = "metis") {
            return Err(PartitionError::NoMetis);
        }
        let found = Self::all().into_iter().find(|algorithm| algorithm.to_string() == name);
        found.ok_or_else(|| PartitionError::Algorithm { found: name.to_owned() })
    }
}
