//! A server that stops during puts: each put is acknowledged or fails with a reason, and
//! acknowledged rows are not lost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::*;

#[test]
fn a_stop_during_puts_loses_no_acknowledged_row() {
    const N_NODES: u32 = 2000;
    const N_WRITERS: u32 = 6;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 2);
    let mut expected = Expected::new(N_NODES);
    let config = config(&graph, 3);
    for round in 0..3 {
        let (server, address) = start(&config);
        let acknowledged: Vec<AtomicU32> =
            expected.turns.iter().map(|&turn| AtomicU32::new(turn)).collect();
        let started = Instant::now();
        let stopped = thread::scope(|scope| {
            for writer in 0..N_WRITERS {
                let (address, acknowledged) = (&address, &acknowledged);
                scope.spawn(move || {
                    let once = ClientConfig { attempts: 1, ..ClientConfig::default() };
                    let client = Client::connect(&[address], once).unwrap();
                    for turn in 1000 * round + 1.. {
                        let ids: Vec<NodeId> = (0..50)
                            .map(|i| NodeId((turn * 50 + i) * N_WRITERS % N_NODES + writer))
                            .filter(|id| id.0 < N_NODES && id.0 % N_WRITERS == writer)
                            .collect();
                        match client.put_rows("feat", &ids, &put_rows(&ids, turn)) {
                            Ok(_) => ids.iter().for_each(|id| {
                                acknowledged[id.index()].store(turn, Ordering::SeqCst);
                            }),
                            Err(error) => {
                                use ClientError::{Away, Refused, Unavailable};
                                let typed = matches!(
                                    error,
                                    Away { .. } | Refused { .. } | Unavailable { .. }
                                );
                                assert!(typed, "{error}");
                                return;
                            }
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(150));
            let stopping = Instant::now();
            server.stop().unwrap();
            stopping.elapsed()
        });
        assert!(stopped < Duration::from_secs(5), "stopped after {stopped:?}");
        let (server, address) = start(&config);
        let client = connect(&[&address]);
        client.commit().unwrap();
        let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
        let rows = pull(&client, &ids).unwrap();
        for (row, &id) in rows.chunks_exact(ROW_BYTES).zip(&ids) {
            let (found, acknowledged) =
                (turn_of(id, row), acknowledged[id.index()].load(Ordering::SeqCst));
            // The last put of a writer may be durable although its acknowledgement was lost.
            assert!(found >= acknowledged, "node {id}: {acknowledged} acknowledged, {found} found");
            expected.turns[id.index()] = found;
        }
        assert!(expected.turns.iter().any(|&turn| turn > 1000 * round), "the server accepted puts");
        println!("round {round}: {:?}, stopped in {stopped:?}", started.elapsed());
        server.stop().unwrap();
    }
}
