//! What each holder of each partition must take of a put, and what it has taken already.

use lodestore_graph::PartId;
use lodestore_schema::Membership;

use super::Fleet;
use crate::{Address, ClientError};

/// The rows of one partition for one of its holders.
pub(super) struct Share<'a> {
    pub(super) part: PartId,
    pub(super) server: usize,
    /// Of all these rows, in the order of the put.
    pub(super) positions: &'a [u32],
    /// Rows that the holder has acknowledged: the first so many.
    pub(super) done: usize,
}

/// How many of its rows of a partition a holder has taken, and as what it did.
pub(super) struct Taken {
    part: PartId,
    told: Membership,
    address: Address,
    instance: u64,
    done: usize,
}

impl Share<'_> {
    /// What has been taken by its holder, as `fleet` knows that, whose share it is.
    pub(super) fn taken(&self, fleet: &Fleet) -> Taken {
        Taken {
            part: self.part,
            told: fleet.routes.membership(self.part),
            address: fleet.address(self.server).clone(),
            instance: fleet.instance(self.server),
            done: self.done,
        }
    }
}

impl Taken {
    /// Whether a holder still has what it has taken. After a change of the holders, or a start anew, the
    /// copy at the same address may be another, made from one that had less.
    fn is_of(&self, fleet: &Fleet, part: PartId, server: usize) -> bool {
        self.part == part
            && self.told == fleet.routes.membership(part)
            && self.address == *fleet.address(server)
            && self.instance == fleet.instance(server)
    }
}

/// Every holder of every partition, all of which must take updates: a holder that does not would
/// go on serving the rows before.
pub(super) fn shares<'a>(
    fleet: &Fleet,
    by_part: &'a [(PartId, Vec<u32>)],
    known: &[Taken],
) -> Result<Vec<Share<'a>>, ClientError> {
    let mut shares = Vec::new();
    for (part, positions) in by_part {
        let part = *part;
        let holders = fleet.routes.holders_of(part);
        fleet.check_holders(part)?;
        for &server in holders {
            if !fleet.is_writable(server) {
                let of = format!("; it holds partition {part}");
                let address = fleet.address(server).clone();
                return Err(ClientError::NotWritable { address, of });
            }
            let taken = known.iter().find(|taken| taken.is_of(fleet, part, server));
            let done = taken.map_or(0, |taken| taken.done);
            shares.push(Share { part, server, positions, done });
        }
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lodestore_schema::Description;

    use super::*;
    use crate::Security;

    const PART: PartId = PartId(0);

    /// Two holders of a partition, by these ports, instances and this change.
    fn fleet(servers: [(u16, u64); 2], change: u64) -> Fleet {
        let server = |(port, instance): (u16, u64)| {
            let description = Description {
                graph: [7; 16],
                bounds: vec![0, 5],
                parts: vec![0],
                memberships: vec![Membership { generation: 1, n_holders: 2, change }],
                instance,
                shard_ports: vec![port],
                n_shards: 1,
                version: 1,
                writable: true,
                ..Description::default()
            };
            (format!("127.0.0.1:{port}").parse().unwrap(), description)
        };
        let servers = servers.map(server).to_vec();
        Fleet::new(servers, Security::default(), Arc::default()).unwrap()
    }

    #[test]
    fn what_a_holder_has_taken_counts_while_it_is_the_same_copy() {
        let by_part = [(PART, vec![0, 1, 2])];
        let before = fleet([(1, 5), (2, 6)], 8);
        let mut all = shares(&before, &by_part, &[]).unwrap();
        assert_eq!(all.iter().map(|share| share.done).collect::<Vec<_>>(), [0, 0]);
        (all[0].done, all[1].done) = (3, 2);
        let known: Vec<Taken> = all.iter().map(|share| share.taken(&before)).collect();
        for (servers, change, expected) in [
            ([(1, 5), (2, 6)], 8, [3, 2]),
            ([(2, 6), (1, 5)], 8, [2, 3]),
            ([(1, 5), (2, 7)], 8, [3, 0]),
            ([(1, 5), (3, 6)], 8, [3, 0]),
            ([(1, 5), (2, 6)], 10, [0, 0]),
        ] {
            let found = shares(&fleet(servers, change), &by_part, &known).unwrap();
            let done: Vec<usize> = found.iter().map(|share| share.done).collect();
            assert_eq!(done, expected, "{servers:?} by {change}");
        }
    }
}
