//! Partitions that a folder of this machine follows: their files are fetched from the writer, which
//! serves on undisturbed, and handed over version by version.
//!
//! A new partition is fetched as a whole, beside its place. It is moved there when all of it has
//! been read and checked. Later versions bring only the files that are missing. After an
//! interruption the next try continues with the whole files, and with the part of the file that was
//! being fetched.

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

/// Number of the copy in which a partition comes first; no other copy uses its folder.
const FIRST_COPY: u64 = 1;

/// The partitions to follow, and their destination.
#[derive(Clone, Debug)]
pub struct FollowPlan {
    /// Servers that write partitions. Others that took some over from them are found.
    pub from: Vec<Address>,
    /// The partitions. If empty, those that these servers write, and those that have been followed
    /// in the folder before.
    pub parts: Vec<PartId>,
    /// Folder of the graph, which is made if it is not there.
    pub into: PathBuf,
    /// Time for one step, and what servers are shown.
    pub config: ClientConfig,
}

/// The server of a folder that follows, as a follower needs it.
pub trait FollowedServer {
    /// Returns the graph that is served.
    fn live(&self) -> &GraphHandle;

    /// Returns the version of a partition that is served, if it is.
    fn served(&self, part: PartId) -> Option<u32>;

    /// Serves the version of a manifest, whose files are all there; returns whether it is new.
    ///
    /// # Errors
    /// The reason why the version before is served.
    fn install(&mut self, manifest: &Manifest) -> Result<bool, ClientError>;

    /// Receives the newest version of a partition at its writer.
    fn looked(&mut self, part: PartId, writer: &Address, newest: u32);

    /// Receives how a look at a partition ended: the newest version is served, or a failure.
    fn polled(&mut self, part: PartId, result: Result<(), &ClientError>);
}

/// The partitions of a folder that follows.
pub struct Follower {
    plan: FollowPlan,
    sources: Sources,
    folder: FollowedFolder,
    parts: Vec<FollowedPart>,
    /// Partitions of the graph that no server writes which was asked.
    unwritten: Vec<PartId>,
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
    /// Makes the folder a follower's and chooses the partitions. All that are not there have a
    /// writer, or none is fetched. Waits within the deadline until the writers answer.
    ///
    /// # Errors
    /// A folder with partitions of its own, one of another graph, partitions without a writer or
    /// with two, or writers that do not answer.
    pub fn begin(plan: FollowPlan) -> Result<Self, ClientError> {
        let writers: Vec<String> = plan.from.iter().map(ToString::to_string).collect();
        let folder = FollowedFolder::open(&plan.into, &writers.join(", "))?;
        let sources = Sources::new(plan.from.clone());
        let choice = PartChoice::within(&plan, &sources, &folder.parts()?)?;
        let part = |&part| FollowedPart { part, link: None, compared: None, told: None };
        let parts = choice.parts.iter().map(part).collect();
        Ok(Self { plan, sources, folder, parts, unwritten: choice.unwritten, instance: 0 })
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

    /// Returns what the follower follows and what none of its servers writes, as one sentence; the
    /// second is `None` where they write all.
    #[must_use]
    pub fn coverage(&self) -> (String, Option<String>) {
        let parts: Vec<PartId> = self.parts().collect();
        let unwritten = (!self.unwritten.is_empty()).then(|| ranges(&self.unwritten));
        (ranges(&parts), unwritten)
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
            let link = followed.link(&self.plan, &mut self.sources)?;
            let manifest = link.manifest()?;
            self.folder.check_graph(&manifest)?;
            bring_whole(&self.plan, link, &manifest, progress)?;
            tracing::info!(part = %followed.part, version = manifest.version(), "a partition has come");
        }
        Ok(())
    }

    /// Fetches the newest version of each partition that is not served into the folder of `server`,
    /// and has it install that. Returns the number of versions that were installed. `server`
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
                    // The next try finds the writer again.
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
                // It may have been restored from a copy, or repaired, without another version.
                (self.compared, self.told) = (None, None);
                let writer = sources.writer_of(&plan.config, self.part)?;
                tracing::info!(part = %self.part, %writer, "following");
                Link::open(&writer, &plan.config, self.part)?
            }
        };
        Ok(self.link.insert(link))
    }

    /// Returns the state of the partition at its writer, to which there is a connection then. A
    /// writer that has given it up, or takes no puts any more, is one no longer: the other is found.
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
            servers: format!("{} has just given it up", link.address()),
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
                let live = server.live();
                FetchedFile::begin_next(live, &manifest, name, n_bytes, FetchCheck::ReadBack)
            };
            fetch_file(link, begin, at, &mut |_| {})?;
        }
        server.looked(part, link.address(), manifest.version());
        let is_new = server.install(&manifest)?;
        self.compared = Some(manifest.version());
        self.tell(instance, server)?;
        Ok(is_new)
    }

    /// Tells the writer the version that is served, unless it knows.
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

/// Returns whether a follower must be helped by a person: its writer is not one that it can follow.
#[must_use]
pub fn is_refused(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Store(StoreError::FollowRefused { .. }) | ClientError::TwoWriters { .. }
    )
}
