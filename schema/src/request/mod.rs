//! Requests of a client.

mod copy;
mod volatile;

use std::time::Duration;

use crate::error::WireError;
use crate::limits::{REQUEST_TRAVERSAL_WORDS_MAX, WIRE_VERSION};
use crate::lodestore_capnp::{self as wire, push, request};
use crate::message;
use crate::name::Name;
use crate::token::Token;
use crate::versions::Versions;
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
    /// The graph that it means, see [`graph_tag`](crate::reply::graph_tag); 0 for any.
    pub graph: u64,
    /// For a pull: the only version whose rows will do; 0 for the newest of each partition.
    pub version: u32,
    /// For a pull: the lowest versions of its partitions that will do.
    pub floors: Versions,
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

/// How the rows of a pull will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let since = |oldest| WireVersions { oldest, newest: WIRE_VERSION };
        match self {
            Self::Describe
            | Self::Pull { .. }
            | Self::Stat
            | Self::Compact
            | Self::Authenticate { .. }
            | Self::Share
            | Self::Taken
            | Self::Lend { .. } => since(3),
            // Puts were visible without a commit, and moves copied pairs.
            Self::Push(_) | Self::Commit { .. } | Self::Copy { .. } | Self::Follow { .. } => {
                since(4)
            }
            Self::Declare(_)
            | Self::Volatile { .. }
            | Self::Claim { .. }
            | Self::Publish(_)
            | Self::PullVolatile(_) => since(5),
        }
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
        Err(WireError::Lacks { request: self.name(), known, agreed })
    }

    /// Returns its name in the schema.
    fn name(&self) -> &'static str {
        match self {
            Self::Describe => "describe",
            Self::Pull { .. } => "pull",
            Self::Stat => "stat",
            Self::Push { .. } => "push",
            Self::Commit { .. } => "commit",
            Self::Compact => "compact",
            Self::Authenticate { .. } => "authenticate",
            Self::Share => "share",
            Self::Taken => "taken",
            Self::Lend { .. } => "lend",
            Self::Copy { .. } => "copy",
            Self::Follow { .. } => "follow",
            Self::Declare(_) => "declare",
            Self::Volatile { .. } => "volatile",
            Self::Claim { .. } => "claim",
            Self::Publish(_) => "publish",
            Self::PullVolatile(_) => "pullVolatile",
        }
    }
}

impl Request {
    /// Returns a request without a deadline, of whatever graph and version is there.
    #[must_use]
    pub fn new(body: RequestBody) -> Self {
        let floors = Versions::default();
        Self { deadline: None, sent: Duration::ZERO, graph: 0, version: 0, floors, body }
    }

    /// Appends prefix and head for a request whose body will be `body_bytes` long.
    pub fn append_to(&self, body_bytes: usize, out: &mut Vec<u8>) {
        let mut message = message::builder();
        let mut root = message.init_root::<request::Builder<'_>>();
        root.set_deadline_ms(self.deadline.map_or(0, deadline_ms));
        root.set_sent_us(u64::try_from(self.sent.as_micros()).unwrap_or(u64::MAX));
        root.set_graph(self.graph);
        root.set_version(self.version);
        root.set_at_least(self.floors.lowest);
        if !self.floors.above.is_empty() {
            self.floors.write_above(root.reborrow().init_floors(self.floors.n_above()));
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
            RequestBody::Commit { version, step } => {
                let mut commit = root.init_commit();
                commit.set_version(*version);
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
        message::append_frame(&message, body_bytes, out);
    }

    /// Reads a head.
    ///
    /// # Errors
    /// `Malformed` when the bytes are no request of this schema.
    pub fn decode(head: &[u8]) -> Result<Self, WireError> {
        let bad = |e: capnp::Error| WireError::malformed("request", e);
        let reader = message::open("request", head, REQUEST_TRAVERSAL_WORDS_MAX)?;
        let root = reader.get_root::<request::Reader<'_>>().map_err(bad)?;
        let body = match root.which().map_err(|e| WireError::malformed("request", e))? {
            request::Describe(()) => RequestBody::Describe,
            request::Stat(()) => RequestBody::Stat,
            request::Compact(()) => RequestBody::Compact,
            request::Share(()) => RequestBody::Share,
            request::Taken(()) => RequestBody::Taken,
            request::Lend(tensor) => RequestBody::Lend { tensor },
            request::Authenticate(token) => {
                let token = Token::new(token.map_err(bad)?);
                let token = token.map_err(|e| WireError::malformed("request", e))?;
                RequestBody::Authenticate { token }
            }
            request::Commit(commit) => {
                let commit = commit.map_err(bad)?;
                let step = commit.get_step().map_err(|e| WireError::malformed("request", e))?;
                let step = match step {
                    wire::CommitStep::Prepare => CommitStep::Prepare,
                    wire::CommitStep::Publish => CommitStep::Publish,
                };
                RequestBody::Commit { version: commit.get_version(), step }
            }
            request::Push(push) => RequestBody::Push(Push::read(push.map_err(bad)?)),
            request::Declare(declare) => {
                RequestBody::Declare(Declare::read(declare.map_err(bad)?)?)
            }
            request::Volatile(name) => RequestBody::Volatile { tensor: Name::read(name)? },
            request::Claim(name) => RequestBody::Claim { tensor: Name::read(name)? },
            request::Publish(publish) => {
                RequestBody::Publish(Publish::read(publish.map_err(bad)?)?)
            }
            request::PullVolatile(pull) => {
                RequestBody::PullVolatile(PullVolatile::read(pull.map_err(bad)?)?)
            }
            request::Follow(follow) => copy::read_follow(follow.map_err(bad)?)?,
            request::Copy(copy) => copy::read(copy.map_err(bad)?)?,
            request::Pull(pull) => {
                let pull = pull.map_err(bad)?;
                let kind = pull.get_kind().map_err(|e| WireError::malformed("request", e))?;
                let kind = match kind {
                    wire::PullKind::Sync => PullKind::Sync,
                    wire::PullKind::Vector => PullKind::Vector,
                };
                RequestBody::Pull { tensor: pull.get_tensor(), kind }
            }
        };
        let deadline = match root.get_deadline_ms() {
            0 => None,
            ms => Some(Duration::from_millis(u64::from(ms))),
        };
        Ok(Self {
            deadline,
            sent: Duration::from_micros(root.get_sent_us()),
            graph: root.get_graph(),
            version: root.get_version(),
            floors: Versions::read(root.get_at_least(), root.get_floors().map_err(bad)?),
            body,
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
            put: u128::from(from.get_put_high()) << 64 | u128::from(from.get_put_low()),
            piece: from.get_piece(),
            is_last: from.get_is_last(),
            total_rows: from.get_total_rows(),
        }
    }
}

/// Returns a deadline in milliseconds, at least 1: one below a millisecond must not read as none.
fn deadline_ms(deadline: Duration) -> u32 {
    u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::Prefix;
    use crate::limits::{
        FLOORS_MAX, NAME_BYTES_MAX, PREFIX_BYTES, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN,
    };
    use crate::versions::PartVersion;

    const PUSH: Push = Push {
        tensor: u16::MAX,
        n_rows: u32::MAX,
        put: u128::MAX - 1,
        piece: u32::MAX,
        is_last: true,
        total_rows: u32::MAX,
    };

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn round_trip(request: &Request) -> Result<Request, WireError> {
        let mut bytes = Vec::new();
        request.append_to(12, &mut bytes);
        let prefix = Prefix::of_request(bytes[..PREFIX_BYTES].try_into().unwrap()).unwrap();
        assert_eq!(prefix.body_bytes, 12);
        assert_eq!(prefix.head_bytes, bytes.len() - PREFIX_BYTES);
        Request::decode(&bytes[PREFIX_BYTES..])
    }

    #[test]
    fn requests_survive_the_trip() {
        let bodies = [
            RequestBody::Describe,
            RequestBody::Stat,
            RequestBody::Pull { tensor: 7, kind: PullKind::Sync },
            RequestBody::Pull { tensor: u16::MAX, kind: PullKind::Vector },
            RequestBody::Push(Push::default()),
            RequestBody::Push(PUSH),
            RequestBody::Commit { version: u32::MAX, step: CommitStep::Prepare },
            RequestBody::Commit { version: 1, step: CommitStep::Publish },
            RequestBody::Follow { part: u16::MAX, step: FollowStep::Manifest },
            RequestBody::Follow {
                part: 1,
                step: FollowStep::Read { file: u16::MAX, offset: u64::MAX },
            },
            RequestBody::Compact,
            RequestBody::Share,
            RequestBody::Lend { tensor: 0 },
            RequestBody::Lend { tensor: u16::MAX },
            RequestBody::Taken,
            RequestBody::Copy { part: u16::MAX, step: CopyStep::Open { id: u64::MAX } },
            RequestBody::Copy { part: 0, step: CopyStep::Seal },
            RequestBody::Copy { part: 1, step: CopyStep::Pending },
            RequestBody::Copy { part: 1, step: CopyStep::Release },
            RequestBody::Copy { part: 1, step: CopyStep::Adopt },
            RequestBody::Copy { part: 1, step: CopyStep::Expect { id: u64::MAX } },
            RequestBody::Declare(Declare {
                name: name("x"),
                dtype: name("bf16"),
                width: u32::MAX,
                range_rows: 1,
            }),
            RequestBody::Volatile { tensor: name(&"y".repeat(NAME_BYTES_MAX)) },
            RequestBody::Claim { tensor: name("h1") },
            RequestBody::Publish(Publish { name: name("h1"), n_rows: u32::MAX, stamp: 7 }),
            RequestBody::PullVolatile(PullVolatile {
                name: name(&"z".repeat(NAME_BYTES_MAX)),
                min_stamp: u32::MAX,
                wait: Duration::from_millis(u32::MAX.into()),
            }),
            RequestBody::Authenticate { token: Token::new(&[b'x'; TOKEN_BYTES_MIN]).unwrap() },
            RequestBody::Authenticate { token: Token::new(&[b'~'; TOKEN_BYTES_MAX]).unwrap() },
        ];
        for body in bodies {
            for deadline in [None, Some(Duration::from_millis(1500))] {
                let (sent, graph, version) = (Duration::from_micros(77), u64::MAX, u32::MAX);
                let above = vec![PartVersion { part: u16::MAX, version: u32::MAX }; FLOORS_MAX];
                let floors = Versions { lowest: u32::MAX - 1, above };
                let request = Request { deadline, sent, graph, version, floors, body };
                assert_eq!(round_trip(&request).as_ref(), Ok(&request));
            }
        }
    }

    #[test]
    fn a_version_without_a_request_is_named_beside_those_that_have_it() {
        let lend = RequestBody::Lend { tensor: 1 };
        (3..=WIRE_VERSION).for_each(|version| assert_eq!(lend.check_version(version), Ok(())));
        let error = lend.check_version(2).unwrap_err();
        let known = WireVersions { oldest: 3, newest: WIRE_VERSION };
        assert_eq!(error, WireError::Lacks { request: "lend", known, agreed: 2 });
        let text = error.to_string();
        assert!(text.contains("wire version 3 to 5") && text.contains("on version 2"), "{text}");
        assert!(lend.check_version(WIRE_VERSION + 1).is_err());
        let claim = RequestBody::Claim { tensor: name("h1") };
        let told = [3, 4].map(|version| claim.check_version(version).unwrap_err().to_string());
        assert!(
            told[1].contains("wire version 5, ") && told[1].contains("on version 4"),
            "{told:?}"
        );
        assert_eq!(claim.check_version(5), Ok(()));
    }

    #[test]
    fn a_tiny_deadline_is_not_none() {
        let deadline = Some(Duration::from_nanos(1));
        let request = Request { deadline, ..Request::new(RequestBody::Describe) };
        let found = round_trip(&request).unwrap();
        assert_eq!(found.deadline, Some(Duration::from_millis(1)));
    }

    #[test]
    fn a_truncated_head_is_refused() {
        let pull = RequestBody::Pull { tensor: 1, kind: PullKind::Vector };
        for body in [pull, RequestBody::Push(PUSH)] {
            let mut bytes = Vec::new();
            Request::new(body).append_to(0, &mut bytes);
            for end in PREFIX_BYTES..bytes.len() {
                assert!(Request::decode(&bytes[PREFIX_BYTES..end]).is_err(), "{body:?} {end}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_head_panics_or_allocates_what_it_claims(
            head in prop::collection::vec(any::<u8>(), 0..256)
        ) {
            let _ = Request::decode(&head);
        }

        #[test]
        fn no_flipped_bit_panics(bit in 0usize..512, is_push: bool) {
            let mut bytes = Vec::new();
            let pull = RequestBody::Pull { tensor: 1, kind: PullKind::Vector };
            let push = RequestBody::Push(PUSH);
            let body = if is_push { push } else { pull };
            Request::new(body).append_to(0, &mut bytes);
            let bit = bit % ((bytes.len() - PREFIX_BYTES) * 8);
            bytes[PREFIX_BYTES + bit / 8] ^= 1 << (bit % 8);
            let _ = Request::decode(&bytes[PREFIX_BYTES..]);
        }
    }
}
