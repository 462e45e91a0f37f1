//! Stacks of slots, and the highest of those that have any.

use bytemuck::{Pod, Zeroable};

use super::super::bit_tree::BitTree;
use crate::huge_vec::{HugeVec, MemoryError};

/// In the place of a block.
const NO_BLOCK: u32 = u32::MAX;
/// Slots in a block: a cache line.
const BLOCK_SLOTS: u32 = 16;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Stack {
    top: u32,
    bottom: u32,
    n_slots: u32,
}

const EMPTY: Stack = Stack { top: NO_BLOCK, bottom: NO_BLOCK, n_slots: 0 };

impl Stack {
    /// Returns where slot number `at` of the top block is, counted from the bottom of the stack.
    #[inline]
    fn place(&self, at: u32) -> usize {
        self.top as usize * BLOCK_SLOTS as usize + (at % BLOCK_SLOTS) as usize
    }
}

/// Stacks, numbered from 0, each slot in at most one of them. They are made of blocks, so that
/// slots that are given up in turn are adjacent, and the data for that can be prefetched.
pub(super) struct Stacks {
    stacks: HugeVec<Stack>,
    /// Entries of all blocks, one after the other. All blocks but the top one of a stack are full.
    slots: HugeVec<u32>,
    /// For each block the one below it, or the next free one.
    below: HugeVec<u32>,
    /// Blocks that were ever used: those below.
    n_used: u32,
    free: u32,
    /// The stacks that have slots.
    taken: BitTree,
    /// No stack above this one has.
    highest: u32,
}

impl Stacks {
    fn n_blocks(n_slots: u32, n_stacks: u32) -> usize {
        (n_slots / BLOCK_SLOTS) as usize + n_slots.min(n_stacks) as usize
    }

    pub(super) fn planned_bytes(n_slots: u32, n_stacks: u32) -> usize {
        Self::n_blocks(n_slots, n_stacks) * (BLOCK_SLOTS as usize + 1) * size_of::<u32>()
            + n_stacks as usize * size_of::<Stack>()
            + BitTree::planned_bytes(n_stacks)
    }

    pub(super) fn new(n_slots: u32, n_stacks: u32) -> Result<Self, MemoryError> {
        let n_blocks = Self::n_blocks(n_slots, n_stacks);
        Ok(Self {
            stacks: HugeVec::filled(n_stacks as usize, EMPTY)?,
            slots: HugeVec::new(n_blocks * BLOCK_SLOTS as usize)?,
            below: HugeVec::new(n_blocks)?,
            n_used: 0,
            free: NO_BLOCK,
            taken: BitTree::new(n_stacks),
            highest: 0,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.stacks.bytes() + self.slots.bytes() + self.below.bytes() + self.taken.bytes()
    }

    #[inline]
    pub(super) fn push(&mut self, number: u32, slot: u32) {
        if self.stacks[number as usize].n_slots.is_multiple_of(BLOCK_SLOTS) {
            self.add_block(number);
        }
        let stack = &mut self.stacks[number as usize];
        // Only written: nothing waits for the line.
        self.slots[stack.place(stack.n_slots)] = slot;
        stack.n_slots += 1;
    }

    /// Puts an empty block on a stack.
    fn add_block(&mut self, number: u32) {
        let mut top = self.free;
        if top == NO_BLOCK {
            top = self.n_used;
            self.n_used += 1;
        } else {
            self.free = self.below[top as usize];
        }
        // The block that is put on next, some sixteen pushes from now: by then its line is here.
        let next = if self.free == NO_BLOCK { self.n_used } else { self.free };
        self.slots.prefetch(next as usize * BLOCK_SLOTS as usize);
        self.below.prefetch(next as usize);
        let stack = &mut self.stacks[number as usize];
        if stack.n_slots == 0 {
            stack.bottom = top;
            self.taken.set(number);
            self.highest = self.highest.max(number);
        }
        self.below[top as usize] = std::mem::replace(&mut stack.top, top);
    }

    /// Takes the top of a stack that has any.
    #[inline]
    fn pop(&mut self, number: u32) -> u32 {
        let stack = &mut self.stacks[number as usize];
        stack.n_slots -= 1;
        let slot = self.slots[stack.place(stack.n_slots)];
        if stack.n_slots.is_multiple_of(BLOCK_SLOTS) {
            let top = stack.top;
            stack.top = std::mem::replace(&mut self.below[top as usize], self.free);
            self.free = top;
            if stack.n_slots == 0 {
                *stack = EMPTY;
                self.taken.clear(number);
            }
        }
        slot
    }

    /// Empties a stack; returns the number of slots that were in it.
    pub(super) fn clear(&mut self, number: u32) -> u32 {
        let stack = std::mem::replace(&mut self.stacks[number as usize], EMPTY);
        if stack.n_slots > 0 {
            self.below[stack.bottom as usize] = self.free;
            self.free = stack.top;
            self.taken.clear(number);
        }
        stack.n_slots
    }

    /// Takes a slot out of the stack that it is in, from below others if need be: for what happens
    /// rarely.
    pub(super) fn remove(&mut self, number: u32, slot: u32) {
        let mut above = Vec::new();
        loop {
            let top = self.pop(number);
            if top == slot {
                break;
            }
            above.push(top);
        }
        above.into_iter().rev().for_each(|slot| self.push(number, slot));
    }

    /// Takes the top of the highest stack, if that is above a number.
    #[inline]
    pub(super) fn take_highest(&mut self, above: u32) -> Option<u32> {
        self.highest = self.taken.last_up_to(self.highest)?;
        (self.highest > above).then(|| self.pop(self.highest))
    }

    /// Returns the slots of a stack, the top first.
    fn slots(&self, number: u32) -> impl Iterator<Item = u32> {
        let stack = self.stacks[number as usize];
        let mut block = stack.top;
        (0..stack.n_slots).rev().map(move |at| {
            let slot = self.slots[Stack { top: block, ..stack }.place(at)];
            if at.is_multiple_of(BLOCK_SLOTS) {
                block = self.below[block as usize];
            }
            slot
        })
    }

    /// Returns the slots of all stacks, in the order in which they are taken.
    pub(super) fn in_order(&self) -> impl Iterator<Item = u32> {
        let below = |number: &u32| self.taken.last_up_to(number.checked_sub(1)?);
        std::iter::successors(self.taken.last_up_to(self.highest), below)
            .flat_map(|number| self.slots(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stacks_are_vectors(
            steps in prop::collection::vec((0..5u32, 0..60u32, 0..6u32), 0..600),
        ) {
            let mut stacks = Stacks::new(60, 5).unwrap();
            let mut naive = vec![Vec::new(); 5];
            for (number, slot, what) in steps {
                let of = naive.iter().position(|stack| stack.contains(&slot));
                match (what, of) {
                    (0, _) => {
                        let n_slots = naive[number as usize].len();
                        naive[number as usize].clear();
                        prop_assert_eq!(stacks.clear(number) as usize, n_slots);
                    }
                    (1, _) => {
                        let mut above = naive[number as usize + 1..].iter_mut().rev();
                        let taken = above.find_map(Vec::pop);
                        prop_assert_eq!(stacks.take_highest(number), taken);
                    }
                    (2, Some(of)) => {
                        naive[of].retain(|&at| at != slot);
                        stacks.remove(of as u32, slot);
                    }
                    (_, None) => {
                        naive[number as usize].push(slot);
                        stacks.push(number, slot);
                    }
                    _ => {}
                }
                for (number, naive) in (0..).zip(&naive) {
                    let found: Vec<u32> = stacks.slots(number).collect();
                    prop_assert!(found.iter().eq(naive.iter().rev()));
                }
                let all: Vec<u32> = stacks.in_order().collect();
                prop_assert!(all.iter().eq(naive.iter().rev().flat_map(|s| s.iter().rev())));
            }
            prop_assert_eq!(stacks.bytes(), Stacks::planned_bytes(60, 5));
        }
    }
}
