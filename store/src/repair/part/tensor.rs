//! One tensor of a partition: which segment it has, and what must be done to the file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use lodestore_graph::PartId;
use uuid::Uuid;

use super::super::actions::RepairActions;
use super::super::report::Lost;
use super::super::segment::{Assessment, Expected, Placeholder, Recovered, look, write};
use super::contents::Contents;
use crate::catalog::{SegmentRecord, TensorRecord};
use crate::codec::SegmentCodec;
use crate::error::StoreError;
use crate::graph::{Graph, segment_file};
use crate::segment::{Segment, SegmentIdentity};
use crate::tensor::TensorSpec;

/// Planned work for a tensor.
pub(super) struct TensorWork {
    /// Required contents of the catalog.
    pub(super) record: TensorRecord,
    path: PathBuf,
    file: FileWork,
    /// Other segments of the tensor, where one of them may be the only copy of a row.
    strays: Vec<PathBuf>,
    /// Rows of the segment are lost.
    pub(super) has_losses: bool,
}

/// Planned work for a file.
enum FileWork {
    /// It stays as it is.
    Keep,
    /// It is put together again.
    Mend(Box<Recovered>),
    /// A file in which no page passes takes its place.
    Placeholder(Placeholder),
}

/// A tensor that is being looked at.
pub(super) struct Look<'a> {
    pub(super) actions: &'a mut RepairActions,
    pub(super) graph: &'a Graph,
    pub(super) part: PartId,
    pub(super) spec: &'a TensorSpec,
    pub(super) part_dir: &'a Path,
}

impl TensorWork {
    /// Looks at the segment of a tensor and decides; notes what is lost.
    pub(super) fn plan(
        actions: &mut RepairActions,
        graph: &Graph,
        part: PartId,
        spec: &TensorSpec,
        contents: &Contents,
    ) -> Result<Self, StoreError> {
        let n_told = actions.report.lost.len();
        let mut look = Look { actions, graph, part, spec, part_dir: &contents.part_dir };
        let mut work = match contents.record(&spec.name) {
            Some(record) => look.recorded(record, contents)?,
            None => look.unrecorded()?,
        };
        work.has_losses = look.actions.report.lost.len() > n_told;
        if contents.broken.is_some() || work.has_losses {
            work.strays = look.strays(&work.record.record.file)?;
        }
        Ok(work)
    }

    /// Moves segments out of the way that nothing names any more.
    pub(super) fn set_strays_aside(&self, actions: &mut RepairActions) -> Result<(), StoreError> {
        self.strays.iter().try_for_each(|stray| actions.quarantine(stray))
    }

    /// Does what is to be done to the file.
    pub(super) fn publish(self, actions: &mut RepairActions) -> Result<(), StoreError> {
        match self.file {
            FileWork::Keep => Ok(()),
            FileWork::Placeholder(placeholder) => {
                let action = "replaced by a file that has no rows, so that all others are served";
                actions.publish(&self.path, action.to_owned(), &mut |out| {
                    out.append(&placeholder.bytes)
                })
            }
            FileWork::Mend(mended) => {
                let file = actions.device.open(&self.path);
                let file = file.map_err(StoreError::io(&self.path, "open"))?;
                let proof = if mended.proven {
                    "proven by the digest of its tables"
                } else {
                    "no digest knows its tables: pages pass that agree with what is left of them"
                };
                let action = format!("{} rebuilt, {proof}", mended.broken.join(", "));
                actions.publish(&self.path, action, &mut |out| write(&mended, &*file, out))
            }
        }
    }
}

impl Look<'_> {
    /// Returns a tensor whose segment the catalog names.
    fn recorded(
        &mut self,
        record: &TensorRecord,
        contents: &Contents,
    ) -> Result<TensorWork, StoreError> {
        // Who brings back what was lost is believed, if it is that.
        if let Some(original) = &record.lost {
            let record = TensorRecord { record: original.clone(), lost: None, ..record.clone() };
            if let Assessment::Recovered(mended) = self.look(&record)?
                && mended.proven
            {
                let path = self.part_dir.join(&record.record.file);
                let action = match mended.lost_pages.is_empty() {
                    true => format!("the lost rows of `{}` are back", record.tensor),
                    false => format!("lost rows of `{}` are back, not all", record.tensor),
                };
                let action = format!("{action}: recorded again");
                self.actions.note(&path, action);
                return Ok(self.mend(record, *mended));
            }
        }
        let found = self.look(record)?;
        if let Some((later, mended)) = self.later(record, &found, contents)? {
            let path = self.part_dir.join(&later.record.file);
            let action = format!("it is of a later version than the recorded {}", record.version);
            self.actions.note(&path, format!("{action}, and takes its place"));
            return Ok(self.mend(later, *mended));
        }
        match found {
            Assessment::Recovered(mended) => Ok(self.mend(record.clone(), *mended)),
            Assessment::Hopeless(reason) => self.give_up(record, reason),
        }
    }

    /// Returns a tensor that the catalog does not name a segment of: the newest file that can be
    /// used.
    fn unrecorded(&mut self) -> Result<TensorWork, StoreError> {
        if let Some((record, mended)) = self.newest(0)? {
            return Ok(self.mend(record, *mended));
        }
        let (version, tensor) = (1, self.spec.name.clone());
        let seed = blake3::hash(format!("{}/{}/{tensor}", self.graph.uuid(), self.part).as_bytes());
        let mut segment = [0; 16];
        segment.copy_from_slice(&seed.as_bytes()[..16]);
        let identity = self.identity(Uuid::from_bytes(segment), version);
        let record = self.record(&identity, [0; 32], segment_file(&tensor, version));
        let record = TensorRecord { tensor, version, record, lost: None };
        self.give_up(&record, "no file holds it".to_owned())
    }

    fn look(&self, record: &TensorRecord) -> Result<Assessment, StoreError> {
        let identity = self.identity(record.record.segment, record.version);
        let expected = Expected { identity, digest: Some(record.record.digest) };
        let path = self.part_dir.join(&record.record.file);
        look(&*self.actions.device, &path, &expected, self.actions.n_threads)
    }

    /// Takes a segment as it can be mended, and reports which rows of it are lost.
    fn mend(&mut self, mut record: TensorRecord, mended: Recovered) -> TensorWork {
        let path = self.part_dir.join(&record.record.file);
        if !mended.lost_pages.is_empty() {
            let first = self.graph.book().range(self.part).start;
            let rows = mended.lost_pages.iter().map(|pages| mended.layout.rows_on(pages));
            let nodes = rows.map(|rows: Range<u32>| first + rows.start..first + rows.end);
            let n_pages: u64 = mended.lost_pages.iter().map(|pages| pages.end - pages.start).sum();
            let reason = match &record.lost {
                Some(_) => {
                    "given up by an earlier repair; bring the file back and repair again".into()
                }
                None => format!("damaged pages: {n_pages}; they stay, and fail when read"),
            };
            self.actions.note_lost(Lost::rows(&path, &self.spec.name, nodes, reason));
        }
        self.tell_bad_groups(&record, &mended);
        let digest = mended.digest();
        if digest != record.record.digest {
            let original = std::mem::replace(&mut record.record.digest, digest);
            let original = SegmentRecord { digest: original, ..record.record.clone() };
            record.lost.get_or_insert(original);
        }
        let keep = mended.broken.is_empty();
        let file = if keep { FileWork::Keep } else { FileWork::Mend(Box::new(mended)) };
        TensorWork { record, path, file, strays: Vec::new(), has_losses: false }
    }

    /// Reports row groups on sound pages that cannot be unpacked: no disk does that, and there is
    /// no remedy.
    fn tell_bad_groups(&mut self, record: &TensorRecord, mended: &Recovered) {
        let is_whole = mended.broken.is_empty() && mended.lost_pages.is_empty();
        if mended.codec == SegmentCodec::Raw || !is_whole {
            return;
        }
        let path = self.part_dir.join(&record.record.file);
        let Ok(segment) = Segment::open(&*self.actions.device, &path, &mended.identity) else {
            return;
        };
        let first = self.graph.book().range(self.part).start;
        let mut nodes = Vec::new();
        segment.check_groups(0..u32::MAX, &mut Vec::new(), &mut |page, _| {
            let rows = segment.layout().rows_on(&(page..page + 1));
            nodes.push(first + rows.start..first + rows.end);
        });
        if !nodes.is_empty() {
            let reason = "row groups cannot be unpacked although their pages are sound".to_owned();
            self.actions.note_lost(Lost::rows(&path, &self.spec.name, nodes, reason));
        }
    }

    /// Gives up all rows of a segment.
    fn give_up(&mut self, record: &TensorRecord, reason: String) -> Result<TensorWork, StoreError> {
        let path = self.part_dir.join(&record.record.file);
        let range = self.graph.book().range(self.part);
        if !range.is_empty() {
            self.actions.note_lost(Lost::rows(&path, &self.spec.name, [range], reason.clone()));
        }
        // It is the original's: that of a stub would grow with every repair.
        let original = record.lost.as_ref().unwrap_or(&record.record);
        let lost = self.identity(original.segment, record.version);
        let unrepairable = || StoreError::Unrepairable { file: path.clone(), reason };
        let placeholder = Placeholder::of(&lost).ok_or_else(unrepairable)?;
        let file = original.file.clone();
        let stub_record = self.record(&placeholder.identity, placeholder.digest, file);
        let record =
            TensorRecord { record: stub_record, lost: Some(original.clone()), ..record.clone() };
        let (file, strays) = (FileWork::Placeholder(placeholder), Vec::new());
        Ok(TensorWork { record, path, file, strays, has_losses: true })
    }

    pub(super) fn identity(&self, segment: Uuid, version: u32) -> SegmentIdentity {
        let range = self.graph.book().range(self.part);
        SegmentIdentity {
            graph: self.graph.uuid(),
            segment,
            part: self.part,
            version,
            tensor: self.spec.clone(),
            n_rows: range.end - range.start,
            delta_of: None,
        }
    }

    pub(super) fn record(
        &self,
        identity: &SegmentIdentity,
        digest: [u8; 32],
        file: String,
    ) -> SegmentRecord {
        let (segment, n_rows) = (identity.segment, identity.n_rows);
        let row_bytes = self.spec.row_bytes() as u32;
        SegmentRecord { segment, n_rows, row_bytes, digest, file }
    }
}
