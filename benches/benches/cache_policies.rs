//! Bookkeeping of the policies: nanoseconds per access, lookups per second, bytes per slot.
//!
//! A directory of 1 Mi slots on one thread: a batch of 15 000 ids is looked up and its misses are
//! admitted. Times are medians over the batches of the second half of a trace, on a directory
//! filled by the first half. Beside them are means, which have the rounds of `decay`, one batch in
//! 64, and the closing up of rings. A digest of all placements shows whether a change alters
//! decisions. Traces are ids drawn by a power law, where the index is sparse and where it is dense,
//! and the nodes of sampled neighbourhoods. It does not move rows. Takes names of policies as
//! arguments, such as `-- lru`.

use std::time::Instant;

use lodestore_benches::{Trace, check_parts, is_asked_for, is_smoke, random_ids};
use lodestore_cache::policy::{
    Candidate, DecaySpec, Replacement, Scoreboard, next_uses, rank_by_degree, rank_by_frequency,
};
use lodestore_cache::slots::NO_SLOT;
use lodestore_cache::{Directory, PolicyKind, PolicySpec};

/// Size of a run.
#[derive(Clone, Copy)]
struct Scale {
    n_slots: u32,
    batch_ids: usize,
    n_batches: usize,
    n_nodes: u32,
}

/// The replayed traces.
struct Accesses {
    name: &'static str,
    ids: Vec<u32>,
    bounds: Vec<usize>,
    next_uses: Vec<u32>,
    id_space: u32,
}

fn main() {
    check_parts(&PolicyKind::ALL.map(PolicyKind::name));
    let scale = if is_smoke() {
        Scale { n_slots: 1000, batch_ids: 300, n_batches: 40, n_nodes: 8000 }
    } else {
        Scale { n_slots: 1 << 20, batch_ids: 15_000, n_batches: 800, n_nodes: 8 << 20 }
    };
    for trace in [power_law(scale, true), power_law(scale, false), neighbours(scale)] {
        println!("{}: {} ids below {}", trace.name, trace.ids.len(), trace.id_space);
        for spec in trace.specs() {
            if is_asked_for(spec.kind().name()) {
                replay(scale.n_slots, &spec, &trace);
            }
        }
    }
}

/// Draws ranks with probabilities that fall as rank^-0.8, scattered over the id space.
fn power_law(scale: Scale, is_sparse: bool) -> Accesses {
    let n_ids = scale.n_nodes;
    let rank =
        |random: u32| (f64::from(n_ids) * (f64::from(random) / 2f64.powi(32)).powi(5)) as u32;
    let draws = random_ids(u32::MAX, scale.batch_ids * scale.n_batches, 1);
    let (name, spread) = if is_sparse { ("power law, sparse", 8) } else { ("power law, dense", 1) };
    let id = |random| (u64::from(rank(random)) * 7919 % u64::from(n_ids)) as u32 * spread;
    let n = scale.batch_ids;
    let bounds = (0..=scale.n_batches).map(|batch| batch * n).collect();
    let mut trace =
        Accesses::new(name, draws.into_iter().map(id).collect(), bounds, n_ids * spread);
    if !is_sparse {
        // As small as makes the index dense.
        let id_space = scale.n_slots * 4;
        trace.ids.iter_mut().for_each(|id| *id %= id_space);
        trace = Accesses::new(name, trace.ids, trace.bounds, id_space);
    }
    trace
}

fn neighbours(scale: Scale) -> Accesses {
    let n_nodes = scale.n_nodes / 4;
    let n_roots = (scale.batch_ids as u32 / 150).max(4);
    let trace = Trace::sampled(n_nodes, (scale.n_batches / 4) as u32, n_roots);
    let (mut ids, mut bounds) = (Vec::new(), vec![0]);
    for batch in 0..trace.n_batches() {
        ids.extend(trace.rows(batch..batch + 1).iter().map(|row| row.0));
        bounds.push(ids.len());
    }
    Accesses::new("neighbours", ids, bounds, n_nodes)
}

impl Accesses {
    fn new(name: &'static str, ids: Vec<u32>, bounds: Vec<usize>, id_space: u32) -> Self {
        let next_uses = next_uses(&ids, &bounds).expect("memory");
        Self { name, ids, bounds, next_uses, id_space }
    }

    /// Returns all policies; those that plan receive their inputs from the trace itself.
    fn specs(&self) -> Vec<PolicySpec> {
        let ranked = rank_by_frequency(&self.ids);
        let degrees: Vec<u32> = (0..ranked.len() as u32).rev().collect();
        let candidate = |(&id, &degree): (&u32, &u32)| Candidate { id, degree, is_halo: true };
        let mut ratios = vec![0; self.id_space as usize];
        for (rank, &id) in (1u32..).zip(&ranked) {
            ratios[id as usize] = 8 - (rank.ilog2() / 4) as u16;
        }
        let decay = DecaySpec {
            candidates: ranked.iter().zip(&degrees).map(candidate).collect(),
            gamma: 0.995,
            interval: 64,
            replacement: Replacement::Any,
            scoreboard: Scoreboard::Compact,
        };
        let named = PolicyKind::ALL.into_iter().filter_map(|kind| PolicySpec::try_from(kind).ok());
        let dense = DecaySpec { scoreboard: Scoreboard::Dense, ..decay.clone() };
        let planned = [
            PolicySpec::Decay(decay),
            PolicySpec::Decay(dense),
            PolicySpec::Degree(rank_by_degree(&ranked, &degrees).into()),
            PolicySpec::Frequency(ranked.into()),
            PolicySpec::Overlap(ratios.into()),
            PolicySpec::Oracle { n_batches: self.bounds.len() as u32 - 1 },
        ];
        named.chain(planned).collect()
    }
}

fn replay(n_slots: u32, spec: &PolicySpec, trace: &Accesses) {
    let mut directory = Directory::new(n_slots, trace.id_space, spec).expect("memory");
    let (mut wanted, mut placements) = (Vec::new(), Vec::new());
    directory.wanted(&mut wanted);
    let positions: Vec<u32> = (0..wanted.len() as u32).collect();
    directory.admit(&wanted, &positions, &mut placements);
    let (mut slots, mut misses) = (Vec::new(), Vec::new());
    let half = trace.bounds.len() / 2;
    let (mut looking, mut admitting) = (Vec::new(), Vec::new());
    let (mut n_timed, mut n_hits) = (0, 0);
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for (batch, bounds) in trace.bounds.windows(2).enumerate() {
        let ids = &trace.ids[bounds[0]..bounds[1]];
        let start = Instant::now();
        directory.announce(&trace.next_uses[bounds[0]..bounds[1]]);
        directory.lookup(ids, &mut slots);
        let looked_up = start.elapsed();
        misses.clear();
        misses.extend((0..).zip(&slots).filter(|(_, slot)| **slot == NO_SLOT).map(|(at, _)| at));
        let start = Instant::now();
        directory.admit(ids, &misses, &mut placements);
        if batch >= half {
            looking.push(looked_up.as_nanos() as f64 / ids.len() as f64);
            admitting.push(start.elapsed().as_nanos() as f64 / ids.len() as f64);
            n_timed += ids.len();
            n_hits += ids.len() - misses.len();
        }
        for placed in &placements {
            digest = fnv(fnv(digest, placed.position), placed.slot);
        }
        let placed =
            placements.iter().all(|p| directory.slot_of(ids[p.position as usize]) != NO_SLOT);
        assert!(placed, "{} loses rows", spec.kind());
    }
    let mean = looking.iter().chain(&admitting).sum::<f64>() / looking.len() as f64;
    let (looking, admitting) = (median(looking), median(admitting));
    println!(
        "  {:10} {:6.1} ns per access ({:5.1} to look up, {:5.1} to admit), mean {mean:6.1}, \
         {:6.1} M lookups/s, hit rate {:.3}, {:5.1} B per slot, placements {digest:016x}",
        spec.kind().name(),
        looking + admitting,
        looking,
        admitting,
        1e3 / looking,
        n_hits as f64 / n_timed as f64,
        directory.bytes() as f64 / f64::from(n_slots),
    );
}

/// Returns the fNV-1a, by words.
fn fnv(digest: u64, word: u32) -> u64 {
    (digest ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}
