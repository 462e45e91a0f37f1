//! Addition and removal of tensors in an existing graph.
//!
//! Crash argument for an added tensor:
//!
//! 1. Each partition's rows are written into a segment, which is synced and renamed. The
//!    partition's catalog records the segment as new: no reader looks there yet.
//! 2. `graph.toml` is replaced by one that lists the tensor. That is the switch, for all
//!    partitions.
//! 3. The catalogs record the segments like any other, together with the new text of `graph.toml`.
//!
//! A crash before step 2 leaves files and records of a tensor that `graph.toml` does not list. The
//! next opening for writing removes the records and quarantines the files. After step 2 readers
//! find the segments under either kind of record. A tensor that is dropped is removed from
//! `graph.toml` first.

mod imported;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, MutexGuard};

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;
use uuid::Uuid;

use super::garbage::Retired;
use super::transfer::busy;
use super::{GraphHandle, Layer, OpenMode, PartHandle, TensorHandle, TensorVersion};
use crate::catalog::{Catalog, SegmentRecord, lock_folder};
use crate::codec::SegmentCodec;
use crate::error::StoreError;
use crate::file_system::{FileSystem, Guard};
use crate::graph::{Graph, META_FILE, TEMPORARY_SUFFIX, segment_file};
use crate::import::EXTERNAL_ID_TENSOR;
use crate::limits::MAX_TENSORS;
use crate::meta::GraphMeta;
use crate::new_file::{discard, remove_if_there, replace_file};
use crate::quarantine::quarantine;
use crate::reader::OpenOptions;
use crate::segment::{SegmentIdentity, SegmentWriter};
use crate::tensor::TensorSpec;
use crate::transfer::Arrival;

/// Version of a new tensor's segment: every version of the graph has the tensor.
const FIRST_VERSION: u32 = 1;

/// A new tensor of an existing graph, written row by row.
///
/// Rows are in the order of node ids, over the open partitions. Nothing is visible before
/// [`NewTensor::finish`]; dropping it earlier leaves nothing.
///
/// Memory: that of one [`SegmentWriter`].
#[derive(Debug)]
pub struct NewTensor {
    live: Arc<GraphHandle>,
    spec: TensorSpec,
    codec: SegmentCodec,
    parts: Vec<Arc<PartHandle>>,
    /// The segment that is being written, and the bytes of rows that are still missing.
    open: Option<(SegmentWriter, Staged, u64)>,
    written: Vec<Staged>,
}

/// The segment of a new tensor in one partition.
#[derive(Clone, Debug)]
struct Staged {
    part: Arc<PartHandle>,
    identity: SegmentIdentity,
    file: String,
    digest: [u8; 32],
}

impl GraphHandle {
    /// Begins a tensor in the open partitions; `codec` selects how its rows are stored.
    ///
    /// Fails unless the graph is open for writing, if it has a tensor of this name, and while
    /// another tensor of this name is being written.
    pub fn new_tensor(
        self: &Arc<Self>,
        spec: TensorSpec,
        codec: SegmentCodec,
    ) -> Result<NewTensor, StoreError> {
        self.check_new_tensor(&spec)?;
        if !self.coming().insert(spec.name.clone()) {
            return Err(refused(
                &spec.name,
                "another tensor of this name is being written; finish that one first",
            ));
        }
        // A drop that failed midway may have left garbage with the file names of the new tensor.
        self.garbage().retain(|retired| !retired.is_of(&spec.name));
        let parts = self.open_parts();
        let live = Arc::clone(self);
        self.settle_all(&parts).inspect_err(|_| {
            self.coming().remove(&spec.name);
        })?;
        Ok(NewTensor { live, spec, codec, parts, open: None, written: Vec::new() })
    }

    /// Removes a tensor with all its versions and rows from the open partitions; returns the graph
    /// without it. Views that have its files open can read them to their end. The space of the
    /// files is free once this graph is closed.
    ///
    /// Fails with [`StoreError::Fixed`] for `external_id`, with [`StoreError::Busy`] while a
    /// partition is being copied, and with [`StoreError::TensorRefused`] while a partition is
    /// arriving. Waits for a running compaction or commit.
    pub fn drop_tensor(&self, name: &str) -> Result<Graph, StoreError> {
        self.check_process()?;
        check_may_go(name)?;
        let _no_fold = self.compactions.lock().ignore_poison();
        let mut garbage = self.garbage();
        let _no_commit = self.commits();
        self.check_writable()?;
        let parts = self.open_parts();
        let _uncopied = Uncopied::hold(&parts)?;
        let _no_arrival = self.hold_arrivals(name)?;
        let position = self.tensor_position(name)?;
        let _no_put = self.gate.write().ignore_poison();
        let mut changed = self.stored()?.meta().clone();
        changed.drop_tensor(name);
        let replaced = replace_meta(&self.graph, &changed);
        // The replacement may fail after the switch: a tensor that may be dropped accepts no puts.
        let is_listed = |stored: Graph| stored.meta().tensor(name).is_some();
        if replaced.is_ok() || !self.stored().is_ok_and(is_listed) {
            parts.iter().for_each(|part| part.tensors[position].set_dropped());
        }
        let graph = replaced?;
        for part in &parts {
            let files = part.catalog.forget_tensor(name, &graph.meta().to_text())?;
            part.catalog.flush()?;
            for file in files {
                remove_if_there(&**graph.file_system(), &graph.part_dir(part.part).join(file))?;
            }
        }
        // A new tensor of this name may reuse these file names.
        let gone: Vec<Retired> = garbage.extract_if(.., |it| it.is_of(name)).collect();
        gone.iter().try_for_each(|it| remove_if_there(&**graph.file_system(), it.file()))?;
        Ok(graph)
    }

    /// Makes the catalogs of `parts` agree with `graph.toml`. Otherwise leftovers of a failed drop
    /// would shadow a new tensor of the same name.
    fn settle_all(&self, parts: &[Arc<PartHandle>]) -> Result<(), StoreError> {
        let _alone = self.commits();
        parts.iter().try_for_each(|it| settle(&self.graph, it.part, &it.catalog).map(drop))
    }

    /// Prevents new arrivals of partitions until the guard is dropped, because they arrive with the
    /// tensors that the folder has at that time.
    ///
    /// Fails with [`StoreError::TensorRefused`] for `tensor` while a partition is arriving.
    fn hold_arrivals(&self, tensor: &str) -> Result<Guard, StoreError> {
        let dir = self.graph.dir();
        let guard = lock_folder(&**self.graph.file_system(), dir)?;
        let Some(coming) = Arrival::folders_in(&self.graph)?.into_iter().next() else {
            return Ok(guard);
        };
        let reason = format!(
            "a partition is arriving in this folder with the present tensors, in {coming}; finish \
             its transfer first, or remove that folder if the source still has the partition"
        );
        Err(refused(tensor, reason))
    }

    /// Opens the graph with its current description on disk.
    fn stored(&self) -> Result<Graph, StoreError> {
        Graph::open_on(Arc::clone(self.graph.file_system()), self.graph.dir())
    }

    fn coming(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.coming.lock().ignore_poison()
    }

    /// Fails if a partition on this machine is not open, because the graph's description applies to
    /// all partitions.
    fn check_all_open(&self) -> Result<(), StoreError> {
        let is_closed = |part: &PartId| !self.parts().any(|open| open == *part);
        match self.graph.local_parts().into_iter().find(is_closed) {
            Some(part) => Err(StoreError::NoPart { part, opened: self.opened() }),
            None => Ok(()),
        }
    }

    fn check_new_tensor(&self, spec: &TensorSpec) -> Result<(), StoreError> {
        self.check_writable()?;
        let refused = |reason: &str| refused(&spec.name, reason);
        spec.check().map_err(|error| refused(&error.to_string()))?;
        let stored = self.stored()?;
        if stored.meta().tensor(&spec.name).is_some() || spec.name == EXTERNAL_ID_TENSOR {
            return Err(refused("the graph already has a tensor of this name"));
        }
        self.check_all_open()?;
        if stored.meta().tensors.len() >= MAX_TENSORS {
            return Err(refused(&format!("the graph has {MAX_TENSORS} tensors, the limit")));
        }
        Ok(())
    }
}

/// Like [`GraphHandle::drop_tensor`], for a graph that is not open.
///
/// Opens all partitions that are here for writing, and fails with [`StoreError::Locked`] while
/// another process has one open.
pub fn drop_tensor(graph: Graph, name: &str) -> Result<Graph, StoreError> {
    graph.tensor(name)?;
    check_may_go(name)?;
    let parts = graph.local_parts();
    let live = GraphHandle::open(graph, Some(&parts), OpenMode::Write, &OpenOptions::default())?;
    live.drop_tensor(name)
}

fn refused(tensor: &str, reason: impl Into<String>) -> StoreError {
    StoreError::TensorRefused { tensor: tensor.to_owned(), reason: reason.into() }
}

fn check_may_go(name: &str) -> Result<(), StoreError> {
    if name == EXTERNAL_ID_TENSOR {
        return Err(StoreError::Fixed { tensor: name.to_owned() });
    }
    Ok(())
}

/// Prevents new copies of partitions while it is held: such a copy would have other tensors than
/// the graph.
struct Uncopied<'a>(Vec<&'a PartHandle>);

impl<'a> Uncopied<'a> {
    /// Fails with [`StoreError::Busy`] while one of the partitions is being copied.
    fn hold(parts: &'a [Arc<PartHandle>]) -> Result<Self, StoreError> {
        let mut held = Self(Vec::with_capacity(parts.len()));
        for part in parts {
            if !part.transfer.begin_copy() {
                return Err(busy(part.part, "a copy of it is in progress"));
            }
            held.0.push(part);
        }
        Ok(held)
    }
}

impl Drop for Uncopied<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|part| part.transfer.end_copy());
    }
}

impl NewTensor {
    /// Returns the number of rows that are still missing.
    #[must_use]
    pub fn rows_left(&self) -> u64 {
        let rows = |part: &Arc<PartHandle>| self.live.graph.book().range(part.part).len() as u64;
        let n_begun = self.written.len() + usize::from(self.open.is_some());
        let open =
            self.open.as_ref().map_or(0, |(.., left)| left.div_ceil(self.spec.row_bytes() as u64));
        open + self.parts[n_begun.min(self.parts.len())..].iter().map(rows).sum::<u64>()
    }

    /// Appends bytes of rows; a call may end within a row.
    ///
    /// Fails with [`StoreError::TensorRefused`] for more bytes than all rows have.
    pub fn write_rows(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            self.open_next()?;
            let Some((writer, _, left)) = &mut self.open else {
                let reason = format!("{} bytes follow the last node's row", bytes.len());
                return Err(refused(&self.spec.name, reason));
            };
            let n = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
            writer.write_rows(&bytes[..n])?;
            *left -= n as u64;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Adds the tensor to the graph, and returns the graph. The tensor is then on disk, in the open
    /// partitions, and visible to later openings.
    ///
    /// Fails with [`StoreError::TensorRefused`] if rows are missing, or if partitions were added or
    /// removed since the begin, and with [`StoreError::Busy`] while a partition is being copied.
    /// Then, and after an error of a catalog, nothing is left. If `graph.toml` could not be
    /// replaced, the tensor may exist.
    pub fn finish(mut self) -> Result<Graph, StoreError> {
        self.open_next()?;
        if self.rows_left() > 0 {
            let reason = format!("{} rows are missing", self.rows_left());
            return Err(refused(&self.spec.name, reason));
        }
        let live = Arc::clone(&self.live);
        let _alone = live.commits();
        live.check_new_tensor(&self.spec)?;
        let parts = live.open_parts();
        let _uncopied = Uncopied::hold(&parts)?;
        let is_open = |(part, open): (&Arc<PartHandle>, &Arc<PartHandle>)| Arc::ptr_eq(part, open);
        if parts.len() != self.parts.len() || !self.parts.iter().zip(&parts).all(is_open) {
            let reason = "partitions changed during the write; write the tensor again";
            return Err(refused(&self.spec.name, reason));
        }
        let _no_arrival = live.hold_arrivals(&self.spec.name)?;
        // Opened before the switch, so that nothing can fail after it but records, which the next
        // opening for writing repairs.
        let opened = self.written.iter().map(|staged| staged.open(&live));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        for staged in &self.written {
            let (catalog, record) = (&staged.part.catalog, staged.record());
            catalog.stage_tensor(&self.spec.name, FIRST_VERSION, &record)?;
        }
        let mut meta = live.stored()?.meta().clone();
        meta.tensors.push(self.spec.clone());
        let replaced = replace_meta(&live.graph, &meta);
        let graph = replaced.inspect_err(|_| self.keep_if_listed())?;
        let written = std::mem::take(&mut self.written);
        {
            // A put looks up its tensor's position in one partition and uses it in all.
            let _no_put = live.gate.write().ignore_poison();
            for (staged, tensor) in written.iter().zip(opened) {
                staged.part.tensors.push(tensor);
            }
        }
        for staged in written {
            // Readers find the segment by its present record, and the next opening for writing
            // settles it.
            let (text, catalog) = (graph.meta().to_text(), &staged.part.catalog);
            if let Err(error) = catalog.settle_tensors(&text, &[&self.spec.name]) {
                tracing::warn!(
                    "{error}; tensor `{}` was added, and the next start repairs its record",
                    self.spec.name
                );
            }
        }
        Ok(graph)
    }

    /// Keeps the written files unless `graph.toml` certainly does not list the tensor: its
    /// replacement may have failed after the switch.
    fn keep_if_listed(&mut self) {
        if !self.live.stored().is_ok_and(|stored| stored.meta().tensor(&self.spec.name).is_none()) {
            self.written.clear();
        }
    }

    /// Finishes a complete segment, and begins the next ones until one needs rows.
    fn open_next(&mut self) -> Result<(), StoreError> {
        loop {
            match self.open.take() {
                Some((writer, staged, left)) if left > 0 => {
                    self.open = Some((writer, staged, left));
                    return Ok(());
                }
                Some((writer, mut staged, _)) => {
                    staged.digest =
                        writer.finish().inspect_err(|_| staged.remove(&self.live.graph))?;
                    staged.publish(&self.live.graph)?;
                    self.written.push(staged);
                }
                None => {}
            }
            let Some(part) = self.parts.get(self.written.len()).cloned() else { return Ok(()) };
            let staged = self.stage(&part)?;
            let path = self.live.graph.part_dir(part.part).join(staged.temporary());
            let fs = &**self.live.graph.file_system();
            let writer = SegmentWriter::create(fs, &path, &staged.identity, self.codec)?;
            let left = u64::from(staged.identity.n_rows) * self.spec.row_bytes() as u64;
            self.open = Some((writer, staged, left));
        }
    }

    fn stage(&self, part: &Arc<PartHandle>) -> Result<Staged, StoreError> {
        let graph = &self.live.graph;
        let identity = graph.segment_identity(part.part, &self.spec, FIRST_VERSION, Uuid::new_v4());
        let (file, digest) = (segment_file(&self.spec.name, FIRST_VERSION), [0; 32]);
        let staged = Staged { part: Arc::clone(part), identity, file, digest };
        let path = graph.part_dir(part.part).join(&staged.file);
        // The file belongs to a dropped tensor that a view still reads, or to an unknown one.
        if graph.file_system().exists(&path) {
            quarantine(&**graph.file_system(), &path)?;
        }
        staged.remove(graph);
        Ok(staged)
    }
}

impl Drop for NewTensor {
    fn drop(&mut self) {
        let open = self.open.take().map(|(_, staged, _)| staged);
        for staged in self.written.drain(..).chain(open) {
            staged.remove(&self.live.graph);
        }
        self.live.coming().remove(&self.spec.name);
    }
}

impl Staged {
    fn temporary(&self) -> String {
        format!("{}{TEMPORARY_SUFFIX}", self.file)
    }

    fn record(&self) -> SegmentRecord {
        SegmentRecord::new(&self.identity, self.digest, self.file.clone())
    }

    /// Opens a complete file that no record names yet.
    fn open(&self, live: &GraphHandle) -> Result<Arc<TensorHandle>, StoreError> {
        let (part, spec) = (&self.part, &self.identity.tensor);
        let segment = live.graph.open_base(part.part, spec, FIRST_VERSION, &self.record())?;
        let layer = Layer::open(segment, FIRST_VERSION, live.reader)?;
        let current = TensorVersion::new(part.version(), vec![layer]);
        let catalog = Arc::clone(&part.catalog);
        let uuid = live.stored()?.meta().tensor_uuid(&spec.name);
        Ok(Arc::new(TensorHandle::new(spec.clone(), uuid, catalog, current)))
    }

    /// Renames a complete file, durably; removes it on failure.
    fn publish(&self, graph: &Graph) -> Result<(), StoreError> {
        let (fs, dir) = (&**graph.file_system(), graph.part_dir(self.part.part));
        let (from, to) = (dir.join(self.temporary()), dir.join(&self.file));
        let moved = fs.rename(&from, &to).map_err(StoreError::io(&to, "move a segment to"));
        moved
            .and_then(|()| fs.sync(&dir).map_err(StoreError::io(&dir, "sync")))
            .inspect_err(|_| self.remove(graph))
    }

    /// Removes the written files. If that fails, the next opening for writing removes them.
    fn remove(&self, graph: &Graph) {
        let dir = graph.part_dir(self.part.part);
        for path in [dir.join(self.temporary()), dir.join(&self.file)] {
            discard(&**graph.file_system(), &path);
        }
    }
}

/// Replaces the graph's `graph.toml` atomically, and opens the graph.
fn replace_meta(graph: &Graph, meta: &GraphMeta) -> Result<Graph, StoreError> {
    let path = graph.dir().join(META_FILE);
    replace_file(&**graph.file_system(), &path, meta.to_text().as_bytes())?;
    Graph::open_on(Arc::clone(graph.file_system()), graph.dir())
}

/// Makes a catalog agree with `graph.toml` after an interrupted addition or drop of a tensor.
/// Removes records of tensors that `graph.toml` does not list, and quarantines their files. Returns
/// the graph as stored.
pub(super) fn settle(graph: &Graph, part: PartId, catalog: &Catalog) -> Result<Graph, StoreError> {
    // Read again, because tensors may have been added or dropped since the graph was opened.
    let stored = Graph::open_on(Arc::clone(graph.file_system()), graph.dir())?;
    let names: Vec<&str> = stored.meta().tensors.iter().map(|it| it.name.as_str()).collect();
    let text = stored.meta().to_text();
    for name in catalog.tensor_names()? {
        if names.contains(&name.as_str()) {
            continue;
        }
        let files = catalog.forget_tensor(&name, &text)?;
        for file in files {
            let path = graph.part_dir(part).join(file);
            if graph.file_system().exists(&path) {
                set_unlisted_aside(&**graph.file_system(), &path)?;
            }
        }
    }
    catalog.settle_tensors(&text, &names)?;
    Ok(stored)
}

/// Quarantines a file of a tensor that `graph.toml` does not list.
pub(super) fn set_unlisted_aside(fs: &dyn FileSystem, path: &Path) -> Result<(), StoreError> {
    let to = quarantine(fs, path)?;
    let (path, to) = (path.display(), to.display());
    tracing::warn!("{path}: its tensor is not in graph.toml; moved to {to}");
    Ok(())
}
