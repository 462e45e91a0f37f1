//! A move that is impossible fails before any fetch; copies that take nothing away.

use lodestore_client::ClientError;
use lodestore_client::transfer::{PartitionTransfer, TransferPlan};
use lodestore_graph::PartId;

use crate::transfer::{Two, plan};
use testing::process::{Serving, lode_line};

fn error_of(plan: TransferPlan) -> String {
    PartitionTransfer::run(plan, &mut |_, _| {}).unwrap_err().to_string()
}

#[test]
fn an_impossible_move_is_refused_before_anything_is_fetched() {
    let two = Two::new();
    let fixed =
        Serving::start(&two.folders[0], "--writable --insecure --shards 1 --listen 127.0.0.1:0");
    let target = two.serve(1, "127.0.0.1:0");
    let told = error_of(plan(&fixed, 1, &two.folders[1], Some(&target)));
    assert!(told.contains("partitions are fixed"), "{told}");
    let told = error_of(plan(&target, 1, &two.folders[0], Some(&fixed)));
    assert!(told.contains("start it with local partitions"), "{told}");
    fixed.stop();
    let source = two.serve(0, "127.0.0.1:0");
    let told = error_of(plan(&source, 9, &two.folders[1], Some(&target)));
    assert!(told.contains("partition 9 is not here"), "{told}");
    let told = error_of(plan(&source, 1, &two.folders[0], None));
    assert!(told.contains("is there already"), "{told}");
    let unserved = plan(&source, 1, &two.folders[1], None);
    let told = error_of(TransferPlan { unserved: false, ..unserved });
    assert!(told.contains("allow it to be unserved"), "{told}");
    let told = error_of(plan(&source, 1, &two.folders[1], Some(&source)));
    assert!(told.contains("name two servers"), "{told}");
    let typo = two.folders[1].with_file_name("typo");
    let told = error_of(plan(&source, 1, &typo, Some(&target)));
    assert!(told.contains("the copy is in another folder"), "{told}");
    assert!(testing::names_in(&typo).is_empty(), "what was begun is removed");
    let keep = TransferPlan { keep: true, ..plan(&source, 1, &two.folders[1], Some(&target)) };
    let told = error_of(keep);
    assert!(told.contains("follow the source instead"), "{told}");
    target.stop();
    let read_only =
        Serving::start(&two.folders[1], "--local-parts --insecure --shards 1 --listen 127.0.0.1:0");
    let told = error_of(plan(&source, 1, &two.folders[1], Some(&read_only)));
    assert!(told.contains("start it writable"), "{told}");
    read_only.stop();
    let other = Two::new();
    let stranger = other.serve(1, "127.0.0.1:0");
    let error =
        PartitionTransfer::run(plan(&source, 1, &two.folders[1], Some(&stranger)), &mut |_, _| {});
    assert!(matches!(error, Err(ClientError::GraphsDiffer { .. })), "{error:?}");
    let into_stranger = plan(&source, 1, &other.folders[1], None);
    let told = error_of(into_stranger);
    assert!(told.contains("graph"), "{told}");
    assert_eq!(two.owners(), [1; 3]);
}

#[test]
fn what_a_copy_has_left_in_its_place_is_not_taken_for_a_move_that_the_source_has_not_made() {
    let two = Two::new();
    let source = two.serve(0, "127.0.0.1:0");
    let copy = TransferPlan { keep: true, ..plan(&source, 1, &two.folders[1], None) };
    PartitionTransfer::run(copy, &mut |_, _| {}).unwrap();
    // It ended between the rename and the end.
    std::fs::create_dir(two.folders[1].join("part-001.copy-0000000000000007")).unwrap();
    let again = || plan(&source, 1, &two.folders[1], None);
    let told = error_of(again());
    assert!(told.contains("the source has it as well"), "{told}");
    assert_eq!(two.owners(), [1, 2, 1]);
    // Once that is out of the way it is moved.
    std::fs::remove_dir_all(two.folders[1].join("part-001")).unwrap();
    PartitionTransfer::run(again(), &mut |_, _| {}).unwrap();
    two.assert_whole();
    source.stop();
}

#[test]
fn a_copy_into_a_folder_is_the_partition_of_one_moment_and_takes_nothing_away() {
    let two = Two::new();
    let source = two.serve(0, "127.0.0.1:0");
    let into = two.folders[0].with_file_name("copy");
    for part in 0..3 {
        let (from, into) = (&source.address, into.display());
        let line = format!("transfer {part} --from {from} --into {into} --keep --json");
        let report = lode_line(&line).succeeded().json();
        assert_eq!((&report["moved"], &report["part"]), (&false.into(), &part.into()));
    }
    source.stop();
    assert_eq!(two.owners(), [1; 3]);
    let ids: Vec<u32> = (0..crate::transfer::N_NODES).collect();
    let ids_file = two.folders[1].with_file_name("ids.npy");
    let shape = [u64::from(crate::transfer::N_NODES)];
    testing::write_npy(&ids_file, lodestore_graph::npy::NpyType::U32, &shape, &ids);
    let rows = |graph: &std::path::Path| {
        let out = two.folders[1].with_file_name("rows.npy");
        let (graph, ids, out) = (graph.display(), ids_file.display(), out.display());
        let line = format!("gather --graph {graph} --tensor feat --ids {ids} --out {out}");
        lode_line(&line).succeeded();
        std::fs::read(two.folders[1].with_file_name("rows.npy")).unwrap()
    };
    assert_eq!(rows(&two.folders[0]), rows(&into));
    lode_line(&format!("verify {}", into.display())).succeeded();
    // Servers that take no puts may both have it.
    let read = |at: usize| {
        Serving::start(&two.folders[at], "--local-parts --insecure --shards 1 --listen 127.0.0.1:0")
    };
    let (first, second) = (read(0), read(1));
    for part in 0..3u16 {
        let plan = plan(&first, part, &two.folders[1], Some(&second));
        let plan = TransferPlan { keep: true, ..plan };
        assert!(!PartitionTransfer::run(plan.clone(), &mut |_, _| {}).unwrap().was_here);
        assert!(PartitionTransfer::run(plan, &mut |_, _| {}).unwrap().was_here, "and again");
    }
    assert_eq!(two.owners(), [2; 3]);
    first.stop();
    let config = lodestore_client::ClientConfig::default();
    let client = lodestore_client::Client::connect(&[&second.address], config).unwrap();
    let mut out = vec![0; 104];
    for part in 0..3 {
        let book = lodestore_client::RowSource::book(&client).clone();
        let node = lodestore_graph::NodeId(book.range(PartId(part)).start);
        client.sync_pull("feat", &[node], &mut out).unwrap();
        assert_eq!(out, testing::workload::put_row(node, 0));
    }
}
