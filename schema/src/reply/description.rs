//! The graph behind a server, as clients receive it.

use crate::error::Decoded;
use crate::limits::{
    ADDRESS_BYTES_MAX, FOLLOWERS_MAX, MOVED_MAX, ROW_BYTES_MAX, WIRE_VERSION_IDENTITY,
};
use crate::lodestore_capnp::{self as wire, description, tensor};
use crate::tags::{graph_tag, tensor_tag};
use crate::versions::VersionTag;

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
    /// The lowest version that its partitions have.
    pub version: u32,
    /// Whether pushes, commits and compactions are taken.
    pub writable: bool,
    /// Whether memory can be asked for, over Unix sockets.
    pub shares: bool,
    /// Whether partitions come and go.
    pub roams: bool,
    /// Version and role of each of `parts`; empty where all have `version`, and the server writes
    /// all of them or none.
    pub states: Vec<PartState>,
    /// Partitions that are on their way to this server.
    pub arriving: Vec<u16>,
    /// Drawn by the server when it started; 0 where it was not sent.
    pub instance: u64,
    /// Servers that fetch versions from this one, [`FOLLOWERS_MAX`] at most.
    pub followers: Vec<FollowerState>,
    /// Partitions that the server gave up, and the servers that took them over as far as they are
    /// known, [`MOVED_MAX`] at most.
    pub moved: Vec<MovedPart>,
}

/// A partition that a server gave up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedPart {
    /// The partition.
    pub part: u16,
    /// Address of the server that took it over.
    pub to: String,
}

/// A server that follows another, for one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowerState {
    /// The partition.
    pub part: u16,
    /// The version that it serves, as it has said last.
    pub version: VersionTag,
    /// Its own [`Description::instance`].
    pub instance: u64,
}

/// Role of a server for a partition that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It takes no puts, and no versions from anywhere.
    #[default]
    Reader,
    /// It takes puts: the one server that does.
    Writer,
    /// It fetches versions from the writer.
    Follower,
}

impl Role {
    /// All of them, each with the word for it in reports. They are in the order of their numbers,
    /// which are those of the schema.
    pub(super) const ALL: [(Self, &'static str); 3] =
        [(Self::Reader, "reader"), (Self::Writer, "writer"), (Self::Follower, "follower")];

    /// Returns the word for it in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A partition at a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartState {
    /// The version that is served there.
    pub version: u32,
    /// The tag of the commit that made it; 0 where it is unknown.
    pub tag: u64,
    /// The role of the server for it.
    pub role: Role,
}

impl PartState {
    /// Returns the version with its commit.
    #[must_use]
    pub fn version_tag(&self) -> VersionTag {
        VersionTag { number: self.version, tag: self.tag }
    }
}

/// One tensor as on the wire.
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
    /// Its uuid; all zeros where it is unknown.
    pub uuid: [u8; 16],
}

impl Description {
    /// Returns the graph as requests name it, so that no other graph's rows are taken for its own.
    #[must_use]
    pub fn graph_tag(&self) -> u64 {
        graph_tag(self.graph)
    }

    /// Returns a tensor as pulls and puts of a connection of wire version `agreed` name it.
    #[must_use]
    pub fn tensor_tag(&self, tensor: &TensorDescription, agreed: u16) -> u64 {
        if agreed < WIRE_VERSION_IDENTITY {
            return self.graph_tag();
        }
        tensor_tag(self.graph, tensor.uuid)
    }

    /// Returns the partitions that are here, with the state of each.
    pub fn held(&self) -> impl Iterator<Item = (u16, PartState)> {
        let role = if self.writable { Role::Writer } else { Role::Reader };
        let all = PartState { version: self.version, tag: 0, role };
        let states = self.states.iter().copied().chain(std::iter::repeat(all));
        self.parts.iter().copied().zip(states)
    }

    /// Returns the address of the server that took a partition over from this one, if it said.
    #[must_use]
    pub fn moved_to(&self, part: u16) -> Option<&str> {
        self.moved.iter().find(|it| it.part == part).map(|it| it.to.as_str())
    }

    /// Returns whether another address led to the same server, as it ran then.
    #[must_use]
    pub fn is_same_server(&self, other: &Self) -> bool {
        self.instance != 0 && self.instance == other.instance
    }

    /// Returns the state of a partition, if it is here.
    #[must_use]
    pub fn state(&self, part: u16) -> Option<PartState> {
        self.held().find(|&(it, _)| it == part).map(|(_, state)| state)
    }
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
    let versions: Vec<u32> = from.states.iter().map(|it| it.version).collect();
    to.set_versions(&versions[..]).expect("the list fits a message");
    let n_states = u32::try_from(from.states.len()).unwrap_or(u32::MAX);
    let mut roles = to.reborrow().init_roles(n_states);
    for (i, state) in (0..n_states).zip(&from.states) {
        let role = wire::Role::try_from(state.role as u16);
        roles.set(i, role.expect("the schema has all roles"));
    }
    let tags: Vec<u64> = from.states.iter().map(|it| it.tag).collect();
    to.set_tags(&tags[..]).expect("the list fits a message");
    let followers = &from.followers[..from.followers.len().min(FOLLOWERS_MAX)];
    let n_followers = u32::try_from(followers.len()).unwrap_or(u32::MAX);
    let mut list = to.reborrow().init_followers(n_followers);
    for (i, from) in (0..n_followers).zip(followers) {
        let mut to = list.reborrow().get(i);
        to.set_part(from.part);
        to.set_version(from.version.number);
        to.set_tag(from.version.tag);
        to.set_instance(from.instance);
    }
    to.set_instance(from.instance);
    let moved = &from.moved[..from.moved.len().min(MOVED_MAX)];
    let n_moved = u32::try_from(moved.len()).unwrap_or(u32::MAX);
    let mut list = to.reborrow().init_moved(n_moved);
    for (i, from) in (0..n_moved).zip(moved) {
        let mut to = list.reborrow().get(i);
        to.set_part(from.part);
        to.set_to(&from.to);
    }
    let n = u32::try_from(from.tensors.len()).unwrap_or(u32::MAX);
    let mut tensors = to.init_tensors(n);
    for (i, from) in (0..n).zip(&from.tensors) {
        let mut to: tensor::Builder<'_> = tensors.reborrow().get(i);
        to.set_name(&from.name);
        to.set_dtype(&from.dtype);
        to.set_width(from.width);
        to.set_row_bytes(from.row_bytes);
        to.set_stripe_rows(from.stripe_rows);
        to.set_uuid(&from.uuid);
    }
}

pub(super) fn read(from: description::Reader<'_>) -> Decoded<Description> {
    let graph = from.get_graph()?;
    let graph = graph.try_into().map_err(|_| format!("uuid of {} bytes", graph.len()))?;
    let n_shards = from.get_n_shards();
    if n_shards == 0 {
        return Err("a server without shards".into());
    }
    let shard_ports: Vec<u16> = from.get_shard_ports()?.iter().collect();
    if !shard_ports.is_empty() && shard_ports.len() != usize::from(n_shards) {
        return Err(format!("{} ports for {n_shards} shards", shard_ports.len()).into());
    }
    let parts: Vec<u16> = from.get_parts()?.iter().collect();
    let arriving: Vec<u16> = from.get_arriving()?.iter().collect();
    if !parts.is_sorted_by(|a, b| a < b) || !arriving.is_sorted_by(|a, b| a < b) {
        return Err("partitions out of order, or named twice".into());
    }
    let (versions, roles) = (from.get_versions()?, from.get_roles()?);
    let (n_versions, n_roles) = (versions.len() as usize, roles.len() as usize);
    if n_versions != n_roles || (n_roles > 0 && n_roles != parts.len()) {
        let n_parts = parts.len();
        return Err(
            format!("{n_versions} versions, {n_roles} roles of {n_parts} partitions").into()
        );
    }
    // Before version 6 there are none.
    let tags = from.get_tags()?;
    let mut states = Vec::with_capacity(parts.len());
    for (at, (version, role)) in (0..).zip(versions.iter().zip(roles.iter())) {
        let tag = if at < tags.len() { tags.get(at) } else { 0 };
        states.push(PartState { version, tag, role: Role::ALL[role? as usize].0 });
    }
    let follower = |it: wire::follower::Reader<'_>| FollowerState {
        part: it.get_part(),
        version: VersionTag { number: it.get_version(), tag: it.get_tag() },
        instance: it.get_instance(),
    };
    Ok(Description {
        graph,
        n_edges: from.get_n_edges(),
        bounds: from.get_bounds()?.iter().collect(),
        states,
        followers: from.get_followers()?.iter().take(FOLLOWERS_MAX).map(follower).collect(),
        moved: from.get_moved()?.iter().take(MOVED_MAX).map(read_moved).collect::<Decoded<_>>()?,
        arriving,
        parts,
        tensors: from.get_tensors()?.iter().map(read_tensor).collect::<Decoded<_>>()?,
        shard_ports,
        n_shards,
        version: from.get_version(),
        writable: from.get_writable(),
        shares: from.get_shares(),
        roams: from.get_roams(),
        instance: from.get_instance(),
    })
}

fn read_moved(from: wire::moved::Reader<'_>) -> Decoded<MovedPart> {
    let to = from.get_to()?.to_string()?;
    if to.len() > ADDRESS_BYTES_MAX {
        return Err(format!("an address of {} bytes", to.len()).into());
    }
    Ok(MovedPart { part: from.get_part(), to })
}

fn read_tensor(from: tensor::Reader<'_>) -> Decoded<TensorDescription> {
    let tensor = TensorDescription {
        name: from.get_name()?.to_string()?,
        dtype: from.get_dtype()?.to_string()?,
        width: from.get_width(),
        row_bytes: from.get_row_bytes(),
        stripe_rows: from.get_stripe_rows(),
        uuid: read_uuid(from.get_uuid()?)?,
    };
    if tensor.row_bytes == 0 || tensor.row_bytes as usize > ROW_BYTES_MAX {
        return Err(format!("rows of {} bytes", tensor.row_bytes).into());
    }
    if tensor.stripe_rows == 0 {
        return Err("stripes of 0 rows".into());
    }
    Ok(tensor)
}

/// Reads the uuid of a tensor, which is not sent before version 6.
fn read_uuid(bytes: &[u8]) -> Decoded<[u8; 16]> {
    if bytes.is_empty() {
        return Ok([0; 16]);
    }
    bytes.try_into().map_err(|_| format!("uuid of {} bytes", bytes.len()).into())
}
