//! Partitions of a server, opened and checked once before any shard starts, shared by all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_schema::limits::ROW_BYTES_MAX;
use lodestore_schema::reply::{Description, PartState, Role, TensorDescription, graph_tag};
use lodestore_schema::stats::UpdateStats;
use lodestore_schema::versions::PartVersion;
use lodestore_schema::{Stripes, Versions};
use lodestore_store::plan::DiskProfile;
use lodestore_store::transfer::Arrival;
use lodestore_store::update::TensorHandle;
use lodestore_store::{
    Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, StoreError, TensorSpec,
};
use uuid::Uuid;

use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::installer::ADVICE_PAUSED;
use crate::pins::{Pins, Use};
use crate::puts::Puts;

/// The partitions and tensors of one server.
pub(crate) struct Partitions {
    pub(crate) book: PartitionBook,
    /// The partitions that are served now, ascending, and how often that has changed.
    parts: RwLock<Arc<[PartId]>>,
    changes: AtomicU64,
    /// Those that are on their way here, ascending.
    arriving: RwLock<Arc<[PartId]>>,
    /// The one that is being given up, until that is decided.
    leaving: RwLock<Option<PartId>>,
    /// Held while the folder is looked at: the last look counts.
    looking: Mutex<()>,
    /// Whether clients may bring and take partitions; else those that it has stay.
    pub(crate) roams: bool,
    /// Whether partitions come while it serves.
    grows: bool,
    /// Whether one comes or goes at this moment.
    is_moving: AtomicBool,
    /// In the order of the graph's description.
    pub(crate) tensors: Vec<ServedTensor>,
    /// The partitions, open.
    pub(crate) live: Arc<GraphHandle>,
    /// Versions that are kept for readers.
    pub(crate) pins: Pins,
    /// Cost of reads from the graph's disk.
    pub(crate) profile: DiskProfile,
    /// As configured.
    pub(crate) writable: bool,
    /// Addresses of the writers that it follows.
    pub(crate) follows: Option<String>,
    /// By partition: the version that every shard has come to.
    served: Vec<AtomicU32>,
    /// By partition: the newest version that is published; `None` where none ever is.
    published: Option<Vec<AtomicU32>>,
    /// Partitions that have another writer now, with the last version that this one and that have
    /// in common.
    fenced: RwLock<BTreeMap<PartId, u32>>,
    /// Unfinished puts in pieces.
    pub(crate) puts: Puts,
    /// Drawn again for each start: by it clients see that two addresses lead to one server.
    instance: u64,
}

/// One tensor: the same on every partition.
pub(crate) struct ServedTensor {
    pub(crate) description: TensorDescription,
    pub(crate) stripes: Stripes,
}

impl Partitions {
    /// Opens every partition that the configuration names. Blocks on catalogs and on files.
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
        let specs = graph.meta().tensors.iter();
        let tensors = specs.map(|spec| ServedTensor::new(spec, n_shards));
        let tensors = tensors.collect::<Result<_, _>>()?;
        let mode = match (config.writable, &config.follow) {
            (true, _) => OpenMode::Write,
            (false, Some(_)) => OpenMode::Follow,
            (false, None) => OpenMode::Read,
        };
        let profile = DiskProfile::load(&**graph.device(), graph.dir());
        // Shards read segments in a way of their own, so that the store's needs no memory.
        let options = OpenOptions { reader: ReaderKind::Pread };
        let arriving = if config.local_parts { Arrival::begun_in(&graph)? } else { Vec::new() };
        let live = Arc::new(GraphHandle::open(graph, Some(&parts), mode, &options)?);
        live.set_keep_rule(config.keep);
        let served = |part| AtomicU32::new(live.part_version(part).unwrap_or(0));
        let served = book.parts().map(served).collect();
        let published = config.publishes.then(|| book.parts().map(|_| AtomicU32::new(0)).collect());
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
            pins: Pins::default(),
            profile,
            writable: config.writable,
            follows: config.follow.clone(),
            served,
            published,
            fenced: RwLock::default(),
            puts: Puts::default(),
            // Never 0, which stands for none.
            instance: Uuid::new_v4().as_u64_pair().1 | 1,
        };
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

    /// Lists a partition to clients from now on, or no longer.
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
        self.has_changed();
    }

    /// Notes a change of the descriptions that clients receive.
    pub(crate) fn has_changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Describes a partition to clients as not served while it is being released, which may be
    /// undone; `None` once that is decided.
    pub(crate) fn set_leaving(&self, part: Option<PartId>) {
        *self.leaving.write().ignore_poison() = part;
        self.has_changed();
    }

    /// Returns whether a partition is being given up, and that is not decided.
    pub(crate) fn is_leaving(&self, part: PartId) -> bool {
        *self.leaving.read().ignore_poison() == Some(part)
    }

    /// Describes partitions in transit to clients: those whose copies arrive, and those in place
    /// that are not served yet, or no longer. Blocks on the folder.
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

    /// Returns the version of a partition that every shard has reached. No gather that begins now
    /// reads an earlier one.
    pub(crate) fn served_version(&self, part: PartId) -> u32 {
        self.served.get(part.index()).map_or(0, |version| version.load(Ordering::Acquire))
    }

    /// Returns the lowest version that every shard has reached, over all partitions here.
    pub(crate) fn lowest_served(&self) -> u32 {
        self.parts().iter().map(|&part| self.served_version(part)).min().unwrap_or(0)
    }

    /// Returns the committed versions of a partition, or of all that are open.
    pub(crate) fn committed(&self, part: Option<PartId>) -> Vec<(PartId, u32)> {
        let mut versions = self.live.part_versions();
        versions.retain(|(it, _)| part.is_none_or(|part| part == *it));
        versions
    }

    /// Returns whether a shard is known to read a version of a partition before the committed one.
    pub(crate) fn is_behind(&self) -> bool {
        self.committed(None).iter().any(|&(part, version)| self.served_version(part) < version)
    }

    /// Notes that every shard has come to these versions.
    pub(crate) fn note_served(&self, versions: &[(PartId, u32)]) {
        for &(part, version) in versions {
            self.served[part.index()].fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Returns the versions that the partitions of these nodes have, or higher ones. Rows that were
    /// gathered before are of no later version.
    pub(crate) fn versions(&self, ids: &[NodeId]) -> Versions {
        let committed = self.committed(None);
        let all = committed.iter().map(|&(part, version)| PartVersion { part: part.0, version });
        if let Some(exact) = Versions::exactly(all.clone()) {
            return exact;
        }
        // A look at each node only where there are too many partitions to name.
        let parts: BTreeSet<u16> =
            ids.iter().filter_map(|id| Some(self.book.part_of(*id)?.0)).collect();
        Versions::reaching(all.filter(|it| parts.contains(&it.part)))
    }

    /// Returns numbers of which one changes whenever the description does.
    pub(crate) fn described(&self) -> [u64; 2] {
        let parts = self.parts();
        let changes = self.changes.load(Ordering::Acquire);
        // Versions of the same partitions only ascend.
        [changes, parts.iter().map(|&part| u64::from(self.served_version(part))).sum()]
    }

    /// Lets one partition come or go at a time; `None` while another does.
    pub(crate) fn begin_move(&self) -> Option<Moving<'_>> {
        (!self.is_moving.swap(true, Ordering::AcqRel)).then_some(Moving(self))
    }

    /// Returns the description that clients receive.
    pub(crate) fn describe(&self, n_shards: u16, shard_ports: &[u16]) -> Description {
        // First: what is given up is in one list or the other at every moment.
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
        let state = |&part: &PartId| PartState { version: self.served_version(part), role };
        let states: Vec<PartState> = parts.iter().map(state).collect();
        Description {
            graph: *meta.uuid.as_bytes(),
            n_edges: meta.edges,
            bounds: self.book.bounds().to_vec(),
            parts: parts.iter().map(|part| part.0).collect(),
            tensors: self.tensors.iter().map(|tensor| tensor.description.clone()).collect(),
            shard_ports: shard_ports.to_vec(),
            n_shards,
            version: self.live.version(),
            writable: self.writable,
            shares: true,
            roams: self.roams,
            states,
            arriving: coming.map(|part| part.0).collect(),
            instance: self.instance,
        }
    }

    /// Returns the state of updates, without the compactions.
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
            ..UpdateStats::default()
        }
    }

    /// Refuses puts and commits of all partitions for some time.
    pub(crate) fn pause(&self, reason: &str) {
        for part in self.live.parts() {
            self.live.pause_writes(part, Some((reason.to_owned(), ADVICE_PAUSED)));
        }
    }

    /// Notes that a partition has another writer now.
    pub(crate) fn note_fenced(&self, part: PartId, common: u32) {
        self.fenced.write().ignore_poison().entry(part).or_insert(common);
    }

    /// Returns the last common version of a partition that has another writer now.
    pub(crate) fn fenced(&self, part: PartId) -> Option<u32> {
        self.fenced.read().ignore_poison().get(&part).copied()
    }

    /// Notes that a version of a partition is published.
    pub(crate) fn note_published(&self, part: PartId, version: u32) {
        if let Some(published) = self.published.as_ref().and_then(|all| all.get(part.index())) {
            published.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Returns the published version of each partition, 0 before the first; `None` where none is
    /// ever published.
    pub(crate) fn published_versions(&self) -> Option<Vec<(PartId, u32)>> {
        let published = self.published.as_ref()?;
        let version = |part: &PartId| published[part.index()].load(Ordering::Acquire);
        Some(self.parts().iter().map(|part| (*part, version(part))).collect())
    }

    /// Keeps the newest version for readers that are about to pin it, whatever is committed or
    /// compacted from now on. Blocks while its index is built.
    pub(crate) fn keep_newest(&self) {
        // A version that cannot be pinned is not committed on all partitions.
        if let Ok(pinned) = self.live.pin(self.live.version()) {
            self.pins.keep(pinned.version(), &Arc::new(pinned), Use::Newest, Instant::now());
        }
    }

    /// Returns the name of the graph in requests.
    pub(crate) fn graph_tag(&self) -> u64 {
        graph_tag(*self.live.graph().meta().uuid.as_bytes())
    }

    /// Returns every tensor of every partition here, with its position in the graph's description.
    pub(crate) fn live_tensors(&self) -> impl Iterator<Item = (PartId, usize, Arc<TensorHandle>)> {
        let positions = 0..self.tensors.len();
        let parts = self.parts();
        let pairs = (0..parts.len()).flat_map(move |i| positions.clone().map(move |at| (i, at)));
        pairs.filter_map(move |(i, at)| Some((parts[i], at, self.live.tensor(parts[i], at)?)))
    }

    /// Returns an upper bound, exclusive, of the keys of a tensor's rows of one partition on each
    /// shard.
    pub(crate) fn keys_of(&self, part: PartId, tensor: &ServedTensor) -> u64 {
        let n_rows = u32::try_from(self.book.range(part).len()).unwrap_or(u32::MAX);
        tensor.stripes.keys_of(n_rows)
    }
}

/// One partition comes or goes, until this is dropped.
pub(crate) struct Moving<'a>(&'a Partitions);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.is_moving.store(false, Ordering::Release);
    }
}

impl ServedTensor {
    fn new(spec: &TensorSpec, n_shards: u16) -> Result<Self, ServerError> {
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
        };
        Ok(Self { description, stripes })
    }
}
