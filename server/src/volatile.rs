//! Volatile tensors of a server: rows in memory only, shared by all shards.

use std::ops::Range;

use lodestore_cache::volatile::VolatileError;
use lodestore_cache::volatile_store::{DeclareError, VolatileShape, VolatileTensor};
use lodestore_cache::{MemoryBudget, VolatileStore};
use lodestore_schema::reply::Declared;
use lodestore_schema::request::Declare;
use lodestore_schema::stats::VolatileStats;
use lodestore_schema::tags::volatile_tag;
use lodestore_schema::{Failure, FailureCode};

use crate::config::{ServerConfig, VolatileChoice};
use crate::error::ServerError;
use crate::error::failure;
use crate::partitions::Partitions;

impl VolatileChoice {
    fn shape(&self) -> VolatileShape {
        VolatileShape {
            name: self.spec.name.clone(),
            dtype: self.spec.dtype.name().to_owned(),
            width: self.spec.width,
            row_bytes: self.spec.row_bytes(),
            range_rows: self.range_rows,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Volatile {
    pub(crate) store: VolatileStore,
    /// Whether clients may declare tensors and publish rows.
    is_writable: bool,
}

impl Volatile {
    /// Declares the configured tensors. Their memory is drawn from the budget of the tiers.
    pub(crate) fn new(
        config: &ServerConfig,
        partitions: &Partitions,
        budget: &MemoryBudget,
    ) -> Result<Self, ServerError> {
        let is_writable = config.writable || !config.volatile.is_empty();
        let this = Self { store: VolatileStore::within(budget.clone()), is_writable };
        for choice in &config.volatile {
            this.declare_shape(partitions, &choice.shape())?;
        }
        Ok(this)
    }

    fn declare_shape(
        &self,
        partitions: &Partitions,
        shape: &VolatileShape,
    ) -> Result<std::sync::Arc<VolatileTensor>, ServerError> {
        if partitions.tensors.iter().any(|stored| stored.description.name == shape.name) {
            return Err(ServerError::VolatileName { name: shape.name.clone() });
        }
        let parts: Vec<Range<u32>> =
            partitions.parts().iter().map(|&part| partitions.book.range(part)).collect();
        Ok(self.store.declare(shape, parts)?)
    }

    /// Declares a tensor for a client.
    pub(crate) fn declare(
        &self,
        partitions: &Partitions,
        declare: &Declare,
    ) -> Result<Declared, Failure> {
        self.check_writable()?;
        let text = format!("{}:{}x{}", declare.name, declare.width, declare.dtype);
        let choice: VolatileChoice =
            text.parse().map_err(|error| failure(FailureCode::Invalid, format!("{error}")))?;
        let choice = VolatileChoice { range_rows: declare.range_rows, ..choice };
        let tensor = self.declare_shape(partitions, &choice.shape()).map_err(|error| {
            let code = match &error {
                ServerError::Volatile(
                    DeclareError::Memory { .. } | DeclareError::TooMany { .. },
                ) => FailureCode::TooLarge,
                _ => FailureCode::Invalid,
            };
            failure(code, error.to_string())
        })?;
        Ok(declared(&tensor))
    }

    pub(crate) fn describe(&self, name: &str) -> Result<Declared, Failure> {
        self.get(name).map(|tensor| declared(&tensor))
    }

    /// Returns the tensor of this name, or a failure that lists the declared names.
    pub(crate) fn get(&self, name: &str) -> Result<std::sync::Arc<VolatileTensor>, Failure> {
        self.store.get(name).ok_or_else(|| {
            let known = match self.store.names() {
                names if names.is_empty() => "the server has none".to_owned(),
                names => format!("the server has {names}"),
            };
            let message = format!(
                "no volatile tensor `{name}`: {known}; declare it, or start the server with it"
            );
            failure(FailureCode::NotFound, message)
        })
    }

    /// Returns the tag of a declared tensor.
    pub(crate) fn tag_of(&self, graph: [u8; 16], name: &str) -> Option<u64> {
        let tensor = self.store.get(name)?;
        Some(volatile_tag(graph, name, &declared(&tensor)))
    }

    /// Fails if clients may not declare tensors or publish rows.
    pub(crate) fn check_writable(&self) -> Result<(), Failure> {
        if self.is_writable {
            return Ok(());
        }
        let message =
            "the server accepts no volatile rows; start it writable, or with volatile tensors";
        Err(failure(FailureCode::ReadOnly, message))
    }

    pub(crate) fn stats(&self) -> VolatileStats {
        let (n_tensors, n_bytes) = self.store.size();
        VolatileStats { n_tensors: u32::try_from(n_tensors).unwrap_or(u32::MAX), n_bytes }
    }
}

fn declared(tensor: &VolatileTensor) -> Declared {
    let shape = tensor.shape();
    Declared {
        dtype: shape.dtype.clone(),
        width: shape.width,
        row_bytes: u32::try_from(shape.row_bytes).unwrap_or(u32::MAX),
        range_rows: shape.range_rows,
    }
}

/// Returns the failure for rows that a client may not publish, or that are not here.
pub(crate) fn volatile_failure(tensor: &VolatileTensor, error: &VolatileError) -> Failure {
    let name = &tensor.shape().name;
    let code = match error {
        VolatileError::Held { .. } => FailureCode::Held,
        VolatileError::NotOwned { .. } => FailureCode::NotOwned,
        VolatileError::Older { .. } => FailureCode::Older,
        VolatileError::NotHere { .. } => FailureCode::NotFound,
        VolatileError::Memory(_) => FailureCode::Internal,
        _ => FailureCode::Invalid,
    };
    failure(code, format!("volatile tensor `{name}`: {error}"))
}
