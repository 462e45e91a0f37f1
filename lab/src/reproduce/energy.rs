//! Energy that the machine has used, where Linux counts it.

use std::fs;
use std::path::{Path, PathBuf};

/// Folder of the counters: one folder for each processor, and for parts of it, which are not
/// counted twice.
const COUNTERS: &str = "/sys/class/powercap";

/// Counters of all processors. Everything that runs on the machine counts.
pub(super) struct Energy(Vec<Counter>);

struct Counter {
    path: PathBuf,
    /// Where it starts again.
    range_uj: u64,
    started_uj: u64,
}

impl Energy {
    /// Starts to measure; none where nothing counts, or only for the superuser.
    pub(super) fn start() -> Option<Self> {
        Self::start_in(Path::new(COUNTERS))
    }

    fn start_in(dir: &Path) -> Option<Self> {
        let mut counters = Vec::new();
        for entry in fs::read_dir(dir).ok()? {
            let folder = entry.ok()?.path();
            let name = folder.file_name()?.to_str()?;
            // `intel-rapl:0` is a processor, `intel-rapl:0:0` its cores.
            if !name.starts_with("intel-rapl:") || name.matches(':').count() != 1 {
                continue;
            }
            let path = folder.join("energy_uj");
            let range_uj = number(&folder.join("max_energy_range_uj"))?;
            counters.push(Counter { started_uj: number(&path)?, path, range_uj });
        }
        (!counters.is_empty()).then_some(Self(counters))
    }

    /// Returns the joules since the start, if all counters can still be read. A counter that has
    /// wrapped more than once counts too few: that takes a minute or more.
    pub(super) fn joules(&self) -> Option<f64> {
        let mut sum_uj = 0;
        for Counter { path, range_uj, started_uj } in &self.0 {
            let now_uj = number(path)?;
            sum_uj += match now_uj.checked_sub(*started_uj) {
                Some(used_uj) => used_uj,
                None => (now_uj + range_uj).checked_sub(*started_uj)?,
            };
        }
        Some(sum_uj as f64 / 1e6)
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_summed_and_counters_may_start_again() {
        let dir = tempfile::tempdir().unwrap();
        let set = |name: &str, energy_uj: u64| {
            let folder = dir.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("energy_uj"), format!("{energy_uj}\n")).unwrap();
            fs::write(folder.join("max_energy_range_uj"), "10000000\n").unwrap();
        };
        assert!(Energy::start_in(dir.path()).is_none());
        for (name, energy_uj) in
            [("intel-rapl:0", 1_000_000), ("intel-rapl:1", 9_000_000), ("intel-rapl:0:0", 5)]
        {
            set(name, energy_uj);
        }
        let energy = Energy::start_in(dir.path()).unwrap();
        assert_eq!(energy.joules(), Some(0.0));
        set("intel-rapl:0", 1_500_000);
        set("intel-rapl:1", 2_000_000);
        assert_eq!(energy.joules(), Some(3.5));
        fs::remove_dir_all(dir.path().join("intel-rapl:1")).unwrap();
        assert_eq!(energy.joules(), None);
    }
}
