//! A small graph on a simulated file system, used in all ways there are, beside a model of what it may
//! hold.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::{NodeId, PartId};
use lodestore_store::file_system::crash::CrashFileSystem;
use lodestore_store::file_system::{Access, FileSystem};
use lodestore_store::import::EXTERNAL_ID_TENSOR;
use lodestore_store::update::{Folding, KeepRule};
use lodestore_store::verify::verify_on;
use lodestore_store::{
    EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, StoreError, View,
};

pub(crate) use super::model::Model;
use super::model::{Puts, Seqs, allowed};
use super::small::{N_NODES, OUT, Rows, TENSORS, external_of};

/// The fault, if there is one.
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
    /// The first step of a commit of the next version.
    Prepare,
    /// The second step.
    Publish,
    /// Compacts a partition, or all.
    Compact {
        /// The partition.
        part: Option<u16>,
        /// Rows that become one file.
        what: Folding,
    },
    /// Has folds keep as many of the newest versions readable, until the graph is opened again.
    Keep(u32),
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

/// A view that is kept, and what it must continue to see.
struct Held {
    store: EmbeddedStore,
    contents: Vec<Puts>,
}

/// The graph in use.
pub(crate) struct World {
    crash: CrashFileSystem,
    fs: Arc<dyn FileSystem>,
    /// Opened once: it does not change.
    graph: OnceCell<Graph>,
    live: Option<Arc<GraphHandle>>,
    held: Vec<Held>,
    /// Possible contents.
    pub(crate) model: Model,
    /// Whether the planned fault continues once it has come.
    pub(crate) is_sticky: bool,
}

impl World {
    /// Returns the graph on `crash`, not open yet.
    pub(crate) fn new(crash: &CrashFileSystem, model: Model) -> Self {
        let (crash, fs) = (crash.clone(), Arc::new(crash.clone()));
        let graph = OnceCell::new();
        Self { crash, fs, graph, live: None, held: Vec::new(), model, is_sticky: false }
    }

    /// Does one thing. A refusal of the store because of a fault of the file system is no finding; a
    /// refusal without one is.
    pub(crate) fn act(&mut self, op: &Op) -> Finding {
        let had_struck = self.crash.has_struck();
        let done = match op {
            Op::Put { tensor, nodes } => self.put(*tensor, *nodes),
            Op::Commit => self.commit(),
            Op::Prepare => self.prepare(),
            Op::Publish => self.publish(),
            Op::Compact { part, what } => self.compact(*part, *what),
            Op::Keep(n_versions) => self.with_live(|live| {
                live.set_keep_rule(KeepRule { n_versions: *n_versions, ..KeepRule::NEWEST });
                Ok(())
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
        done.or_else(|error| match error.downcast_ref::<StoreError>() {
            Some(error) => self.excuse(error, had_struck),
            None => Err(error),
        })
    }

    /// Lets everything go: views, readers, the graph.
    pub(crate) fn close(&mut self) {
        self.held.clear();
        self.live = None;
    }

    /// Returns whether an error is the file system's fault, and reports it.
    fn excuse(&self, error: &StoreError, had_struck: bool) -> Finding {
        let told = error.to_string();
        let cause = match error {
            StoreError::WritesStopped { .. } => had_struck,
            // Nothing but the fault itself goes wrong, or what is done while it continues.
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
        act: impl FnOnce(&Arc<GraphHandle>) -> Result<(), StoreError>,
    ) -> Finding {
        Ok(self.live.as_ref().map_or(Ok(()), act)?)
    }

    fn put(&mut self, tensor: usize, nodes: u16) -> Finding {
        let Some(live) = &self.live else { return Ok(()) };
        let Some(seq) = self.model.begin_put() else { return Ok(()) };
        let rows = TENSORS[tensor];
        let ids: Vec<NodeId> = nodes_of(nodes).map(NodeId).collect();
        let mut bytes = Vec::with_capacity(ids.len() * rows.row_bytes);
        for id in &ids {
            let (first, others) = rows.row(id.0, seq);
            bytes.push(first);
            bytes.extend_from_slice(others);
        }
        let done = live.put_rows(rows.name, &ids, &bytes);
        // Nothing was tried.
        if !matches!(done, Err(StoreError::WritesStopped { .. })) {
            self.model.end_put(tensor, nodes, seq, done.as_ref().ok().copied())?;
        }
        done?;
        Ok(())
    }

    fn commit(&mut self) -> Finding {
        let Some(live) = &self.live else { return Ok(()) };
        match live.commit_version() {
            Ok(version) => self.model.committed(version),
            Err(error) => self.failed_commit(error),
        }
    }

    fn prepare(&mut self) -> Finding {
        let Some(live) = &self.live else { return Ok(()) };
        let done = live.prepare(live.version() + 1);
        if !matches!(done, Err(StoreError::WritesStopped { .. })) {
            self.model.tried_prepare();
        }
        done?;
        Ok(())
    }

    fn publish(&mut self) -> Finding {
        let Some(live) = &self.live else { return Ok(()) };
        let expected = self.model.version + 1;
        match live.commit_through(live.version() + 1) {
            Ok(found) if found.number == expected => {
                self.model.published();
                Ok(())
            }
            Ok(found) => Err(format!("version {found} was published, not {expected}").into()),
            Err(error) => self.failed_commit(error),
        }
    }

    fn failed_commit(&mut self, error: StoreError) -> Finding {
        let version = self.live.as_ref().map(|live| live.version());
        if !matches!(error, StoreError::WritesStopped { .. }) {
            version.map_or(Ok(()), |version| self.model.failed_commit(version))?;
        }
        Err(error.into())
    }

    fn compact(&mut self, part: Option<u16>, what: Folding) -> Finding {
        if self.live.is_some() {
            self.model.tried_fold(what != Folding::Deltas);
        }
        self.with_live(|live| {
            let mut go_on = |_, _| ControlFlow::Continue(());
            live.compact(part.map(PartId), None, what, &mut go_on).map(drop)
        })
    }

    fn pin(&mut self) -> Finding {
        let Some(live) = &self.live else { return Ok(()) };
        let version = live.version();
        let store = EmbeddedStore::from_handle(Arc::clone(live), View::At(version))?;
        self.held.push(Held { store, contents: vec![self.model.frozen[&version]] });
        Ok(())
    }

    fn read(&mut self) -> Finding {
        let store = EmbeddedStore::from_handle(Arc::new(self.open(OpenMode::Read)?), View::Latest)?;
        self.held.push(Held { store, contents: self.model.visible() });
        Ok(())
    }

    fn open(&self, mode: OpenMode) -> Result<GraphHandle, StoreError> {
        let graph = match self.graph.get() {
            Some(graph) => graph.clone(),
            None => {
                let graph = Graph::open_on(Arc::clone(&self.fs), Path::new(OUT))?;
                self.graph.get_or_init(|| graph).clone()
            }
        };
        // As for any file system that is no disk; naming it saves a look at the machine's memory.
        let options = OpenOptions { reader: ReaderKind::Pread };
        GraphHandle::open(graph, None, mode, &options)
    }

    /// Reads the latest, every version that can be read, and what is held.
    fn gather(&mut self, had_struck: bool) -> Finding {
        for held in &self.held {
            self.check(&held.store, &held.contents, had_struck)?;
        }
        let Some(live) = self.live.clone() else { return Ok(()) };
        let at = |view| EmbeddedStore::from_handle(Arc::clone(&live), view);
        if let Some(seqs) = self.check(&at(View::Latest)?, &self.model.visible(), had_struck)? {
            self.model.saw_latest(&seqs)?;
        }
        for (&version, puts) in &self.model.frozen {
            match at(View::At(version)) {
                Ok(store) => {
                    self.check(&store, &[*puts], had_struck)?;
                }
                Err(StoreError::NoVersion { .. }) if !self.model.must_have(version) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match at(View::At(live.version() + 1)) {
            Err(StoreError::NoVersion { .. }) => Ok(()),
            other => Err(format!("a version to come: {:?}", other.map(drop)).into()),
        }
    }

    /// Checks that every row is whole, and each partition has the rows of one of `contents`.
    /// Returns the rows unless a fault keeps some from being read.
    fn check(
        &self,
        store: &EmbeddedStore,
        contents: &[Puts],
        had_struck: bool,
    ) -> Result<Option<Seqs>, Box<dyn Error>> {
        match all_seqs(store) {
            Ok(seqs) => {
                let seqs = seqs?;
                allowed(&seqs, contents)?;
                Ok(Some(seqs))
            }
            Err(error) => self.excuse(&error, had_struck).map(|()| None),
        }
    }

    fn verify(&self) -> Finding {
        match verify_on(Arc::clone(&self.fs), Path::new(OUT), 1, &mut |_, _| {}) {
            Ok(report) if report.ok => Ok(()),
            // Under a fault it reports what it could not read.
            _ if self.crash.has_struck() => Ok(()),
            Ok(report) => Err(format!("damaged: {:?}", report.damaged).into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what another process sees, before anything is recovered.
    fn look(&self) -> Finding {
        let had_struck = self.crash.has_struck();
        let live = match self.open(OpenMode::Read) {
            Ok(live) => live,
            Err(StoreError::OldRows { .. }) if self.model.is_old => return Ok(()),
            Err(error) => return self.excuse(&error, had_struck),
        };
        self.model.could_be(live.version())?;
        let store = EmbeddedStore::from_handle(Arc::new(live), View::Latest)?;
        self.check(&store, &self.model.visible(), had_struck).map(drop)
    }

    /// Sees what has become of what was in doubt.
    fn reopen(&mut self) -> Finding {
        self.close();
        let had_struck = self.crash.has_struck();
        let live = match self.open(OpenMode::Write) {
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

    /// Settles the model after an opening, which has decided what was in doubt.
    fn settle(&mut self, live: &Arc<GraphHandle>) -> Finding {
        self.model.settle(live.version())?;
        let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest)?;
        let seqs = all_seqs(&store)??;
        allowed(&seqs, &self.model.visible())?;
        self.model.saw_latest(&seqs)?;
        check_external_ids(&store)
    }

    /// Checks that right after an opening for writing there is nothing that no reader and no commit
    /// needs.
    fn check_garbage(&self, live: &GraphHandle) -> Finding {
        let graph = live.graph();
        for part in graph.book().parts() {
            let dir = graph.part_dir(part);
            let names: BTreeSet<String> =
                self.fs.list(&dir)?.into_iter().map(|entry| entry.name).collect();
            let pairs = self.fs.key_values(&dir.join("catalog"), Access::Read)?;
            let mut named =
                BTreeSet::from(["catalog", "topology.csr", "halo.bin"].map(String::from));
            let mut strange = Vec::new();
            let committed = live.part_version(part).unwrap_or(0);
            pairs.scan_from(b"", &mut |key, value| {
                // A record ends with the name of its file.
                let fixed = match key {
                    _ if key.starts_with(b"segment/") => 60,
                    _ if key.starts_with(b"delta/") || key.starts_with(b"prepared/") => 64,
                    _ => 0,
                };
                if fixed > 0 {
                    named.insert(String::from_utf8_lossy(&value[fixed..]).into_owned());
                }
                if key.starts_with(b"overlay/") {
                    let version = key.len() - 8..key.len() - 4;
                    let version = key[version].try_into().map(u32::from_be_bytes).unwrap_or(0);
                    if version <= committed || version > committed + 2 {
                        strange.push(version);
                    }
                }
                ControlFlow::Continue(())
            })?;
            if names != named {
                let dir = dir.display();
                return Err(format!("in {dir}: {names:?}, of which are named {named:?}").into());
            }
            if !strange.is_empty() {
                return Err(format!("rows for {strange:?} over version {committed}").into());
            }
        }
        Ok(())
    }
}

/// Returns the put that each row of all tensors is of.
fn all_seqs(store: &EmbeddedStore) -> Result<Result<Seqs, String>, StoreError> {
    let mut all = [[0; N_NODES as usize]; TENSORS.len()];
    for (rows, all) in TENSORS.iter().zip(&mut all) {
        match seqs(store, rows)? {
            Ok(seqs) => all.copy_from_slice(&seqs),
            Err(broken) => return Ok(Err(broken)),
        }
    }
    Ok(Ok(all))
}

/// Returns the put that each row is of.
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

pub(crate) fn nodes_of(bits: u16) -> impl Iterator<Item = u32> {
    (0..N_NODES).filter(move |node| bits >> node & 1 != 0)
}

/// Checks the external ids, which never change.
fn check_external_ids(store: &EmbeddedStore) -> Finding {
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut out = vec![0; ids.len() * 8];
    store.gather(EXTERNAL_ID_TENSOR, &ids, &mut out)?;
    let expected = external_of().into_iter().flat_map(|id| i64::from(id).to_le_bytes());
    if expected.eq(out) { Ok(()) } else { Err("wrong external ids".into()) }
}
