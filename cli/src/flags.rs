//! Flags, and the forms of their values, that several commands have.

use clap::{Args, ValueEnum};
use lodestore_graph::sampler::Fanout;
use lodestore_store::nan::NanPolicy;

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

#[cfg(test)]
mod tests {
    use super::*;

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
