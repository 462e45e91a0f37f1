//! Frames of wire version 5, as its peers send them, recorded from the last build of it. They have
//! no commits of versions, and no uuids of tensors.

use std::time::Duration;

use lodestore_schema::limits::PREFIX_BYTES;
use lodestore_schema::reply::{Description, PartState, Role, TensorDescription};
use lodestore_schema::request::{CommitStep, PullKind};
use lodestore_schema::versions::{PartVersion, VersionTag};
use lodestore_schema::{Reply, Request, RequestBody, Versions};

/// Without the ids of its body.
const PULL: &[u8] =
    b"X\0\0\0\x08\0\0\0\0\0\0\0\n\0\0\0\0\0\0\0\x04\0\x02\0\xdc\x05\0\0\x01\0\0\0M\0\0\0\0\0\0\
    \0\t\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\x0c\0\0\0\x01\0\0\0\x01\0\0\0\x0f\0\0\0\x04\0\0\0\
    \x01\0\0\0\x01\0\0\0\x06\0\0\0\x01\0\x01\0\0\0\0\0";
const COMMIT: &[u8] =
    b"H\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x04\0\x02\0\0\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\x01\0\0\0";
/// Without the rows of its body.
const ROWS: &[u8] =
    b"H\0\0\0\x0c\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x01\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\0\
    \x01\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0\x01\0\0\0\x0f\0\0\0\x04\0\0\0\x01\0\0\0\x01\
    \0\0\0\x06\0\0\0";
const COMMITTED: &[u8] =
    b"(\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x01\0\x01\0\x05\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\
    \0\x07\0\0\0\0\0\0\0";
const DESCRIPTION: &[u8] =
    b"\x08\x01\0\0\0\0\0\0\0\0\0\0 \0\0\0\0\0\0\0\x01\0\x01\0\x01\0\0\0\0\0\0\0\0\0\0\0\x03\0\
    \x0b\0\x05\0\0\0\0\0\0\0\x01\0\x01\0\x04\0\0\0\t\0\0\0\0\0\0\0)\0\0\0\x82\0\0\0-\0\0\0\
    \x1c\0\0\x001\0\0\0\x13\0\0\0=\0\0\0'\0\0\0-\0\0\0\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0%\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\x1d\0\0\0\x14\0\0\0\x1d\0\0\0\x13\0\0\0\x07\x07\x07\
    \x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\0\0\0\0d\0\0\0\xc8\0\0\0\0\0\0\0\0\
    \0\x01\0\0\0\0\0Y\x1b\0\0\0\0\0\0\x04\0\0\0\x06\0\0\0\x01\0\x02\0\0\0\0\0\x04\0\0\0\x02\
    \0\x02\0\x01\0\0\0\x04\0\0\0\xe8\x03\0\0\0\0\0\0\x05\0\0\0\x12\0\0\0\x05\0\0\0\"\0\0\0x\
    \0\0\0\0\0\0\0f32\0\0\0\0\0";

fn versions() -> Versions {
    let above = vec![PartVersion { part: 1, version: VersionTag::any(6) }];
    Versions { lowest: VersionTag::any(4), above }
}

#[test]
fn requests_of_version_5_are_read() {
    let read = |frame: &[u8]| Request::decode(&frame[PREFIX_BYTES..]).expect("a request");
    let pull = Request {
        deadline: Some(Duration::from_millis(1500)),
        sent: Duration::from_micros(77),
        graph: 9,
        floors: versions(),
        ..Request::new(RequestBody::Pull { tensor: 1, kind: PullKind::Vector })
    };
    assert_eq!(read(PULL), pull);
    let commit = RequestBody::Commit { version: 7, step: CommitStep::Publish, label: 0 };
    assert_eq!(read(COMMIT), Request::new(commit));
    for request in [PULL, COMMIT].map(read) {
        assert_eq!(request.body.check_version(5), Ok(()));
        assert_eq!(request.clone().for_version(5), request);
    }
}

#[test]
fn replies_of_version_5_are_read() {
    let read = |frame: &[u8]| Reply::decode(&frame[PREFIX_BYTES..]).expect("a reply");
    assert_eq!(read(ROWS), Reply::Rows { first_row: 2, n_rows: 3, versions: versions() });
    assert_eq!(read(COMMITTED), Reply::Committed { version: 7, label: 0 });
    let tensor = TensorDescription {
        name: "x".into(),
        dtype: "f32".into(),
        width: 1,
        row_bytes: 4,
        stripe_rows: 1000,
        uuid: [0; 16],
    };
    let state = |version, role| PartState { version, tag: 0, role };
    let description = Description {
        graph: [7; 16],
        n_edges: 5,
        bounds: vec![0, 100, 200],
        parts: vec![0, 1],
        tensors: vec![tensor],
        shard_ports: vec![7001],
        n_shards: 1,
        version: 4,
        writable: true,
        states: vec![state(4, Role::Writer), state(6, Role::Follower)],
        instance: 9,
        ..Description::default()
    };
    let tag = description.tensor_tag(&description.tensors[0], 6);
    assert_eq!(tag, description.graph_tag(), "its tensors are known by their graph");
    assert_eq!(read(DESCRIPTION), Reply::Description(description));
}
