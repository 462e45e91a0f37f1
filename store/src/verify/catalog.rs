//! Checks the contents of a catalog against the graph.

use std::ops::ControlFlow;
use std::sync::Arc;

use lodestore_graph::PartId;

use super::findings::{FileOrder, Findings};
use crate::catalog::{Catalog, DeltaRecord, Pair, SegmentRecord};
use crate::graph::Graph;
use crate::meta::is_copy;
use crate::row::RowIdx;
use crate::tensor::TensorSpec;

/// An open catalog that is to be read through.
#[derive(Debug)]
pub(super) struct CatalogUnit<'a> {
    pub(super) graph: &'a Graph,
    pub(super) part: PartId,
    pub(super) catalog: Arc<Catalog>,
    /// The committed version.
    pub(super) committed: u32,
}

impl CatalogUnit<'_> {
    /// Reads every pair and reports what is not as it must be.
    pub(super) fn check(&self, order: FileOrder, findings: &Findings) {
        let dir = self.catalog.dir();
        let check = CatalogCheck::new(self.graph, self.part, &self.catalog, self.committed);
        let scanned = self.catalog.scan_all(&mut |key, pair| {
            if let Some(reason) = check.fault(key, &pair) {
                findings.add(order, dir, None, format!("{}: catalog: {reason}", dir.display()));
            }
            ControlFlow::Continue(())
        });
        if let Err(error) = scanned {
            findings.add_error(order, dir, None, error);
        }
    }
}

/// Bounds of what the catalog of a partition can hold.
pub(crate) struct CatalogCheck<'a> {
    graph: &'a Graph,
    part: PartId,
    /// The committed version.
    committed: u32,
    /// Each tensor with the version of its segment, where that can be read.
    bases: Vec<(&'a TensorSpec, Option<u32>)>,
}

impl<'a> CatalogCheck<'a> {
    /// Returns the bounds of a catalog whose newest version is `committed`.
    pub(crate) fn new(graph: &'a Graph, part: PartId, catalog: &Catalog, committed: u32) -> Self {
        // A record that cannot be read is reported with its pair.
        let base = |name: &str| catalog.segment(name, committed).ok().flatten();
        let tensors = graph.meta().tensors.iter();
        let bases = tensors.map(|it| (it, base(&it.name).map(|(version, _)| version))).collect();
        Self { graph, part, committed, bases }
    }

    /// Returns what is wrong with a pair.
    pub(crate) fn fault(&self, key: &[u8], pair: &Pair<'_>) -> Option<String> {
        let base_of = |name: &str| self.bases.iter().find(|(tensor, _)| tensor.name == name);
        match pair {
            // Both were read when the catalog was opened.
            Pair::Identity | Pair::Version => None,
            // Of a repair that was cut off; the next one reports them.
            Pair::Losses(_) => None,
            Pair::Holders | Pair::Commit | Pair::Changed | Pair::Joined | Pair::PutId => None,
            Pair::GraphCopy(text) => {
                let differs = !is_copy(text, self.graph.meta());
                differs.then(|| "its copy of graph.toml is another".to_owned())
            }
            // Of a tensor that comes; the next opening for writing ends that.
            Pair::New { tensor, version, record } => record
                .as_ref()
                .err()
                .map(|reason| format!("record of the new `{tensor}` {version}: {reason}")),
            Pair::Segment { tensor, version, record } | Pair::Lost { tensor, version, record } => {
                let wrong = match base_of(tensor) {
                    None => Some("there is no such tensor".to_owned()),
                    Some((spec, _)) => self.record_fault(*version, record, spec),
                };
                wrong.map(|reason| format!("record of `{tensor}` version {version}: {reason}"))
            }
            Pair::Delta { tensor, version, record } => {
                let wrong = match base_of(tensor) {
                    None => Some("there is no such tensor".to_owned()),
                    Some((spec, base)) => self.delta_fault(*version, record, spec, *base),
                };
                wrong.map(|reason| format!("delta of `{tensor}` version {version}: {reason}"))
            }
            Pair::Prepared { tensor, version, record } => {
                let wrong = match base_of(tensor) {
                    None => Some("there is no such tensor".to_owned()),
                    Some(_) if *version != self.committed.saturating_add(1) => {
                        Some(format!("expected version {}", self.committed.saturating_add(1)))
                    }
                    Some(_) => record.as_ref().err().cloned(),
                };
                wrong.map(|reason| format!("prepared delta of `{tensor}` {version}: {reason}"))
            }
            Pair::PreparedVersion(found) => {
                let next = self.committed.saturating_add(1);
                (*found != Some(next)).then(|| {
                    let found = found.map_or("none".to_owned(), |found| found.to_string());
                    format!("prepared version: expected {next}, found {found}")
                })
            }
            Pair::Row { tensor, version, row, bytes } => {
                let wrong = match base_of(tensor) {
                    None => Some("there is no such tensor".to_owned()),
                    Some((spec, base)) => self.row_fault(*version, *row, bytes.len(), spec, *base),
                };
                wrong.map(|reason| {
                    format!("pending row {row} of `{tensor}` for version {version}: {reason}")
                })
            }
            Pair::Newer { format } => {
                Some(format!("a record of format {format}; use a newer `lode`"))
            }
            Pair::Unknown => Some(format!("the unknown key {:?}", String::from_utf8_lossy(key))),
        }
    }

    /// Returns whether a pair is a row that fits, which an older release has committed as it was
    /// put.
    pub(crate) fn is_of_older_release(&self, pair: &Pair<'_>) -> bool {
        let Pair::Row { tensor, version, row, bytes } = pair else { return false };
        let spec = self.bases.iter().find(|(spec, _)| spec.name == *tensor).map(|(spec, _)| spec);
        let fits =
            spec.is_some_and(|spec| row.0 < self.n_rows() && bytes.len() == spec.row_bytes());
        fits && *version <= self.committed
    }

    fn record_fault(
        &self,
        version: u32,
        record: &Result<SegmentRecord, String>,
        spec: &TensorSpec,
    ) -> Option<String> {
        let record = match record {
            Ok(record) => record,
            Err(reason) => return Some(reason.clone()),
        };
        let (n_rows, row_bytes) = (self.n_rows(), spec.row_bytes() as u64);
        if version == 0 || version > self.committed {
            return Some(format!("expected a version from 1 to {}", self.committed));
        }
        if (record.n_rows, u64::from(record.row_bytes)) != (n_rows, row_bytes) {
            let (rows, bytes) = (record.n_rows, record.row_bytes);
            return Some(format!(
                "expected {n_rows} rows of {row_bytes} bytes, found {rows} of {bytes}"
            ));
        }
        None
    }

    fn delta_fault(
        &self,
        version: u32,
        record: &Result<DeltaRecord, String>,
        spec: &TensorSpec,
        base: Option<u32>,
    ) -> Option<String> {
        let delta = match record {
            Ok(delta) => delta,
            Err(reason) => return Some(reason.clone()),
        };
        let (n_rows, row_bytes) = (self.n_rows(), spec.row_bytes() as u64);
        if version > self.committed {
            return Some(format!("expected a version up to {}", self.committed));
        }
        if base.is_some_and(|base| delta.first <= base && version > base) {
            return Some(format!("its first version {} is not after the segment's", delta.first));
        }
        let (rows, bytes) = (delta.record.n_rows, delta.record.row_bytes);
        let fits = (1..=n_rows).contains(&rows) && u64::from(bytes) == row_bytes;
        (!fits).then(|| {
            format!("expected 1 to {n_rows} rows of {row_bytes} bytes, found {rows} of {bytes}")
        })
    }

    /// Returns what is wrong with a row. Rows up to the version of their segment are seen by no
    /// reader, and may be anything.
    fn row_fault(
        &self,
        version: u32,
        row: RowIdx,
        found: usize,
        spec: &TensorSpec,
        base: Option<u32>,
    ) -> Option<String> {
        let (expected, n_rows) = (spec.row_bytes(), self.n_rows());
        if base.is_some_and(|base| version <= base) {
            return None;
        }
        let newest = self.committed.saturating_add(2);
        if version <= self.committed {
            return Some(
                "committed, and stored in the form of an older release; compact the graph".into(),
            );
        }
        if version > newest || row.0 >= n_rows {
            return Some(format!("expected rows below {n_rows}, for versions up to {newest}"));
        }
        (found != expected).then(|| format!("expected {expected} bytes, found {found}"))
    }

    fn n_rows(&self) -> u32 {
        let range = self.graph.book().range(self.part);
        range.end - range.start
    }
}
