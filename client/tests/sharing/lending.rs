//! Rows that a client copies from where the server keeps them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lodestore_schema::limits::{LENT_CHUNK_ROWS, LENT_PULL_BYTES_MIN};

use super::*;

/// Rows of an answer that is worth lending, in some chunks.
const LENT: usize = 4 * LENT_CHUNK_ROWS;
const _: () = assert!(LENT * ROW_BYTES > LENT_PULL_BYTES_MIN);

/// How a server answers a pull: rows lent, rows in shared memory, rows in the socket.
fn pull_by_hand(client: &mut Plain, ids: &[NodeId]) -> [usize; 3] {
    client.ask(RequestBody::Pull { tensor: 0, kind: PullKind::Sync }, ids);
    let mut came = [0; 3];
    while came.iter().sum::<usize>() < ids.len() {
        let reply = client.answer().expect("an answer");
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
fn resident_rows_are_lent_and_a_loan_ends_however_the_client_goes_on() {
    let Served { server, socket, _dir } = serve(1, 256 << 20);
    let warm = connect(&socket, false);
    let everything = ids(N_NODES as usize);
    let mut out = vec![0; everything.len() * ROW_BYTES];
    for _ in 0..2 {
        warm.vector_pull("feat", &everything, &mut out).unwrap();
    }

    let mut client = Plain::open(&socket);
    assert!(refuses(&mut client, RequestBody::Lend { tensor: 0 }), "memory is shared first");
    client.ask(RequestBody::Share, &[]);
    let shared = client.answer().unwrap();
    let Reply::Shared { n_tensors, .. } = shared else { panic!("{shared:?}") };
    assert!(
        refuses(&mut client, RequestBody::Lend { tensor: n_tensors }),
        "there is no such tensor"
    );
    assert_eq!(pull_by_hand(&mut client, &ids(LENT))[0], 0, "who has not asked is lent nothing");
    assert!(lends(&mut client, 0));
    assert!(refuses(&mut client, RequestBody::Lend { tensor: 0 }), "it has that already");

    let few = LENT_PULL_BYTES_MIN / ROW_BYTES - 1;
    assert_eq!(pull_by_hand(&mut client, &ids(few))[0], 0, "a few rows are not worth it");
    assert_eq!(pull_by_hand(&mut client, &ids(LENT)), [LENT, 0, 0]);
    client.ask(RequestBody::Taken, &[]);
    assert_eq!(pull_by_hand(&mut client, &ids(LENT)), [LENT, 0, 0]);
    // Something else ends the loan as well; only what was lent is awaited for rows in the ring.
    client.ask(RequestBody::Stat, &[]);
    assert!(matches!(client.answer(), Some(Reply::Stats(_))));
    client.ask(RequestBody::Taken, &[]);
    assert_eq!(pull_by_hand(&mut client, &ids(LENT)), [LENT, 0, 0]);
    client.ask(RequestBody::Taken, &[]);
    client.ask(RequestBody::Taken, &[]);
    assert_eq!(client.answer(), None, "nothing is awaited");

    // Who does nothing is cut off, and what was lent to the dead is back: a stop does not wait.
    let mut silent = Plain::open(&socket);
    silent.ask(RequestBody::Share, &[]);
    assert!(matches!(silent.answer(), Some(Reply::Shared { .. })));
    assert!(lends(&mut silent, 0));
    assert_eq!(pull_by_hand(&mut silent, &ids(LENT)), [LENT, 0, 0]);
    let start = Instant::now();
    assert_eq!(silent.answer(), None);
    assert!(start.elapsed() > 2 * lodestore_schema::limits::LENT_FOR - Duration::from_secs(1));
    server.stop().unwrap();
}

#[test]
fn a_tier_that_has_no_room_for_all_rows_lends_none_once_it_is_full() {
    // Two thirds of the rows, beside the part that is shared.
    let tier_bytes = u64::from(N_NODES) * ROW_BYTES as u64 * 2 / 3 + (64 << 20);
    let Served { server, socket, _dir } = serve_as(|config| ServerConfig {
        n_shards: 1,
        tier_bytes,
        policy: PolicyKind::Fifo,
        ..config
    });
    let (client, everything) = (connect(&socket, true), ids(N_NODES as usize));
    let mut out = vec![0; everything.len() * ROW_BYTES];
    for _ in 0..3 {
        out.fill(0xEE);
        client.vector_pull("feat", &everything, &mut out).unwrap();
        assert_rows(&everything, &out);
    }
    server.stop().unwrap();
}

/// All columns of a row say which turn has put it.
#[test]
fn rows_that_are_put_meanwhile_come_whole_and_never_older_than_what_was_acknowledged() {
    const TURNS: u32 = 150;
    let tier_bytes = 256 << 20;
    let Served { server, socket, _dir } =
        serve_as(|config| ServerConfig { n_shards: 2, tier_bytes, writable: true, ..config });
    let (acknowledged, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let ids = &ids(2 * LENT);
    let row_at = |turn: u32| (turn as f32).to_le_bytes().repeat(WIDTH as usize);
    let put = |client: &Client, turn: u32, ids: &[NodeId]| {
        client.put_rows("feat", ids, &row_at(turn).repeat(ids.len())).unwrap();
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
                            assert!(f32::from_le_bytes(values[0]) >= least as f32, "old");
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
            // Rows over segments are never resident: they come back with a compaction.
            if turn % 10 == 0 {
                client.commit().unwrap();
                client.compact().unwrap();
            }
        }
        is_over.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(shared_bytes(&server) > 0);
    server.stop().unwrap();
}
