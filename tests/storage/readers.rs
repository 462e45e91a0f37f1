//! Ways to read a graph's files: each returns the same bytes; the disk is probed and a graph keeps
//! the result.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lodestore_graph::npy::NpyType;
use lodestore_graph::{NodeId, PartId};
use lodestore_store::{EmbeddedStore, OpenOptions, ReaderKind};

use testing::graph::{Source, shuffled_ids};
use testing::process::{command, lode, lode_line, wait};
use testing::{names_in, write_npy};

const READERS: [&str; 4] = ["auto", "mapped", "direct", "pread"];

#[test]
fn every_reader_gathers_the_same_bytes() {
    let source = Source::random(2000, 5000);
    let graph = source.import("graph", 3, "hash").display().to_string();
    let external = shuffled_ids(source.n_nodes);
    let (ids, out) = (source.file("ids.npy"), source.file("out.npy"));
    write_npy(&ids, NpyType::U32, &[external.len() as u64], &external);
    for tensor in ["feat", "wide", "label"] {
        let expected = source.rows(tensor, &external);
        for reader in READERS {
            let line = format!(
                "gather --external-ids --graph {graph} --tensor {tensor} --reader {reader} --ids {} \
                 --out {}",
                ids.display(),
                out.display()
            );
            lode_line(&line).succeeded();
            assert!(fs::read(&out).unwrap().ends_with(&expected), "{tensor} by {reader}");
        }
    }
    let wrong = format!("gather --graph {graph} --tensor feat --reader mmap --ids x --out y");
    lode_line(&wrong).failed(2, &["mmap", "direct"]);
}

#[test]
fn a_graph_keeps_the_result_of_a_probe_and_inspect_shows_it() {
    let source = Source::random(300, 900);
    let graph = source.import("graph", 2, "range");
    let inspect = |graph: &Path| lode(["inspect".as_ref(), graph.as_os_str()]).succeeded().stdout;
    let before = inspect(&graph);
    assert!(before.contains("mapped, because") && before.contains("the default"), "{before}");
    let line = format!("probe {} --json --size 16MiB --seconds 1", graph.display());
    let report = lode_line(&line).succeeded().json();
    let iops = report["iops"].as_f64().unwrap();
    assert!(iops > 0.0 && report["bandwidth_bytes_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(report["file_bytes"], 16 << 20);
    let cells = report["cells"].as_array().unwrap();
    for key in ["request_bytes", "depth", "iops", "bytes_per_s", "p50_us", "p99_us"] {
        assert!(cells.iter().all(|cell| cell[key].is_number()), "{key}");
    }
    assert!(report["kept"].as_str().unwrap().ends_with("device.toml"));
    let json = lode_line(&format!("inspect {} --json", graph.display())).succeeded().json();
    assert_eq!(json["device"]["iops"].as_f64(), Some(iops));
    assert!(json["device"]["measured_unix_s"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(json["reader"]["kind"], "mapped");
    // Random bytes, 1.35 MB of them; labels are too few for a sample.
    let tensor = |name| json["tensors"].as_array().unwrap().iter().find(|t| t["name"] == name);
    let wide = &tensor("wide").unwrap()["codec_choice"];
    assert_eq!((&wide["auto"], &wide["raw_bytes"]), (&"raw".into(), &(300 * 4500).into()));
    for key in ["zstd_bytes", "decode_bytes_per_s", "raw_row_seconds", "zstd_row_seconds"] {
        assert!(wide[key].as_f64().unwrap() > 0.0, "{key}: {wide}");
    }
    assert!(wide["reason"].as_str().unwrap().contains("it shrinks 1.0 times"), "{wide}");
    assert!(tensor("label").unwrap()["codec_choice"]["zstd_bytes"].is_null());
    let after = inspect(&graph);
    assert!(after.contains("measured just now"), "{after}");
    assert!(after.contains("codec of wide: auto takes raw here"), "{after}");
    // In a folder that is no graph it is kept where that is asked for.
    let folder = source.file("disk");
    fs::create_dir(&folder).unwrap();
    let line = format!("probe {} --size 16MiB --seconds 1", folder.display());
    assert!(lode_line(&line).succeeded().stdout.contains("--keep"));
    assert!(names_in(&folder).is_empty());
    lode_line(&format!("{line} --keep")).succeeded();
    assert_eq!(names_in(&folder), ["device.toml"]);
    lode_line(&format!("probe {}/device.toml --keep", folder.display())).failed(2, &["--keep"]);
    lode_line(&format!("verify {}", graph.display())).succeeded();
}

/// Direct readers open a segment once more by its name.
#[test]
fn readers_of_other_processes_come_through_while_segments_are_replaced() {
    let source = Source::random(500, 1000);
    let graph = source.import("graph", 1, "range").display().to_string();
    let (ids, rows) = (source.file("ids.npy"), source.file("rows.npy"));
    write_npy(&ids, NpyType::U32, &[1], &[7u32]);
    let is_over = AtomicBool::new(false);
    let read = |at: usize| {
        let (out, mut n_read) = (source.file(&format!("out-{at}.npy")), 0);
        while !is_over.load(Ordering::Relaxed) {
            let (ids, out) = (ids.display(), out.display());
            let line = "gather --tensor feat --reader direct --graph";
            lode_line(&format!("{line} {graph} --ids {ids} --out {out}")).succeeded();
            n_read += 1;
        }
        n_read
    };
    let read = &read;
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|at| scope.spawn(move || read(at)));
        let written = std::panic::catch_unwind(|| {
            for seq in 0..10u8 {
                write_npy(&rows, NpyType::F32, &[1, 13], &[f32::from(seq); 13]);
                let (ids, rows) = (ids.display(), rows.display());
                let line = format!("--graph {graph} --tensor feat --ids {ids} --rows {rows}");
                lode_line(&format!("put {line} --commit")).succeeded();
                lode_line(&format!("compact {graph}")).succeeded();
            }
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
        written.unwrap();
    });
}

#[test]
fn a_damaged_profile_is_warned_of_once_and_rows_come_all_the_same() {
    let source = Source::random(300, 900);
    let graph = source.import("graph", 2, "range");
    fs::write(graph.join("device.toml"), "checksum = \"00000000\"\niops = 1.0\n").unwrap();
    let ids = source.file("ids.npy");
    write_npy(&ids, NpyType::U32, &[3], &[0u32, 299, 7]);
    let line = format!(
        "gather --graph {} --tensor wide --ids {} --out {}",
        graph.display(),
        ids.display(),
        source.file("out.npy").display()
    );
    let gathered = lode_line(&line).succeeded();
    assert_eq!(gathered.stderr.matches("device.toml").count(), 1, "{}", gathered.stderr);
    let told = lode(["inspect".as_ref(), graph.as_os_str()]).succeeded().stdout;
    assert!(told.contains("checksum") && told.contains("lode probe"), "{told}");
}

#[test]
fn a_probe_that_is_killed_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for after_ms in [0, 20, 100, 400, 900] {
        let args = ["probe", dir.path().to_str().unwrap(), "--size", "256MiB"];
        let mut child = command(args).spawn().unwrap();
        sleep(Duration::from_millis(after_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(names_in(dir.path()), [] as [&str; 0], "after {after_ms} ms");
    }
}

#[test]
fn a_probe_of_nothing_is_refused() {
    lode_line("probe /nonexistent/folder").failed(1, &["/nonexistent/folder"]);
    let dir = tempfile::tempdir().unwrap();
    let line = format!("probe {} --size 1MiB", dir.path().display());
    lode_line(&line).failed(1, &["too small"]);
    lode_line("probe / --size many").failed(2, &["512MiB"]);
}

/// A file system on a loop device whose file is cut short under it. Reads behind the cut fail with
/// EIO, as those of a dying disk.
struct DyingDisk {
    dir: tempfile::TempDir,
}

impl DyingDisk {
    /// Mounts it; `None` where the system does not let us.
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
        fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
        fs::create_dir(&mount).unwrap();
        let ran = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output();
            output.is_ok_and(|output| output.status.success())
        };
        let (image, mount) = (image.to_str().unwrap(), mount.to_str().unwrap());
        let is_there = ran("mkfs.ext4", &["-q", "-F", "-b", "4096", image])
            && ran("mount", &["-o", "loop", image, mount]);
        is_there.then_some(Self { dir })
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("mount")
    }

    fn die(&self) {
        let image = fs::OpenOptions::new().write(true).open(self.dir.path().join("image")).unwrap();
        image.set_len(1 << 20).unwrap();
    }
}

impl Drop for DyingDisk {
    fn drop(&mut self) {
        let mut umount = Command::new("umount").arg("-l").arg(self.path()).spawn().unwrap();
        let _ = wait(&mut umount, Duration::from_secs(20));
    }
}

/// Throws what the system has in memory of a file away.
fn drop_cached(path: &Path) {
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn a_dying_disk_is_an_error_of_each_reader_and_no_hang() {
    let Some(disk) = DyingDisk::mount() else {
        println!("SKIPPED: only root can mount");
        return;
    };
    let source = Source::random(2000, 5000);
    let graph = disk.path().join("graph");
    source.try_import(&graph, &["wide"], &["--parts", "1"]).succeeded();
    let open = |reader: ReaderKind| {
        let options = OpenOptions { reader };
        EmbeddedStore::open_with(&graph, Some(&[PartId(0)]), &options).unwrap()
    };
    let stores = [ReaderKind::Direct, ReaderKind::Pread, ReaderKind::Mapped].map(open);
    let ids: Vec<NodeId> = (0..source.n_nodes).step_by(3).map(NodeId).collect();
    let mut out = vec![0; ids.len() * testing::graph::WIDE];
    // The map's pages stay unread: those in memory need no disk.
    stores[..2].iter().for_each(|store| store.gather("wide", &ids, &mut out).unwrap());
    drop_cached(&graph.join("part-000/wide.v1.seg"));
    disk.die();
    let start = Instant::now();
    for store in &stores {
        let error = store.gather("wide", &ids, &mut out).unwrap_err().to_string();
        assert!(error.contains("wide.v1.seg") && error.contains("at byte"), "{error}");
        assert!(error.contains("os error 5"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(30));
}
