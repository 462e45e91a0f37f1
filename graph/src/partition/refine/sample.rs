//! A sample of the edges that fits memory of the order of the nodes.
//!
//! Edge (u, v) is kept if h(u, v) < c · (1/d(u) + 1/d(v)), where h is a hash from 0 to 1: poor
//! nodes keep all of their edges, rich ones about c and what their poor neighbours keep. The sum of
//! 1/d(u) + 1/d(v) over all edges is |V|, so that about c · |V| edges are kept at most. Degree-wise
//! sampling of this kind keeps cuts (Spielman and Srivastava, STOC 2008, where effective
//! resistances take the place of 1/d(u) + 1/d(v)).

use super::level::Level;
use crate::edges::{EdgeError, EdgeStream};
use crate::mix::mix;

/// Buckets of the histogram of keys, eight to a factor of two.
const BUCKETS: usize = 1024;
/// Bits of a double below those that name its bucket: 52 of the fraction, less 3.
const BUCKET_SHIFT: u32 = 49;
/// Bucket of keys from 1, the first that are told apart.
const FIRST_BUCKET: usize = 1023 << 3;

/// Edges of a stream, all or some of them.
#[derive(Debug)]
pub(super) struct Sample {
    /// The edges, without loops and with weight 1.
    pub(super) level: Level,
    /// All edges that are no loops are there.
    pub(super) is_complete: bool,
}

/// Decides by the degrees which edges are kept.
struct Filter {
    degrees: Vec<u32>,
    seed: u64,
    /// c, above which keys are dropped; infinite when everything is kept.
    end: f64,
}

/// Reads at most `max_edges` edges: two passes when they are all there is, else four.
pub(super) fn sample(
    edges: &dyn EdgeStream,
    n_nodes: u32,
    max_edges: u64,
    seed: u64,
) -> Result<Sample, EdgeError> {
    let mut filter = Filter { degrees: Vec::new(), seed, end: f64::INFINITY };
    let is_complete = edges.n_edges() <= max_edges;
    if !is_complete {
        filter.degrees = degrees(edges, n_nodes)?;
        filter.end = filter.end_for(edges, max_edges)?;
    }
    let mut offsets = vec![0usize; n_nodes as usize + 1];
    filter.for_each_kept(edges, &mut |u, v| {
        offsets[u as usize + 1] += 1;
        offsets[v as usize + 1] += 1;
    })?;
    for i in 1..offsets.len() {
        offsets[i] += offsets[i - 1];
    }
    let mut neighbours = vec![0u32; offsets.last().copied().unwrap_or(0)];
    // While the lists are filled, an offset is where the next neighbour goes.
    filter.for_each_kept(edges, &mut |u, v| {
        for (node, neighbour) in [(u, v), (v, u)] {
            let next = &mut offsets[node as usize];
            // A file that changes between passes may ask for more; it gives a worse sample.
            if let Some(place) = neighbours.get_mut(*next) {
                *place = neighbour;
                *next += 1;
            }
        }
    })?;
    // Each offset is where the next list starts by now.
    offsets.rotate_right(1);
    offsets[0] = 0;
    for i in 1..offsets.len() {
        offsets[i] = offsets[i].max(offsets[i - 1]);
    }
    let level = Level { offsets, neighbours, ..Level::default() };
    Ok(Sample { level, is_complete })
}

fn degrees(edges: &dyn EdgeStream, n_nodes: u32) -> Result<Vec<u32>, EdgeError> {
    let mut degrees = vec![0u32; n_nodes as usize];
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk {
            for end in [u, v] {
                let degree = &mut degrees[end as usize];
                *degree = degree.saturating_add(u32::from(u != v));
            }
        }
        Ok(())
    })?;
    Ok(degrees)
}

impl Filter {
    /// The least c at which edge (u, v) is dropped. Both directions and copies have the same.
    fn key(&self, u: u32, v: u32) -> f64 {
        let pair = u64::from(u.min(v)) << 32 | u64::from(u.max(v));
        let hash = mix(self.seed ^ mix(pair));
        let [of_u, of_v] = [u, v].map(|node| f64::from(self.degrees[node as usize]));
        hash as f64 * (of_u * of_v) / (of_u + of_v)
    }

    /// The largest c, within an eighth of a factor of two, that keeps at most `max_edges`.
    fn end_for(&self, edges: &dyn EdgeStream, max_edges: u64) -> Result<f64, EdgeError> {
        let mut histogram = vec![0u64; BUCKETS];
        self.for_each_edge(edges, &mut |u, v| histogram[bucket(self.key(u, v))] += 1)?;
        let mut kept = 0;
        let full = histogram.iter().position(|&n_edges| {
            kept += n_edges;
            kept > max_edges
        });
        Ok(full.map_or(f64::INFINITY, bucket_start))
    }

    fn for_each_kept(
        &self,
        edges: &dyn EdgeStream,
        f: &mut dyn FnMut(u32, u32),
    ) -> Result<(), EdgeError> {
        let all = self.end == f64::INFINITY;
        self.for_each_edge(edges, &mut |u, v| {
            if all || self.key(u, v) < self.end {
                f(u, v);
            }
        })
    }

    /// Every edge that is no loop.
    fn for_each_edge(
        &self,
        edges: &dyn EdgeStream,
        f: &mut impl FnMut(u32, u32),
    ) -> Result<(), EdgeError> {
        edges.for_each_chunk(&mut |chunk| {
            for &[u, v] in chunk {
                if u != v {
                    f(u, v);
                }
            }
            Ok(())
        })
    }
}

fn bucket(key: f64) -> usize {
    ((key.to_bits() >> BUCKET_SHIFT) as usize).saturating_sub(FIRST_BUCKET).min(BUCKETS - 1)
}

fn bucket_start(bucket: usize) -> f64 {
    f64::from_bits(((bucket + FIRST_BUCKET) as u64) << BUCKET_SHIFT)
}
