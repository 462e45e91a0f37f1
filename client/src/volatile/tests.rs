use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_cache::volatile::VolatileError;
use lodestore_graph::PartitionBook;
use lodestore_store::Dtype;

use super::*;

const N_NODES: u32 = 48;
const WIDTH: u32 = 24;
const ROW_BYTES: usize = WIDTH as usize;

fn row_of(node: u32, stamp: Stamp) -> Vec<u8> {
    let mut row: Vec<u8> = (0..WIDTH).map(|i| (node * 31 + stamp * 7 + i) as u8).collect();
    row[..4].copy_from_slice(&stamp.to_le_bytes());
    row
}

fn rows_of(ids: &[NodeId], stamp: Stamp) -> Vec<u8> {
    ids.iter().flat_map(|id| row_of(id.0, stamp)).collect()
}

fn memory() -> Arc<EmbeddedVolatile> {
    let book = PartitionBook::new(vec![0, N_NODES / 2, N_NODES]).unwrap();
    let memory = EmbeddedVolatile::new(&book, 1 << 20);
    let tensor = TensorInfo { name: "h1".into(), dtype: Dtype::U8, width: WIDTH };
    memory.declare(&VolatileInfo { tensor, range_rows: 0 }).unwrap();
    Arc::new(memory)
}

fn check(ids: &[NodeId], rows: &[u8], pulled: &VolatilePulled, min_stamp: Stamp) {
    for ((id, row), &stamp) in ids.iter().zip(rows.chunks_exact(ROW_BYTES)).zip(&pulled.stamps) {
        if stamp == NO_STAMP {
            assert!(row.iter().all(|&byte| byte == 0), "missing rows are zeros");
            continue;
        }
        assert!(stamp >= min_stamp, "node {id}: {stamp} is older than {min_stamp}");
        assert!(row == row_of(id.0, stamp), "node {id}: not the row of stamp {stamp}");
    }
}

#[test]
fn pulls_wait_for_rows_and_report_missing_ones() {
    let memory = memory();
    let ids = [NodeId(3), NodeId(30), NodeId(4)];
    let mut out = vec![7; 3 * ROW_BYTES];
    std::thread::scope(|scope| {
        let (memory, ids) = (&memory, &ids);
        scope.spawn(move || {
            let mut publisher = memory.publisher();
            publisher.claim("h1", &[0..N_NODES / 2]).unwrap();
            publisher.publish("h1", &[NodeId(3)], &row_of(3, 2), 2).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            publisher
                .publish("h1", &[NodeId(4), NodeId(3)], &rows_of(&[NodeId(4), NodeId(3)], 3), 3)
                .unwrap();
            // The publisher ends with its claim; the rows stay.
        });
        let begun = Instant::now();
        let two = [ids[0], ids[2]];
        let wanted = StampWanted::awaited(3);
        let pulled = memory.pull_volatile("h1", &two, wanted, &mut out[..2 * ROW_BYTES]).unwrap();
        assert_eq!((pulled.oldest(), pulled.is_whole()), (Some(3), true));
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
        let begun = Instant::now();
        let wanted = StampWanted { min_stamp: 1, wait: Duration::from_millis(60) };
        let pulled = memory.pull_volatile("h1", ids, wanted, &mut out).unwrap();
        assert_eq!((pulled.lacking(), pulled.oldest()), (vec![1], Some(3)));
        check(ids, &out, &pulled, 1);
        assert!(begun.elapsed() >= Duration::from_millis(60), "{:?}", begun.elapsed());
    });
}

#[test]
fn errors_name_their_cause() {
    let memory = memory();
    let text = |error: ClientError| error.to_string();
    let info = memory.volatile("h1").unwrap();
    assert!(text(memory.volatile("h2").unwrap_err()).contains("it has: h1"));
    let other = TensorInfo { width: 3, ..info.tensor.clone() };
    let other = VolatileInfo { tensor: other, range_rows: 0 };
    let message = text(memory.declare(&other).unwrap_err());
    assert!(message.contains("24xu8") && message.contains("3xu8"), "{message}");
    let large = TensorInfo { name: "h3".into(), dtype: Dtype::F64, width: 1 << 20 };
    let message = text(memory.declare(&VolatileInfo { tensor: large, range_rows: 0 }).unwrap_err());
    assert!(message.contains("1048576 for rows in memory"), "{message}");
    let (mut first, mut second) = (memory.publisher(), memory.publisher());
    first.claim("h1", &[0..24]).unwrap();
    let held = second.claim("h1", &[0..48]).unwrap_err();
    assert!(matches!(held, ClientError::Volatile(VolatileError::Held { .. })), "{held}");
    let row = row_of(24, 1);
    let error = first.publish("h1", &[NodeId(24)], &row, 1).unwrap_err();
    assert!(matches!(error, ClientError::Volatile(VolatileError::NotOwned { id: 24 })), "{error}");
    first.publish("h1", &[NodeId(1)], &row, 9).unwrap();
    let error = first.publish("h1", &[NodeId(1)], &row, 8).unwrap_err();
    assert!(matches!(error, ClientError::Volatile(VolatileError::Older { .. })), "{error}");
    let error = first.publish("h1", &[NodeId(1)], &row, STAMP_MAX + 1).unwrap_err();
    assert!(matches!(error, ClientError::Volatile(VolatileError::Stamp { .. })), "{error}");
    let error = first.publish("h1", &[NodeId(1)], &row[1..], 9).unwrap_err();
    assert!(matches!(error, ClientError::BufferSize { .. }), "{error}");
    drop(first);
    second.claim("h1", &[0..48]).unwrap();
}
