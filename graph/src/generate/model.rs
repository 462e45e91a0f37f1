//! The random graph: which edges, labels and splits a recipe makes, node by node.
//!
//! A hidden order of the nodes is cut into communities, each of one class. Node `r` of a community
//! of `m` has weight ∝ √(r+1) − √r, a power law whose degrees fall with exponent 3. Its
//! distribution function √(r/m) is inverted by a square, without a table. IEEE square roots are
//! exact, so the graph is the same on every machine. Planted communities with given weights are
//! those of the degree-corrected block model (Karrer and Newman, 2011).
//!
//! Edges between classes are near or far, as in real graphs. Most go to a community at distance d
//! on the ring of communities, with probability ∝ 1/d². The others go to hubs of the whole graph,
//! which have a power law of their own.

use super::GraphRecipe;
use crate::bijection::Bijection;
use crate::splitmix64::splitmix64;

/// Draws for one end of an edge; more only fail where a graph is too small to have such an edge.
const MAX_DRAWS: usize = 64;

/// Values derived from a recipe; a few words, for any number of nodes.
#[derive(Clone, Debug)]
pub(super) struct Model {
    n_nodes: u64,
    n_communities: u64,
    n_classes: u64,
    /// Edges that a node starts on average.
    mean_started: f64,
    homophily: f64,
    hub_share: f64,
    hub_power: u32,
    seed: u64,
    /// Place in the hidden order to node.
    order: Bijection,
    /// Rank among the hubs of the whole graph to node.
    hubs: Bijection,
    /// Place in the splits to node.
    splits: Bijection,
    /// Places where the training, validation and test nodes end.
    split_ends: [u64; 3],
}

impl Model {
    /// Takes a recipe that has been checked.
    pub(super) fn new(recipe: &GraphRecipe) -> Self {
        let (n_nodes, n_classes) = (u64::from(recipe.n_nodes), u64::from(recipe.n_classes));
        let bijection =
            |purpose| Bijection::new(n_nodes, splitmix64(recipe.seed ^ splitmix64(purpose)));
        let community_nodes = u64::from(recipe.community_nodes);
        let per_class = (n_nodes / (n_classes * community_nodes)).max(1);
        let mut place = 0.0;
        let split_ends = [recipe.train, recipe.val, recipe.test].map(|fraction| {
            place += f64::from(fraction);
            // Rounded, since 0.1 + 0.05 + 0.1 of a float is a little off.
            ((place * f64::from(recipe.n_nodes)).round() as u64).min(n_nodes)
        });
        Self {
            n_nodes,
            n_communities: n_classes * per_class,
            n_classes,
            mean_started: f64::from(recipe.mean_degree) / 2.0,
            homophily: f64::from(recipe.homophily),
            hub_share: recipe.hub_share,
            hub_power: recipe.hub_power,
            seed: recipe.seed,
            order: bijection(1),
            hubs: bijection(2),
            splits: bijection(3),
            split_ends,
        }
    }

    /// Returns the class of a node.
    pub(super) fn label(&self, node: u64) -> u64 {
        self.community(self.order.inverse(node)) % self.n_classes
    }

    /// Returns 0 for training, 1 for validation, 2 for test, 255 for none.
    pub(super) fn split(&self, node: u64) -> u8 {
        let place = self.splits.inverse(node);
        let split = self.split_ends.iter().position(|&end| place < end);
        split.map_or(255, |split| split as u8)
    }

    /// Returns the number of edges that start at a node: its weight, rounded up or down by chance.
    pub(super) fn n_started(&self, node: u64) -> u64 {
        if self.n_nodes < 2 {
            return 0;
        }
        let place = self.order.inverse(node);
        let (first, m) = self.span(self.community(place));
        let (rank, m) = ((place - first) as f64, m as f64);
        let weight = m.sqrt() * ((rank + 1.0).sqrt() - rank.sqrt());
        (self.mean_started * weight + Stream::new(self.seed, node, 1).uniform()) as u64
    }

    /// Returns the other ends of the edges that start at a node, `n` of them.
    pub(super) fn ends(&self, node: u64, n: u64) -> impl Iterator<Item = u64> + use<'_> {
        let mut stream = Stream::new(self.seed, node, 2);
        let community = self.community(self.order.inverse(node));
        (0..n).map(move |_| {
            let same_class = stream.uniform() < self.homophily;
            let draw = |_| {
                if same_class {
                    self.draw_in(community, &mut stream)
                } else if stream.uniform() < self.hub_share {
                    self.hubs.forward(power_law(stream.uniform(), self.hub_power, self.n_nodes))
                } else {
                    self.draw_in(self.community_near(community, &mut stream), &mut stream)
                }
            };
            let fits =
                |&end: &u64| end != node && (same_class || self.has_other_class(end, community));
            // Only graphs of a few nodes lack such an end; any other node does there.
            (0..MAX_DRAWS).map(draw).find(fits).unwrap_or((node + 1) % self.n_nodes)
        })
    }

    /// Returns a node of `community`, by weight.
    fn draw_in(&self, community: u64, stream: &mut Stream) -> u64 {
        let (first, m) = self.span(community);
        self.order.forward(first + power_law(stream.uniform(), 2, m))
    }

    /// Draws a community: d or more away with probability 1/d, on either side.
    fn community_near(&self, community: u64, stream: &mut Stream) -> u64 {
        let distance = (1.0 / (1.0 - stream.uniform())) as u64 % self.n_communities;
        let ahead = stream.uniform() < 0.5;
        let steps = if ahead { distance } else { self.n_communities - distance };
        (community + steps) % self.n_communities
    }

    fn has_other_class(&self, node: u64, community: u64) -> bool {
        self.n_classes == 1 || self.label(node) != community % self.n_classes
    }

    /// Returns the community of a place in the hidden order.
    fn community(&self, place: u64) -> u64 {
        ((place + 1) * self.n_communities - 1) / self.n_nodes
    }

    /// Returns the first place and number of nodes of a community.
    fn span(&self, community: u64) -> (u64, u64) {
        let start = |community| community * self.n_nodes / self.n_communities;
        (start(community), start(community + 1) - start(community))
    }
}

/// Returns a rank below `m` whose distribution function is the `power`th root of rank/m. Products
/// alone, which are exact in the same way everywhere.
fn power_law(uniform: f64, power: u32, m: u64) -> u64 {
    let share = (0..power).fold(1.0, |product, _| product * uniform);
    ((share * m as f64) as u64).min(m - 1)
}

/// Random numbers that depend on nothing but seed, node and purpose.
struct Stream {
    state: u64,
}

impl Stream {
    fn new(seed: u64, node: u64, purpose: u64) -> Self {
        Self { state: splitmix64(splitmix64(seed ^ splitmix64(purpose)) ^ node) }
    }

    /// Draws a uniform number from 0 to below 1.
    fn uniform(&mut self) -> f64 {
        let word = splitmix64(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (word >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}
