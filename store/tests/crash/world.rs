//! A small graph on a simulated device, used in all ways there are, and a model of what it may
//! hold: what was acknowledged, and what failed and may show up after the next opening.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::{NodeId, PartId};
use lodestore_store::crash::CrashDevice;
use lodestore_store::{
    Access, Device, EXTERNAL_ID_TENSOR, EmbeddedStore, Graph, LiveGraph, LiveMode, OpenOptions,
    ReaderKind, StoreError, View, verify_on,
};

use super::small::{BOUNDS, N_NODES, OUT, Rows, TENSORS, external_of};

/// What is wrong, if something is.
pub(crate) type Finding = Result<(), Box<dyn Error>>;

/// One thing to do with the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Puts rows of a tensor to the nodes whose bits are set.
    Put {
        /// Position in [`TENSORS`].
        tensor: usize,
        /// One bit per node.
        nodes: u16,
    },
    /// Commits what was put.
    Commit,
    /// Compacts a partition, or all.
    Compact {
        /// The partition.
        part: Option<u16>,
    },
    /// Removes what compactions have left.
    Sweep,
    /// Reads everything in every way.
    Gather,
    /// Keeps the newest version in view.
    Pin,
    /// Keeps the graph open for reading beside the writer, as another process would.
    Read,
    /// Lets the oldest view or reader go.
    Release,
    /// Reads and checks everything on disk.
    Verify,
    /// Opens the graph for reading and looks at it.
    Look,
    /// Closes everything and opens the graph for writing.
    Reopen,
}

/// For each tensor and node, the puts that its row may be of, one bit each.
type Puts = [[u64; N_NODES as usize]; TENSORS.len()];

/// Most puts of one model; put 0 is the import.
pub(crate) const MAX_PUTS: u32 = 63;

/// What the graph may hold.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// What everybody sees that looks now.
    latest: Puts,
    /// The committed version.
    version: u32,
    /// Whether a commit has failed, so that it may turn out to have happened.
    commit_in_doubt: bool,
    /// The last put that failed: in each partition, all of it has happened or none.
    put_in_doubt: Option<(usize, u16, u32)>,
    /// Committed versions.
    frozen: BTreeMap<u32, Puts>,
    n_puts: u32,
}

/// A view that somebody keeps, and what it must go on seeing.
struct Held {
    store: EmbeddedStore,
    puts: Puts,
}

/// The graph in use.
pub(crate) struct World {
    crash: CrashDevice,
    device: Arc<dyn Device>,
    /// Opened once: it does not change.
    graph: OnceCell<Graph>,
    live: Option<Arc<LiveGraph>>,
    held: Vec<Held>,
    /// What may be there.
    pub(crate) model: Model,
    /// Whether the planned fault goes on once it has come.
    pub(crate) is_sticky: bool,
}

impl Model {
    /// The model of a graph that was imported and not changed.
    pub(crate) fn imported() -> Self {
        let latest = [[1; N_NODES as usize]; TENSORS.len()];
        Self {
            latest,
            version: 1,
            commit_in_doubt: false,
            put_in_doubt: None,
            frozen: BTreeMap::from([(1, latest)]),
            n_puts: 1,
        }
    }
}

impl World {
    /// The graph on `crash`, not open yet.
    pub(crate) fn new(crash: &CrashDevice, model: Model) -> Self {
        let (crash, device) = (crash.clone(), Arc::new(crash.clone()));
        let graph = OnceCell::new();
        Self { crash, device, graph, live: None, held: Vec::new(), model, is_sticky: false }
    }

    /// Does one thing. What the store refuses because of a fault of the device is no finding; what
    /// it refuses without one is.
    pub(crate) fn act(&mut self, op: &Op) -> Finding {
        let had_struck = self.crash.has_struck();
        let done = match op {
            Op::Put { tensor, nodes } => self.put(*tensor, *nodes),
            Op::Commit => self.commit(),
            Op::Compact { part } => self.with_live(|live| {
                live.compact(part.map(PartId), None, &mut |_, _| ControlFlow::Continue(()))
                    .map(drop)
            }),
            Op::Sweep => self.with_live(|live| live.sweep().map(drop)),
            Op::Gather => return self.gather(had_struck),
            Op::Pin => self.pin(),
            Op::Read => self.read(),
            Op::Release => {
                if !self.held.is_empty() {
                    self.held.remove(0);
                }
                Ok(())
            }
            Op::Verify => return self.verify(),
            Op::Look => return self.look(),
            Op::Reopen => return self.reopen(),
        };
        done.or_else(|error| self.excuse(&error, had_struck))
    }

    /// Lets everything go: views, readers, the graph.
    pub(crate) fn close(&mut self) {
        self.held.clear();
        self.live = None;
    }

    /// From now on expects the rows that are seen now, of all that may be there.
    pub(crate) fn believe(&mut self) -> Finding {
        let Some(live) = &self.live else { return Ok(()) };
        let store = EmbeddedStore::over(Arc::clone(live), View::Latest)?;
        for (tensor, rows) in TENSORS.iter().enumerate() {
            let seqs = seqs(&store, rows)??;
            allowed(rows, &seqs, &self.model.latest[tensor])?;
            for (puts, seq) in self.model.latest[tensor].iter_mut().zip(seqs) {
                *puts = 1 << seq;
            }
        }
        self.model.put_in_doubt = None;
        Ok(())
    }

    /// Whether an error is the device's fault, and tells of it.
    fn excuse(&self, error: &StoreError, had_struck: bool) -> Finding {
        let told = error.to_string();
        let cause = match error {
            StoreError::WritesStopped { .. } => had_struck,
            // Nothing but the fault itself goes wrong, or what is done while it goes on.
            _ if had_struck && !self.is_sticky => false,
            StoreError::Io { source, .. } | StoreError::Read { source, .. } => {
                source.raw_os_error().is_some() || told.contains("lost power")
            }
            StoreError::Catalog { reason, .. } => {
                reason.contains("os error") || reason.contains("lost power")
            }
            _ => false,
        };
        if cause && self.crash.has_struck() && told.contains(OUT) {
            return Ok(());
        }
        Err(format!("refused without a reason: {told}").into())
    }

    fn with_live(
        &mut self,
        act: impl FnOnce(&Arc<LiveGraph>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.live.as_ref().map_or(Ok(()), act)
    }

    fn put(&mut self, tensor: usize, nodes: u16) -> Result<(), StoreError> {
        let Some(live) = &self.live else { return Ok(()) };
        if self.model.n_puts >= MAX_PUTS {
            return Ok(());
        }
        let (seq, rows) = (self.model.n_puts, TENSORS[tensor]);
        self.model.n_puts += 1;
        let ids: Vec<NodeId> = nodes_of(nodes).map(NodeId).collect();
        let mut bytes = Vec::with_capacity(ids.len() * rows.row_bytes);
        for id in &ids {
            let (first, others) = rows.row(id.0, seq);
            bytes.push(first);
            bytes.extend_from_slice(others);
        }
        let before = self.model.latest;
        let done = live.put_rows(rows.name, &ids, &bytes).map(drop);
        if self.model.commit_in_doubt && live.version() > self.model.version {
            // A put finishes the commit before it.
            self.model.commit_in_doubt = false;
            self.model.version = live.version();
            self.model.frozen.insert(live.version(), before);
        }
        if done.is_ok() {
            // Later rows may be over some of its own.
            self.model.put_in_doubt = None;
        }
        let in_doubt = match &done {
            Ok(()) => 0,
            // Nothing was tried.
            Err(StoreError::WritesStopped { .. }) => return done,
            Err(_) => {
                self.model.put_in_doubt = Some((tensor, nodes, seq));
                u64::MAX
            }
        };
        for id in ids {
            let puts = &mut self.model.latest[tensor][id.index()];
            *puts = *puts & in_doubt | 1 << seq;
        }
        done
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let Some(live) = &self.live else { return Ok(()) };
        match live.commit_version() {
            Ok(version) => {
                assert_eq!(version, self.model.version + 1);
                self.model.version = version;
                self.model.commit_in_doubt = false;
                self.model.frozen.insert(version, self.model.latest);
                Ok(())
            }
            Err(error) => {
                self.model.commit_in_doubt |= !matches!(error, StoreError::WritesStopped { .. });
                Err(error)
            }
        }
    }

    fn pin(&mut self) -> Result<(), StoreError> {
        let Some(live) = &self.live else { return Ok(()) };
        let version = live.version();
        let store = EmbeddedStore::over(Arc::clone(live), View::At(version))?;
        self.held.push(Held { store, puts: self.model.frozen[&version] });
        Ok(())
    }

    fn read(&mut self) -> Result<(), StoreError> {
        let store = EmbeddedStore::over(Arc::new(self.open(LiveMode::Read)?), View::Latest)?;
        // What failed may have been found in the log, or not be there yet.
        self.held.push(Held { store, puts: self.model.latest });
        Ok(())
    }

    fn open(&self, mode: LiveMode) -> Result<LiveGraph, StoreError> {
        let graph = match self.graph.get() {
            Some(graph) => graph.clone(),
            None => {
                let graph = Graph::open_on(Arc::clone(&self.device), Path::new(OUT))?;
                self.graph.get_or_init(|| graph).clone()
            }
        };
        // As for any device that is no disk; naming it saves a look at the machine's memory.
        let options = OpenOptions { reader: ReaderKind::Pread };
        LiveGraph::open(graph, None, mode, &options)
    }

    /// Reads the latest, every version that can be read, and what is held.
    fn gather(&self, had_struck: bool) -> Finding {
        for held in &self.held {
            self.check(&held.store, &held.puts, had_struck)?;
        }
        let Some(live) = &self.live else { return Ok(()) };
        let at = |view| EmbeddedStore::over(Arc::clone(live), view);
        self.check(&at(View::Latest)?, &self.model.latest, had_struck)?;
        let oldest = live.oldest_version();
        for (&version, puts) in &self.model.frozen {
            match at(View::At(version)) {
                Ok(store) if version >= oldest => self.check(&store, puts, had_struck)?,
                Err(StoreError::NoVersion { .. }) if version < oldest => {}
                Ok(_) => return Err(format!("version {version} before {oldest} was read").into()),
                Err(error) => return Err(error.into()),
            }
        }
        match at(View::At(live.version() + 1)) {
            Err(StoreError::NoVersion { .. }) => Ok(()),
            other => Err(format!("a version to come: {:?}", other.map(drop)).into()),
        }
    }

    /// Every row is whole, and of a put that it may be of.
    fn check(&self, store: &EmbeddedStore, puts: &Puts, had_struck: bool) -> Finding {
        for (rows, puts) in TENSORS.iter().zip(puts) {
            match seqs(store, rows) {
                Ok(seqs) => allowed(rows, &seqs?, puts)?,
                Err(error) => self.excuse(&error, had_struck)?,
            }
        }
        Ok(())
    }

    fn verify(&self) -> Finding {
        match verify_on(Arc::clone(&self.device), Path::new(OUT), 1, &mut |_, _| {}) {
            Ok(report) if report.ok => Ok(()),
            // Under a fault it tells what it could not read.
            _ if self.crash.has_struck() => Ok(()),
            Ok(report) => Err(format!("damaged: {:?}", report.damaged).into()),
            Err(error) => Err(error.into()),
        }
    }

    /// What another process sees, before anything is recovered.
    fn look(&self) -> Finding {
        let had_struck = self.crash.has_struck();
        let live = match self.open(LiveMode::Read) {
            Ok(live) => live,
            Err(error) => return self.excuse(&error, had_struck),
        };
        self.could_be(live.version())?;
        let store = EmbeddedStore::over(Arc::new(live), View::Latest)?;
        self.check(&store, &self.model.latest, had_struck)
    }

    /// Sees what has become of what was in doubt.
    fn reopen(&mut self) -> Finding {
        self.close();
        let had_struck = self.crash.has_struck();
        let live = match self.open(LiveMode::Write) {
            Ok(live) => Arc::new(live),
            Err(error) => return self.excuse(&error, had_struck),
        };
        self.live = Some(Arc::clone(&live));
        // What a fault keeps the opening from removing goes with the next one.
        let may_leave = self.crash.has_struck() && (self.is_sticky || !had_struck);
        let settled = self.settle(&live).and_then(|()| match may_leave {
            true => Ok(()),
            false => self.check_garbage(&live),
        });
        settled.or_else(|error| match error.downcast_ref::<StoreError>() {
            Some(error) => self.excuse(error, had_struck),
            None if error.is::<io::Error>() && self.crash.has_struck() => Ok(()),
            None => Err(error),
        })
    }

    fn could_be(&self, version: u32) -> Finding {
        let known = self.model.version..=self.model.version + u32::from(self.model.commit_in_doubt);
        if known.contains(&version) {
            return Ok(());
        }
        Err(format!("version {version}, expected {known:?}").into())
    }

    /// What was in doubt has been decided by the opening.
    fn settle(&mut self, live: &Arc<LiveGraph>) -> Finding {
        self.could_be(live.version())?;
        let model = &mut self.model;
        if live.version() > model.version {
            // Nothing was written after the commit that failed.
            model.version = live.version();
            model.frozen.insert(model.version, model.latest);
        }
        model.commit_in_doubt = false;
        let put_in_doubt = model.put_in_doubt.take();
        let store = EmbeddedStore::over(Arc::clone(live), View::Latest)?;
        for (tensor, rows) in TENSORS.iter().enumerate() {
            let seqs = seqs(&store, rows)??;
            allowed(rows, &seqs, &model.latest[tensor])?;
            if let Some((_, nodes, seq)) = put_in_doubt.filter(|put| put.0 == tensor) {
                whole_in_each_part(&seqs, nodes, seq)?;
            }
            for (puts, seq) in model.latest[tensor].iter_mut().zip(seqs) {
                *puts = 1 << seq;
            }
        }
        check_external_ids(&store)
    }

    /// Right after an opening for writing there is nothing that nobody needs.
    fn check_garbage(&self, live: &LiveGraph) -> Finding {
        let graph = live.graph();
        for part in graph.book().parts() {
            let dir = graph.part_dir(part);
            let names: Vec<String> =
                self.device.list(&dir)?.into_iter().map(|entry| entry.name).collect();
            // One segment per tensor, one of them external ids, the catalog, topology and halo.
            if names.len() != TENSORS.len() + 4 {
                return Err(format!("in {}: {names:?}", dir.display()).into());
            }
            let pairs = self.device.key_values(&dir.join("catalog"), Access::Read)?;
            for (position, rows) in TENSORS.iter().enumerate() {
                let mut found = 0;
                let prefix = format!("overlay/{}/", rows.name);
                pairs.scan(prefix.as_bytes(), &mut |_, _| {
                    found += 1;
                    std::ops::ControlFlow::Continue(())
                })?;
                let tensor = live.tensor(part, position).ok_or("a tensor is missing")?;
                let (committed, pending) = tensor.overlay_rows();
                let known = committed.iter().map(|(_, n)| n).sum::<u64>() + pending;
                if found != known {
                    return Err(format!("{found} overlay rows, {known} of them known").into());
                }
            }
        }
        Ok(())
    }
}

/// The put that each row is of.
fn seqs(store: &EmbeddedStore, rows: &Rows) -> Result<Result<Vec<u32>, String>, StoreError> {
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut out = vec![0xee; ids.len() * rows.row_bytes];
    store.gather(rows.name, &ids, &mut out)?;
    let seq = |(node, row): (u32, &[u8])| {
        let broken = || format!("node {node}, `{}`: {row:02x?}", rows.name);
        rows.seq_of(node, row).ok_or_else(broken)
    };
    Ok((0..).zip(out.chunks_exact(rows.row_bytes)).map(seq).collect())
}

fn allowed(rows: &Rows, seqs: &[u32], puts: &[u64; N_NODES as usize]) -> Finding {
    for (node, (&seq, &puts)) in seqs.iter().zip(puts).enumerate() {
        if seq > MAX_PUTS || puts >> seq & 1 == 0 {
            let name = rows.name;
            return Err(format!("node {node}, `{name}`: put {seq}, allowed {puts:#b}").into());
        }
    }
    Ok(())
}

/// A put that failed has happened to all of its nodes of a partition, or to none.
fn whole_in_each_part(seqs: &[u32], nodes: u16, seq: u32) -> Finding {
    for bounds in BOUNDS.windows(2) {
        let of_put = nodes_of(nodes).filter(|node| (bounds[0]..bounds[1]).contains(node));
        let happened: Vec<bool> = of_put.map(|node| seqs[node as usize] == seq).collect();
        if happened.iter().any(|&it| it) && !happened.iter().all(|&it| it) {
            return Err(format!("half of put {seq}: {happened:?}").into());
        }
    }
    Ok(())
}

fn nodes_of(bits: u16) -> impl Iterator<Item = u32> {
    (0..N_NODES).filter(move |node| bits >> node & 1 != 0)
}

/// External ids never change.
fn check_external_ids(store: &EmbeddedStore) -> Finding {
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut out = vec![0; ids.len() * 8];
    store.gather(EXTERNAL_ID_TENSOR, &ids, &mut out)?;
    let expected = external_of().into_iter().flat_map(|id| i64::from(id).to_le_bytes());
    if expected.eq(out) { Ok(()) } else { Err("wrong external ids".into()) }
}
