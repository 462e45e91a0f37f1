//! A graph whose partitions are on two machines. Each command works on those that are here, and
//! says which are not.

use std::fs;
use std::path::{Path, PathBuf};

use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::import::EXTERNAL_ID_TENSOR;
use lodestore_store::{EmbeddedStore, Graph};

use testing::graph::Source;
use testing::process::{Finished, lode, lode_line};
use testing::write_npy;

const N_NODES: u32 = 400;

/// Partitions 0 and 1 in one folder, 2 and 3 in another.
struct Machines {
    source: Source,
    folders: [PathBuf; 2],
}

impl Machines {
    fn new() -> Self {
        let source = Source::random(N_NODES, 1600);
        let one = source.import("one", 4, "hash");
        let other = source.file("other");
        fs::create_dir(&other).unwrap();
        fs::copy(one.join("graph.toml"), other.join("graph.toml")).unwrap();
        for part in ["part-002", "part-003"] {
            fs::rename(one.join(part), other.join(part)).unwrap();
        }
        Self { source, folders: [one, other] }
    }

    /// Runs a command on the folder of a machine.
    fn run(&self, machine: usize, command: &str, more: &str) -> Finished {
        lode_line(&format!("{command} {} {more} --json", self.folders[machine].display()))
    }

    /// Returns the external ids of the nodes of a partition.
    fn external(&self, machine: usize, part: u16) -> Vec<u32> {
        let graph = Graph::open(&self.folders[machine]).unwrap();
        let store = EmbeddedStore::from_graph(graph, Some(&[PartId(part)])).unwrap();
        let nodes: Vec<NodeId> = store.graph().book().range(PartId(part)).map(NodeId).collect();
        let mut out = vec![0; nodes.len() * 8];
        store.gather(EXTERNAL_ID_TENSOR, &nodes, &mut out).unwrap();
        out.as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id) as u32).collect()
    }

    fn put(&self, machine: usize, ids: &[u32], more: &[&str]) -> Finished {
        let rows = vec![[7.0f32; 13]; ids.len()];
        let file = self.source.file("put.npy");
        write_npy(&file, NpyType::F32, &[ids.len() as u64, 13], &rows);
        let more = [&["--rows", path(&file)], more].concat();
        self.with_ids(machine, "put", ids, &more)
    }

    fn gather(&self, machine: usize, ids: &[u32]) -> Finished {
        self.with_ids(machine, "gather", ids, &["--out", path(&self.source.file("out.npy"))])
    }

    fn with_ids(&self, machine: usize, command: &str, ids: &[u32], more: &[&str]) -> Finished {
        let file = self.source.file("ids.npy");
        write_npy(&file, NpyType::U32, &[ids.len() as u64], ids);
        let mut args = vec![command, "--json", "--external-ids", "--tensor", "feat"];
        args.extend(["--graph", path(&self.folders[machine]), "--ids", path(&file)]);
        args.extend(more);
        lode(args)
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn partitions_of_another_machine_are_absent_and_neither_damaged_nor_lost() {
    let machines = Machines::new();
    for (machine, here, absent) in [(0, "0,1", [2, 3]), (1, "3,2", [0, 1])] {
        for command in ["verify", "repair"] {
            let report = machines.run(machine, command, "").failed(1, &[]).json();
            assert_eq!(report["absent"], serde_json::json!(absent), "{command}");
            assert_eq!(report["ok"], false);
            for faults in ["damaged", "lost", "done"] {
                assert!(report[faults].as_array().is_none_or(Vec::is_empty), "{report}");
            }
            let parts = format!("--parts {here}");
            let report = machines.run(machine, command, &parts).succeeded().json();
            assert_eq!((&report["ok"], &report["absent"]), (&true.into(), &serde_json::json!([])));
            let told = lode_line(&format!("{command} {}", machines.folders[machine].display()));
            let absent = format!(
                "NOT on this machine, and not {}",
                match command {
                    "verify" => "verified",
                    _ => "looked at",
                }
            );
            assert!(told.failed(1, &[]).stdout.contains(&absent));
            let fault = machines.run(machine, command, "--parts 0,1,2,3").failed(1, &[]).json();
            let list = if command == "verify" { "damaged" } else { "lost" };
            assert_eq!(fault[list].as_array().unwrap().len(), 2, "{fault}");
            machines.run(machine, command, "--parts 4").failed(1, &["partition 4"]);
        }
    }
}

#[test]
fn rows_are_put_gathered_and_compacted_where_they_are() {
    let machines = Machines::new();
    let ids = [machines.external(0, 1), machines.external(1, 2)];
    for (machine, part, absent) in [(0, 2, [2, 3]), (1, 1, [0, 1])] {
        let (here, elsewhere) = (&ids[machine], &ids[1 - machine]);
        let mixed = [here[0], here[1], elsewhere[0]];
        let what = ["id 2 of the list", "on this machine"];
        machines.put(machine, &mixed, &[]).failed(1, &what);
        machines.gather(machine, &mixed).failed(1, &what);
        assert!(!machines.source.file("out.npy").exists());
        let summary = machines.run(machine, "inspect", "").succeeded().json();
        assert_eq!(summary["tensors"][0]["pending_rows"], 0, "nothing was put");
        let parts = ["0,1", "2,3"][machine];
        let unnamed = machines.put(machine, here, &["--commit"]);
        unnamed.failed(1, &["would leave out partitions", &format!("--parts {parts}")]);
        let summary = machines.run(machine, "inspect", "").succeeded().json();
        assert_eq!(summary["tensors"][0]["pending_rows"], 0, "nothing was put");
        let committed = machines.put(machine, here, &["--commit", "--parts", parts]);
        let report = committed.succeeded().json();
        assert_eq!(
            (&report["version"], &report["absent"]),
            (&2.into(), &serde_json::json!(absent))
        );
        let report = machines.run(machine, "compact", "").succeeded().json();
        assert_eq!(report["rows"], here.len());
        assert_eq!(report["absent"], serde_json::json!(absent));
        machines.gather(machine, here).succeeded();
        let rows = NpyArray::open(&machines.source.file("out.npy")).unwrap();
        assert!(rows.bytes().as_chunks::<4>().0.iter().all(|x| f32::from_le_bytes(*x) == 7.0));
        fs::remove_file(machines.source.file("out.npy")).unwrap();
        let node =
            Graph::open(&machines.folders[machine]).unwrap().book().range(PartId(part)).start;
        let (file, out) = (machines.source.file("ids.npy"), machines.source.file("out.npy"));
        write_npy(&file, NpyType::U32, &[1], &[node]);
        let args = ["--tensor", "feat", "--ids", path(&file), "--out", path(&out), "--graph"];
        let gathered = lode([&["gather"], &args[..], &[path(&machines.folders[machine])]].concat());
        gathered.failed(1, &[&format!("node {node} of partition {part}"), "here: "]);
    }
}

#[test]
fn a_folder_without_any_partition_says_so() {
    let machines = Machines::new();
    for part in ["part-000", "part-001"] {
        fs::remove_dir_all(machines.folders[0].join(part)).unwrap();
    }
    machines.run(0, "compact", "").failed(1, &["no partition", "on this machine"]);
    machines.gather(0, &[1]).failed(1, &["no partition", "on this machine"]);
    machines.put(0, &[1], &[]).failed(1, &["no partition", "on this machine"]);
}
