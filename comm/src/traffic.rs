//! Bytes that ranks have sent, by payload.

use bytemuck::{Pod, Zeroable};
use serde::Serialize;

use crate::tag::Payload;

/// Bytes that ranks have sent to other ranks, without headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Serialize, Zeroable)]
#[repr(C)]
pub struct Traffic {
    /// Rows of features.
    pub rows: u64,
    /// Gradients of parameters.
    pub gradients: u64,
    /// Parameters and states of optimisers.
    pub parameters: u64,
    /// Rows of hidden layers, and their gradients.
    pub embeddings: u64,
    /// Figures, settings and errors.
    pub control: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, payload: Payload, n_bytes: u64) {
        let sum = match payload {
            Payload::Rows => &mut self.rows,
            Payload::Gradients => &mut self.gradients,
            Payload::Parameters => &mut self.parameters,
            Payload::Embeddings => &mut self.embeddings,
            Payload::Control => &mut self.control,
        };
        *sum += n_bytes;
    }
}
