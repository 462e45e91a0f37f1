//! Volatile tensors in the memory of this process.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_cache::VolatileStore;
use lodestore_cache::volatile::VolatileClaim;
use lodestore_cache::volatile_store::{VolatileShape, VolatileTensor};
use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::Dtype;

use super::{
    NO_STAMP, Stamp, StampWanted, VolatileInfo, VolatilePublisher, VolatilePulled, VolatileSource,
};
use crate::error::ClientError;
use crate::source::TensorInfo;

/// Shortest and longest pause between two checks for awaited rows.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Divisor of the time waited so far; gives the next pause.
const PAUSES: u32 = 8;

/// Volatile tensors of all nodes of a graph, shared by the threads of this process without a server
/// or a copy over a wire.
///
/// ```
/// use lodestore_client::source::TensorInfo;
/// use lodestore_client::volatile::{EmbeddedVolatile, StampWanted, VolatileInfo, VolatileSource};
/// use lodestore_graph::{NodeId, PartitionBook};
/// use lodestore_store::Dtype;
///
/// let book = PartitionBook::new(vec![0, 50, 100]).expect("ascending bounds");
/// let memory = EmbeddedVolatile::new(&book, 1 << 20);
/// let tensor = TensorInfo { name: "h1".into(), dtype: Dtype::U8, width: 4 };
/// memory.declare(&VolatileInfo { tensor, range_rows: 0 })?;
/// let mut publisher = memory.publisher();
/// publisher.claim("h1", &[0..50])?;
/// publisher.publish("h1", &[NodeId(7)], b"7777", 3)?;
///
/// let mut out = [0; 8];
/// let ids = [NodeId(8), NodeId(7)];
/// let pulled = memory.pull_volatile("h1", &ids, StampWanted::now(3), &mut out)?;
/// assert_eq!((&out, pulled.lacking(), pulled.oldest()), (b"\0\0\0\07777", vec![0], Some(3)));
/// # Ok::<(), lodestore_client::ClientError>(())
/// ```
#[derive(Debug)]
pub struct EmbeddedVolatile {
    book: PartitionBook,
    store: VolatileStore,
}

impl EmbeddedVolatile {
    /// Creates a store for tensors of up to `memory_bytes` in total, over all partitions of `book`.
    #[must_use]
    pub fn new(book: &PartitionBook, memory_bytes: u64) -> Self {
        Self { book: book.clone(), store: VolatileStore::new(memory_bytes) }
    }

    fn get(&self, name: &str) -> Result<Arc<VolatileTensor>, ClientError> {
        let unknown =
            || ClientError::UnknownTensor { name: name.to_owned(), known: self.store.names() };
        self.store.get(name).ok_or_else(unknown)
    }
}

impl VolatileSource for EmbeddedVolatile {
    fn volatile(&self, name: &str) -> Result<VolatileInfo, ClientError> {
        let tensor = self.get(name)?;
        let shape = tensor.shape();
        // `declare` stored the name of a `Dtype`.
        let dtype = Dtype::ALL.into_iter().find(|dtype| dtype.name() == shape.dtype);
        let dtype = dtype.unwrap_or(Dtype::U8);
        let info = TensorInfo { name: shape.name.clone(), dtype, width: shape.width };
        Ok(VolatileInfo { tensor: info, range_rows: shape.range_rows })
    }

    fn declare(&self, info: &VolatileInfo) -> Result<(), ClientError> {
        info.check()?;
        let shape = VolatileShape {
            name: info.tensor.name.clone(),
            dtype: info.tensor.dtype.name().to_owned(),
            width: info.tensor.width,
            row_bytes: info.tensor.row_bytes(),
            range_rows: info.range_rows,
        };
        self.store.declare(&shape, self.book.parts().map(|part| self.book.range(part)))?;
        Ok(())
    }

    fn pull_volatile(
        &self,
        tensor: &str,
        ids: &[NodeId],
        wanted: StampWanted,
        out: &mut [u8],
    ) -> Result<VolatilePulled, ClientError> {
        let of = self.get(tensor)?;
        ClientError::check_buffer(tensor, ids.len(), of.shape().row_bytes, out.len())?;
        let rows = of.rows();
        let places = rows.locate(bytemuck::cast_slice(ids))?;
        let (begun, min_stamp) = (Instant::now(), wanted.min_stamp);
        let (mut first, mut stamps) = (Some(0), vec![NO_STAMP; places.len()]);
        loop {
            first = first.and_then(|at| rows.first_lacking(&places, min_stamp, at));
            let waited = begun.elapsed();
            let is_over = waited >= wanted.wait;
            if first.is_none() || is_over {
                // Rows that are being rewritten are pulled again while there is time.
                if rows.pull_stamped(&places, min_stamp, out, &mut stamps)? == 0 || is_over {
                    return Ok(VolatilePulled { stamps });
                }
                first = Some(0);
            }
            let pause = (waited / PAUSES).clamp(PAUSE_MIN, PAUSE_MAX);
            std::thread::sleep(pause.min(wanted.wait - waited));
        }
    }

    fn publisher(&self) -> Box<dyn VolatilePublisher + '_> {
        Box::new(EmbeddedPublisher { memory: self, claims: HashMap::new() })
    }
}

/// Claims of this process, by tensor.
struct EmbeddedPublisher<'a> {
    memory: &'a EmbeddedVolatile,
    claims: HashMap<String, (Arc<VolatileTensor>, Vec<VolatileClaim>)>,
}

impl VolatilePublisher for EmbeddedPublisher<'_> {
    fn claim(&mut self, tensor: &str, ids: &[Range<u32>]) -> Result<u64, ClientError> {
        let of = self.memory.get(tensor)?;
        let (_, claims) = self.claims.entry(tensor.to_owned()).or_insert((of.clone(), Vec::new()));
        Ok(of.claim_more(ids, claims)?)
    }

    fn publish(
        &mut self,
        tensor: &str,
        ids: &[NodeId],
        rows: &[u8],
        stamp: Stamp,
    ) -> Result<(), ClientError> {
        let of = self.memory.get(tensor)?;
        ClientError::check_buffer(tensor, ids.len(), of.shape().row_bytes, rows.len())?;
        let claims = self.claims.get(tensor).map_or(&[][..], |(_, claims)| claims);
        Ok(of.publish(claims, bytemuck::cast_slice(ids), rows, stamp)?)
    }
}

impl Drop for EmbeddedPublisher<'_> {
    fn drop(&mut self) {
        for (tensor, claims) in self.claims.values_mut() {
            tensor.release(claims);
        }
    }
}
