//! A tensor on servers, with rows of Rust's types.

use std::time::Instant;

use lodestore_graph::NodeId;
use lodestore_store::{Element, StoreError};

use super::Client;
use crate::error::ClientError;
use crate::source::{PullKind, TensorInfo};

/// A tensor of a client's servers. It pulls without a look-up of its name.
#[derive(Clone, Copy)]
pub struct RemoteTensor<'a> {
    client: &'a Client,
    position: usize,
}

impl Client {
    /// Returns the tensor called `name`.
    ///
    /// # Errors
    /// The graph has no tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<RemoteTensor<'_>, ClientError> {
        Ok(RemoteTensor { client: self, position: self.position(name)? })
    }
}

impl<'a> RemoteTensor<'a> {
    /// Returns the name, the type and the width.
    #[must_use]
    pub fn info(&self) -> &'a TensorInfo {
        &self.client.tensors[self.position]
    }

    /// Returns the rows of `ids` in their order: `ids.len() * width` elements. The pull is a
    /// SyncPull.
    ///
    /// # Errors
    /// The elements of the tensor have another type than `T`. Else see
    /// [`RowSource::pull`](crate::RowSource::pull).
    pub fn gather<T: Element>(&self, ids: &[NodeId]) -> Result<Vec<T>, ClientError> {
        let mut rows = vec![T::zeroed(); ids.len() * self.info().width as usize];
        self.gather_into(ids, &mut rows)?;
        Ok(rows)
    }

    /// Like [`RemoteTensor::gather`], into memory of the caller.
    ///
    /// # Errors
    /// See [`RemoteTensor::gather`]. Also fails if `out` has another length.
    pub fn gather_into<T: Element>(
        &self,
        ids: &[NodeId],
        out: &mut [T],
    ) -> Result<(), ClientError> {
        StoreError::check_element::<T>(self.info())?;
        let out = bytemuck::cast_slice_mut(out);
        let pull = self.client.plan(self.position, ids, PullKind::Sync, Instant::now());
        self.client.pull_in_order(&pull, out, &mut || ())?;
        Ok(())
    }
}
