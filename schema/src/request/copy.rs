//! Steps of copying, following and moving partitions.

use super::RequestBody;
use crate::error::Decoded;
use crate::lodestore_capnp::{copy, follow};
use crate::name::ServerAddress;
use crate::versions::VersionTag;

/// Steps of moving a partition, whose files come by [`FollowStep`]; `docs/replication.md` has all
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// Begins, on this connection.
    Open {
        /// Number of the move; 0 for a copy that takes nothing away.
        id: u64,
    },
    /// No more puts, commits and compactions for a moment.
    Seal,
    /// Once sealed, the next rows that are not committed.
    Pending,
    /// The source releases the partition.
    Release {
        /// Address of the server that takes it over, where it is known.
        to: Option<ServerAddress>,
    },
    /// The target serves the folder that it has now.
    Adopt,
    /// The target says whether the copy comes together in its folder.
    Expect {
        /// Number of the move.
        id: u64,
    },
}

/// Steps of following a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// The newest version: its manifest and its files, which this connection holds from then on.
    Manifest,
    /// A piece of a file.
    Read {
        /// Position in [`Followed::files`](crate::reply::Followed::files).
        file: u16,
        /// Offset of its first byte.
        offset: u64,
    },
    /// The version that the follower serves.
    Serves {
        /// That version.
        version: VersionTag,
        /// [`Description::instance`](crate::reply::Description::instance) of the follower; 0 while it
        /// serves nobody.
        instance: u64,
    },
}

pub(super) fn write_follow(part: u16, step: FollowStep, mut to: follow::Builder<'_>) {
    to.set_part(part);
    let mut to = to.init_step();
    match step {
        FollowStep::Manifest => to.set_manifest(()),
        FollowStep::Read { file, offset } => {
            let mut read = to.init_read();
            read.set_file(file);
            read.set_offset(offset);
        }
        FollowStep::Serves { version, instance } => {
            let mut serves = to.init_serves();
            serves.set_version(version.number);
            serves.set_tag(version.tag);
            serves.set_instance(instance);
        }
    }
}

pub(super) fn read_follow(from: follow::Reader<'_>) -> Decoded<RequestBody> {
    let step = match from.get_step().which()? {
        follow::step::Manifest(()) => FollowStep::Manifest,
        follow::step::Read(read) => {
            let read = read?;
            FollowStep::Read { file: read.get_file(), offset: read.get_offset() }
        }
        follow::step::Serves(serves) => {
            let serves = serves?;
            let version = VersionTag { number: serves.get_version(), tag: serves.get_tag() };
            FollowStep::Serves { version, instance: serves.get_instance() }
        }
    };
    Ok(RequestBody::Follow { part: from.get_part(), step })
}

pub(super) fn write(part: u16, step: CopyStep, mut to: copy::Builder<'_>) {
    to.set_part(part);
    if let CopyStep::Release { to: Some(address) } = step {
        to.set_to(address.as_str());
    }
    let mut to = to.init_step();
    match step {
        CopyStep::Open { id } => to.set_open(id),
        CopyStep::Seal => to.set_seal(()),
        CopyStep::Pending => to.set_pending(()),
        CopyStep::Release { .. } => to.set_release(()),
        CopyStep::Adopt => to.set_adopt(()),
        CopyStep::Expect { id } => to.set_expect(id),
    }
}

pub(super) fn read(from: copy::Reader<'_>) -> Decoded<RequestBody> {
    let step = match from.get_step().which()? {
        copy::step::Open(id) => CopyStep::Open { id },
        copy::step::Seal(()) => CopyStep::Seal,
        copy::step::Pending(()) => CopyStep::Pending,
        copy::step::Release(()) => {
            // Earlier movers do not say.
            let to = from.get_to()?;
            let to = if to.is_empty() { None } else { Some(ServerAddress::read(Ok(to))?) };
            CopyStep::Release { to }
        }
        copy::step::Adopt(()) => CopyStep::Adopt,
        copy::step::Expect(id) => CopyStep::Expect { id },
    };
    Ok(RequestBody::Copy { part: from.get_part(), step })
}
