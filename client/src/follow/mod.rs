//! Partitions that a folder of this machine follows: their files are fetched from the writer, which
//! serves on undisturbed, and handed over version by version.
//!
//! A new partition is fetched as a whole, beside its place. It is moved there when all of it has
//! been read and checked. Later versions bring only the files that are missing. After an
//! interruption the next try continues with the whole files, and with the part of the file that was
//! being fetched.

mod fetch;
mod link;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_schema::reply::{Description, Role};
use lodestore_schema::versions::VersionTag;
use lodestore_store::follow::{FetchCheck, FetchedFile, FollowedFolder, Manifest};
use lodestore_store::transfer::Arrival;
use lodestore_store::{GraphHandle, StoreError};

use crate::address::Address;
use crate::error::ClientError;
use crate::remote::ClientConfig;
use crate::remote::describe;
use fetch::fetch_file;
pub(crate) use fetch::{Fetched, Progress, fetch_part};
pub(crate) use link::Link;

/// Number of the copy in which a partition comes first; no other copy uses its folder.
const FIRST_COPY: u64 = 1;
/// Pause before servers that do not answer, or have no room, are asked again at the start.
const PAUSE: Duration = Duration::from_millis(200);

/// The partitions to follow, and their destination.
#[derive(Clone, Debug)]
pub struct FollowPlan {
    /// The servers that write the partitions.
    pub from: Vec<Address>,
    /// The partitions; all of the graph if empty.
    pub parts: Vec<PartId>,
    /// Folder of the graph, which is made if it is not there.
    pub into: PathBuf,
    /// Time for one step, and what servers are shown.
    pub config: ClientConfig,
}

/// The partitions of a folder that follows.
pub struct Follower {
    plan: FollowPlan,
    folder: FollowedFolder,
    parts: Vec<FollowedPart>,
    /// The server that serves the folder; 0 for none.
    instance: u64,
}

struct FollowedPart {
    part: PartId,
    /// The connection to its writer, while there is one.
    link: Option<Link>,
    /// The version of the manifest that this connection was last compared by.
    compared: Option<u32>,
    /// The version that the writer was told last over this connection.
    told: Option<VersionTag>,
}

impl Follower {
    /// Makes the folder a follower's and finds which partitions there are; waits within the
    /// deadline until the writers answer.
    ///
    /// # Errors
    /// A folder with partitions of its own, one of another graph, or writers that do not answer.
    pub fn begin(plan: FollowPlan) -> Result<Self, ClientError> {
        let writers: Vec<String> = plan.from.iter().map(ToString::to_string).collect();
        let folder = FollowedFolder::open(&plan.into, &writers.join(", "))?;
        let mut parts = plan.parts.clone();
        if parts.is_empty() {
            let end = Instant::now() + plan.config.deadline;
            let n_parts = loop {
                match describe_any(&plan) {
                    Ok(description) => break description.bounds.len().saturating_sub(1),
                    Err(error) if Instant::now() + PAUSE >= end => return Err(error),
                    Err(_) => std::thread::sleep(PAUSE),
                }
            };
            parts = (0..u16::try_from(n_parts).unwrap_or(u16::MAX)).map(PartId).collect();
        }
        parts.sort_unstable();
        parts.dedup();
        let parts = parts
            .into_iter()
            .map(|part| FollowedPart { part, link: None, compared: None, told: None })
            .collect();
        Ok(Self { plan, folder, parts, instance: 0 })
    }

    /// Tells writers from now on which versions the server of the folder serves. `instance` is the
    /// number of the server in its description.
    pub fn serve_as(&mut self, instance: u64) {
        self.instance = instance;
        self.parts.iter_mut().for_each(|followed| followed.told = None);
    }

    /// Returns the partitions that are followed, ascending.
    pub fn parts(&self) -> impl Iterator<Item = PartId> {
        self.parts.iter().map(|followed| followed.part)
    }

    /// Brings the partitions that are not there yet. `progress` receives bytes fetched and to fetch
    /// of one partition after the other.
    ///
    /// # Errors
    /// The obstacle to a fetch; fetched files stay for the next try.
    pub fn bring(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), ClientError> {
        for followed in &mut self.parts {
            if self.folder.has(followed.part)? {
                continue;
            }
            let link = followed.link(&self.plan)?;
            let manifest = link.manifest()?;
            self.folder.check_graph(&manifest)?;
            bring_whole(&self.plan, link, &manifest, progress)?;
            tracing::info!(part = %followed.part, version = manifest.version(), "a partition has come");
        }
        Ok(())
    }

    /// Fetches the newest version of each partition that is not served into the folder of `live`,
    /// and has `install` take it over. Returns the number of versions that were installed. `served`
    /// returns the version of a partition that is served.
    ///
    /// # Errors
    /// The first error of a partition, after all have been tried.
    pub fn poll(
        &mut self,
        live: &GraphHandle,
        served: &dyn Fn(PartId) -> Option<u32>,
        install: &mut dyn FnMut(&Manifest) -> Result<bool, ClientError>,
    ) -> Result<usize, ClientError> {
        let (mut n_installed, mut first) = (0, None);
        for followed in &mut self.parts {
            match followed.poll(&self.plan, self.instance, live, served, install) {
                Ok(is_new) => n_installed += usize::from(is_new),
                Err(error) => {
                    // The next try finds the writer again.
                    followed.link = None;
                    first.get_or_insert(error);
                }
            }
        }
        first.map_or(Ok(n_installed), Err)
    }
}

impl FollowedPart {
    /// Returns the connection to the writer.
    fn link(&mut self, plan: &FollowPlan) -> Result<&mut Link, ClientError> {
        let link = match self.link.take() {
            Some(link) => link,
            None => {
                // It may have been restored from a copy, or repaired, without another version.
                (self.compared, self.told) = (None, None);
                Link::open(&writer_of(plan, self.part)?, &plan.config, self.part)?
            }
        };
        Ok(self.link.insert(link))
    }

    fn poll(
        &mut self,
        plan: &FollowPlan,
        instance: u64,
        live: &GraphHandle,
        served: &dyn Fn(PartId) -> Option<u32>,
        install: &mut dyn FnMut(&Manifest) -> Result<bool, ClientError>,
    ) -> Result<bool, ClientError> {
        let part = self.part;
        let link = self.link(plan)?;
        let state = link.state()?;
        // A writer that has given it up, or takes no puts any more, is one no longer.
        let state = state.filter(|state| state.role == Role::Writer);
        let Some(state) = state else {
            let readers = link.address().to_string();
            return Err(ClientError::NoWriter { part, readers });
        };
        self.tell(plan, instance, live, served(part))?;
        let (now, compared) = (served(part), self.compared);
        if now == Some(state.version) && now == compared {
            return Ok(false);
        }
        let link = self.link(plan)?;
        let manifest = link.manifest()?;
        for at in link.files_of(&manifest) {
            let begin = |name: &str, n_bytes| {
                FetchedFile::begin_next(live, &manifest, name, n_bytes, FetchCheck::ReadBack)
            };
            fetch_file(link, begin, at, &mut |_| {})?;
        }
        let is_new = install(&manifest)?;
        self.compared = Some(manifest.version());
        self.tell(plan, instance, live, served(part))?;
        Ok(is_new)
    }

    /// Tells the writer the version that is served, unless it knows.
    fn tell(
        &mut self,
        plan: &FollowPlan,
        instance: u64,
        live: &GraphHandle,
        served: Option<u32>,
    ) -> Result<(), ClientError> {
        let Some(number) = served.filter(|_| instance != 0) else { return Ok(()) };
        if self.told.is_some_and(|told| told.number == number) {
            return Ok(());
        }
        let commit = live.commit_of(self.part, number)?;
        let version = VersionTag { number, tag: commit.tag() };
        self.link(plan)?.serves(version, instance)?;
        self.told = Some(version);
        Ok(())
    }
}

/// Fetches a partition that is not there, and moves it to its place.
fn bring_whole(
    plan: &FollowPlan,
    link: &mut Link,
    manifest: &Manifest,
    progress: &mut Progress<'_>,
) -> Result<(), ClientError> {
    let arrival = Arrival::find_or_begin(&plan.into, manifest.part(), FIRST_COPY)?;
    if arrival.is_taken() {
        return Ok(arrival.take()?);
    }
    fetch_part(link, &arrival, manifest, progress)?;
    Ok(arrival.install(manifest)?)
}

/// Returns what any of the servers describes.
fn describe_any(plan: &FollowPlan) -> Result<Description, ClientError> {
    let mut last = ClientError::NoServers;
    for address in &plan.from {
        match describe(address, &plan.config.security, Instant::now() + plan.config.deadline) {
            Ok(description) => return Ok(description),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the server that writes a partition.
fn writer_of(plan: &FollowPlan, part: PartId) -> Result<Address, ClientError> {
    let (mut readers, mut failure) = (Vec::new(), None);
    let mut found: Option<(&Address, Description)> = None;
    for address in &plan.from {
        let deadline = Instant::now() + plan.config.deadline;
        let description = match describe(address, &plan.config.security, deadline) {
            Ok(description) => description,
            Err(error) => {
                failure = Some(error);
                continue;
            }
        };
        match (description.state(part.0).map(|it| it.role), &found) {
            (Some(Role::Writer), Some((other, known))) if !known.is_same_server(&description) => {
                let (address, other) = (address.clone(), (*other).clone());
                return Err(ClientError::TwoWriters { part, address, other });
            }
            (Some(Role::Writer), _) => found = Some((address, description)),
            (Some(_), _) => readers.push(address.to_string()),
            (None, _) => {}
        }
    }
    match (found, failure, readers.is_empty()) {
        (Some((writer, _)), ..) => Ok(writer.clone()),
        (None, Some(error), _) => Err(error),
        (None, None, true) => Err(ClientError::NoReplica { part }),
        (None, None, false) => Err(ClientError::NoWriter { part, readers: readers.join(", ") }),
    }
}

/// Returns whether a follower must be helped by a person: its writer is not one that it can follow.
#[must_use]
pub fn is_refused(error: &ClientError) -> bool {
    matches!(error, ClientError::Store(StoreError::FollowRefused { .. }))
}
