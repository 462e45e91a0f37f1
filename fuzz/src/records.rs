//! Traces in libCacheSim's formats: any bytes are refused, or the trace equals a plain reading of
//! the records.

use std::collections::{HashMap, HashSet};

use arbitrary::{Arbitrary, Unstructured};
use lodestore_cache::trace::{RecordFormat, read_records};

use crate::memory::bounded;

/// Header of `lcs`, in bytes.
const HEADER: usize = 8192;
const MAGIC: u64 = 0x1234_5678_9abc_def0;

/// Records, and the way to read them.
#[derive(Arbitrary, Debug)]
struct RecordInput<'a> {
    kind: Kind,
    batch_ids: u16,
    limit: Option<u16>,
    records: &'a [u8],
}

#[derive(Arbitrary, Debug)]
enum Kind {
    OracleGeneral,
    /// The records hold the header too.
    Lcs,
    /// With a header whose first and last words are chosen, so that records are reached.
    LcsVersion {
        version: u8,
        first: Option<u64>,
        last: Option<u64>,
    },
}

pub fn run(data: &[u8]) {
    let Ok(input) = RecordInput::arbitrary(&mut Unstructured::new(data)) else { return };
    let (format, bytes) = match input.kind {
        Kind::OracleGeneral => (RecordFormat::OracleGeneral, input.records.to_vec()),
        Kind::Lcs => (RecordFormat::Lcs, input.records.to_vec()),
        Kind::LcsVersion { version, first, last } => {
            let header = header(version, first.unwrap_or(MAGIC), last.unwrap_or(MAGIC));
            (RecordFormat::Lcs, [&header, input.records].concat())
        }
    };
    let batch_ids = usize::from(input.batch_ids).max(1);
    let limit = input.limit.map(u64::from);
    let read = || read_records(&mut &bytes[..], format, batch_ids, limit);
    let trace = bounded(bytes.len(), read);
    let plain = plain_ids(&bytes, format, limit);
    assert_eq!(trace.is_ok(), plain.is_some(), "{trace:?}");
    if let (Ok(trace), Some(plain)) = (trace, plain) {
        let batches = plain.chunks(batch_ids).map(|batch| {
            let mut seen = HashSet::new();
            batch.iter().copied().filter(|&id| seen.insert(id)).collect::<Vec<_>>()
        });
        let ids: Vec<u32> = batches.flatten().collect();
        assert_eq!(trace.ids(), &ids);
        assert_eq!(trace.n_repeats(), (plain.len() - ids.len()) as u64);
        assert_eq!(trace.n_batches() as usize, plain.len().div_ceil(batch_ids));
        let n_distinct = plain.iter().max().map_or(0, |&last| last + 1);
        assert_eq!((trace.n_distinct(), trace.id_space()), (n_distinct, n_distinct));
    }
}

/// Returns the numbers of the objects; `None` when it is no trace.
fn plain_ids(bytes: &[u8], format: RecordFormat, limit: Option<u64>) -> Option<Vec<u32>> {
    let (record, records) = match format {
        RecordFormat::OracleGeneral => (24, bytes),
        RecordFormat::Lcs => {
            let header = bytes.get(..HEADER)?;
            let is_magic = |at: usize| header[at..at + 8] == MAGIC.to_le_bytes();
            let version = u64::from_le_bytes(header[8..16].try_into().expect("8 bytes"));
            let record = match version {
                1 => 24,
                2 => 28,
                3 => 36,
                4 => 40,
                5 => 44,
                6 => 52,
                7 => 68,
                8 => 100,
                _ => return None,
            };
            (is_magic(0) && is_magic(HEADER - 8)).then_some((record, &bytes[HEADER..]))?
        }
    };
    let (n_whole, n_rest) = (records.len() / record, records.len() % record);
    let n_read = limit.map_or(n_whole, |limit| n_whole.min(limit as usize));
    if n_rest > 0 && limit.is_none_or(|limit| limit as usize > n_whole) {
        return None;
    }
    let mut numbers = HashMap::new();
    let ids = records.chunks_exact(record).take(n_read).map(|record| {
        let next = numbers.len() as u32;
        *numbers.entry(&record[4..12]).or_insert(next)
    });
    Some(ids.collect())
}

fn header(version: u8, first: u64, last: u64) -> Vec<u8> {
    let mut header = vec![0; HEADER];
    header[..8].copy_from_slice(&first.to_le_bytes());
    header[8] = version;
    header[HEADER - 8..].copy_from_slice(&last.to_le_bytes());
    header
}

/// Returns a few records of each format; the layout is that of [`RecordInput`] as `arbitrary`
/// reads it.
pub fn seeds() -> Vec<Vec<u8>> {
    let records: Vec<u8> = (0..240).map(|at| if at % 24 == 4 { at / 48 } else { 0 }).collect();
    // The kind, as a share of 2³²; the batch; no limit.
    let kinds = [0u32, 1 << 31, u32::MAX];
    let version = |kind: u32| if kind == u32::MAX { vec![1, 0, 0] } else { Vec::new() };
    let input =
        |kind: u32| [&kind.to_le_bytes()[..], &version(kind), &[3, 0], &[0], &records].concat();
    kinds.map(input).into()
}
