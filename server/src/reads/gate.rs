//! A budget of one shard that its pulls share, granted in order.

use std::collections::BTreeMap;
use std::time::Instant;

use lodestore_schema::request::PullKind;

use crate::limits::SYNC_RESERVE_ONE_IN;

/// Rank of a pull: by class, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) class: PullKind,
    pub(crate) arrived: Instant,
    /// Orders pulls that arrived at the same instant.
    pub(crate) number: u64,
}

/// A part of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) n: u64,
    pub(crate) bytes: u64,
}

/// A budget, the amount in use, and the tickets that wait, each with a handle.
///
/// No ticket is granted before one of a higher rank, so a large amount does not starve. One part in
/// `SYNC_RESERVE_ONE_IN` is reserved for latency-bound pulls. An amount above the budget is granted
/// alone.
pub(crate) struct Gate<H> {
    budget: Amount,
    pub(crate) taken: Amount,
    waiting: BTreeMap<Ticket, (Amount, H)>,
}

impl Amount {
    fn is_within(self, limit: Self) -> bool {
        self.n <= limit.n && self.bytes <= limit.bytes
    }

    fn plus(self, other: Self) -> Self {
        Self { n: self.n + other.n, bytes: self.bytes + other.bytes }
    }
}

impl<H> Gate<H> {
    pub(crate) fn new(budget: Amount) -> Self {
        Self { budget, taken: Amount::default(), waiting: BTreeMap::new() }
    }

    /// Returns the number of waiting tickets.
    pub(crate) fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes `amount` if it fits and no ticket of a higher rank waits.
    pub(crate) fn try_take(&mut self, ticket: Ticket, amount: Amount) -> bool {
        let is_next = self.waiting.first_key_value().is_none_or(|(first, _)| ticket < *first);
        if !is_next || !self.fits(ticket.class, amount) {
            return false;
        }
        self.taken = self.taken.plus(amount);
        true
    }

    /// Enqueues a ticket for `amount`; a ticket waits for one amount at a time.
    pub(crate) fn wait(&mut self, ticket: Ticket, amount: Amount, handle: H) {
        let before = self.waiting.insert(ticket, (amount, handle));
        assert!(before.is_none(), "a pull waits twice for one budget");
    }

    /// Removes a waiting ticket.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
    }

    /// Returns an amount to the budget.
    pub(crate) fn give_back(&mut self, amount: Amount) {
        assert!(amount.is_within(self.taken), "more is returned than was taken");
        self.taken.n -= amount.n;
        self.taken.bytes -= amount.bytes;
    }

    /// Grants the first waiting ticket its amount if it fits; returns the ticket's handle.
    pub(crate) fn grant_next(&mut self) -> Option<H> {
        let first = self.waiting.first_entry()?;
        let (class, amount) = (first.key().class, first.get().0);
        if !self.fits(class, amount) {
            return None;
        }
        self.taken = self.taken.plus(amount);
        self.waiting.pop_first().map(|(_, (_, handle))| handle)
    }

    fn fits(&self, class: PullKind, amount: Amount) -> bool {
        let kept = |n: u64| if class == PullKind::Vector { n - n / SYNC_RESERVE_ONE_IN } else { n };
        let limit = Amount { n: kept(self.budget.n), bytes: kept(self.budget.bytes) };
        self.taken == Amount::default() || self.taken.plus(amount).is_within(limit)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const BUDGET: Amount = Amount { n: 16, bytes: 800 };

    /// Naive twin: a list that is searched, with the rule in plain words.
    #[derive(Default)]
    struct Naive {
        granted: Vec<(Ticket, Amount)>,
        waiting: Vec<(Ticket, Amount)>,
    }

    impl Naive {
        fn grant(&mut self) -> Vec<Ticket> {
            let mut done = Vec::new();
            loop {
                let latency = self.waiting.iter().filter(|(t, _)| t.class == PullKind::Sync);
                let bulk = self.waiting.iter().filter(|(t, _)| t.class == PullKind::Vector);
                let oldest = |(t, _): &&(Ticket, Amount)| (t.arrived, t.number);
                let Some(&first) = latency.min_by_key(oldest).or(bulk.min_by_key(oldest)) else {
                    return done;
                };
                let n: u64 = self.granted.iter().map(|(_, a)| a.n).sum::<u64>() + first.1.n;
                let bytes: u64 = self.granted.iter().map(|(_, a)| a.bytes).sum();
                let bytes = bytes + first.1.bytes;
                let (n_max, bytes_max) =
                    if first.0.class == PullKind::Vector { (14, 700) } else { (16, 800) };
                if !self.granted.is_empty() && (n > n_max || bytes > bytes_max) {
                    return done;
                }
                self.waiting.retain(|waiting| waiting != &first);
                self.granted.push(first);
                done.push(first.0);
            }
        }
    }

    fn tickets() -> impl Strategy<Value = Vec<Ticket>> {
        let start = Instant::now();
        let one = (any::<bool>(), 0u64..20);
        prop::collection::vec(one, 1..40).prop_map(move |all| {
            let ticket = |(number, (is_bulk, at)): (usize, (bool, u64))| Ticket {
                class: if is_bulk { PullKind::Vector } else { PullKind::Sync },
                arrived: start + Duration::from_millis(at),
                number: number as u64,
            };
            all.into_iter().enumerate().map(ticket).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn the_gate_grants_like_its_naive_twin(
            tickets in tickets(),
            steps in prop::collection::vec((0u8..5, any::<prop::sample::Index>(), 1u64..6, 0u64..900), 0..200),
        ) {
            let (mut gate, mut naive) = (Gate::new(BUDGET), Naive::default());
            let mut idle = tickets;
            for (step, pick, n, bytes) in steps {
                let amount = Amount { n, bytes: if bytes > 850 { bytes } else { bytes / 8 } };
                match step {
                    0..=2 if !idle.is_empty() => {
                        let ticket = idle.swap_remove(pick.index(idle.len()));
                        naive.waiting.push((ticket, amount));
                        if gate.try_take(ticket, amount) {
                            prop_assert_eq!(naive.grant(), vec![ticket]);
                        } else {
                            gate.wait(ticket, amount, ticket);
                        }
                    }
                    3 if !naive.granted.is_empty() => {
                        let at = pick.index(naive.granted.len());
                        let (ticket, amount) = naive.granted.swap_remove(at);
                        gate.give_back(amount);
                        idle.push(ticket);
                    }
                    4 if !naive.waiting.is_empty() => {
                        let at = pick.index(naive.waiting.len());
                        let (ticket, _) = naive.waiting.swap_remove(at);
                        gate.withdraw(ticket);
                        idle.push(ticket);
                    }
                    _ => {}
                }
                let granted: Vec<Ticket> = std::iter::from_fn(|| gate.grant_next()).collect();
                prop_assert_eq!(granted, naive.grant());
                prop_assert_eq!(gate.n_waiting(), naive.waiting.len());
                let taken = naive.granted.iter().fold(Amount::default(), |a, (_, b)| a.plus(*b));
                prop_assert_eq!(gate.taken, taken);
                prop_assert!(naive.granted.len() == 1 || taken.is_within(BUDGET));
            }
        }
    }

    #[test]
    fn an_amount_above_the_budget_is_granted_alone_and_in_order() {
        let ticket = |number| Ticket { class: PullKind::Vector, arrived: Instant::now(), number };
        let (large, small) = (Amount { n: 1, bytes: 5000 }, Amount { n: 1, bytes: 10 });
        let (first, second, third) = (ticket(0), ticket(1), ticket(2));
        let mut gate = Gate::new(BUDGET);
        assert!(gate.try_take(first, small));
        assert!(!gate.try_take(second, large));
        gate.wait(second, large, 2);
        assert!(!gate.try_take(third, small), "it would pass an earlier ticket");
        gate.wait(third, small, 3);
        assert_eq!(gate.grant_next(), None);
        gate.give_back(small);
        assert_eq!(gate.grant_next(), Some(2));
        assert_eq!(gate.grant_next(), None, "the large amount is granted alone");
        gate.give_back(large);
        assert_eq!(gate.grant_next(), Some(3));
    }
}
