//! Result of the automatic choice of a codec for a tensor on this machine.

use std::sync::Arc;

use serde::Serialize;

use crate::codec::SampledTable;
use crate::error::StoreError;
use crate::plan::{DiskProfile, ReadPlan};
use crate::reader::{PreadReader, RowReader};
use crate::row::RowIdx;
use crate::segment::Segment;

/// The codec that an import would take now, by a sample of the rows that are here.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CodecSummary {
    /// Bytes of its rows on this machine as they are.
    pub raw_bytes: u64,
    /// Bytes of them in compressed groups; `null` without a sample.
    pub zstd_bytes: Option<u64>,
    /// Bytes of rows that one thread unpacks per second; `null` without a sample.
    pub decode_bytes_per_s: Option<f64>,
    /// Seconds of a random row where all are raw; `null` without a sample.
    pub raw_row_seconds: Option<f64>,
    /// Seconds of a random row where all are compressed; `null` without a sample.
    pub zstd_row_seconds: Option<f64>,
    /// `raw` or `zstd`; `null` where the sample cannot be read, and where no rows are here.
    pub auto: Option<String>,
    /// Why.
    pub reason: String,
}

/// The segments of a tensor that are here, as they are found.
#[derive(Debug, Default)]
pub(super) struct TensorRows {
    raw_bytes: u64,
    longest: Option<Arc<Segment>>,
}

impl TensorRows {
    pub(super) fn add(&mut self, segment: Segment) {
        let layout = segment.layout();
        self.raw_bytes += u64::from(layout.n_rows()) * layout.row_bytes() as u64;
        if self.longest.as_ref().is_none_or(|it| it.layout().n_rows() < layout.n_rows()) {
            self.longest = Some(Arc::new(segment));
        }
    }

    /// Judges by a sample of the longest segment, read from a disk of this profile.
    pub(super) fn summary(self, disk: DiskProfile) -> CodecSummary {
        let raw_bytes = self.raw_bytes;
        let without = |auto: Option<&str>, reason: String| {
            let auto = auto.map(str::to_owned);
            CodecSummary { raw_bytes, auto, reason, ..CodecSummary::default() }
        };
        let Some(segment) = self.longest else {
            return without(None, "no rows are on this machine".to_owned());
        };
        let (n_rows, row_bytes) = (segment.layout().n_rows(), segment.layout().row_bytes());
        let table = SampledTable::new(segment.path().to_owned(), n_rows, row_bytes, disk);
        let table = SampledTable { table_bytes: raw_bytes, ..table };
        if let Some(reason) = table.raw_anyway() {
            return without(Some("raw"), reason.to_owned());
        }
        let assessed = PreadReader::open(segment).and_then(|reader| {
            let (mut rows, mut plan) = (Vec::new(), ReadPlan::default());
            table.assess::<StoreError>(|first, sample| {
                let n_rows = (sample.len() / row_bytes) as u32;
                rows.clear();
                rows.extend((0..n_rows).map(|out_row| (RowIdx(first + out_row), out_row)));
                reader.gather(&rows, &disk, &mut plan, sample)
            })
        });
        match assessed {
            Err(error) => without(None, error.to_string()),
            Ok(None) => without(Some("raw"), String::new()),
            Ok(Some((case, verdict))) => CodecSummary {
                raw_bytes,
                zstd_bytes: Some(case.zstd_bytes),
                decode_bytes_per_s: Some(case.decode_bytes_per_s),
                raw_row_seconds: Some(verdict.raw_row_s),
                zstd_row_seconds: Some(verdict.zstd_row_s),
                auto: Some(verdict.codec.name().to_owned()),
                reason: verdict.reason,
            },
        }
    }
}
