//! The store in the trainer's own process: rows by node id, over all partitions, without a server.

use std::path::Path;
use std::sync::{Arc, Mutex};

use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartId};

use crate::convert::gather_as_f32;
use crate::dtype::Element;
use crate::error::StoreError;
use crate::graph::Graph;
use crate::plan::{DiskProfile, PlanError};
use crate::reader::OpenOptions;
use crate::row::RowIdx;
use crate::tensor::TensorSpec;
use crate::update::{GatherScratch, GraphHandle, OpenMode, TensorView, View};

/// Gathers rows of the partitions that it opened. Shared freely between threads.
///
/// A forked child may gather too, unless the graph is open for writing:
/// [`StoreError::Forked`].
#[derive(Debug)]
pub struct EmbeddedStore {
    live: Arc<GraphHandle>,
    profile: DiskProfile,
    /// Tensors as in the graph's description.
    tensors: Vec<(TensorSpec, TensorViews)>,
    /// Memory of finished gathers, for the next ones: one entry per concurrently gathering thread.
    scratch: PerProcess<Mutex<Vec<Scratch>>>,
}

/// One view per partition; `None` for a partition that was not asked for.
type TensorViews = Vec<Option<TensorView>>;

/// Scratch memory of a gather beside its output.
#[derive(Debug, Default)]
struct Scratch {
    /// Per partition: rows and where they go.
    routed: Vec<Vec<(RowIdx, u32)>>,
    gather: GatherScratch,
}

impl EmbeddedStore {
    /// Opens all tensors of the given partitions, or of all, for reading: what is committed at this
    /// moment.
    pub fn open(dir: impl AsRef<Path>, parts: Option<&[PartId]>) -> Result<Self, StoreError> {
        Self::open_with(dir, parts, &OpenOptions::default())
    }

    /// Like [`EmbeddedStore::open`], with a choice of how to read.
    pub fn open_with(
        dir: impl AsRef<Path>,
        parts: Option<&[PartId]>,
        options: &OpenOptions,
    ) -> Result<Self, StoreError> {
        Self::from_graph_with(Graph::open(dir.as_ref())?, parts, options)
    }

    /// Like [`EmbeddedStore::open`], for an open graph.
    pub fn from_graph(graph: Graph, parts: Option<&[PartId]>) -> Result<Self, StoreError> {
        Self::from_graph_with(graph, parts, &OpenOptions::default())
    }

    fn from_graph_with(
        graph: Graph,
        parts: Option<&[PartId]>,
        options: &OpenOptions,
    ) -> Result<Self, StoreError> {
        let live = GraphHandle::open(graph, parts, OpenMode::Read, options)?;
        Self::from_handle(Arc::new(live), View::Latest)
    }

    /// Gathers from open partitions, and sees what `view` says.
    ///
    /// Fails with [`StoreError::NoVersion`] for a version that cannot be read.
    pub fn from_handle(live: Arc<GraphHandle>, view: View) -> Result<Self, StoreError> {
        let book = live.graph().book();
        let views_of = |position| {
            book.parts().map(|part| live.view(part, position, view)).collect::<Result<_, _>>()
        };
        let specs = live.specs().into_iter();
        let tensors = specs.map(|(position, spec)| Ok((spec, views_of(position)?)));
        let tensors = tensors.collect::<Result<_, StoreError>>()?;
        let profile = DiskProfile::load(&**live.graph().file_system(), live.graph().dir());
        Ok(Self { live, profile, tensors, scratch: PerProcess::new() })
    }

    /// Returns the graph behind the store.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        self.live.graph()
    }

    /// Returns the open partitions behind the store.
    #[must_use]
    pub fn live(&self) -> &Arc<GraphHandle> {
        &self.live
    }

    /// Returns the tensor called `name`.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, StoreError> {
        let (spec, views) = self.named(name)?;
        Ok(Tensor { store: self, spec, views })
    }

    /// Returns whether all open partitions read the tensor's rows through memory maps. A few small
    /// gathers then cost no more than a large one.
    pub fn is_mapped(&self, name: &str) -> Result<bool, StoreError> {
        let (_, views) = self.named(name)?;
        Ok(views.iter().flatten().all(|view| view.version().is_mapped()))
    }

    fn named(&self, name: &str) -> Result<&(TensorSpec, TensorViews), StoreError> {
        self.tensors.iter().find(|(spec, _)| spec.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.tensors.iter().map(|(spec, _)| &*spec.name).collect();
            StoreError::NoTensor { tensor: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Copies the rows of `ids` to `out`, in their order; duplicates are fine.
    ///
    /// `out` has `ids.len() * row_bytes` bytes. After an error its content means nothing.
    pub fn gather(&self, tensor: &str, ids: &[NodeId], out: &mut [u8]) -> Result<(), StoreError> {
        self.tensor(tensor)?.gather_bytes(ids, out)
    }

    /// Copies the row of `ids[i]` to row `at[i]` of `out`, in one plan for each partition; other
    /// rows of `out` stay as they are.
    ///
    /// `out` has whole rows, one for each position in `at` at least. After an error the content of
    /// those positions means nothing.
    ///
    /// # Panics
    ///
    /// Unless there is a position for each id.
    pub fn gather_at(
        &self,
        tensor: &str,
        ids: &[NodeId],
        at: &[u32],
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        assert_eq!(ids.len(), at.len(), "a position for each id");
        let (spec, views) = self.named(tensor)?;
        let row_bytes = spec.row_bytes();
        let (n_rows, rest) = (out.len() / row_bytes.max(1), out.len() % row_bytes.max(1));
        if rest != 0 {
            let expected_bytes = (n_rows * row_bytes) as u64;
            return Err(StoreError::OutputLength { expected_bytes, found_bytes: out.len() as u64 });
        }
        let out_rows = u32::try_from(n_rows).unwrap_or(u32::MAX);
        if let Some(&out_row) = at.iter().find(|&&row| row >= out_rows) {
            return Err(PlanError::NoOutputRow { out_row, out_rows }.into());
        }
        self.gather_routed(views, ids, at.iter().copied(), out)
    }

    fn gather_routed(
        &self,
        views: &[Option<TensorView>],
        ids: &[NodeId],
        at: impl Iterator<Item = u32>,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        self.live.check_process()?;
        let mut scratch = self.pool().pop().unwrap_or_default();
        let Scratch { routed, gather } = &mut scratch;
        let gathered = self.route(ids, at, routed).and_then(|()| {
            let mut chosen = routed.iter().enumerate().filter(|(_, rows)| !rows.is_empty());
            chosen.try_for_each(|(part, rows)| {
                let view = views[part].as_ref().ok_or_else(|| StoreError::NoPart {
                    part: PartId(part as u16),
                    opened: self.live.opened(),
                })?;
                view.version().gather(rows, &self.profile, gather, out)
            })
        });
        self.pool().push(scratch);
        gathered
    }

    /// Copies the rows of `ids` to `out` as f32, whatever their type at rest; see
    /// [`EmbeddedStore::gather`].
    ///
    /// `out` has `ids.len() * width` elements. f16, bf16, u8, i8 and i16 come exactly; f64, i32 and
    /// i64 are rounded to the nearest f32. Needs no memory beside `out`, but 1 MiB for f64 and i64.
    pub fn gather_f32(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [f32],
    ) -> Result<(), StoreError> {
        let TensorSpec { dtype, width, .. } = *self.tensor(tensor)?.spec;
        gather_as_f32(dtype, width as usize, ids, out, |ids, rows| self.gather(tensor, ids, rows))
    }

    /// Splits ids and their output rows by partition.
    fn route(
        &self,
        ids: &[NodeId],
        at: impl Iterator<Item = u32>,
        routed: &mut Vec<Vec<(RowIdx, u32)>>,
    ) -> Result<(), StoreError> {
        let book = self.graph().book();
        routed.resize_with(usize::from(book.n_parts()), Vec::new);
        routed.iter_mut().for_each(Vec::clear);
        let found = ids.len();
        if u32::try_from(found).is_err() {
            return Err(PlanError::TooManyRows { found }.into());
        }
        let n_nodes = book.n_nodes();
        let unknown = |node, position| StoreError::NoNode { node, position, n_nodes };
        if let [all] = &mut routed[..] {
            // Nothing to search for.
            all.reserve(found);
            for (position, (&node, out_row)) in ids.iter().zip(at).enumerate() {
                if node.0 >= n_nodes {
                    return Err(unknown(node, position));
                }
                all.push((RowIdx(node.0), out_row));
            }
            return Ok(());
        }
        for (position, (&node, out_row)) in ids.iter().zip(at).enumerate() {
            let (part, row) = book.locate(node).ok_or_else(|| unknown(node, position))?;
            routed[part.index()].push((RowIdx(row), out_row));
        }
        Ok(())
    }

    /// Locks the pool for a push or a pop, which cannot leave the list half-changed.
    fn pool(&self) -> std::sync::MutexGuard<'_, Vec<Scratch>> {
        let scratch = self.scratch.get_or(|_| Mutex::default());
        scratch.lock().ignore_poison()
    }
}

/// A tensor of an open store. It gathers without a look-up of its name.
///
/// ```no_run
/// # use lodestore_graph::NodeId;
/// # use lodestore_store::{EmbeddedStore, StoreError};
/// # fn main() -> Result<(), StoreError> {
/// let store = EmbeddedStore::open("my-graph", None)?;
/// let rows: Vec<f32> = store.tensor("feat")?.gather(&[NodeId(7), NodeId(4)])?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    store: &'a EmbeddedStore,
    spec: &'a TensorSpec,
    views: &'a TensorViews,
}

impl<'a> Tensor<'a> {
    /// Returns name, type and width.
    #[must_use]
    pub fn spec(&self) -> &'a TensorSpec {
        self.spec
    }

    /// Returns the rows of `ids`, in their order, one after the other: `ids.len() * width` elements.
    ///
    /// Fails with [`StoreError::ElementType`] unless the tensor's elements are of type `T`.
    pub fn gather<T: Element>(&self, ids: &[NodeId]) -> Result<Vec<T>, StoreError> {
        let mut rows = vec![T::zeroed(); ids.len() * self.spec.width as usize];
        self.gather_into(ids, &mut rows)?;
        Ok(rows)
    }

    /// Like [`Tensor::gather`], into memory of the caller.
    pub fn gather_into<T: Element>(&self, ids: &[NodeId], out: &mut [T]) -> Result<(), StoreError> {
        StoreError::check_element::<T>(self.spec)?;
        self.gather_bytes(ids, bytemuck::cast_slice_mut(out))
    }

    /// Like [`EmbeddedStore::gather`].
    pub fn gather_bytes(&self, ids: &[NodeId], out: &mut [u8]) -> Result<(), StoreError> {
        let expected_bytes = ids.len() as u64 * self.spec.row_bytes() as u64;
        let found_bytes = out.len() as u64;
        if expected_bytes != found_bytes {
            return Err(StoreError::OutputLength { expected_bytes, found_bytes });
        }
        self.store.gather_routed(self.views, ids, 0u32.., out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::{Ring, WIDTH, row};
    use crate::import::EXTERNAL_ID_TENSOR;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn every_row_comes_back_byte_for_byte(
            n_nodes in 1u32..400,
            n_parts in prop::sample::select(vec![1u16, 2, 7]),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
        ) {
            let ring = Ring::new(n_nodes, n_parts, n_parts);
            let store = EmbeddedStore::from_graph(ring.import(), None).unwrap();
            let all = 0..n_nodes;
            let picks = picks.iter().map(|pick| pick.index(n_nodes as usize) as u32);
            let ids: Vec<NodeId> = all.chain(picks).map(NodeId).collect();
            let external = ids.iter().map(|id| ring.nodes.external_of[id.index()]);
            let mut out = vec![0xaa; ids.len() * WIDTH];
            store.gather("feat", &ids, &mut out).unwrap();
            let expected: Vec<u8> = external.clone().flat_map(|id| row(id, WIDTH)).collect();
            prop_assert!(out == expected);
            let mut out = vec![0xaa; ids.len() * 8];
            store.gather(EXTERNAL_ID_TENSOR, &ids, &mut out).unwrap();
            let expected: Vec<u8> = external.flat_map(|id| i64::from(id).to_le_bytes()).collect();
            prop_assert!(out == expected);
            // To other places, with rows between them that stay.
            let at: Vec<u32> = (0..ids.len() as u32).map(|i| 2 * (ids.len() as u32 - i) - 1).collect();
            let mut out = vec![0xaa; 2 * ids.len() * 8];
            store.gather_at(EXTERNAL_ID_TENSOR, &ids, &at, &mut out).unwrap();
            let backwards = expected.chunks_exact(8).rev();
            let expected: Vec<u8> = backwards.flat_map(|id| [&[0xaa; 8], id].concat()).collect();
            prop_assert!(out == expected);
            let report = ring.verify();
            prop_assert!(report.ok, "{:?}", report);
        }
    }

    #[test]
    fn no_nodes_one_node_and_partitions_without_nodes() {
        for (n_nodes, n_owners, n_parts) in [(0, 1, 1), (0, 1, 3), (1, 1, 1), (1, 1, 4), (5, 2, 4)]
        {
            let ring = Ring::new(n_nodes, n_owners, n_parts);
            let graph = ring.import();
            assert_eq!(graph.meta().nodes, n_nodes);
            let store = EmbeddedStore::from_graph(graph, None).unwrap();
            store.gather("feat", &[], &mut []).unwrap();
            let unknown = store.gather("feat", &[NodeId(n_nodes)], &mut [0; WIDTH]).unwrap_err();
            assert!(matches!(unknown, StoreError::NoNode { position: 0, .. }), "{unknown}");
            assert!(ring.verify().ok, "{:?}", ring.verify());
        }
    }

    #[test]
    fn a_tensor_has_the_elements_of_its_type_alone() {
        let ring = Ring::new(10, 2, 2);
        let store = EmbeddedStore::from_graph(ring.import(), None).unwrap();
        let ids = [NodeId(9), NodeId(0), NodeId(9)];
        let mut expected = vec![0; ids.len() * 8];
        store.gather(EXTERNAL_ID_TENSOR, &ids, &mut expected).unwrap();
        let tensor = store.tensor(EXTERNAL_ID_TENSOR).unwrap();
        let found: Vec<i64> = tensor.gather(&ids).unwrap();
        assert_eq!(bytemuck::cast_slice::<i64, u8>(&found), expected);
        let error = tensor.gather::<f64>(&ids).unwrap_err();
        let says = error.to_string();
        assert!(says.contains("i64") && says.contains("f64"), "{says}");
        let short = tensor.gather_into(&ids, &mut [0i64; 2]).unwrap_err();
        assert!(matches!(short, StoreError::OutputLength { .. }), "{short}");
    }

    #[test]
    fn asking_for_what_is_not_there_is_an_error() {
        let ring = Ring::new(10, 2, 2);
        ring.import();
        let store = EmbeddedStore::open(ring.out(), Some(&[PartId(1)])).unwrap();
        store.gather("feat", &[NodeId(7)], &mut [0; WIDTH]).unwrap();
        let elsewhere =
            store.gather("feat", &[NodeId(7), NodeId(0)], &mut [0; 2 * WIDTH]).unwrap_err();
        assert!(matches!(elsewhere, StoreError::NoPart { part: PartId(0), .. }), "{elsewhere}");
        let unknown = store.gather("label", &[NodeId(7)], &mut [0; 8]).unwrap_err();
        assert!(unknown.to_string().contains("feat, external_id"), "{unknown}");
        let short = store.gather("feat", &[NodeId(7)], &mut [0; WIDTH - 1]).unwrap_err();
        assert!(matches!(short, StoreError::OutputLength { .. }), "{short}");
        let none = store.gather("feat", &[], &mut [0; 1]).unwrap_err();
        assert!(matches!(none, StoreError::OutputLength { .. }), "{none}");
        let past = store.gather_at("feat", &[NodeId(7)], &[2], &mut [0; 2 * WIDTH]).unwrap_err();
        let expected = PlanError::NoOutputRow { out_row: 2, out_rows: 2 };
        assert!(matches!(past, StoreError::Plan(error) if error == expected));
        let torn = store.gather_at("feat", &[], &[], &mut [0; WIDTH + 1]).unwrap_err();
        assert!(matches!(torn, StoreError::OutputLength { .. }), "{torn}");
        assert!(EmbeddedStore::open(ring.out(), Some(&[PartId(2)])).is_err());
        assert!(matches!(Graph::open(ring.dir.path()), Err(StoreError::Io { .. })));
    }
}
