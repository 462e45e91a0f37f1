//! Never evicts: `unbounded`, which has a slot per id, and `none`, which has none at all.

use super::{Offer, Policy};
use crate::slots::Slots;

pub(crate) struct Fixed;

impl Policy for Fixed {
    fn heeds_reads(&self) -> bool {
        false
    }

    fn evict(&mut self, _offer: Offer, _slots: &mut Slots) -> Option<u32> {
        None
    }

    fn bytes(&self) -> usize {
        0
    }
}
