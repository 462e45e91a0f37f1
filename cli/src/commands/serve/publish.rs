//! `lode serve --publish`: each commit is published in a bucket.

use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lodestore_bucket::{Bucket, BucketError, Folder, Publisher, Reached, Turn};
use lodestore_graph::PartId;
use lodestore_server::installer::Publishing;
use lodestore_store::Graph;

use super::config::ServeSettings;
use crate::usage::UsageError;

/// Pause between two looks for a new version, which cost no request.
const PAUSE: Duration = Duration::from_millis(20);
/// First and longest pause after a publication that failed.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Interval at which other writers are looked for where nothing is committed: a request for each
/// partition.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest time for the last versions when the server stops.
const LAST_MAX: Duration = Duration::from_secs(20);
/// Shortest time of --publish-within: the bucket is asked at [`LOOK_EVERY`] at least.
const WITHIN_MIN: Duration = Duration::from_secs(15);
/// Interval at which the time since the bucket has answered is looked at.
const WITHIN_PAUSE: Duration = Duration::from_millis(100);

impl ServeSettings {
    /// Fails for flags that need others, whether those are in a file or not.
    pub(super) fn check_publish(&self) -> Result<()> {
        if self.publish.is_some() && !self.writable {
            return Err(UsageError::new("--publish needs --writable").into());
        }
        if self.take_over && self.publish.is_none() {
            return Err(UsageError::new("--take-over needs --publish").into());
        }
        let Some(within) = self.publish_within.map(Duration::from_secs) else { return Ok(()) };
        if self.publish.is_none() {
            return Err(UsageError::new("--publish-within needs --publish").into());
        }
        if within < WITHIN_MIN {
            let message = format!("--publish-within: expected {WITHIN_MIN:?} or more");
            return Err(UsageError::new(message).into());
        }
        Ok(())
    }

    /// Takes partitions over if that is requested, and finds what is published; `None` without
    /// --publish. Without --parts it concerns all of the graph, or those in the folder with
    /// --local-parts. A bucket that cannot be reached is asked again while the server answers
    /// reads.
    pub(super) fn begin_publishing(&self, graph: &Path) -> Result<Option<Beginning>> {
        let Some(url) = &self.publish else { return Ok(None) };
        let (bucket, parts, local_parts) = (Bucket::open(url)?, self.part_ids(), self.local_parts);
        let within = self.publish_within.map(Duration::from_secs);
        if self.take_over {
            let here = if local_parts { Graph::open(graph)?.local_parts() } else { parts.clone() };
            // All of the graph, unless it is for those of the folder and there is none.
            if !local_parts || !here.is_empty() {
                let taken = bucket.take_over(graph, &here, &mut |_, _| {})?;
                tracing::info!(version = taken.version, files = taken.files, "taken over");
            }
        }
        let folder = if self.take_over { Folder::TakesOver } else { Folder::Continues };
        match Publisher::begin(bucket, graph, &parts, folder) {
            Ok(publisher) => Ok(Some(Beginning { source: Source::Ready(publisher), within })),
            Err(error @ BucketError::Unreachable { .. }) if !self.take_over => {
                tracing::warn!(%error, "serving reads only until the bucket is reached");
                let waiting = Waiting::new(url.clone(), error.to_string());
                Ok(Some(Beginning { source: Source::Waiting(waiting), within }))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What publications begin with.
pub(super) struct Beginning {
    source: Source,
    within: Option<Duration>,
}

enum Source {
    Ready(Publisher),
    /// The bucket was not reached yet.
    Waiting(Waiting),
}

/// A bucket that is asked again until it answers.
struct Waiting {
    url: String,
    error: String,
    next: Instant,
    pause: Duration,
}

impl Beginning {
    /// Returns why no puts are taken before the bucket was reached.
    pub(super) fn refusal(&self) -> Option<String> {
        match &self.source {
            Source::Ready(_) => None,
            Source::Waiting(waiting) => Some(waiting.refusal()),
        }
    }
}

impl Waiting {
    fn new(url: String, error: String) -> Self {
        Self { url, error, next: Instant::now() + RETRY, pause: RETRY }
    }

    fn refusal(&self) -> String {
        format!(
            "what is published is not known yet, and another writer may be there: {}",
            self.error
        )
    }
}

/// The thread that publishes.
pub(super) struct PublishThread {
    stop: Sender<()>,
    end: Receiver<u32>,
    thread: JoinHandle<()>,
}

impl PublishThread {
    /// Publishes on a thread of its own until that is stopped.
    pub(super) fn start(beginning: Beginning, publishing: Publishing) -> Result<Self> {
        let Beginning { source, within } = beginning;
        let mut publishing = PublishLoop { source, within, publishing, parts: HashMap::new() };
        publishing.begun()?;
        let (stop, stopped) = mpsc::channel();
        let (ended, end) = mpsc::channel();
        let run = move || {
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                publishing.look(Instant::now());
            }
            // Its receiver may not wait any more.
            let _ = ended.send(publishing.publish_last());
        };
        let thread = thread::Builder::new().name("lode-publish".into()).spawn(run);
        Ok(Self { stop, end, thread: thread.context("cannot start a thread")? })
    }

    /// Publishes what is left, of a server that takes no more puts, and ends the thread. Returns
    /// whether it has ended.
    pub(super) fn stop(self) -> bool {
        drop(self.stop);
        let last = self.end.recv_timeout(LAST_MAX);
        match last {
            Ok(0) => {}
            Ok(n_left) => {
                tracing::warn!(
                    n_left,
                    "partitions have versions that are not published; the next start publishes them"
                );
            }
            Err(_) => {
                tracing::warn!(
                    "the last versions are not published in {LAST_MAX:?}; the next start does it"
                );
            }
        }
        last.is_ok() && self.thread.join().is_ok()
    }
}

/// Pauses puts and commits while the bucket has not answered for `within`.
fn watch(reached: &Reached, within: Duration, publishing: &Publishing) {
    let mut is_paused = false;
    loop {
        thread::sleep(WITHIN_PAUSE);
        let silent_for = reached.elapsed();
        let is_late = silent_for > within;
        if is_late && !is_paused {
            let reason = format!("nothing was published for {} s", silent_for.as_secs());
            tracing::error!(reason, "no puts are taken until the bucket answers");
            publishing.pause(&reason);
        }
        if is_paused && !is_late {
            tracing::info!("the bucket answers again, and puts are taken");
            publishing.resume();
        }
        is_paused = is_late;
    }
}

/// Publications of one server.
struct PublishLoop {
    source: Source,
    within: Option<Duration>,
    publishing: Publishing,
    parts: HashMap<PartId, PartState>,
}

/// Outcome of the last publication of a partition.
struct PartState {
    /// Why it takes no more puts.
    fenced: Option<String>,
    /// Since when the bucket is ahead, of the same history.
    behind_since: Option<Instant>,
    /// When it is tried, or looked for other writers, again.
    next: Instant,
    pause: Duration,
    /// The failure that was reported last.
    reported: String,
}

impl PublishLoop {
    /// Takes puts from now on, if the bucket was reached.
    fn begun(&self) -> Result<()> {
        let Source::Ready(publisher) = &self.source else { return Ok(()) };
        for (part, version) in publisher.versions() {
            self.publishing.note(part, version);
        }
        self.publishing.resume();
        let Some(within) = self.within else { return Ok(()) };
        let (reached, publishing) = (publisher.reached(), self.publishing.clone());
        let run = move || watch(&reached, within, &publishing);
        thread::Builder::new().name("lode-within".into()).spawn(run)?;
        Ok(())
    }

    /// Compares what is here with what is published, once the bucket answers.
    fn reach(&mut self, now: Instant) {
        let Source::Waiting(waiting) = &mut self.source else { return };
        if now < waiting.next {
            return;
        }
        let live = self.publishing.live();
        let publisher = Bucket::open(&waiting.url)
            .and_then(|bucket| Publisher::begin_with(bucket, live, Folder::Continues));
        match publisher {
            Ok(publisher) => {
                self.source = Source::Ready(publisher);
                if let Err(error) = self.begun() {
                    tracing::error!(%error, "--publish-within has no effect");
                }
            }
            Err(error) => {
                waiting.error = error.to_string();
                waiting.next = now + waiting.pause;
                waiting.pause = (waiting.pause * 2).min(RETRY_MAX);
                tracing::warn!(%error, "the bucket is not compared yet");
                self.publishing.pause(&waiting.refusal());
            }
        }
    }

    /// Publishes a cut of the partitions if there is one that is not, and looks for other writers
    /// from time to time.
    fn look(&mut self, now: Instant) {
        self.reach(now);
        let Source::Ready(publisher) = &mut self.source else { return };
        let live = self.publishing.live();
        let parts: Vec<PartId> = live.parts().collect();
        self.parts.retain(|part, _| parts.contains(part));
        publisher.retain(&parts);
        for part in &parts {
            self.parts.entry(*part).or_insert_with(|| PartState::new(now));
        }
        let newest = live.version();
        let is_due = |(part, state): (&PartId, &PartState)| {
            let is_new = state.fenced.is_none() && state.reported.is_empty();
            now >= state.next || is_new && !publisher.has(*part, newest)
        };
        if !self.parts.iter().any(is_due) {
            return;
        }
        let cut = match publisher.next_cut(live) {
            Ok(cut) => cut,
            Err(error) => {
                tracing::warn!(%error, "no version can be published; it is tried again");
                None
            }
        };
        let mut turns = Vec::new();
        for part in parts {
            let Some(state) = self.parts.get_mut(&part) else { continue };
            let cut = cut.as_ref().filter(|cut| !publisher.has(part, cut.version()));
            let is_due = now >= state.next || cut.is_some() && state.reported.is_empty();
            if !is_due {
                continue;
            }
            if let Some(reason) = &state.fenced {
                // Its catalog may have been opened again since.
                self.publishing.fence(part, reason.clone(), publisher.version(part));
                state.next = now + LOOK_EVERY;
                continue;
            }
            // One whose uploads fail is fenced all the same.
            let looks_for_others = cut.is_none() || !state.reported.is_empty();
            turns.push(Turn { part, looks_for_others, cut });
        }
        let published: Vec<Option<u32>> =
            turns.iter().map(|turn| publisher.version(turn.part)).collect();
        let outcomes = publisher.take_turns(live, &turns);
        let mut has_published = false;
        for ((turn, outcome), ours) in turns.iter().zip(outcomes).zip(published) {
            let part = turn.part;
            let Some(state) = self.parts.get_mut(&part) else { continue };
            let error = match outcome {
                Ok(()) => {
                    has_published |= turn.cut.is_some();
                    *state = PartState::new(now + LOOK_EVERY);
                    continue;
                }
                Err(error) => error,
            };
            if error.fences() || state.is_behind_for_long(now, &error) {
                tracing::error!(%part, %error, "no more puts are taken");
                self.publishing.fence(part, error.to_string(), ours);
                state.fenced = Some(error.to_string());
                state.next = now + LOOK_EVERY;
            } else {
                state.retry(now, part, &error);
            }
        }
        if has_published && let Err(error) = publisher.record(live) {
            // Without it the history of the catalog says as much, for many commits.
            tracing::warn!(%error, "published, but not recorded in the folder");
        }
        for (part, version) in publisher.versions() {
            self.publishing.note(part, version);
        }
    }

    /// Tries once more to publish each partition; returns the number of those that are not.
    fn publish_last(mut self) -> u32 {
        self.parts.values_mut().for_each(|state| state.reported.clear());
        // A cut of several writers may be before the newest version.
        for _ in 0..u32::BITS {
            self.look(Instant::now());
            if self.n_left() == 0 || self.parts.values().any(|it| !it.reported.is_empty()) {
                break;
            }
        }
        let n_left = self.n_left();
        if let Source::Ready(publisher) = self.source {
            publisher.end();
        }
        n_left
    }

    fn n_left(&self) -> u32 {
        let versions = self.publishing.live().part_versions();
        let is_left = |(part, version): &&(PartId, u32)| match &self.source {
            Source::Ready(publisher) => !publisher.has(*part, *version),
            Source::Waiting(_) => true,
        };
        u32::try_from(versions.iter().filter(is_left).count()).unwrap_or(u32::MAX)
    }
}

impl PartState {
    fn new(next: Instant) -> Self {
        let (fenced, behind_since) = (None, None);
        Self { fenced, behind_since, next, pause: RETRY, reported: String::new() }
    }

    /// Returns whether the bucket stays ahead. For a moment it is where another process publishes a
    /// commit that this one is about to see.
    fn is_behind_for_long(&mut self, now: Instant, error: &BucketError) -> bool {
        if !matches!(error, BucketError::Behind { .. }) {
            self.behind_since = None;
            return false;
        }
        now.duration_since(*self.behind_since.get_or_insert(now)) >= LOOK_EVERY
    }

    fn retry(&mut self, now: Instant, part: PartId, error: &BucketError) {
        let text = error.to_string();
        if self.reported != text {
            tracing::warn!(%part, %error, "a version is not published yet");
        }
        (self.reported, self.next) = (text, now + self.pause);
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }
}
