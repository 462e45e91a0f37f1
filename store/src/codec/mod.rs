//! How the rows of a segment are stored: as they are, or as compressed groups of rows.

mod choose;
mod decoder;
mod encoder;
mod rule;

use std::fmt;
use std::str::FromStr;

pub(crate) use choose::SampledTable;
pub(crate) use decoder::{StoredGroup, with_decoder};
pub(crate) use encoder::GroupEncoder;

use crate::dtype::UnknownName;
use crate::layout::{LayoutError, check_group_rows};

/// Rows shorter than this share a group; a read of any of them unpacks all of the group.
///
/// On sparse rows of 8 to 512 bytes groups of 2 KiB keep 70 to 90 % of the ratio of groups of 8
/// KiB. A random row takes a quarter of the time.
const GROUP_BYTES: u32 = 2048;

/// How the rows of a segment are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentCodec {
    /// Rows lie back to back as they are.
    Raw,
    /// Groups of neighbouring rows, each a zstd frame of its own; a group that does not shrink is
    /// stored raw.
    Zstd {
        /// Rows of every group but the last, at least 1.
        group_rows: u32,
    },
}

/// Which codec an import uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodecChoice {
    /// By the time of a random row on the disk at hand; see [`CodecChoice::MIN_RATIO`] and
    /// [`CodecChoice::MIN_COLD_RATIO`].
    #[default]
    Auto,
    /// Always raw: fastest.
    Raw,
    /// Always zstd: smallest.
    Zstd,
}

impl SegmentCodec {
    /// Returns zstd with as many rows per group as serve rows of `row_bytes` best.
    #[must_use]
    pub(crate) fn zstd_for(row_bytes: usize) -> Self {
        Self::Zstd { group_rows: (GROUP_BYTES / row_bytes.max(1) as u32).max(1) }
    }

    /// Returns the name that users see: `raw` or `zstd`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Zstd { .. } => "zstd",
        }
    }

    /// Returns the number that stands for this codec in a segment header.
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::Raw => 0,
            Self::Zstd { .. } => 1,
        }
    }

    /// Returns the number of rows per group in a segment header; 0 for raw.
    pub(crate) const fn group_rows(self) -> u32 {
        match self {
            Self::Raw => 0,
            Self::Zstd { group_rows } => group_rows,
        }
    }

    /// Checks that rows of `row_bytes` can be stored like this.
    pub(crate) fn check(self, row_bytes: usize) -> Result<(), LayoutError> {
        match self {
            Self::Raw => Ok(()),
            Self::Zstd { group_rows } => {
                check_group_rows(u32::try_from(row_bytes).unwrap_or(u32::MAX), group_rows)
            }
        }
    }
}

impl fmt::Display for SegmentCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CodecChoice {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "auto" => Ok(Self::Auto),
            "raw" => Ok(Self::Raw),
            "zstd" => Ok(Self::Zstd),
            _ => Err(UnknownName::new(name, "codec", "auto, raw or zstd")),
        }
    }
}

#[cfg(test)]
mod tests;
