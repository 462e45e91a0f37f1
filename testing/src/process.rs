//! The programs `lode` and `lode-lab` as a user runs them.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longest time for one command of a test; of a long one if those are asked for.
const COMMAND_DEADLINE: Duration = Duration::from_secs(100);
const LONG_COMMAND_DEADLINE: Duration = Duration::from_secs(1200);
/// Longest time for a server to start or to stop.
const SERVER_DEADLINE: Duration = Duration::from_secs(20);

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Returns the JSON object on stdout, which must be the only line there.
    pub fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "one object on stdout: {self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts success.
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Asserts failure with `code` and a message that contains all of `parts`.
    pub fn failed(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }
}

/// Returns the path of a program of the workspace. Cargo puts it beside the folder of the test that
/// runs.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join(name);
    assert!(program.is_file(), "{} is missing: cargo build --workspace", program.display());
    program
}

/// Returns a `lode` command, not yet started; `lode-lab`'s own commands are run by it.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    const LAB: [&str; 5] = ["generate-trace", "load", "profile-device", "reproduce", "shape"];
    let mut args = args.into_iter().peekable();
    let in_lab =
        args.peek().is_some_and(|name| LAB.iter().any(|lab| name.as_ref() == OsStr::new(lab)));
    let mut command = Command::new(program(if in_lab { "lode-lab" } else { "lode" }));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `lode` with these arguments to its end.
pub fn lode<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Finished {
    let long = std::env::var_os("LODE_LONG").is_some();
    let deadline = if long { LONG_COMMAND_DEADLINE } else { COMMAND_DEADLINE };
    finish(command(args).spawn().unwrap(), deadline)
}

/// Does as [`lode`], for a line of arguments without spaces in them.
pub fn lode_line(line: &str) -> Finished {
    lode(line.split_whitespace())
}

/// Runs `lode` to its end, where a process may have `n_files` files open and cannot raise that.
pub fn lode_with_files(n_files: u32, args: &[&str]) -> Finished {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {n_files} && exec \"$@\""), "sh"]);
    command.arg(program("lode")).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap(), COMMAND_DEADLINE)
}

/// Waits for a command; it is killed, and the test fails, at the deadline.
pub fn finish(mut child: Child, deadline: Duration) -> Finished {
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let code = wait(&mut child, deadline);
    Finished { code, stdout: stdout.recv().unwrap(), stderr: stderr.recv().unwrap() }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        pipe.map(|mut pipe| pipe.read_to_string(&mut text));
        let _ = sender.send(text);
    });
    receiver
}

/// What a server writes to stderr, read as it comes.
struct Log {
    text: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Log {
    fn read(pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let written = text.clone();
        let reader = std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe.read_until(b'\n', &mut line).is_ok_and(|n_bytes| n_bytes > 0) {
                written.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Self { text, reader }
    }

    fn so_far(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// Waits until nothing can write any more.
    fn whole(&self) -> String {
        let end = Instant::now() + SERVER_DEADLINE;
        while !self.reader.is_finished() {
            assert!(Instant::now() < end, "stderr is still open: {}", self.so_far());
            sleep(Duration::from_millis(2));
        }
        self.so_far()
    }
}

/// Returns the exit code; `None` for a process that died of a signal.
pub fn wait(child: &mut Child, deadline: Duration) -> Option<i32> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("a process still ran after {deadline:?}");
        }
        sleep(Duration::from_millis(2));
    }
}

/// Sends a signal. After STOP all threads of the process stand still, which takes a moment.
pub fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
    while signal == Signal::STOP && !stands_still(child.id()) {
        sleep(Duration::from_millis(1));
    }
}

/// Returns whether all threads of a process are stopped, or it has ended.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        matches!(state, None | Some("T" | "Z" | "X"))
    })
}

/// A running `lode serve`; killed on drop.
pub struct Serving {
    pub child: Child,
    /// TCP address, if it has one.
    pub address: String,
    /// Address of its metrics, if it has one.
    pub metrics: String,
    log: Log,
}

impl Serving {
    /// Starts `lode serve GRAPH` with more arguments and waits until it is ready.
    pub fn start(graph: &Path, more: &str) -> Self {
        Self::start_command(&format!("serve {} --json {more}", graph.display()))
    }

    /// Starts another command that says where it listens, from a line without spaces in arguments.
    pub fn start_command(line: &str) -> Self {
        Self::try_start_command(line).unwrap_or_else(|log| panic!("no server: {log}"))
    }

    /// Does as [`Self::start_command`]; fails with the stderr of a command that does not start.
    pub fn try_start_command(line: &str) -> Result<Self, String> {
        Self::try_start(command(line.split_whitespace()))
    }

    /// Does as [`Self::try_start_command`], for a command that is not started yet.
    pub fn try_start(mut command: Command) -> Result<Self, String> {
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let log = Log::read(child.stderr.take().unwrap());
        // From here on it is killed, whatever happens.
        let mut this = Self { child, address: String::new(), metrics: String::new(), log };
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).unwrap();
            let _ = sender.send(line);
        });
        let line = receiver.recv_timeout(SERVER_DEADLINE).unwrap();
        if line.is_empty() || line.contains("\"error\"") {
            wait(&mut this.child, SERVER_DEADLINE);
            return Err(line + &this.log.whole());
        }
        let ready: Value = serde_json::from_str(&line).unwrap();
        let text = |name: &str| ready[name].as_str().unwrap_or_default().to_owned();
        (this.address, this.metrics) = (text("address"), text("metrics"));
        Ok(this)
    }

    /// Sends SIGTERM and asserts a clean end.
    pub fn stop(self) {
        self.stop_and_take_log();
    }

    /// Does as [`Self::stop`], and returns what it wrote to stderr.
    pub fn stop_and_take_log(mut self) -> String {
        signal(&self.child, Signal::TERM);
        let code = wait(&mut self.child, SERVER_DEADLINE);
        let stderr = self.log.whole();
        assert_eq!(code, Some(0), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        stderr
    }

    /// Returns what it has written to stderr until now.
    pub fn log(&self) -> String {
        self.log.so_far()
    }

    /// Returns how it ended, if it has by itself, and what it wrote to stderr.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().unwrap()?;
        Some(format!("{status}: {}", self.log.whole()))
    }

    /// Kills it without a warning; it must have run until then, and nothing in it panicked.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        let stderr = self.log.whole();
        assert!(!stderr.contains("panicked"), "{stderr}");
        let killed = Some(Signal::KILL.as_raw());
        assert_eq!(status.signal(), killed, "it had ended by itself, {status}: {stderr}");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processes whose parent is `pid`.
pub fn children_of(pid: u32) -> Vec<u32> {
    let is_child = |candidate: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{candidate}/stat")).unwrap_or_default();
        // The name in parentheses may hold anything; state and parent follow it.
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
        fields.and_then(|mut f| f.nth(1)?.parse().ok()) == Some(pid)
    };
    let all = std::fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(is_child)
        .collect()
}

/// Waits until none of these processes runs.
pub fn wait_until_gone(pids: &[u32]) {
    let end = Instant::now() + SERVER_DEADLINE;
    let runs = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie is gone but for its parent's question.
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    };
    while pids.iter().any(runs) {
        assert!(Instant::now() < end, "one of {pids:?} outlives its parent");
        sleep(Duration::from_millis(5));
    }
}
