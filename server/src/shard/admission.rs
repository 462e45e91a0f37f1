//! Queue of connections that are not admitted yet, with its rule of eviction.

use std::collections::HashMap;

use crate::limits::ENTERING_PER_SHARD_MAX;
use crate::listen::Source;

/// Connections in the handshake, each with a handle that ends it.
///
/// A newcomer to a full queue evicts another at random, so a flooding source evicts mostly its own.
/// Evicting the oldest would end connections that are about to be admitted. Refusing the newest
/// would leave the places to connections that send nothing.
pub(super) struct HandshakeQueue<H> {
    waiting: Vec<HandshakeEntry<H>>,
    random: u64,
}

struct HandshakeEntry<H> {
    number: u64,
    source: Source,
    /// It is refused, and only reads the refusal.
    is_refused: bool,
    end: H,
}

impl<H> HandshakeQueue<H> {
    /// Returns an empty queue; `seed` decides the draws.
    pub(super) fn new(seed: u64) -> Self {
        // Zero would stay zero.
        Self { waiting: Vec::new(), random: seed | 1 }
    }

    /// Adds a connection. Once all places are taken, returns the evicted one. That is a connection
    /// that is being refused, or else one of the source that has the most, the new one counted.
    pub(super) fn admit(&mut self, number: u64, source: Source, end: H) -> Option<(u64, H)> {
        let is_full = self.waiting.len() >= ENTERING_PER_SHARD_MAX;
        let evicted = is_full.then(|| self.draw(source));
        let evicted = evicted.map(|at| self.waiting.swap_remove(at));
        self.waiting.push(HandshakeEntry { number, source, is_refused: false, end });
        evicted.map(|evicted| (evicted.number, evicted.end))
    }

    /// Marks a connection as one that is being refused for lack of a place.
    pub(super) fn mark_refused(&mut self, number: u64) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.number == number) {
            waiting.is_refused = true;
        }
    }

    /// Removes a connection that is admitted or gone.
    pub(super) fn remove(&mut self, number: u64) {
        self.waiting.retain(|waiting| waiting.number != number);
    }

    /// Returns the place of the connection that is evicted for one of `source`.
    fn draw(&mut self, source: Source) -> usize {
        if let Some(refused) = self.waiting.iter().position(|waiting| waiting.is_refused) {
            return refused;
        }
        let mut n_of = HashMap::from([(source, 1usize)]);
        for waiting in &self.waiting {
            *n_of.entry(waiting.source).or_default() += 1;
        }
        let most = n_of.values().copied().max().unwrap_or(0);
        // Several sources have most where none floods the queue.
        let candidates = self.waiting.iter().enumerate();
        let candidates = candidates.filter(|(_, waiting)| n_of[&waiting.source] == most);
        let candidates: Vec<usize> = candidates.map(|(at, _)| at).collect();
        candidates[(self.next_random() % candidates.len() as u64) as usize]
    }

    /// Draws by xorshift64; predicting it does not help an attacker.
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
    fn there_are_never_more_than_the_bounds_whatever_comes() {
        let (mut queue, mut numbers) = (HandshakeQueue::new(1), 0..);
        let mut come = |queue: &mut HandshakeQueue<()>, source| {
            queue.admit(numbers.next().unwrap(), source, ());
            assert!(queue.waiting.len() <= ENTERING_PER_SHARD_MAX);
        };
        for _ in 0..10 * ENTERING_PER_SHARD_MAX {
            come(&mut queue, from(1));
        }
        assert_eq!(
            queue.waiting.len(),
            ENTERING_PER_SHARD_MAX,
            "one may have all while no other source comes"
        );
        for n in 0..10 * ENTERING_PER_SHARD_MAX as u32 {
            come(&mut queue, from(n));
        }
        assert_eq!(queue.waiting.len(), ENTERING_PER_SHARD_MAX);
        assert!(queue.waiting.iter().filter(|waiting| waiting.source == from(1)).count() <= 1);
    }

    #[test]
    fn a_source_of_many_evicts_none_that_has_fewer_than_each() {
        let mut queue = HandshakeQueue::new(5);
        assert!(queue.admit(0, from(0), "honest").is_none());
        assert!(queue.admit(1, from(0), "honest").is_none());
        for number in 2..20_000 {
            let evicted = queue.admit(number, from(1 + number as u32 % 50), "flood");
            assert_ne!(evicted.map(|(_, who)| who), Some("honest"));
        }
    }

    #[test]
    fn one_source_that_floods_the_door_ends_its_own_alone() {
        let mut queue = HandshakeQueue::new(7);
        assert!(queue.admit(0, from(1), "honest").is_none());
        for number in 1..100_000 {
            let evicted = queue.admit(number, from(2), "flood");
            assert_ne!(evicted.map(|(_, who)| who), Some("honest"));
        }
        assert_eq!(queue.waiting[0].number, 0);
    }

    /// The share of connections that remain after as many others have come as fill the queue. Each
    /// newcomer evicts one with chance one in that number, which leaves 1/e.
    #[test]
    fn who_goes_is_drawn_evenly() {
        let (mut queue, n_all) = (HandshakeQueue::new(3), 200_000u64);
        let (mut ages, mut n_evicted) = (0, 0);
        for number in 0..n_all {
            // With this many sources none has more than another.
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
    fn a_refused_connection_goes_first() {
        let mut queue = HandshakeQueue::new(9);
        for number in 0..ENTERING_PER_SHARD_MAX as u64 {
            queue.admit(number, from(number as u32), ());
        }
        queue.mark_refused(5);
        queue.mark_refused(1_000_000);
        assert_eq!(queue.admit(1000, from(1000), ()).map(|(number, ())| number), Some(5));
        queue.remove(6);
        assert!(queue.admit(1001, from(1001), ()).is_none(), "there is room");
    }
}
