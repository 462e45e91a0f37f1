//! Kind of a message: the collective that sends it, and its payload.

use super::CollectiveError;

/// Payload of a message. Bytes are counted by it.
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

/// Bytes of a header as it travels: tag and bytes that follow. A fault is as long: rank and
/// milliseconds.
pub(super) const HEADER_BYTES: usize = 12;

/// The collective that sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    AllToAll,
    AllGather,
    Broadcast,
    Barrier,
    PointToPoint,
    AllReduce,
    ReduceScatter,
}

/// The tag of a message: both ends must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    operation: Operation,
    pub(super) payload: Payload,
}

/// Returns the bytes of a header.
pub(super) fn header(tag: u32, n_bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&tag.to_le_bytes());
    header[4..].copy_from_slice(&n_bytes.to_le_bytes());
    header
}

/// Returns tag and length of a header.
pub(super) fn parts_of(header: [u8; HEADER_BYTES]) -> (u32, u64) {
    let [a, b, c, d, n_bytes @ ..] = header;
    (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(n_bytes))
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
    pub(super) fn new(operation: Operation, payload: Payload) -> Self {
        Self { operation, payload }
    }

    /// Returns the tag of a barrier.
    pub(super) fn barrier() -> Self {
        Self::new(Operation::Barrier, Payload::Control)
    }

    /// Returns the number that travels: below 2¹⁵, as MPI asks of tags.
    pub(super) fn number(self) -> u32 {
        (self.operation as u32) << 8 | self.payload as u32
    }

    /// Fails if rank `rank` has sent a message of another tag.
    pub(super) fn expect(self, rank: u32, found: u32) -> Result<(), CollectiveError> {
        if found == self.number() {
            return Ok(());
        }
        let known = Operation::ALL.iter().flat_map(|&operation| {
            Payload::ALL.iter().map(move |&payload| Self { operation, payload })
        });
        let found = match known.into_iter().find(|tag| tag.number() == found) {
            Some(tag) => tag.to_string(),
            None => format!("a message of unknown tag {found}"),
        };
        Err(CollectiveError::out_of_step(rank, self.to_string(), found))
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?}", self.operation, self.payload)
    }
}
