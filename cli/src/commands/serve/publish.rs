//! `lode serve --publish`: each commit is published in a bucket.

use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lodestore_bucket::{Bucket, BucketError, Folder, Publisher};
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

impl ServeSettings {
    /// Fails for flags that need others, whether those are in a file or not.
    pub(super) fn check_publish(&self) -> Result<()> {
        if self.publish.is_some() && !self.writable {
            return Err(UsageError::new("--publish needs --writable").into());
        }
        if self.take_over && self.publish.is_none() {
            return Err(UsageError::new("--take-over needs --publish").into());
        }
        Ok(())
    }

    /// Takes partitions over if that is requested, and finds what is published; `None` without
    /// --publish. Without --parts it concerns all of the graph, or those in the folder with
    /// --local-parts.
    pub(super) fn begin_publishing(&self, graph: &Path) -> Result<Option<Publisher>> {
        let Some(url) = &self.publish else { return Ok(None) };
        let (bucket, parts, local_parts) = (Bucket::open(url)?, self.part_ids(), self.local_parts);
        let folder = if self.take_over { Folder::TakesOver } else { Folder::Continues };
        if self.take_over {
            let here = if local_parts { Graph::open(graph)?.local_parts() } else { parts.clone() };
            // All of the graph, unless it is for those of the folder and there is none.
            if !local_parts || !here.is_empty() {
                let taken = bucket.take_over(graph, &here, &mut |_, _| {})?;
                tracing::info!(version = taken.version, files = taken.files, "taken over");
            }
        }
        Ok(Some(Publisher::begin(bucket, graph, &parts, folder)?))
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
    pub(super) fn start(publisher: Publisher, publishing: Publishing) -> Result<Self> {
        let mut publishing = PublishLoop { publisher, publishing, parts: HashMap::new() };
        publishing.note_all();
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

/// Publications of one server.
struct PublishLoop {
    publisher: Publisher,
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
    /// Publishes the partitions with a version that is not, and looks for other writers of the
    /// others from time to time.
    fn look(&mut self, now: Instant) {
        let versions = self.publishing.live().part_versions();
        let parts: Vec<PartId> = versions.iter().map(|(part, _)| *part).collect();
        self.parts.retain(|part, _| parts.contains(part));
        self.publisher.retain(&parts);
        for (part, committed) in versions {
            let is_published = self.publisher.version(part) == Some(committed);
            let state = self.parts.entry(part).or_insert_with(|| PartState::new(now));
            let is_due = now >= state.next || !is_published && state.reported.is_empty();
            if !is_due {
                continue;
            }
            if let Some(reason) = &state.fenced {
                // Its catalog may have been opened again since.
                self.publishing.fence(part, reason.clone());
                state.next = now + LOOK_EVERY;
                continue;
            }
            let live = self.publishing.live();
            // One whose uploads fail is fenced all the same.
            let outcome = match is_published || !state.reported.is_empty() {
                true => self.publisher.look_for_others(live, part),
                false => Ok(()),
            };
            let outcome = outcome.and_then(|()| match is_published {
                true => Ok(()),
                false => self.publisher.publish(live, part),
            });
            let error = match outcome {
                Ok(()) => {
                    *state = PartState::new(now + LOOK_EVERY);
                    continue;
                }
                Err(error) => error,
            };
            if error.fences() || state.is_behind_for_long(now, &error) {
                tracing::error!(%part, %error, "no more puts are taken");
                self.publishing.fence(part, error.to_string());
                state.fenced = Some(error.to_string());
                state.next = now + LOOK_EVERY;
            } else {
                state.retry(now, part, &error);
            }
        }
        self.note_all();
    }

    fn note_all(&self) {
        for (part, version) in self.publisher.versions() {
            self.publishing.note(part, version);
        }
    }

    /// Tries once more to publish each partition; returns the number of those that are not.
    fn publish_last(&mut self) -> u32 {
        self.parts.values_mut().for_each(|state| state.reported.clear());
        self.look(Instant::now());
        let versions = self.publishing.live().part_versions();
        let left = versions.iter().filter(|(part, it)| self.publisher.version(*part) != Some(*it));
        u32::try_from(left.count()).unwrap_or(u32::MAX)
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
