//! Flags, and the forms of their values, that several commands have.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lodestore_cache::two_level::Inclusion;
use lodestore_graph::edges::{EdgeFile, EdgeFiles, EdgeFormat, ExtraColumns};
use lodestore_graph::partition::{Algorithm, PartitionConfig, SpringParams};
use lodestore_graph::sampler::Fanout;
use lodestore_graph::topology::Direction;
use lodestore_store::nan::NanPolicy;

use crate::usage::UsageError;

/// `--fanout`, for every command that samples.
#[derive(Args, Clone)]
pub struct FanoutArgs {
    /// Neighbours per node and layer, the hop next to the roots first; -1 takes all.
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "10,10",
        allow_hyphen_values = true
    )]
    pub fanout: Vec<Fanout>,
}

/// `--nan`: policies for NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Nan {
    /// End with an error that names row and column, before the graph is there or changes.
    Refuse,
    /// Store every row byte for byte.
    Keep,
}

impl From<Nan> for NanPolicy {
    fn from(nan: Nan) -> Self {
        match nan {
            Nan::Refuse => Self::Refuse,
            Nan::Keep => Self::Keep,
        }
    }
}

/// [`Inclusion`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InclusionArg {
    /// A row may be in both tiers, and each evicts by itself.
    Inclusive,
    /// A row is in one: it moves up, and down again.
    Exclusive,
}

impl From<InclusionArg> for Inclusion {
    fn from(inclusion: InclusionArg) -> Self {
        match inclusion {
            InclusionArg::Inclusive => Self::Inclusive,
            InclusionArg::Exclusive => Self::Exclusive,
        }
    }
}

/// Returns the name of the flag's value.
pub(crate) fn inclusion_name(inclusion: Inclusion) -> &'static str {
    match inclusion {
        Inclusion::Inclusive => "inclusive",
        Inclusion::Exclusive => "exclusive",
    }
}

/// Files of edges.
#[derive(Args)]
pub(crate) struct EdgeArgs {
    /// Files of edges, source and destination. They are .npy of shape (E, 2), u32, i32, u64 or i64;
    /// bare little-endian pairs, .u32 or .u64; or text. Text is .txt .csv .tsv .edges .edgelist
    /// .el, plain or .gz or .zst.
    ///
    /// A line of text holds two ids with blanks or a comma between them; blank lines, and lines
    /// that start with # or %, are skipped. There are no column names. Repeat for several files,
    /// which are read one after the other as one.
    #[arg(long, value_name = "FILE")]
    edges: Vec<PathBuf>,
    /// Format of the edges where the files' names do not say: npy, u32, u64 or text.
    #[arg(long, value_name = "FORMAT")]
    edge_format: Option<EdgeFormat>,
    /// Read two columns of a text of edges and skip the rest of each line, such as weights.
    #[arg(long)]
    ignore_extra_columns: bool,
}

impl EdgeArgs {
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.edges
    }

    /// Returns the size of all files as they are.
    pub(crate) fn size_bytes(&self) -> Result<u64> {
        let mut sum = 0u64;
        for path in &self.edges {
            let about = || format!("cannot look at {}", path.display());
            sum = sum.saturating_add(std::fs::metadata(path).with_context(about)?.len());
        }
        Ok(sum)
    }

    /// Returns the files, at least one; fails where a flag is for text and none of them is.
    pub(crate) fn files(self) -> Result<EdgeFiles> {
        if self.edges.is_empty() {
            return Err(UsageError::new("--edges FILE is missing: the edges of the graph").into());
        }
        let (format, ignores) = (self.edge_format, self.ignore_extra_columns);
        let extra_columns = if ignores { ExtraColumns::Ignore } else { ExtraColumns::Refuse };
        let file = |path| EdgeFile { path, format, extra_columns };
        let files = EdgeFiles { files: self.edges.into_iter().map(file).collect() };
        if ignores && !files.has_text()? {
            let names = files.names();
            let message = format!("--ignore-extra-columns is for text, and {names} is none");
            return Err(UsageError::new(message).into());
        }
        Ok(files)
    }
}

/// Parameters of partitioners.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PartitionerArgs {
    /// Rounds of refinement after the partitioner. Nodes move to where their neighbours are, in
    /// memory of the order of the nodes. No more edges are cut than what the bound of balance
    /// leaves of the partitioner's own. One round is worth its time nearly always, a second gains
    /// up to 2 % more. 0 is SDT-GNN's SPRING [default: 1 after spring, 0 after others and with
    /// --all].
    #[arg(long, value_name = "ROUNDS")]
    refine: Option<u32>,
    /// Nodes of the largest partition over the mean, from 1; 1.05 where it is refined. No partition
    /// has more, but that one node too many is allowed where nodes do not divide evenly.
    #[arg(long, value_name = "RATIO")]
    max_balance: Option<f64>,
    /// SPRING: volume (sum of degrees) above which a cluster neither takes nor loses nodes
    /// [default: a twentieth of all nodes' volume per partition].
    #[arg(long, value_name = "VOLUME")]
    tau: Option<f64>,
    /// SPRING: merging makes no cluster of more than this times the mean nodes of a partition; 1.05
    /// unless given.
    #[arg(long, value_name = "RATIO")]
    beta: Option<f64>,
    /// SPRING: clustering passes over the edges; 1 unless given.
    #[arg(long, value_name = "N")]
    passes: Option<u32>,
}

impl PartitionerArgs {
    /// Returns the settings of `algorithm`; refuses parameters of another one.
    pub(crate) fn config(
        &self,
        algorithm: Algorithm,
        n_parts: u16,
        direction: Direction,
    ) -> Result<PartitionConfig, UsageError> {
        let is_spring = matches!(algorithm, Algorithm::Spring(_));
        if !is_spring && (self.tau.is_some() || self.beta.is_some() || self.passes.is_some()) {
            return Err(UsageError::new(format!(
                "--tau, --beta and --passes are for spring, not for {algorithm}"
            )));
        }
        let refine = self.refine.unwrap_or(is_spring.into());
        Self { refine: Some(refine), ..self.clone() }.config_for_any(algorithm, n_parts, direction)
    }

    /// Does as [`Self::config`], for runs of all algorithms: SPRING's parameters are for SPRING,
    /// and none is refined unless all are.
    pub(crate) fn config_for_any(
        &self,
        algorithm: Algorithm,
        n_parts: u16,
        direction: Direction,
    ) -> Result<PartitionConfig, UsageError> {
        let algorithm = match algorithm {
            Algorithm::Spring(defaults) => Algorithm::Spring(SpringParams {
                tau_vol: self.tau.or(defaults.tau_vol),
                beta: self.beta.unwrap_or(defaults.beta),
                passes: self.passes.unwrap_or(defaults.passes),
            }),
            other => other,
        };
        let config = PartitionConfig {
            direction,
            max_balance: self.max_balance,
            refine_rounds: self.refine.unwrap_or(0),
            ..PartitionConfig::new(algorithm, n_parts)
        };
        config.check().map_err(UsageError::of)?;
        Ok(config)
    }
}

/// Reads a size in bytes as people write it: `512MiB`, `2GB`, `1048576`. Units of 1000 end in `B`,
/// units of 1024 in `iB`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err("expected a size such as 512MiB, 2GB or 1048576".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a whole number of bytes, such as 512MiB".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "that is more than 2^64 bytes".to_owned())
}

/// Reads a time as people write it: `30s`, `10m`, `12h`, `7d`, and `0` for none.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let expected = || "expected a time such as 30s, 10m, 12h or 7d, or 0".to_owned();
    let number: u64 = number.parse().map_err(|_| expected())?;
    let factor = match unit.trim() {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        "" if number == 0 => 1,
        _ => return Err(expected()),
    };
    number.checked_mul(factor).map(Duration::from_secs).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        assert_eq!(parse_time("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_time("10m"), Ok(Duration::from_mins(10)));
        assert_eq!(parse_time("7d"), Ok(Duration::from_hours(7 * 24)));
        for text in ["", "m", "10", "-1s", "1.5h", "10min", "18446744073709551615d"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn units_are_read() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert_eq!(parse_size("2 GB"), Ok(2_000_000_000));
        assert_eq!(parse_size("7B"), Ok(7));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "MiB", "-1", "1.5GB", "1mb", "99999999999999999999", "99999999999GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
