//! Requests of a client.

mod copy;
mod volatile;

use std::time::Duration;

use crate::error::{Decoded, WireError};
use crate::frame;
use crate::limits::{REQUEST_TRAVERSAL_WORDS_MAX, WIRE_VERSION, WIRE_VERSION_IDENTITY};
use crate::lodestore_capnp::{self as wire, push, request};
use crate::name::Name;
use crate::token::Token;
use crate::versions::{VersionTag, Versions};
use crate::wire_versions::WireVersions;

pub use copy::{CopyStep, FollowStep};
pub use volatile::{Declare, Publish, PullVolatile};

/// A request less its body: the node ids of a pull follow the head as u32, little-endian; those of
/// a push, and then its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// How long the client will still wait, counted from when it sent this.
    pub deadline: Option<Duration>,
    /// When it sent this, counted by its own clock from the start of the connection; zero if it
    /// does not tell.
    pub sent: Duration,
    /// The graph or tensor that it means, see [`tags`](crate::tags); 0 for any.
    pub graph: u64,
    /// For a pull: the only version whose rows will do; 0 for the newest of each partition.
    pub version: u32,
    /// For a pull: the lowest versions of its partitions that will do; where `version` is given,
    /// that version with the commits that made it.
    pub floors: Versions,
    /// For a pull: `floors` are the versions to read.
    pub exactly: bool,
    /// The requested kind.
    pub body: RequestBody,
}

/// The kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// Describe the graph, the tensors and where rows live.
    Describe,
    /// Rows of one tensor.
    Pull {
        /// Position in [`Description::tensors`](crate::reply::Description::tensors).
        tensor: u16,
        /// How the rows will be used.
        kind: PullKind,
    },
    /// Counters of every shard.
    Stat,
    /// Rows that take the place of others: ids, all of one partition, and then rows in the body.
    Push(Push),
    /// Pending rows become a version.
    Commit {
        /// Its number; nothing happens if it is committed already.
        version: u32,
        /// Which half of it.
        step: CommitStep,
        /// The id of the commit; 0 where the server is to draw one.
        label: u128,
    },
    /// Committed rows are folded into segments.
    Compact,
    /// Credentials: the first request where a server requires them. It has no answer.
    Authenticate {
        /// Values that the server compares with its own.
        token: Token,
    },
    /// Memory for the rows of this connection, which must be a Unix socket.
    Share,
    /// The oldest awaited chunk in that memory has been copied, or all of an answer with rows that
    /// were lent. It has no answer.
    Taken,
    /// The memory that keeps rows of a tensor, for a connection that shares memory.
    Lend {
        /// Position in [`Description::tensors`](crate::reply::Description::tensors).
        tensor: u16,
    },
    /// A step of moving a partition.
    Copy {
        /// The partition.
        part: u16,
        /// The requested step.
        step: CopyStep,
    },
    /// A step of following a partition.
    Follow {
        /// The partition.
        part: u16,
        /// The requested rows.
        step: FollowStep,
    },
    /// A volatile tensor is to be there.
    Declare(Declare),
    /// Description of a volatile tensor.
    Volatile {
        /// Its name.
        tensor: Name,
    },
    /// The right to publish rows; pairs of ids in the body, first and end.
    Claim {
        /// Name of their volatile tensor.
        tensor: Name,
    },
    /// Volatile rows: ids and then rows in the body.
    Publish(Publish),
    /// Volatile rows with a stamp, or a later one; their ids in the body.
    PullVolatile(PullVolatile),
}

/// A piece of a put, less its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Push {
    /// Position in [`Description::tensors`](crate::reply::Description::tensors).
    pub tensor: u16,
    /// Number of ids, and of rows.
    pub n_rows: u32,
    /// A number that the client has drawn for the put.
    pub put: u128,
    /// Place among the pieces for the partition.
    pub piece: u32,
    /// Whether it is the last of these.
    pub is_last: bool,
    /// Rows of all of these.
    pub total_rows: u32,
}

/// The halves of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep {
    /// Everything that the version needs becomes durable, and nothing of it visible.
    Prepare,
    /// Readers see the version.
    Publish,
}

/// How the rows of a pull will be used; a kind that is named first passes the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PullKind {
    /// The miss set of a batch: latency-bound.
    Sync,
    /// Bulk for a hot set: throughput-bound, yields to `Sync`.
    Vector,
}

impl RequestBody {
    /// Returns the versions of the wire that have this request.
    #[must_use]
    pub fn versions(&self) -> WireVersions {
        WireVersions { oldest: self.introduction().1, newest: WIRE_VERSION }
    }

    /// Checks that a connection of version `agreed` has this request.
    ///
    /// # Errors
    /// `Lacks` where it has not.
    pub fn check_version(&self, agreed: u16) -> Result<(), WireError> {
        let known = self.versions();
        if known.contains(agreed) {
            return Ok(());
        }
        Err(WireError::Lacks { request: self.introduction().0, known, agreed })
    }

    /// Returns its name in the schema, and the first version of the wire that has it.
    fn introduction(&self) -> (&'static str, u16) {
        match self {
            Self::Describe => ("describe", 3),
            Self::Pull { .. } => ("pull", 3),
            Self::Stat => ("stat", 3),
            Self::Compact => ("compact", 3),
            Self::Authenticate { .. } => ("authenticate", 3),
            Self::Share => ("share", 3),
            Self::Taken => ("taken", 3),
            Self::Lend { .. } => ("lend", 3),
            // Puts were visible without a commit, and moves copied pairs.
            Self::Push(_) => ("push", 4),
            Self::Commit { .. } => ("commit", 4),
            Self::Copy { .. } => ("copy", 4),
            Self::Follow { step: FollowStep::Serves { .. }, .. } => ("follow.serves", 6),
            Self::Follow { .. } => ("follow", 4),
            Self::Declare(_) => ("declare", 5),
            Self::Volatile { .. } => ("volatile", 5),
            Self::Claim { .. } => ("claim", 5),
            Self::Publish(_) => ("publish", 5),
            Self::PullVolatile(_) => ("pullVolatile", 5),
        }
    }
}

impl Request {
    /// Returns a request without a deadline, of whatever graph and version is there.
    #[must_use]
    pub fn new(body: RequestBody) -> Self {
        Self {
            deadline: None,
            sent: Duration::ZERO,
            graph: 0,
            version: 0,
            floors: Versions::default(),
            exactly: false,
            body,
        }
    }

    /// Returns it as a connection of version `agreed` has it: without the commits of its versions
    /// before [`WIRE_VERSION_IDENTITY`].
    #[must_use]
    pub fn for_version(self, agreed: u16) -> Self {
        if agreed >= WIRE_VERSION_IDENTITY {
            return self;
        }
        let is_pinned = self.version != 0;
        let floors = if is_pinned { Versions::default() } else { self.floors.without_tags() };
        Self { floors, exactly: false, ..self }
    }

    /// Appends prefix and head for a request whose body will be `body_bytes` long.
    pub fn append_to(&self, body_bytes: usize, out: &mut Vec<u8>) {
        let mut message = frame::builder();
        let mut root = message.init_root::<request::Builder<'_>>();
        root.set_deadline_ms(self.deadline.map_or(0, deadline_ms));
        root.set_sent_us(u64::try_from(self.sent.as_micros()).unwrap_or(u64::MAX));
        root.set_graph(self.graph);
        root.set_version(self.version);
        root.set_at_least(self.floors.lowest.number);
        root.set_at_least_tag(self.floors.lowest.tag);
        root.set_exactly(self.exactly);
        if !self.floors.above.is_empty() {
            self.floors.write_above(root.reborrow().init_floors(self.floors.n_above()));
        }
        let n_tags = self.floors.n_tags();
        if n_tags > 0 {
            self.floors.write_tags(root.reborrow().init_floor_tags(n_tags));
        }
        match &self.body {
            RequestBody::Describe => root.set_describe(()),
            RequestBody::Stat => root.set_stat(()),
            RequestBody::Compact => root.set_compact(()),
            RequestBody::Share => root.set_share(()),
            RequestBody::Taken => root.set_taken(()),
            RequestBody::Lend { tensor } => root.set_lend(*tensor),
            RequestBody::Authenticate { token } => root.set_authenticate(token.as_bytes()),
            RequestBody::Copy { part, step } => copy::write(*part, *step, root.init_copy()),
            RequestBody::Follow { part, step } => {
                copy::write_follow(*part, *step, root.init_follow());
            }
            RequestBody::Commit { version, step, label } => {
                let mut commit = root.init_commit();
                commit.set_version(*version);
                commit.set_label_high((*label >> 64) as u64);
                commit.set_label_low(*label as u64);
                commit.set_step(match step {
                    CommitStep::Prepare => wire::CommitStep::Prepare,
                    CommitStep::Publish => wire::CommitStep::Publish,
                });
            }
            RequestBody::Push(push) => push.write(root.init_push()),
            RequestBody::Declare(declare) => declare.write(root.init_declare()),
            RequestBody::Volatile { tensor } => root.set_volatile(tensor.as_str()),
            RequestBody::Claim { tensor } => root.set_claim(tensor.as_str()),
            RequestBody::Publish(publish) => publish.write(root.init_publish()),
            RequestBody::PullVolatile(pull) => pull.write(root.init_pull_volatile()),
            RequestBody::Pull { tensor, kind } => {
                let mut pull = root.init_pull();
                pull.set_tensor(*tensor);
                pull.set_kind(match kind {
                    PullKind::Sync => wire::PullKind::Sync,
                    PullKind::Vector => wire::PullKind::Vector,
                });
            }
        }
        frame::append_frame(&message, body_bytes, out);
    }

    /// Reads a head.
    ///
    /// # Errors
    /// `Malformed` when the bytes are no request of this schema.
    pub fn decode(head: &[u8]) -> Result<Self, WireError> {
        frame::decode("request", head, REQUEST_TRAVERSAL_WORDS_MAX, |reader| {
            let root = reader.get_root::<request::Reader<'_>>()?;
            let body = RequestBody::read(root)?;
            let deadline_ms = root.get_deadline_ms();
            Ok(Self {
                deadline: (deadline_ms > 0).then(|| Duration::from_millis(deadline_ms.into())),
                sent: Duration::from_micros(root.get_sent_us()),
                graph: root.get_graph(),
                version: root.get_version(),
                floors: Versions::read(
                    VersionTag { number: root.get_at_least(), tag: root.get_at_least_tag() },
                    root.get_floors()?,
                    root.get_floor_tags()?,
                ),
                exactly: root.get_exactly(),
                body,
            })
        })
    }
}

impl RequestBody {
    fn read(root: request::Reader<'_>) -> Decoded<Self> {
        Ok(match root.which()? {
            request::Describe(()) => Self::Describe,
            request::Stat(()) => Self::Stat,
            request::Compact(()) => Self::Compact,
            request::Share(()) => Self::Share,
            request::Taken(()) => Self::Taken,
            request::Lend(tensor) => Self::Lend { tensor },
            request::Authenticate(token) => Self::Authenticate { token: Token::new(token?)? },
            request::Commit(commit) => {
                let commit = commit?;
                let step = match commit.get_step()? {
                    wire::CommitStep::Prepare => CommitStep::Prepare,
                    wire::CommitStep::Publish => CommitStep::Publish,
                };
                let label = u128_of(commit.get_label_high(), commit.get_label_low());
                Self::Commit { version: commit.get_version(), step, label }
            }
            request::Push(push) => Self::Push(Push::read(push?)),
            request::Declare(declare) => Self::Declare(Declare::read(declare?)?),
            request::Volatile(name) => Self::Volatile { tensor: Name::read(name)? },
            request::Claim(name) => Self::Claim { tensor: Name::read(name)? },
            request::Publish(publish) => Self::Publish(Publish::read(publish?)?),
            request::PullVolatile(pull) => Self::PullVolatile(PullVolatile::read(pull?)?),
            request::Follow(follow) => copy::read_follow(follow?)?,
            request::Copy(copy) => copy::read(copy?)?,
            request::Pull(pull) => {
                let pull = pull?;
                let kind = match pull.get_kind()? {
                    wire::PullKind::Sync => PullKind::Sync,
                    wire::PullKind::Vector => PullKind::Vector,
                };
                Self::Pull { tensor: pull.get_tensor(), kind }
            }
        })
    }
}

impl Push {
    fn write(self, mut to: push::Builder<'_>) {
        to.set_tensor(self.tensor);
        to.set_n_rows(self.n_rows);
        to.set_put_high((self.put >> 64) as u64);
        to.set_put_low(self.put as u64);
        to.set_piece(self.piece);
        to.set_is_last(self.is_last);
        to.set_total_rows(self.total_rows);
    }

    fn read(from: push::Reader<'_>) -> Self {
        Self {
            tensor: from.get_tensor(),
            n_rows: from.get_n_rows(),
            put: u128_of(from.get_put_high(), from.get_put_low()),
            piece: from.get_piece(),
            is_last: from.get_is_last(),
            total_rows: from.get_total_rows(),
        }
    }
}

/// Returns the number of 128 bits that these halves make.
pub(crate) fn u128_of(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Returns a deadline in milliseconds, at least 1: one below a millisecond must not read as none.
fn deadline_ms(deadline: Duration) -> u32 {
    u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests;
