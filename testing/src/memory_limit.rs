//! A memory cgroup for one command.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{Finished, finish, program};

/// A cgroup in which all memory counts, page cache too. It is removed in the end.
pub struct MemoryLimit {
    group: PathBuf,
}

impl MemoryLimit {
    /// Makes a cgroup of `n_bytes`. `None`, and a line that says so, where none may be made.
    pub fn new(n_bytes: u64) -> Option<Self> {
        let name = format!("lodestore-test-{}", std::process::id());
        // Version 1, which has a hierarchy of its own for memory, then version 2.
        let kinds = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
        let made = kinds.map(|(hierarchy, file)| {
            let limit = Self { group: PathBuf::from("/sys/fs/cgroup").join(hierarchy).join(&name) };
            fs::create_dir(&limit.group)
                .and_then(|()| limit.write(file, n_bytes))
                .map(|()| limit)
                .map_err(|error| error.to_string())
        });
        let why = made.each_ref().map(|made| made.as_ref().err().cloned().unwrap_or_default());
        let limit = made.into_iter().find_map(Result::ok);
        if limit.is_none() {
            println!("SKIPPED: no memory cgroup may be made here: {}", why.join(", "));
        }
        limit
    }

    /// Runs `lode` in it, with a line of arguments without spaces in them.
    pub fn lode_line(&self, line: &str) -> Finished {
        let mut command = Command::new("sh");
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        command.arg("-c").arg(script).arg(self.group.join("cgroup.procs"));
        command.arg(program("lode")).args(line.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().unwrap(), Duration::from_secs(100))
    }

    fn write(&self, file: &str, value: u64) -> io::Result<()> {
        fs::OpenOptions::new()
            .write(true)
            .open(self.group.join(file))
            .and_then(|mut file| io::Write::write_all(&mut file, value.to_string().as_bytes()))
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // One that stays is empty, and takes nothing.
        let _ = fs::remove_dir(&self.group);
    }
}
