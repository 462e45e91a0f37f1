//! Servers as processes of their own, which never outlive this one.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use crate::human::joined;
use crate::program::lode_program;

/// A server must announce its address, and end on request, within this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Running servers of one graph. Each ends when its stdin does: when this is dropped, and when
/// this process is gone, whatever killed it.
pub struct ChildServers {
    running: Vec<Running>,
}

struct Running {
    child: Child,
    log: PathBuf,
    address: Address,
}

/// Address of a server and its partitions, as `lode serve --json` prints them.
#[derive(Clone, Deserialize, Serialize)]
pub struct Address {
    address: String,
    parts: Vec<u16>,
}

impl ChildServers {
    /// Starts one server for each list of partitions, on free loopback ports; logs go to `dir`.
    pub fn start(graph: &Path, dir: &Path, parts: &[&[u16]]) -> Result<Self> {
        let mut servers = Self { running: Vec::new() };
        let mut starting = Vec::new();
        for (i, parts) in parts.iter().enumerate() {
            let log = dir.join(format!("server-{i}.log"));
            let mut child = spawn(graph, parts, &log)?;
            let stdout = child.stdout.take().context("a server has no stdout")?;
            let address = Address { address: String::new(), parts: parts.to_vec() };
            servers.running.push(Running { child, log, address });
            starting.push(stdout);
        }
        for (server, stdout) in servers.running.iter_mut().zip(starting) {
            server.address = server.wait_until_ready(stdout)?;
        }
        Ok(servers)
    }

    /// Returns the addresses to connect to.
    pub fn addresses(&self) -> Vec<String> {
        self.running.iter().map(|server| server.address.address.clone()).collect()
    }

    /// Returns the addresses and their partitions, for people.
    pub fn text(&self) -> String {
        let server = |Running { address: Address { address, parts }, .. }: &Running| {
            format!("{address} (partitions {})", joined(parts, ", "))
        };
        joined(self.running.iter().map(server), ", ")
    }

    /// Ends all servers, and fails if one does not end well.
    pub fn stop(mut self) -> Result<Vec<Address>> {
        for server in &mut self.running {
            drop(server.child.stdin.take());
        }
        self.running.iter_mut().map(Running::wait_until_gone).collect()
    }
}

impl Drop for ChildServers {
    fn drop(&mut self) {
        for server in &mut self.running {
            // Both fail only for a child that is gone already.
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
    }
}

fn spawn(graph: &Path, parts: &[u16], log: &Path) -> Result<Child> {
    let program = lode_program()?;
    let stderr = File::create(log).with_context(|| format!("{}: cannot create", log.display()))?;
    Command::new(program)
        .arg("serve")
        .arg(graph)
        .args(["--parts", &joined(parts, ","), "--listen", "127.0.0.1:0", "--shards", "1"])
        .args(["--json", "--exit-with-stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .context("cannot start a server process")
}

impl Running {
    fn wait_until_ready(&self, stdout: ChildStdout) -> Result<Address> {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            // No listener is left once the patience is over.
            let _ = sender.send(read.map(|_| line));
        });
        let line = receiver.recv_timeout(PATIENCE).map_err(|_| {
            anyhow!("a server is not ready after {PATIENCE:?}{}", self.log_tail())
        })??;
        serde_json::from_str(&line)
            .map_err(|_| anyhow!("a server did not start{}", self.log_tail()))
    }

    fn wait_until_gone(&mut self) -> Result<Address> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(self.address.clone()),
                Some(status) => bail!("a server ended with {status}{}", self.log_tail()),
                None if Instant::now() > deadline => {
                    bail!("a server does not stop{}", self.log_tail());
                }
                None => sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Returns what the server said last.
    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!("; its log {} ends:\n{}", self.log.display(), last.join("\n"))
    }
}
