//! Rows of features of a partition: its own, and those of its halo.
//!
//! Rows of the halo are pulled once and kept. With tiers in front of their source, the tiers keep
//! the rows (JACA, section 4.2). A partition then holds the rows of its halo only during an epoch,
//! and pulls them again through the tiers.

use lodestore_client::PullKind;
use lodestore_client::buffer::RowBuffer;
use lodestore_client::load_stats::LoadStats;
use lodestore_graph::halo::part_graph::PartGraph;
use lodestore_graph::{NodeId, PartitionBook};
use lodestore_models::matrix::dropout::Mask;
use lodestore_models::matrix::sparse::{SparseColumns, SparsePiece, SparseRows};
use lodestore_models::matrix::workspace::Workspace;
use lodestore_models::matrix::{Matrix, MatrixView, first_not_finite};

use crate::config::Halo;
use crate::error::TrainError;
use crate::features::FeatureRows;
use crate::sources::WorkerSources;

/// Bytes of rows that are pulled at a time.
const CHUNK_BYTES: usize = 1 << 25;

/// Features of a partition's own nodes, and of its halo. All are sparse, or all are dense.
pub(crate) struct Inputs {
    pub(crate) own: InputRows,
    /// Empty between epochs if there is a source.
    pub(crate) halo: InputRows,
    /// Source of the halo's rows in each epoch; none if they are kept.
    source: Option<InputSource>,
    /// Pulls of other workers' rows, and hits in tiers.
    pub(crate) pulled: LoadStats,
    /// The first element that is not finite: its node, column and value.
    pub(crate) not_finite: Option<(NodeId, usize, f32)>,
}

/// Rows that are kept over epochs.
#[derive(Debug)]
pub(crate) enum InputRows {
    Dense(Matrix),
    Sparse { rows: SparseRows, columns: SparseColumns },
}

/// The rows in one epoch: after dropout.
#[derive(Debug)]
pub(crate) enum EpochRows {
    /// As they are.
    Kept,
    Dense(Matrix),
    /// The elements of sparse rows.
    Sparse(Vec<f32>),
}

/// Source of the rows of a worker.
pub(crate) struct InputSource {
    pub(crate) sources: WorkerSources,
    pub(crate) book: PartitionBook,
    pub(crate) tensor: String,
    pub(crate) row_bytes: usize,
    pub(crate) features: FeatureRows,
    pub(crate) worker: u32,
    pub(crate) n_workers: u32,
}

/// Rows during loading.
enum Loaded {
    /// No row is there yet.
    Undecided,
    Sparse(Vec<SparsePiece>),
    Dense(Vec<f32>),
}

impl Inputs {
    /// Loads the rows of a partition. Rows of the halo are zeros under [`Halo::Zero`].
    pub(crate) fn load(
        mut source: InputSource,
        graph: &PartGraph,
        halo: Halo,
    ) -> Result<Self, TrainError> {
        let (mut pulled, width) = (LoadStats::default(), source.features.width);
        let mut loaded = Loaded::Undecided;
        source.load(graph.own(), &mut loaded, &mut pulled)?;
        let n_own_pieces = if let Loaded::Sparse(pieces) = &loaded { pieces.len() } else { 0 };
        if halo == Halo::Exchange {
            source.load(graph.halo(), &mut loaded, &mut pulled)?;
        }
        let (own, of_halo) = match loaded {
            // A partition without nodes, which has no halo either.
            Loaded::Undecided => (InputRows::no_rows(width), InputRows::no_rows(width)),
            Loaded::Sparse(mut pieces) => {
                let n_elements = pieces.iter().map(SparsePiece::n_elements).sum();
                let n_rows = pieces.iter().map(SparsePiece::n_rows).sum();
                let is_sparse = source.features.are_few(n_elements, n_rows);
                let of_halo = pieces.split_off(n_own_pieces);
                let own = SparseRows::new(width, pieces);
                let of_halo = match halo {
                    Halo::Exchange => SparseRows::new(width, of_halo),
                    Halo::Zero => SparseRows::zeros(graph.n_halo(), width),
                };
                match is_sparse {
                    true => (InputRows::sparse(own)?, InputRows::sparse(of_halo)?),
                    false => {
                        (InputRows::Dense(own.to_dense()), InputRows::Dense(of_halo.to_dense()))
                    }
                }
            }
            Loaded::Dense(mut values) => {
                let mut of_halo = values.split_off(graph.n_own * width);
                of_halo.resize(graph.n_halo() * width, 0.0);
                let [own, of_halo] = [values, of_halo].map(|values| Matrix::new(values, width));
                (InputRows::Dense(own), InputRows::Dense(of_halo))
            }
        };
        let has_tier = halo == Halo::Exchange && source.sources.has_tier();
        let source = has_tier.then_some(source);
        let mut inputs = Self { own, halo: of_halo, source, pulled, not_finite: None };
        inputs.not_finite = inputs.find_not_finite(graph);
        Ok(inputs)
    }

    fn find_not_finite(&self, graph: &PartGraph) -> Option<(NodeId, usize, f32)> {
        let own = self.own.find_not_finite();
        let halo = || {
            let found = self.halo.find_not_finite();
            found.map(|(row, column, found)| (graph.n_own + row, column, found))
        };
        let (row, column, found) = own.or_else(halo)?;
        Some((graph.nodes[row], column, found))
    }

    /// Pulls the rows of the halo for an epoch, unless they are kept.
    pub(crate) fn begin_epoch(&mut self, graph: &PartGraph) -> Result<(), TrainError> {
        let is_sparse = self.are_sparse();
        let Some(source) = self.source.as_mut().filter(|_| self.halo.n_rows() < graph.n_halo())
        else {
            return Ok(());
        };
        let width = source.features.width;
        let mut loaded = match is_sparse {
            true => Loaded::Sparse(Vec::new()),
            false => Loaded::Dense(Vec::new()),
        };
        source.load(graph.halo(), &mut loaded, &mut self.pulled)?;
        self.halo = match loaded {
            Loaded::Undecided => InputRows::no_rows(width),
            Loaded::Dense(values) => InputRows::Dense(Matrix::new(values, width)),
            Loaded::Sparse(pieces) => InputRows::sparse(SparseRows::new(width, pieces))?,
        };
        Ok(())
    }

    /// Drops the rows of the halo if a source can return them again.
    pub(crate) fn end_epoch(&mut self) {
        // Without a halo nothing is pulled in the next epoch, and the rows stay of their kind.
        if let Some(source) = self.source.as_ref().filter(|_| self.halo.n_rows() > 0) {
            self.halo = InputRows::no_rows(source.features.width);
        }
    }

    pub(crate) fn n_bytes(&self) -> u64 {
        self.own.n_bytes() + self.halo.n_bytes()
    }

    pub(crate) fn are_sparse(&self) -> bool {
        matches!(self.own, InputRows::Sparse { .. })
    }
}

impl InputRows {
    fn no_rows(width: usize) -> Self {
        Self::Dense(Matrix::new(Vec::new(), width))
    }

    fn sparse(rows: SparseRows) -> Result<Self, TrainError> {
        let found = rows.values().len();
        let too_many = || {
            TrainError::PartitionSize(format!(
                "the features of a partition have {found} elements that are not zero, and at most \
                 {} can be kept; import the graph in more partitions",
                u32::MAX
            ))
        };
        let columns = rows.by_column().ok_or_else(too_many)?;
        Ok(Self::Sparse { rows, columns })
    }

    pub(crate) fn n_rows(&self) -> usize {
        match self {
            Self::Dense(rows) => rows.n_rows(),
            Self::Sparse { rows, .. } => rows.n_rows(),
        }
    }

    fn n_bytes(&self) -> u64 {
        let n_rows = self.n_rows() as u64;
        match self {
            Self::Dense(rows) => 4 * n_rows * rows.width() as u64,
            // By row and by column.
            Self::Sparse { rows, .. } => {
                16 * rows.values().len() as u64 + 8 * (n_rows + rows.width() as u64)
            }
        }
    }

    /// Returns the rows after dropout.
    pub(crate) fn in_epoch(&self, mask: Option<&Mask>, workspace: &Workspace) -> EpochRows {
        match (self, mask) {
            (_, None) => EpochRows::Kept,
            (Self::Dense(rows), Some(mask)) => {
                let mut values = workspace.copy(rows.values());
                mask.apply(&mut values);
                EpochRows::Dense(Matrix::new(values, rows.width()))
            }
            (Self::Sparse { rows, .. }, Some(mask)) => {
                EpochRows::Sparse(rows.dropped_values(mask, workspace))
            }
        }
    }

    /// Returns the product of the rows of an epoch and the weights.
    pub(crate) fn times(
        &self,
        of_epoch: &EpochRows,
        weight: MatrixView<'_>,
        workspace: &Workspace,
    ) -> Matrix {
        match (self, of_epoch) {
            (Self::Dense(rows), EpochRows::Kept) | (_, EpochRows::Dense(rows)) => {
                rows.times(weight, workspace)
            }
            (Self::Sparse { rows, .. }, EpochRows::Kept) => {
                rows.product_of(rows.values(), weight, workspace)
            }
            (Self::Sparse { rows, .. }, EpochRows::Sparse(values)) => {
                rows.product_of(values, weight, workspace)
            }
            (Self::Dense(_), EpochRows::Sparse(_)) => unreachable!("of these rows"),
        }
    }

    /// Adds the product of the transposed rows of an epoch and `grad` to `sum`.
    pub(crate) fn add_weight_gradient(&self, of_epoch: &EpochRows, grad: &Matrix, sum: &mut [f32]) {
        match (self, of_epoch) {
            (Self::Dense(rows), EpochRows::Kept) | (_, EpochRows::Dense(rows)) => {
                let product = rows.transposed_times(grad);
                sum.iter_mut().zip(product).for_each(|(sum, value)| *sum += value);
            }
            (Self::Sparse { rows, columns }, EpochRows::Kept) => {
                SparseRows::add_transposed_product(columns, rows.values(), grad, sum);
            }
            (Self::Sparse { columns, .. }, EpochRows::Sparse(values)) => {
                SparseRows::add_transposed_product(columns, values, grad, sum);
            }
            (Self::Dense(_), EpochRows::Sparse(_)) => unreachable!("of these rows"),
        }
    }

    /// Returns the elements of the rows of an epoch, zeros included.
    pub(crate) fn dense(&self, of_epoch: &EpochRows, workspace: &Workspace) -> Vec<f32> {
        match (self, of_epoch) {
            (Self::Dense(rows), EpochRows::Kept) | (_, EpochRows::Dense(rows)) => {
                workspace.copy(rows.values())
            }
            _ => self
                .sparse_rows(of_epoch)
                .map_or_else(Vec::new, |rows| rows.to_dense().into_values()),
        }
    }

    /// Returns the rows of an epoch where they are sparse.
    pub(crate) fn sparse_rows(&self, of_epoch: &EpochRows) -> Option<SparseRows> {
        let Self::Sparse { rows, .. } = self else { return None };
        Some(match of_epoch {
            EpochRows::Sparse(values) => rows.with_values(values),
            _ => rows.clone(),
        })
    }

    fn find_not_finite(&self) -> Option<(usize, usize, f32)> {
        match self {
            Self::Dense(rows) => first_not_finite(rows.values(), rows.width()),
            Self::Sparse { rows, .. } => rows.first_not_finite(),
        }
    }
}

impl EpochRows {
    /// Returns the memory of the rows back.
    pub(crate) fn give_to(self, workspace: &Workspace) {
        match self {
            Self::Kept => (),
            Self::Dense(rows) => workspace.give_matrix(rows),
            Self::Sparse(values) => workspace.give(values),
        }
    }
}

impl InputSource {
    /// Appends the rows of `nodes`, pulling a bounded number at a time.
    fn load(
        &mut self,
        nodes: &[NodeId],
        loaded: &mut Loaded,
        pulled: &mut LoadStats,
    ) -> Result<(), TrainError> {
        let n_together = (CHUNK_BYTES / self.row_bytes.max(1)).max(1);
        let mut buffer = RowBuffer::default();
        // A pull is of one source: runs of nodes that are this worker's, or are not.
        let (book, n_workers, worker) = (&self.book, self.n_workers, self.worker);
        let is_own = |node: NodeId| {
            let part = book.part_of(node);
            part.is_some_and(|part| u32::from(part.0) % n_workers == worker)
        };
        let runs = nodes.chunk_by(|a, b| is_own(*a) == is_own(*b));
        let runs: Vec<(bool, &[NodeId])> = runs.map(|run| (is_own(run[0]), run)).collect();
        for (is_own, run) in runs {
            for chunk in run.chunks(n_together) {
                buffer.resize(chunk.len() * self.row_bytes);
                let (out, kind) = (buffer.bytes_mut(), PullKind::Vector);
                if is_own {
                    self.sources.local.pull(&self.tensor, chunk, out, kind)?;
                } else {
                    let stats = self.sources.remote.pull(&self.tensor, chunk, out, kind)?;
                    *pulled += LoadStats { found: stats.found, ..LoadStats::from_pull(stats) };
                }
                self.append(buffer.bytes(), loaded);
            }
        }
        Ok(())
    }

    /// Appends rows. The first ones decide whether all are held by their non-zero elements until
    /// the last have arrived. They are own rows, and so the same for any number of workers.
    fn append(&mut self, rows: &[u8], loaded: &mut Loaded) {
        match loaded {
            Loaded::Dense(values) => values.extend_from_slice(self.features.view(rows)),
            Loaded::Sparse(pieces) => pieces.extend(self.features.non_zeros(rows)),
            Loaded::Undecided => {
                let pieces = self.features.non_zeros(rows);
                let n_elements = pieces.iter().map(SparsePiece::n_elements).sum();
                let n_rows = pieces.iter().map(SparsePiece::n_rows).sum();
                *loaded = match self.features.are_few(n_elements, n_rows) {
                    true => Loaded::Sparse(pieces),
                    false => Loaded::Dense(self.features.view(rows).to_vec()),
                };
            }
        }
    }
}
