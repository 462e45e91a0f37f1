//! A graph on a read-only mount.

use lodestore_graph::npy::{NpyArray, NpyType};

use testing::graph::{Source, WIDE};
use testing::mount::Disk;
use testing::process::{lode, lode_line};
use testing::write_npy;

#[test]
fn a_graph_on_a_read_only_mount_is_read_and_every_change_of_it_is_refused() {
    let Some(mount) = Disk::tmpfs(64 << 20) else { return };
    let source = Source::random(400, 1200);
    let graph = mount.path("graph");
    source.try_import(&graph, &["feat", "wide"], &["--parts", "2"]).succeeded();
    let (ids, rows, out) =
        (source.file("ids.npy"), source.file("rows.npy"), source.file("out.npy"));
    let wanted: Vec<u32> = (0..400).rev().step_by(7).collect();
    write_npy(&ids, NpyType::U32, &[wanted.len() as u64], &wanted);
    write_npy(&rows, NpyType::F32, &[wanted.len() as u64, 13], &vec![[1f32; 13]; wanted.len()]);
    let (graph, ids, rows) = (graph.display(), ids.display(), rows.display());
    let put = format!("put --graph {graph} --external-ids --tensor feat --ids {ids} --rows {rows}");
    // So that there is a version with a delta, and a log that was not read yet.
    lode_line(&format!("{put} --commit")).succeeded();
    mount.remount("ro");

    for reader in ["auto", "mapped", "direct", "pread"] {
        let gather = format!("gather --graph {graph} --external-ids --tensor wide --ids {ids}");
        lode_line(&format!("{gather} --reader {reader} --out {}", out.display())).succeeded();
        let found = NpyArray::open(&out).unwrap();
        assert_eq!(found.shape(), [wanted.len() as u64, WIDE as u64]);
        assert!(found.bytes() == source.rows("wide", &wanted), "{reader}");
        let gather = format!("gather --graph {graph} --external-ids --tensor feat --ids {ids}");
        lode_line(&format!("{gather} --reader {reader} --out {}", out.display())).succeeded();
        let found = NpyArray::open(&out).unwrap();
        let expected = vec![[1f32; 13]; wanted.len()];
        assert!(found.bytes() == bytemuck::cast_slice::<_, u8>(&expected), "{reader}, the delta");
    }
    lode_line(&format!("inspect {graph}")).succeeded();
    lode_line(&format!("verify {graph}")).succeeded();
    for line in [put.clone(), format!("{put} --commit"), format!("compact {graph}")] {
        lode_line(&line).failed(1, &[&graph.to_string(), "ead-only file system", "writable"]);
    }
    let more = ["--parts", "1"];
    let elsewhere = source.try_import(&mount.path("other"), &["feat"], &more);
    elsewhere.failed(1, &["other", "ead-only file system"]);

    mount.remount("rw");
    lode_line(&format!("{put} --commit")).succeeded();
    lode_line(&format!("compact {graph}")).succeeded();
    lode(["verify", &graph.to_string()]).succeeded();
}
