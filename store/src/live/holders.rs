//! How many servers are to hold each partition: what puts are checked against, and its changes.

use std::sync::PoisonError;

use lodestore_graph::PartId;

use super::{LiveGraph, LivePart};
use crate::catalog::Membership;
use crate::error::StoreError;

/// What whoever puts believes of a partition's holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// This process is the only one that has the partition.
    Alone,
    /// The rows go to all holders that this change has made; 0 where nobody has said how many there
    /// are.
    Change(u64),
}

impl LivePart {
    /// What is stored; the gate must be held, where it is to stay so.
    pub(super) fn membership(&self) -> Membership {
        *self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails for puts that would not reach all holders; the gate must be held.
    pub(super) fn check_holders(&self, believed: Holders) -> Result<(), StoreError> {
        let (part, Membership { generation, n_holders, change }) = (self.part, self.membership());
        match believed {
            Holders::Alone if n_holders > 1 => Err(StoreError::Replicated { part, n_holders }),
            Holders::Change(found) if found != change => {
                Err(StoreError::HoldersChanged { part, generation, expected: change, found })
            }
            _ => Ok(()),
        }
    }
}

impl LiveGraph {
    /// How many servers are to hold a partition; generation 0 where nobody has said, or it is not
    /// open here.
    #[must_use]
    pub fn membership(&self, part: PartId) -> Membership {
        let parts = self.now();
        let open = parts.get(part.index()).and_then(Option::as_ref);
        open.map(|open| open.membership()).unwrap_or_default()
    }

    /// Says how many servers are to hold a partition from now on, as a person does: puts for holders of
    /// other changes are refused when it returns, and it is durable. Nothing happens if it was said
    /// before.
    ///
    /// Fails with [`StoreError::MoveRefused`] unless the generation is later than the one there is and
    /// the change has a person's number, and with [`StoreError::Busy`] while the partition is handed
    /// over.
    pub fn set_holders(&self, part: PartId, new: Membership) -> Result<(), StoreError> {
        self.check_process()?;
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        let open = self.now().get(part.index()).cloned().flatten();
        let open = open.ok_or_else(|| StoreError::NoPart { part, opened: self.opened() })?;
        let known = open.membership();
        if known == new {
            return Ok(());
        }
        let Membership { generation, n_holders, change } = new;
        let refused = |reason: String| Err(StoreError::MoveRefused { part, reason });
        if n_holders == 0 {
            return refused("it must have a holder".to_owned());
        }
        if change == 0 || new.is_by_move() {
            return refused(format!("a person's change has an even number, not {change}"));
        }
        if generation == u32::MAX {
            return refused("no change could follow this generation".to_owned());
        }
        if generation <= known.generation {
            return refused(format!(
                "its holders are {} by generation {}, which generation {generation} does not follow; \
                 look at them anew",
                known.n_holders, known.generation
            ));
        }
        open.check_open_to_puts()?;
        self.change(&open, new)
    }

    /// Changes what is stored, on disk and then in memory; the gate must be held alone.
    pub(super) fn change(&self, part: &LivePart, to: Membership) -> Result<(), StoreError> {
        part.catalog.set_membership(to)?;
        *part.membership.lock().unwrap_or_else(PoisonError::into_inner) = to;
        Ok(())
    }
}
