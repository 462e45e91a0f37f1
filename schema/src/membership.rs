//! How many servers are to hold a partition, as the wire tells it.

use crate::lodestore_capnp::membership;

/// How many servers are to hold a partition that takes puts, how often that has changed, and which
/// change was the last.
///
/// Where two differ the later generation is right; of one generation and two changes neither is: each
/// may lack what was put by the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Counts changes; 0 where nobody has said how many there are.
    pub generation: u32,
    /// Holders that there are to be.
    pub n_holders: u16,
    /// A number that whoever made the change has drawn; 0 where there was none.
    pub change: u64,
}

impl Membership {
    pub(crate) fn write(self, mut to: membership::Builder<'_>) {
        to.set_generation(self.generation);
        to.set_holders(self.n_holders);
        to.set_change(self.change);
    }

    pub(crate) fn read(from: membership::Reader<'_>) -> Self {
        let (generation, n_holders) = (from.get_generation(), from.get_holders());
        Self { generation, n_holders, change: from.get_change() }
    }
}
