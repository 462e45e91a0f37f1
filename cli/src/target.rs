//! Where rows are put and committed: the files of a graph, or its servers.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use lodestore_client::remote::CommitOutcome;
use lodestore_client::{Client, ClientConfig, EmbeddedSource, RowSource};
use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_store::update::KeepRule;
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, TensorSpec, View};

use crate::human::joined;
use crate::ids::InternalIds;
use crate::local_parts::{check_local, local_parts, remote_parts};

/// A graph that is known and not yet locked.
pub(crate) enum Place {
    Folder(Graph),
    Servers(Box<Client>),
}

/// A graph that takes rows.
pub(crate) enum Target {
    Files(Arc<GraphHandle>),
    Servers(Box<Client>),
}

impl Place {
    /// Returns the graph in `folder`, or behind the servers at `addresses`.
    pub(crate) fn find(
        folder: Option<&Path>,
        addresses: &[String],
        config: ClientConfig,
    ) -> Result<Self> {
        if let Some(folder) = folder {
            return Ok(Self::Folder(Graph::open(folder)?));
        }
        Ok(Self::Servers(Box::new(Client::connect(addresses, config)?)))
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<TensorSpec> {
        Ok(match self {
            Self::Folder(graph) => graph.tensor(name)?.clone(),
            Self::Servers(client) => {
                let info = client.tensor(name)?.info();
                TensorSpec::new(&info.name, info.dtype, info.width)?
            }
        })
    }

    pub(crate) fn n_nodes(&self) -> u32 {
        match self {
            Self::Folder(graph) => graph.book().n_nodes(),
            Self::Servers(client) => client.book().n_nodes(),
        }
    }

    /// Locks the partitions that are named, or else all that are here, against other writers.
    /// Servers have locked theirs.
    ///
    /// Fails when `commits` would make a version of some partitions and none are named. Pending
    /// rows of the others would become part of it later.
    pub(crate) fn open(self, named: &[PartId], commits: bool) -> Result<Target> {
        Ok(match self {
            Self::Folder(graph) => {
                let options = OpenOptions::default();
                let here = local_parts(&graph)?;
                let elsewhere = remote_parts(graph.book(), &here);
                if commits && named.is_empty() && !elsewhere.is_empty() {
                    bail!(
                        "{}: nothing is put or committed, since a commit would leave out partitions \
                         {}, which are not on this machine (is a disk not mounted?); to commit the \
                         others alone, name them: --parts {}",
                        graph.dir().display(),
                        joined(&elsewhere, ", "),
                        joined(&here, ",")
                    );
                }
                let parts = if named.is_empty() { &here[..] } else { named };
                let live = GraphHandle::open(graph, Some(parts), OpenMode::Write, &options)?;
                // Where it folds the files of very many commits, as a server does.
                live.set_keep_rule(KeepRule::default());
                Target::Files(Arc::new(live))
            }
            Self::Servers(client) => Target::Servers(client),
        })
    }
}

impl Target {
    /// Puts rows; they are durable when it returns.
    pub(crate) fn put(&self, tensor: &str, ids: &[NodeId], rows: &[u8]) -> Result<()> {
        match self {
            Self::Files(live) => live.put_rows(tensor, ids, rows).map(drop)?,
            Self::Servers(client) => client.put_rows(tensor, ids, rows).map(drop)?,
        }
        Ok(())
    }

    /// Makes a version of all that was put.
    pub(crate) fn commit(&self) -> Result<u32> {
        Ok(match self {
            Self::Files(live) => live.commit_version()?,
            Self::Servers(client) => client.commit()?,
        })
    }

    /// Makes a version of all that was put, unless nothing was.
    pub(crate) fn commit_pending(&self) -> Result<CommitOutcome> {
        match self {
            Self::Files(live) => {
                let is_new = live.pending_version() > live.version();
                let version = if is_new { live.commit_version()? } else { live.version() };
                Ok(CommitOutcome { version, is_new, parts: live.part_versions() })
            }
            Self::Servers(client) => Ok(client.commit_pending()?),
        }
    }

    /// Waits until `wanted` followers of each partition have a version; files have none.
    pub(crate) fn wait_for_followers(&self, version: u32, wanted: usize) -> Result<()> {
        match self {
            Self::Files(_) => Ok(()),
            Self::Servers(client) => Ok(client.wait_for_followers(version, wanted)?),
        }
    }

    /// Returns the newest version that all of it has committed.
    pub(crate) fn version(&self) -> Result<u32> {
        Ok(match self {
            Self::Files(live) => live.version(),
            Self::Servers(client) => client.version_id()?.number,
        })
    }

    /// Fails for a node whose rows it does not take; `nodes` are those of a list from position
    /// `first` on.
    pub(crate) fn check(&self, nodes: &[NodeId], first: u64) -> Result<()> {
        match self {
            Self::Files(live) => {
                let here: Vec<PartId> = live.parts().collect();
                check_local(live.graph().book(), &here, nodes, first)
            }
            // It knows its servers, and says so before it sends anything.
            Self::Servers(_) => Ok(()),
        }
    }

    /// Returns the partitions that there are.
    pub(crate) fn book(&self) -> &PartitionBook {
        match self {
            Self::Files(live) => live.graph().book(),
            Self::Servers(client) => client.book(),
        }
    }

    /// Returns the partitions of the graph that are not opened here.
    pub(crate) fn absent(&self) -> Vec<u16> {
        match self {
            Self::Files(live) => {
                let here: Vec<PartId> = live.parts().collect();
                remote_parts(live.graph().book(), &here)
            }
            Self::Servers(_) => Vec::new(),
        }
    }

    /// Returns the internal id of each external one.
    pub(crate) fn internal_ids(&self) -> Result<InternalIds> {
        match self {
            Self::Files(live) => {
                let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest)?;
                let here: Vec<PartId> = live.parts().collect();
                InternalIds::read(&EmbeddedSource::new(store), &here)
            }
            Self::Servers(client) => {
                let parts: Vec<PartId> = client.book().parts().collect();
                InternalIds::read(&**client, &parts)
            }
        }
    }
}
