//! Partitions that move between real servers while clients pull and put, and moves that are cut off
//! at every step.

mod behind;
mod cut_off;
mod followers;
mod names;
mod pinned;
mod refused;
mod stopped;
mod under_load;

use std::path::{Path, PathBuf};
use std::time::Duration;

use lodestore_client::ClientConfig;
use lodestore_client::transfer::TransferPlan;
use lodestore_graph::PartId;
use tempfile::TempDir;
use testing::process::Serving;
use testing::workload::known_graph;

const N_NODES: u32 = 3000;
const N_PARTS: u16 = 3;

/// Two folders of one graph: the first has all partitions, the second none.
struct Two {
    _dir: TempDir,
    folders: [PathBuf; 2],
}

impl Two {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let first = known_graph(dir.path(), N_NODES, N_PARTS);
        let second = dir.path().join("second");
        std::fs::create_dir(&second).unwrap();
        std::fs::copy(first.join("graph.toml"), second.join("graph.toml")).unwrap();
        Self { folders: [first, second], _dir: dir }
    }

    /// Starts the server of a folder, at `address` if it has been there before.
    fn serve(&self, at: usize, address: &str) -> Serving {
        let more = format!("--local-parts --writable --insecure --shards 2 --listen {address}");
        Serving::start(&self.folders[at], &more)
    }

    /// Returns how many folders own each partition.
    fn owners(&self) -> Vec<usize> {
        let owns = |folder: &PathBuf, part: u16| folder.join(format!("part-{part:03}")).exists();
        (0..N_PARTS).map(|part| self.folders.iter().filter(|it| owns(it, part)).count()).collect()
    }

    /// Checks that every partition is owned once, and nothing is damaged.
    fn assert_whole(&self) {
        assert_eq!(self.owners(), [1; N_PARTS as usize]);
        for folder in &self.folders {
            let report = lodestore_store::verify::verify(folder, &mut |_, _| {}).unwrap();
            assert!(report.damaged.is_empty(), "{report:?}");
        }
    }
}

fn plan(from: &Serving, part: u16, into: &Path, to: Option<&Serving>) -> TransferPlan {
    let config = ClientConfig { deadline: Duration::from_secs(20), ..ClientConfig::default() };
    TransferPlan {
        from: from.address.parse().unwrap(),
        part: PartId(part),
        into: into.to_owned(),
        to: to.map(|to| to.address.parse().unwrap()),
        unserved: to.is_none(),
        keep: false,
        config,
    }
}
