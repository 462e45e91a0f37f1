//! Partitions that a folder on this machine follows: their files are fetched from the writer, which
//! continues to serve, and installed version by version.
//!
//! A new partition is fetched as a whole, beside its place. It is moved there after all of it has
//! been read and checked. Later versions fetch only the missing files. After an interruption the
//! next attempt continues with the complete files, and with the part of the file that was being
//! fetched.

mod choice;
mod fetch;
mod link;
mod sources;

use std::path::PathBuf;

use lodestore_graph::PartId;
use lodestore_schema::reply::{PartState, Role};
use lodestore_schema::versions::VersionTag;
use lodestore_store::follow::{FetchCheck, FetchedFile, FollowedFolder, Manifest};
use lodestore_store::transfer::Arrival;
use lodestore_store::{GraphHandle, StoreError};

use crate::address::Address;
use crate::error::ClientError;
use crate::remote::ClientConfig;
use choice::PartChoice;
use fetch::fetch_file;
pub(crate) use fetch::{Fetched, Progress, fetch_part};
pub(crate) use link::Link;
use sources::{Sources, ranges};

/// Number of the copy that first fetches a partition; no other copy uses its folder.
const FIRST_COPY: u64 = 1;

/// The partitions to follow, and their folder.
#[derive(Clone, Debug)]
pub struct FollowPlan {
    /// Servers that write partitions. Servers that took partitions over from them are found.
    pub from: Vec<Address>,
    /// The partitions. If empty, those that these servers write, and those that the folder has
    /// followed before.
    pub parts: Vec<PartId>,
    /// Folder of the graph; created if missing.
    pub into: PathBuf,
    /// Time limit of one step, and credentials.
    pub config: ClientConfig,
}

/// The server of a followed folder, as a follower needs it.
pub trait FollowedServer {
    /// Returns the graph that it serves.
    fn live(&self) -> &GraphHandle;

    /// Returns the version of a partition that it serves, if any.
    fn served(&self, part: PartId) -> Option<u32>;

    /// Installs the version of a manifest, whose files are all in the folder; returns whether it is
    /// new.
    ///
    /// # Errors
    /// The reason why the previous version is still served.
    fn install(&mut self, manifest: &Manifest) -> Result<bool, ClientError>;

    /// Receives the newest version of a partition at its writer.
    fn looked(&mut self, part: PartId, writer: &Address, newest: u32);

    /// Receives the result of a poll of a partition: the newest version is served, or a failure.
    fn polled(&mut self, part: PartId, result: Result<(), &ClientError>);
}

/// The followed partitions of a folder.
pub struct Follower {
    plan: FollowPlan,
    sources: Sources,
    folder: FollowedFolder,
    parts: Vec<FollowedPart>,
    /// Partitions of the graph that none of the servers asked writes.
    unwritten: Vec<PartId>,
    /// The instance of the server that serves the folder; 0 for none.
    instance: u64,
}

struct FollowedPart {
    part: PartId,
    /// The connection to the writer, if open.
    link: Option<Link>,
    /// The version of the last manifest that was compared over this connection.
    compared: Option<u32>,
    /// The version that was last reported to the writer over this connection.
    told: Option<VersionTag>,
}

impl Follower {
    /// Makes the folder a follower's, and chooses the partitions. Each partition that the folder
    /// lacks has a writer, or none is fetched. Waits until the deadline for the writers to respond.
    ///
    /// # Errors
    /// The folder has partitions of its own, or belongs to another graph; a partition has no
    /// writer, or two; writers do not respond.
    pub fn begin(plan: FollowPlan) -> Result<Self, ClientError> {
        let writers: Vec<String> = plan.from.iter().map(ToString::to_string).collect();
        let folder = FollowedFolder::open(&plan.into, &writers.join(", "))?;
        let sources = Sources::new(plan.from.clone());
        let choice = PartChoice::within(&plan, &sources, &folder.parts()?)?;
        let part = |&part| FollowedPart { part, link: None, compared: None, told: None };
        let parts = choice.parts.iter().map(part).collect();
        Ok(Self { plan, sources, folder, parts, unwritten: choice.unwritten, instance: 0 })
    }

    /// Reports to writers from now on which versions the server of the folder serves. `instance` is
    /// the number of the server in its description.
    pub fn serve_as(&mut self, instance: u64) {
        self.instance = instance;
        self.parts.iter_mut().for_each(|followed| followed.told = None);
    }

    /// Returns the followed partitions, ascending.
    pub fn parts(&self) -> impl Iterator<Item = PartId> {
        self.parts.iter().map(|followed| followed.part)
    }

    /// Returns the followed partitions, and those that none of the servers writes, each as text;
    /// the second is `None` if the servers write all.
    #[must_use]
    pub fn coverage(&self) -> (String, Option<String>) {
        let parts: Vec<PartId> = self.parts().collect();
        let unwritten = (!self.unwritten.is_empty()).then(|| ranges(&self.unwritten));
        (ranges(&parts), unwritten)
    }

    /// Fetches the partitions that the folder lacks. `progress` receives the bytes fetched and the
    /// bytes to fetch, one partition after the other.
    ///
    /// # Errors
    /// The reason why a partition cannot be fetched; fetched files stay for the next attempt.
    pub fn bring(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), ClientError> {
        for followed in &mut self.parts {
            if self.folder.has(followed.part)? {
                continue;
            }
            let link = followed.link(&self.plan, &mut self.sources)?;
            let manifest = link.manifest()?;
            self.folder.check_graph(&manifest)?;
            bring_whole(&self.plan, link, &manifest, progress)?;
            tracing::info!(
                part = %followed.part, version = manifest.version(),
                "fetched partition"
            );
        }
        Ok(())
    }

    /// Fetches the newest version of each partition that is not served yet into the folder of
    /// `server`, and has it installed there. Returns the number of installed versions. `server`
    /// receives the failures.
    pub fn poll(&mut self, server: &mut dyn FollowedServer) -> usize {
        let mut n_installed = 0;
        for followed in &mut self.parts {
            let polled = followed.poll(&self.plan, &mut self.sources, self.instance, server);
            match polled {
                Ok(is_new) => {
                    n_installed += usize::from(is_new);
                    server.polled(followed.part, Ok(()));
                }
                Err(error) => {
                    // The next poll finds the writer again.
                    followed.link = None;
                    server.polled(followed.part, Err(&error));
                }
            }
        }
        n_installed
    }
}

impl FollowedPart {
    /// Returns the connection to the writer.
    fn link(&mut self, plan: &FollowPlan, sources: &mut Sources) -> Result<&mut Link, ClientError> {
        let link = match self.link.take() {
            Some(link) => link,
            None => {
                // The writer may have been restored from a copy, or repaired, without a new
                // version.
                (self.compared, self.told) = (None, None);
                let writer = sources.writer_of(&plan.config, self.part)?;
                tracing::info!(part = %self.part, %writer, "following");
                Link::open(&writer, &plan.config, self.part)?
            }
        };
        Ok(self.link.insert(link))
    }

    /// Returns the state of the partition at its writer, after connecting to it. A server that has
    /// released the partition, or accepts no puts any more, is no longer its writer: the new one is
    /// found.
    fn state(
        &mut self,
        plan: &FollowPlan,
        sources: &mut Sources,
    ) -> Result<PartState, ClientError> {
        if self.link.is_some() {
            let state = self.link(plan, sources)?.state()?;
            if let Some(state) = state.filter(|state| state.role == Role::Writer) {
                return Ok(state);
            }
            self.link = None;
        }
        let part = self.part;
        let link = self.link(plan, sources)?;
        let state = link.state()?.filter(|state| state.role == Role::Writer);
        state.ok_or_else(|| ClientError::NotWritten {
            parts: ranges(&[part]),
            servers: format!("{} has just released it", link.address()),
        })
    }

    fn poll(
        &mut self,
        plan: &FollowPlan,
        sources: &mut Sources,
        instance: u64,
        server: &mut dyn FollowedServer,
    ) -> Result<bool, ClientError> {
        let part = self.part;
        let state = self.state(plan, sources)?;
        let link = self.link(plan, sources)?;
        server.looked(part, link.address(), state.version);
        self.tell(instance, server)?;
        let served = server.served(part);
        if served == Some(state.version) && served == self.compared {
            return Ok(false);
        }
        let link = self.link(plan, sources)?;
        let manifest = link.manifest()?;
        for at in link.files_of(&manifest) {
            let begin = |name: &str, n_bytes| {
                let graph = server.live();
                FetchedFile::begin_next(graph, &manifest, name, n_bytes, FetchCheck::ReadBack)
            };
            fetch_file(link, begin, at, &mut |_| {})?;
        }
        server.looked(part, link.address(), manifest.version());
        let is_new = server.install(&manifest)?;
        self.compared = Some(manifest.version());
        self.tell(instance, server)?;
        Ok(is_new)
    }

    /// Reports the served version to the writer, unless the writer knows it.
    fn tell(&mut self, instance: u64, server: &dyn FollowedServer) -> Result<(), ClientError> {
        let served = server.served(self.part).filter(|_| instance != 0);
        let (Some(number), Some(link)) = (served, &mut self.link) else { return Ok(()) };
        if self.told.is_some_and(|told| told.number == number) {
            return Ok(());
        }
        let commit = server.live().commit_of(self.part, number)?;
        let version = VersionTag { number, tag: commit.tag() };
        link.serves(version, instance)?;
        self.told = Some(version);
        Ok(())
    }
}

/// Fetches a partition that the folder lacks, and moves it to its place.
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

/// Returns whether only an operator can help a follower: it must not follow its writer.
#[must_use]
pub fn is_refused(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Store(StoreError::FollowRefused { .. }) | ClientError::TwoWriters { .. }
    )
}
