//! Reading and parsing on one thread while another works.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;

use super::{CHUNK_EDGES, EdgeError, EdgeStream, VisitChunk};

/// Chunks that are read ahead: one waits while the next is read.
const CHUNKS_AHEAD: usize = 2;

/// A stream whose passes are read ahead, in memory of four chunks more.
#[derive(Debug)]
pub struct ReadAhead<S>(S);

impl<S: EdgeStream + Sync> ReadAhead<S> {
    /// Returns the same edges, in the same order and chunks.
    pub fn new(edges: S) -> Self {
        Self(edges)
    }

    /// Hands over all chunks until there are no more, or their receiver is gone.
    fn read(
        &self,
        chunks: &SyncSender<Result<Vec<[u32; 2]>, EdgeError>>,
        spent: &Receiver<Vec<[u32; 2]>>,
    ) {
        let read = self.0.for_each_chunk(&mut |chunk| {
            let mut copy = spent.try_recv().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(chunk);
            chunks.send(Ok(copy)).map_err(|_| EdgeError::Stopped)
        });
        if let Err(error) = read {
            // The pass was stopped, so there is no receiver.
            let _ = chunks.send(Err(error));
        }
    }
}

impl<S: EdgeStream + Sync> EdgeStream for ReadAhead<S> {
    fn n_edges(&self) -> u64 {
        self.0.n_edges()
    }

    fn n_nodes(&self) -> u32 {
        self.0.n_nodes()
    }

    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        if self.n_edges() <= CHUNK_EDGES as u64 {
            return self.0.for_each_chunk(f);
        }
        thread::scope(|scope| {
            let (sender, chunks) = sync_channel(CHUNKS_AHEAD);
            let (give_back, spent) = channel();
            let read = move || self.read(&sender, &spent);
            if thread::Builder::new().spawn_scoped(scope, read).is_err() {
                // No thread is available: no chunk is read ahead.
                return self.0.for_each_chunk(f);
            }
            // Returning drops the receiver, which stops the reader.
            for chunk in chunks {
                let chunk = chunk?;
                f(&chunk)?;
                // The reader may be done.
                let _ = give_back.send(chunk);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::MemoryEdges;

    const N_EDGES: u32 = 7 * CHUNK_EDGES as u32 + 11;

    fn many() -> Vec<[u32; 2]> {
        (0..N_EDGES).map(|i| [i, i / 2]).collect()
    }

    #[test]
    fn passes_are_the_same_again_and_again() {
        let edges = ReadAhead::new(MemoryEdges::new(many()).unwrap());
        assert_eq!((edges.n_edges(), edges.n_nodes()), (u64::from(N_EDGES), N_EDGES));
        for _ in 0..3 {
            let mut seen = Vec::new();
            edges
                .for_each_chunk(&mut |chunk| {
                    seen.extend_from_slice(chunk);
                    Ok(())
                })
                .unwrap();
            assert!(seen == many());
        }
    }

    #[test]
    fn who_stops_a_pass_gets_its_own_error_and_no_more_chunks() {
        let edges = ReadAhead::new(MemoryEdges::new(many()).unwrap());
        for stop_at in [1, 2, 7] {
            let mut n_chunks = 0;
            let error = edges.for_each_chunk(&mut |_| {
                n_chunks += 1;
                let found = i128::from(n_chunks);
                let origin = String::new();
                let error = EdgeError::OutOfRange { origin, edge: 0, found, n_nodes: 0 };
                if n_chunks == stop_at { Err(error) } else { Ok(()) }
            });
            assert!(
                matches!(error, Err(EdgeError::OutOfRange { found, .. }) if found == stop_at.into())
            );
            assert_eq!(n_chunks, stop_at);
        }
    }

    /// Fails in the middle of a pass.
    struct Broken(MemoryEdges);

    impl EdgeStream for Broken {
        fn n_edges(&self) -> u64 {
            self.0.n_edges()
        }
        fn n_nodes(&self) -> u32 {
            self.0.n_nodes()
        }
        fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
            let mut n_chunks = 0;
            self.0.for_each_chunk(&mut |chunk| {
                n_chunks += 1;
                f(chunk)?;
                if n_chunks == 3 { Err(EdgeError::Stopped) } else { Ok(()) }
            })
        }
    }

    #[test]
    fn an_error_of_the_reader_comes_after_the_chunks_before_it() {
        let edges = ReadAhead::new(Broken(MemoryEdges::new(many()).unwrap()));
        let mut n_chunks = 0;
        let error = edges.for_each_chunk(&mut |_| {
            n_chunks += 1;
            Ok(())
        });
        assert!(matches!(error, Err(EdgeError::Stopped)));
        assert_eq!(n_chunks, 3);
    }
}
