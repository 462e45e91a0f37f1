//! A run in several processes: who has which workers, and what they tell each other.

use lodestore_client::{LoadStats, PullStats};

use crate::{
    Place, TrainError,
    adam::AdamState,
    peers::{PeerError, Peers},
    team::{MemberStats, TeamStep},
    words::{Reader, Writer},
    worker::StepOutcome,
};

/// How an exchange begins.
const GO_ON: u32 = 0;
/// The leader has ended the run; nothing follows.
const ENDED: u32 = 1;
/// The process has failed; why follows.
const FAILED: u32 = 2;

/// The processes of a run, as one of them sees them. Worker w belongs to rank w mod ranks.
pub(crate) struct Group<'p> {
    peers: &'p mut dyn Peers,
    /// What each gave, with how it began.
    all: Vec<Vec<u32>>,
    /// Whether all know that the run is over or has failed: nobody exchanges any more.
    is_over: bool,
}

/// What each process brings to the run.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    /// Of all that must be the same in all processes.
    pub(crate) digest: [u32; 8],
    /// What filled the sources of its workers.
    pub(crate) filled: LoadStats,
}

/// Where a run goes on, and with what.
pub(crate) type Resumed = Option<(Place, AdamState)>;

impl<'p> Group<'p> {
    pub(crate) fn new(peers: &'p mut dyn Peers) -> Self {
        Self { peers, all: Vec::new(), is_over: false }
    }

    /// Whether this process leads.
    pub(crate) fn leads(&self) -> bool {
        self.peers.rank() == 0
    }

    /// Processes in all.
    pub(crate) fn n_ranks(&self) -> u32 {
        self.peers.n_ranks()
    }

    /// Processes that share this machine's cores.
    pub(crate) fn n_here(&self) -> u32 {
        self.peers.n_here()
    }

    /// Those of `workers` workers that belong to this process.
    pub(crate) fn workers_here(&self, workers: u32) -> impl Iterator<Item = u32> + use<> {
        workers_of(self.peers.rank(), self.peers.n_ranks(), workers)
    }

    /// Begins the run: checks that all run the same, sums what filled their sources, and gives all the
    /// place where the leader goes on, `resumed`.
    pub(crate) fn open(
        &mut self,
        opening: &Opening,
        resumed: Resumed,
    ) -> Result<Option<(LoadStats, Resumed)>, TrainError> {
        if self.n_ranks() == 1 {
            return Ok(Some((opening.filled, resumed)));
        }
        let mut message = Writer::new(GO_ON);
        let LoadStats { remote_rows, remote_bytes, pulls, ahead_rows, .. } = opening.filled;
        message.words(&opening.digest);
        [remote_rows, remote_bytes, pulls, ahead_rows]
            .into_iter()
            .for_each(|figure| message.u64(figure));
        message.u64(u64::from(resumed.is_some()));
        if let Some((place, AdamState { n_steps, values, means, variances })) = &resumed {
            [place.epoch, place.step, *n_steps]
                .into_iter()
                .for_each(|number| message.u64(number.into()));
            [values, means, variances].into_iter().for_each(|lists| message.lists(lists));
        }
        if !self.exchange(message)? {
            return Ok(None);
        }
        let (mut filled, mut common) = (LoadStats::default(), None);
        for (words, rank) in self.all.iter().zip(0..) {
            let mut message = Reader::new(rank, words);
            if message.words(8)? != opening.digest {
                return Err(TrainError::OtherRun { rank });
            }
            let mut figure = || message.u64();
            let (rows, bytes, requests) = (figure()?, figure()?, figure()?);
            let ahead_rows = figure()?;
            let pull = PullStats { rows, bytes, requests, ahead_rows, ..PullStats::default() };
            filled += LoadStats::from_pull(pull);
            if figure()? == 1 {
                let mut number = || message.u64().map(|number| number as u32);
                let (place, n_steps) = (Place { epoch: number()?, step: number()? }, number()?);
                let mut lists = || message.lists();
                let (values, means, variances) = (lists()?, lists()?, lists()?);
                common = Some((place, AdamState { n_steps, values, means, variances }));
            }
        }
        Ok(Some((filled, common)))
    }

    /// A text that the leader gives to all; none if it has ended the run.
    pub(crate) fn text_of_leader(&mut self, text: &str) -> Result<Option<String>, TrainError> {
        let mut message = Writer::new(GO_ON);
        message.text(text);
        if !self.exchange(message)? {
            return Ok(None);
        }
        Reader::new(0, &self.all[0]).text().map(Some)
    }

    /// The step of all workers, from those of the workers here: an outcome of each that had a batch,
    /// and figures of each. None if the leader has ended the run.
    pub(crate) fn step(
        &mut self,
        outcomes: Vec<(u32, StepOutcome)>,
        stats: &mut [MemberStats],
    ) -> Result<Option<TeamStep>, TrainError> {
        let (rank, n_ranks) = (self.peers.rank(), self.n_ranks());
        if n_ranks == 1 {
            return Ok(Some(TeamStep::sum(outcomes)));
        }
        let mut message = Writer::new(GO_ON);
        message.stats(workers_of(rank, n_ranks, stats.len() as u32).map(|at| stats[at as usize]));
        message.outcomes(outcomes);
        if !self.exchange(message)? {
            return Ok(None);
        }
        let mut outcomes = Vec::new();
        for (words, rank) in self.all.iter().zip(0..) {
            let mut message = Reader::new(rank, words);
            for worker in workers_of(rank, n_ranks, stats.len() as u32) {
                stats[worker as usize] = message.stats()?;
            }
            message.outcomes(&mut outcomes)?;
        }
        outcomes.sort_by_key(|(worker, _)| *worker);
        Ok(Some(TeamStep::sum(outcomes)))
    }

    /// The end of a run that has gone well: the leader tells it, the others wait for that.
    pub(crate) fn end(&mut self) -> Result<(), TrainError> {
        if self.n_ranks() == 1 || self.is_over {
            return Ok(());
        }
        let is_leader = self.leads();
        if self.exchange(Writer::new(if is_leader { ENDED } else { GO_ON }))? {
            let (expected, found) = ("the end of the run".to_owned(), "a step".to_owned());
            return Err(PeerError::OutOfStep { rank: 0, expected, found }.into());
        }
        Ok(())
    }

    /// Tells all that this process has failed, unless they know.
    pub(crate) fn fail(&mut self, error: &TrainError) {
        if self.n_ranks() > 1 && !self.is_over && !error.is_common() {
            let mut message = Writer::new(FAILED);
            message.text(&error.to_string());
            let _ = self.exchange(message);
        }
    }

    /// False if the leader has ended the run.
    fn exchange(&mut self, message: Writer) -> Result<bool, TrainError> {
        let exchanged = self.peers.exchange(&message.into_words(), &mut self.all);
        exchanged.inspect_err(|_| self.is_over = true)?;
        for (words, rank) in self.all.iter().zip(0..) {
            if words.first() == Some(&FAILED) {
                self.is_over = true;
                let message = Reader::new(rank, words).text()?;
                return Err(TrainError::Peer { rank, message });
            }
        }
        if self.all[0].first() == Some(&ENDED) {
            self.is_over = true;
            return Ok(false);
        }
        Ok(true)
    }
}

/// Tells the other processes of a run that this one has failed before it could train, in place of
/// [`crate::train_together`]. All then end with this message.
pub fn give_up(peers: &mut dyn Peers, message: &str) -> Result<(), PeerError> {
    let mut words = Writer::new(FAILED);
    words.text(message);
    peers.exchange(&words.into_words(), &mut Vec::new())
}

/// The workers of `rank`.
fn workers_of(rank: u32, n_ranks: u32, workers: u32) -> impl Iterator<Item = u32> + use<> {
    (rank..workers).step_by(n_ranks as usize)
}
