//! The trace of a schedule: what its workers ask for.

use anyhow::{Result, bail};
use lodestore_cache::Trace;
use lodestore_cache::trace::TraceBuilder;
use lodestore_graph::sampler::is_local;
use lodestore_graph::schedule::Schedule;
use lodestore_store::Graph;

/// Reads the batches of one worker, or of all in turn: those that they train on at the same time
/// follow each other. With `remote` a batch is the rows that its worker does not own, and needs
/// `graph`.
pub(super) fn read(
    schedule: &Schedule,
    graph: Option<&Graph>,
    worker: Option<u32>,
    remote: bool,
) -> Result<Trace> {
    if let Some(graph) = graph {
        schedule.expect_graph(*graph.uuid().as_bytes(), graph.book().n_nodes())?;
    }
    let n_workers = schedule.spec().workers;
    let workers = match worker {
        Some(worker) if worker < n_workers => worker..worker + 1,
        Some(worker) => {
            bail!("the schedule has no worker {worker}, but 0 to {}", n_workers - 1)
        }
        None => 0..n_workers,
    };
    let book = graph.filter(|_| remote).map(Graph::book);
    let longest = workers.clone().map(|worker| schedule.n_batches(worker)).max().unwrap_or(0);
    let (mut builder, mut ids) = (TraceBuilder::default(), Vec::new());
    for epoch in 0..schedule.spec().epochs {
        builder.begin_epoch();
        for batch in 0..longest {
            for worker in workers.clone().filter(|&worker| batch < schedule.n_batches(worker)) {
                let nodes = schedule.get(worker, epoch, batch)?.nodes;
                let asked = nodes.iter().filter(|&&node| {
                    book.is_none_or(|book| !is_local(book, worker, n_workers, node))
                });
                ids.clear();
                ids.extend(asked.map(|node| node.0));
                builder.push_batch(&ids)?;
            }
        }
    }
    // Without the graph nothing but the file says how many nodes there are.
    Ok(builder.finish(graph.map(|graph| graph.book().n_nodes())))
}
