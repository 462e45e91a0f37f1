//! Queue of connections that are not admitted yet, and its eviction rule.

use std::collections::HashMap;

use crate::limits::ENTERING_PER_SHARD_MAX;
use crate::listen::Source;

/// Connections in the handshake, each with a handle that aborts it.
///
/// A new connection at a full queue evicts a random one, so a flooding source mostly evicts its
/// own. Evicting the oldest would end connections that are about to be admitted. Refusing the
/// newest would leave the slots to connections that send nothing.
pub(super) struct HandshakeQueue<H> {
    waiting: Vec<HandshakeEntry<H>>,
    random: u64,
}

struct HandshakeEntry<H> {
    number: u64,
    source: Source,
    /// The connection is being refused and only waits for its client to read the refusal.
    is_refused: bool,
    end: H,
}

impl<H> HandshakeQueue<H> {
    /// Returns an empty queue; `seed` seeds the random draws.
    pub(super) fn new(seed: u64) -> Self {
        // Xorshift never leaves 0.
        Self { waiting: Vec::new(), random: seed | 1 }
    }

    /// Adds a connection. A full queue evicts one, which is returned: a connection that is being
    /// refused, else one of the source with the most connections, the new one included.
    pub(super) fn admit(&mut self, number: u64, source: Source, end: H) -> Option<(u64, H)> {
        let is_full = self.waiting.len() >= ENTERING_PER_SHARD_MAX;
        let evicted = is_full.then(|| self.draw(source));
        let evicted = evicted.map(|at| self.waiting.swap_remove(at));
        self.waiting.push(HandshakeEntry { number, source, is_refused: false, end });
        evicted.map(|evicted| (evicted.number, evicted.end))
    }

    /// Marks a connection as being refused.
    pub(super) fn mark_refused(&mut self, number: u64) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.number == number) {
            waiting.is_refused = true;
        }
    }

    /// Removes a connection that was admitted or has ended.
    pub(super) fn remove(&mut self, number: u64) {
        self.waiting.retain(|waiting| waiting.number != number);
    }

    /// Returns the index of the connection to evict for one of `source`.
    fn draw(&mut self, source: Source) -> usize {
        if let Some(refused) = self.waiting.iter().position(|waiting| waiting.is_refused) {
            return refused;
        }
        let mut n_of = HashMap::from([(source, 1usize)]);
        for waiting in &self.waiting {
            *n_of.entry(waiting.source).or_default() += 1;
        }
        let most = n_of.values().copied().max().unwrap_or(0);
        // Without a flood, several sources tie.
        let candidates = self.waiting.iter().enumerate();
        let candidates = candidates.filter(|(_, waiting)| n_of[&waiting.source] == most);
        let candidates: Vec<usize> = candidates.map(|(at, _)| at).collect();
        candidates[(self.next_random() % candidates.len() as u64) as usize]
    }

    /// Xorshift64; an attacker gains nothing by predicting it.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn from(n: u32) -> Source {
        Source::V4(Ipv4Addr::from(n))
    }

    #[test]
    fn the_queue_never_exceeds_its_limit() {
        let (mut queue, mut numbers) = (HandshakeQueue::new(1), 0..);
        let mut arrive = |queue: &mut HandshakeQueue<()>, source| {
            queue.admit(numbers.next().unwrap(), source, ());
            assert!(queue.waiting.len() <= ENTERING_PER_SHARD_MAX);
        };
        for _ in 0..10 * ENTERING_PER_SHARD_MAX {
            arrive(&mut queue, from(1));
        }
        assert_eq!(
            queue.waiting.len(),
            ENTERING_PER_SHARD_MAX,
            "a single source may fill the queue"
        );
        for n in 0..10 * ENTERING_PER_SHARD_MAX as u32 {
            arrive(&mut queue, from(n));
        }
        assert_eq!(queue.waiting.len(), ENTERING_PER_SHARD_MAX);
        assert!(queue.waiting.iter().filter(|waiting| waiting.source == from(1)).count() <= 1);
    }

    #[test]
    fn a_flood_from_many_sources_spares_smaller_sources() {
        let mut queue = HandshakeQueue::new(5);
        assert!(queue.admit(0, from(0), "honest").is_none());
        assert!(queue.admit(1, from(0), "honest").is_none());
        for number in 2..20_000 {
            let evicted = queue.admit(number, from(1 + number as u32 % 50), "flood");
            assert_ne!(evicted.map(|(_, who)| who), Some("honest"));
        }
    }

    #[test]
    fn a_flood_from_one_source_evicts_only_its_own() {
        let mut queue = HandshakeQueue::new(7);
        assert!(queue.admit(0, from(1), "honest").is_none());
        for number in 1..100_000 {
            let evicted = queue.admit(number, from(2), "flood");
            assert_ne!(evicted.map(|(_, who)| who), Some("honest"));
        }
        assert_eq!(queue.waiting[0].number, 0);
    }

    /// Survivors of as many arrivals as the queue has slots: each arrival evicts a given connection
    /// with probability one over the queue's length, which leaves 1/e of them.
    #[test]
    fn evictions_are_uniform() {
        let (mut queue, n_all) = (HandshakeQueue::new(3), 200_000u64);
        let (mut ages, mut n_evicted) = (0, 0);
        for number in 0..n_all {
            // With this many sources, all tie.
            if let Some((evicted, ())) = queue.admit(number, from(number as u32), ()) {
                ages += number - evicted;
                n_evicted += 1;
            }
        }
        let mean = ages as f64 / f64::from(n_evicted);
        let expected = ENTERING_PER_SHARD_MAX as f64;
        assert!((0.9..1.1).contains(&(mean / expected)), "{mean} of {expected}");
    }

    #[test]
    fn a_refused_connection_is_evicted_first() {
        let mut queue = HandshakeQueue::new(9);
        for number in 0..ENTERING_PER_SHARD_MAX as u64 {
            queue.admit(number, from(number as u32), ());
        }
        queue.mark_refused(5);
        queue.mark_refused(1_000_000);
        assert_eq!(queue.admit(1000, from(1000), ()).map(|(number, ())| number), Some(5));
        queue.remove(6);
        assert!(queue.admit(1001, from(1001), ()).is_none(), "a slot is free");
    }
}
