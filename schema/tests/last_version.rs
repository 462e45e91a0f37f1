//! Frames of wire version 3, as its peers send them, recorded from the last build of it. No change
//! of the schema can change their meaning unseen.

use std::time::Duration;

use lodestore_schema::limits::PREFIX_BYTES;
use lodestore_schema::reply::{Description, TensorDescription};
use lodestore_schema::request::PullKind;
use lodestore_schema::{Failure, FailureCode, Prefix, Reply, Request, RequestBody, Versions};

const DESCRIBE: &[u8] = b"8\0\0\0\0\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x04\0\x01\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Without the ids of its body.
const PULL: &[u8] = b"@\0\0\0\x08\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x04\0\x01\0\
    \xdc\x05\0\0\x01\0\0\0M\0\0\0\0\0\0\0\t\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\
    \x01\0\x01\0\0\0\0\0";
/// Without the rows of its body.
const ROWS: &[u8] = b"(\0\0\0\x0c\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x01\0\x01\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\x03\0\0\0";
const FAILURE: &[u8] = b"8\0\0\0\0\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x01\0\x01\0\
    \x02\0\0\0\0\0\0\0\0\0\0\0\x01\0\x01\0\x0b\0\0\0\x05\0\0\0\x01\0\0\0\x1a\0\0\0no\0\0\0\0\0\0";
const DESCRIPTION: &[u8] = b"\xe8\0\0\0\0\0\0\0\0\0\0\0\x1c\0\0\0\0\0\0\0\x01\0\x01\0\
    \x01\0\0\0\0\0\0\0\0\0\0\0\x03\0\t\0\x05\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\t\0\0\0\0\0\0\0\
    !\0\0\0\x82\0\0\0%\0\0\0\x1c\0\0\0)\0\0\0\x13\0\0\0-\0\0\0'\0\0\0%\0\0\0\x0b\0\0\0%\0\0\0\x04\
    \0\0\0!\0\0\0\x03\0\0\0\x1d\0\0\0\x03\0\0\0\x19\0\0\0\x05\0\0\0\
    \x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\
    \0\0\0\0d\0\0\0\xc8\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0Y\x1b\0\0\0\0\0\0\x04\0\0\0\x02\0\x02\0\
    \x01\0\0\0\x04\0\0\0\xe8\x03\0\0\0\0\0\0\x05\0\0\0\x12\0\0\0\x05\0\0\0\"\0\0\0\
    x\0\0\0\0\0\0\0f32\0\0\0\0\0";

fn prefix_of(frame: &[u8]) -> [u8; PREFIX_BYTES] {
    frame[..PREFIX_BYTES].try_into().expect("a frame has a prefix")
}

/// Checks that the frame is read as `request`, and that version 3 has it.
fn check_request(frame: &[u8], request: &Request, body_bytes: usize) {
    let prefix = Prefix::of_request(prefix_of(frame)).expect("a prefix");
    let head_bytes = frame.len() - PREFIX_BYTES;
    assert_eq!(prefix, Prefix { head_bytes, body_bytes });
    assert_eq!(&Request::decode(&frame[PREFIX_BYTES..]).expect("a request"), request);
    assert_eq!(request.body.check_version(3), Ok(()));
}

/// Checks that the frame is read as `reply`.
fn check_reply(frame: &[u8], reply: &Reply, body_bytes: usize) {
    let prefix = Prefix::of_reply(prefix_of(frame)).expect("a prefix");
    let head_bytes = frame.len() - PREFIX_BYTES;
    assert_eq!(prefix, Prefix { head_bytes, body_bytes });
    assert_eq!(&Reply::decode(&frame[PREFIX_BYTES..]).expect("a reply"), reply);
}

#[test]
fn requests_of_version_3_are_read() {
    check_request(DESCRIBE, &Request::new(RequestBody::Describe), 0);
    let pull = Request {
        deadline: Some(Duration::from_millis(1500)),
        sent: Duration::from_micros(77),
        graph: 9,
        version: 0,
        floors: Versions::default(),
        exactly: false,
        body: RequestBody::Pull { tensor: 1, kind: PullKind::Vector },
    };
    check_request(PULL, &pull, 8);
}

#[test]
fn replies_of_version_3_are_read() {
    check_reply(ROWS, &Reply::Rows { first_row: 2, n_rows: 3, versions: Versions::default() }, 12);
    let (code, message) = (FailureCode::OtherVersion, "no".to_owned());
    let failure = Failure { code, message, retry_after: Duration::from_millis(5) };
    check_reply(FAILURE, &Reply::Failure(failure), 0);
    let tensor = TensorDescription {
        name: "x".into(),
        dtype: "f32".into(),
        width: 1,
        row_bytes: 4,
        stripe_rows: 1000,
        uuid: [0; 16],
    };
    let description = Description {
        graph: [7; 16],
        n_edges: 5,
        bounds: vec![0, 100, 200],
        parts: vec![0, 1],
        tensors: vec![tensor],
        shard_ports: vec![7001],
        n_shards: 1,
        version: 1,
        instance: 9,
        ..Description::default()
    };
    check_reply(DESCRIPTION, &Reply::Description(description), 0);
}
