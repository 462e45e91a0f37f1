//! Inputs of policies from a graph.

use anyhow::Result;
use lodestore_cache::PolicyKind;
use lodestore_graph::halo::Halo;
use lodestore_store::Graph;

/// Policies that a tier of a trainer without a schedule can follow, with the inputs from its graph.
const FOR_TRAINING: [PolicyKind; 8] = [
    PolicyKind::Lru,
    PolicyKind::Fifo,
    PolicyKind::Clock,
    PolicyKind::Sieve,
    PolicyKind::S3Fifo,
    PolicyKind::TinyLfu,
    PolicyKind::Degree,
    PolicyKind::Overlap,
];

/// Returns whether a trainer's tier can follow it.
pub(crate) fn is_for_training(kind: PolicyKind) -> bool {
    FOR_TRAINING.contains(&kind)
}

/// Returns the policies that a trainer's tier can follow, in words.
pub(crate) fn for_training() -> String {
    FOR_TRAINING.map(PolicyKind::name).join(", ")
}

/// Returns the overlap ratio R(v) of each node (CaPGNN, Eq. 2): the number of halos that it is in.
pub(crate) fn overlap_ratios(graph: &Graph) -> Result<Vec<u16>> {
    let (book, uuid) = (graph.book(), *graph.uuid().as_bytes());
    let mut ratios = vec![0u16; book.n_nodes() as usize];
    for part in book.parts() {
        let halo = Halo::open(&graph.halo_path(part), book, part, uuid)?;
        for (id, ratio) in halo.ids.iter().zip(halo.overlap) {
            ratios[id.index()] = ratio;
        }
    }
    Ok(ratios)
}
