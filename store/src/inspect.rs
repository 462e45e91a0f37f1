//! Figures of a graph.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::codec::SampledTable;
use crate::error::StoreError;
use crate::graph::Graph;
use crate::plan::{DiskProfile, ReadPlan};
use crate::probe::{ProbeCell, StoredProfile};
use crate::reader::{PreadReader, RowReader, available_memory_bytes, choose};
use crate::row::RowIdx;
use crate::segment::Segment;
use crate::tensor::TensorSpec;
use crate::update::{OpenedPart, OpenedTensor};

/// A graph at a glance; the keys of `lode inspect --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphSummary {
    /// Folder of the graph.
    pub graph: String,
    /// Identity.
    pub uuid: String,
    /// Format of the graph.
    pub format_version: u32,
    /// Current version of its tensors: the lowest over the partitions.
    pub version: u32,
    /// Oldest version that can be read: that of the newest segment.
    pub oldest_version: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of stored in-edges.
    pub edges: u64,
    /// Whether each edge of the input was stored in both directions.
    pub undirected: bool,
    /// Tensors.
    pub tensors: Vec<TensorSummary>,
    /// Partitions.
    pub parts: Vec<PartSummary>,
    /// How its rows would be read here.
    pub reader: ReaderSummary,
    /// The disk profile that plans use.
    pub device: DiskSummary,
}

/// The reader that would be chosen on this machine at this moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReaderSummary {
    /// Its name.
    pub kind: String,
    /// Why this one.
    pub reason: String,
}

/// The device profile in force.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskSummary {
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bandwidth_bytes_per_s: f64,
    /// When `lode probe` measured it, in seconds since 1970 UTC; `null` for the default.
    pub measured_unix_s: Option<u64>,
    /// Why what was measured cannot be used.
    pub fault: Option<String>,
    /// Measurements, by request size and queue depth.
    pub cells: Vec<ProbeCell>,
}

impl DiskSummary {
    fn profile(&self) -> DiskProfile {
        let Self { iops, bandwidth_bytes_per_s, .. } = *self;
        DiskProfile { iops, bandwidth_bytes_per_s }
    }
}

/// A tensor at a glance.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TensorSummary {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: String,
    /// Elements per row.
    pub width: u32,
    /// How rows are stored: `raw`, `zstd`, `mixed` where its segments differ, empty without any.
    pub codec: String,
    /// How an import would store them now, and why.
    pub codec_choice: CodecSummary,
    /// Bytes of its segments on this machine.
    pub bytes: u64,
    /// Rows of deltas over its segments; one in two deltas counts twice.
    pub delta_rows: u64,
    /// Rows put and not committed.
    pub pending_rows: u64,
}

/// A partition at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartSummary {
    /// Partition.
    pub part: u16,
    /// Nodes that it owns.
    pub nodes: u32,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Whether its folder is on this machine.
    pub present: bool,
    /// Its committed version; 0 if it is not here.
    pub version: u32,
    /// Tensors with deltas or pending rows.
    pub layers: Vec<LayerSummary>,
}

/// Layers over the segment of a tensor in a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSummary {
    /// Tensor.
    pub tensor: String,
    /// Version of the segment.
    pub segment_version: u32,
    /// Rows of each delta, oldest first.
    pub delta_rows: Vec<u64>,
    /// Rows put and not committed.
    pub pending_rows: u64,
}

/// Looks at catalogs, headers and tables of segments; reads pending rows, and of others a sample.
pub fn inspect(graph: &Graph) -> Result<GraphSummary, StoreError> {
    let meta = graph.meta();
    let mut tensors: Vec<TensorSummary> = meta.tensors.iter().map(TensorSummary::of).collect();
    let mut rows: Vec<TensorRows> = tensors.iter().map(|_| TensorRows::default()).collect();
    let mut parts = Vec::new();
    let (mut version, mut oldest_version) = (None, 0);
    for part in graph.book().parts() {
        let (dir, range) = (graph.part_dir(part), graph.book().range(part));
        let mut summary = PartSummary {
            part: part.0,
            nodes: range.end - range.start,
            present: dir.is_dir(),
            ..PartSummary::default()
        };
        if summary.present {
            let opened = OpenedPart::to_read(graph, part)?;
            summary.bytes = folder_bytes(&dir)?;
            summary.version = opened.version;
            version = Some(version.map_or(opened.version, |v: u32| v.min(opened.version)));
            for (at, found) in opened.tensors.iter().enumerate() {
                oldest_version = oldest_version.max(found.segment.identity().version);
                let layers = LayerSummary::of(found, opened.n_pending(found)?);
                tensors[at].add(found, &layers);
                if !layers.delta_rows.is_empty() || layers.pending_rows > 0 {
                    summary.layers.push(layers);
                }
            }
            for (found, rows) in opened.tensors.into_iter().zip(&mut rows) {
                rows.add(found.segment);
            }
        }
        parts.push(summary);
    }
    let segment_bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
    let device = device_of(graph);
    for (tensor, rows) in tensors.iter_mut().zip(rows) {
        tensor.codec_choice = rows.summary(device.profile());
    }
    let (kind, reason) = choose(segment_bytes, available_memory_bytes());
    Ok(GraphSummary {
        graph: graph.dir().display().to_string(),
        uuid: meta.uuid.to_string(),
        format_version: meta.format_version,
        version: version.unwrap_or(0),
        oldest_version,
        nodes: meta.nodes,
        edges: meta.edges,
        undirected: meta.undirected,
        tensors,
        parts,
        reader: ReaderSummary { kind: kind.to_string(), reason },
        device,
    })
}

impl TensorSummary {
    fn of(tensor: &TensorSpec) -> Self {
        Self {
            name: tensor.name.clone(),
            dtype: tensor.dtype.to_string(),
            width: tensor.width,
            ..Self::default()
        }
    }

    fn add(&mut self, found: &OpenedTensor, layers: &LayerSummary) {
        self.bytes += found.segments().map(|file| file.layout().file_bytes()).sum::<u64>();
        self.delta_rows += layers.delta_rows.iter().sum::<u64>();
        self.pending_rows += layers.pending_rows;
        let codec = found.segment.codec().name();
        match self.codec.as_str() {
            "" => codec.clone_into(&mut self.codec),
            found if found != codec => "mixed".clone_into(&mut self.codec),
            _ => {}
        }
    }
}

impl LayerSummary {
    fn of(found: &OpenedTensor, n_pending: u64) -> Self {
        let n_rows = |delta: &Arc<Segment>| u64::from(delta.identity().n_rows);
        Self {
            tensor: found.spec.name.clone(),
            segment_version: found.segment.identity().version,
            delta_rows: found.deltas.iter().map(|(_, delta)| n_rows(delta)).collect(),
            pending_rows: n_pending + found.prepared.as_ref().map_or(0, n_rows),
        }
    }
}

fn device_of(graph: &Graph) -> DiskSummary {
    let (stored, fault) = match StoredProfile::read(&**graph.file_system(), graph.dir()) {
        Ok(stored) => (stored, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let profile = stored.as_ref().map_or_else(DiskProfile::default, StoredProfile::profile);
    DiskSummary {
        iops: profile.iops,
        bandwidth_bytes_per_s: profile.bandwidth_bytes_per_s,
        measured_unix_s: stored.as_ref().map(|stored| stored.measured_unix_s),
        fault,
        cells: stored.map_or_else(Vec::new, |stored| stored.cells),
    }
}

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
struct TensorRows {
    raw_bytes: u64,
    longest: Option<Arc<Segment>>,
}

impl TensorRows {
    fn add(&mut self, segment: Arc<Segment>) {
        let layout = segment.layout();
        self.raw_bytes += u64::from(layout.n_rows()) * layout.row_bytes() as u64;
        if self.longest.as_ref().is_none_or(|it| it.layout().n_rows() < layout.n_rows()) {
            self.longest = Some(segment);
        }
    }

    /// Judges by a sample of the longest segment, read from a disk of this profile.
    fn summary(self, disk: DiskProfile) -> CodecSummary {
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
        let reader = PreadReader::new(segment);
        let (mut rows, mut plan) = (Vec::new(), ReadPlan::default());
        let assessed = table.assess::<StoreError>(|first, sample| {
            let n_rows = (sample.len() / row_bytes) as u32;
            rows.clear();
            rows.extend((0..n_rows).map(|out_row| (RowIdx(first + out_row), out_row)));
            reader.gather(&rows, &disk, &mut plan, sample)
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

/// Returns the bytes of all files below a folder.
fn folder_bytes(dir: &Path) -> Result<u64, StoreError> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(StoreError::io(dir, "list"))? {
        let entry = entry.map_err(StoreError::io(dir, "list"))?;
        let metadata = entry.metadata().map_err(StoreError::io(dir, "list"))?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use lodestore_graph::PartId;

    use super::*;
    use crate::fixture::{Ring, WIDTH};
    use crate::import::EXTERNAL_ID_TENSOR;

    #[test]
    fn a_summary_adds_up() {
        let ring = Ring::new(500, 2, 3);
        let graph = ring.import();
        let summary = inspect(&graph).unwrap();
        assert_eq!((summary.nodes, summary.edges, summary.version), (500, 1000, 1));
        let shapes: Vec<_> = summary.tensors.iter().map(|t| (t.name.as_str(), t.width)).collect();
        assert_eq!(shapes, [("feat", WIDTH as u32), (EXTERNAL_ID_TENSOR, 1)]);
        // Twice header, 7 pages of rows, table and footer; then header and footer without rows.
        assert_eq!(summary.tensors[0].bytes, 4096 * (10 + 10 + 2));
        let nodes: Vec<_> = summary.parts.iter().map(|part| (part.nodes, part.present)).collect();
        assert_eq!(nodes, [(250, true), (250, true), (0, true)]);
        assert_eq!(
            (summary.reader.kind.as_str(), summary.device.measured_unix_s),
            ("mapped", None)
        );
        // 500 rows of 99 bytes and of 8.
        let choice = |at: usize| &summary.tensors[at].codec_choice;
        assert_eq!((choice(0).raw_bytes, choice(1).raw_bytes), (49_500, 4000));
        assert_eq!((choice(0).auto.as_deref(), choice(0).zstd_bytes), (Some("raw"), None));
        assert!(choice(0).reason.contains("less than 1 MiB"), "{}", choice(0).reason);
        let profile = DiskProfile { iops: 5.0, ..DiskProfile::default() };
        StoredProfile::new(profile, Vec::new(), 7)
            .write(&**graph.file_system(), graph.dir())
            .unwrap();
        let device = inspect(&graph).unwrap().device;
        assert_eq!((device.iops, device.measured_unix_s, device.fault), (5.0, Some(7), None));
        fs::write(graph.dir().join(crate::probe::DEVICE_FILE), "nonsense").unwrap();
        let device = inspect(&graph).unwrap().device;
        assert_eq!((device.iops, device.measured_unix_s), (DiskProfile::default().iops, None));
        assert!(device.fault.unwrap().contains("lode probe"));
        fs::remove_dir_all(graph.part_dir(PartId(1))).unwrap();
        let nodes = inspect(&graph).unwrap().parts.into_iter().map(|part| part.present);
        assert_eq!(nodes.collect::<Vec<_>>(), [true, false, true]);
    }
}
