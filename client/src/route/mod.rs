//! Routing: the shard of the server to ask for each id. Pure, for whole batches.

mod replicas;
mod tensors;

use std::sync::atomic::Ordering;

use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_schema::reply::{Description, Role, TensorDescription};

use crate::address::Address;
use crate::error::ClientError;
use crate::health::Health;

use replicas::ReplicaSet;
use tensors::TensorPlace;
pub(crate) use tensors::{have_same_tensors, known_tensors};

/// All servers of one graph, and the partitions that each holds.
pub(crate) struct Routes {
    pub(crate) book: PartitionBook,
    pub(crate) endpoints: Vec<Endpoint>,
    servers: Vec<ServerRoutes>,
    /// By partition: the servers that hold it, and which of them is asked now.
    replicas: Vec<ReplicaSet>,
    /// Names of the tensors, in the client's order.
    names: Vec<String>,
}

/// One shard of one server.
pub(crate) struct Endpoint {
    pub(crate) address: Address,
    pub(crate) server: usize,
}

/// The first endpoint of a server, and the distribution of rows over its shards.
struct ServerRoutes {
    first_endpoint: usize,
    /// By tensor, in the client's order.
    tensors: Vec<TensorPlace>,
    health: Health,
}

/// The request to one endpoint: ids, and their positions in the pull.
#[derive(Default)]
pub(crate) struct Bucket {
    pub(crate) ids: Vec<NodeId>,
    pub(crate) positions: Vec<u32>,
    /// Rows of the output, if these are not `positions`.
    pub(crate) places: Vec<u32>,
    /// Partitions of the ids.
    pub(crate) parts: PartSet,
}

impl Bucket {
    pub(crate) fn clear(&mut self) {
        self.ids.clear();
        self.positions.clear();
        self.places.clear();
        self.parts = PartSet::default();
    }
}

/// A set of partitions, one bit each.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartSet(Vec<u64>);

impl PartSet {
    pub(crate) fn insert(&mut self, part: PartId) {
        let word = part.index() / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (part.index() % 64);
    }

    pub(crate) fn insert_all(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    pub(crate) fn contains(&self, part: PartId) -> bool {
        self.0.get(part.index() / 64).is_some_and(|word| word >> (part.index() % 64) & 1 == 1)
    }

    /// Returns the partitions, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PartId> + Clone {
        self.indexes().filter_map(|at| u16::try_from(at).ok().map(PartId))
    }

    /// Returns the indices of the partitions, ascending.
    fn indexes(&self) -> impl Iterator<Item = usize> + Clone {
        let words = self.0.iter().enumerate();
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * at + bit)
        })
    }
}

impl Routes {
    /// Builds the routes from the descriptions of servers, which must serve one graph. `tensors`
    /// are those that the client knows, in its order.
    pub(crate) fn new(
        servers: &[(Address, Description)],
        tensors: &[TensorDescription],
    ) -> Result<Self, ClientError> {
        let Some((first_address, first)) = servers.first() else {
            return Err(ClientError::NoServers);
        };
        let book = PartitionBook::new(first.bounds.clone()).map_err(|error| {
            let reason = format!("an invalid partition book: {error}");
            ClientError::BadDescription { address: first_address.clone(), reason }
        })?;
        let mut routes = Self {
            replicas: book.parts().map(|_| ReplicaSet::default()).collect(),
            book,
            endpoints: Vec::new(),
            servers: Vec::new(),
            names: tensors.iter().map(|tensor| tensor.name.clone()).collect(),
        };
        for (at, (address, description)) in servers.iter().enumerate() {
            if !same_graph(description, first) {
                let (address, other) = (address.clone(), first_address.clone());
                return Err(ClientError::GraphsDiffer { address, other });
            }
            routes.add(at, servers, tensors);
        }
        Ok(routes)
    }

    fn add(
        &mut self,
        server: usize,
        servers: &[(Address, Description)],
        tensors: &[TensorDescription],
    ) {
        let (address, description) = &servers[server];
        let first_endpoint = self.endpoints.len();
        for shard in 0..description.n_shards {
            let port = description.shard_ports.get(usize::from(shard)).copied();
            let address = address.of_shard(shard, port);
            self.endpoints.push(Endpoint { address, server });
        }
        let tensors = tensors.iter().map(|known| TensorPlace::of(known, description)).collect();
        self.servers.push(ServerRoutes { first_endpoint, tensors, health: Health::default() });
        for (part, state) in description.held() {
            let Some(replicas) = self.replicas.get_mut(PartId(part).index()) else { continue };
            replicas.servers.push(server);
            let is_new = |&it: &usize| !servers[it].1.is_same_server(description);
            if state.role == Role::Writer && replicas.writers.iter().all(is_new) {
                replicas.writers.push(server);
            }
        }
    }

    /// Sorts the ids at `positions` into one bucket per endpoint. Each bucket keeps their order.
    pub(crate) fn split(
        &self,
        tensor: usize,
        ids: &[NodeId],
        positions: impl Iterator<Item = u32>,
        buckets: &mut Vec<Bucket>,
    ) -> Result<(), ClientError> {
        buckets.resize_with(self.endpoints.len(), Bucket::default);
        for bucket in &mut *buckets {
            bucket.clear();
        }
        for position in positions {
            let id = ids[position as usize];
            let found = self.endpoint_of(tensor, id);
            let (endpoint, part) = found.ok_or_else(|| self.why_missing(tensor, id))?;
            let bucket = &mut buckets[endpoint];
            bucket.parts.insert(part);
            bucket.ids.push(id);
            bucket.positions.push(position);
        }
        Ok(())
    }

    /// Returns the endpoint to ask for a row, and the partition of the row; `None` without a
    /// server.
    fn endpoint_of(&self, tensor: usize, id: NodeId) -> Option<(usize, PartId)> {
        let (part, row) = self.book.locate(id)?;
        let replicas = &self.replicas[part.index()];
        let &server = replicas.servers.get(replicas.asked.load(Ordering::Relaxed))?;
        let endpoint = self.endpoint_at(server, tensor, part, row);
        // Another server may have a tensor that this one lacks.
        let other = || {
            let mut others = replicas.servers.iter();
            others.find_map(|&other| self.endpoint_at(other, tensor, part, row))
        };
        Some((endpoint.or_else(other)?, part))
    }

    /// Returns the reason why no server can be asked for a row.
    fn why_missing(&self, tensor: usize, id: NodeId) -> ClientError {
        match self.book.part_of(id) {
            Some(part) => match self.servers_of(part).first() {
                Some(&server) => self.why_no_tensor(server, tensor),
                None => ClientError::NoReplica { part },
            },
            None => ClientError::UnknownNode { node: id, n_nodes: self.book.n_nodes() },
        }
    }

    /// Returns the servers that hold a partition.
    pub(crate) fn servers_of(&self, part: PartId) -> &[usize] {
        &self.replicas[part.index()].servers
    }

    /// Fails if no server holds a partition.
    pub(crate) fn check_held(&self, part: PartId) -> Result<(), ClientError> {
        if self.servers_of(part).is_empty() {
            return Err(ClientError::NoReplica { part });
        }
        Ok(())
    }

    /// Returns the only server that accepts puts for a partition. `addresses` has those of all
    /// servers.
    pub(crate) fn writer_of(
        &self,
        part: PartId,
        addresses: &[(Address, Description)],
    ) -> Result<usize, ClientError> {
        self.check_held(part)?;
        let address = |&server: &usize| addresses[server].0.clone();
        match &self.replicas[part.index()].writers[..] {
            &[writer] => Ok(writer),
            [] => {
                let readers: Vec<String> =
                    self.servers_of(part).iter().map(|it| address(it).to_string()).collect();
                Err(ClientError::NoWriter { part, readers: readers.join(", ") })
            }
            [one, other, ..] => {
                let (address, other) = (address(one), address(other));
                Err(ClientError::TwoWriters { part, address, other })
            }
        }
    }

    /// Returns the shard of `server` that owns a row; `None` if the server lacks the tensor.
    pub(crate) fn endpoint_at(
        &self,
        server: usize,
        tensor: usize,
        part: PartId,
        row: u32,
    ) -> Option<usize> {
        let server = &self.servers[server];
        let TensorPlace::At { stripes, .. } = server.tensors.get(tensor)? else { return None };
        Some(server.first_endpoint + usize::from(stripes.shard_of(part.0, row)))
    }

    /// Returns the position of a tensor on the server of an endpoint that was routed for it.
    pub(crate) fn position_at(&self, endpoint: usize, tensor: usize) -> u16 {
        let server = &self.servers[self.endpoints[endpoint].server];
        match server.tensors.get(tensor) {
            Some(TensorPlace::At { position, .. }) => *position,
            // The server rejects this position, so no rows of another tensor arrive.
            _ => u16::MAX,
        }
    }

    /// Returns the reason why a server has no tensor to ask for.
    pub(crate) fn why_no_tensor(&self, server: usize, tensor: usize) -> ClientError {
        let known = self.names.get(tensor).cloned().unwrap_or_default();
        let is_replaced =
            matches!(self.servers[server].tensors.get(tensor), Some(TensorPlace::Replaced));
        ClientError::TensorGone { tensor: known, is_replaced }
    }

    /// Returns the endpoint of a shard of a server.
    pub(crate) fn shard_endpoint(&self, server: usize, shard: u16) -> usize {
        self.servers[server].first_endpoint + usize::from(shard)
    }

    /// Returns the server and the shard of an endpoint.
    pub(crate) fn shard_of(&self, endpoint: usize) -> (usize, usize) {
        let server = self.endpoints[endpoint].server;
        (server, endpoint - self.servers[server].first_endpoint)
    }

    pub(crate) fn health(&self, server: usize) -> &Health {
        &self.servers[server].health
    }
}

/// Returns whether two servers describe one graph. Tensors may be added and dropped, and have uuids
/// of their own.
pub(crate) fn same_graph(a: &Description, b: &Description) -> bool {
    a.graph == b.graph && a.bounds == b.bounds
}

#[cfg(test)]
mod tests;
