//! Never evicts: `unbounded`, which has a slot per id, and `none`, which has none at all.

use super::Policy;
use crate::slots::Slots;

pub(crate) struct Fixed;

impl Policy for Fixed {
    fn heeds_reads(&self) -> bool {
        false
    }

    fn evict(&mut self, _id: u32, _position: u32, _slots: &Slots) -> Option<u32> {
        None
    }

    fn bytes(&self) -> usize {
        0
    }
}
