//! The rows of one tensor that one shard owns: host tier over segments.

use std::cell::RefCell;

use lodestore_cache::{PolicyKind, Tier};
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::{Failure, FailureCode, Stripes};
use lodestore_store::{DeviceProfile, ReadPlan, RowIdx};

use crate::dma::DmaReader;
use crate::error::failure;
use crate::holdings::{Holdings, TensorHolding};
use crate::stats::{Counters, count};

/// One tensor on one shard.
pub(crate) struct ShardRows {
    pub(crate) row_bytes: usize,
    stripes: Stripes,
    parts: Vec<Option<PartRows>>,
    tier: RefCell<Tier>,
    /// Scratch of gathers that are not running: as many as ever ran at once.
    scratch: RefCell<Vec<Scratch>>,
}

/// One partition of it. Keys of its rows in the tier start at `key_base`.
struct PartRows {
    key_base: u32,
    reader: DmaReader,
}

/// Buffers of one gather, kept for the next.
#[derive(Default)]
struct Scratch {
    keys: Vec<u32>,
    misses: Vec<u32>,
    /// Rows of one partition and their positions in the batch.
    rows: Vec<(RowIdx, u32)>,
    plan: ReadPlan,
}

impl ShardRows {
    /// Opens the tensor's segments on this executor with a tier of `tier_bytes`.
    pub(crate) async fn open(
        holdings: &Holdings,
        tensor: &TensorHolding,
        tier_bytes: usize,
    ) -> Result<Self, String> {
        let mut parts = Vec::with_capacity(tensor.segments.len());
        let mut key_base = 0u64;
        for (part, segment) in holdings.book.parts().zip(&tensor.segments) {
            let Some(segment) = segment else {
                parts.push(None);
                continue;
            };
            let reader = DmaReader::open(segment.clone()).await?;
            let base = u32::try_from(key_base).map_err(|_| "more rows than 2^32".to_owned())?;
            parts.push(Some(PartRows { key_base: base, reader }));
            let n_rows = u32::try_from(holdings.book.range(part).len()).unwrap_or(u32::MAX);
            key_base += tensor.stripes.keys_of(n_rows);
        }
        let key_space = u32::try_from(key_base).map_err(|_| "more rows than 2^32".to_owned())?;
        let row_bytes = tensor.description.row_bytes as usize;
        let tier = Tier::new(tier_bytes, row_bytes, key_space, PolicyKind::Clock)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            row_bytes,
            stripes: tensor.stripes,
            parts,
            tier: RefCell::new(tier),
            scratch: RefCell::default(),
        })
    }

    /// Copies the rows of `ids`, all of them this shard's, to `out`: hits from the tier, the rest
    /// from disk through one plan per partition.
    ///
    /// `ids` may repeat and come in any order; `out` is `ids.len() * row_bytes` long.
    pub(crate) async fn gather(
        &self,
        holdings: &Holdings,
        ids: &[NodeId],
        out: &mut [u8],
        counters: &Counters,
    ) -> Result<(), Failure> {
        debug_assert_eq!(out.len(), ids.len() * self.row_bytes);
        let mut scratch = self.scratch.borrow_mut().pop().unwrap_or_default();
        self.keys_of(holdings, ids, &mut scratch.keys)?;
        scratch.misses.clear();
        self.tier.borrow_mut().lookup(&scratch.keys, out, &mut scratch.misses);
        count(&counters.tier_hits, ids.len() - scratch.misses.len());
        count(&counters.tier_misses, scratch.misses.len());
        if !scratch.misses.is_empty() {
            self.read_misses(holdings, ids, out, &mut scratch, counters).await?;
            self.tier.borrow_mut().admit(&scratch.keys, out, &scratch.misses);
        }
        self.scratch.borrow_mut().push(scratch);
        Ok(())
    }

    fn keys_of(
        &self,
        holdings: &Holdings,
        ids: &[NodeId],
        keys: &mut Vec<u32>,
    ) -> Result<(), Failure> {
        keys.clear();
        keys.reserve(ids.len());
        for &id in ids {
            let (part, row) = holdings.locate(id).ok_or_else(|| not_here(holdings, id))?;
            let rows = self.part(part).ok_or_else(|| not_here(holdings, id))?;
            keys.push(rows.key_base + self.stripes.key_of(row));
        }
        Ok(())
    }

    async fn read_misses(
        &self,
        holdings: &Holdings,
        ids: &[NodeId],
        out: &mut [u8],
        scratch: &mut Scratch,
        counters: &Counters,
    ) -> Result<(), Failure> {
        let n_ids = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        for &part in &holdings.parts {
            let Some(part_rows) = self.part(part) else { continue };
            let range = holdings.book.range(part);
            scratch.rows.clear();
            for &position in &scratch.misses {
                let id = ids[position as usize].0;
                if range.contains(&id) {
                    scratch.rows.push((RowIdx(id - range.start), position));
                }
            }
            if scratch.rows.is_empty() {
                continue;
            }
            let layout = part_rows.reader.segment().layout();
            scratch
                .plan
                .build_scattered(&scratch.rows, n_ids, layout, &DeviceProfile::default())
                .map_err(|error| failure(FailureCode::Internal, error.to_string()))?;
            part_rows.reader.execute(&scratch.plan, out, counters).await?;
        }
        Ok(())
    }

    fn part(&self, part: PartId) -> Option<&PartRows> {
        self.parts.get(part.index())?.as_ref()
    }

    /// Closes the files; glommio wants that said, not dropped.
    pub(crate) async fn close(self) {
        for part in self.parts.into_iter().flatten() {
            part.reader.close().await;
        }
    }
}

/// The failure for a node that does not exist or lives on another server.
pub(crate) fn not_here(holdings: &Holdings, id: NodeId) -> Failure {
    let n_nodes = holdings.book.n_nodes();
    let message = match holdings.book.part_of(id) {
        None => format!("node {id} does not exist: the graph has nodes 0 to {n_nodes}, exclusive"),
        Some(part) => format!(
            "node {id} is in partition {part}, which this server does not hold; ask `describe`"
        ),
    };
    failure(FailureCode::NotFound, message)
}
