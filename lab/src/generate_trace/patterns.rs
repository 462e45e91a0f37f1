//! Traces whose best policy is known beforehand.

use lodestore_graph::splitmix64;

use super::{Batches, check_length};
use lode_cli::usage::UsageError;

/// Returns every row once, in order.
pub(super) fn scan(n_ids: u32, batch: u32) -> Result<Batches, UsageError> {
    check_length(n_ids.into())?;
    let n_batches = n_ids.div_ceil(batch);
    let mut batches = Batches::new();
    for number in 0..n_batches {
        let first = number * batch;
        batches.ids.extend(first..n_ids.min(first.saturating_add(batch)));
        batches.end_batch()?;
    }
    Ok(batches)
}

/// Returns every row in order, again and again; a batch larger than the loop has each once.
pub(super) fn looping(n_ids: u32, n_batches: u32, batch: u32) -> Result<Batches, UsageError> {
    let mut batches = Batches::new();
    let mut ids = (0..n_ids).cycle();
    for _ in 0..n_batches {
        batches.ids.extend(ids.by_ref().take(batch.min(n_ids) as usize));
        batches.end_batch()?;
    }
    Ok(batches)
}

/// Returns rows drawn with probability proportional to rank^-alpha; which row has which rank is
/// shuffled. A row that is drawn twice for a batch is there once.
pub(super) fn zipf(
    n_ids: u32,
    alpha: f64,
    n_batches: u32,
    batch: u32,
    seed: u64,
) -> Result<Batches, UsageError> {
    check_length(n_ids.into())?;
    let mut words = (0..).map(|i: u64| splitmix64(splitmix64(seed).wrapping_add(i)));
    let mut next = || words.next().unwrap_or_default();
    let mut id_of_rank: Vec<u32> = (0..n_ids).collect();
    for rank in (1..id_of_rank.len()).rev() {
        id_of_rank.swap(rank, (next() % (rank as u64 + 1)) as usize);
    }
    let mut sum = 0.0;
    let weights = (1..=n_ids).map(|rank| f64::from(rank).powf(-alpha));
    let cumulative: Vec<f64> = weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    let mut last_batch = vec![u32::MAX; n_ids as usize];
    let mut batches = Batches::new();
    for number in 0..n_batches {
        for _ in 0..batch {
            // The 53 bits of a fraction below 1.
            let drawn = (next() >> 11) as f64 / (1u64 << 53) as f64 * sum;
            let rank = cumulative.partition_point(|&up_to| up_to <= drawn);
            let id = id_of_rank[rank.min(id_of_rank.len() - 1)];
            if std::mem::replace(&mut last_batch[id as usize], number) != number {
                batches.ids.push(id);
            }
        }
        batches.end_batch()?;
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_and_loops_are_what_they_say() {
        let scan = scan(5, 2).unwrap();
        assert_eq!((scan.ids, scan.offsets), (vec![0, 1, 2, 3, 4], vec![0, 2, 4, 5]));
        let looped = looping(3, 2, 2).unwrap();
        assert_eq!((looped.ids, looped.offsets), (vec![0, 1, 2, 0], vec![0, 2, 4]));
        assert_eq!(looping(2, 2, 9).unwrap().ids, [0, 1, 0, 1]);
        assert!(super::scan(u32::MAX, 1 << 30).is_err());
    }

    #[test]
    fn zipf_draws_by_rank_and_the_same_each_time() {
        let made = zipf(1000, 1.0, 2000, 8, 7).unwrap();
        assert_eq!(made, zipf(1000, 1.0, 2000, 8, 7).unwrap());
        assert_ne!(made, zipf(1000, 1.0, 2000, 8, 8).unwrap());
        let mut counts = vec![0u32; 1000];
        made.ids.iter().for_each(|&id| counts[id as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // 16 000 draws, one in 7.5 of the first rank, less what repeats in a batch of eight.
        assert!((1100..1500).contains(&counts[0]), "{}", counts[0]);
        assert!((140..320).contains(&counts[9]), "{}", counts[9]);
        for ends in made.offsets.windows(2) {
            let mut batch = made.ids[ends[0] as usize..ends[1] as usize].to_vec();
            batch.sort_unstable();
            assert!(batch.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
