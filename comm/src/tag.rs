//! Tags of messages: the collective that sends a message, and its payload.

use std::fmt;

use crate::error::CollectiveError;

/// Payload of a message. [`Traffic`](crate::traffic::Traffic) counts bytes by payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Rows of features.
    Rows,
    /// Gradients of parameters.
    Gradients,
    /// Parameters and states of optimisers.
    Parameters,
    /// Rows of hidden layers, and their gradients.
    Embeddings,
    /// Everything else: figures, settings, errors.
    Control,
}

/// The collective that sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AllToAll,
    AllGather,
    Broadcast,
    Barrier,
    PointToPoint,
    AllReduce,
    ReduceScatter,
}

/// Tag of a message. Both ends must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    operation: Operation,
    pub(crate) payload: Payload,
}

impl Payload {
    /// Every kind of payload.
    pub const ALL: [Self; 5] =
        [Self::Rows, Self::Gradients, Self::Parameters, Self::Embeddings, Self::Control];
}

impl Operation {
    const ALL: [Self; 7] = [
        Self::AllToAll,
        Self::AllGather,
        Self::Broadcast,
        Self::Barrier,
        Self::PointToPoint,
        Self::AllReduce,
        Self::ReduceScatter,
    ];
}

impl Tag {
    pub(crate) fn new(operation: Operation, payload: Payload) -> Self {
        Self { operation, payload }
    }

    pub(crate) fn barrier() -> Self {
        Self::new(Operation::Barrier, Payload::Control)
    }

    /// Returns the number on the wire: below 2¹⁵, the limit of MPI.
    pub(crate) fn number(self) -> u32 {
        (self.operation as u32) << 8 | self.payload as u32
    }

    /// Fails if `rank` sent a message with the tag `found` instead of this one.
    pub(crate) fn expect(self, rank: u32, found: u32) -> Result<(), CollectiveError> {
        if found == self.number() {
            return Ok(());
        }
        let mut known = Operation::ALL.iter().flat_map(|&operation| {
            Payload::ALL.iter().map(move |&payload| Self { operation, payload })
        });
        let found = match known.find(|tag| tag.number() == found) {
            Some(tag) => tag.to_string(),
            None => format!("a message of unknown tag {found}"),
        };
        Err(CollectiveError::out_of_step(rank, self.to_string(), found))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.operation, self.payload)
    }
}
