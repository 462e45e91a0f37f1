//! How many servers are to hold a partition, as the wire tells it.

use crate::lodestore_capnp::membership;

/// How many servers are to hold a partition that takes puts, and how often that has changed.
///
/// The order is that of who is right where two differ: the later generation, and of one generation the
/// one with more holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Membership {
    /// Counts changes; 0 where nobody has said how many there are.
    pub generation: u32,
    /// Holders that there are to be.
    pub n_holders: u16,
}

impl Membership {
    pub(crate) fn write(self, mut to: membership::Builder<'_>) {
        to.set_generation(self.generation);
        to.set_holders(self.n_holders);
    }

    pub(crate) fn read(from: membership::Reader<'_>) -> Self {
        Self { generation: from.get_generation(), n_holders: from.get_holders() }
    }
}
