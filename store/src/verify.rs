//! Verification: everything of a graph is read and checked; every fault is reported, not only the
//! first.

use std::path::Path;

use lodestore_graph::PartId;
use lodestore_graph::halo::Halo;
use lodestore_graph::topology::Topology;
use serde::Serialize;

use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::graph::{Graph, META_FILE};
use crate::layout::PAGE_BYTES;
use crate::limits::MAX_EXTENT_BYTES;
use crate::overlay;
use crate::plan::Extent;
use crate::segment::Segment;
use crate::tensor::TensorSpec;

/// More faults of one file than this are counted, not listed.
const MAX_DAMAGES_PER_FILE: u64 = 1000;

/// What verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Nothing is damaged.
    pub ok: bool,
    /// Pages of rows that were read.
    pub pages: u64,
    /// Every fault.
    pub damaged: Vec<Damage>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The page of rows, counted from the first row; `null` when the fault is not in one.
    pub page: Option<u64>,
    /// What was expected and what was found.
    pub reason: String,
}

/// Reads all of the graph in `dir`; `progress` is told steps done and steps in all, one for the
/// topology and one for each tensor of each partition.
///
/// Fails only when there is no `graph.toml` to start from; what is damaged is in the report.
pub fn verify(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport, StoreError> {
    let mut report = VerifyReport::default();
    match Graph::open(dir) {
        Ok(graph) => verify_graph(&graph, &mut report, progress),
        Err(error @ StoreError::Io { .. }) => return Err(error),
        Err(error) => report.add_error(&dir.join(META_FILE), None, &error),
    }
    report.ok = report.damaged.is_empty();
    Ok(report)
}

/// Reads the catalogs and segments of all partitions, on whatever device the graph lives; topology
/// and halos are files of the system and are left out.
#[must_use]
pub fn verify_rows(graph: &Graph) -> VerifyReport {
    let mut report = VerifyReport::default();
    for part in graph.book().parts() {
        verify_part_rows(graph, part, &mut report, &mut |_| {});
    }
    report.ok = report.damaged.is_empty();
    report
}

/// Reads and checks every page of rows of a segment; gives the number of pages.
pub(crate) fn check_rows(segment: &Segment) -> Result<u64, StoreError> {
    let mut first_fault = None;
    let pages =
        scan_rows(segment, &mut |_, error| first_fault = first_fault.take().or(Some(error)));
    first_fault.map_or(Ok(pages), Err)
}

fn verify_graph(graph: &Graph, report: &mut VerifyReport, progress: &mut dyn FnMut(u64, u64)) {
    let n_steps = graph.meta().tensors.len() as u64 + 1;
    let total = n_steps * u64::from(graph.book().n_parts());
    let mut n_edges = Some(0u64);
    for part in graph.book().parts() {
        let done = u64::from(part.0) * n_steps;
        let in_part = verify_topology(graph, part, report);
        n_edges = n_edges.zip(in_part).and_then(|(a, b)| a.checked_add(b));
        progress(done + 1, total);
        verify_part_rows(graph, part, report, &mut |tensors| progress(done + 1 + tensors, total));
    }
    let expected = graph.meta().edges;
    if let Some(found) = n_edges.filter(|&found| found != expected) {
        let reason = format!("edges = {expected}, but the topology holds {found}");
        report.add(&graph.dir().join(META_FILE), None, reason);
    }
}

/// Checks topology and halo of a partition; gives the number of edges of sound topology.
fn verify_topology(graph: &Graph, part: PartId, report: &mut VerifyReport) -> Option<u64> {
    let uuid = *graph.uuid().as_bytes();
    let (topology, halo) = (graph.topology_path(part), graph.halo_path(part));
    if let Err(error) = Halo::open(&halo, graph.book(), part, uuid) {
        report.add(&halo, None, error.to_string());
    }
    Topology::check_file(&topology, graph.book(), part, uuid)
        .map_err(|error| report.add(&topology, None, error.to_string()))
        .ok()
}

/// Checks catalog, segments and overlay rows of a partition.
fn verify_part_rows(
    graph: &Graph,
    part: PartId,
    report: &mut VerifyReport,
    progress: &mut dyn FnMut(u64),
) {
    let catalog = match graph.catalog(part) {
        Ok(catalog) => catalog,
        Err(error) => return report.add_error(&graph.part_dir(part), None, &error),
    };
    for (tensor, done) in graph.meta().tensors.iter().zip(1u64..) {
        let segment = match graph.segment_of(&catalog, part, tensor) {
            // A compaction has moved on since the catalog was opened, or the file is really gone.
            Err(error) if error.is_gone() => graph.segment(part, &tensor.name),
            opened => opened,
        };
        match segment {
            Ok(segment) => verify_segment(&segment, report),
            Err(error) => report.add_error(&graph.part_dir(part), None, &error),
        }
        if let Err(error) = verify_overlay(graph, part, &catalog, tensor, report) {
            report.add_error(&graph.part_dir(part), None, &error);
        }
        progress(done);
    }
}

/// Checks the rows over a segment, whether or not the segment is sound.
fn verify_overlay(
    graph: &Graph,
    part: PartId,
    catalog: &Catalog,
    tensor: &TensorSpec,
    report: &mut VerifyReport,
) -> Result<(), StoreError> {
    let committed = catalog.current_version()?;
    // Without a record the segment's own fault has been told.
    let Some((base, _)) = catalog.segment(&tensor.name, committed)? else { return Ok(()) };
    let range = graph.book().range(part);
    let (n_rows, mut n_faults) = (range.end - range.start, 0);
    overlay::check(catalog, tensor, n_rows, base, committed, &mut |error| {
        n_faults += 1;
        if n_faults <= MAX_DAMAGES_PER_FILE {
            report.add_error(catalog.dir(), None, &error);
        }
    })?;
    if n_faults > MAX_DAMAGES_PER_FILE {
        let more = n_faults - MAX_DAMAGES_PER_FILE;
        report.add(catalog.dir(), None, format!("{more} more damaged overlay rows"));
    }
    Ok(())
}

fn verify_segment(segment: &Segment, report: &mut VerifyReport) {
    let mut n_faults = 0;
    report.pages += scan_rows(segment, &mut |page, error| {
        n_faults += 1;
        if n_faults <= MAX_DAMAGES_PER_FILE {
            report.add(segment.path(), Some(page), error.to_string());
        }
    });
    if n_faults > MAX_DAMAGES_PER_FILE {
        let more = n_faults - MAX_DAMAGES_PER_FILE;
        report.add(segment.path(), None, format!("{more} more damaged pages"));
    }
}

/// Reads every page of rows, 1 MiB at a time, and names each fault; gives the number of pages.
/// Where all pages are sound, row groups must unpack, too.
fn scan_rows(segment: &Segment, fault: &mut dyn FnMut(u64, StoreError)) -> u64 {
    let mut all_sound = true;
    let n_pages = scan_pages(segment, &mut |page, error| {
        all_sound = false;
        fault(page, error);
    });
    if all_sound {
        segment.check_groups(fault);
    }
    n_pages
}

fn scan_pages(segment: &Segment, fault: &mut dyn FnMut(u64, StoreError)) -> u64 {
    let n_pages = segment.layout().n_pages();
    let pages_per_read = MAX_EXTENT_BYTES / PAGE_BYTES;
    let mut buffer = vec![0u8; (n_pages * PAGE_BYTES).min(MAX_EXTENT_BYTES) as usize];
    for first_page in (0..n_pages).step_by(pages_per_read as usize) {
        let n_pages = pages_per_read.min(n_pages - first_page) as u32;
        let extent = Extent { first_page, n_pages };
        let bytes = &mut buffer[..extent.len_bytes()];
        match segment.file().read_exact_at(bytes, extent.offset_bytes()) {
            Ok(()) => {
                let pages = (first_page..).zip(bytes.chunks_exact(PAGE_BYTES as usize));
                for (page, bytes) in pages {
                    segment.check_page(page, bytes).unwrap_or_else(|error| fault(page, error));
                }
            }
            Err(error) => fault(first_page, StoreError::io(segment.path(), "read")(error)),
        }
    }
    n_pages
}

impl VerifyReport {
    fn add(&mut self, file: &Path, page: Option<u64>, reason: String) {
        self.damaged.push(Damage { file: file.display().to_string(), page, reason });
    }

    /// Adds an error under the file that it is about, or under `place`.
    fn add_error(&mut self, place: &Path, page: Option<u64>, error: &StoreError) {
        self.add(error.file().unwrap_or(place), page, error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::embedded::EmbeddedStore;
    use crate::fixture::{Ring, flip};

    #[test]
    fn verify_names_every_damaged_file_and_page() {
        let ring = Ring::new(500, 2, 2);
        ring.import();
        let sound = ring.verify();
        // 250 rows of 99 bytes are 7 pages, 250 of 8 bytes one; two partitions.
        assert_eq!((sound.ok, sound.pages), (true, 16));
        let (page, segment) = (4096, "part-001/feat.v1.seg");
        let places = [
            (segment, 4 * page + 9, Some(3)),
            (segment, 100, None),
            (segment, 8 * page + 1, None),
            (segment, 9 * page + 1, None),
            ("part-000/external_id.v1.seg", page, Some(0)),
            ("part-000/topology.csr", page + 16, None),
            ("part-001/halo.bin", page + 4, None),
            ("graph.toml", 60, None),
            ("part-001/catalog/CURRENT", 3, None),
        ];
        for (file, offset, page) in places {
            let path = ring.out().join(file);
            flip(&path, offset);
            let report = ring.verify();
            flip(&path, offset);
            assert!(!report.ok && report.damaged.len() == 1, "{file} {offset}: {report:?}");
            let damage = &report.damaged[0];
            let folder = path.parent().unwrap().display().to_string();
            assert!(damage.file.starts_with(&folder), "{file} {offset}: {damage:?}");
            assert_eq!(damage.page, page, "{file} {offset}: {damage:?}");
        }
        flip(&ring.out().join(segment), 2 * page);
        flip(&ring.out().join(segment), 6 * page);
        let pages: Vec<_> = ring.verify().damaged.into_iter().map(|damage| damage.page).collect();
        assert_eq!(pages, [Some(1), Some(5)]);
    }

    #[test]
    fn files_that_are_gone_or_in_each_others_place_are_found() {
        let ring = Ring::new(500, 2, 2);
        ring.import();
        let (a, b) = ("part-000/feat.v1.seg", "part-001/feat.v1.seg");
        for (a, b) in [(a, b), ("part-000/catalog", "part-001/catalog"), ("part-000", "part-001")] {
            let (a, b, spare) =
                (ring.out().join(a), ring.out().join(b), ring.dir.path().join("spare"));
            let swap = || {
                fs::rename(&a, &spare).and_then(|()| fs::rename(&b, &a)).unwrap();
                fs::rename(&spare, &b).unwrap();
            };
            swap();
            assert!(ring.verify().damaged.len() >= 2, "{} and {}", a.display(), b.display());
            assert!(EmbeddedStore::open(&ring.out(), None).is_err());
            swap();
            fs::rename(&a, &spare).unwrap();
            assert!(!ring.verify().ok, "{} is gone", a.display());
            fs::rename(&spare, &a).unwrap();
            assert!(ring.verify().ok);
        }
    }
}
