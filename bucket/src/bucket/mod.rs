//! A bucket: one place below a URL, and the few operations on its objects.

mod open;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;
use lodestore_store::CommitId;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use crate::error::BucketError;
use crate::layout::{GRAPH_KEY, clock_key, publication_key};
use crate::publication::{GraphIdentity, Publication, Published};
use crate::sealed::{FORMAT, Unsealed};
use crate::search::{CompleteSearch, NewestSearch, Seen, Step, Wanted};

/// Requests in flight. Each holds at most one chunk.
pub(crate) const N_PARALLEL: usize = 8;
/// Partitions whose publications are looked for in parallel.
pub(crate) const N_LOOKS: usize = 32;
/// Most bytes of the identity of a graph.
const GRAPH_BYTES_MAX: u64 = 4096;
/// Most bytes of a publication: it names a chunk of 8 MiB in about 40 bytes.
const PUBLICATION_BYTES_MAX: u64 = 256 << 20;
/// Tries to find out whether a publication was taken.
const PUBLISH_TRIES: u32 = 5;
/// Pause between them.
const PUBLISH_PAUSE: Duration = Duration::from_millis(500);
/// Objects of the bucket may be this far ahead of its time: several machines may serve it.
const CLOCK_SLACK: Duration = Duration::from_secs(300);

/// The home of a graph in object storage.
pub struct Bucket {
    url: String,
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    runtime: Runtime,
    reached: Reached,
    /// Chunks of all uploads that may be in memory.
    chunks: Box<Semaphore>,
}

/// The last moment at which a bucket has answered; clones are of the same bucket.
#[derive(Clone, Debug)]
pub struct Reached(Arc<Mutex<Instant>>);

impl Reached {
    /// That of a bucket which is opened now.
    fn now() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Returns the time since.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.lock().ignore_poison().elapsed()
    }

    /// Passes on how a request ended; what the store says of an object is an answer.
    fn noted<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        let has_answered = match &result {
            Ok(_) => true,
            Err(error) => matches!(
                error,
                Error::NotFound { .. } | Error::AlreadyExists { .. } | Error::Precondition { .. }
            ),
        };
        if has_answered {
            *self.0.lock().ignore_poison() = Instant::now();
        }
        result
    }
}

/// A listed object.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) n_bytes: u64,
    /// Since it was written, by the time of the bucket.
    pub(crate) age: Duration,
    /// How far that is in the future, more than clocks of several machines may be apart.
    pub(crate) ahead: Option<Duration>,
}

/// The time of the bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketTime {
    now_ms: i64,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A search for complete versions, and the publication of each partition that it read last.
struct PublicationSearch {
    wanted: Option<u32>,
    seen: CompleteSearch,
    last_read: Vec<Published>,
}

impl Bucket {
    /// Returns the URL, which has no credentials.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits until a chunk that is uploaded may be read into memory.
    pub(crate) async fn room_for_chunk(&self) -> Option<SemaphorePermit<'_>> {
        self.chunks.acquire().await.ok()
    }

    /// Returns when the bucket has answered last.
    #[must_use]
    pub fn reached(&self) -> Reached {
        self.reached.clone()
    }

    /// Runs requests to their end on this thread.
    pub(crate) fn run<T>(&self, requests: impl Future<Output = T>) -> T {
        self.runtime.block_on(requests)
    }

    /// Reads an object of `max_bytes` at most; `None` where there is none.
    pub(crate) async fn read(
        &self,
        key: &str,
        max_bytes: u64,
    ) -> Result<Option<Bytes>, BucketError> {
        let object = match self.reached.noted(self.store.get(&self.path(key)).await) {
            Ok(object) => object,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.failed(key, "read", &error)),
        };
        if object.meta.size > max_bytes {
            let found = object.meta.size;
            return Err(self.damaged(key, format!("it has {found} bytes, of {max_bytes} at most")));
        }
        let bytes = object.bytes().await;
        bytes.map(Some).map_err(|error| self.failed(key, "read", &error))
    }

    /// Returns the age of an object, zero for one that was written since `time`; `None` where there
    /// is none.
    pub(crate) async fn age(
        &self,
        key: &str,
        time: BucketTime,
    ) -> Result<Option<Duration>, BucketError> {
        let object = self.look_up(key).await?;
        Ok(object.map(|object| time.age_of(&object).unwrap_or_default()))
    }

    async fn look_up(&self, key: &str) -> Result<Option<ObjectMeta>, BucketError> {
        match self.reached.noted(self.store.head(&self.path(key)).await) {
            Ok(object) => Ok(Some(object)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(key, "look for", &error)),
        }
    }

    /// Writes an object, whether it is there or not.
    pub(crate) async fn write(&self, key: &str, bytes: Bytes) -> Result<(), BucketError> {
        let put = self.store.put(&self.path(key), PutPayload::from_bytes(bytes)).await;
        let put = self.reached.noted(put);
        put.map(drop).map_err(|error| self.failed(key, "write", &error))
    }

    /// Removes an object; it may be gone.
    pub(crate) async fn remove(&self, key: &str) -> Result<(), BucketError> {
        match self.store.delete(&self.path(key)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(key, "remove", &error)),
        }
    }

    /// Lists the objects below a prefix. The list may be late.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        time: BucketTime,
    ) -> Result<Vec<Listed>, BucketError> {
        let mut objects = self.store.list(Some(&self.path(prefix)));
        let mut listed = Vec::new();
        let failed = |error| self.failed(prefix, "list", &error);
        while let Some(object) = objects.try_next().await.map_err(failed)? {
            let Some(parts) = object.location.prefix_match(&self.prefix) else { continue };
            let parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
            let (key, age) = (parts.join("/"), time.age_of(&object));
            let (age, ahead) = (age.unwrap_or_default(), age.err());
            listed.push(Listed { key, n_bytes: object.size, age, ahead });
        }
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(listed)
    }

    /// Does as [`Bucket::list`]; fails for an object of the future.
    pub(crate) async fn list_by_age(
        &self,
        prefix: &str,
        time: BucketTime,
    ) -> Result<Vec<Listed>, BucketError> {
        let listed = self.list(prefix, time).await?;
        match listed.iter().find_map(|it| Some((it, it.ahead?))) {
            None => Ok(listed),
            Some((it, ahead)) => {
                let reason = format!(
                    "written {} s after now by the clock of the bucket, which was set back; nothing is \
                     removed until it has caught up",
                    ahead.as_secs()
                );
                Err(BucketError::Refused { place: format!("{}/{}", self.url, it.key), reason })
            }
        }
    }

    /// Returns the time of the bucket, by an object that is written for it.
    pub(crate) async fn time(&self) -> Result<BucketTime, BucketError> {
        let key = clock_key(Uuid::new_v4());
        self.write(&key, Bytes::from_static(b"time\n")).await?;
        let head = self.store.head(&self.path(&key)).await;
        self.remove(&key).await?;
        let head = head.map_err(|error| self.failed(&key, "read", &error))?;
        Ok(BucketTime { now_ms: head.last_modified.timestamp_millis() })
    }

    /// Creates an object if it is absent. An error leaves open whether it was created.
    async fn create(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        let payload = PutPayload::from_bytes(Bytes::copy_from_slice(bytes));
        let put = self.store.put_opts(&self.path(key), payload, PutMode::Create.into()).await;
        self.reached.noted(put).map(drop)
    }

    /// Returns the identity of the graph that is here, if one is.
    pub(crate) async fn find_graph(&self) -> Result<Option<GraphIdentity>, BucketError> {
        let Some(bytes) = self.read(GRAPH_KEY, GRAPH_BYTES_MAX).await? else { return Ok(None) };
        let identity = GraphIdentity::from_bytes(&bytes);
        identity.map(Some).map_err(|error| self.unsealed(GRAPH_KEY, error))
    }

    /// Returns the identity of the graph that is here; fails without one.
    pub(crate) async fn graph(&self) -> Result<GraphIdentity, BucketError> {
        self.find_graph().await?.ok_or_else(|| {
            let expected = format!("{}/{GRAPH_KEY}", self.url);
            self.refused(format!(
                "no graph is there (expected {expected}); `lode push` creates one"
            ))
        })
    }

    /// Returns the identity of the graph that is here, which is `ours` where there was none.
    pub(crate) async fn find_or_create_graph(
        &self,
        ours: GraphIdentity,
    ) -> Result<GraphIdentity, BucketError> {
        if let Some(found) = self.find_graph().await? {
            return Ok(found);
        }
        let created = self.create(GRAPH_KEY, &ours.to_bytes()).await;
        // Another writer may have been first, or the reply lost.
        match (self.find_graph().await?, created) {
            (Some(found), _) => Ok(found),
            (None, Ok(())) => Ok(ours),
            (None, Err(error)) => Err(self.failed(GRAPH_KEY, "create", &error)),
        }
    }

    /// Reads a publication; `None` where there is none of this number.
    pub(crate) async fn publication(
        &self,
        graph: GraphIdentity,
        part: PartId,
        sequence: u64,
    ) -> Result<Option<(Published, Bytes)>, BucketError> {
        let key = publication_key(part, sequence);
        let Some(bytes) = self.read(&key, PUBLICATION_BYTES_MAX).await? else { return Ok(None) };
        let published = Published::from_bytes(&bytes, graph.graph, part, sequence);
        Ok(Some((published.map_err(|error| self.unsealed(&key, error))?, bytes)))
    }

    /// Returns the newest publication of a partition, searched for behind `known`, which is there,
    /// or behind 0.
    pub(crate) async fn newest(
        &self,
        graph: GraphIdentity,
        part: PartId,
        known: u64,
    ) -> Result<Option<(Published, Bytes)>, BucketError> {
        let mut search = NewestSearch::new(known);
        while let Some(sequence) = search.next() {
            search.take(self.has(&publication_key(part, sequence)).await?);
        }
        if search.newest() == 0 {
            return Ok(None);
        }
        let newest = self.publication(graph, part, search.newest()).await?;
        let gone =
            || self.damaged(&publication_key(part, search.newest()), "it was there just now");
        newest.map(Some).ok_or_else(gone)
    }

    /// Returns whether there is an object.
    pub(crate) async fn has(&self, key: &str) -> Result<bool, BucketError> {
        Ok(self.look_up(key).await?.is_some())
    }

    /// Creates a publication, whose number is that after the newest, and finds out whether it was
    /// created where the reply is lost. Returns `false` where another writer has taken the number.
    pub(crate) async fn publish(
        &self,
        graph: GraphIdentity,
        publication: &Publication,
    ) -> Result<bool, BucketError> {
        let (part, sequence) = (publication.part(), publication.sequence);
        let (key, bytes) = (publication_key(part, sequence), publication.to_bytes());
        let mut n_tries = 0;
        loop {
            let Err(error) = self.create(&key, &bytes).await else { return Ok(true) };
            n_tries += 1;
            match self.publication(graph, part, sequence).await {
                Ok(Some((_, found))) => return Ok(found == bytes),
                Ok(None) if is_final(&error) || n_tries >= PUBLISH_TRIES => {
                    return Err(self.failed(&key, "create", &error));
                }
                Err(unknown) if n_tries >= PUBLISH_TRIES => return Err(unknown),
                Ok(None) | Err(_) => tokio::time::sleep(PUBLISH_PAUSE).await,
            }
        }
    }

    /// Returns the publications of the newest complete version, or of a given one, by partition.
    pub(crate) async fn complete(
        &self,
        graph: GraphIdentity,
        wanted: Option<u32>,
    ) -> Result<Vec<Publication>, BucketError> {
        let mut search = self.begin_search(graph, wanted).await?;
        self.continue_search(graph, &mut search).await
    }

    /// Returns the newest versions that every partition has published, at most `n_versions`.
    pub(crate) async fn complete_versions(
        &self,
        graph: GraphIdentity,
        n_versions: usize,
    ) -> Result<Vec<u32>, BucketError> {
        let mut versions = Vec::new();
        let mut search = match self.begin_search(graph, None).await {
            Err(BucketError::NoVersion { .. }) => return Ok(versions),
            begun => begun?,
        };
        while versions.len() < n_versions {
            let complete = match self.continue_search(graph, &mut search).await {
                Err(BucketError::NoVersion { .. }) => break,
                found => found?,
            };
            let Some(version) = complete.first().map(Publication::version) else { break };
            versions.push(version);
            search.seen.reject(version);
        }
        Ok(versions)
    }

    /// Reads the newest publication of each partition.
    async fn begin_search(
        &self,
        graph: GraphIdentity,
        wanted: Option<u32>,
    ) -> Result<PublicationSearch, BucketError> {
        let missing =
            |at: usize| BucketError::NoVersion { url: self.url.clone(), wanted, part: part_at(at) };
        let newest = |part: PartId| async move { self.newest(graph, part, 0).await };
        let newest: Vec<Option<(Published, Bytes)>> =
            stream::iter(graph.parts()).map(newest).buffered(N_LOOKS).try_collect().await?;
        let (mut seen, mut last_read) = (Vec::new(), Vec::new());
        for (at, newest) in newest.into_iter().enumerate() {
            let (newest, _) = newest.ok_or_else(|| missing(at))?;
            seen.push(Seen::new(newest.sequence(), &newest));
            last_read.push(newest);
        }
        Ok(PublicationSearch { wanted, seen: CompleteSearch::new(seen, wanted), last_read })
    }

    /// Returns the publications that hold the version that `search` finds next.
    async fn continue_search(
        &self,
        graph: GraphIdentity,
        search: &mut PublicationSearch,
    ) -> Result<Vec<Publication>, BucketError> {
        let PublicationSearch { wanted, seen, last_read } = search;
        let wanted = *wanted;
        let missing =
            |at: usize| BucketError::NoVersion { url: self.url.clone(), wanted, part: part_at(at) };
        loop {
            let (version, sequences) = match seen.next() {
                Step::Read(reads) => {
                    for (at, published) in self.publications(graph, reads).await? {
                        let published = published.ok_or_else(|| missing(at))?;
                        seen.take(at, Seen::new(published.sequence(), &published));
                        last_read[at] = published;
                    }
                    continue;
                }
                Step::Missing { at } => return Err(missing(at)),
                Step::Found { version, sequences } => (version, sequences),
            };
            let mut others = Vec::new();
            for (at, (sequence, read)) in sequences.into_iter().zip(&*last_read).enumerate() {
                if read.sequence() != sequence {
                    others.push(Wanted { at, sequence });
                }
            }
            let others: BTreeMap<usize, Option<Published>> =
                self.publications(graph, others).await?.into_iter().collect();
            let mut complete: Vec<Publication> = Vec::new();
            for (at, read) in last_read.iter().enumerate() {
                let published = match others.get(&at) {
                    None => read,
                    // Without it, it was collected since.
                    Some(other) => other.as_ref().ok_or_else(|| missing(at))?,
                };
                let earlier = published.live().and_then(|live| live.at(version));
                complete.push(earlier.ok_or_else(|| missing(at))?);
            }
            let commit = |it: &Publication| it.manifest.commit_of(version);
            if CommitId::may_be_one(complete.iter().map(commit)) {
                self.check_tensors(version, &complete)?;
                return Ok(complete);
            }
            if wanted.is_some() {
                return Err(self.refused(format!(
                    "partitions have made version {version} by different commits: one of them was \
                     restored, or taken over, and committed since; take another version"
                )));
            }
            seen.reject(version);
        }
    }

    /// Reads publications of different partitions, given by position and number, in their order.
    async fn publications(
        &self,
        graph: GraphIdentity,
        wanted: Vec<Wanted>,
    ) -> Result<Vec<(usize, Option<Published>)>, BucketError> {
        let read = |Wanted { at, sequence }: Wanted| async move {
            let found = self.publication(graph, part_at(at), sequence).await?;
            Ok::<_, BucketError>((at, found.map(|(published, _)| published)))
        };
        stream::iter(wanted).map(read).buffered(N_LOOKS).try_collect().await
    }

    /// Fails where partitions have other tensors than the first one.
    fn check_tensors(&self, version: u32, parts: &[Publication]) -> Result<(), BucketError> {
        let is_other = |it: &&Publication| !parts[0].manifest.has_tensors_of(&it.manifest);
        let Some(other) = parts.iter().find(is_other) else { return Ok(()) };
        Err(self.refused(format!(
            "partition {} has other tensors at version {version} than the partitions before it: \
             tensors were added or dropped, and not all partitions pushed since; push them",
            other.part()
        )))
    }

    /// Fails for a store that lets a second writer take a key that is there.
    pub(crate) async fn check_creates(&self) -> Result<(), BucketError> {
        let key = clock_key(Uuid::new_v4());
        let second = match self.create(&key, b"first\n").await {
            // As it is after a retry whose first try was taken.
            Ok(()) | Err(Error::AlreadyExists { .. }) => self.create(&key, b"second\n").await,
            Err(error) => return Err(self.failed(&key, "create", &error)),
        };
        self.remove(&key).await?;
        match second {
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(()),
            Ok(()) => Err(self.cannot(
                &key,
                "create it only if it is absent",
                "the store has written over an object that was there, so that two writers would not \
                 see each other; use one that honours If-None-Match",
            )),
            Err(error) => Err(self.failed(&key, "create", &error)),
        }
    }

    /// Returns the error of something that cannot be done with this bucket.
    pub(crate) fn refused(&self, reason: String) -> BucketError {
        BucketError::Refused { place: self.url.clone(), reason }
    }

    /// Returns the error of an object that is not the one that was written.
    pub(crate) fn damaged(&self, key: &str, reason: impl Into<String>) -> BucketError {
        let (url, key, reason) = (self.url.clone(), key.to_owned(), reason.into());
        BucketError::Damaged { url, key, reason }
    }

    pub(crate) fn unsealed(&self, key: &str, error: Unsealed) -> BucketError {
        match error {
            Unsealed::Newer(found) => {
                let (url, key) = (self.url.clone(), key.to_owned());
                BucketError::Newer { url, key, found, known: FORMAT }
            }
            Unsealed::Wrong(reason) => self.damaged(key, reason),
        }
    }

    fn path(&self, key: &str) -> Path {
        Path::from_iter(self.prefix.parts().chain(Path::from(key).parts()))
    }

    fn failed(&self, key: &str, action: &str, error: &Error) -> BucketError {
        let reason = match error {
            Error::PermissionDenied { .. } => "the credentials do not permit it".to_owned(),
            Error::Unauthenticated { .. } => {
                "credentials are missing or not accepted; they come from the environment".to_owned()
            }
            Error::NotImplemented { .. } | Error::NotSupported { .. } => {
                let error = without_queries(&error.to_string());
                format!(
                    "this kind of store cannot do it ({error}); use one that can create an \
                         object only if it is absent, as S3, GCS, Azure or a folder"
                )
            }
            other => without_queries(&other.to_string()),
        };
        match self.cannot(key, action, &reason) {
            BucketError::Refused { place, reason } if is_transient(error) => {
                BucketError::Unreachable { place, reason }
            }
            other => other,
        }
    }

    fn cannot(&self, key: &str, action: &str, reason: &str) -> BucketError {
        let place = format!("{}/{key}", self.url);
        BucketError::Refused { place, reason: format!("cannot {action}: {reason}") }
    }
}

impl BucketTime {
    /// Returns the age of an object; fails for one of the future with how far ahead it is.
    fn age_of(self, object: &ObjectMeta) -> Result<Duration, Duration> {
        let age_ms = self.now_ms - object.last_modified.timestamp_millis();
        let apart = Duration::from_millis(age_ms.unsigned_abs());
        match age_ms >= 0 {
            true => Ok(apart),
            false if apart <= CLOCK_SLACK => Ok(Duration::ZERO),
            false => Err(apart),
        }
    }
}

fn part_at(at: usize) -> PartId {
    PartId(u16::try_from(at).unwrap_or(u16::MAX))
}

/// Returns whether an error says that the store could not be asked, or could not answer.
fn is_transient(error: &Error) -> bool {
    matches!(error, Error::Generic { .. } | Error::JoinError { .. })
}

/// Returns whether another try cannot succeed.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::InvalidPath { .. }
    )
}

/// Returns a message without the queries of URLs in it, which can be signatures.
fn without_queries(message: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ')' | ',' | '>');
    let (mut text, mut left) = (String::new(), message);
    while let Some(start) = left.find("://") {
        let end = left[start..].find(is_end).map_or(left.len(), |at| start + at);
        let query = left[start..end].find('?').map_or(end, |at| start + at);
        // Credentials end at the last @.
        let host = start + "://".len();
        let from = left[host..query].rfind('@').map_or(host, |at| host + at + 1);
        text.push_str(&left[..host]);
        text.push_str(&left[from..query]);
        left = &left[end..];
    }
    text.push_str(left);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_urls_do_not_reach_messages() {
        let message = "PUT https://a.net/b?sig=SECRET&x=1 failed: \"http://c/d?e=SECRET\", why?";
        assert_eq!(without_queries(message), "PUT https://a.net/b failed: \"http://c/d\", why?");
    }
}
