//! Rows that a client copies from the tier of the server.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lodestore_schema::limits::{LENT_CHUNK_ROWS, LENT_PULL_BYTES_MIN};
use lodestore_store::update::KeepRule;

use super::*;

/// Rows of a reply that is worth lending, in several chunks.
const LENT: usize = 4 * LENT_CHUNK_ROWS;
const _: () = assert!(LENT * ROW_BYTES > LENT_PULL_BYTES_MIN);

/// Returns the number of rows that the server lends, shares, and sends over the socket.
fn pull_by_hand(client: &mut Plain, ids: &[NodeId]) -> [usize; 3] {
    pull_version(client, 0, ids)
}

fn pull_version(client: &mut Plain, version: u32, ids: &[NodeId]) -> [usize; 3] {
    client.ask_at(version, RequestBody::Pull { tensor: 0, kind: PullKind::Sync }, ids);
    let mut came = [0; 3];
    while came.iter().sum::<usize>() < ids.len() {
        let reply = client.answer().expect("the server replies");
        let (way, n_rows, is_awaited) = match reply {
            Reply::LentRows { n_rows, .. } => (0, n_rows, false),
            Reply::SharedRows { n_rows, awaited, .. } => (1, n_rows, awaited),
            Reply::Rows { n_rows, .. } => (2, n_rows, false),
            other => panic!("{other:?}"),
        };
        came[way] += n_rows as usize;
        if is_awaited {
            client.ask(RequestBody::Taken, &[]);
        }
    }
    came
}

fn lends(client: &mut Plain, tensor: u16) -> bool {
    client.ask(RequestBody::Lend { tensor }, &[]);
    matches!(client.answer(), Some(Reply::Lent { n_bytes: 1.., .. }))
}

fn refuses(client: &mut Plain, body: RequestBody) -> bool {
    client.ask(body, &[]);
    matches!(client.answer(), Some(Reply::Failure(_)))
}

#[test]
fn resident_rows_are_lent_and_any_next_request_ends_the_loan() {
    let Served { server, socket, _dir } = serve(1, 256 << 20);
    warm_up(&socket, ROW_BYTES, &ids(N_NODES as usize));

    let mut client = Plain::open(&socket);
    assert!(
        refuses(&mut client, RequestBody::Lend { tensor: 0 }),
        "the client has not requested shared memory"
    );
    client.ask(RequestBody::Share, &[]);
    let shared = client.answer().unwrap();
    let Reply::Shared { n_tensors, .. } = shared else { panic!("{shared:?}") };
    assert!(
        refuses(&mut client, RequestBody::Lend { tensor: n_tensors }),
        "no tensor has this number"
    );
    assert_eq!(pull_by_hand(&mut client, &ids(LENT))[0], 0, "the client has not asked for loans");
    assert!(lends(&mut client, 0));
    assert!(refuses(&mut client, RequestBody::Lend { tensor: 0 }), "the tensor is lent already");

    let few = LENT_PULL_BYTES_MIN / ROW_BYTES - 1;
    assert_eq!(pull_by_hand(&mut client, &ids(few))[0], 0, "few rows are not lent");
    assert_eq!(pull_by_hand(&mut client, &ids(LENT)), [LENT, 0, 0]);
    client.ask(RequestBody::Taken, &[]);
    assert_eq!(pull_by_hand(&mut client, &ids(LENT)), [LENT, 0, 0]);
    // Another request ends the loan too, and the server still accepts the acknowledgement.
    client.ask(RequestBody::Stat, &[]);
    assert!(matches!(client.answer(), Some(Reply::Stats(_))));
    client.ask(RequestBody::Taken, &[]);
    assert_eq!(pull_by_hand(&mut client, &ids(LENT)), [LENT, 0, 0]);
    client.ask(RequestBody::Taken, &[]);
    client.ask(RequestBody::Taken, &[]);
    assert_eq!(client.answer(), None, "the second acknowledgement has no loan");

    // The server disconnects a client that never ends its loan, and stops without waiting for it.
    let mut silent = borrower(&socket);
    assert_eq!(pull_by_hand(&mut silent, &ids(LENT)), [LENT, 0, 0]);
    let start = Instant::now();
    assert_eq!(silent.answer(), None);
    assert!(start.elapsed() > 2 * lodestore_schema::limits::LENT_FOR - Duration::from_secs(1));
    server.stop().unwrap();
}

/// Makes the server read all rows and keep those that fit into its tier.
fn warm_up(socket: &Path, row_bytes: usize, ids: &[NodeId]) {
    let client = connect(socket, false);
    let mut out = vec![0; ids.len() * row_bytes];
    for _ in 0..2 {
        client.vector_pull("feat", ids, &mut out).unwrap();
    }
}

fn borrower(socket: &Path) -> Plain {
    let mut client = Plain::open(socket);
    client.ask(RequestBody::Share, &[]);
    assert!(matches!(client.answer(), Some(Reply::Shared { .. })));
    assert!(lends(&mut client, 0));
    client
}

#[test]
fn a_full_tier_without_room_for_all_rows_lends_none() {
    const WIDE: u32 = 384;
    // Memory for half of the rows and a ring.
    let config = |config| ServerConfig {
        n_shards: 1,
        tier_bytes: 16 << 20,
        policy: PolicyKind::Fifo,
        ..config
    };
    let Served { server, socket, _dir } = serve_rows(WIDE, config);
    let (some, all) = (&ids(LENT), ids(N_NODES as usize));
    warm_up(&socket, WIDE as usize * 4, some);
    let mut client = borrower(&socket);
    assert_eq!(pull_by_hand(&mut client, some), [LENT, 0, 0], "the tier is not full");
    client.ask(RequestBody::Taken, &[]);
    warm_up(&socket, WIDE as usize * 4, &all);
    warm_up(&socket, WIDE as usize * 4, some);
    assert_eq!(pull_by_hand(&mut client, some)[0], 0, "the tier may evict any of them");
    server.stop().unwrap();
}

#[test]
fn resident_rows_of_a_reply_are_lent_and_others_are_sent_through_the_ring() {
    let Served { server, socket, _dir } = serve(1, 256 << 20);
    let ids = ids(MANY / 2 + LENT);
    warm_up(&socket, ROW_BYTES, &ids[..LENT]);
    let mut client = borrower(&socket);
    let [lent, ring, rest] = pull_by_hand(&mut client, &ids);
    assert_eq!((lent, lent + ring + rest), (LENT, ids.len()));
    assert!(ring > SHARED_SLOTS * CHUNK_BYTES / ROW_BYTES, "slots of the ring were reused");
    client.ask(RequestBody::Taken, &[]);
    client.ask(RequestBody::Stat, &[]);
    assert!(matches!(client.answer(), Some(Reply::Stats(_))), "only the loan was not acknowledged");
    client.ask(RequestBody::Taken, &[]);
    assert_eq!(client.answer(), None);
    server.stop().unwrap();
}

#[test]
fn slots_are_reused_after_their_borrower_has_disconnected() {
    let tier_bytes = 256 << 20;
    let Served { server, socket, _dir } =
        serve_as(|config| ServerConfig { n_shards: 1, tier_bytes, writable: true, ..config });
    let all = ids(N_NODES as usize);
    warm_up(&socket, ROW_BYTES, &all);
    let client = connect(&socket, false);
    let changed = &all[..100];
    client.put_rows("feat", changed, &vec![0; 100 * ROW_BYTES]).unwrap();
    client.commit().unwrap();
    let mut out = vec![0; 100 * ROW_BYTES];
    let mut misses = || {
        let before = server.stats()[0].tier_misses;
        client.sync_pull("feat", changed, &mut out).unwrap();
        server.stats()[0].tier_misses - before
    };
    let mut borrower = borrower(&socket);
    assert_eq!(pull_by_hand(&mut borrower, &all[100..][..LENT]), [LENT, 0, 0]);
    assert_eq!([misses(), misses()], [100, 100], "the borrower may still read free slots");
    drop(borrower);
    let end = Instant::now() + Duration::from_secs(20);
    while misses() > 0 {
        assert!(
            Instant::now() < end,
            "the server did not reclaim the slots of the disconnected borrower"
        );
    }
    server.stop().unwrap();
}

#[test]
fn a_version_whose_rows_were_all_lent_is_kept_for_later_pulls() {
    let tier_bytes = 256 << 20;
    let config = |config| ServerConfig {
        n_shards: 1,
        tier_bytes,
        writable: true,
        keep: KeepRule::NEWEST,
        ..config
    };
    let Served { server, socket, _dir } = serve_as(config);
    warm_up(&socket, ROW_BYTES, &ids(N_NODES as usize));
    let mut borrower = borrower(&socket);
    assert_eq!(pull_version(&mut borrower, 1, &ids(LENT)), [LENT, 0, 0]);
    borrower.ask(RequestBody::Taken, &[]);
    let writer = connect(&socket, false);
    for _ in 0..12 {
        writer.put_rows("feat", &ids(1), &[0; ROW_BYTES]).unwrap();
        writer.commit().unwrap();
        let runs = writer.compact().unwrap();
        writer.wait_for_compactions(&runs, &mut |_, _| {}).unwrap();
    }
    // All rows are resident again; one of them has a later version.
    warm_up(&socket, ROW_BYTES, &ids(LENT));
    assert_eq!(pull_by_hand(&mut borrower, &ids(LENT)), [LENT, 0, 0]);
    borrower.ask(RequestBody::Taken, &[]);
    let [lent, ring, socket] = pull_version(&mut borrower, 1, &ids(LENT));
    assert_eq!((lent, ring + socket), (0, LENT), "resident rows have a later version");
    server.stop().unwrap();
}

/// Every column of a row holds the turn of its put.
#[test]
fn rows_lent_during_commits_are_never_torn_or_older_than_acknowledged_commits() {
    const TURNS: u32 = 150;
    let tier_bytes = 256 << 20;
    let Served { server, socket, _dir } =
        serve_as(|config| ServerConfig { n_shards: 2, tier_bytes, writable: true, ..config });
    let (acknowledged, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let ids = &ids(2 * LENT);
    let row_at = |turn: u32| (turn as f32).to_le_bytes().repeat(WIDTH as usize);
    let put = |client: &Client, turn: u32, ids: &[NodeId]| {
        client.put_rows("feat", ids, &row_at(turn).repeat(ids.len())).unwrap();
        client.commit().unwrap();
    };
    put(&connect(&socket, false), 0, ids);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let client = connect(&socket, true);
                    let mut out = vec![0; ids.len() * ROW_BYTES];
                    let mut n_pulls = 0;
                    while !is_over.load(Ordering::Acquire) || n_pulls == 0 {
                        let least = acknowledged.load(Ordering::Acquire);
                        client.vector_pull("feat", ids, &mut out).unwrap();
                        for row in out.chunks_exact(ROW_BYTES) {
                            let values: &[[u8; 4]] = row.as_chunks().0;
                            assert!(
                                values.iter().all(|value| value == &values[0]),
                                "torn: {values:?}"
                            );
                            assert!(
                                f32::from_le_bytes(values[0]) >= least as f32,
                                "older than an acknowledged commit"
                            );
                        }
                        n_pulls += 1;
                    }
                })
            })
            .collect();
        let client = connect(&socket, false);
        for turn in 1..=TURNS {
            put(&client, turn, ids);
            acknowledged.store(turn, Ordering::Release);
            if turn % 10 == 0 {
                client.compact().unwrap();
            }
        }
        is_over.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(shared_bytes(&server) > 0);
    server.stop().unwrap();
}
