//! Graphs, buckets and schedules that earlier releases wrote are opened and brought forward.
//!
//! `releases/0.1.0.tar.gz` has a ring of 40 nodes in two partitions: row `i` of `feat` was `i` at
//! version 1, 102 at version 2 for all, 103 at version 3 for nodes 0 and 39. Rows of 104 are
//! pending for nodes 5 and 39. The bucket has version 3.

use std::path::{Path, PathBuf};
use std::process::Command;

use lodestore_graph::npy::{NpyArray, NpyType};

use testing::process::lode;
use testing::write_npy;

const N_NODES: u32 = 40;

struct Release {
    dir: tempfile::TempDir,
}

impl Release {
    fn unpacked(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let archive =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/storage/releases").join(name);
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(archive).arg("-C").arg(dir.path());
        assert!(unpack.status().unwrap().success());
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn url(&self) -> String {
        format!("file://{}", self.text("bucket"))
    }

    /// Returns the first element of the row of `feat` of each node, by external id.
    fn feat(&self, graph: &str, more: &[&str]) -> Vec<f32> {
        let (ids, out) = (self.text("ids.npy"), self.text("out.npy"));
        let all: Vec<u32> = (0..N_NODES).collect();
        write_npy(Path::new(&ids), NpyType::U32, &[u64::from(N_NODES)], &all);
        let graph = self.text(graph);
        let mut args = vec!["gather", "--external-ids", "--tensor", "feat", "--graph", &graph];
        args.extend(["--ids", &ids, "--out", &out]);
        args.extend(more);
        lode(args).succeeded();
        let rows = NpyArray::open(Path::new(&out)).unwrap();
        let rows: &[f32] = bytemuck::cast_slice(rows.bytes());
        rows.chunks_exact(4).map(|row| row[0]).collect()
    }
}

fn version_2() -> Vec<f32> {
    vec![102.0; N_NODES as usize]
}

fn version_3() -> Vec<f32> {
    let mut rows = version_2();
    rows[0] = 103.0;
    rows[39] = 103.0;
    rows
}

fn version_4() -> Vec<f32> {
    let mut rows = version_3();
    rows[5] = 104.0;
    rows[39] = 104.0;
    rows
}

#[test]
fn a_graph_of_release_0_1_0_is_read_written_and_repaired() {
    let release = Release::unpacked("0.1.0.tar.gz");
    let graph = release.text("graph");
    assert_eq!(lode(["verify", "--json", &graph]).succeeded().json()["ok"], true);
    assert_eq!(release.feat("graph", &["--version", "2"]), version_2());
    assert_eq!(release.feat("graph", &[]), version_3());
    let committed = lode(["commit", "--json", &graph]).succeeded().json();
    assert_eq!(committed["version"], 4);
    assert_eq!(release.feat("graph", &[]), version_4());
    assert_eq!(release.feat("graph", &["--version", "3"]), version_3());
    lode(["compact", "--json", &graph]).succeeded();
    assert_eq!(release.feat("graph", &[]), version_4());
    std::fs::remove_dir_all(release.path("graph/part-001/catalog")).unwrap();
    lode(["repair", &graph]);
    assert_eq!(release.feat("graph", &[]), version_4());
    lode(["commit", &graph]).succeeded();
}

#[test]
fn a_bucket_of_release_0_1_0_is_pulled_and_published_to() {
    let release = Release::unpacked("0.1.0.tar.gz");
    let (graph, url) = (release.text("graph"), release.url());
    lode(["verify", &url]).succeeded();
    let pulled = release.text("pulled");
    let report = lode(["pull", "--json", &url, &pulled]).succeeded().json();
    assert_eq!(report["version"], 3);
    assert_eq!(release.feat("pulled", &[]), version_3());
    lode(["commit", &graph]).succeeded();
    lode(["push", &graph, &url]).succeeded();
    lode(["pull", &url, &pulled]).succeeded();
    assert_eq!(release.feat("pulled", &[]), version_4());
    lode(["gc", &url, "--keep", "1", "--grace", "0"]).succeeded();
    lode(["verify", &url]).succeeded();
    // The copy continues the history.
    lode(["push", &pulled, &url]).succeeded();
}

#[test]
fn a_schedule_of_release_0_1_0_has_its_batches() {
    let release = Release::unpacked("0.1.0.tar.gz");
    let (graph, schedule) = (release.text("graph"), release.text("again.lode"));
    let args =
        ["--seed", "1", "--fanout", "2,2", "--batch", "8", "--epochs", "2", "--workers", "2"];
    let mut command = vec!["schedule", "--json", &graph, "--out", &schedule];
    command.extend(args);
    let made = lode(command).succeeded().json();
    assert_eq!(made["digest"], "1261e6cd8e618063dc0c2c652cdfd7bc9418e424d22324dfc74d0c08e64180f4");
    let now = std::fs::read(&schedule).unwrap();
    let then = std::fs::read(release.path("schedule.lode")).unwrap();
    assert!(now == then, "the same batches make the same file");
}
