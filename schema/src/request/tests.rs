use proptest::prelude::*;

use super::*;
use crate::frame::Prefix;
use crate::limits::{
    ADDRESS_BYTES_MAX, FLOORS_MAX, NAME_BYTES_MAX, PREFIX_BYTES, REQUEST_HEAD_BYTES_MAX_BEFORE,
    TOKEN_BYTES_MAX, TOKEN_BYTES_MIN,
};
use crate::name::ServerAddress;
use crate::versions::{PartVersion, VersionTag};

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
    let longest_address = ServerAddress::new(&"a".repeat(ADDRESS_BYTES_MAX)).unwrap();
    let bodies = [
        RequestBody::Describe,
        RequestBody::Stat,
        RequestBody::Pull { tensor: 7, kind: PullKind::Sync },
        RequestBody::Pull { tensor: u16::MAX, kind: PullKind::Vector },
        RequestBody::Push(Push::default()),
        RequestBody::Push(PUSH),
        RequestBody::Commit { version: u32::MAX, step: CommitStep::Prepare, label: u128::MAX - 1 },
        RequestBody::Commit { version: 1, step: CommitStep::Publish, label: 0 },
        RequestBody::Follow { part: u16::MAX, step: FollowStep::Manifest },
        RequestBody::Follow {
            part: 1,
            step: FollowStep::Read { file: u16::MAX, offset: u64::MAX },
        },
        RequestBody::Follow {
            part: 1,
            step: FollowStep::Serves {
                version: VersionTag { number: u32::MAX, tag: u64::MAX },
                instance: u64::MAX - 1,
            },
        },
        RequestBody::Compact,
        RequestBody::Share,
        RequestBody::Lend { tensor: 0 },
        RequestBody::Lend { tensor: u16::MAX },
        RequestBody::Taken,
        RequestBody::Copy { part: u16::MAX, step: CopyStep::Open { id: u64::MAX } },
        RequestBody::Copy { part: 0, step: CopyStep::Seal },
        RequestBody::Copy { part: 1, step: CopyStep::Pending },
        RequestBody::Copy { part: 1, step: CopyStep::Release { to: None } },
        RequestBody::Copy { part: 1, step: CopyStep::Release { to: Some(longest_address) } },
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
    let version = |number| VersionTag { number, tag: u64::MAX };
    for body in bodies {
        for deadline in [None, Some(Duration::from_millis(1500))] {
            let above = PartVersion { part: u16::MAX, version: version(u32::MAX) };
            let request = Request {
                deadline,
                sent: Duration::from_micros(77),
                graph: u64::MAX,
                version: u32::MAX,
                floors: Versions { lowest: version(u32::MAX - 1), above: vec![above; FLOORS_MAX] },
                exactly: true,
                body,
            };
            assert_eq!(round_trip(&request).as_ref(), Ok(&request));
        }
    }
}

#[test]
fn a_peer_before_version_6_gets_what_it_has_room_for() {
    let above = (1..).take(FLOORS_MAX);
    let tagged = |part| PartVersion { part, version: VersionTag { number: 9, tag: part.into() } };
    let floors =
        Versions { lowest: VersionTag { number: 8, tag: 5 }, above: above.map(tagged).collect() };
    let body = RequestBody::Pull { tensor: 7, kind: PullKind::Sync };
    let request = Request { floors, exactly: true, ..Request::new(body) };
    assert_eq!(request.clone().for_version(6), request);
    let before = request.clone().for_version(5);
    assert_eq!((before.floors.of(0), before.exactly), (VersionTag::any(8), false));
    assert_eq!(before.floors.of(64), VersionTag::any(9));
    let mut bytes = Vec::new();
    before.append_to(0, &mut bytes);
    assert!(bytes.len() - PREFIX_BYTES <= REQUEST_HEAD_BYTES_MAX_BEFORE, "{}", bytes.len());
    // It has no commits to compare: the number says which version.
    let pinned = Request { version: 8, ..request }.for_version(5);
    assert_eq!((pinned.version, pinned.floors), (8, Versions::default()));
}

#[test]
fn a_version_without_a_request_is_named_beside_those_that_have_it() {
    let lend = RequestBody::Lend { tensor: 1 };
    (3..=WIRE_VERSION).for_each(|version| assert_eq!(lend.check_version(version), Ok(())));
    let error = lend.check_version(2).unwrap_err();
    let known = WireVersions { oldest: 3, newest: WIRE_VERSION };
    assert_eq!(error, WireError::Lacks { request: "lend", known, agreed: 2 });
    let text = error.to_string();
    assert!(text.contains("wire version 3 to 6") && text.contains("on version 2"), "{text}");
    assert!(lend.check_version(WIRE_VERSION + 1).is_err());
    let claim = RequestBody::Claim { tensor: name("h1") };
    let told = [3, 4].map(|version| claim.check_version(version).unwrap_err().to_string());
    assert!(
        told[1].contains("wire version 5 to 6, ") && told[1].contains("on version 4"),
        "{told:?}"
    );
    assert_eq!(claim.check_version(5), Ok(()));
    let step = FollowStep::Serves { version: VersionTag::default(), instance: 0 };
    let serves = RequestBody::Follow { part: 0, step };
    assert!(serves.check_version(5).is_err() && serves.check_version(6).is_ok());
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
