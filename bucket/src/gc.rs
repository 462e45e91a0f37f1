//! Garbage collection: publications and chunks that no reader needs are removed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lodestore_graph::PartId;
use serde::Serialize;

use crate::bucket::{Bucket, BucketTime, N_PARALLEL};
use crate::error::BucketError;
use crate::gc_plan::{Candidate, GRACE, Garbage, Keep, removed_chunks, removed_publications};
use crate::layout::{
    ChunkId, PINS_PREFIX, chunk_key, chunk_of_key, chunks_prefix, pin_key, publication_key,
    publications_prefix, sequence_of_key,
};
use crate::publication::{GraphIdentity, Published, pin_from_bytes, pin_to_bytes};

/// What is kept.
#[derive(Clone, Debug)]
pub struct GcOptions {
    /// Number of complete versions, at least 1.
    pub keep: usize,
    /// Time for which what was replaced, or is not published yet, stays.
    pub grace: Duration,
    /// Pins that are set before, by name: versions that are kept until their pins are removed.
    pub pin: Vec<(String, u32)>,
    /// Pins that are removed before.
    pub unpin: Vec<String>,
    /// Reports, and removes nothing.
    pub is_dry_run: bool,
}

/// What garbage collection has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Publications removed.
    pub publications: u64,
    /// Publications that are left.
    pub publications_kept: u64,
    /// Chunks removed.
    pub chunks: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Chunks that are left.
    pub chunks_kept: u64,
    /// Versions that pins keep, by name.
    pub pins: BTreeMap<String, u32>,
}

impl Default for GcOptions {
    fn default() -> Self {
        let (pin, unpin) = (Vec::new(), Vec::new());
        Self { keep: 1, grace: GRACE, pin, unpin, is_dry_run: false }
    }
}

/// Most bytes of a pin.
const PIN_BYTES_MAX: u64 = 4096;

/// A listed chunk.
type ListedChunk = (ChunkId, u64, Duration);

impl Bucket {
    /// Removes publications that no reader needs, and chunks that no publication names. A run that was
    /// cut off is completed by the next one.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, BucketError> {
        self.run(async {
            let graph = self.graph().await?;
            let pins = self.change_pins(graph, options).await?;
            let mut parts = Vec::new();
            for part in graph.parts() {
                // The time of each list: a run may take longer than clocks may be apart.
                let time = self.time().await?;
                parts.push(self.candidates(graph, part, time).await?);
            }
            let pinned = pins.values().copied().collect();
            let keep = Keep { n_versions: options.keep, pinned, grace: options.grace };
            let removed = removed_publications(&parts, &keep);
            let mut report = GcReport { pins, ..GcReport::default() };
            for ((part, candidates), publications) in graph.parts().zip(&parts).zip(removed) {
                let time = self.time().await?;
                let listed = self.listed_chunks(part, time).await?;
                let ages: Vec<(ChunkId, Duration)> =
                    listed.iter().map(|(chunk, _, age)| (*chunk, *age)).collect();
                let chunks = removed_chunks(candidates, &publications, &ages, options.grace);
                let garbage = Garbage { publications, chunks };
                report.note(candidates, &garbage, &listed);
                if !options.is_dry_run {
                    self.remove_garbage(part, &garbage, time, options.grace).await?;
                }
            }
            Ok(report)
        })
    }

    /// Sets and removes pins, and returns those that are there then. A dry run changes none.
    async fn change_pins(
        &self,
        graph: GraphIdentity,
        options: &GcOptions,
    ) -> Result<BTreeMap<String, u32>, BucketError> {
        let time = self.time().await?;
        let mut pins = self.pins(time).await?;
        for name in &options.unpin {
            if !options.is_dry_run {
                self.remove(&pin_key(name)).await?;
            }
            pins.remove(name);
        }
        for (name, version) in &options.pin {
            if let Some(&pinned) = pins.get(name).filter(|pinned| *pinned != version) {
                let (url, name) = (self.url().to_owned(), name.clone());
                return Err(BucketError::Pinned { url, name, pinned, wanted: *version });
            }
            // Fails for a version that is not complete.
            self.complete(graph, Some(*version)).await?;
            if !options.is_dry_run {
                self.write(&pin_key(name), Bytes::from(pin_to_bytes(*version))).await?;
            }
            pins.insert(name.clone(), *version);
        }
        Ok(pins)
    }

    async fn pins(&self, time: BucketTime) -> Result<BTreeMap<String, u32>, BucketError> {
        let mut pins = BTreeMap::new();
        for listed in self.list(PINS_PREFIX, time).await? {
            // Removed since it was listed.
            let Some(bytes) = self.read(&listed.key, PIN_BYTES_MAX).await? else { continue };
            let version =
                pin_from_bytes(&bytes).map_err(|error| self.unsealed(&listed.key, error))?;
            let name = listed.key.rsplit('/').next().unwrap_or_default().to_owned();
            pins.insert(name, version);
        }
        Ok(pins)
    }

    /// Returns the publications of a partition, ascending. Those that a late list does not have are
    /// taken for new.
    async fn candidates(
        &self,
        graph: GraphIdentity,
        part: PartId,
        time: BucketTime,
    ) -> Result<Vec<Candidate>, BucketError> {
        let listed = self.list(&publications_prefix(part), time).await?;
        let listed_last = listed.iter().filter_map(|it| sequence_of_key(&it.key)).max();
        let ages: BTreeMap<String, Duration> =
            listed.into_iter().map(|it| (it.key, it.age)).collect();
        let newest = self.newest(graph, part, 0).await?;
        let last = newest.and_then(|(it, _)| it.live().map(|live| live.sequence)).unwrap_or(0);
        // Without its publication a chunk would be garbage.
        if let Some(after) = listed_last.filter(|after| *after > last) {
            let reason = format!("it is missing, and {after} is there; nothing was removed");
            return Err(self.damaged(&publication_key(part, last + 1), reason));
        }
        let mut candidates = Vec::new();
        for sequence in 1..=last {
            let key = publication_key(part, sequence);
            let Some((published, _)) = self.publication(graph, part, sequence).await? else {
                return Err(self.damaged(&key, "it is missing; numbers have no gap"));
            };
            let (version, age) = (published.version(), ages.get(&key).copied().unwrap_or_default());
            let chunks = published.live().map(|live| live.chunks().copied().collect());
            candidates.push(Candidate { sequence, version, age, chunks });
        }
        Ok(candidates)
    }

    async fn listed_chunks(
        &self,
        part: PartId,
        time: BucketTime,
    ) -> Result<Vec<ListedChunk>, BucketError> {
        let listed = self.list(&chunks_prefix(part), time).await?;
        let chunk = |it: crate::bucket::Listed| Some((chunk_of_key(&it.key)?, it.n_bytes, it.age));
        Ok(listed.into_iter().filter_map(chunk).collect())
    }

    /// Removes publications first: none that is left names a chunk that is gone. A chunk that a
    /// push has written again since it was listed stays.
    async fn remove_garbage(
        &self,
        part: PartId,
        garbage: &Garbage,
        time: BucketTime,
        grace: Duration,
    ) -> Result<(), BucketError> {
        for &(sequence, version) in &garbage.publications {
            let tombstone = Published::tombstone(sequence, version);
            self.write(&publication_key(part, sequence), Bytes::from(tombstone)).await?;
        }
        let keys: Vec<String> = garbage.chunks.iter().map(|it| chunk_key(part, it)).collect();
        let each = |key: String| async move {
            match self.age(&key, time).await? {
                Some(age) if age > grace => self.remove(&key).await,
                _ => Ok(()),
            }
        };
        stream::iter(keys).map(each).buffer_unordered(N_PARALLEL).try_collect().await
    }
}

impl GcReport {
    fn note(&mut self, candidates: &[Candidate], garbage: &Garbage, listed: &[ListedChunk]) {
        let n_live = candidates.iter().filter(|it| it.chunks.is_some()).count();
        self.publications += garbage.publications.len() as u64;
        self.publications_kept += (n_live - garbage.publications.len()) as u64;
        self.chunks += garbage.chunks.len() as u64;
        self.chunks_kept += (listed.len() - garbage.chunks.len()) as u64;
        let gone = listed.iter().filter(|(chunk, ..)| garbage.chunks.binary_search(chunk).is_ok());
        self.bytes += gone.map(|(_, n_bytes, _)| n_bytes).sum::<u64>();
    }
}
