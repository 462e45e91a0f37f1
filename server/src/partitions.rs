//! Partitions of a server: opened and checked once before any shard starts, shared by all shards.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{PartId, PartitionBook};
use lodestore_schema::Stripes;
use lodestore_schema::limits::{ADDRESS_BYTES_MAX, MOVED_MAX, ROW_BYTES_MAX};
use lodestore_schema::reply::{Description, MovedPart, PartState, Role, TensorDescription};
use lodestore_schema::stats::{FollowStats, UpdateStats};
use lodestore_schema::versions::VersionTag;
use lodestore_store::plan::DiskProfile;
use lodestore_store::transfer::Arrival;
use lodestore_store::update::TensorHandle;
use lodestore_store::{
    Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, StoreError, TensorSpec,
};
use rustix::process::{Resource, getrlimit};
use uuid::Uuid;

use crate::config::ServerConfig;
use crate::cut::{Cut, PartCut};
use crate::dma::LayerFiles;
use crate::error::ServerError;
use crate::followers::Followers;
use crate::following::{FollowedPart, FollowingState, summary};
use crate::installer::ADVICE_PAUSED;
use crate::pins::{Pins, Use};
use crate::puts::Puts;

/// Attempts to read a partition at one version while commits publish; a publication is shorter than
/// one attempt.
const LOOKS_MAX: usize = 1000;

/// The partitions and tensors of one server.
pub(crate) struct Partitions {
    pub(crate) book: PartitionBook,
    /// Served partitions, ascending.
    parts: RwLock<Arc<[PartId]>>,
    changes: AtomicU64,
    /// Partitions in transit to this server, ascending.
    arriving: RwLock<Arc<[PartId]>>,
    /// The partition that is being released, until the release succeeds or fails.
    leaving: RwLock<Option<PartId>>,
    /// Held while the folder is scanned, so that the last scan wins.
    looking: Mutex<()>,
    /// Whether clients may move partitions in and out; otherwise the set is fixed.
    pub(crate) roams: bool,
    /// Whether partitions may be added at run time.
    grows: bool,
    /// Whether a move is under way.
    is_moving: AtomicBool,
    /// In the order of the graph's description.
    pub(crate) tensors: Vec<ServedTensor>,
    /// The open graph.
    pub(crate) live: Arc<GraphHandle>,
    /// Segment files that shards have open.
    pub(crate) files: Arc<LayerFiles>,
    /// Versions that are kept for readers.
    pub(crate) pins: Pins<Cut>,
    /// Cost model of reads from the graph's disk.
    pub(crate) profile: DiskProfile,
    pub(crate) writable: bool,
    /// Addresses of the writers that it follows.
    pub(crate) follows: Option<String>,
    /// The versions that every shard serves; new pulls read them.
    served: RwLock<Arc<Cut>>,
    /// By partition, the newest published version; `None` if this server does not publish.
    published: Option<Vec<AtomicU32>>,
    /// Partitions that another writer has taken over, each with the last common version. Only
    /// pinned readers read later versions.
    fenced: RwLock<BTreeMap<PartId, u32>>,
    /// Unfinished multi-piece puts.
    pub(crate) puts: Puts,
    /// Servers that follow this one.
    pub(crate) followers: Followers,
    /// Addresses of the servers that took over partitions from this one.
    moved: Mutex<BTreeMap<PartId, String>>,
    /// Progress of this follower.
    pub(crate) following: FollowingState,
    /// Random per start; clients use it to detect that two addresses lead to the same server.
    instance: u64,
}

/// One tensor, with the same description on every partition.
pub(crate) struct ServedTensor {
    pub(crate) description: TensorDescription,
    pub(crate) stripes: Stripes,
}

/// Checks the limit on open files before any shard opens one. Shards open every layer's file once
/// more, for direct reads.
fn check_file_limit(live: &GraphHandle) -> Result<(), ServerError> {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    let mut n_layers = 0;
    for part in live.parts() {
        for tensor in (0..).map_while(|position| live.tensor(part, position)) {
            n_layers += tensor.current().layers().len() as u64;
        }
    }
    let n_open = fs::read_dir("/proc/self/fd").map_or(n_layers, |open| open.count() as u64);
    let needed = n_open + n_layers;
    if needed < limit { Ok(()) } else { Err(ServerError::FileLimit { needed, limit }) }
}

impl Partitions {
    /// Opens every partition that the configuration selects. Blocks on catalogs and files.
    pub(crate) fn open(config: &ServerConfig, n_shards: u16) -> Result<Self, ServerError> {
        let graph = Graph::open(&config.graph)?;
        let book = graph.book().clone();
        let mut parts = match (config.local_parts || config.grows, config.parts.is_empty()) {
            (true, _) => graph.local_parts(),
            (false, true) => book.parts().collect(),
            (false, false) => config.parts.clone(),
        };
        if config.grows && !config.parts.is_empty() {
            parts.retain(|part| config.parts.contains(part));
        }
        parts.sort_unstable();
        parts.dedup();
        let last = book.n_parts() - 1;
        if let Some(&found) = parts.iter().find(|part| part.0 > last) {
            return Err(ServerError::NoPart { found, last });
        }
        let meta = graph.meta();
        let specs = meta.tensors.iter();
        let tensors =
            specs.map(|spec| ServedTensor::new(spec, meta.tensor_uuid(&spec.name), n_shards));
        let tensors = tensors.collect::<Result<_, _>>()?;
        let mode = match (config.writable, &config.follow) {
            (true, _) => OpenMode::Write,
            (false, Some(_)) => OpenMode::Follow,
            (false, None) => OpenMode::Read,
        };
        let moved = moved_from(&graph);
        let profile = DiskProfile::load(&**graph.file_system(), graph.dir());
        // Shards have their own segment readers, so the store's reader shall use no memory.
        let options = OpenOptions { reader: ReaderKind::Pread };
        let arriving = if config.local_parts { Arrival::begun_in(&graph)? } else { Vec::new() };
        let live = Arc::new(GraphHandle::open(graph, Some(&parts), mode, &options)?);
        check_file_limit(&live)?;
        live.set_keep_rule(config.keep);
        let published = config.publishes.then(|| book.parts().map(|_| AtomicU32::new(0)).collect());
        let none = Cut::new(book.parts().map(|_| None).collect());
        let this = Self {
            book,
            parts: RwLock::new(parts.into()),
            changes: AtomicU64::new(0),
            arriving: RwLock::new(arriving.into()),
            leaving: RwLock::new(None),
            looking: Mutex::new(()),
            roams: config.local_parts,
            grows: config.local_parts || config.grows,
            is_moving: AtomicBool::new(false),
            tensors,
            live,
            files: Arc::default(),
            pins: Pins::default(),
            profile,
            writable: config.writable,
            follows: config.follow.clone(),
            served: RwLock::new(none.into()),
            published,
            fenced: RwLock::default(),
            puts: Puts::default(),
            followers: Followers::default(),
            moved: Mutex::new(moved),
            following: FollowingState::default(),
            // Never 0, which means "unknown".
            instance: Uuid::new_v4().as_u64_pair().1 | 1,
        };
        this.note_served(this.seen(None));
        if let Some(reason) = &config.paused {
            this.pause(reason);
        }
        Ok(this)
    }

    /// Returns the partitions that are served now, ascending.
    pub(crate) fn parts(&self) -> Arc<[PartId]> {
        Arc::clone(&self.parts.read().ignore_poison())
    }

    /// Returns the partitions that may be served at some time.
    pub(crate) fn parts_ever(&self) -> Arc<[PartId]> {
        if self.grows { self.book.parts().collect() } else { self.parts() }
    }

    /// Adds a partition to the served list, or removes it.
    pub(crate) fn set_served(&self, part: PartId, is_served: bool) {
        let mut parts = self.parts.write().ignore_poison();
        let mut changed: Vec<PartId> = parts.iter().copied().filter(|it| *it != part).collect();
        if is_served {
            debug_assert!(
                self.served_version(part) > 0,
                "partition {part} is served at no version"
            );
            changed.push(part);
            changed.sort_unstable();
        }
        *parts = changed.into();
        if !is_served {
            let mut served = self.served.write().ignore_poison();
            *served = served.with([(part, None)]).into();
        }
        self.has_changed();
    }

    /// Notes that the description for clients has changed.
    pub(crate) fn has_changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Describes a partition as in transit while its release is undecided; `None` once it is
    /// decided.
    pub(crate) fn set_leaving(&self, part: Option<PartId>) {
        *self.leaving.write().ignore_poison() = part;
        self.has_changed();
    }

    /// Returns whether the release of a partition is undecided.
    pub(crate) fn is_leaving(&self, part: PartId) -> bool {
        *self.leaving.read().ignore_poison() == Some(part)
    }

    /// Records which server took over a partition; `None` removes the record. Blocks on the folder.
    pub(crate) fn note_moved(&self, part: PartId, to: Option<&str>) {
        let noted = {
            let mut moved = self.moved.lock().ignore_poison();
            let before = match to {
                Some(to) => moved.insert(part, to.to_owned()),
                None => moved.remove(&part),
            };
            if before.as_deref() == to {
                return;
            }
            moved.clone()
        };
        self.has_changed();
        // Moves are serialized by `begin_move`, so records are written in order.
        if let Err(error) = self.live.graph().note_moved_to(&noted) {
            tracing::warn!(%part, %error, "cannot save the partition's new address for followers");
        }
    }

    /// Returns the partitions that other servers took over, for descriptions.
    fn moved(&self, served: &[PartId]) -> Vec<MovedPart> {
        let moved = self.moved.lock().ignore_poison();
        let gone = moved.iter().filter(|(part, _)| !served.contains(part));
        gone.map(|(part, to)| MovedPart { part: part.0, to: to.clone() }).take(MOVED_MAX).collect()
    }

    /// Updates the list of partitions in transit: partial copies, and complete folders that are not
    /// served yet or no longer. Blocks on the folder.
    pub(crate) fn look_for_arrivals(&self) -> Result<(), StoreError> {
        let _alone = self.looking.lock().ignore_poison();
        let graph = self.live.graph();
        let mut found = Arrival::begun_in(graph)?;
        let served = self.parts();
        found.extend(graph.local_parts().into_iter().filter(|part| !served.contains(part)));
        found.sort_unstable();
        found.dedup();
        *self.arriving.write().ignore_poison() = found.into();
        self.has_changed();
        Ok(())
    }

    /// Returns the versions that new pulls read: those that every shard has reached.
    pub(crate) fn served(&self) -> Arc<Cut> {
        Arc::clone(&self.served.read().ignore_poison())
    }

    /// Returns the version of a partition that every shard has reached; 0 for a partition that is
    /// not here. New pulls read no other version.
    pub(crate) fn served_version(&self, part: PartId) -> u32 {
        self.served().version(part).map_or(0, |version| version.number)
    }

    /// Returns the committed version of a partition, or of all open ones.
    pub(crate) fn committed(&self, part: Option<PartId>) -> Vec<(PartId, u32)> {
        let mut versions = self.live.part_versions();
        versions.retain(|(it, _)| part.is_none_or(|part| part == *it));
        versions
    }

    /// Returns whether some partition is served at an older version than the committed one.
    pub(crate) fn is_behind(&self) -> bool {
        let newest = |(part, version): &(PartId, u32)| (*version).min(self.last_common(*part));
        self.committed(None).iter().any(|it| self.served_version(it.0) < newest(it))
    }

    /// Returns the newest committed state of a partition, or of all open ones.
    pub(crate) fn seen(&self, part: Option<PartId>) -> Vec<(PartId, Arc<PartCut>)> {
        let committed = self.committed(part).into_iter();
        committed.filter_map(|(part, _)| Some((part, self.newest_of(part)?))).collect()
    }

    fn newest_of(&self, part: PartId) -> Option<Arc<PartCut>> {
        let n_tensors = self.tensors.len();
        for _ in 0..LOOKS_MAX {
            let number = self.live.part_version(part)?;
            if number > self.last_common(part) {
                return PartCut::at(&self.live, part, self.last_common(part), n_tensors);
            }
            if let Some(cut) = PartCut::newest(&self.live, part, number, n_tensors) {
                return Some(cut);
            }
            // A commit is publishing: it sets the partition's version after those of its tensors.
            std::thread::yield_now();
        }
        PartCut::at(&self.live, part, self.live.part_version(part)?, n_tensors)
    }

    /// Notes that another writer has taken over a partition from version `last_common` on. New
    /// pulls read that version, or an earlier one that is already served. If that version is no
    /// longer readable, the partition is not served. Blocks while the index is built.
    pub(crate) fn fence(&self, part: PartId, last_common: u32) {
        let last_common = *self.fenced.write().ignore_poison().entry(part).or_insert(last_common);
        if self.served_version(part) > last_common {
            let common = PartCut::at(&self.live, part, last_common, self.tensors.len());
            let is_served = common.is_some();
            {
                let mut served = self.served.write().ignore_poison();
                *served = served.with([(part, common)]).into();
            }
            if !is_served {
                self.set_served(part, false);
            }
        }
        self.has_changed();
    }

    /// Returns the newest version of a partition that may be served.
    fn last_common(&self, part: PartId) -> u32 {
        self.fenced(part).unwrap_or(u32::MAX)
    }

    /// Notes that every shard has switched to these versions, or to later ones.
    pub(crate) fn note_served(&self, seen: Vec<(PartId, Arc<PartCut>)>) {
        let mut served = self.served.write().ignore_poison();
        let is_new = |(part, cut): &(PartId, Arc<PartCut>)| {
            let is_open = self.live.part_version(*part).is_some();
            let known = served.part(*part);
            is_open && known.is_none_or(|known| known.is_replaced_by(cut, &self.live, *part))
        };
        let new: Vec<_> = seen.into_iter().filter(is_new).collect();
        if new.is_empty() {
            return;
        }
        let after = |(part, cut): (PartId, Arc<PartCut>)| {
            let known = served.part(part);
            let cut = known.map_or_else(|| Arc::clone(&cut), |known| Arc::new(cut.after(known)));
            (part, Some(cut))
        };
        let changed: Vec<_> = new.into_iter().map(after).collect();
        *served = served.with(changed).into();
    }

    /// Returns two counters, one of which changes whenever the description does.
    pub(crate) fn described(&self) -> [u64; 2] {
        [self.changes.load(Ordering::Acquire), self.served().serial()]
    }

    /// Begins a move, of which one runs at a time; `None` while another is under way.
    pub(crate) fn begin_move(&self) -> Option<Moving<'_>> {
        (!self.is_moving.swap(true, Ordering::AcqRel)).then_some(Moving(self))
    }

    /// Returns the description that clients receive.
    pub(crate) fn describe(&self, n_shards: u16, shard_ports: &[u16]) -> Description {
        // Locked first, so that a partition under release is always in one of the lists.
        let leaving = self.leaving.read().ignore_poison();
        let (meta, parts) = (self.live.graph().meta(), self.parts());
        let arriving = self.arriving.read().ignore_poison();
        let is_coming = |part: &PartId| arriving.contains(part) || *leaving == Some(*part);
        let coming = self.book.parts().filter(|part| is_coming(part) && !parts.contains(part));
        let role = match (self.writable, &self.follows) {
            (true, _) => Role::Writer,
            (false, Some(_)) => Role::Follower,
            (false, None) => Role::Reader,
        };
        let served = self.served();
        let state = |&part: &PartId| {
            let VersionTag { number, tag } = served.version(part).unwrap_or_default();
            let role = if self.fenced(part).is_some() { Role::Reader } else { role };
            PartState { version: number, tag, role }
        };
        let states: Vec<PartState> = parts.iter().map(state).collect();
        Description {
            graph: *meta.uuid.as_bytes(),
            n_edges: meta.edges,
            bounds: self.book.bounds().to_vec(),
            parts: parts.iter().map(|part| part.0).collect(),
            tensors: self.tensors.iter().map(|tensor| tensor.description.clone()).collect(),
            shard_ports: shard_ports.to_vec(),
            n_shards,
            version: states.iter().map(|state| state.version).min().unwrap_or(0),
            writable: self.writable,
            shares: true,
            roams: self.roams,
            states,
            arriving: coming.map(|part| part.0).collect(),
            instance: self.instance,
            followers: self.followers.list(),
            moved: self.moved(&parts),
        }
    }

    /// Returns the state of updates, without compactions.
    pub(crate) fn updates(&self) -> UpdateStats {
        let (mut committed_rows, mut pending_rows) = (0, 0);
        for (_, _, tensor) in self.live_tensors() {
            committed_rows += tensor.current().n_changed();
            pending_rows += tensor.n_pending();
        }
        let (version, writable) = (self.live.version(), self.live.takes_writes());
        let published = self.published_versions();
        let published =
            published.map(|all| all.iter().map(|&(_, version)| version).min().unwrap_or(0));
        UpdateStats {
            version,
            writable,
            committed_rows,
            pending_rows,
            published,
            following: self.follow_stats(),
            ..UpdateStats::default()
        }
    }

    /// Returns the progress of each followed partition.
    pub(crate) fn followed(&self) -> Vec<FollowedPart> {
        self.following.list(&|part| self.served_version(part), Instant::now())
    }

    fn follow_stats(&self) -> Option<FollowStats> {
        self.follows.as_ref()?;
        summary(&self.followed())
    }

    /// Rejects puts and commits of all partitions until they are resumed.
    pub(crate) fn pause(&self, reason: &str) {
        for part in self.live.parts() {
            self.live.pause_writes(part, Some((reason.to_owned(), ADVICE_PAUSED)));
        }
    }

    /// Returns the last common version of a partition that has another writer now.
    pub(crate) fn fenced(&self, part: PartId) -> Option<u32> {
        self.fenced.read().ignore_poison().get(&part).copied()
    }

    /// Records that a version of a partition is published.
    pub(crate) fn note_published(&self, part: PartId, version: u32) {
        if let Some(published) = self.published.as_ref().and_then(|all| all.get(part.index())) {
            published.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Returns the published version of each partition, 0 before the first; `None` if this server
    /// does not publish.
    pub(crate) fn published_versions(&self) -> Option<Vec<(PartId, u32)>> {
        let published = self.published.as_ref()?;
        let version = |part: &PartId| published[part.index()].load(Ordering::Acquire);
        Some(self.parts().iter().map(|part| (*part, version(part))).collect())
    }

    /// Keeps the newest version for readers that are about to pin it, across later commits and
    /// compactions. Blocks while its index is built.
    pub(crate) fn keep_newest(&self) {
        // A version that cannot be pinned is not committed on all partitions.
        if let Ok(pinned) = self.live.pin(self.live.version()) {
            let cut = Cut::pinned(&self.live, &pinned, self.tensors.len());
            self.pins.keep(pinned.version(), &Arc::new(cut), Use::Newest, Instant::now());
        }
    }

    /// Returns the identity of the graph (uuid).
    pub(crate) fn graph(&self) -> [u8; 16] {
        *self.live.graph().meta().uuid.as_bytes()
    }

    /// Returns the number that identifies this run of the server.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// Returns every tensor of every served partition, with its position in the graph's
    /// description.
    pub(crate) fn live_tensors(&self) -> impl Iterator<Item = (PartId, usize, Arc<TensorHandle>)> {
        let positions = 0..self.tensors.len();
        let parts = self.parts();
        let pairs = (0..parts.len()).flat_map(move |i| positions.clone().map(move |at| (i, at)));
        pairs.filter_map(move |(i, at)| Some((parts[i], at, self.live.tensor(parts[i], at)?)))
    }

    /// Returns the number of keys per shard of a tensor's rows in one partition (an upper bound,
    /// exclusive).
    pub(crate) fn keys_of(&self, part: PartId, tensor: &ServedTensor) -> u64 {
        let n_rows = u32::try_from(self.book.range(part).len()).unwrap_or(u32::MAX);
        tensor.stripes.keys_of(n_rows)
    }
}

/// Reads which servers took over partitions from a folder. A failure is only logged: the record
/// merely helps clients find the new owner.
fn moved_from(graph: &Graph) -> BTreeMap<PartId, String> {
    let mut moved = graph.moved_to().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read where partitions moved; followers are not redirected");
        BTreeMap::new()
    });
    moved.retain(|_, to| to.len() <= ADDRESS_BYTES_MAX);
    moved
}

/// A move that is under way, until this is dropped.
pub(crate) struct Moving<'a>(&'a Partitions);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.is_moving.store(false, Ordering::Release);
    }
}

impl ServedTensor {
    fn new(spec: &TensorSpec, uuid: Uuid, n_shards: u16) -> Result<Self, ServerError> {
        let found = spec.row_bytes();
        let row_bytes = u32::try_from(found)
            .ok()
            .filter(|&b| b > 0 && b as usize <= ROW_BYTES_MAX)
            .ok_or_else(|| ServerError::RowBytes {
                tensor: spec.name.clone(),
                found,
                limit: ROW_BYTES_MAX,
            })?;
        let stripes = Stripes::for_rows(n_shards, row_bytes);
        let description = TensorDescription {
            name: spec.name.clone(),
            dtype: spec.dtype.name().to_owned(),
            width: spec.width,
            row_bytes,
            stripe_rows: stripes.stripe_rows(),
            uuid: uuid.into_bytes(),
        };
        Ok(Self { description, stripes })
    }
}
