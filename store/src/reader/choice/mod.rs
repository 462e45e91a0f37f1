//! Which reader to use: asked for, or chosen by whether the rows fit in memory.

mod available;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use available::available_memory_bytes;

use super::{DirectReader, MappedReader, PreadReader, RowReader};
use crate::dtype::UnknownName;
use crate::error::StoreError;
use crate::segment::Segment;

/// Share of the memory that the process may have, as a divisor: segments of up to this share are
/// mapped. The rest is for the process itself and for what else it reads.
const MAPPED_SHARE: u64 = 2;

/// A way to the rows of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReaderKind {
    /// Mapped or direct, as [`choose`] finds.
    #[default]
    Auto,
    /// Through the page cache, as a memory map.
    Mapped,
    /// Past the page cache, through an io_uring.
    Direct,
    /// Past the page cache, with positional reads of several threads.
    Pread,
}

/// How rows are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// The reader of every segment.
    pub reader: ReaderKind,
}

impl ReaderKind {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Auto, "auto"),
        (Self::Mapped, "mapped"),
        (Self::Direct, "direct"),
        (Self::Pread, "pread"),
    ];

    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// Returns the reader for segments of `segment_bytes` all together: itself, or what [`choose`]
    /// finds on this machine at this moment.
    #[must_use]
    pub fn settle(self, segment_bytes: u64) -> Self {
        match self {
            Self::Auto => choose(segment_bytes, available_memory_bytes()).0,
            kind => kind,
        }
    }
}

impl fmt::Display for ReaderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReaderKind {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        let unknown = || UnknownName::new(text, "reader", "auto, mapped, direct or pread");
        known.map(|(kind, _)| *kind).ok_or_else(unknown)
    }
}

/// Returns mapped or direct, and why, for segments of `segment_bytes` all together in a process
/// that may have `available_bytes` of memory. It is direct where the system does not report how
/// much.
///
/// A map is fastest for rows in the page cache. Once they do not fit there, each miss of a map is
/// one small read that its thread waits for. Direct reads are joined and run in parallel.
#[must_use]
pub fn choose(segment_bytes: u64, available_bytes: Option<u64>) -> (ReaderKind, String) {
    let Some(available_bytes) = available_bytes else {
        return (ReaderKind::Direct, "the system does not tell how much memory is free".to_owned());
    };
    let limit_bytes = available_bytes / MAPPED_SHARE;
    let kind = if segment_bytes <= limit_bytes { ReaderKind::Mapped } else { ReaderKind::Direct };
    let verdict = if kind == ReaderKind::Mapped { "at most" } else { "more than" };
    let reason = format!(
        "segments of {segment_bytes} bytes are {verdict} half of the {available_bytes} bytes of \
         memory that this process may use"
    );
    (kind, reason)
}

/// Opens `segment` with a reader of this kind; `Auto` looks at this segment alone.
///
/// A segment that is on no disk is read with positional reads, whatever was asked for.
pub fn open(
    segment: impl Into<Arc<Segment>>,
    kind: ReaderKind,
) -> Result<Box<dyn RowReader>, StoreError> {
    let segment = segment.into();
    let kind = kind.settle(segment.layout().file_bytes());
    Ok(match kind {
        _ if segment.file().as_file().is_none() => Box::new(PreadReader::new(segment)),
        ReaderKind::Mapped => Box::new(MappedReader::open(segment)?),
        ReaderKind::Pread => Box::new(PreadReader::new(segment)),
        ReaderKind::Direct | ReaderKind::Auto => Box::new(DirectReader::open(segment)?),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_fits_in_half_of_the_memory_is_mapped(segments: u64, available: u64) {
            let (kind, reason) = choose(segments, Some(available));
            let fits = u128::from(segments) * 2 <= u128::from(available);
            prop_assert_eq!(kind == ReaderKind::Mapped, fits);
            prop_assert_eq!(kind == ReaderKind::Direct, !fits);
            prop_assert!(reason.contains(&segments.to_string()));
            prop_assert!(reason.contains(&available.to_string()));
        }
    }

    #[test]
    fn without_knowledge_of_memory_nothing_is_mapped() {
        assert_eq!(choose(0, None).0, ReaderKind::Direct);
        assert_eq!(choose(0, Some(0)).0, ReaderKind::Mapped);
    }

    #[test]
    fn names_are_read_back() {
        for (kind, name) in ReaderKind::ALL {
            assert_eq!((kind.to_string().as_str(), name.parse()), (name, Ok(kind)));
        }
        let unknown = "mmap".parse::<ReaderKind>().unwrap_err().to_string();
        assert!(unknown.contains("mmap") && unknown.contains("mapped"), "{unknown}");
    }
}
