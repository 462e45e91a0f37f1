//! Garbage collection: publications and chunks that no reader needs are removed.
//!
//! A run goes through these steps. `lease` has why the order of the second to the last one is safe
//! for writers.
//!
//! 1. Pins are set and removed as requested.
//! 2. Leases of uploads are read.
//! 3. The publications of all partitions are read: those that the last run has left, and later ones.
//!    What is to be removed is planned, once for all partitions.
//! 4. That is written as `condemned/RUN`. Then pins are read once more: who pins a version looks for
//!    what is condemned after writing the pin, and takes it back. So of a pin and a run at the same
//!    time at least one gives way, and no pin is reported that a run does not keep.
//! 5. Tombstones replace the publications of a partition. Then the chunks that no publication names
//!    are removed. Tombstones come first, so that what is published stays whole wherever a run is
//!    cut off.
//! 6. `part-NNN/floor` records which publications are left, so that the next run reads no tombstones.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lodestore_graph::PartId;
use serde::Serialize;
use uuid::Uuid;

use crate::bucket::{Bucket, BucketTime, Listed, N_PARALLEL};
use crate::error::BucketError;
use crate::gc_plan::{GRACE, Keep, PartHistory, removed_publications};
use crate::layout::{
    CONDEMNED_PREFIX, ChunkId, PINS_PREFIX, UploadId, chunk_of_key, chunks_prefix, condemned_key,
    floor_key, pin_key, publication_key, publications_prefix, sequence_of_key,
};
use crate::publication::{
    Floor, GraphIdentity, Published, condemned_from_bytes, condemned_to_bytes, pin_from_bytes,
    pin_to_bytes,
};
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

/// Partitions that are collected in parallel. The names of their chunks are in memory.
const N_PARTS: usize = 4;
/// Most bytes of a pin.
const PIN_BYTES_MAX: u64 = 4096;
/// Most bytes of a list of publications.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// Publications, by partition.
type Sequences = BTreeSet<(PartId, u64)>;

/// What a run removes of a partition, and what it must leave.
struct Collected<'a> {
    history: &'a PartHistory,
    removed: Vec<u64>,
    held: &'a BTreeSet<UploadId>,
}

impl GcReport {
    /// Adds the counts of a partition.
    fn add(&mut self, part: &Self) {
        self.publications += part.publications;
        self.publications_kept += part.publications_kept;
        self.chunks += part.chunks;
        self.bytes += part.bytes;
        self.chunks_kept += part.chunks_kept;
    }
}

impl Bucket {
    /// Removes publications that no reader needs, and chunks that no publication names. A run that
    /// was cut off is completed by the next one.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, BucketError> {
        self.run(async {
            let graph = self.graph().await?;
            let pins = self.change_pins(graph, options).await?;
            if !options.is_dry_run {
                self.remove_old_leases(options.grace).await?;
            }
            let held: BTreeSet<UploadId> =
                self.leased_uploads(options.grace).await?.into_keys().collect();
            let read = |part| self.history(graph, part);
            let parts: Vec<PartHistory> =
                stream::iter(graph.parts()).map(read).buffered(N_PARALLEL).try_collect().await?;
            let planned = plan(&parts, &pins, options);
            let mut report = GcReport { pins, ..GcReport::default() };
            let run = condemned_key(Uuid::new_v4());
            let removed = match options.is_dry_run {
                true => planned,
                false => self.condemn(&run, planned, &parts, options, &mut report.pins).await?,
            };
            let mut collected = Vec::with_capacity(parts.len());
            for history in &parts {
                let part = history.part;
                let of_part = removed.range((part, 0)..=(part, u64::MAX));
                let removed = of_part.map(|(_, sequence)| *sequence).collect();
                collected.push(Collected { history, removed, held: &held });
            }
            let collect = |of_part| self.collect(graph, of_part, options);
            let mut under_way = stream::iter(&collected).map(collect).buffered(N_PARTS);
            while let Some(of_part) = under_way.try_next().await? {
                report.add(&of_part);
            }
            if !options.is_dry_run {
                self.remove(&run).await?;
            }
            Ok(report)
        })
    }

    /// Writes which publications this run removes, and returns those that no pin keeps which was
    /// set before that.
    async fn condemn(
        &self,
        run: &str,
        planned: Sequences,
        parts: &[PartHistory],
        options: &GcOptions,
        pins: &mut BTreeMap<String, u32>,
    ) -> Result<Sequences, BucketError> {
        let time = self.time().await?;
        for listed in self.list(CONDEMNED_PREFIX, time).await? {
            // Of a run that was cut off: this one does what is left.
            if listed.age > options.grace {
                self.remove(&listed.key).await?;
            }
        }
        if planned.is_empty() {
            return Ok(planned);
        }
        self.write(run, Bytes::from(condemned_to_bytes(&planned))).await?;
        let before = pins.len();
        for (name, version) in self.pins(self.time().await?).await? {
            pins.entry(name).or_insert(version);
        }
        match pins.len() == before {
            true => Ok(planned),
            // More pins keep more.
            false => Ok(&planned & &plan(parts, pins, options)),
        }
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
            if !pins.contains_key(name) {
                let known = pins.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let known = if known.is_empty() { "none".to_owned() } else { known };
                return Err(self.refused(format!("no pin {name:?} to remove; there are: {known}")));
            }
            if !options.is_dry_run {
                self.remove(&pin_key(name)).await?;
            }
            pins.remove(name);
        }
        for (name, version) in &options.pin {
            if let Some(&pinned) = pins.get(name).filter(|pinned| *pinned != version) {
                return Err(self.refused(format!(
                    "pin {name:?} keeps version {pinned}, not {version}; unpin {name:?} first, or choose \
                     another name"
                )));
            }
            // Fails for a version that is not complete.
            self.complete(graph, Some(*version)).await?;
            if !options.is_dry_run && !pins.contains_key(name) {
                self.pin(graph, name, *version).await?;
            }
            pins.insert(name.clone(), *version);
        }
        Ok(pins)
    }

    /// Sets a pin of a complete version; takes it back where another run removes that version.
    async fn pin(&self, graph: GraphIdentity, name: &str, version: u32) -> Result<(), BucketError> {
        self.write(&pin_key(name), Bytes::from(pin_to_bytes(version))).await?;
        let checked = self.check_is_not_condemned(graph, version).await;
        if checked.is_err() {
            self.remove(&pin_key(name)).await?;
        }
        checked
    }

    async fn check_is_not_condemned(
        &self,
        graph: GraphIdentity,
        version: u32,
    ) -> Result<(), BucketError> {
        let condemned = self.condemned().await?;
        // After that: a run that has ended has left tombstones.
        let sources = self.complete(graph, Some(version)).await?;
        let is_condemned = |(part, sequence)| condemned.contains(&(part, sequence));
        match sources.iter().map(|it| (it.part(), it.sequence)).any(is_condemned) {
            false => Ok(()),
            true => Err(self.refused(format!(
                "garbage collection is removing version {version}, or was cut off while it did; it is \
                 not pinned"
            ))),
        }
    }

    /// Returns the publications that runs of garbage collection are removing.
    async fn condemned(&self) -> Result<Sequences, BucketError> {
        let mut condemned = Sequences::new();
        for listed in self.list(CONDEMNED_PREFIX, self.time().await?).await? {
            // The run has ended since it was listed.
            let Some(bytes) = self.read(&listed.key, LIST_BYTES_MAX).await? else { continue };
            let of_run = condemned_from_bytes(&bytes);
            condemned.extend(of_run.map_err(|error| self.unsealed(&listed.key, error))?);
        }
        Ok(condemned)
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

    /// Returns the publications of a partition, without tombstones of earlier runs. Those that a
    /// late list does not have are taken for new.
    async fn history(
        &self,
        graph: GraphIdentity,
        part: PartId,
    ) -> Result<PartHistory, BucketError> {
        // The time of each list: a run may take longer than clocks may be apart.
        let time = self.time().await?;
        let listed = self.list_by_age(&publications_prefix(part), time).await?;
        let listed_last = listed.iter().filter_map(|it| sequence_of_key(&it.key)).max();
        let ages: BTreeMap<String, Duration> =
            listed.into_iter().map(|it| (it.key, it.age)).collect();
        let last = self.last(graph, part, 0).await?;
        let last = last.map_or(0, |last| last.publication.sequence);
        let floor = self.floor(part).await?;
        let after = listed_last.max(Some(floor.up_to));
        // Without its publication a chunk would be garbage.
        if let Some(after) = after.filter(|after| *after > last) {
            let reason = format!("it is missing, and {after} is there; nothing was removed");
            return Err(self.damaged(&publication_key(part, last + 1), reason));
        }
        let read = |sequence: u64| async move {
            let published = self.publication(graph, part, sequence).await?;
            let (published, _) = published.ok_or_else(|| self.gap(part, sequence))?;
            let commits = published.live().map(|live| live.manifest.commits().collect::<Vec<_>>());
            // The lists of chunks are dropped: together they may be large.
            let seen = Seen::new(sequence, &published);
            Ok::<_, BucketError>((seen, commits.unwrap_or_default()))
        };
        let sequences = floor.left.into_iter().chain(floor.up_to + 1..=last);
        let mut read = stream::iter(sequences).map(read).buffered(N_PARALLEL);
        let (mut publications, mut commits) = (Vec::new(), BTreeMap::new());
        while let Some((seen, of_it)) = read.try_next().await? {
            publications.push(seen);
            commits.extend(of_it.into_iter().map(|it| (it.number, it.commit)));
        }
        let age = |seen: &Seen| ages.get(&publication_key(part, seen.sequence)).copied();
        let ages = publications.iter().map(|seen| age(seen).unwrap_or_default()).collect();
        Ok(PartHistory { part, publications, ages, commits })
    }

    /// Returns which publications of a partition earlier runs have left.
    async fn floor(&self, part: PartId) -> Result<Floor, BucketError> {
        let key = floor_key(part);
        match self.read(&key, LIST_BYTES_MAX).await? {
            Some(bytes) => Floor::from_bytes(&bytes).map_err(|error| self.unsealed(&key, error)),
            None => Ok(Floor::default()),
        }
    }

    fn gap(&self, part: PartId, sequence: u64) -> BucketError {
        self.damaged(&publication_key(part, sequence), "it is missing; numbers have no gap")
    }

    /// Removes publications of a partition, then the old chunks that none of the others names, also
    /// of those that were published since, and that no upload holds.
    async fn collect(
        &self,
        graph: GraphIdentity,
        collected: &Collected<'_>,
        options: &GcOptions,
    ) -> Result<GcReport, BucketError> {
        let Collected { history, removed, held } = collected;
        let mut report = GcReport::default();
        let part = history.part;
        let live = history.publications.iter().filter(|seen| seen.coverage.is_some());
        let kept: Vec<u64> =
            live.map(|seen| seen.sequence).filter(|it| !removed.contains(it)).collect();
        report.publications += removed.len() as u64;
        report.publications_kept += kept.len() as u64;
        // Before the chunks are listed: one that is listed later is younger than the grace period.
        let named = self.named_chunks(graph, part, kept.clone()).await?;
        let time = self.time().await?;
        let listed = self.list_by_age(&chunks_prefix(part), time).await?;
        let mut garbage = Vec::new();
        for Listed { key, n_bytes, age, .. } in listed {
            let Some(chunk) = chunk_of_key(&key) else { continue };
            match age > options.grace && !named.contains(&chunk) && !held.contains(&chunk.upload) {
                true => garbage.push((key, chunk, n_bytes)),
                false => report.chunks_kept += 1,
            }
        }
        if options.is_dry_run {
            report.chunks += garbage.len() as u64;
            report.bytes += garbage.iter().map(|(.., n_bytes)| n_bytes).sum::<u64>();
            return Ok(report);
        }
        for seen in history.publications.iter().filter(|seen| removed.contains(&seen.sequence)) {
            let tombstone = Published::tombstone(seen.sequence, seen.version);
            self.write(&publication_key(part, seen.sequence), Bytes::from(tombstone)).await?;
        }
        if let Some(newest) = history.publications.last().filter(|_| !removed.is_empty()) {
            let floor = Floor { up_to: newest.sequence, left: kept };
            self.write(&floor_key(part), Bytes::from(floor.to_bytes())).await?;
        }
        let each = |(key, chunk, n_bytes): (String, ChunkId, u64)| async move {
            let is_removed = self.remove_chunk(&key, &chunk, time, options.grace).await?;
            Ok::<_, BucketError>(is_removed.then_some(n_bytes))
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
        Ok(report)
    }

    /// Removes a chunk; returns whether it is gone. A release that does not number its uploads may
    /// have written one again since it was listed: then it stays.
    async fn remove_chunk(
        &self,
        key: &str,
        chunk: &ChunkId,
        time: BucketTime,
        grace: Duration,
    ) -> Result<bool, BucketError> {
        if chunk.upload == UploadId::UNNUMBERED
            && self.age(key, time).await?.is_none_or(|age| age <= grace)
        {
            return Ok(false);
        }
        self.remove(key).await?;
        Ok(true)
    }

    /// Returns the chunks of these publications, and of those behind the last one.
    async fn named_chunks(
        &self,
        graph: GraphIdentity,
        part: PartId,
        mut sequences: Vec<u64>,
    ) -> Result<HashSet<ChunkId>, BucketError> {
        let known = sequences.last().copied().unwrap_or(0);
        let newest = self.last(graph, part, known).await?;
        sequences.extend(known + 1..=newest.map_or(known, |last| last.publication.sequence));
        let read = |sequence: u64| async move {
            let published = self.publication(graph, part, sequence).await?;
            let (published, _) = published.ok_or_else(|| self.gap(part, sequence))?;
            let chunks = published.live().into_iter().flat_map(|live| live.chunks().copied());
            Ok::<Vec<ChunkId>, BucketError>(chunks.collect())
        };
        let mut read = stream::iter(sequences).map(read).buffer_unordered(N_PARALLEL);
        let mut named = HashSet::new();
        while let Some(chunks) = read.try_next().await? {
            named.extend(chunks);
        }
        Ok(named)
    }
}

/// Returns the publications that no reader needs.
fn plan(parts: &[PartHistory], pins: &BTreeMap<String, u32>, options: &GcOptions) -> Sequences {
    let pinned = pins.values().copied().collect();
    let keep = Keep { n_versions: options.keep, pinned, grace: options.grace };
    let removed = removed_publications(parts, &keep);
    let of_part = |(part, removed): (&PartHistory, Vec<u64>)| {
        let part = part.part;
        removed.into_iter().map(move |sequence| (part, sequence))
    };
    parts.iter().zip(removed).flat_map(of_part).collect()
}
