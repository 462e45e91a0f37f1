//! What processes tell each other, as words: figures, texts, lists, outcomes of steps.

use lodestore_client::{LoadStats, Met, PrefetchStats, SteadyStats, TierRows};

use crate::{
    TrainError, peers::PeerError, step::StepSeconds, team::MemberStats, worker::StepOutcome,
};

/// A message while it is written.
pub(crate) struct Writer(Vec<u32>);

/// A message while it is read. It comes from a process of the same program, so that all that is
/// checked is its length.
pub(crate) struct Reader<'a> {
    rank: u32,
    words: &'a [u32],
}

/// A figure in its place.
enum Figure<'a> {
    Count(&'a mut u64),
    Seconds(&'a mut f64),
}

impl Writer {
    /// A message that begins with `kind`.
    pub(crate) fn new(kind: u32) -> Self {
        Self(vec![kind])
    }

    pub(crate) fn into_words(self) -> Vec<u32> {
        self.0
    }

    pub(crate) fn words(&mut self, words: &[u32]) {
        self.0.extend_from_slice(words);
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.words(&[value as u32, (value >> 32) as u32]);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        for piece in text.as_bytes().chunks(4) {
            let mut word = [0; 4];
            word[..piece.len()].copy_from_slice(piece);
            self.words(&[u32::from_le_bytes(word)]);
        }
    }

    pub(crate) fn lists(&mut self, lists: &[Vec<f32>]) {
        self.u64(lists.len() as u64);
        for list in lists {
            self.u64(list.len() as u64);
            self.words(bytemuck::cast_slice(list));
        }
    }

    /// Figures of some workers.
    pub(crate) fn stats(&mut self, stats: impl Iterator<Item = MemberStats>) {
        for mut stats in stats {
            each_of_stats(&mut stats, &mut |figure| self.figure(&figure));
        }
    }

    /// Outcomes and their workers.
    pub(crate) fn outcomes(&mut self, outcomes: Vec<(u32, StepOutcome)>) {
        self.u64(outcomes.len() as u64);
        for (worker, mut outcome) in outcomes {
            self.u64(worker.into());
            self.u64(outcome.met as u64);
            each_of_outcome(&mut outcome, &mut |figure| self.figure(&figure));
            self.lists(&outcome.gradients);
        }
    }

    fn figure(&mut self, figure: &Figure<'_>) {
        match figure {
            Figure::Count(count) => self.u64(**count),
            Figure::Seconds(seconds) => self.u64(seconds.to_bits()),
        }
    }
}

impl<'a> Reader<'a> {
    /// What `rank` gave, after the word that says of which kind it is.
    pub(crate) fn new(rank: u32, words: &'a [u32]) -> Self {
        Self { rank, words: words.get(1..).unwrap_or_default() }
    }

    pub(crate) fn words(&mut self, n: usize) -> Result<&'a [u32], TrainError> {
        let (taken, rest) = self.words.split_at_checked(n).ok_or_else(|| {
            let (expected, found) = (format!("{n} words more"), self.words.len().to_string());
            PeerError::OutOfStep { rank: self.rank, expected, found }
        })?;
        self.words = rest;
        Ok(taken)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, TrainError> {
        let words = self.words(2)?;
        Ok(u64::from(words[0]) | u64::from(words[1]) << 32)
    }

    pub(crate) fn text(&mut self) -> Result<String, TrainError> {
        let n_bytes = self.u64()? as usize;
        let words = self.words(n_bytes.div_ceil(4))?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(String::from_utf8_lossy(&bytes[..n_bytes]).into_owned())
    }

    pub(crate) fn lists(&mut self) -> Result<Vec<Vec<f32>>, TrainError> {
        let n_lists = self.u64()?;
        let mut lists = Vec::new();
        for _ in 0..n_lists {
            let n_words = self.u64()? as usize;
            lists.push(bytemuck::cast_slice(self.words(n_words)?).to_vec());
        }
        Ok(lists)
    }

    /// Figures of a worker.
    pub(crate) fn stats(&mut self) -> Result<MemberStats, TrainError> {
        let (mut stats, mut read) = (MemberStats::default(), Ok(()));
        each_of_stats(&mut stats, &mut |figure| self.figure(figure, &mut read));
        read.map(|()| stats)
    }

    /// Adds outcomes and their workers.
    pub(crate) fn outcomes(
        &mut self,
        outcomes: &mut Vec<(u32, StepOutcome)>,
    ) -> Result<(), TrainError> {
        for _ in 0..self.u64()? {
            let (worker, met, mut read) = (self.u64()? as u32, self.u64()?, Ok(()));
            let mut outcome = StepOutcome { met: met_of(met), ..StepOutcome::default() };
            each_of_outcome(&mut outcome, &mut |figure| self.figure(figure, &mut read));
            read?;
            outcome.gradients = self.lists()?;
            outcomes.push((worker, outcome));
        }
        Ok(())
    }

    fn figure(&mut self, figure: Figure<'_>, read: &mut Result<(), TrainError>) {
        match self.u64() {
            Ok(value) => match figure {
                Figure::Count(count) => *count = value,
                Figure::Seconds(seconds) => *seconds = f64::from_bits(value),
            },
            Err(error) => *read = Err(error),
        }
    }
}

fn met_of(word: u64) -> Met {
    [Met::Ready, Met::Waited].into_iter().find(|&met| met as u64 == word).unwrap_or_default()
}

/// Every figure of `outcome`, in the order in which they travel.
fn each_of_outcome(outcome: &mut StepOutcome, each: &mut dyn FnMut(Figure<'_>)) {
    let StepOutcome {
        loss,
        n_roots,
        n_right,
        gradients: _,
        load,
        n_nodes,
        seconds,
        met: _,
        prefetch,
    } = outcome;
    each(Figure::Seconds(loss));
    [n_roots, n_right, n_nodes].into_iter().for_each(|count| each(Figure::Count(count)));
    each_of_load(load, each);
    let StepSeconds { step, sample, lookup, pull, copy, wait, compute, update } = seconds;
    let all = [step, sample, lookup, pull, copy, wait, compute, update];
    all.into_iter().for_each(|seconds| each(Figure::Seconds(seconds)));
    each_of_prefetch(prefetch, each);
}

fn each_of_stats(stats: &mut MemberStats, each: &mut dyn FnMut(Figure<'_>)) {
    let MemberStats { prefetch, steady, pulled, buffer_bytes } = stats;
    each_of_prefetch(prefetch, each);
    let SteadyStats { kept_rows, late, peak_bytes } = steady;
    [kept_rows, late, peak_bytes, buffer_bytes]
        .into_iter()
        .for_each(|count| each(Figure::Count(count)));
    each_of_load(pulled, each);
}

fn each_of_prefetch(prefetch: &mut PrefetchStats, each: &mut dyn FnMut(Figure<'_>)) {
    let PrefetchStats { ready, waited, default_path, wait_seconds, peak_bytes, max_nodes } =
        prefetch;
    [ready, waited, default_path].into_iter().for_each(|count| each(Figure::Count(count)));
    each(Figure::Seconds(wait_seconds));
    [peak_bytes, max_nodes].into_iter().for_each(|count| each(Figure::Count(count)));
}

fn each_of_load(load: &mut LoadStats, each: &mut dyn FnMut(Figure<'_>)) {
    let LoadStats {
        local_rows,
        hit_rows,
        found: TierRows { device, host, buffer, together },
        remote_rows,
        remote_bytes,
        pulls,
        ahead_rows,
        seconds,
        lookup_seconds,
        pull_seconds,
        copy_seconds,
    } = load;
    let rows = [local_rows, hit_rows, device, host, buffer, together, remote_rows];
    rows.into_iter().for_each(|count| each(Figure::Count(count)));
    [remote_bytes, pulls, ahead_rows].into_iter().for_each(|count| each(Figure::Count(count)));
    let all = [seconds, lookup_seconds, pull_seconds, copy_seconds];
    all.into_iter().for_each(|seconds| each(Figure::Seconds(seconds)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every figure another.
    fn numbered(outcome: &mut StepOutcome, stats: &mut MemberStats) {
        let mut next = 1_u64 << 40;
        let mut number = |figure: Figure<'_>| {
            next += 1;
            match figure {
                Figure::Count(count) => *count = next,
                Figure::Seconds(seconds) => *seconds = next as f64 / 3.0,
            }
        };
        each_of_outcome(outcome, &mut number);
        each_of_stats(stats, &mut number);
    }

    #[test]
    fn what_is_written_is_read() {
        let (mut outcome, mut stats) = (StepOutcome::default(), MemberStats::default());
        numbered(&mut outcome, &mut stats);
        outcome.met = Met::Waited;
        outcome.gradients = vec![vec![f32::NAN, -0.0], vec![], vec![1e-40]];
        let mut message = Writer::new(7);
        message.text("größer");
        message.stats([stats, MemberStats::default()].into_iter());
        message.outcomes(vec![(5, outcome.clone()), (9, StepOutcome::default())]);
        message.text("");
        let words = message.into_words();
        let mut reader = Reader::new(3, &words);
        assert_eq!(reader.text().unwrap(), "größer");
        assert_eq!(format!("{:?}", reader.stats().unwrap()), format!("{stats:?}"));
        assert_eq!(reader.stats().unwrap().prefetch, PrefetchStats::default());
        let mut outcomes = Vec::new();
        reader.outcomes(&mut outcomes).unwrap();
        // NaN is not equal to itself, but its digits are.
        let expected = format!("{:?}", [(5, outcome), (9, StepOutcome::default())]);
        assert_eq!(format!("{outcomes:?}"), expected);
        assert_eq!(outcomes[0].1.gradients[0][1].to_bits(), (-0.0_f32).to_bits());
        assert_eq!(reader.text().unwrap(), "");
        let error = reader.u64().unwrap_err().to_string();
        assert!(error.contains("process 3 of the run is out of step"), "{error}");
    }

    #[test]
    fn a_message_cut_short_is_an_error_wherever_it_ends() {
        let mut message = Writer::new(0);
        message.outcomes(vec![(1, StepOutcome { gradients: vec![vec![1.0; 3]], ..outcome() })]);
        let words = message.into_words();
        for n in 1..words.len() {
            assert!(Reader::new(0, &words[..n]).outcomes(&mut Vec::new()).is_err(), "{n}");
        }
    }

    fn outcome() -> StepOutcome {
        StepOutcome::default()
    }
}
