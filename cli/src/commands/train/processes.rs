//! The processes of a run: threads of one process, processes that this one starts, or those of an
//! MPI job.

use std::env;
use std::ffi::OsString;
use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use lodestore_comm::collective::Collective;
use lodestore_comm::error::CollectiveError;
use lodestore_comm::group::fail_before_start;
use lodestore_comm::sockets::SocketCollective;
use lodestore_comm::threads::ThreadCollective;
use lodestore_trainer::TrainError;
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::low_level;

use crate::console::AlreadyReported;
use crate::usage::UsageError;

/// A process must end within this time once the run is over; one that was killed is seen to be dead
/// in less.
const PATIENCE: Duration = Duration::from_secs(30);

/// The variables by which starters of MPI jobs say how many processes there are, and which this is.
/// The last is that of a step of Slurm (`srun`), whatever it lets processes find each other by.
const MPI_VARIABLES: [[&str; 2]; 3] = [
    ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"],
    ["PMI_SIZE", "PMI_RANK"],
    ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID"],
];

/// Distribution of a run's workers over processes.
#[derive(Clone, Debug, Default)]
pub enum Form {
    /// Threads of this process.
    #[default]
    Threads,
    /// A process for each, started by this one with these arguments; it is the first of them. They
    /// wait for each other so long at most, as the first counts it.
    Processes(Vec<OsString>, Duration),
    /// This process was started by another one of the run.
    StartedAs(Peer, Duration),
    /// Processes of an MPI job: their number, which this is, and how long they wait for each other.
    Mpi([u32; 2], Duration),
}

/// Place of this process in a run, by a hidden flag that the first one passes: rank and processes.
/// Its socket to the first one is its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    rank: u32,
    n_ranks: u32,
}

/// The processes of a run as this one sees them.
pub(super) struct Joined {
    /// Before `collective`: they are ended before their sockets.
    children: Children,
    collective: Box<dyn Collective>,
}

/// Processes that this one has started, from rank 1 on; none outlives this.
#[derive(Default)]
struct Children(Vec<Child>);

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<u32> = text.split(',').map_while(|number| number.parse().ok()).collect();
        match numbers[..] {
            [rank, n_ranks] if (1..n_ranks).contains(&rank) => Ok(Self { rank, n_ranks }),
            _ => Err("lode train passes this flag to the processes that it starts".to_owned()),
        }
    }
}

impl Form {
    /// Returns the form by the flags: `processes`, the hidden one of a process that another has
    /// started, and how long they wait for each other.
    pub(super) fn of(
        processes: bool,
        peer: Option<Peer>,
        patience: Duration,
    ) -> Result<Self, UsageError> {
        if let Some(peer) = peer {
            return Ok(Self::StartedAs(peer, patience));
        }
        match (mpi_job(&|name| env::var(name).ok()), processes) {
            (Some(_), true) => Err(UsageError::new(
                "--processes starts processes of its own, but these are of an MPI job; leave it out",
            )),
            (Some(job), false) if cfg!(feature = "mpi") => Ok(Self::Mpi(job, patience)),
            (Some([n_ranks, _]), false) => Err(UsageError::new(format!(
                "one of {n_ranks} processes of an MPI job or a step of Slurm, but this lode was built \
                 without MPI; build it with --features mpi, or start it once (`srun -n 1`) with --processes; \
                 {}",
                by_itself()
            ))),
            (None, true) => Ok(Self::Processes(env::args_os().skip(1).collect(), patience)),
            (None, false) => Ok(Self::Threads),
        }
    }

    /// Returns the default number of workers: one for each process.
    pub(super) fn usual_workers(&self) -> u32 {
        match self {
            Self::Mpi([n_ranks, _], _) => *n_ranks,
            _ => 1,
        }
    }

    /// Returns whether this process is to start others.
    pub(super) fn starts_processes(&self) -> bool {
        matches!(self, Self::Processes(..))
    }

    /// Returns whether another process reports the run.
    pub(super) fn is_led(&self) -> bool {
        match self {
            Self::Threads | Self::Processes(..) => false,
            Self::StartedAs(..) => true,
            Self::Mpi([_, rank], _) => *rank > 0,
        }
    }

    /// Starts the others, or joins them.
    pub(super) fn join(&self, n_workers: u32) -> Result<Joined> {
        let mut children = Children::default();
        let collective: Box<dyn Collective> = match self {
            Self::Processes(args, patience) if n_workers > 1 => {
                let started = children.start(args, n_workers, *patience);
                Box::new(started.context("cannot start the processes")?)
            }
            Self::Threads | Self::Processes(..) => Box::new(ThreadCollective::alone()),
            Self::StartedAs(peer, patience) => Box::new(peer.join(*patience)?),
            Self::Mpi(_, patience) => mpi_collective(*patience)?,
        };
        if let Self::Mpi([expected, _], _) = *self
            && collective.n_ranks() != expected
        {
            // Each would train by itself, all in the same files.
            let found = collective.n_ranks();
            bail!(
                "one of {expected} processes that were started together, but MPI finds {found}; under Slurm \
                 name what your MPI library speaks, such as `srun --mpi=pmix`; {}",
                by_itself()
            );
        }
        if collective.n_ranks() > n_workers {
            let n_ranks = collective.n_ranks();
            bail!("{n_ranks} processes for {n_workers} workers; start as many processes or fewer");
        }
        Ok(Joined { children, collective })
    }
}

#[cfg(feature = "mpi")]
fn mpi_collective(patience: Duration) -> Result<Box<dyn Collective>> {
    let started = lodestore_comm::mpi::MpiCollective::start(patience);
    Ok(Box::new(started.context("MPI has been started before")?))
}

#[cfg(not(feature = "mpi"))]
fn mpi_collective(_: Duration) -> Result<Box<dyn Collective>> {
    bail!("this lode was built without MPI")
}

/// Returns the number of processes of the MPI job that this one belongs to, and its rank, if it
/// belongs to one of several.
fn mpi_job(variable: &dyn Fn(&str) -> Option<String>) -> Option<[u32; 2]> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let job = MPI_VARIABLES.into_iter();
    let job = job.filter_map(|[size, rank]| Some([number(size)?, number(rank)?]));
    // A script of Slurm's has its job's tasks, and is one process: only a step has this or a rank.
    let of_step = || {
        let rank = number("PMIX_RANK").or_else(|| number("SLURM_PROCID").filter(|&rank| rank > 0));
        Some([number("SLURM_NTASKS")?, rank?])
    };
    job.chain(of_step()).find(|[n_ranks, _]| *n_ranks > 1)
}

/// Returns how to start a process that is in a job and is none of it.
fn by_itself() -> String {
    let sizes = MPI_VARIABLES.iter().map(|[size, _]| *size).chain(["SLURM_NTASKS"]);
    let unset: String = sizes.map(|size| format!(" -u {size}")).collect();
    format!("if it is to train by itself, start it by `env{unset} lode train`")
}

impl Peer {
    /// Joins the process that has started this one. When that one is gone, so is this.
    fn join(self, patience: Duration) -> Result<SocketCollective> {
        let Self { rank, n_ranks } = self;
        let socket = stdin().as_fd().try_clone_to_owned().context("stdin is no socket")?;
        let watched = socket.try_clone().context("stdin is no socket")?;
        spawn(move || end_with(&watched, rank));
        Ok(SocketCollective::follower(rank, n_ranks, socket, patience)?)
    }
}

/// Waits until the other end of a socket is gone, and ends this process.
fn end_with(socket: &OwnedFd, rank: u32) {
    let mut watched = [PollFd::new(socket, PollFlags::RDHUP)];
    // A signal may interrupt it.
    while poll(&mut watched, None).is_err() {}
    eprintln!("lode: process {rank} of the run ends, since the first is gone");
    // Other threads may be in RocksDB; see `interrupt`.
    low_level::exit(1);
}

impl Children {
    /// Starts `n_ranks` less one processes.
    fn start(
        &mut self,
        args: &[OsString],
        n_ranks: u32,
        patience: Duration,
    ) -> Result<SocketCollective> {
        let program = env::current_exe().context("cannot find this program's file")?;
        let mut sockets = Vec::new();
        for rank in 1..n_ranks {
            let (ours, theirs) = UnixStream::pair()?;
            let mut command = Command::new(&program);
            command.args(args).arg("--peer").arg(format!("{rank},{n_ranks}"));
            command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
            self.0.push(command.spawn()?);
            sockets.push(ours);
        }
        Ok(SocketCollective::leader(sockets, patience)?)
    }

    /// Returns how the process of `rank` ended, which is gone.
    fn end_of(&mut self, rank: u32) -> Option<String> {
        let child = self.0.get_mut(rank.checked_sub(1)? as usize)?;
        let status = wait(child, Duration::from_secs(1))?;
        Some(format!("its process {} ended with {status}", child.id()))
    }

    /// Waits until all have ended.
    fn finish(&mut self) -> Result<()> {
        for (child, rank) in self.0.iter_mut().zip(1..) {
            match wait(child, PATIENCE) {
                Some(status) if status.success() => {}
                Some(status) => bail!("process {rank} of the run ended with {status}"),
                None => bail!("process {rank} of the run does not end"),
            }
        }
        self.0.clear();
        Ok(())
    }
}

fn wait(child: &mut Child, patience: Duration) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only for one that is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Joined {
    pub(super) fn collective(&mut self) -> &mut dyn Collective {
        &mut *self.collective
    }

    /// Returns whether this process reports the run.
    pub(super) fn leads(&self) -> bool {
        self.collective.rank() == 0
    }

    /// Returns the number of processes that share this machine.
    pub(super) fn n_here(&self) -> u32 {
        self.collective.n_local()
    }

    /// Returns those of `n_workers` workers that are in this process.
    pub(super) fn workers_here(&self, n_workers: u32) -> Vec<u32> {
        (self.collective.rank()..n_workers).step_by(self.collective.n_ranks() as usize).collect()
    }

    /// Reports an error before training to the others, which do not know of it. Returns the error
    /// of this process.
    pub(super) fn failed_before(mut self, error: anyhow::Error) -> anyhow::Error {
        let told = fail_before_start(&mut *self.collective, &format!("{error:#}"));
        if self.leads() || told.is_err() { error } else { AlreadyReported.into() }
    }

    /// Returns this process's error after an error of training, which all know of.
    pub(super) fn failed(mut self, error: TrainError) -> anyhow::Error {
        match error {
            TrainError::Collective(error) => self.parted(&error),
            _ if self.leads() => error.into(),
            _ => AlreadyReported.into(),
        }
    }

    /// Returns the sums over all processes of `figures`, of which each has as many; the last word
    /// of the run.
    pub(super) fn sums(mut self, figures: &mut [u64]) -> Result<()> {
        let reduced = self.collective.all_reduce(figures);
        reduced.map_err(|error| self.parted(&error))?;
        self.children.finish()
    }

    /// Returns `error`, and how the process that is gone ended, if this one has started it.
    fn parted(&mut self, error: &CollectiveError) -> anyhow::Error {
        let end = match *error {
            CollectiveError::Gone { rank } => self.children.end_of(rank),
            _ => None,
        };
        anyhow!("{error}{}", end.map(|end| format!("; {end}")).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_known_by_its_variables() {
        let job = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(of, _)| *of == name);
            mpi_job(&|name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(
            job(&[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "2")]),
            Some([4, 2])
        );
        assert_eq!(job(&[("PMI_SIZE", "3"), ("PMI_RANK", "0")]), Some([3, 0]));
        assert_eq!(job(&[("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "0")]), Some([2, 0]));
        assert_eq!(job(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "7")]), Some([8, 7]));
        assert_eq!(job(&[("SLURM_NTASKS", "8"), ("PMIX_RANK", "0")]), Some([8, 0]));
        // A batch script, a step of one process, one of something else.
        assert_eq!(job(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")]), None);
        assert_eq!(job(&[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0")]), None);
        assert_eq!(job(&[("PMI_SIZE", "many"), ("PMI_RANK", "0")]), None);
        assert_eq!(job(&[]), None);
    }

    #[test]
    fn a_process_knows_which_it_is() {
        assert_eq!("2,4".parse(), Ok(Peer { rank: 2, n_ranks: 4 }));
        for wrong in ["", "1", "1,2,3", "a,2", "0,2", "2,2", "1,4294967296"] {
            assert!(wrong.parse::<Peer>().is_err(), "{wrong}");
        }
    }
}
