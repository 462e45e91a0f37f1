//! The rows of one batch: local ones gathered, hot ones copied, the rest pulled once.

mod planned;

use std::{ops::Range, sync::Arc, time::Instant};

use lodestore_cache::HotSet;
use lodestore_graph::{NodeId, PartId};

use crate::scatter::pull_scattered;
use crate::{ClientError, LoadStats, PullKind, RowSource, Turn};

/// One worker's way to the rows of one tensor.
///
/// Each thread has its own clone, because a loader reuses its lists from batch to batch.
#[derive(Clone)]
pub struct BatchLoader {
    local: Arc<dyn RowSource>,
    remote: Arc<dyn RowSource>,
    tensor: String,
    row_bytes: usize,
    owned: Vec<Range<u32>>,
    split: Split,
}

/// Where remote rows of a batch may lie already.
pub enum Kept {
    /// In the hot set of its epoch.
    Hot(Arc<HotSet>),
    /// In the tier that follows the schedule, when it is the batch's turn.
    Planned(Turn),
}

/// Which row of a batch comes from where; positions rise in each list.
#[derive(Clone, Default)]
struct Split {
    local: Vec<NodeId>,
    local_at: Vec<u32>,
    missing: Vec<NodeId>,
    missing_at: Vec<u32>,
    hot_at: Vec<u32>,
}

impl BatchLoader {
    /// A loader of `tensor` for a worker that owns the partitions `owned`: their rows come from
    /// `local`, all others from `remote`.
    pub fn new(
        local: Arc<dyn RowSource>,
        remote: Arc<dyn RowSource>,
        tensor: &str,
        owned: &[PartId],
    ) -> Result<Self, ClientError> {
        let row_bytes = local.tensor(tensor)?.row_bytes();
        let remote_bytes = remote.tensor(tensor)?.row_bytes();
        if row_bytes != remote_bytes {
            let tensor = tensor.to_owned();
            return Err(ClientError::SourcesDiffer {
                tensor,
                local: row_bytes,
                remote: remote_bytes,
            });
        }
        let owned = owned.iter().map(|&part| local.book().range(part)).collect();
        let (tensor, split) = (tensor.to_owned(), Split::default());
        Ok(Self { local, remote, tensor, row_bytes, owned, split })
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Whether the row of `node` is another worker's.
    #[must_use]
    pub fn is_remote(&self, node: NodeId) -> bool {
        !self.owned.iter().any(|range| range.contains(&node.0))
    }

    /// As [`BatchLoader::load`], for a batch with whatever is kept for it.
    pub fn load_kept(
        &mut self,
        nodes: &[NodeId],
        kept: Kept,
        out: &mut [u8],
    ) -> Result<LoadStats, ClientError> {
        match kept {
            Kept::Hot(hot) => self.load(nodes, &hot, out),
            Kept::Planned(turn) => self.load_planned(nodes, turn, out),
        }
    }

    /// Writes the rows of `nodes`, in order, to `out` of exactly `nodes.len() * row_bytes` bytes.
    ///
    /// Remote rows that `hot` lacks are fetched by one SyncPull (RapidGNN 4.7).
    pub fn load(
        &mut self,
        nodes: &[NodeId],
        hot: &HotSet,
        out: &mut [u8],
    ) -> Result<LoadStats, ClientError> {
        let start = Instant::now();
        ClientError::check_buffer(&self.tensor, nodes.len(), self.row_bytes, out.len())?;
        self.split_nodes(nodes, |id| hot.get(id).is_some());
        let split = Instant::now();
        // The pull of the missing rows first: it may overwrite every row of `out`.
        let pulled = pull_scattered(
            &*self.remote,
            &self.tensor,
            &self.split.missing,
            &self.split.missing_at,
            out,
            PullKind::Sync,
        )?;
        let (at_source, pulling) = (pulled.lookup + pulled.copy, split.elapsed());
        self.pull_local(out)?;
        for &position in &self.split.hot_at {
            let at = position as usize;
            if let Some(row) = hot.get(nodes[at].0) {
                out[at * self.row_bytes..][..self.row_bytes].copy_from_slice(row);
            }
        }
        let (seconds, pull) = (start.elapsed(), pulling.saturating_sub(at_source));
        let lookup = split - start + pulled.lookup;
        Ok(LoadStats {
            local_rows: self.split.local.len() as u64,
            // Of what was asked for, a source with a tier pulls only what that lacks.
            hit_rows: ((self.split.hot_at.len() + self.split.missing.len()) as u64)
                .saturating_sub(pulled.rows - pulled.ahead_rows),
            found: pulled.found,
            seconds: seconds.as_secs_f64(),
            lookup_seconds: lookup.as_secs_f64(),
            pull_seconds: pull.as_secs_f64(),
            copy_seconds: seconds.saturating_sub(lookup + pull).as_secs_f64(),
            ..LoadStats::from_pull(pulled)
        })
    }

    /// The source of rows that this worker does not own.
    pub(crate) fn remote(&self) -> &dyn RowSource {
        &*self.remote
    }

    /// Name of the tensor.
    pub(crate) fn tensor(&self) -> &str {
        &self.tensor
    }

    fn split_nodes(&mut self, nodes: &[NodeId], is_hot: impl Fn(u32) -> bool) {
        let split = &mut self.split;
        split.clear();
        for (position, &node) in (0u32..).zip(nodes) {
            if self.owned.iter().any(|range| range.contains(&node.0)) {
                split.local.push(node);
                split.local_at.push(position);
            } else if is_hot(node.0) {
                split.hot_at.push(position);
            } else {
                split.missing.push(node);
                split.missing_at.push(position);
            }
        }
    }

    /// The batch's own rows, each to its place.
    fn pull_local(&self, out: &mut [u8]) -> Result<(), ClientError> {
        let Split { local, local_at, .. } = &self.split;
        self.local.pull_at(&self.tensor, local, local_at, out, PullKind::Sync).map(|_| ())
    }
}

impl Split {
    fn clear(&mut self) {
        self.local.clear();
        self.local_at.clear();
        self.missing.clear();
        self.missing_at.clear();
        self.hot_at.clear();
    }
}

impl std::fmt::Debug for BatchLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchLoader")
            .field("tensor", &self.tensor)
            .field("row_bytes", &self.row_bytes)
            .field("owned", &self.owned)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
