use super::*;

/// Batches of nodes that the worker owns.
struct OwnBatches;

impl BatchSource for OwnBatches {
    fn n_batches(&self) -> u32 {
        6
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        Ok((Batch { nodes: nodes(10 + index..14 + index), ..Batch::default() }, None))
    }

    fn end_of_epoch(&self, _: u32) -> u32 {
        6
    }
}

#[test]
fn rows_that_the_caller_takes_are_in_no_batch_and_others_are() {
    thread::scope(|scope| {
        let (source, loader, window) =
            (Arc::new(OwnBatches), loader_in_memory(), Window::joined(0));
        let mut prefetcher = Prefetcher::start(scope, source, loader, window, 0);
        for index in 0..6u32 {
            let (expected, mut taken) = (nodes(10 + index..14 + index), None);
            let mut take = |loader: &BatchLoader, nodes: &[NodeId]| {
                if index.is_multiple_of(2) {
                    return Ok(None);
                }
                let loaded = loader.load_in_pieces(nodes, 3, <[u8]>::to_vec)?;
                Ok(loaded.map(|(pieces, stats)| {
                    taken = Some(pieces.concat());
                    stats
                }))
            };
            let prepared = prefetcher.next_batch_or(&mut take).unwrap().unwrap();
            assert_eq!(prepared.batch.nodes, expected);
            assert_eq!(prepared.load.local_rows, 4);
            let (bytes, rows) = (prepared.rows.bytes(), rows_of(&expected));
            match taken {
                Some(taken) => assert_eq!((&taken, bytes.len()), (&rows, 0)),
                None => assert_eq!((bytes, index % 2), (&rows[..], 0)),
            }
        }
        assert!(prefetcher.next_batch().unwrap().is_none());
        // One memory serves all batches that were loaded as bytes.
        assert_eq!(prefetcher.stats().peak_bytes, 4 * ROW_BYTES as u64);
    });
}

#[test]
fn a_caller_that_cannot_take_rows_ends_the_run() {
    thread::scope(|scope| {
        let (source, loader) = (Arc::new(OwnBatches), loader_in_memory());
        let mut prefetcher = Prefetcher::start(scope, source, loader, Window::joined(0), 0);
        let fails = prefetcher
            .next_batch_or(&mut |_, _| Err(ClientError::Panicked { thread: "test form" }));
        assert!(fails.unwrap_err().to_string().contains("test form"));
        assert!(prefetcher.next_batch().unwrap().is_none());
    });
}
