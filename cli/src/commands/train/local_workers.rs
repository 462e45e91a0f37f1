//! Workers of a run in this process, and its share of the machine.

/// Workers of the run in this process.
#[derive(Clone, Debug)]
pub(super) struct LocalWorkers {
    pub(super) workers: Vec<u32>,
    /// Processes of the run on this machine, which share its memory.
    pub(super) n_processes: u32,
}

impl LocalWorkers {
    /// Returns this process's share of bytes that all on this machine have together.
    pub(super) fn share(&self, n_bytes: u64) -> u64 {
        n_bytes / u64::from(self.n_processes)
    }
}
