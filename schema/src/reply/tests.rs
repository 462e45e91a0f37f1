use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::frame::Prefix;
use crate::limits::{
    ADDRESS_BYTES_MAX, FLOORS_MAX, FOLLOWERS_MAX, MOVED_MAX, PREFIX_BYTES, REPLY_HEAD_BYTES_MAX,
    ROW_BYTES_MAX,
};
use crate::lodestore_capnp as wire;
use crate::stats::{FollowStats, ShardStats, UpdateStats, VolatileStats};
use crate::versions::PartVersion;

fn head_of(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.append_to(0, &mut bytes);
    let prefix = Prefix::of_reply(bytes[..PREFIX_BYTES].try_into().unwrap()).unwrap();
    assert_eq!(prefix, Prefix { head_bytes: bytes.len() - PREFIX_BYTES, body_bytes: 0 });
    bytes.split_off(PREFIX_BYTES)
}

fn versions() -> Versions {
    let version = |number| VersionTag { number, tag: u64::MAX };
    let one = |part| PartVersion { part, version: version(u32::MAX) };
    Versions { lowest: version(3), above: (0..FLOORS_MAX as u16).map(one).collect() }
}

fn description() -> Description {
    let tensor = TensorDescription {
        name: "feat".into(),
        dtype: "f32".into(),
        width: 128,
        row_bytes: 512,
        stripe_rows: 512,
        uuid: *b"fedcba9876543210",
    };
    Description {
        graph: *b"0123456789abcdef",
        n_edges: 1 << 40,
        bounds: vec![0, 10, 10, 25],
        parts: vec![0, 2],
        tensors: vec![tensor],
        shard_ports: vec![7001, 7002],
        n_shards: 2,
        version: 9,
        writable: true,
        shares: true,
        roams: true,
        states: vec![
            PartState { version: 9, tag: u64::MAX, role: Role::Writer },
            PartState { version: u32::MAX, tag: 0, role: Role::Follower },
        ],
        arriving: vec![1],
        instance: u64::MAX,
        followers: vec![FollowerState {
            part: 2,
            version: VersionTag { number: 8, tag: u64::MAX },
            instance: 7,
        }],
        moved: vec![MovedPart { part: 1, to: "store-2.lan:7171".into() }],
    }
}

#[test]
fn replies_survive_the_trip() {
    let failure = Failure {
        code: FailureCode::Overloaded,
        message: "no room; retry".into(),
        retry_after: Duration::from_millis(20),
    };
    let other = Failure { code: FailureCode::OtherHistory, ..failure.clone() };
    let older = Failure { code: FailureCode::Older, ..failure.clone() };
    let read_only = Failure { code: FailureCode::ReadOnly, ..failure.clone() };
    let shard =
        ShardStats { requests: 1, rows: 2, connections: 3, pushes: 4, ..ShardStats::default() };
    let updates = UpdateStats {
        version: 3,
        writable: true,
        committed_rows: 1 << 40,
        pending_rows: 5,
        runs_asked: 2,
        runs_ended: 1,
        run_bytes: 6,
        run_bytes_total: 7,
        run_failure: "no room on the disk".into(),
        published: Some(8),
        following: Some(FollowStats {
            from: "127.0.0.1:7171".into(),
            n_behind: 2,
            look_age: Duration::from_millis(12),
            fault: "it does not answer".into(),
        }),
    };
    for reply in [
        Reply::Rows { first_row: 5, n_rows: 600, versions: Versions::default() },
        Reply::Rows { first_row: u32::MAX, n_rows: 0, versions: versions() },
        Reply::Description(description()),
        Reply::Failure(failure),
        Reply::Failure(read_only),
        Reply::Failure(older),
        Reply::Failure(other),
        Reply::Stats(ServerStats {
            shards: vec![shard, ShardStats::default()],
            updates,
            volatile: VolatileStats { n_tensors: 3, n_bytes: 1 << 40 },
        }),
        Reply::Declared(Declared {
            dtype: "f16".into(),
            width: u32::MAX,
            row_bytes: ROW_BYTES_MAX as u32,
            range_rows: 9,
        }),
        Reply::Claimed { n_rows: u64::MAX },
        Reply::Published { n_rows: u32::MAX },
        Reply::Stamps { n_rows: 5 },
        Reply::Stats(ServerStats::default()),
        Reply::Pushed { version: 7 },
        Reply::Committed { version: u32::MAX, label: u128::MAX - 1 },
        Reply::Compacting { run: u64::MAX },
        Reply::Shared { n_bytes: u32::MAX, n_tensors: 0 },
        Reply::Shared { n_bytes: 0, n_tensors: u16::MAX },
        Reply::Lent { n_bytes: u64::MAX, offset: 1 << 40 },
        Reply::LentRows { first_row: u32::MAX, n_rows: 7, versions: versions() },
        Reply::SharedRows {
            first_row: 5,
            n_rows: 600,
            offset: u32::MAX,
            awaited: false,
            versions: versions(),
        },
        Reply::SharedRows {
            first_row: u32::MAX,
            n_rows: 0,
            offset: 0,
            awaited: true,
            versions: Versions::default(),
        },
        Reply::Copied(Copied::default()),
        Reply::Copied(Copied {
            version: u32::MAX,
            is_given_up: true,
            is_last: true,
            crc32: u32::MAX,
        }),
        Reply::Followed(Followed::default()),
        Reply::Followed(Followed {
            version: u32::MAX,
            files: vec![("feat.v2.seg".into(), u64::MAX), (String::new(), 0)],
            is_last: true,
            crc32: u32::MAX,
        }),
    ] {
        assert_eq!(Reply::decode(&head_of(&reply)), Ok(reply));
    }
}

#[test]
fn the_largest_book_fits_a_head() {
    let parts = u16::MAX;
    let bounds = (0..=u32::from(parts)).collect();
    let reply = Reply::Description(Description {
        bounds,
        parts: (0..parts).collect(),
        states: vec![PartState { version: 1, tag: 1, role: Role::Writer }; parts.into()],
        arriving: (0..parts).collect(),
        followers: vec![FollowerState::default(); FOLLOWERS_MAX],
        moved: vec![MovedPart { part: 1, to: "a".repeat(ADDRESS_BYTES_MAX) }; MOVED_MAX],
        ..description()
    });
    let head = head_of(&reply);
    assert!(head.len() <= REPLY_HEAD_BYTES_MAX);
    assert_eq!(Reply::decode(&head), Ok(reply));
}

#[test]
fn what_cannot_be_is_refused() {
    let zero_rows = |change: fn(&mut Description)| {
        let mut description = description();
        change(&mut description);
        Reply::decode(&head_of(&Reply::Description(description)))
    };
    assert!(zero_rows(|d| d.n_shards = 0).is_err());
    assert!(zero_rows(|d| d.shard_ports.truncate(1)).is_err());
    assert!(zero_rows(|d| d.tensors[0].row_bytes = 0).is_err());
    assert!(zero_rows(|d| d.tensors[0].row_bytes = u32::MAX).is_err());
    assert!(zero_rows(|d| d.tensors[0].stripe_rows = 0).is_err());
    assert!(zero_rows(|d| d.states.truncate(1)).is_err());
    assert!(zero_rows(|d| d.states.clear()).is_ok());
    assert!(zero_rows(|d| (d.states, d.parts) = (Vec::new(), vec![1, 2])).is_ok());
    assert!(zero_rows(|d| (d.states, d.parts) = (Vec::new(), vec![2, 1])).is_err());
    assert!(zero_rows(|d| (d.states, d.parts) = (Vec::new(), vec![1, 1])).is_err());
    assert!(zero_rows(|d| d.arriving = vec![3, 3]).is_err());
}

#[test]
fn failure_codes_and_roles_have_the_numbers_of_the_schema() {
    for (code, _) in FailureCode::ALL {
        let wire = wire::FailureCode::try_from(code as u16).unwrap();
        assert_eq!(format!("{wire:?}"), format!("{code:?}"));
    }
    assert!(wire::FailureCode::try_from(FailureCode::ALL.len() as u16).is_err(), "one is missing");
    for (role, _) in Role::ALL {
        let wire = wire::Role::try_from(role as u16).unwrap();
        assert_eq!(format!("{wire:?}"), format!("{role:?}"));
    }
    assert!(wire::Role::try_from(Role::ALL.len() as u16).is_err(), "one is missing");
}

proptest! {
    #[test]
    fn no_head_panics(head in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = Reply::decode(&head);
    }

    #[test]
    fn no_flipped_bit_panics(bit in any::<prop::sample::Index>()) {
        let mut head = head_of(&Reply::Description(description()));
        let bit = bit.index(head.len() * 8);
        head[bit / 8] ^= 1 << (bit % 8);
        let _ = Reply::decode(&head);
    }
}

/// Makes the first list of structs in a head one of `n` elements that take no bytes.
fn with_empty_elements(head: &[u8], n: u64) -> Vec<u8> {
    let mut words: Vec<u64> =
        head.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let is_struct_list = |&word: &u64| word & 3 == 1 && (word >> 32) & 7 == 7;
    // After the table of segments and the root.
    let at = 2 + words[2..].iter().position(is_struct_list).unwrap();
    let tag = (at as i64 + 1 + i64::from(words[at] as u32 as i32 >> 2)) as usize;
    words[at] = (words[at] & 0xffff_ffff) | (7 << 32);
    words[tag] = n << 2;
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn lists_of_nothing_take_no_memory_however_long_they_claim_to_be() {
    let stats = ServerStats { shards: vec![ShardStats::default(); 2], ..ServerStats::default() };
    // All of it is in one segment.
    let description = Description { followers: Vec::new(), moved: Vec::new(), ..description() };
    for reply in [Reply::Stats(stats), Reply::Description(description)] {
        let head = head_of(&reply);
        for n in [1 << 16, 1 << 19, (1 << 29) - 1] {
            let found = Reply::decode(&with_empty_elements(&head, n));
            assert!(matches!(found, Err(WireError::Malformed { .. })), "{n}: {found:?}");
        }
    }
}

#[test]
fn pointers_that_lead_back_and_chains_of_them_come_to_an_end() {
    let head = head_of(&Reply::Description(description()));
    let n_words = head.len() / 8;
    for at in 1..n_words {
        for offset in -(n_words as i64)..n_words as i64 {
            // A struct of one pointer, or a list of pointers, at any offset.
            for word in [(1 << 48) | u64::from((offset << 2) as u32), (0x7fe << 32) | 1] {
                let mut head = head.clone();
                head[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
                let _ = Reply::decode(&head);
            }
        }
    }
}
