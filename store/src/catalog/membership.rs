//! How many servers are to hold a partition, as its catalog knows it.

use super::{Catalog, broken, keys};
use crate::device::Change;
use crate::error::StoreError;

/// Bytes of a record.
const RECORD_BYTES: usize = 14;

/// How many servers are to hold a partition that takes puts, how often that has changed, and which
/// change was the last.
///
/// Of two holders the one with the higher generation is right: the other was left out of a change, and
/// may lack what was put since. Of one generation and two changes neither is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Counts the changes; 0 where nobody has ever said how many there are.
    pub generation: u32,
    /// Holders that there are to be.
    pub n_holders: u16,
    /// A number that whoever made the change has drawn, never 0: that of the move that has added one,
    /// which is odd, or an even one where a person said it.
    pub change: u64,
}

impl Membership {
    /// Whether a copy has joined by it.
    #[must_use]
    pub fn is_by_move(self) -> bool {
        self.change % 2 == 1
    }

    /// Little-endian: generation u32, number of holders u16, number of the change u64.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.generation.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.n_holders.to_le_bytes());
        bytes.extend_from_slice(&self.change.to_le_bytes());
        bytes
    }

    /// `None` for what is no record: another length, a change to nothing, or one without a number, which
    /// a build from before changes had any has written.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        let (generation, rest) = bytes.split_first_chunk()?;
        let (n_holders, change) = rest.split_first_chunk()?;
        let this = Self {
            generation: u32::from_le_bytes(*generation),
            n_holders: u16::from_le_bytes(*n_holders),
            change: u64::from_le_bytes(change.try_into().ok()?),
        };
        (this.generation > 0 && this.n_holders > 0 && this.change > 0).then_some(this)
    }
}

impl Catalog {
    /// How many servers are to hold the partition.
    pub fn membership(&self) -> Result<Membership, StoreError> {
        let Some(bytes) = self.get(keys::HOLDERS)? else { return Ok(Membership::default()) };
        let read = Membership::from_bytes(&bytes);
        let reason = "its number of holders cannot be read, or is from before changes of it had a name: run \
             `lode repair`, then say the number again with `lode holders --set`";
        read.ok_or_else(|| broken(&self.dir, reason.to_owned()))
    }

    /// Says how many; durable when it returns.
    pub(crate) fn set_membership(&self, membership: Membership) -> Result<(), StoreError> {
        self.write(&[Change::Put(keys::HOLDERS.to_vec(), membership.to_bytes())])
    }

    /// Forgets what was said.
    pub(crate) fn forget_membership(&self) -> Result<(), StoreError> {
        self.write(&[Change::Delete(keys::HOLDERS.to_vec())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in_and_nonsense_is_none() {
        let one = Membership { generation: 7, n_holders: 3, change: u64::MAX - 1 };
        let bytes = one.to_bytes();
        assert_eq!(Membership::from_bytes(&bytes), Some(one));
        for cut in 0..bytes.len() {
            assert_eq!(Membership::from_bytes(&bytes[..cut]), None);
        }
        assert_eq!(Membership::from_bytes(&[&bytes[..], b"x"].concat()), None);
        for nothing in [
            Membership { generation: 0, ..one },
            Membership { n_holders: 0, ..one },
            Membership { change: 0, ..one },
        ] {
            assert_eq!(Membership::from_bytes(&nothing.to_bytes()), None);
        }
    }
}
