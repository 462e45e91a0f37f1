//! Garbage collection: publications and chunks that no reader needs are removed.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lodestore_graph::PartId;
use serde::Serialize;

use crate::bucket::{Bucket, BucketTime, Listed, N_PARALLEL};
use crate::error::BucketError;
use crate::gc_plan::{GRACE, Keep, PartHistory, removed_publications};
use crate::layout::{
    ChunkId, PINS_PREFIX, chunk_of_key, chunks_prefix, pin_key, publication_key,
    publications_prefix, sequence_of_key,
};
use crate::publication::{GraphIdentity, Published, pin_from_bytes, pin_to_bytes};
use crate::search::Seen;

/// The versions that garbage collection keeps.
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

/// The result of garbage collection.
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

impl Bucket {
    /// Removes publications that no reader needs, and chunks that no publication names. A run that
    /// was cut off is completed by the next one.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, BucketError> {
        self.run(async {
            let graph = self.graph().await?;
            let pins = self.change_pins(graph, options).await?;
            let mut parts = Vec::new();
            for part in graph.parts() {
                // The time of each list: a run may take longer than clocks may be apart.
                let time = self.time().await?;
                parts.push(self.history(graph, part, time).await?);
            }
            let mut report = GcReport { pins, ..GcReport::default() };
            for (at, history) in parts.iter().enumerate() {
                // Others may have pinned versions since.
                let pinned = self.pins(self.time().await?).await?.into_values();
                let pinned = pinned.chain(report.pins.values().copied()).collect();
                let keep = Keep { n_versions: options.keep, pinned, grace: options.grace };
                let removed = removed_publications(&parts, &keep);
                self.collect(graph, history, &removed[at], options, &mut report).await?;
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
                return Err(self.refused(format!(
                    "pin {name:?} keeps version {pinned}, not {version}; remove it by --unpin {name}, or \
                     take another name"
                )));
            }
            // Fails for a version that is not complete.
            self.complete(graph, Some(*version)).await?;
            if !options.is_dry_run {
                self.write(&pin_key(name), Bytes::from(pin_to_bytes(*version))).await?;
                // Another run may have removed it before it was pinned.
                self.complete(graph, Some(*version)).await?;
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

    /// Returns the publications of a partition. Those that a late list does not have are taken for
    /// new.
    async fn history(
        &self,
        graph: GraphIdentity,
        part: PartId,
        time: BucketTime,
    ) -> Result<PartHistory, BucketError> {
        let listed = self.list_by_age(&publications_prefix(part), time).await?;
        let listed_last = listed.iter().filter_map(|it| sequence_of_key(&it.key)).max();
        let ages: BTreeMap<String, Duration> =
            listed.into_iter().map(|it| (it.key, it.age)).collect();
        let last = self.last(graph, part, 0).await?;
        let last = last.map_or(0, |last| last.publication.sequence);
        // Without its publication a chunk would be garbage.
        if let Some(after) = listed_last.filter(|after| *after > last) {
            let reason = format!("it is missing, and {after} is there; nothing was removed");
            return Err(self.damaged(&publication_key(part, last + 1), reason));
        }
        let read = |sequence: u64| async move {
            let published = self.publication(graph, part, sequence).await?;
            let (published, _) = published.ok_or_else(|| self.gap(part, sequence))?;
            // The lists of chunks are dropped: together they may be large.
            Ok::<_, BucketError>(Seen::new(sequence, &published))
        };
        let publications: Vec<Seen> =
            stream::iter(1..=last).map(read).buffered(N_PARALLEL).try_collect().await?;
        let age = |seen: &Seen| ages.get(&publication_key(part, seen.sequence)).copied();
        let ages = publications.iter().map(|seen| age(seen).unwrap_or_default()).collect();
        Ok(PartHistory { part, publications, ages })
    }

    fn gap(&self, part: PartId, sequence: u64) -> BucketError {
        self.damaged(&publication_key(part, sequence), "it is missing; numbers have no gap")
    }

    /// Removes publications of a partition, then the old chunks that none of the others names, also
    /// of those that were published since. A chunk that was written again since it was listed
    /// stays.
    async fn collect(
        &self,
        graph: GraphIdentity,
        history: &PartHistory,
        removed: &[u64],
        options: &GcOptions,
        report: &mut GcReport,
    ) -> Result<(), BucketError> {
        let part = history.part;
        let live = history.publications.iter().filter(|seen| seen.coverage.is_some());
        let kept: Vec<u64> =
            live.map(|seen| seen.sequence).filter(|it| !removed.contains(it)).collect();
        report.publications += removed.len() as u64;
        report.publications_kept += kept.len() as u64;
        // Before the chunks are listed: one that is listed later is younger than the grace period.
        let named = self.named_chunks(graph, part, kept).await?;
        let time = self.time().await?;
        let listed = self.list_by_age(&chunks_prefix(part), time).await?;
        let mut garbage = Vec::new();
        for Listed { key, n_bytes, age, .. } in listed {
            match chunk_of_key(&key) {
                Some(chunk) if age > options.grace && !named.contains(&chunk) => {
                    garbage.push((key, n_bytes));
                }
                Some(_) => report.chunks_kept += 1,
                None => {}
            }
        }
        if options.is_dry_run {
            report.chunks += garbage.len() as u64;
            report.bytes += garbage.iter().map(|(_, n_bytes)| n_bytes).sum::<u64>();
            return Ok(());
        }
        for seen in history.publications.iter().filter(|seen| removed.contains(&seen.sequence)) {
            let tombstone = Published::tombstone(seen.sequence, seen.version);
            self.write(&publication_key(part, seen.sequence), Bytes::from(tombstone)).await?;
        }
        let each = |(key, n_bytes): (String, u64)| async move {
            match self.age(&key, time).await? {
                Some(age) if age > options.grace => self.remove(&key).await.map(|()| Some(n_bytes)),
                _ => Ok::<_, BucketError>(None),
            }
        };
        let mut under_way = stream::iter(garbage).map(each).buffer_unordered(N_PARALLEL);
        while let Some(is_removed) = under_way.next().await {
            if let Some(n_bytes) = is_removed? {
                report.chunks += 1;
                report.bytes += n_bytes;
            } else {
                report.chunks_kept += 1;
            }
        }
        Ok(())
    }

    /// Returns the chunks of these publications, and of those behind the last one.
    async fn named_chunks(
        &self,
        graph: GraphIdentity,
        part: PartId,
        mut sequences: Vec<u64>,
    ) -> Result<HashSet<ChunkId>, BucketError> {
        let mut named = HashSet::new();
        let known = sequences.last().copied().unwrap_or(0);
        let newest = self.last(graph, part, known).await?;
        sequences.extend(known + 1..=newest.map_or(known, |last| last.publication.sequence));
        for sequence in sequences {
            let published = self.publication(graph, part, sequence).await?;
            let (published, _) = published.ok_or_else(|| self.gap(part, sequence))?;
            named.extend(published.live().into_iter().flat_map(|live| live.chunks().copied()));
        }
        Ok(named)
    }
}
