//! The body: every collective in turn, each checked against the obvious in every rank.

use lodestore_comm::collective::{Collective, Term};
use lodestore_comm::error::CollectiveError;
use lodestore_comm::tag::Payload;

/// Calls every collective with messages of many lengths, and panics where one returns a wrong
/// result.
pub(crate) fn all(c: &mut dyn Collective) -> Result<(), CollectiveError> {
    gathered(c)?;
    sent_to_each(c)?;
    broadcast(c)?;
    reduced(c)?;
    in_order(c)?;
    between_two(c)?;
    counted(c)
}

/// Returns bytes that depend on all arguments.
fn bytes(from: u32, to: u32, n: u32, len: usize) -> Vec<u8> {
    let key = from.wrapping_mul(31).wrapping_add(to).wrapping_mul(31).wrapping_add(n);
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) ^ key.wrapping_mul(40_503)) as u8)
        .collect()
}

/// Returns the length of a message: none, short, around the size of a socket's memory, or longer.
fn length(n: u32) -> usize {
    [0, 1, 12, 4096, 212_992, 212_993, 3_000_001][n as usize % 7]
}

fn gathered(c: &mut dyn Collective) -> Result<(), CollectiveError> {
    let mut all = vec![vec![7; 99]; 2];
    for n in 0..14 {
        let of = |rank: u32| bytes(rank, 0, n, length(n + 5 * rank));
        c.all_gather(Payload::Control, &of(c.rank()), &mut all)?;
        assert_eq!(all.len(), c.n_ranks() as usize);
        for (found, rank) in all.iter().zip(0..) {
            assert!(*found == of(rank), "message {n} of rank {rank}");
        }
    }
    Ok(())
}

/// Sends rows from each rank to each other in ten exchanges, and checks what arrives. Some ranks
/// send nothing at all, and some receive nothing.
fn sent_to_each(c: &mut dyn Collective) -> Result<(), CollectiveError> {
    let mut incoming = Vec::new();
    for n in 0..10 {
        let of = |from: u32, to: u32| {
            let is_empty = from == n || to + 5 == n;
            let n_rows = if is_empty { 0 } else { length(n + 3 * from + to) / 12 };
            bytes(from, to, n, 12 * n_rows)
        };
        let (me, n_ranks) = (c.rank(), c.n_ranks());
        let outgoing: Vec<Vec<u8>> = (0..n_ranks).map(|to| of(me, to)).collect();
        let outgoing: Vec<&[u8]> = outgoing.iter().map(|bytes| &bytes[..]).collect();
        c.all_to_all(Payload::Rows, 12, &outgoing, &mut incoming)?;
        for (found, from) in incoming.iter().zip(0..) {
            assert!(*found == of(from, me), "exchange {n}, from {from}");
        }
        c.barrier()?;
    }
    Ok(())
}

fn broadcast(c: &mut dyn Collective) -> Result<(), CollectiveError> {
    for n in 0..7 {
        let root = n % c.n_ranks();
        let mut found = if c.rank() == root { bytes(root, 0, n, length(n)) } else { vec![1; 3] };
        c.broadcast(Payload::Parameters, root, &mut found)?;
        assert!(found == bytes(root, 0, n, length(n)), "{n}");
    }
    Ok(())
}

fn reduced(c: &mut dyn Collective) -> Result<(), CollectiveError> {
    let n = u64::from(c.n_ranks());
    let mine = u64::from(c.rank()) + 1;
    let mut sums = [mine, u64::MAX / 2, 0];
    c.all_reduce(&mut sums)?;
    assert_eq!(sums, [n * (n + 1) / 2, (u64::MAX / 2).wrapping_mul(n), 0]);
    c.all_reduce(&mut [])
}

/// Returns a term; the sum depends on the order in which terms are added.
fn term(order: u32, len: usize) -> Term {
    let scale = [1.0, 1e8, -1e8, 3e-5, 0.1][order as usize % 5];
    Term { order, values: (0..len).map(|i| scale * (i as f32 * 0.37 + 1.0)).collect() }
}

/// Checks that the sum has the same bits however terms are spread over ranks: by turns, all in one,
/// none in some.
fn in_order(c: &mut dyn Collective) -> Result<(), CollectiveError> {
    let (rank, n_ranks) = (c.rank(), c.n_ranks());
    for len in [0, 1, 2, 7, 100_003] {
        for n_terms in [0, 1, 4, 9] {
            let mut expected = vec![0.0; len];
            for order in 0..n_terms {
                let values = term(order, len).values;
                match order {
                    0 => expected = values,
                    _ => expected.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
                }
            }
            let by_turns = |order: u32| order % n_ranks == rank;
            let in_last = |_: u32| rank + 1 == n_ranks;
            let backwards = |order: u32| (n_terms - order) * 7 % n_ranks == rank;
            let spreads: [&dyn Fn(u32) -> bool; 3] = [&by_turns, &in_last, &backwards];
            for is_mine in spreads {
                let mine = (0..n_terms).rev().filter(|&order| is_mine(order));
                let terms = mine.map(|order| term(order, len)).collect();
                let found = c.reduce_ordered(Payload::Gradients, terms, len)?;
                let bits = |of: &[f32]| of.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert!(bits(&found) == bits(&expected), "{n_terms} terms of {len}");
            }
        }
    }
    Ok(())
}

/// Checks that a message goes once around all ranks, and each adds itself.
fn between_two(c: &mut dyn Collective) -> Result<(), CollectiveError> {
    let (rank, n_ranks) = (c.rank(), c.n_ranks());
    if n_ranks == 1 {
        return Ok(());
    }
    let (mut path, next) = (bytes(0, 0, 0, 1_000_000), (rank + 1) % n_ranks);
    if rank > 0 {
        c.receive(rank - 1, Payload::Embeddings, &mut path)?;
    }
    path.push(rank as u8);
    c.send(next, Payload::Embeddings, &path)?;
    if rank == 0 {
        c.receive(n_ranks - 1, Payload::Embeddings, &mut path)?;
        let expected: Vec<u8> = (0..n_ranks as u8).collect();
        assert_eq!(path[1_000_000..], expected);
    }
    Ok(())
}

/// Checks that bytes are counted where they are sent, by what they carry, and not those to the rank
/// itself.
fn counted(c: &mut dyn Collective) -> Result<(), CollectiveError> {
    let (before, others) = (*c.traffic(), u64::from(c.n_ranks()) - 1);
    c.all_gather(Payload::Control, &[0; 10], &mut Vec::new())?;
    let to_each = vec![&[0; 24][..]; c.n_ranks() as usize];
    c.all_to_all(Payload::Rows, 8, &to_each, &mut Vec::new())?;
    c.broadcast(Payload::Parameters, 0, &mut vec![0; 100])?;
    let len = 8 * c.n_ranks() as usize;
    c.reduce_ordered(Payload::Gradients, vec![term(c.rank(), len)], len)?;
    c.barrier()?;
    let after = *c.traffic();
    // A share of the term behind its place to each other rank, then a share of the sum.
    assert_eq!(after.gradients - before.gradients, others * (4 + 32 + 32));
    assert_eq!(after.control - before.control, 10 * others);
    assert_eq!(after.rows - before.rows, 24 * others);
    let from_root = if c.rank() == 0 { 100 * others } else { 0 };
    assert_eq!(after.parameters - before.parameters, from_root);
    assert_eq!(after.embeddings, before.embeddings);
    Ok(())
}
