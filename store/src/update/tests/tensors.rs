//! Additions and drops of tensors: all or nothing, even if interrupted.

use lodestore_graph::PartId;

use super::transfer::fetch;
use super::*;
use crate::codec::SegmentCodec;
use crate::dtype::Dtype;
use crate::tensor::TensorSpec;
use crate::transfer::Arrival;
use crate::update::drop_tensor;

const WIDTH: usize = 7;

fn spec(name: &str) -> TensorSpec {
    TensorSpec::new(name, Dtype::U8, WIDTH as u32).unwrap()
}

/// Returns the rows of a new tensor: node `i` has the bytes `i`, `i + 1` and so on.
fn rows(n_nodes: u32) -> Vec<u8> {
    (0..n_nodes).flat_map(|node| (0..WIDTH as u32).map(move |at| (node + at) as u8)).collect()
}

fn gathered(ring: &Ring, tensor: &str) -> Result<Vec<u8>, StoreError> {
    let store = EmbeddedStore::open(ring.out(), None)?;
    let ids: Vec<NodeId> = (0..store.graph().meta().nodes).map(NodeId).collect();
    let mut out = vec![0; ids.len() * store.tensor(tensor)?.spec().row_bytes()];
    store.gather(tensor, &ids, &mut out).map(|()| out)
}

fn write(live: &Arc<GraphHandle>, name: &str, n_nodes: u32, cut: usize) -> Graph {
    let mut tensor = live.new_tensor(spec(name), SegmentCodec::Raw).unwrap();
    assert_eq!(tensor.rows_left(), u64::from(n_nodes));
    rows(n_nodes).chunks(cut).for_each(|bytes| tensor.write_rows(bytes).unwrap());
    assert_eq!(tensor.rows_left(), 0);
    tensor.finish().unwrap()
}

#[test]
fn a_new_tensor_is_like_an_imported_one_at_every_version() {
    for (n_nodes, n_owners, n_parts, cut) in
        [(50, 2, 3, 1), (50, 2, 2, 64), (1, 1, 1, 7), (0, 1, 2, 9)]
    {
        let ring = ring(n_nodes, n_owners, n_parts);
        let live = writer(&ring);
        live.commit_version().unwrap();
        let graph = write(&live, "emb", n_nodes, cut);
        assert_eq!(graph.tensor("emb").unwrap(), &spec("emb"));
        drop(live);
        assert_eq!(gathered(&ring, "emb").unwrap(), rows(n_nodes));
        assert!(ring.verify().ok && ring.verify().unknown.is_empty(), "{:?}", ring.verify());
        let live = writer(&ring);
        if n_nodes > 3 {
            live.put_rows("emb", &[NodeId(3)], &[9; WIDTH]).unwrap();
            live.commit_version().unwrap();
            let mut row = [0; WIDTH];
            for (version, expected) in [(1, rows(4)[3 * WIDTH..].to_vec()), (3, vec![9; WIDTH])] {
                at(&live, version).unwrap().gather("emb", &[NodeId(3)], &mut row).unwrap();
                assert_eq!(row[..], expected);
            }
        }
    }
}

fn rows_over(live: &Arc<GraphHandle>, tensor: &str) -> Result<Vec<u8>, StoreError> {
    let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest)?;
    let ids: Vec<NodeId> = (0..live.graph().meta().nodes).map(NodeId).collect();
    let mut out = vec![0; ids.len() * store.tensor(tensor)?.spec().row_bytes()];
    store.gather(tensor, &ids, &mut out).map(|()| out)
}

#[test]
fn a_tensor_is_added_to_all_partitions_of_a_machine_or_to_none() {
    let ring = ring(50, 2, 2);
    let graph = Graph::open(&ring.out()).unwrap();
    let some = Some(&[PartId(1)][..]);
    let live = GraphHandle::open(graph, some, OpenMode::Write, &OpenOptions::default()).unwrap();
    let refused = Arc::new(live).new_tensor(spec("emb"), SegmentCodec::Raw).unwrap_err();
    assert!(matches!(refused, StoreError::NoPart { part: PartId(0), .. }), "{refused}");
}

#[test]
fn a_tensor_is_added_to_an_open_graph_and_dropped_from_it() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    let before = EmbeddedStore::from_handle(Arc::clone(&live), View::Latest).unwrap();
    put(&live, "feat", &[3, 40], 1);
    write(&live, "emb", 50, 1000);
    let mut expected = rows(50);
    assert_eq!(rows_over(&live, "emb").unwrap(), expected);
    assert!(before.tensor("emb").is_err(), "the store was opened before the addition");
    // The tensor is put to, committed, pinned and folded like the others.
    let ids = [NodeId(4), NodeId(49)];
    live.put_rows("emb", &ids, &[9; 2 * WIDTH]).unwrap();
    assert_eq!(live.commit_version().unwrap(), 2);
    for id in ids {
        expected[id.index() * WIDTH..][..WIDTH].fill(9);
    }
    assert_eq!(rows_over(&live, "emb").unwrap(), expected);
    let mut row = [0; WIDTH];
    at(&live, 1).unwrap().gather("emb", &[NodeId(4)], &mut row).unwrap();
    assert_eq!(row[..], rows(5)[4 * WIDTH..]);
    let manifest = live.part_files(PartId(1)).unwrap().manifest().clone();
    assert!(manifest.files().any(|file| file == "emb.v2.delta"), "{manifest:?}");
    let pinned = at(&live, 2).unwrap();
    assert_eq!(compact(&live), 4);
    assert_eq!(rows_over(&live, "emb").unwrap(), expected);
    // A drop removes pending rows, and files that a pinned reader still holds.
    live.put_rows("emb", &ids, &[8; 2 * WIDTH]).unwrap();
    put(&live, "feat", &[5], 2);
    let graph = live.drop_tensor("emb").unwrap();
    assert!(graph.tensor("emb").is_err());
    pinned.gather("emb", &[NodeId(49)], &mut row).unwrap();
    assert_eq!(row, [9; WIDTH]);
    let gone = [
        rows_over(&live, "emb").unwrap_err(),
        live.put_rows("emb", &ids, &[8; 2 * WIDTH]).unwrap_err(),
        live.drop_tensor("emb").unwrap_err(),
    ];
    assert!(gone.iter().all(|it| matches!(it, StoreError::NoTensor { .. })), "{gone:?}");
    assert_eq!(live.commit_version().unwrap(), 3);
    let names = |live: &GraphHandle| {
        let manifest = live.part_files(PartId(0)).unwrap().manifest().clone();
        manifest.files().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(names(&live).iter().all(|file| !file.starts_with("emb")));
    // Another tensor of the same name: no file of the first reappears, and none of its files is
    // removed.
    write(&live, "emb", 50, 64);
    drop(pinned);
    live.sweep().unwrap();
    assert_eq!(rows_over(&live, "emb").unwrap(), rows(50));
    live.put_rows("emb", &[NodeId(0)], &[7; WIDTH]).unwrap();
    live.commit_version().unwrap();
    compact(&live);
    live.sweep().unwrap();
    let mut expected = rows(50);
    expected[..WIDTH].fill(7);
    assert_eq!(rows_over(&live, "emb").unwrap(), expected);
    drop((live, before));
    assert_eq!(gathered(&ring, "emb").unwrap(), expected);
    assert!(ring.verify().ok && ring.verify().unknown.is_empty(), "{:?}", ring.verify());
}

#[test]
fn tensors_cannot_be_added_or_dropped_while_a_partition_is_copied() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    let mut tensor = live.new_tensor(spec("emb"), SegmentCodec::Raw).unwrap();
    tensor.write_rows(&rows(50)).unwrap();
    let copy = live.begin_copy(PartId(1)).unwrap();
    let refused = [tensor.finish().unwrap_err(), live.drop_tensor("mark").unwrap_err()];
    assert!(refused.iter().all(|it| matches!(it, StoreError::Busy { .. })), "{refused:?}");
    assert!(rows_over(&live, "emb").is_err() && rows_over(&live, "mark").is_ok());
    drop(copy);
    write(&live, "emb", 50, 1000);
    drop(live.begin_copy(PartId(0)).unwrap());
    live.drop_tensor("mark").unwrap();
    drop(live.begin_copy(PartId(0)).unwrap());
    drop(live);
    assert_eq!(gathered(&ring, "emb").unwrap(), rows(50));
    assert!(gathered(&ring, "mark").is_err());
    assert!(ring.verify().ok && ring.verify().unknown.is_empty(), "{:?}", ring.verify());
}

#[test]
fn a_partition_that_arrives_after_a_drop_waits_for_the_next_opening() {
    let ring = ring(50, 2, 2);
    let graph = Graph::open(&ring.out()).unwrap();
    let parts = [PartId(0)];
    let live = GraphHandle::open(graph, Some(&parts), OpenMode::Write, &OpenOptions::default());
    let live = Arc::new(live.unwrap());
    live.drop_tensor("mark").unwrap();
    let refused = live.open_received(PartId(1)).unwrap_err().to_string();
    assert!(refused.contains("a tensor was dropped since the graph was opened"), "{refused}");
    drop(live);
    drop(writer(&ring));
    assert!(gathered(&ring, "feat").is_ok() && gathered(&ring, "mark").is_err());
    assert!(ring.verify().ok, "{:?}", ring.verify());
}

#[test]
fn tensors_that_another_process_recreates_block_arrivals() {
    let ring = ring(50, 1, 2);
    let graph = Graph::open(&ring.out()).unwrap();
    // A graph without partitions has no lock: other processes can open the folder.
    let empty = GraphHandle::open(graph, Some(&[]), OpenMode::Write, &OpenOptions::default());
    let empty = empty.unwrap();
    let other = writer(&ring);
    write(&other, "emb", 50, 1000);
    empty.check_receivable(PartId(0)).unwrap();
    let mark = empty.graph().tensor("mark").unwrap().clone();
    other.drop_tensor("mark").unwrap();
    let mut again = other.new_tensor(mark.clone(), SegmentCodec::Raw).unwrap();
    again.write_rows(&vec![3; 50 * mark.row_bytes()]).unwrap();
    again.finish().unwrap();
    drop(other);
    for refused in [
        empty.open_received(PartId(0)).unwrap_err(),
        empty.check_receivable(PartId(1)).unwrap_err(),
    ] {
        assert!(matches!(refused, StoreError::MoveRefused { .. }), "{refused}");
    }
}

/// Like the codec of an import of a whole graph.
#[test]
fn the_codec_of_an_imported_tensor_is_measured_if_none_is_named() {
    const ROW_BYTES: u64 = 64 << 10;
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    let zeros = vec![0; 50 * ROW_BYTES as usize];
    let path = ring.dir.path().join("zeros.npy");
    let source = DenseSource::open_npy(&npy(path, NpyType::U8, &[50, ROW_BYTES], &zeros)).unwrap();
    let options = TensorOptions { codec: CodecChoice::Auto, ..TensorOptions::default() };
    let graph = live.import_tensor("zeros", &source, options, &mut |_, _| {}).unwrap();
    for part in graph.book().parts() {
        let codec = graph.segment(part, "zeros").unwrap().codec();
        assert_eq!(codec, SegmentCodec::zstd_for(ROW_BYTES as usize), "{part}");
    }
}

/// Puts look up a tensor's position in one partition and use it in all of them.
#[test]
fn a_tensor_is_added_to_all_partitions_while_no_put_runs() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    let mut tensor = live.new_tensor(spec("emb"), SegmentCodec::Raw).unwrap();
    tensor.write_rows(&rows(50)).unwrap();
    std::thread::scope(|scope| {
        let put = live.gate.read().unwrap();
        let finishing = scope.spawn(|| tensor.finish().map(drop));
        let is_listed = || Graph::open(&ring.out()).unwrap().tensor("emb").is_ok();
        while !is_listed() && !finishing.is_finished() {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(live.tensor_position("emb").is_err(), "a put is running");
        drop(put);
        finishing.join().unwrap().unwrap();
    });
    live.put_rows("emb", &[NodeId(3), NodeId(49)], &[9; 2 * WIDTH]).unwrap();
}

/// The files of both tensors have the same names.
#[test]
fn leftovers_of_a_failed_drop_remove_no_file_of_a_new_tensor() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    write(&live, "emb", 50, 1000);
    live.put_rows("emb", &[NodeId(4)], &[9; WIDTH]).unwrap();
    live.commit_version().unwrap();
    let pin = at(&live, 1).unwrap();
    compact(&live);
    let full = rustix::io::Errno::NOSPC.into();
    live.tensor(PartId(0), 0).unwrap().catalog().fail_writes(full);
    live.drop_tensor("emb").unwrap_err();
    // The free space is checked once a second.
    let mut again = loop {
        match live.new_tensor(spec("emb"), SegmentCodec::Raw) {
            Ok(tensor) => break tensor,
            Err(StoreError::WritesStopped { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    // The file of the first partition is complete then, and nothing has it open.
    again.write_rows(&rows(50)).unwrap();
    drop(pin);
    live.sweep().unwrap();
    again.finish().unwrap();
    assert_eq!(rows_over(&live, "emb").unwrap(), rows(50));
}

/// Creates a folder of the graph without partitions.
fn elsewhere(ring: &Ring) -> std::path::PathBuf {
    let dir = ring.dir.path().join("elsewhere");
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(ring.out().join("graph.toml"), dir.join("graph.toml")).unwrap();
    dir
}

/// No process locks a folder without partitions.
#[test]
fn tensors_cannot_be_added_or_dropped_while_a_partition_is_arriving() {
    let ring = ring(50, 2, 2);
    let to = elsewhere(&ring);
    let empty = || {
        let (graph, options) = (Graph::open(&to).unwrap(), OpenOptions::default());
        Arc::new(GraphHandle::open(graph, Some(&[]), OpenMode::Write, &options).unwrap())
    };
    let begun_before = empty().new_tensor(spec("emb"), SegmentCodec::Raw).unwrap();
    let live = writer(&ring);
    let arrival = Arrival::find_or_begin(&to, PartId(1), 1).unwrap();
    fetch(&live.part_files(PartId(1)).unwrap(), &arrival);
    arrival.catalog().unwrap();
    let refused = [begun_before.finish().unwrap_err(), empty().drop_tensor("mark").unwrap_err()];
    for refused in refused.map(|it| it.to_string()) {
        assert!(refused.contains("part-001.copy-0000000000000001"), "{refused}");
    }
    arrival.catalog().unwrap();
    arrival.remove().unwrap();
    empty().new_tensor(spec("emb"), SegmentCodec::Raw).unwrap().finish().unwrap();
    empty().drop_tensor("mark").unwrap();
}

#[test]
fn a_partition_with_other_tensors_is_refused_and_they_are_named() {
    let ring = ring(50, 2, 2);
    let to = elsewhere(&ring);
    let live = writer(&ring);
    write(&live, "emb", 50, 1000);
    live.drop_tensor("mark").unwrap();
    let arrival = Arrival::find_or_begin(&to, PartId(1), 1).unwrap();
    fetch(&live.part_files(PartId(1)).unwrap(), &arrival);
    let refused = arrival.catalog().unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, StoreError::MoveRefused { part: PartId(1), .. }), "{text}");
    assert!(["emb", "mark", "add or drop them"].iter().all(|it| text.contains(it)), "{text}");
}

#[test]
fn an_incomplete_tensor_leaves_nothing() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    let before = crate::fixture::files(&ring.out());
    let mut tensor = live.new_tensor(spec("emb"), SegmentCodec::Raw).unwrap();
    tensor.write_rows(&rows(50)[..40 * WIDTH + 1]).unwrap();
    let error = tensor.finish().unwrap_err().to_string();
    assert!(error.contains("10 rows are missing"), "{error}");
    let mut tensor = live.new_tensor(spec("emb"), SegmentCodec::Raw).unwrap();
    let error = tensor.write_rows(&rows(51)).unwrap_err().to_string();
    assert!(error.contains("7 bytes follow the last node's row"), "{error}");
    drop(tensor);
    drop(live);
    let after = crate::fixture::files(&ring.out());
    let names = |files: &std::collections::BTreeMap<std::path::PathBuf, _>| {
        files
            .keys()
            .filter(|path| !path.to_string_lossy().contains("catalog"))
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&after), names(&before));
    assert!(gathered(&ring, "emb").is_err());
    let live = writer(&ring);
    for (name, expected) in [("feat", "has a tensor of this name"), ("external_id", "of this name")]
    {
        let refused = live.new_tensor(spec(name), SegmentCodec::Raw).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    let refused = reader.new_tensor(spec("emb"), SegmentCodec::Raw).unwrap_err();
    assert!(matches!(refused, StoreError::ReadOnly { .. }), "{refused}");
}

#[test]
fn a_tensor_interrupted_before_or_after_the_switch_is_settled_by_a_writer() {
    // Before the switch: there are records, and graph.toml does not list the tensor.
    let ring = ring(50, 2, 2);
    let old = std::fs::read(ring.out().join("graph.toml")).unwrap();
    let live = writer(&ring);
    write(&live, "emb", 50, 1000);
    drop(live);
    let new = std::fs::read(ring.out().join("graph.toml")).unwrap();
    std::fs::write(ring.out().join("graph.toml"), &old).unwrap();
    assert!(gathered(&ring, "emb").is_err());
    drop(writer(&ring));
    assert!(ring.verify().ok, "{:?}", ring.verify());
    let kept = ring.out().join("part-000/quarantine/emb.v1.seg.1");
    assert!(kept.is_file(), "the file is quarantined");
    // After the switch: graph.toml lists the tensor, and the catalogs record it as new.
    let live = writer(&ring);
    write(&live, "emb", 50, 1000);
    drop(live);
    assert_eq!(std::fs::read(ring.out().join("graph.toml")).unwrap(), new);
    for part in [PartId(0), PartId(1)] {
        let graph = Graph::open(&ring.out()).unwrap();
        let catalog = graph.catalog_for_writing(part).unwrap();
        let (_, record) = catalog.segment("emb", 9).unwrap().unwrap();
        catalog.forget_tensor("emb", std::str::from_utf8(&old).unwrap()).unwrap();
        catalog.stage_tensor("emb", 1, &record).unwrap();
    }
    assert!(ring.verify().ok, "{:?}", ring.verify());
    assert_eq!(gathered(&ring, "emb").unwrap(), rows(50));
    drop(writer(&ring));
    assert_eq!(gathered(&ring, "emb").unwrap(), rows(50));
    assert!(ring.verify().ok, "{:?}", ring.verify());
}

#[test]
fn files_of_a_tensor_interrupted_before_its_record_leave_the_folder() {
    let ring = ring(50, 2, 2);
    let dir = ring.out().join("part-001");
    for name in ["emb.v1.seg", "emb.v1.seg.tmp", "emb.v2-3.delta.tmp", "emb.v1.seg.bak"] {
        std::fs::write(dir.join(name), name).unwrap();
    }
    // Opened before the tensor is added.
    let stale = Graph::open(&ring.out()).unwrap();
    let live = writer(&ring);
    let left = |name: &str| dir.join(name).exists();
    assert!(!left("emb.v1.seg") && !left("emb.v1.seg.tmp") && !left("emb.v2-3.delta.tmp"));
    assert_eq!(std::fs::read(dir.join("quarantine/emb.v1.seg.1")).unwrap(), b"emb.v1.seg");
    assert!(left("emb.v1.seg.bak"), "not a name of the store");
    write(&live, "emb", 50, 1000);
    drop(live);
    drop(GraphHandle::open(stale, None, OpenMode::Write, &OpenOptions::default()).unwrap());
    assert_eq!(gathered(&ring, "emb").unwrap(), rows(50));
}

#[test]
fn a_second_new_tensor_of_a_name_is_refused_while_the_first_is_written() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    let mut first = live.new_tensor(spec("emb"), SegmentCodec::Raw).unwrap();
    first.write_rows(&rows(50)[..100]).unwrap();
    let refused = live.new_tensor(spec("emb"), SegmentCodec::Raw).unwrap_err().to_string();
    assert!(refused.contains("another tensor of this name is being written"), "{refused}");
    drop(live.new_tensor(spec("other"), SegmentCodec::Raw).unwrap());
    first.write_rows(&rows(50)[100..]).unwrap();
    first.finish().unwrap();
    drop(live);
    assert_eq!(gathered(&ring, "emb").unwrap(), rows(50));
    let live = writer(&ring);
    drop(live.new_tensor(spec("more"), SegmentCodec::Raw).unwrap());
    write(&live, "more", 50, 1000);
}

#[test]
fn a_dropped_tensor_loses_its_rows_and_can_be_created_again() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    write(&live, "emb", 50, 1000);
    drop(live);
    let live = writer(&ring);
    live.put_rows("emb", &[NodeId(3), NodeId(40)], &[9; 2 * WIDTH]).unwrap();
    live.commit_version().unwrap();
    live.put_rows("emb", &[NodeId(4)], &[8; WIDTH]).unwrap();
    let locked = drop_tensor(Graph::open(&ring.out()).unwrap(), "emb").unwrap_err();
    assert!(matches!(locked, StoreError::Locked { .. }), "{locked}");
    drop(live);
    let reader = EmbeddedStore::open(ring.out(), None).unwrap();
    let graph = drop_tensor(Graph::open(&ring.out()).unwrap(), "emb").unwrap();
    assert!(graph.tensor("emb").is_err());
    let mut row = [0; WIDTH];
    reader.gather("emb", &[NodeId(3)], &mut row).unwrap();
    assert_eq!(row, [9; WIDTH], "a reader has the file open");
    drop(reader);
    assert!(ring.verify().ok && ring.verify().unknown.is_empty(), "{:?}", ring.verify());
    for name in ["external_id", "none"] {
        drop_tensor(Graph::open(&ring.out()).unwrap(), name).unwrap_err();
    }
    let live = writer(&ring);
    write(&live, "emb", 50, 1000);
    drop(live);
    let live = writer(&ring);
    live.commit_version().unwrap();
    drop(live);
    assert_eq!(gathered(&ring, "emb").unwrap(), rows(50), "no row of the earlier tensor is left");
}
