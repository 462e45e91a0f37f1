//! The graph behind a server, as clients are told of it.

use crate::limits::ROW_BYTES_MAX;
use crate::lodestore_capnp::{description, tensor};
use crate::reply::bad;
use crate::{Membership, WireError};

/// The graph behind a server, and how to reach the owner of each row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Identity of the graph (uuid).
    pub graph: [u8; 16],
    /// Edges of the whole graph.
    pub n_edges: u64,
    /// Partition book: parts + 1 bounds.
    pub bounds: Vec<u32>,
    /// Partitions that this server holds.
    pub parts: Vec<u16>,
    /// Tensors that this server serves.
    pub tensors: Vec<TensorDescription>,
    /// TCP port of each shard; empty without a TCP listener.
    pub shard_ports: Vec<u16>,
    /// Shards of this server, at least 1.
    pub n_shards: u16,
    /// The newest committed version.
    pub version: u32,
    /// Whether pushes, commits and compactions are taken.
    pub writable: bool,
    /// Whether memory can be asked for, over Unix sockets.
    pub shares: bool,
    /// Whether partitions come and go.
    pub roams: bool,
    /// Of each of `parts`, how many servers are to hold it; empty where nobody has said of any.
    pub memberships: Vec<Membership>,
    /// Partitions that are on their way to this server.
    pub arriving: Vec<u16>,
    /// Drawn by the server when it started; 0 where none was told.
    pub instance: u64,
}

/// One tensor as the wire tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorDescription {
    /// Name, unique in the graph.
    pub name: String,
    /// Name of the element type.
    pub dtype: String,
    /// Elements of a row.
    pub width: u32,
    /// Bytes of a row, 1 to 1 MiB.
    pub row_bytes: u32,
    /// Rows of a stripe: stripe `s` of partition `p` belongs to shard `(s + p) mod n_shards`.
    pub stripe_rows: u32,
}

impl Description {
    /// The graph as requests name it, so that no other graph's rows are taken for its own.
    #[must_use]
    pub fn graph_tag(&self) -> u64 {
        graph_tag(self.graph)
    }

    /// The partitions that are here, and how many servers are to hold each; generation 0 where nobody
    /// has said.
    pub fn held(&self) -> impl Iterator<Item = (u16, Membership)> {
        let memberships = self.memberships.iter().copied();
        let memberships = memberships.chain(std::iter::repeat(Membership::default()));
        self.parts.iter().copied().zip(memberships)
    }

    /// Whether another address led to the same server, as it ran then.
    #[must_use]
    pub fn is_same_server(&self, other: &Self) -> bool {
        self.instance != 0 && self.instance == other.instance
    }

    /// How many servers are to hold a partition that is here; the same.
    #[must_use]
    pub fn membership(&self, part: u16) -> Membership {
        self.held().find(|&(it, _)| it == part).map(|(_, told)| told).unwrap_or_default()
    }
}

/// The first eight bytes of a graph's uuid, which are random.
#[must_use]
pub fn graph_tag(graph: [u8; 16]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = graph;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

pub(super) fn write(from: &Description, mut to: description::Builder<'_>) {
    to.set_graph(&from.graph);
    to.set_n_edges(from.n_edges);
    to.set_n_shards(from.n_shards);
    to.set_version(from.version);
    to.set_writable(from.writable);
    to.set_shares(from.shares);
    to.set_roams(from.roams);
    to.set_bounds(&from.bounds[..]).expect("the list fits a message");
    to.set_parts(&from.parts[..]).expect("the list fits a message");
    to.set_shard_ports(&from.shard_ports[..]).expect("the list fits a message");
    to.set_arriving(&from.arriving[..]).expect("the list fits a message");
    let generations: Vec<u32> = from.memberships.iter().map(|it| it.generation).collect();
    let holders: Vec<u16> = from.memberships.iter().map(|it| it.n_holders).collect();
    to.set_generations(&generations[..]).expect("the list fits a message");
    let changes: Vec<u64> = from.memberships.iter().map(|it| it.change).collect();
    to.set_holders(&holders[..]).expect("the list fits a message");
    to.set_changes(&changes[..]).expect("the list fits a message");
    to.set_instance(from.instance);
    let n = u32::try_from(from.tensors.len()).unwrap_or(u32::MAX);
    let mut tensors = to.init_tensors(n);
    for (i, from) in (0..n).zip(&from.tensors) {
        let mut to: tensor::Builder<'_> = tensors.reborrow().get(i);
        to.set_name(&from.name);
        to.set_dtype(&from.dtype);
        to.set_width(from.width);
        to.set_row_bytes(from.row_bytes);
        to.set_stripe_rows(from.stripe_rows);
    }
}

pub(super) fn read(from: description::Reader<'_>) -> Result<Description, WireError> {
    let graph = from.get_graph().map_err(bad)?;
    let graph = graph.try_into().map_err(|_| bad(format!("uuid of {} bytes", graph.len())))?;
    let n_shards = from.get_n_shards();
    if n_shards == 0 {
        return Err(bad("a server without shards"));
    }
    let shard_ports: Vec<u16> = from.get_shard_ports().map_err(bad)?.iter().collect();
    if !shard_ports.is_empty() && shard_ports.len() != usize::from(n_shards) {
        return Err(bad(format!("{} ports for {n_shards} shards", shard_ports.len())));
    }
    let parts: Vec<u16> = from.get_parts().map_err(bad)?.iter().collect();
    let arriving: Vec<u16> = from.get_arriving().map_err(bad)?.iter().collect();
    if !parts.is_sorted_by(|a, b| a < b) || !arriving.is_sorted_by(|a, b| a < b) {
        return Err(bad("partitions out of order, or named twice"));
    }
    let generations = from.get_generations().map_err(bad)?;
    let holders = from.get_holders().map_err(bad)?;
    let changes = from.get_changes().map_err(bad)?;
    let (n_told, n_holders, n_changes) = (generations.len(), holders.len(), changes.len());
    if [n_holders, n_changes] != [n_told; 2] || (n_told > 0 && n_told as usize != parts.len()) {
        let n_parts = parts.len();
        return Err(bad(format!(
            "{n_told} generations, {n_holders} holders, {n_changes} changes of {n_parts} partitions"
        )));
    }
    let told = generations.iter().zip(holders.iter()).zip(changes.iter());
    let memberships =
        told.map(|((generation, n_holders), change)| Membership { generation, n_holders, change });
    let tensors = from.get_tensors().map_err(bad)?;
    Ok(Description {
        graph,
        n_edges: from.get_n_edges(),
        bounds: from.get_bounds().map_err(bad)?.iter().collect(),
        memberships: memberships.collect(),
        arriving,
        parts,
        tensors: tensors.iter().map(read_tensor).collect::<Result<_, _>>()?,
        shard_ports,
        n_shards,
        version: from.get_version(),
        writable: from.get_writable(),
        shares: from.get_shares(),
        roams: from.get_roams(),
        instance: from.get_instance(),
    })
}

fn read_tensor(from: tensor::Reader<'_>) -> Result<TensorDescription, WireError> {
    let tensor = TensorDescription {
        name: from.get_name().map_err(bad)?.to_string().map_err(bad)?,
        dtype: from.get_dtype().map_err(bad)?.to_string().map_err(bad)?,
        width: from.get_width(),
        row_bytes: from.get_row_bytes(),
        stripe_rows: from.get_stripe_rows(),
    };
    if tensor.row_bytes == 0 || tensor.row_bytes as usize > ROW_BYTES_MAX {
        return Err(bad(format!("rows of {} bytes", tensor.row_bytes)));
    }
    if tensor.stripe_rows == 0 {
        return Err(bad("stripes of 0 rows"));
    }
    Ok(tensor)
}
