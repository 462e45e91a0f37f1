//! Samples mini-batches of a graph; a batch depends on its seed alone.
//!
//! Run with `cargo run -p lodestore-graph --example sample`.

use std::error::Error;

use lodestore_graph::NodeId;
use lodestore_graph::sampler::Sampler;
use lodestore_graph::topology::Topology;

const N_NODES: u32 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    // Node v has the in-neighbours v + 1, v + 2, v + 3 and v + 4.
    let offsets = (0..=u64::from(N_NODES)).map(|node| node * 4).collect();
    let neighbours_of = |node| {
        let mut list: Vec<u32> = (1..5).map(|step| (node + step) % N_NODES).collect();
        list.sort_unstable();
        list
    };
    let topology = Topology::from_lists(offsets, (0..N_NODES).flat_map(neighbours_of).collect())?;

    let mut sampler = Sampler::new(&topology, &["3".parse()?, "2".parse()?]);
    let roots = [NodeId(3), NodeId(500)];
    let batch = sampler.sample(&roots, 42);
    assert_eq!(batch.nodes[..2], roots, "roots come first");
    assert_eq!(batch, sampler.sample(&roots, 42), "the seed decides");
    println!("{} nodes for {} roots", batch.nodes.len(), roots.len());
    for (hop, block) in batch.blocks.iter().enumerate() {
        println!("hop {hop}: {} edges", block.sources.len());
    }
    Ok(())
}
