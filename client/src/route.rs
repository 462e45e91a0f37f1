//! Routing: which shard of which server answers for each id. Pure, batch-wise.

use std::sync::atomic::{AtomicUsize, Ordering};

use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_schema::{Description, Stripes};

use crate::{Address, ClientError};

/// All servers of one graph, and who holds what.
pub(crate) struct Routes {
    pub(crate) book: PartitionBook,
    pub(crate) endpoints: Vec<Endpoint>,
    servers: Vec<ServerRoutes>,
    /// By partition: the servers that hold it, and which of them is asked now.
    holders: Vec<Holders>,
}

/// One shard of one server.
pub(crate) struct Endpoint {
    pub(crate) address: Address,
    pub(crate) server: usize,
}

/// Where the shards of one server start among the endpoints, and how rows fall to them.
struct ServerRoutes {
    first_endpoint: usize,
    /// By tensor, in the server's order.
    stripes: Vec<Stripes>,
}

struct Holders {
    servers: Vec<usize>,
    asked: AtomicUsize,
}

/// What one endpoint is asked: ids, and where their rows go.
#[derive(Default)]
pub(crate) struct Bucket {
    pub(crate) ids: Vec<NodeId>,
    pub(crate) positions: Vec<u32>,
}

impl Routes {
    /// Joins the descriptions of several servers, which must be of one graph.
    pub(crate) fn new(servers: &[(Address, Description)]) -> Result<Self, ClientError> {
        let Some((first_address, first)) = servers.first() else {
            return Err(ClientError::NoServers);
        };
        let book = PartitionBook::new(first.bounds.clone())
            .map_err(|source| ClientError::BadBook { address: first_address.clone(), source })?;
        let mut routes = Self {
            holders: book
                .parts()
                .map(|_| Holders { servers: Vec::new(), asked: AtomicUsize::new(0) })
                .collect(),
            book,
            endpoints: Vec::new(),
            servers: Vec::new(),
        };
        for (address, description) in servers {
            if !same_graph(description, first) {
                let (address, other) = (address.clone(), first_address.clone());
                return Err(ClientError::GraphsDiffer { address, other });
            }
            routes.add(address, description);
        }
        Ok(routes)
    }

    fn add(&mut self, address: &Address, description: &Description) {
        let server = self.servers.len();
        let first_endpoint = self.endpoints.len();
        for shard in 0..description.n_shards {
            let port = description.shard_ports.get(usize::from(shard)).copied();
            let address = address.of_shard(shard, port);
            self.endpoints.push(Endpoint { address, server });
        }
        let stripes = description
            .tensors
            .iter()
            .filter_map(|tensor| Stripes::new(description.n_shards, tensor.stripe_rows));
        self.servers.push(ServerRoutes { first_endpoint, stripes: stripes.collect() });
        for &part in &description.parts {
            if let Some(holders) = self.holders.get_mut(PartId(part).index()) {
                holders.servers.push(server);
            }
        }
    }

    /// Sorts the ids at `positions` into one bucket per endpoint, keeping their order.
    pub(crate) fn split(
        &self,
        tensor: usize,
        ids: &[NodeId],
        positions: impl Iterator<Item = u32>,
        buckets: &mut Vec<Bucket>,
    ) -> Result<(), ClientError> {
        buckets.resize_with(self.endpoints.len(), Bucket::default);
        for bucket in &mut *buckets {
            bucket.ids.clear();
            bucket.positions.clear();
        }
        for position in positions {
            let id = ids[position as usize];
            let bucket = &mut buckets[self.endpoint_of(tensor, id)?];
            bucket.ids.push(id);
            bucket.positions.push(position);
        }
        Ok(())
    }

    fn endpoint_of(&self, tensor: usize, id: NodeId) -> Result<usize, ClientError> {
        let n_nodes = self.book.n_nodes();
        let (part, row) =
            self.book.locate(id).ok_or(ClientError::UnknownNode { node: id, n_nodes })?;
        let holders = &self.holders[part.index()];
        let asked = holders.asked.load(Ordering::Relaxed);
        let &server = holders.servers.get(asked).ok_or(ClientError::NoHolder { part })?;
        Ok(self.endpoint_at(server, tensor, part, row))
    }

    /// The servers that hold a partition.
    pub(crate) fn holders_of(&self, part: PartId) -> &[usize] {
        &self.holders[part.index()].servers
    }

    /// The shard of `server` that owns a row.
    pub(crate) fn endpoint_at(
        &self,
        server: usize,
        tensor: usize,
        part: PartId,
        row: u32,
    ) -> usize {
        let server = &self.servers[server];
        server.first_endpoint + usize::from(server.stripes[tensor].shard_of(part.0, row))
    }

    /// Asks the holders that `other` asks, which is over the same servers.
    pub(crate) fn ask_like(&self, other: &Self) {
        for (holders, other) in self.holders.iter().zip(&other.holders) {
            if holders.servers == other.servers {
                holders.asked.store(other.asked.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// Asks another holder, where there is one, for every partition that `server` was asked for.
    pub(crate) fn avoid(&self, server: usize) {
        for holders in &self.holders {
            let asked = holders.asked.load(Ordering::Relaxed);
            if holders.servers.get(asked) == Some(&server) {
                let next = (asked + 1) % holders.servers.len();
                holders.asked.store(next, Ordering::Relaxed);
            }
        }
    }
}

/// Whether two servers describe one graph with the same tensors in the same order.
pub(crate) fn same_graph(a: &Description, b: &Description) -> bool {
    let tensors = |d: &Description| -> Vec<(String, String, u32)> {
        d.tensors.iter().map(|t| (t.name.clone(), t.dtype.clone(), t.width)).collect()
    };
    a.graph == b.graph && a.bounds == b.bounds && tensors(a) == tensors(b)
}

#[cfg(test)]
mod tests {
    use lodestore_schema::TensorDescription;

    use super::*;

    fn server(parts: &[u16], n_shards: u16) -> Description {
        let tensor = TensorDescription {
            name: "feat".into(),
            dtype: "f32".into(),
            width: 1,
            row_bytes: 4,
            stripe_rows: 2,
        };
        Description {
            graph: [7; 16],
            n_edges: 0,
            bounds: vec![0, 5, 10],
            parts: parts.to_vec(),
            tensors: vec![tensor],
            shard_ports: (0..n_shards).map(|shard| 9000 + shard).collect(),
            n_shards,
            version: 1,
            writable: false,
        }
    }

    fn address(port: u16) -> Address {
        format!("127.0.0.1:{port}").parse().unwrap()
    }

    fn endpoints(routes: &Routes, ids: &[u32]) -> Vec<usize> {
        ids.iter().map(|&id| routes.endpoint_of(0, NodeId(id)).unwrap()).collect()
    }

    #[test]
    fn rows_go_to_the_shard_that_owns_their_stripe() {
        let servers = [(address(1), server(&[0], 2)), (address(2), server(&[1], 1))];
        let routes = Routes::new(&servers).unwrap();
        assert_eq!(endpoints(&routes, &[0, 1, 2, 3, 4, 5, 9]), [0, 0, 1, 1, 0, 2, 2]);
        assert_eq!(routes.endpoints[1].address, address(9001));
        let mut buckets = Vec::new();
        let ids = [9, 0, 2, 0].map(NodeId);
        routes.split(0, &ids, 0..4, &mut buckets).unwrap();
        let positions: Vec<_> = buckets.iter().map(|b| b.positions.clone()).collect();
        assert_eq!(positions, [vec![1, 3], vec![2], vec![0]]);
    }

    #[test]
    fn another_holder_is_asked_after_a_failure() {
        let servers = [(address(1), server(&[0, 1], 1)), (address(2), server(&[1], 1))];
        let routes = Routes::new(&servers).unwrap();
        routes.avoid(0);
        assert_eq!(endpoints(&routes, &[0, 5]), [0, 1]);
        routes.avoid(1);
        assert_eq!(endpoints(&routes, &[0, 5]), [0, 0]);
    }

    #[test]
    fn strangers_and_gaps_are_named() {
        assert!(matches!(Routes::new(&[]), Err(ClientError::NoServers)));
        let other = Description { graph: [8; 16], ..server(&[1], 1) };
        let servers = [(address(1), server(&[0], 1)), (address(2), other)];
        assert!(matches!(Routes::new(&servers), Err(ClientError::GraphsDiffer { .. })));
        let routes = Routes::new(&[(address(1), server(&[0], 1))]).unwrap();
        let no_holder = routes.endpoint_of(0, NodeId(5));
        assert!(matches!(no_holder, Err(ClientError::NoHolder { part: PartId(1) })));
        let unknown = routes.endpoint_of(0, NodeId(10));
        assert!(matches!(unknown, Err(ClientError::UnknownNode { .. })));
    }
}
