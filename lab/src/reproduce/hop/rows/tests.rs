use std::collections::BTreeSet;

use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::sampler::batch_seed;
use lodestore_graph::topology::{Direction, Topology};
use lodestore_graph::{PartId, PartitionBook};
use proptest::prelude::*;

use super::*;

fn cut(edges: Vec<[u32; 2]>, assignment: &[u16], n_parts: u16, train: &[u32]) -> ServerCut {
    let edges = MemoryEdges::new(edges).unwrap();
    let parts: Vec<PartId> = assignment.iter().copied().map(PartId).collect();
    let relabelling = Relabelling::new(&parts, n_parts).unwrap();
    let topology = Topology::from_edges(&edges, &relabelling, Direction::Undirected).unwrap();
    let internal = |&node: &u32| NodeId(relabelling.internal_of[node as usize]);
    let mut train: Vec<NodeId> = train.iter().map(internal).collect();
    train.sort_unstable();
    ServerCut { topology, book: relabelling.book, train, edge_cut: 0.0 }
}

type Nodes = BTreeSet<NodeId>;

/// The paper's words, root by root: sets of the micrographs' nodes.
struct Naive<'a> {
    cut: &'a ServerCut,
    setting: Setting<'a>,
    place: (u32, u32),
}

impl Naive<'_> {
    fn n(&self) -> usize {
        usize::from(self.cut.book.n_parts())
    }

    fn home(&self, node: NodeId) -> usize {
        let book: &PartitionBook = &self.cut.book;
        book.parts().position(|part| book.range(part).contains(&node.0)).unwrap()
    }

    fn order(&self) -> Vec<NodeId> {
        epoch_order(self.setting.seed, self.place.0, &self.cut.train)
    }

    /// Returns the roots of the global batch with the models that they are dealt to.
    fn roots(&self) -> Vec<(usize, NodeId)> {
        let whole = self.setting.batch * self.n();
        let order = self.order();
        let batch = order.into_iter().skip(whole * self.place.1 as usize).take(whole);
        batch.enumerate().map(|(at, root)| (at % self.n(), root)).collect()
    }

    fn nodes(&self, roots: &[NodeId], seed_worker: usize) -> Nodes {
        let (epoch, batch) = self.place;
        let seed = batch_seed(self.setting.seed, seed_worker as u32, epoch, batch);
        let mut sampler = Sampler::new(&self.cut.topology, self.setting.fanouts);
        roots.iter().flat_map(|&root| sampler.sample(&[root], seed).nodes).collect()
    }

    /// Returns the pulls of `server`, one for each set.
    fn counts(&self, pulls: impl IntoIterator<Item = (usize, Nodes)>) -> Counts {
        let mut counts = Counts::default();
        for (server, nodes) in pulls {
            let owners = nodes.iter().map(|&node| self.home(node));
            let remote: Vec<usize> = owners.filter(|&owner| owner != server).collect();
            counts.wanted += nodes.len() as u64;
            counts.remote += remote.len() as u64;
            counts.requests += remote.into_iter().collect::<BTreeSet<_>>().len() as u64;
        }
        counts
    }

    fn model_centric(&self) -> Counts {
        self.counts((0..self.n()).map(|model| {
            let own = self.roots().into_iter().filter(|(of, _)| *of == model);
            let own: Vec<NodeId> = own.map(|(_, root)| root).collect();
            (model, self.nodes(&own, 0))
        }))
    }

    /// Counts by server and time step, then by server alone.
    fn hop(&self) -> [Counts; 2] {
        let at = |server: usize, model: Option<usize>| {
            let own = self.roots().into_iter().filter(|&(of, root)| {
                self.home(root) == server && model.is_none_or(|model| model == of)
            });
            let own: Vec<NodeId> = own.map(|(_, root)| root).collect();
            (server, self.nodes(&own, 0))
        };
        let n = self.n();
        let pairs = (0..n * n).map(|pair| at(pair / n, Some(pair % n)));
        [self.counts(pairs), self.counts((0..n).map(|server| at(server, None)))]
    }

    fn owned(&self) -> Counts {
        self.counts((0..self.n()).map(|server| {
            let own = self.order().into_iter().filter(|&root| self.home(root) == server);
            let skipped = self.setting.batch * self.place.1 as usize;
            let own: Vec<NodeId> = own.skip(skipped).take(self.setting.batch).collect();
            (server, self.nodes(&own, server))
        }))
    }

    /// Counts as Figure 10: the time step of fewest roots goes, its roots evenly to those that are
    /// left.
    fn merged_min(&self, n_steps: usize) -> Counts {
        let n = self.n();
        // Roots by distance that their model moves, then by model.
        let mut steps: Vec<(usize, Vec<Vec<NodeId>>)> =
            (0..n).map(|t| (t, vec![vec![]; n])).collect();
        for (model, root) in self.roots() {
            steps[(self.home(root) + n - model) % n].1[model].push(root);
        }
        while steps.len() > n_steps {
            let sizes = steps.iter().map(|(_, roots)| roots.iter().map(Vec::len).sum::<usize>());
            let sizes: Vec<usize> = sizes.collect();
            let least = sizes.iter().position(|size| Some(size) == sizes.iter().min()).unwrap();
            let (_, gone) = steps.remove(least);
            for (model, roots) in gone.into_iter().enumerate() {
                let n_left = steps.len();
                for (at, root) in roots.into_iter().enumerate() {
                    steps[at % n_left].1[model].push(root);
                }
            }
        }
        self.counts((0..n).map(|server| {
            let here = steps.iter().flat_map(|(t, roots)| roots[(server + n - t) % n].clone());
            let here: Vec<NodeId> = here.collect();
            (server, self.nodes(&here, 0))
        }))
    }

    /// Returns the mean share of the other nodes of a root's micrograph that are at its home; roots
    /// with others.
    fn r_micro(&self) -> (f64, u64) {
        let share = |(_, root): (usize, NodeId)| {
            let mut others = self.nodes(&[root], 0);
            others.remove(&root);
            let at_home = others.iter().filter(|&&node| self.home(node) == self.home(root));
            (!others.is_empty()).then(|| at_home.count() as f64 / others.len() as f64)
        };
        let shares: Vec<f64> = self.roots().into_iter().filter_map(share).collect();
        (shares.iter().sum::<f64>() / shares.len().max(1) as f64, shares.len() as u64)
    }
}

proptest! {
    #[test]
    fn rows_are_those_of_each_roots_micrograph(
        edges in prop::collection::vec((0u32..40, 0u32..40).prop_map(|(a, b)| [a, b]), 0..160),
        n_servers in 1u16..6,
        parts in prop::collection::vec(any::<u16>(), 40),
        train in prop::sample::subsequence((0..40).collect::<Vec<u32>>(), 1..40),
        fanouts in prop::collection::vec(1u32..4, 1..4),
        batch in 1usize..8,
        seed: u64,
    ) {
        let parts: Vec<u16> = parts.into_iter().map(|part| part % n_servers).collect();
        let cut = cut(edges, &parts, n_servers, &train);
        let fanouts: Vec<Fanout> = fanouts.into_iter().filter_map(Fanout::at_most).collect();
        let setting = Setting { fanouts: &fanouts, batch, seed, iterations: 3 };
        let mut expected: Vec<WayCounts> = Vec::new();
        let of_way = |way, time_steps, counts| WayCounts { way, time_steps, counts };
        let (mut r_micro, mut n_roots, mut n_all) = (0.0, 0, 0);
        let n = u32::from(n_servers);
        for place in places(train.len(), batch, n, 3) {
            let naive = Naive { cut: &cut, setting, place };
            let [apart, together] = naive.hop();
            let mut ways = vec![
                of_way(HopWay::ModelCentric, 1, naive.model_centric()),
                of_way(HopWay::Micrographs, n, apart),
                of_way(HopWay::Pregathered, n, together),
                of_way(HopWay::Owned, 1, naive.owned()),
                of_way(HopWay::Home, 1, together),
            ];
            let merged = |&left: &u32| of_way(HopWay::MergedMin, left, naive.merged_min(left as usize));
            ways.extend(levels(n).iter().map(merged));
            match expected.is_empty() {
                true => expected = ways,
                false => {
                    let sums = expected.iter_mut().zip(ways);
                    sums.for_each(|(sum, way)| sum.counts += way.counts);
                }
            }
            let (mean, roots) = naive.r_micro();
            r_micro += mean * roots as f64;
            n_roots += roots;
            n_all += naive.roots().len() as u64;
        }
        let found = count(&cut, setting);
        for way in expected {
            prop_assert!(found.ways.contains(&way), "{way:?} of {:?}", found.ways);
        }
        let of = |way: HopWay| found.ways.iter().filter(move |other| other.way == way);
        prop_assert_eq!(of(HopWay::MergedRandom).count(), levels(n).len());
        for WayCounts { way, time_steps, counts } in of(HopWay::MergedRandom) {
            // Each root is a row of some server.
            prop_assert!(counts.wanted >= found.roots, "{way:?} {time_steps} {counts:?}");
        }
        prop_assert_eq!((found.roots, found.iterations), (n_all, 3));
        prop_assert_eq!(found.locality.roots, n_roots);
        let mean = r_micro / n_roots.max(1) as f64;
        prop_assert!((found.locality.r_micro - mean).abs() < 1e-9);
        if n_servers == 1 {
            prop_assert!(found.ways.iter().all(|way| way.counts.remote == 0));
        }
    }
}

#[test]
fn two_pairs_on_two_servers_are_at_home_but_for_models_that_stay() {
    // 0 ↔ 1 on server 0, 2 ↔ 3 on server 1, and each node is a root of the one iteration.
    let cut = cut(vec![[0, 1], [2, 3]], &[0, 0, 1, 1], 2, &[0, 1, 2, 3]);
    let mut n_remote = 0;
    for seed in 0..8 {
        let setting = Setting { fanouts: &[Fanout::All], batch: 2, seed, iterations: 1 };
        let found = count(&cut, setting);
        let of = |way: HopWay| found.ways.iter().find(|of| of.way == way).unwrap().counts;
        for way in [HopWay::Micrographs, HopWay::Pregathered, HopWay::Home, HopWay::Owned] {
            assert_eq!((of(way).remote, of(way).requests), (0, 0), "{way:?}");
        }
        // A time step of a server wants the pair once or twice; the server wants it once.
        assert_eq!((of(HopWay::Pregathered).wanted, of(HopWay::Home).wanted), (4, 4));
        assert_eq!((found.locality.r_micro, found.roots), (1.0, 4));
        n_remote += of(HopWay::ModelCentric).remote;
    }
    assert!(n_remote > 0, "roots that are dealt by turns are away from home");
}

#[test]
fn iterations_are_whole_where_an_epoch_has_one() {
    assert_eq!(places(10, 2, 2, 3), [(0, 0), (0, 1), (1, 0)]);
    assert_eq!(places(3, 2, 2, 2), [(0, 0), (1, 0)]);
    assert_eq!(levels(16), [15, 8, 4, 2, 1]);
    assert_eq!(levels(4), [3, 2, 1]);
    assert_eq!((levels(3), levels(2), levels(1)), (vec![2, 1], vec![1], vec![]));
}
