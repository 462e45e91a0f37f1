//! Versioned rows on real threads, with rows of many lengths.

use std::sync::atomic::{AtomicBool, Ordering};

use lodestore_cache::versioned::{TornRead, VersionedRows};

fn row_of(tag: u64, row_bytes: usize) -> Vec<u8> {
    (0..row_bytes).map(|i| (tag as usize * 31 + i) as u8).collect()
}

#[test]
fn rows_of_any_length_come_back_with_their_tags() {
    for row_bytes in [0, 1, 7, 8, 9, 400, 4096] {
        let rows = VersionedRows::new(3, row_bytes).unwrap();
        let mut out = vec![7; row_bytes];
        assert_eq!((rows.try_read(2, &mut out), &out), (Ok(0), &vec![0; row_bytes]));
        for (slot, tag) in [(1, 5), (2, u64::MAX), (1, 6)] {
            rows.write(slot, tag, &row_of(tag % 1000, row_bytes));
        }
        rows.write(1, 4, &row_of(4, row_bytes));
        assert_eq!((rows.read(1, &mut out, 1), &out), (Ok(6), &row_of(6, row_bytes)));
        assert_eq!(rows.read(0, &mut out, 0), Err(TornRead), "no try is no row");
        assert_eq!(rows.row_bytes(), row_bytes);
        assert_eq!(rows.bytes(), 3 * (2 + row_bytes.div_ceil(8)) * 8);
    }
}

#[test]
fn readers_of_a_row_that_never_rests_take_whole_rows_only() {
    const ROW_BYTES: usize = 1000;
    let rows = VersionedRows::new(1, ROW_BYTES).unwrap();
    rows.write(0, 1, &row_of(1, ROW_BYTES));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = || {
            let (mut out, mut newest) = (vec![0; ROW_BYTES], 0);
            // Once more when the row rests: a reader that never reads proves nothing.
            let mut rests = false;
            while !rests {
                rests = is_done.load(Ordering::Acquire);
                if let Ok(tag) = rows.try_read(0, &mut out) {
                    assert_eq!(out, row_of(tag, ROW_BYTES));
                    assert!(tag >= newest, "never an older row after a newer one");
                    newest = tag;
                }
            }
            assert_eq!(newest, 19_999);
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        for tag in 2..20_000 {
            rows.write(0, tag, &row_of(tag, ROW_BYTES));
        }
        is_done.store(true, Ordering::Release);
        assert!(readers.into_iter().all(|reader| reader.join().is_ok()));
    });
}
