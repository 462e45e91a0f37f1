//! Heads of requests and replies: whatever the bytes, they are refused or mean what they say when
//! they are sent again.

use std::time::Duration;

use lodestore_schema::limits::PREFIX_BYTES;
use lodestore_schema::name::ServerAddress;
use lodestore_schema::reply::{
    Copied, Description, Followed, FollowerState, MovedPart, PartState, Role, TensorDescription,
};
use lodestore_schema::request::{CommitStep, CopyStep, FollowStep, PullKind, Push};
use lodestore_schema::stats::{FollowStats, ServerStats, ShardStats, UpdateStats};
use lodestore_schema::versions::{PartVersion, VersionTag};
use lodestore_schema::{
    Failure, FailureCode, Prefix, Reply, Request, RequestBody, Token, Versions,
};

use crate::input_file::{expand, squeeze};
use crate::memory::bounded;

/// Decodes a frame without its body, as it is spelt by [`squeeze`].
pub fn run(data: &[u8]) {
    let frame = expand(data);
    let Some((prefix, head)) = frame.split_first_chunk::<PREFIX_BYTES>() else { return };
    for found in [Prefix::of_request(*prefix), Prefix::of_reply(*prefix)].into_iter().flatten() {
        assert_eq!(found.to_bytes(), *prefix);
    }
    if let Ok(request) = bounded(head.len(), || Request::decode(head)) {
        let mut again = Vec::new();
        request.append_to(0, &mut again);
        assert_eq!(Request::decode(&again[PREFIX_BYTES..]).expect("what was sent"), request);
    }
    // Those of several lists that are one are longer when they are sent again.
    let _ = bounded(head.len(), || Reply::decode(head));
}

/// Returns every kind of request and of reply.
pub fn seeds() -> Vec<Vec<u8>> {
    let frame = |append: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        append(&mut bytes);
        squeeze(&bytes)
    };
    let requests = requests();
    let replies = replies();
    let requests = requests.iter().map(|request| frame(&|out| request.append_to(64, out)));
    requests.chain(replies.iter().map(|reply| frame(&|out| reply.append_to(64, out)))).collect()
}

fn requests() -> Vec<Request> {
    let token = Token::new(b"0123456789abcdef").expect("a token");
    let copy = |step| RequestBody::Copy { part: 3, step };
    let bodies = [
        RequestBody::Describe,
        RequestBody::Stat,
        RequestBody::Compact,
        RequestBody::Share,
        RequestBody::Taken,
        RequestBody::Lend { tensor: 1 },
        RequestBody::Authenticate { token },
        RequestBody::Pull { tensor: 1, kind: PullKind::Sync },
        RequestBody::Pull { tensor: 2, kind: PullKind::Vector },
        RequestBody::Push(Push {
            tensor: 1,
            n_rows: 16,
            put: 1 << 70,
            piece: 2,
            is_last: true,
            total_rows: 48,
        }),
        RequestBody::Commit { version: 2, step: CommitStep::Prepare, label: 1 << 70 },
        RequestBody::Commit { version: 2, step: CommitStep::Publish, label: 0 },
        RequestBody::Follow { part: 3, step: FollowStep::Manifest },
        RequestBody::Follow {
            part: 3,
            step: FollowStep::Serves {
                version: VersionTag { number: 3, tag: 1 << 60 },
                instance: 4,
            },
        },
        RequestBody::Follow { part: 3, step: FollowStep::Read { file: 1, offset: 4096 } },
        copy(CopyStep::Open { id: 7 }),
        copy(CopyStep::Seal),
        copy(CopyStep::Pending),
        copy(CopyStep::Release { to: ServerAddress::new("127.0.0.1:7172").ok() }),
        copy(CopyStep::Adopt),
        copy(CopyStep::Expect { id: 7 }),
    ];
    let request = |body| Request {
        deadline: Some(Duration::from_millis(2500)),
        sent: Duration::from_micros(1_000_001),
        graph: 0x0123_4567_89ab_cdef,
        version: 5,
        floors: versions(),
        exactly: true,
        body,
    };
    bodies.into_iter().map(request).collect()
}

fn versions() -> Versions {
    let version = |number| VersionTag { number, tag: 1 << 60 };
    Versions { lowest: version(4), above: vec![PartVersion { part: 1, version: version(5) }] }
}

fn replies() -> Vec<Reply> {
    let name = |text: &str| text.to_owned();
    let tensor = TensorDescription {
        name: name("feat"),
        dtype: name("f32"),
        width: 100,
        row_bytes: 400,
        stripe_rows: 1000,
        uuid: [3; 16],
    };
    let description = Description {
        graph: [7; 16],
        n_edges: 1000,
        bounds: vec![0, 100, 200],
        parts: vec![0, 1],
        tensors: vec![tensor],
        shard_ports: vec![7172, 7173],
        n_shards: 2,
        version: 1,
        states: vec![PartState { version: 3, tag: 1 << 60, role: Role::Follower }; 2],
        arriving: vec![2],
        instance: 9,
        followers: vec![FollowerState { part: 1, instance: 4, ..FollowerState::default() }],
        moved: vec![MovedPart { part: 2, to: name("127.0.0.1:7172") }],
        ..Description::default()
    };
    let failure = |code| Failure { code, message: name("why"), retry_after: Duration::ZERO };
    let following =
        FollowStats { from: name("127.0.0.1:7171"), n_behind: 2, ..FollowStats::default() };
    let stats = ServerStats {
        shards: vec![ShardStats::default(); 2],
        updates: UpdateStats { following: Some(following), ..UpdateStats::default() },
        ..ServerStats::default()
    };
    let copied = Copied { version: 3, is_last: true, ..Copied::default() };
    let mut replies = vec![
        Reply::Rows { first_row: 5, n_rows: 6, versions: versions() },
        Reply::Description(description),
        Reply::Stats(stats),
        Reply::Pushed { version: 2 },
        Reply::Committed { version: 2, label: 1 << 70 },
        Reply::Compacting { run: 1 },
        Reply::Shared { n_bytes: 1 << 20, n_tensors: 3 },
        Reply::SharedRows {
            first_row: 5,
            n_rows: 6,
            offset: 7,
            awaited: true,
            versions: versions(),
        },
        Reply::Lent { n_bytes: 1 << 30, offset: 2 << 20 },
        Reply::LentRows { first_row: 5, n_rows: 6, versions: versions() },
        Reply::Copied(copied),
        Reply::Followed(Followed { files: vec![(name("feat.v2.seg"), 64)], ..Followed::default() }),
    ];
    replies.extend(FailureCode::ALL.map(|(code, _)| Reply::Failure(failure(code))));
    replies
}
