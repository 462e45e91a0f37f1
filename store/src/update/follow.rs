//! Installation of a writer's version on a follower, which has fetched and verified the files.

use std::sync::Arc;

use lodestore_graph::PartId;

use super::garbage::Retired;
use super::{GraphHandle, Layer, OpenMode, PartHandle, TensorHandle, TensorVersion};
use crate::catalog::SegmentRecord;
use crate::error::StoreError;
use crate::follow::{Manifest, ManifestTensor};

impl GraphHandle {
    /// Switches a partition to the version of a manifest, whose files are all in the folder;
    /// returns whether anything has changed. After a crash the partition has that version or the
    /// previous one.
    ///
    /// Fails with [`StoreError::FollowRefused`] for a manifest of another graph, of an earlier
    /// version, or of another history (with another file for versions that are here).
    pub fn install(&self, manifest: &Manifest) -> Result<bool, StoreError> {
        let part = manifest.part;
        if self.mode != OpenMode::Follow {
            let reason = "the graph is not open to follow".to_owned();
            return Err(StoreError::FollowRefused { part, reason });
        }
        self.check_process()?;
        let mut garbage = self.garbage();
        let _alone = self.commits();
        let open = self.part_to_follow(manifest)?;
        open.catalog.check_takes_writes()?;
        let mut changed = Vec::with_capacity(open.tensors.len());
        for (tensor, from) in open.tensors.iter().zip(&manifest.tensors) {
            let current = tensor.current();
            changed.push(self.layers_of(part, &current, from)?);
        }
        let is_same = |(tensor, layers): (&Arc<TensorHandle>, &Vec<Arc<Layer>>)| {
            tensor.current().layers().iter().map(Arc::as_ptr).eq(layers.iter().map(Arc::as_ptr))
        };
        let are_same = open.tensors.iter().zip(&changed).all(is_same);
        if open.version() == manifest.version && are_same {
            return Ok(false);
        }
        let (records, deltas) = manifest.records();
        open.catalog.take_over(&records, &deltas, manifest.version, &manifest.commits)?;
        for (tensor, layers) in open.tensors.iter().zip(changed) {
            let old = tensor.current();
            let is_kept = |layer: &&Arc<Layer>| layers.iter().any(|it| Arc::ptr_eq(it, layer));
            let retired = old.layers().iter().filter(|layer| !is_kept(layer));
            garbage.extend(retired.map(|layer| Retired::new(layer, &open.catalog)));
            tensor.install(&old.with_layers(manifest.version, layers));
        }
        open.set_version(manifest.version_id());
        self.note_version();
        // The switch is done; a sweep that failed is retried after the next version.
        if let Err(error) = self.sweep_garbage(&mut garbage) {
            tracing::warn!("{error}; replaced files are removed with the next version");
        }
        Ok(true)
    }

    /// Returns whether a file of a manifest is one that this graph serves, so that its record is
    /// durable.
    ///
    /// Fails for a manifest that the partition here cannot switch to.
    pub(crate) fn serves_file_of(
        &self,
        manifest: &Manifest,
        name: &str,
    ) -> Result<bool, StoreError> {
        let part = self.part_to_follow(manifest)?;
        let path = self.graph.part_dir(manifest.part).join(name);
        let has_file = |tensor: &Arc<TensorHandle>| {
            tensor.current().layers().iter().any(|layer| layer.segment().path() == path)
        };
        Ok(part.tensors.iter().any(has_file))
    }

    /// Returns the partition of a manifest; fails if the manifest does not continue the partition's
    /// history.
    fn part_to_follow(&self, manifest: &Manifest) -> Result<Arc<PartHandle>, StoreError> {
        let part = manifest.part;
        let open = self.open_part(part)?;
        let refused = |reason: String| Err(StoreError::FollowRefused { part, reason });
        if manifest.graph != self.graph.uuid() {
            return refused(format!(
                "the writer serves graph {}, but this folder has graph {}; follow the graph's own \
                 writer, or use an empty folder",
                manifest.graph,
                self.graph.uuid()
            ));
        }
        let (here, again) = (open.version(), self.advice_to_fetch_again());
        if manifest.version < here {
            return refused(format!(
                "the writer is at version {}, but this folder is at version {here}: was the writer \
                 restored from a copy? {again}",
                manifest.version
            ));
        }
        let are_same = manifest.tensors.len() == open.tensors.len()
            && manifest
                .tensors
                .iter()
                .zip(open.tensors.iter())
                .all(|(theirs, ours)| theirs.is_of(&ours.spec().name, ours.uuid()));
        if !are_same {
            return refused(format!("the writer has other tensors than this graph. {again}"));
        }
        self.check_history(&open, manifest)?;
        for (tensor, from) in open.tensors.iter().zip(&manifest.tensors) {
            for layer in tensor.current().layers() {
                let version = layer.version();
                if !from.covers(layer) {
                    return refused(format!(
                        "the writer has no file with the rows of `{}` that version {version} \
                         changed here: was the tensor written again, or a file of the writer \
                         lost? {again}",
                        from.name
                    ));
                }
                let same = from.record_like(layer);
                if let Some(theirs) = same.filter(|it| it.digest != *layer.segment().digest()) {
                    return refused(format!(
                        "the writer's {} has other rows of version {version} than the file here: \
                         was the writer restored from a copy, and committed since? {again}",
                        theirs.file
                    ));
                }
            }
        }
        Ok(open)
    }

    /// Fails if another commit made the version here than the writer has recorded for it.
    fn check_history(&self, open: &PartHandle, manifest: &Manifest) -> Result<(), StoreError> {
        let (part, here, dir) = (manifest.part, open.version(), self.graph.dir().display());
        // The version of an import has no commit: it is common to every history of the graph.
        let ours = open.commit_of(here)?;
        if !ours.is_known() {
            return Ok(());
        }
        let reason = match manifest.commits.iter().find(|it| it.number == here) {
            Some(theirs) if theirs.commit == ours => return Ok(()),
            Some(_) => format!(
                "the writer made version {here} by another commit than this folder has: was the \
                 writer restored from a copy, and committed since? {}",
                self.advice_to_fetch_again()
            ),
            None => {
                let oldest = manifest.commits.first().map_or(manifest.version, |it| it.number);
                format!(
                    "this folder is at version {here}, but the writer, at version {}, knows \
                     commits only from version {oldest} on: it was repaired, or this server was \
                     away for too long. If the writer is right, stop this server, remove {dir}, \
                     and start it again",
                    manifest.version
                )
            }
        };
        Err(StoreError::FollowRefused { part, reason })
    }

    fn advice_to_fetch_again(&self) -> String {
        let dir = self.graph.dir().display();
        format!("If the writer is right, stop this server, remove {dir}, and start it again")
    }

    /// Returns the layers of a tensor as a manifest lists them: open layers are reused, others are
    /// opened.
    fn layers_of(
        &self,
        part: PartId,
        current: &TensorVersion,
        from: &ManifestTensor,
    ) -> Result<Vec<Arc<Layer>>, StoreError> {
        let spec = self.graph.tensor(&from.name)?;
        let known = |first: u32, version: u32, record: &SegmentRecord| {
            let is_it = |layer: &&Arc<Layer>| {
                (layer.first_version(), layer.version()) == (first, version)
                    && *layer.segment().digest() == record.digest
            };
            current.layers().iter().find(is_it).cloned()
        };
        let (version, base) = &from.base;
        let mut layers = Vec::with_capacity(1 + from.deltas.len());
        layers.push(match known(*version, *version, base) {
            Some(layer) => layer,
            None => {
                let segment = self.graph.open_base(part, spec, *version, base)?;
                Layer::open(segment, *version, self.reader)?
            }
        });
        for delta in &from.deltas {
            layers.push(match known(delta.first, delta.version, &delta.record) {
                Some(layer) => layer,
                None => {
                    let segment = self.graph.open_delta(part, spec, delta)?;
                    Layer::open(segment, delta.first, self.reader)?
                }
            });
        }
        Ok(layers)
    }
}

impl ManifestTensor {
    /// Returns whether the files of the manifest contain the rows of a layer, as that layer or
    /// folded.
    fn covers(&self, layer: &Layer) -> bool {
        let (first, version) = (layer.first_version(), layer.version());
        let is_delta = layer.segment().identity().delta_of.is_some();
        let mut deltas = self.deltas.iter();
        self.base.0 >= version
            || is_delta && deltas.any(|it| it.first <= first && it.version >= version)
    }

    /// Returns the record of the file with the same rows as a layer, if both are of one history:
    /// both have every row, or both have the rows that changed in the same versions.
    fn record_like(&self, layer: &Layer) -> Option<&SegmentRecord> {
        let versions = (layer.first_version(), layer.version());
        if layer.segment().identity().delta_of.is_none() {
            let (version, record) = &self.base;
            return (*version == versions.1).then_some(record);
        }
        let delta = self.deltas.iter().find(|it| (it.first, it.version) == versions);
        delta.map(|delta| &delta.record)
    }
}
