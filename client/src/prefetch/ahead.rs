//! Batches with their rows, one after the other or several together.

use std::{
    ops::Range,
    sync::mpsc::{Receiver, SyncSender},
    time::Instant,
};

use lodestore_graph::NodeId;

use super::rows::{BatchRows, Free, Memory};
use super::{BatchSource, PreparedBatch, Shape, Shared};
use crate::{BatchLoader, ClientError, Kept};

/// A prepared batch and its index, or why there is none.
pub(super) type Ready = Result<(u32, PreparedBatch), ClientError>;

/// The background thread: memory and a place in the window first, so that what is claimed has both.
/// At the start, where the trainer waits for them, fewer batches are loaded together.
pub(super) fn prepare_ahead(
    source: &dyn BatchSource,
    mut loader: BatchLoader,
    shared: &Shared,
    window: Shape,
    (home, heard): (&SyncSender<Free>, &Receiver<Free>),
    done: &SyncSender<Ready>,
) {
    let (mut memories, mut places, mut together) = (Vec::new(), window.places, 1);
    while let Ok(free) = heard.recv() {
        match free {
            Free::Memory(rows) => memories.push(rows),
            Free::Place => places += 1,
            Free::Stop => return,
        }
        while places > 0
            && let Some(rows) = memories.pop()
        {
            let Some(claimed) = shared.claim_next(source, together.min(places)) else { return };
            places -= claimed.len() as u32;
            together = (2 * together).min(window.together);
            for ready in prepare(source, &mut loader, claimed, rows, home) {
                let failed = ready.is_err();
                if done.send(ready).is_err() || failed {
                    return;
                }
            }
        }
    }
}

/// Gets the batches `claimed` and their rows, up to the first that fails. Their memory goes `home` when
/// they are dropped.
pub(super) fn prepare(
    source: &dyn BatchSource,
    loader: &mut BatchLoader,
    claimed: Range<u32>,
    rows: Memory,
    home: &SyncSender<Free>,
) -> Vec<Ready> {
    let (mut prepared, mut kept, mut failed) = (Vec::new(), Vec::new(), None);
    for index in claimed.clone() {
        let start = Instant::now();
        match source.batch(index) {
            Ok((batch, of_batch)) => {
                let sample_seconds = start.elapsed().as_secs_f64();
                prepared.push(PreparedBatch { batch, sample_seconds, ..PreparedBatch::default() });
                kept.push(of_batch);
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if let Err(error) = load(loader, &mut prepared, kept, rows, home) {
        return vec![Err(error)];
    }
    claimed.zip(prepared).map(Ok).chain(failed.map(Err)).collect()
}

fn load(
    loader: &mut BatchLoader,
    prepared: &mut [PreparedBatch],
    kept: Vec<Kept>,
    mut rows: Memory,
    home: &SyncSender<Free>,
) -> Result<(), ClientError> {
    let row_bytes = loader.row_bytes();
    let bytes_of = |nodes: &[NodeId]| nodes.len().saturating_mul(row_bytes);
    let n_bytes = prepared.iter().map(|of| bytes_of(&of.batch.nodes)).sum();
    let nodes = prepared.iter().map(|of| &of.batch.nodes[..]);
    let mut batches: Vec<_> = nodes.zip(kept).collect();
    let stats = loader.load_together(&mut batches, rows.resize(n_bytes))?;
    let lengths = prepared.iter().map(|of| bytes_of(&of.batch.nodes)).collect::<Vec<_>>();
    let rows = BatchRows::split(rows, lengths.into_iter(), home.clone());
    for ((of, load), rows) in prepared.iter_mut().zip(stats).zip(rows) {
        (of.load, of.rows) = (load, rows);
    }
    Ok(())
}
