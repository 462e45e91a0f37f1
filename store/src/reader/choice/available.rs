//! How much memory this process may still have.

use std::fs;
use std::path::{Path, PathBuf};

/// Where systems mount the memory controller: version 2, version 1, and both side by side.
const MOUNTS: [(&str, Controller); 3] = [
    ("/sys/fs/cgroup", Controller::V2),
    ("/sys/fs/cgroup/memory", Controller::V1),
    ("/sys/fs/cgroup/unified", Controller::V2),
];

/// Control groups of one version, and how they name their figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    V1,
    V2,
}

/// Returns the bytes of memory that this process may use beyond what it has. They are limited by
/// what the machine has free or can free, and by its control groups. Returns `None` where the
/// system reports neither.
#[must_use]
pub fn available_memory_bytes() -> Option<u64> {
    let machine = read("/proc/meminfo").and_then(|text| kib_of(&text, "MemAvailable:"));
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let groups = MOUNTS.iter().flat_map(|&(mount, controller)| {
        group_dirs(Path::new(mount), controller, &groups)
            .into_iter()
            .filter_map(move |dir| controller.available_bytes(&dir))
    });
    machine.into_iter().chain(groups).min()
}

/// Returns the group's folder and those above it, up to the mount: each has a limit of its own.
///
/// In a container the path may be the host's and not exist below the mount; its own group is the
/// mount itself then.
fn group_dirs(mount: &Path, controller: Controller, groups: &str) -> Vec<PathBuf> {
    let path = groups.lines().find_map(|line| controller.path_in(line)).unwrap_or("/");
    let dir = mount.join(path.trim_start_matches('/'));
    let dirs = dir.ancestors().take_while(|dir| dir.starts_with(mount));
    dirs.map(Path::to_owned).collect()
}

impl Controller {
    /// Returns the group's path, if this line of `/proc/self/cgroup` is about this controller.
    fn path_in(self, line: &str) -> Option<&str> {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_ours = match self {
            Self::V1 => controllers.split(',').any(|name| name == "memory"),
            Self::V2 => id == "0" && controllers.is_empty(),
        };
        is_ours.then_some(path)
    }

    /// Returns what the group allows beyond what it uses; its page cache can be freed. `None`
    /// without a limit.
    fn available_bytes(self, dir: &Path) -> Option<u64> {
        let (limit, usage, [active, inactive]) = match self {
            Self::V1 => (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_active_file", "total_inactive_file"],
            ),
            Self::V2 => ("memory.max", "memory.current", ["active_file", "inactive_file"]),
        };
        let figure = |name: &str| read(dir.join(name))?.trim().parse::<u64>().ok();
        let limit_bytes = figure(limit)?;
        let stat = read(dir.join("memory.stat")).unwrap_or_default();
        let cached_bytes = [active, inactive].map(|key| value_of(&stat, key).unwrap_or(0));
        let used_bytes = figure(usage)?.saturating_sub(cached_bytes.iter().sum());
        Some(limit_bytes.saturating_sub(used_bytes))
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Returns the bytes of a line such as `MemAvailable: 1024 kB`.
fn kib_of(text: &str, key: &str) -> Option<u64> {
    value_of(text, key)?.checked_mul(1024)
}

/// Returns the number of the line whose first word is `key`.
fn value_of(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(key)).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_group_is_found_in_both_versions() {
        let groups = "9:name=systemd:/s\n4:cpu,memory:/a/b\n0::/c.slice/d\n";
        let dirs = |controller| group_dirs(Path::new("/m"), controller, groups);
        let expected = |dirs: [&str; 3]| dirs.map(PathBuf::from).to_vec();
        assert_eq!(dirs(Controller::V1), expected(["/m/a/b", "/m/a", "/m"]));
        assert_eq!(dirs(Controller::V2), expected(["/m/c.slice/d", "/m/c.slice", "/m"]));
        let none = group_dirs(Path::new("/m"), Controller::V2, "1:cpu:/x\nnonsense\n");
        assert_eq!(none, [PathBuf::from("/m")]);
    }

    #[test]
    fn a_group_allows_its_limit_less_what_is_not_cache() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(Controller::V2.available_bytes(dir.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(Controller::V2.available_bytes(dir.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(Controller::V2.available_bytes(dir.path()), Some(300));
        write("memory.stat", "anon 500\nactive_file 50\ninactive_file 150\n");
        assert_eq!(Controller::V2.available_bytes(dir.path()), Some(500));
        write("memory.current", "1900\n");
        assert_eq!(Controller::V2.available_bytes(dir.path()), Some(0));
        write("memory.limit_in_bytes", "1000\n");
        write("memory.usage_in_bytes", "100\n");
        assert_eq!(Controller::V1.available_bytes(dir.path()), Some(900));
    }

    #[test]
    fn figures_are_found_by_whole_words() {
        let text = "MemFree: 5 kB\nMemAvailable:    7 kB\nMemAvailable2: x kB";
        assert_eq!(kib_of(text, "MemAvailable:"), Some(7 * 1024));
        assert_eq!(kib_of(text, "MemAvail"), None);
        assert_eq!(kib_of(text, "MemAvailable2:"), None);
    }

    #[test]
    fn this_machine_reports_it() {
        let bytes = available_memory_bytes().unwrap();
        assert!(bytes > 1 << 20, "{bytes}");
    }
}
