//! Commits and compactions, which run on every server that writes a partition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_schema::reply::{Description, Role};
use lodestore_schema::request::CommitStep;
use lodestore_schema::stats::UpdateStats;
use lodestore_schema::versions::VersionTag;
use lodestore_schema::{Reply, Request, RequestBody};
use lodestore_store::{CommitId, VersionId};

use super::Client;
use super::cluster_view::ClusterView;
use super::describe::{ask_server, describe, stats};
use super::pin::common;
use super::retry::{RetryAction, RetryBudget};
use crate::address::Address;
use crate::error::ClientError;

/// Pause between two polls of followers or of a compaction.
const POLL: Duration = Duration::from_millis(50);

/// A compaction that a server has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionRun {
    /// The server.
    pub address: Address,
    /// Number of the compaction on that server, counted since the server started.
    pub run: u64,
}

/// The versions of a graph's partitions after a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitOutcome {
    /// The lowest version of the partitions.
    pub version: u32,
    /// Whether this call committed a version; `false` if no rows were pending.
    pub is_new: bool,
    /// Each partition with its version, ascending.
    pub parts: Vec<(PartId, u32)>,
}

/// A step of a commit, and the version to commit.
#[derive(Clone, Copy)]
struct Step {
    step: CommitStep,
    version: VersionId,
}

impl Step {
    fn prepare(number: u32, commit: CommitId) -> Self {
        Self { step: CommitStep::Prepare, version: VersionId::new(number, commit) }
    }
}

impl Client {
    /// Returns the lowest version that an unpinned gather reads from now on.
    ///
    /// For each partition, that is the newest version of the servers that respond, or the version
    /// that this client has committed or seen if that is later; the lowest of all partitions is
    /// returned. A pinned client returns its pinned version. The tag is 0 if the partitions have no
    /// commit in common.
    ///
    /// # Errors
    /// No server of some partition responds.
    pub fn version_id(&self) -> Result<VersionTag, ClientError> {
        if let Some(pinned) = &self.pinned {
            return Ok(pinned.version(self.book.parts()));
        }
        let deadline = Instant::now() + self.config.deadline;
        let (servers, mut failure) = self.ask_living(deadline)?;
        let known = self.view();
        let mut versions = Vec::new();
        for part in self.book.parts() {
            let states = servers.iter().filter_map(|(_, it)| it.state(part.0));
            let newest = states.map(|it| it.version_tag()).max_by_key(|it| it.number);
            match newest {
                Some(newest) => versions.push(newer(self.floors.of(part), newest)),
                // The client is connected to servers of some partitions only.
                None if known.routes.servers_of(part).is_empty() => {}
                None => return Err(failure.take().unwrap_or(ClientError::NoReplica { part })),
            }
        }
        Ok(common(versions.into_iter()))
    }

    /// Commits the pending rows of all writers as one version; returns its number.
    ///
    /// All writers prepare the version before the first one publishes it. After an error some
    /// writers may have published: from then on this client reads no version before those that the
    /// writers have reported. Commit again, or call [`Client::commit_as`] with the same number to
    /// finish the same commit.
    ///
    /// # Errors
    /// [`ClientError::NoWriter`] and [`ClientError::TwoWriters`] before any writer prepares, or the
    /// error of the server that failed to commit.
    pub fn commit(&self) -> Result<u32, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        let (view, writers) = self.writers(deadline)?;
        let versions = self.written_versions(&view, &writers, deadline)?;
        let newest = versions.into_iter().map(|(_, version)| version.number).max().unwrap_or(0);
        self.commit_after(&view, &writers, newest, deadline)
    }

    /// Like [`Client::commit`], but commits nothing if no writer has pending rows. Finishes an
    /// interrupted commit. If writers made their current version by different commits, commits
    /// another version on all of them.
    ///
    /// # Errors
    /// See [`Client::commit`].
    pub fn commit_pending(&self) -> Result<CommitOutcome, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        let (view, writers) = self.writers(deadline)?;
        let mut parts = self.written_versions(&view, &writers, deadline)?;
        let numbers = || parts.iter().map(|(_, version)| version.number);
        let (lowest, newest) = (numbers().min().unwrap_or(0), numbers().max().unwrap_or(0));
        let was_cut_off = lowest < newest;
        if was_cut_off {
            // Each writer publishes the commit that it has prepared, or a new one: a writer that
            // was restored from a copy lacks rows of the commit that the others have published.
            for writer in &writers {
                self.commit_to(&view, std::slice::from_ref(writer), newest, deadline)?;
            }
            parts = self.written_versions(&view, &writers, deadline)?;
        }
        let is_apart = parts.windows(2).any(|pair| pair[0].1.is_other_history(pair[1].1));
        // Every writer has published this version, so the step changes nothing; the reply names the
        // version that pending rows are for.
        let step = Step::prepare(newest, CommitId::UNKNOWN);
        let put_for = self.commit_step(&view, &writers, step, deadline)?.number;
        let is_pending = put_for > newest;
        if is_pending || is_apart {
            self.commit_after(&view, &writers, newest, deadline)?;
        }
        let is_new = was_cut_off || is_pending || is_apart;
        if is_new {
            parts = self.written_versions(&view, &writers, deadline)?;
        }
        let parts: Vec<_> =
            parts.into_iter().map(|(part, version)| (part, version.number)).collect();
        let version = parts.iter().map(|&(_, version)| version).min().unwrap_or(0);
        Ok(CommitOutcome { version, is_new, parts })
    }

    /// Returns the partitions of these writers with their committed versions, ascending.
    fn written_versions(
        &self,
        view: &ClusterView,
        writers: &[usize],
        deadline: Instant,
    ) -> Result<Vec<(PartId, VersionTag)>, ClientError> {
        let mut parts = Vec::new();
        for &writer in writers {
            let found = self.describe_again(view, writer, deadline)?;
            let written = found.held().filter(|(_, state)| state.role == Role::Writer);
            for (part, state) in written {
                let version = VersionTag { number: state.version, tag: state.tag };
                parts.push((PartId(part), version));
            }
        }
        parts.sort_unstable_by_key(|&(part, _)| part);
        Ok(parts)
    }

    fn commit_after(
        &self,
        view: &Arc<ClusterView>,
        writers: &[usize],
        newest: u32,
        deadline: Instant,
    ) -> Result<u32, ClientError> {
        let version = newest.saturating_add(1);
        // After an interrupted commit, rows may be pending for a later version.
        let step = Step::prepare(version, CommitId::draw());
        let put_for = self.commit_step(view, writers, step, deadline)?;
        if put_for.number <= version {
            return self.publish(view, writers, put_for, deadline);
        }
        self.commit_to(view, writers, put_for.number, deadline)
    }

    /// Like [`Client::commit`], with the version number of an interrupted commit, or one that a put
    /// has returned.
    ///
    /// # Errors
    /// See [`Client::commit`].
    pub fn commit_as(&self, version: u32) -> Result<u32, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        let (view, writers) = self.writers(deadline)?;
        self.commit_to(&view, &writers, version, deadline)
    }

    /// Prepares a version on all writers, and publishes it.
    fn commit_to(
        &self,
        view: &Arc<ClusterView>,
        writers: &[usize],
        version: u32,
        deadline: Instant,
    ) -> Result<u32, ClientError> {
        let step = Step::prepare(version, CommitId::draw());
        let prepared = self.commit_step(view, writers, step, deadline)?;
        let prepared = VersionId::new(version, prepared.commit);
        self.publish(view, writers, prepared, deadline)
    }

    /// Publishes a version that all writers have prepared. Its commit is the smallest that a writer
    /// has fixed: two clients that commit concurrently choose the same one.
    fn publish(
        &self,
        view: &Arc<ClusterView>,
        writers: &[usize],
        version: VersionId,
        deadline: Instant,
    ) -> Result<u32, ClientError> {
        let (mut committed, mut seen) = (version.number, Ok(()));
        for writer in writers.iter().map(std::slice::from_ref) {
            let step = Step { step: CommitStep::Publish, version };
            committed = committed.max(self.commit_step(view, writer, step, deadline)?.number);
            // Before the next writer, which may fail: this one has published.
            let described = self.describe_again(view, writer[0], deadline);
            seen = seen.and(described.map(drop));
        }
        seen.map(|()| committed)
    }

    /// Runs a step of a commit on all writers. Returns the highest version of their replies, and
    /// the commit that all of them must publish.
    fn commit_step(
        &self,
        view: &ClusterView,
        writers: &[usize],
        Step { step, version }: Step,
        deadline: Instant,
    ) -> Result<VersionId, ClientError> {
        let label = u128::from_be_bytes(version.commit.to_bytes());
        let (mut highest, mut fixed) = (version.number, None);
        for &writer in writers {
            let address = view.address(writer);
            let body = RequestBody::Commit { version: version.number, step, label };
            let request = Request { graph: view.graph, ..Request::new(body) };
            let commit =
                || match ask_server(address, &self.config.security, request.clone(), deadline)? {
                    Reply::Committed { version, label } => Ok((version, label)),
                    _ => Err(ClientError::Confused { address: address.clone() }),
                };
            let (number, label) = self.patiently(deadline, commit)?;
            highest = highest.max(number);
            let found = CommitId::from_bytes(label.to_be_bytes());
            // Servers before wire version 6 send no commit.
            if found.is_known() && fixed.is_none_or(|fixed| self.is_before(version, found, fixed)) {
                fixed = Some(found);
            }
        }
        Ok(VersionId::new(highest, fixed.unwrap_or(version.commit)))
    }

    /// Returns whether `one` takes precedence over `other` as the commit of a version. A commit
    /// that some partition has published comes first, then the smaller one.
    fn is_before(&self, version: VersionId, one: CommitId, other: CommitId) -> bool {
        let made = |commit: CommitId| {
            let made = VersionTag { number: version.number, tag: commit.tag() };
            self.book.parts().any(|part| self.floors.of(part) == made)
        };
        match (made(one), made(other)) {
            (true, false) => true,
            (false, true) => false,
            _ => one < other,
        }
    }

    /// Asks a writer for its description, and raises the floors to its versions.
    fn describe_again(
        &self,
        view: &ClusterView,
        writer: usize,
        deadline: Instant,
    ) -> Result<Description, ClientError> {
        let (address, security) = (view.address(writer), &self.config.security);
        let found = self.patiently(deadline, || describe(address, security, deadline))?;
        if found.graph_tag() != view.graph {
            let (address, other) = (address.clone(), address.clone());
            return Err(ClientError::GraphsDiffer { address, other });
        }
        let mut held = found.held();
        held.try_for_each(|(part, it)| self.floors.raise(PartId(part), it.version_tag(), address))?;
        drop(held);
        Ok(found)
    }

    /// Waits until `wanted` followers of each partition serve `version`, until the deadline at
    /// most.
    ///
    /// # Errors
    /// [`ClientError::FollowersBehind`] names the followers that lack the version.
    pub fn wait_for_followers(&self, version: u32, wanted: usize) -> Result<(), ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        loop {
            let (servers, _) = self.ask_living(deadline)?;
            let behind = self.book.parts().find_map(|part| behind(&servers, part, version, wanted));
            let Some(error) = behind else { return Ok(()) };
            if Instant::now() + POLL >= deadline {
                return Err(error);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Starts a compaction on every writer, which folds committed rows into its segments. Returns
    /// once every compaction has started or is queued.
    ///
    /// # Errors
    /// [`ClientError::NoWriter`], or the error of the server that failed to start.
    pub fn compact(&self) -> Result<Vec<CompactionRun>, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        let ((view, writers), security) = (self.writers(deadline)?, &self.config.security);
        for &writer in &writers {
            self.describe_again(&view, writer, deadline)?;
        }
        let compact = |&writer: &usize| {
            let address = view.address(writer);
            let request = Request { graph: view.graph, ..Request::new(RequestBody::Compact) };
            let ask = || match ask_server(address, security, request.clone(), deadline)? {
                Reply::Compacting { run } => Ok(CompactionRun { address: address.clone(), run }),
                _ => Err(ClientError::Confused { address: address.clone() }),
            };
            self.patiently(deadline, ask)
        };
        writers.iter().map(compact).collect()
    }

    /// Waits until these compactions end, however long they take. `progress` receives the bytes
    /// that the running compaction has written, and the bytes that it will have written at its end.
    ///
    /// # Errors
    /// [`ClientError::Compaction`] if a compaction failed or its server restarted, or the error of
    /// a server that did not respond within the deadline.
    pub fn wait_for_compactions(
        &self,
        runs: &[CompactionRun],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), ClientError> {
        let security = &self.config.security;
        for CompactionRun { address, run } in runs {
            loop {
                let deadline = Instant::now() + self.config.deadline;
                let stats = self.patiently(deadline, || stats(address, security, deadline))?;
                progress(stats.updates.run_bytes, stats.updates.run_bytes_total);
                if is_over(address, *run, &stats.updates)? {
                    break;
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    /// Retries `ask` after errors that may pass, within the attempts and the deadline. A server
    /// that refuses connections is retried until the deadline.
    pub(super) fn patiently<T>(
        &self,
        deadline: Instant,
        ask: impl Fn() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut retry = RetryBudget::new(&self.config, deadline);
        loop {
            let error = match ask() {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let action = RetryAction::of(&error).without_others();
            match retry.pause(action) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(retry.report(error, &self.view())),
            }
        }
    }
}

fn newer(floor: VersionTag, served: VersionTag) -> VersionTag {
    if floor.number > served.number { floor } else { served }
}

/// A follower of a partition: a server that responds to this client, or one that the writer knows.
struct CountedFollower {
    name: String,
    instance: u64,
    version: u32,
}

/// Returns an error if fewer than `wanted` followers of a written partition have the version.
/// Followers that respond to this client and those that the writer knows count once each.
fn behind(
    servers: &[(Address, Description)],
    part: PartId,
    version: u32,
    wanted: usize,
) -> Option<ClientError> {
    let states = || servers.iter().filter_map(|(at, it)| Some((at, it, it.state(part.0)?)));
    let (writer, of_writer, _) = states().find(|(.., state)| state.role == Role::Writer)?;
    let connected = states().filter(|(.., state)| state.role == Role::Follower);
    let connected = connected.map(|(address, description, state)| CountedFollower {
        name: address.to_string(),
        instance: description.instance,
        version: state.version,
    });
    let known = of_writer.followers.iter().filter(|follower| follower.part == part.0);
    let known = known.map(|follower| CountedFollower {
        name: format!("follower {:016x} of {writer}", follower.instance),
        instance: follower.instance,
        version: follower.version.number,
    });
    let mut followers: Vec<CountedFollower> = Vec::new();
    for follower in connected.chain(known) {
        let is_counted =
            |it: &CountedFollower| it.instance != 0 && it.instance == follower.instance;
        match followers.iter_mut().find(|it| is_counted(it)) {
            // The later of the two reports counts.
            Some(counted) => counted.version = counted.version.max(follower.version),
            None => followers.push(follower),
        }
    }
    let found = followers.iter().filter(|it| it.version >= version).count();
    if found >= wanted {
        return None;
    }
    let lacking = followers.iter().filter(|it| it.version < version);
    let lacking: Vec<String> =
        lacking.map(|it| format!("{} has {}", it.name, it.version)).collect();
    let known = format!("{} are known to {writer} or connected", followers.len());
    let lacking = match lacking.is_empty() {
        true => known,
        false => format!("{known}: {}", lacking.join(", ")),
    };
    Some(ClientError::FollowersBehind { part, version, wanted, found, lacking })
}

/// Returns whether compaction `run` has ended; fails if it failed or the server restarted.
fn is_over(address: &Address, run: u64, stats: &UpdateStats) -> Result<bool, ClientError> {
    let failed = |reason: &str| {
        let (address, reason) = (address.clone(), reason.to_owned());
        Err(ClientError::Compaction { address, reason })
    };
    if stats.runs_asked < run {
        return failed("the server restarted before the compaction ended; compact again");
    }
    if stats.runs_ended >= run && !stats.run_failure.is_empty() {
        return failed(&stats.run_failure);
    }
    Ok(stats.runs_ended >= run)
}

#[cfg(test)]
mod tests {
    use lodestore_schema::reply::{FollowerState, PartState};

    use super::*;

    #[test]
    fn followers_that_lack_a_version_are_named_and_a_server_counts_once() {
        let server = |port: u16, role, version, instance| {
            let states = vec![PartState { version, role, ..PartState::default() }];
            let description =
                Description { parts: vec![0], states, instance, ..Description::default() };
            (format!("127.0.0.1:{port}").parse::<Address>().unwrap(), description)
        };
        let lacks = |servers: &[(Address, Description)], wanted| {
            behind(servers, PartId(0), 5, wanted).map(|error| error.to_string())
        };
        let writer = server(1, Role::Writer, 5, 1);
        let (near, far) = (server(2, Role::Follower, 5, 2), server(3, Role::Follower, 4, 3));
        let all = [writer.clone(), near.clone(), far.clone()];
        assert_eq!((lacks(&all, 0), lacks(&all, 1)), (None, None));
        let told = lacks(&all, 2).unwrap();
        assert!(told.contains("1 of 2") && told.contains("127.0.0.1:3 has 4"), "{told}");
        let twice = [writer.clone(), near.clone(), server(4, Role::Follower, 5, 2)];
        assert!(lacks(&twice, 2).unwrap().contains("1 are known"));
        let only = [writer.clone()];
        assert!(lacks(&only, 1).unwrap().contains("0 are known"));
        assert_eq!(lacks(&[far], 1), None, "the partition has no writer");
        // A client that is connected to the writer alone counts the followers that the writer
        // knows.
        let (address, mut description) = writer;
        let known = |part, number, instance| FollowerState {
            part,
            version: VersionTag::any(number),
            instance,
        };
        description.followers = vec![known(0, 5, 2), known(1, 5, 9), known(0, 4, 7)];
        let alone = [(address, description)];
        assert_eq!(lacks(&alone, 1), None);
        let told = lacks(&alone, 2).unwrap();
        let expected = ["1 of 2", "2 are known to 127.0.0.1:1", "follower 0000000000000007 of"];
        assert!(expected.iter().all(|it| told.contains(it)), "{told}");
        let both = [alone[0].clone(), near];
        assert!(lacks(&both, 2).unwrap().contains("2 are known"), "one is counted once");
    }

    #[test]
    fn a_compaction_is_over_once_it_has_ended_and_fails_if_its_server_does_not_know_it() {
        let address: Address = "127.0.0.1:1".parse().unwrap();
        let stats = |runs_asked, runs_ended, failure: &str| UpdateStats {
            runs_asked,
            runs_ended,
            run_failure: failure.into(),
            ..UpdateStats::default()
        };
        assert!(!is_over(&address, 2, &stats(2, 1, "")).unwrap());
        assert!(!is_over(&address, 2, &stats(2, 1, "the run before had no room")).unwrap());
        assert!(is_over(&address, 2, &stats(3, 2, "")).unwrap());
        for stats in [stats(2, 2, "no room"), stats(1, 1, ""), stats(0, 0, "")] {
            let error = is_over(&address, 2, &stats).unwrap_err();
            assert!(matches!(error, ClientError::Compaction { .. }), "{error}");
        }
    }
}
