//! The newest that servers tell of a partition's holders, and whether they were counted apart.

use std::cmp::Ordering;

use lodestore_graph::{PartId, PartitionBook};
use lodestore_schema::{Description, Membership};

use super::Routes;
use crate::{Address, ClientError};

/// The newest that servers tell of the holders of a partition.
#[derive(Clone, Copy, Default)]
pub(super) struct Newest {
    pub(super) told: Membership,
    /// Another change made holders of that generation too.
    pub(super) is_apart: bool,
}

/// By partition: the newest that any of these servers tells of its holders.
pub(super) fn newest(book: &PartitionBook, servers: &[(Address, Description)]) -> Vec<Newest> {
    let mut newest = vec![Newest::default(); book.n_parts().into()];
    for (part, told) in servers.iter().flat_map(|(_, description)| description.held()) {
        let Some(known) = newest.get_mut(PartId(part).index()) else { continue };
        match told.generation.cmp(&known.told.generation) {
            Ordering::Less => {}
            Ordering::Equal => known.is_apart |= told.generation > 0 && told != known.told,
            Ordering::Greater => *known = Newest { told, is_apart: false },
        }
    }
    newest
}

impl Routes {
    /// Fails for a partition that nobody can be asked for.
    pub(crate) fn check_held(&self, part: PartId) -> Result<(), ClientError> {
        self.check_one_history(part)?;
        if self.holders_of(part).is_empty() {
            return Err(ClientError::NoHolder { part });
        }
        Ok(())
    }

    /// Fails for a partition whose holders were counted apart.
    pub(crate) fn check_one_history(&self, part: PartId) -> Result<(), ClientError> {
        let Newest { told: Membership { generation, .. }, is_apart } =
            self.memberships[part.index()];
        if !is_apart {
            return Ok(());
        }
        let theirs = self.apart.iter().filter(|(of, ..)| *of == part);
        let found: Vec<String> =
            theirs.map(|(_, address, change)| format!("{address} by {change:016x}")).collect();
        let found = found.join(", ");
        Err(ClientError::HoldersCountedApart { part, generation, found })
    }
}
