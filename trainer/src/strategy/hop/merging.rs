//! How many time steps are merged: as many as make epochs faster (HopGNN, section 5.3).

use crate::report::EpochReport;

/// Returns how many time steps each iteration of the next epoch loses, from the epochs before it.
/// The first epoch loses none, and each later epoch one more. This ends when an epoch was not
/// faster than the one with one less.
///
/// An epoch in which the run was resumed, or with which it continued, has no time to compare. At
/// most a part of it was timed, with caches and connections that were new. The next epoch repeats
/// it.
pub(crate) fn n_merges(epochs: &[EpochReport], n_workers: u32) -> u32 {
    let mut best: Option<(u32, f64)> = None;
    for epoch in epochs.iter().filter(|epoch| !epoch.resumed) {
        let Some(n_time_steps) = epoch.time_steps.filter(|_| epoch.steps > 0) else { continue };
        let per_iteration = u32::try_from(n_time_steps / u64::from(epoch.steps));
        let merged = n_workers.saturating_sub(per_iteration.unwrap_or(u32::MAX));
        match best {
            Some((fewest, seconds)) if merged > fewest && epoch.seconds >= seconds => {
                return fewest;
            }
            Some((fewest, _)) if merged <= fewest => {}
            _ => best = Some((merged, epoch.seconds)),
        }
    }
    best.map_or(0, |(merged, _)| (merged + 1).min(n_workers.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many were merged in each epoch, by the time that each number takes. A run that
    /// was resumed has a slow epoch, of which that many steps were timed.
    fn merged(seconds: &[f64], n_epochs: usize, resumed: Option<(usize, u32)>) -> Vec<u32> {
        let (mut epochs, mut merged, n_workers) = (Vec::new(), Vec::new(), seconds.len() as u32);
        for number in 0..n_epochs {
            let n = n_merges(&epochs, n_workers);
            merged.push(n);
            let (steps, seconds) = (5, seconds[n as usize]);
            let (timed_steps, seconds) = match resumed {
                Some((epoch, timed_steps)) if epoch == number => (timed_steps, 99.0),
                _ => (steps, seconds),
            };
            epochs.push(EpochReport {
                steps,
                timed_steps,
                time_steps: Some(u64::from((n_workers - n) * timed_steps)),
                resumed: resumed.is_some_and(|(epoch, _)| epoch == number),
                seconds,
                ..Default::default()
            });
        }
        merged
    }

    #[test]
    fn merging_stops_at_the_first_epoch_that_is_not_faster() {
        assert_eq!(merged(&[9.0, 8.0, 7.0, 7.0], 6, None), [0, 1, 2, 3, 2, 2]);
        assert_eq!(merged(&[9.0, 9.5, 1.0, 1.0], 4, None), [0, 1, 0, 0]);
        assert_eq!(merged(&[9.0, 8.0, 7.0, 6.0], 6, None), [0, 1, 2, 3, 3, 3]);
        assert_eq!(merged(&[9.0], 3, None), [0, 0, 0]);
        // The time of an epoch that was resumed is not compared.
        for timed_steps in [0, 2, 5] {
            let resumed = |epoch| Some((epoch, timed_steps));
            assert_eq!(merged(&[9.0, 8.0, 9.0], 5, resumed(1)), [0, 1, 1, 2, 1]);
            assert_eq!(merged(&[9.0, 8.0, 9.0], 5, resumed(0)), [0, 0, 1, 2, 1]);
            // Decisions of earlier epochs stay.
            assert_eq!(merged(&[9.0, 8.0, 9.0], 6, resumed(3)), [0, 1, 2, 1, 1, 1]);
            assert_eq!(merged(&[9.0, 8.0, 7.0, 6.0], 6, resumed(4)), [0, 1, 2, 3, 3, 3]);
        }
    }
}
