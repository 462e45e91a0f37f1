//! A process that gets a share of a processor: a slower device, in effect.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;

/// Time that the process runs in each period: the least that the kernel grants, so that short
/// bursts are held to the share too.
const RUN: Duration = Duration::from_millis(1);

/// Holds a process to a share of a processor until this is dropped.
pub(crate) struct Throttle {
    means: Means,
    process: OwnedFd,
    ended: Arc<AtomicBool>,
    pausing: Option<JoinHandle<()>>,
}

/// Means by which a process is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Means {
    /// A CPU quota of a control group, in this folder.
    Quota(PathBuf),
    /// Signals that stop it for the rest of each period, where no group may be made.
    Pauses,
}

impl Throttle {
    /// Holds the process `pid`, a child of this one that is not waited for yet, to `share` of a
    /// processor.
    ///
    /// Fails where there is no such process.
    pub(crate) fn start(pid: u32, share: f64) -> Result<Self> {
        let no_such = || format!("there is no process {pid}");
        let of = Pid::from_raw(pid.cast_signed()).with_context(no_such)?;
        let process = pidfd_open(of, PidfdFlags::empty()).with_context(no_such)?;
        let ended = Arc::new(AtomicBool::new(false));
        let means = quota(pid, share).map_or(Means::Pauses, Means::Quota);
        let pausing = match means {
            Means::Quota(_) => None,
            Means::Pauses => {
                let (process, ended) = (process.try_clone()?, Arc::clone(&ended));
                Some(thread::spawn(move || pause(&process, share, &ended)))
            }
        };
        Ok(Self { means, process, ended, pausing })
    }

    /// Returns by what the process is held.
    pub(crate) fn means(&self) -> &Means {
        &self.means
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(pausing) = self.pausing.take() {
            let _it_only_sends_signals = pausing.join();
            let _it_may_have_ended = pidfd_send_signal(&self.process, Signal::CONT);
        }
        if let Means::Quota(dir) = &self.means {
            // A group with a process in it stays until that has gone to the one above.
            let above = dir.parent().map(|above| above.join("cgroup.procs"));
            let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            for (pid, above) in processes.lines().zip(above.iter().cycle()) {
                let _it_may_have_ended = fs::write(above, pid);
            }
            let _an_empty_folder_is_left = fs::remove_dir(dir);
        }
    }
}

/// Returns the time in which a process has its share once.
fn period(share: f64) -> Duration {
    RUN.div_f64(share.clamp(0.01, 1.0))
}

/// Stops the process for the rest of each period.
fn pause(process: &OwnedFd, share: f64, ended: &AtomicBool) {
    let rest = period(share).saturating_sub(RUN);
    let send = |signal| pidfd_send_signal(process, signal).is_ok();
    while !ended.load(Ordering::Relaxed) {
        sleep(RUN);
        if !send(Signal::STOP) {
            return;
        }
        sleep(rest);
        if !send(Signal::CONT) {
            return;
        }
    }
}

/// Moves the process into a group of its own with a quota, in the first or the second version of
/// control groups. Returns none where that is not permitted.
fn quota(pid: u32, share: f64) -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_first = controllers.split(',').any(|controller| controller == "cpu");
        let root = Path::new("/sys/fs/cgroup");
        let root = if is_first { root.join(controllers) } else { root.to_owned() };
        let is_second = controllers.is_empty();
        let above = root.join(path.trim_start_matches('/'));
        (is_first || is_second).then(|| make_group(&above, pid, share, is_first))?
    })
}

fn make_group(above: &Path, pid: u32, share: f64, is_first: bool) -> Option<PathBuf> {
    let dir = above.join(format!("lode-throttle-{pid}"));
    fs::create_dir(&dir).ok()?;
    let (quota, period) = (RUN.as_micros(), period(share).as_micros());
    let write = |name: &str, value: String| fs::write(dir.join(name), value);
    let limited = match is_first {
        true => write("cpu.cfs_period_us", period.to_string())
            .and_then(|()| write("cpu.cfs_quota_us", quota.to_string())),
        false => write("cpu.max", format!("{quota} {period}")),
    };
    match limited.and_then(|()| write("cgroup.procs", pid.to_string())) {
        Ok(()) => Some(dir),
        Err(_) => {
            let _an_empty_folder_is_left = fs::remove_dir(&dir);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use super::*;

    /// Returns the ticks of processor time that a process has had.
    fn ticks(child: &Child) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split(' ').collect();
        fields[12..14].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
    }

    fn share_of(child: &Child) -> f64 {
        let (start, before) = (Instant::now(), ticks(child));
        sleep(Duration::from_millis(600));
        (ticks(child) - before) as f64 / 100.0 / start.elapsed().as_secs_f64()
    }

    #[test]
    fn a_process_gets_its_share_and_no_more_by_either_means() {
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        for is_paused in [false, true] {
            let mut child = spin().expect("a shell");
            let throttle = if is_paused {
                let pid = Pid::from_child(&child);
                let process = pidfd_open(pid, PidfdFlags::empty()).expect("a process");
                let ended = Arc::new(AtomicBool::new(false));
                let other = (process.try_clone().expect("a descriptor"), Arc::clone(&ended));
                let pausing = thread::spawn(move || pause(&other.0, 0.3, &other.1));
                Throttle { means: Means::Pauses, process, ended, pausing: Some(pausing) }
            } else {
                Throttle::start(child.id(), 0.3).expect("a process")
            };
            let held = share_of(&child);
            if let Means::Quota(dir) = throttle.means() {
                assert!(dir.exists());
            } else {
                eprintln!("no control group may be made here: pauses are tried alone");
            }
            let dir = throttle.means().clone();
            drop(throttle);
            if let Means::Quota(dir) = dir {
                assert!(!dir.exists());
            }
            let free = share_of(&child);
            child.kill().expect("it runs");
            child.wait().expect("it ends");
            assert!(held < 0.4 && held < free + 0.05, "{held} of {free}");
        }
        assert!(Throttle::start(u32::MAX, 0.5).is_err());
    }
}
