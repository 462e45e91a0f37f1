//! Commits during pulls: rows of one partition are of one version.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lodestore_client::PullKind as Kind;
use lodestore_schema::{Reply, RequestBody};

use super::*;

/// Rows of one reply: more bytes than sockets buffer, so that the server gathers the last rows
/// late.
const N_ROWS: usize = 250_000;

fn chunk(plain: &mut PlainConnection) -> (usize, u32, Vec<u8>) {
    match plain.answer() {
        (Reply::Rows { n_rows, versions, .. }, rows) => {
            (n_rows as usize, versions.of(0).number, rows)
        }
        other => panic!("{other:?}"),
    }
}

/// A commit after the first chunk once changed the rest of a reply, which then reported the new
/// version for all of its rows.
#[test]
fn a_pull_reads_one_version_from_its_first_chunk_to_its_last() {
    const N_NODES: u32 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 1);
    for n_shards in [1, 2] {
        let (server, address) = start(&config(&graph, n_shards));
        let (mut plain, client) = (PlainConnection::open(&address), connect(&[&address]));
        let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
        let before = client.version_id().unwrap().number;
        let ids: Vec<NodeId> = all.iter().copied().cycle().take(N_ROWS).collect();
        plain.ask(RequestBody::Pull { tensor: 0, kind: PullKind::Sync }, &ids);
        let (mut n_rows, mut version, mut rows) = chunk(&mut plain);
        let turn = before;
        client.put_rows("feat", &all, &put_rows(&all, turn)).unwrap();
        assert_eq!(client.commit().unwrap(), before + 1);
        while n_rows < ids.len() {
            let (more, last, bytes) = chunk(&mut plain);
            (n_rows, version) = (n_rows + more, last);
            rows.extend(bytes);
        }
        assert_eq!(version, before, "the version that was read");
        for (row, &id) in rows.chunks_exact(ROW_BYTES).zip(&ids) {
            assert_eq!(turn_of(id, row), turn - 1, "node {id}, {n_shards} shards");
        }
        server.stop().unwrap();
    }
}

/// Each call asks several shards of each server, at different moments.
#[test]
fn rows_of_a_partition_that_one_call_pulls_are_of_one_commit() {
    const N_NODES: u32 = 4000;
    const N_COMMITS: u32 = 60;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 2);
    let (server, address) = start(&config(&graph, 3));
    let (is_over, address) = (AtomicBool::new(false), &address);
    let read = |kind| {
        let (client, mut n_pulls) = (connect(&[address]), 0);
        let ids = shuffled_ids(N_NODES, 3000);
        let mut out = vec![0xEE; ids.len() * ROW_BYTES];
        while !is_over.load(Ordering::Relaxed) {
            let stats = client.pull("feat", &ids, &mut out, kind).unwrap();
            let mut turns = BTreeMap::new();
            for (row, &id) in out.chunks_exact(ROW_BYTES).zip(&ids) {
                let turn = turn_of(id, row);
                let part = client.book().part_of(id).unwrap();
                assert_eq!(*turns.entry(part).or_insert(turn), turn, "partition {part}");
            }
            // The import made version 1, whose rows have turn 0.
            let found = turns.values().map(|turn| turn + 1);
            assert_eq!(Some(stats.versions.lowest), found.clone().min());
            assert_eq!(Some(stats.versions.highest), found.max());
            n_pulls += 1;
        }
        n_pulls
    };
    let n_pulls: u32 = thread::scope(|scope| {
        let kinds = [Kind::Sync, Kind::Vector, Kind::Sync];
        let readers = kinds.map(|kind| scope.spawn(move || read(kind)));
        let (client, all) = (connect(&[address]), shuffled_ids(N_NODES, N_NODES as usize));
        for turn in 1..=N_COMMITS {
            client.put_rows("feat", &all, &put_rows(&all, turn)).unwrap();
            client.commit().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(n_pulls > 3, "{n_pulls}");
    server.stop().unwrap();
}
