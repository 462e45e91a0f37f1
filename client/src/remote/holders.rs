//! How many servers are to hold a partition: asked of them, and changed.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_schema::{CopyStep, Description, Membership, Reply, RequestBody};

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
    /// How many there are to be, as far as it knows; generation 0 where nobody has said. One of an
    /// earlier generation than another was left out of a change, and one of the same by another change
    /// was counted apart: it may lack rows.
    pub told: Membership,
    /// The address, of those before it in the list, that leads to the same server.
    pub same_as: Option<Address>,
}

impl Client {
    /// Every address of a server that has a partition, of all that are named.
    ///
    /// # Errors
    /// One of them has not been heard of within the deadline.
    pub fn holders(&self, part: PartId) -> Result<Vec<Holder>, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        let fleet = self.whole_fleet(deadline, &mut Patience::new(&self.config, deadline))?;
        let fleet = self.refresh(fleet, deadline)?;
        let has_it = || fleet.servers().filter(|(_, it)| it.parts.contains(&part.0));
        let holder = |(at, (address, it)): (usize, (&Address, &Description))| {
            let same = has_it().take(at).find(|(_, before)| before.is_same_server(it));
            let same_as = same.map(|(before, _)| before.clone());
            let (address, writable) = (address.clone(), it.writable);
            Holder { address, writable, told: it.membership(part.0), same_as }
        };
        Ok(has_it().enumerate().map(holder).collect())
    }

    /// Says that `n_holders` servers are to hold a partition, all of which must be there; gives the
    /// generation. Whoever does not know of it puts nothing from then on, and asks anew.
    ///
    /// The servers are told one after the other. Between two of them, and after an error, puts wait or
    /// are refused; say it again then. Those that were left out of an earlier change, or counted apart,
    /// are taken only with `include_behind`: the caller knows that they have all rows.
    ///
    /// # Errors
    /// [`ClientError::Holders`], before anything is changed, where other servers have it than are to, or
    /// one is named twice; else what kept one from storing it.
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
        let step = CopyStep::Count(Membership { generation, n_holders, change: drawn_change() });
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

/// A number for a person's change: even, and not 0.
fn drawn_change() -> u64 {
    let drawn = RandomState::new().build_hasher().finish() & !1;
    drawn.max(2)
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
    if let Some((holder, other)) =
        found.iter().find_map(|it| it.same_as.as_ref().map(|other| (it, other)))
    {
        return refused(format!(
            "{other} and {} are one server, which counts once: name it by the address that clients use",
            holder.address
        ));
    }
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
    let newest = found.iter().map(|holder| holder.told.generation).max().unwrap_or(0);
    let mut behind = found.iter().filter(|holder| holder.told.generation < newest).peekable();
    if behind.peek().is_some() && !include_behind {
        let behind = list(&mut behind);
        return refused(format!(
            "{behind} was left out of an earlier change and may lack rows; copy it anew, or, if it was \
             there for all puts, as after a change that was cut off, add --include-behind"
        ));
    }
    let are_apart = found.iter().any(|holder| holder.told != found[0].told);
    if are_apart && !include_behind {
        let all = list(&mut found.iter());
        return refused(format!(
            "{all} were counted apart, and each may lack rows that were put to another; stop all but the \
             right one, A, then say so: lode holders {part} --set 1 --connect A, then remove the folders \
             of the partition that the others have, and copy it to them anew; or, if nobody has put \
             anything since they were, as where two have said the same number at once, add \
             --include-behind"
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
    fn changes_of_persons_have_even_numbers_that_differ() {
        let drawn: Vec<u64> = (0..100).map(|_| drawn_change()).collect();
        assert!(drawn.iter().all(|&it| it != 0 && it.is_multiple_of(2)), "{drawn:?}");
        assert!(drawn.iter().collect::<std::collections::BTreeSet<_>>().len() == drawn.len());
    }

    #[test]
    fn those_who_are_to_hold_it_must_be_there_take_puts_and_have_all_rows() {
        let holder = |port: u16, writable, generation| Holder {
            address: format!("127.0.0.1:{port}").parse().unwrap(),
            writable,
            told: Membership { generation, n_holders: 2, change: 8 },
            same_as: None,
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
        let mut apart = [one.clone(), holder(2, true, 4)];
        apart[1].told.change = 6;
        let told = next(&apart, 2, false).unwrap_err();
        let says = ["127.0.0.1:1, 127.0.0.1:2 were counted apart", "--set 1", "--include-behind"];
        assert!(says.iter().all(|it| told.contains(it)), "{told}");
        assert_eq!(next(&apart, 2, true), Ok(5));
        assert_eq!(next(&apart[..1], 1, false), Ok(5), "the right one");
        let mut twice = [one.clone(), holder(2, true, 4)];
        twice[1].same_as = Some(one.address.clone());
        for n in 1..3 {
            let told = next(&twice, n, true).unwrap_err();
            assert!(told.contains("127.0.0.1:1 and 127.0.0.1:2 are one server"), "{told}");
        }
        let closed = [one, holder(2, false, 4)];
        assert!(next(&closed, 2, true).unwrap_err().contains("--writable"));
        assert!(next(&[holder(1, true, u32::MAX - 1)], 1, true).is_err());
    }
}
