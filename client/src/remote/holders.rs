//! How many servers are to hold a partition: asked of them, and changed.

use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_schema::{CopyStep, Membership, Reply, RequestBody};

use super::Client;
use super::describe::ask_server;
use super::patience::Patience;
use crate::{Address, ClientError};

/// What a server that has a partition says of its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The server.
    pub address: Address,
    /// Whether it takes puts.
    pub writable: bool,
    /// How often the holders have changed, as far as it knows; 0 where nobody has said how many
    /// there are. One with less than another was left out of a change, and may lack rows.
    pub generation: u32,
    /// Holders that there are to be.
    pub n_holders: u16,
}

impl Client {
    /// Every server that has a partition, of all that are named.
    ///
    /// # Errors
    /// One of them has not been heard of within the deadline.
    pub fn holders(&self, part: PartId) -> Result<Vec<Holder>, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        let fleet = self.whole_fleet(deadline, &mut Patience::new(&self.config, deadline))?;
        let fleet = self.refresh(fleet, deadline)?;
        let holder = |(address, description): (&Address, &lodestore_schema::Description)| {
            let Membership { generation, n_holders } = description.membership(part.0);
            let (address, writable) = (address.clone(), description.writable);
            Holder { address, writable, generation, n_holders }
        };
        let has_it = fleet.servers().filter(|(_, it)| it.parts.contains(&part.0));
        Ok(has_it.map(holder).collect())
    }

    /// Says that `n_holders` servers are to hold a partition, all of which must be there; gives the
    /// generation. Whoever does not know of it puts nothing from then on, and asks anew.
    ///
    /// The servers are told one after the other. Between two of them, and after an error, puts wait or
    /// are refused; say it again then. Those that were left out of an earlier change are taken only
    /// with `include_behind`: the caller knows that they have all rows.
    ///
    /// # Errors
    /// [`ClientError::Holders`], before anything is changed, where other servers have it than are to;
    /// else what kept one from storing it.
    pub fn set_holders(
        &self,
        part: PartId,
        n_holders: u16,
        include_behind: bool,
    ) -> Result<u32, ClientError> {
        let found = self.holders(part)?;
        let generation = next_generation(part, &found, n_holders, include_behind)?;
        let deadline = Instant::now() + self.config.deadline;
        let (graph, security) = (self.fleet().graph, &self.config.security);
        let step = CopyStep::Count(Membership { generation, n_holders });
        let body = RequestBody::Copy { part: part.0, step };
        for Holder { address, .. } in &found {
            self.patiently(deadline, || {
                match ask_server(address, security, graph, body, deadline)? {
                    Reply::Copied(_) => Ok(()),
                    _ => Err(ClientError::Confused { address: address.clone() }),
                }
            })?;
        }
        self.refresh(self.fleet(), deadline)?;
        Ok(generation)
    }
}

/// The generation in which these are all holders.
fn next_generation(
    part: PartId,
    found: &[Holder],
    n_holders: u16,
    include_behind: bool,
) -> Result<u32, ClientError> {
    let list = |all: &mut dyn Iterator<Item = &Holder>| {
        let all: Vec<String> = all.map(|holder| holder.address.to_string()).collect();
        all.join(", ")
    };
    let refused = |reason: String| Err(ClientError::Holders { part, reason });
    if found.len() != usize::from(n_holders) || found.is_empty() {
        let all = list(&mut found.iter());
        return refused(format!(
            "it has {} holders ({all}), not {n_holders}; name all servers that are to hold it, and no \
             other that has it",
            found.len()
        ));
    }
    if let Some(holder) = found.iter().find(|holder| !holder.writable) {
        return refused(format!("{} takes no puts; start it with --writable", holder.address));
    }
    let newest = found.iter().map(|holder| holder.generation).max().unwrap_or(0);
    let mut behind = found.iter().filter(|holder| holder.generation < newest).peekable();
    if behind.peek().is_some() && !include_behind {
        let behind = list(&mut behind);
        return refused(format!(
            "{behind} was left out of an earlier change and may lack rows; copy it anew, or, if it was \
             there for all puts, as after a change that was cut off, add --include-behind"
        ));
    }
    match newest.checked_add(1).filter(|&next| next < u32::MAX) {
        Some(generation) => Ok(generation),
        None => refused("there is no generation after the last number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_to_hold_it_must_be_there_take_puts_and_have_all_rows() {
        let holder = |port: u16, writable, generation| Holder {
            address: format!("127.0.0.1:{port}").parse().unwrap(),
            writable,
            generation,
            n_holders: 0,
        };
        let (one, other) = (holder(1, true, 4), holder(2, true, 4));
        let part = PartId(3);
        let next = |found: &[Holder], n, include_behind| {
            next_generation(part, found, n, include_behind).map_err(|error| error.to_string())
        };
        assert_eq!(next(&[one.clone(), other.clone()], 2, false), Ok(5));
        assert_eq!(next(std::slice::from_ref(&one), 1, false), Ok(5));
        for (found, n) in [(vec![], 0), (vec![one.clone()], 2), (vec![one.clone(), other], 1)] {
            let told = next(&found, n, true).unwrap_err();
            assert!(told.contains("partition 3") && told.contains("name all servers"), "{told}");
        }
        let behind = [one.clone(), holder(2, true, 3)];
        assert!(next(&behind, 2, false).unwrap_err().contains("127.0.0.1:2 was left out"));
        assert_eq!(next(&behind, 2, true), Ok(5));
        let closed = [one, holder(2, false, 4)];
        assert!(next(&closed, 2, true).unwrap_err().contains("--writable"));
        assert!(next(&[holder(1, true, u32::MAX - 1)], 1, true).is_err());
    }
}
