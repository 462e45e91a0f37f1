//! Readable contents of a catalog.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use lodestore_graph::PartId;

use super::super::actions::RepairActions;
use super::super::partitions::Partition;
use super::super::report::Lost;
use crate::catalog::{
    CATALOG_FORMAT_VERSION, Catalog, DeltaRecord, Pair, SegmentRecord, TensorDelta, TensorRecord,
};
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::Access;
use crate::graph::{Graph, catalog_dir};
use crate::meta::is_copy;
use crate::row::RowIdx;

/// A catalog, read through.
#[derive(Debug)]
pub(super) struct Contents {
    /// Folder of the partition.
    pub(super) part_dir: PathBuf,
    /// The open catalog, where it can be read through; its pending rows can be had.
    pub(super) catalog: Option<Catalog>,
    /// The committed version, if it is known.
    pub(super) version: Option<u32>,
    /// Records of segments that make sense; at most one of a tensor.
    pub(super) records: Vec<TensorRecord>,
    /// Records of deltas that make sense, prepared ones too.
    pub(super) deltas: Vec<TensorDelta>,
    /// Reason why the catalog must be built again; `None` if it may stay.
    pub(super) broken: Option<String>,
    /// Its log is damaged: this is an earlier state, and segments may have moved on.
    pub(super) salvaged: bool,
    /// Its losses, in this repair or in one that was cut off.
    pub(super) losses: Vec<String>,
}

/// Results of a scan.
#[derive(Default)]
struct Scan {
    records: Vec<TensorRecord>,
    deltas: Vec<TensorDelta>,
    lost: Vec<(String, u32, SegmentRecord)>,
    faults: Vec<String>,
    /// Rows that no put can have written, by tensor: how many.
    bad_rows: Vec<(String, u64)>,
    /// Losses of an earlier repair, which it may not have reported.
    losses: Vec<String>,
}

impl Contents {
    /// Reads a catalog through.
    ///
    /// Fails when it is of a later format.
    pub(super) fn read(
        actions: &mut RepairActions,
        graph: &Graph,
        partition: Partition,
    ) -> Result<Self, StoreError> {
        let (part, part_dir) = (partition.part, partition.dir);
        let dir = catalog_dir(&part_dir);
        let opened = partition.catalog.and_then(|catalog| {
            catalog.check_identity(graph.uuid(), part)?;
            Ok(catalog)
        });
        let error = match opened.and_then(|catalog| Self::of(graph, part, &part_dir, catalog)) {
            Ok(contents) => return Ok(contents.tell(actions, &dir)),
            Err(error @ StoreError::NewerFormat { .. }) => return Err(error),
            Err(error) if error.origin() != ErrorOrigin::Damage => return Err(error),
            Err(error) => error,
        };
        // Its log may be all that is damaged.
        let earlier = Catalog::open_unchecked(&*actions.device, &dir, Access::Salvage);
        let earlier = earlier.and_then(|catalog| {
            catalog.check_identity(graph.uuid(), part)?;
            Self::of(graph, part, &part_dir, catalog)
        });
        let reason = error.to_string();
        match earlier {
            Ok(mut contents) => {
                let told = format!(
                    "{reason}: what was put after the state before the damage is lost, but for what \
                     segments hold of it"
                );
                contents.losses.push(told);
                Ok(Self { broken: Some(reason), salvaged: true, ..contents }.tell(actions, &dir))
            }
            Err(error) if error.origin() != ErrorOrigin::Damage => Err(error),
            Err(_) => {
                let told = format!(
                    "{reason}: rows that were put and not committed are lost, if there were any, \
                     and so are versions after that of the newest file"
                );
                let contents = Self {
                    part_dir,
                    catalog: None,
                    version: None,
                    records: Vec::new(),
                    deltas: Vec::new(),
                    broken: Some(reason),
                    salvaged: false,
                    losses: vec![told],
                };
                Ok(contents.tell(actions, &dir))
            }
        }
    }

    /// Notes what is lost.
    fn tell(self, actions: &mut RepairActions, dir: &Path) -> Self {
        for loss in &self.losses {
            actions.note_lost(Lost::file(dir, loss.clone()));
        }
        if !self.losses.is_empty() {
            actions.with_losses.push(dir.to_owned());
        }
        self
    }

    fn of(
        graph: &Graph,
        part: PartId,
        part_dir: &Path,
        catalog: Catalog,
    ) -> Result<Self, StoreError> {
        let version = catalog.current_version()?;
        let scan = Scan::of(graph, part, version, &catalog)?;
        let broken = (!scan.faults.is_empty()).then(|| scan.faults.join("; "));
        let records = scan.records.iter().map(|record| {
            let is_of = |(tensor, version, _): &&(String, u32, SegmentRecord)| {
                (tensor, *version) == (&record.tensor, record.version)
            };
            let lost = scan.lost.iter().find(is_of).map(|(_, _, lost)| lost.clone());
            TensorRecord { lost, ..record.clone() }
        });
        let (part_dir, records) = (part_dir.to_owned(), records.collect());
        let bad_rows = scan.bad_rows.iter().map(|(tensor, n)| {
            format!("{n} pending rows of `{tensor}` that no put can have written")
        });
        let losses = scan.losses.iter().cloned().chain(bad_rows).collect();
        let (catalog, version, salvaged) = (Some(catalog), Some(version), false);
        let deltas = scan.deltas;
        Ok(Self { part_dir, catalog, version, records, deltas, broken, salvaged, losses })
    }

    /// Returns the record of a tensor.
    pub(super) fn record(&self, tensor: &str) -> Option<&TensorRecord> {
        self.records.iter().find(|record| record.tensor == tensor)
    }
}

impl Scan {
    /// Reads every pair.
    fn of(
        graph: &Graph,
        part: PartId,
        version: u32,
        catalog: &Catalog,
    ) -> Result<Self, StoreError> {
        let (limits, text) = (RowLimits::of(graph, part, version), graph.meta().to_text());
        let mut scan = Self::default();
        let mut newer = None;
        catalog.scan_all(&mut |key, pair| {
            if let Pair::Newer { format } = pair {
                newer = Some(format);
                return ControlFlow::Break(());
            }
            scan.take(&limits, &text, key, pair);
            ControlFlow::Continue(())
        })?;
        if let Some(found) = newer {
            let (file, supported) = (catalog.dir().to_owned(), CATALOG_FORMAT_VERSION);
            return Err(StoreError::NewerFormat { file, found, supported });
        }
        for spec in &graph.meta().tensors {
            if scan.records.iter().all(|record| record.tensor != spec.name) {
                scan.faults.push(format!("no usable record of `{}`", spec.name));
            }
        }
        Ok(scan)
    }

    fn take(&mut self, limits: &RowLimits<'_>, text: &str, key: &[u8], pair: Pair<'_>) {
        let RowLimits { graph, committed: version, .. } = *limits;
        match pair {
            Pair::Identity | Pair::Version | Pair::Newer { .. } => {}
            Pair::Holders | Pair::Commit => {}
            Pair::Losses(text) => {
                let text = String::from_utf8_lossy(text);
                self.losses.extend(text.lines().map(str::to_owned));
            }
            Pair::GraphCopy(copy) if copy == text.as_bytes() || is_copy(copy, graph.meta()) => {}
            Pair::New { .. } => {}
            Pair::GraphCopy(_) => self.faults.push("its copy of graph.toml is another".to_owned()),
            Pair::Segment { tensor, version: of, record } => {
                match limits.check(tensor, of, record) {
                    Ok(record) => self.add_record(tensor, of, record),
                    Err(reason) => self.faults.push(format!("record of `{tensor}`: {reason}")),
                }
            }
            Pair::Lost { tensor, version, record: Ok(record) } => {
                self.lost.push((tensor.to_owned(), version, record));
            }
            Pair::Lost { tensor, record: Err(reason), .. } => {
                self.faults.push(format!("record of the lost `{tensor}`: {reason}"));
            }
            Pair::Delta { tensor, version: of, record } => {
                self.add_delta(graph, tensor, record, of <= version, false);
            }
            Pair::Prepared { tensor, version: of, record } => {
                self.add_delta(graph, tensor, record, of == version.saturating_add(1), true);
            }
            Pair::PreparedVersion(found) => {
                if found != Some(version.saturating_add(1)) {
                    self.faults.push("its prepared version is none after the committed".to_owned());
                }
            }
            Pair::Row { tensor, version: of, row, bytes } => {
                if !limits.allow(tensor, of, row, bytes.len()) {
                    self.add_bad_row(tensor);
                }
            }
            Pair::Unknown => {
                self.faults.push(format!("the unknown key {:?}", String::from_utf8_lossy(key)));
            }
        }
    }

    /// Adds a record, which replaces earlier ones of its tensor: records come in the order of
    /// versions.
    fn add_record(&mut self, tensor: &str, version: u32, record: SegmentRecord) {
        self.records.retain(|known| known.tensor != tensor);
        let tensor = tensor.to_owned();
        self.records.push(TensorRecord { tensor, version, record, lost: None });
    }

    fn add_delta(
        &mut self,
        graph: &Graph,
        tensor: &str,
        record: Result<DeltaRecord, String>,
        is_in_order: bool,
        is_prepared: bool,
    ) {
        let spec = graph.meta().tensor(tensor);
        match (record, spec) {
            (Ok(delta), Some(_)) if is_in_order => {
                self.deltas.push(TensorDelta { tensor: tensor.to_owned(), delta, is_prepared });
            }
            (Ok(_), _) => self.faults.push(format!("a delta of `{tensor}` that cannot be")),
            (Err(reason), _) => self.faults.push(format!("delta of `{tensor}`: {reason}")),
        }
    }

    fn add_bad_row(&mut self, tensor: &str) {
        match self.bad_rows.last_mut() {
            Some((of, n)) if of == tensor => *n += 1,
            _ => {
                self.faults.push(format!("pending rows of `{tensor}` that cannot be"));
                self.bad_rows.push((tensor.to_owned(), 1));
            }
        }
    }
}

/// Bounds of what a partition's catalog can hold.
pub(super) struct RowLimits<'a> {
    graph: &'a Graph,
    committed: u32,
    n_rows: u32,
}

impl<'a> RowLimits<'a> {
    /// Returns the bounds of a partition whose version `committed` is the newest.
    pub(super) fn of(graph: &'a Graph, part: PartId, committed: u32) -> Self {
        let range = graph.book().range(part);
        Self { graph, committed, n_rows: range.end - range.start }
    }

    /// Returns a record that makes sense, or why it does not.
    fn check(
        &self,
        tensor: &str,
        version: u32,
        record: Result<SegmentRecord, String>,
    ) -> Result<SegmentRecord, String> {
        let spec = self.graph.meta().tensor(tensor).ok_or("there is no such tensor")?;
        let record = record?;
        if version == 0 || version > self.committed {
            return Err(format!("version {version} of 1 to {}", self.committed));
        }
        if (record.n_rows, record.row_bytes as usize) != (self.n_rows, spec.row_bytes()) {
            return Err(format!("{} rows of {} bytes", record.n_rows, record.row_bytes));
        }
        Ok(record)
    }

    /// Returns whether a put can have written a row.
    pub(super) fn allow(&self, tensor: &str, version: u32, row: RowIdx, n_bytes: usize) -> bool {
        let spec = self.graph.meta().tensor(tensor);
        let newest = self.committed.saturating_add(2);
        spec.is_some_and(|spec| spec.row_bytes() == n_bytes)
            && version <= newest
            && row.0 < self.n_rows
    }
}
