//! Moves of which one process is killed between any two steps, while clients put and commit.

use std::thread;
use std::time::Duration;

use lodestore_client::transfer::{PartitionTransfer, TransferPlan};
use lodestore_client::{Client, ClientConfig, RowSource};
use lodestore_schema::request::CopyStep;
use lodestore_schema::{FailureCode, Reply, RequestBody};

use crate::transfer::{N_NODES, Two, plan};
use testing::process::Serving;
use testing::wire::PlainConnection;
use testing::workload::{EndOnDrop, N_WRITERS, Workload};

/// The steps of a move, and that it is over.
pub(crate) const STEPS: [&str; 6] = ["begin", "open", "fetch", "seal", "release", "take"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Mover,
    Source,
    Target,
}

/// Takes the first `n_steps`.
pub(crate) fn take_steps(plan: TransferPlan, n_steps: usize) -> Option<PartitionTransfer> {
    let mut this = PartitionTransfer::begin(plan).unwrap();
    for step in &STEPS[1..n_steps] {
        match *step {
            "open" => assert!(!this.open().unwrap(), "it is the source's"),
            "fetch" => this.fetch(&mut |_, _| {}).unwrap(),
            "seal" => this.seal().unwrap(),
            "release" => this.release().unwrap(),
            _ => {
                this.take().unwrap();
                return None;
            }
        }
    }
    Some(this)
}

/// Kills a server and starts it where it was.
fn restart(two: &Two, at: usize, server: &mut Serving) {
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    *server = two.serve(at, &server.address);
}

fn cut_off_after(n_steps: usize, victim: Victim) {
    let (two, load) = (Two::new(), Workload::new(N_NODES));
    let mut source = two.serve(0, "127.0.0.1:0");
    let mut target = two.serve(1, "127.0.0.1:0");
    let addresses = [source.address.clone(), target.address.clone()];
    thread::scope(|scope| {
        for writer in 0..N_WRITERS {
            let client = load.client(&addresses, Duration::from_secs(5)).unwrap();
            let load = &load;
            scope.spawn(move || load.write(&client, writer, &|_| {}));
        }
        let committer = load.client(&addresses, Duration::from_secs(5)).unwrap();
        let committed = &load;
        scope.spawn(move || {
            while !committed.is_over() {
                // It fails where a partition has no server for too long.
                let _ = committed.commit(&committer);
                thread::sleep(Duration::from_millis(5));
            }
        });
        let end = EndOnDrop(&load);
        thread::sleep(Duration::from_millis(30));
        let moving = take_steps(plan(&source, 1, &two.folders[1], Some(&target)), n_steps);
        match victim {
            Victim::Mover => {}
            Victim::Source => restart(&two, 0, &mut source),
            Victim::Target => restart(&two, 1, &mut target),
        }
        // Without its target a move ends as well: there is no new owner.
        drop(moving);
        let owners = two.owners()[1];
        let is_between = STEPS[n_steps - 1] == "release";
        assert_eq!(owners, usize::from(!is_between), "after {n_steps} steps without {victim:?}");
        thread::sleep(Duration::from_millis(30));
        // The operator begins again, as the command does.
        let plan = plan(&source, 1, &two.folders[1], Some(&target));
        PartitionTransfer::run(plan, &mut |_, _| {}).unwrap();
        drop(end);
    });
    let client = Client::connect(&addresses, ClientConfig::default()).unwrap();
    load.commit(&client).unwrap();
    load.check_all(&client);
    drop(client);
    source.stop();
    target.stop();
    assert!(two.folders[1].join("part-001").exists());
    two.assert_whole();
    let left = |at: usize| testing::names_in(&two.folders[at]).join(" ");
    assert!(!left(1).contains(".copy-"), "{}", left(1));
}

#[test]
fn a_move_that_loses_its_mover_at_any_step_is_taken_up_again() {
    (1..=STEPS.len()).for_each(|n_steps| cut_off_after(n_steps, Victim::Mover));
}

#[test]
fn a_move_that_loses_its_source_at_any_step_is_taken_up_again() {
    (1..=STEPS.len()).for_each(|n_steps| cut_off_after(n_steps, Victim::Source));
}

#[test]
fn a_move_that_loses_its_target_at_any_step_is_taken_up_again() {
    (1..=STEPS.len()).for_each(|n_steps| cut_off_after(n_steps, Victim::Target));
}

/// A mover that takes a move up while the source decides of it waits for the decision.
#[test]
fn a_move_that_is_taken_up_while_the_source_decides_is_decided_as_well() {
    let two = Two::new();
    let (source, target) = (two.serve(0, "127.0.0.1:0"), two.serve(1, "127.0.0.1:0"));
    let plan = plan(&source, 1, &two.folders[1], Some(&target));
    let mut moving = take_steps(plan, 4).unwrap();
    let names = testing::names_in(&two.folders[1]);
    let id = names.iter().find_map(|name| name.strip_prefix("part-001.copy-")).unwrap();
    let step = CopyStep::Open { id: u64::from_str_radix(id, 16).unwrap() };
    let mut other = PlainConnection::open(&source.address);
    thread::scope(|scope| {
        let releasing = scope.spawn(|| moving.release().unwrap());
        loop {
            other.ask(RequestBody::Copy { part: 1, step }, &[]);
            match other.answer().0 {
                Reply::Copied(copied) => {
                    assert!(copied.is_given_up, "it is copied by the first");
                    break;
                }
                Reply::Failure(it) => assert_eq!(it.code, FailureCode::Overloaded, "{it:?}"),
                other => panic!("{other:?}"),
            }
        }
        releasing.join().unwrap();
    });
    moving.take().unwrap();
    source.stop();
    target.stop();
    two.assert_whole();
}

/// A mover that stops for longer than a seal lasts has lost it: the source takes puts again, and
/// stays the owner.
#[test]
fn a_seal_that_has_run_out_releases_nothing() {
    let two = Two::new();
    let (source, target) = (two.serve(0, "127.0.0.1:0"), two.serve(1, "127.0.0.1:0"));
    let planned = plan(&source, 1, &two.folders[1], Some(&target));
    let mut moving = take_steps(planned, 4).unwrap();
    let addresses = [source.address.clone(), target.address.clone()];
    let client = Client::connect(&addresses, ClientConfig::default()).unwrap();
    let (node, row) = (client.book().range(lodestore_graph::PartId(1)).start, [7; 104]);
    let start = std::time::Instant::now();
    client.put_rows("feat", &[lodestore_graph::NodeId(node)], &row).unwrap();
    let waited = start.elapsed();
    assert!(waited > lodestore_store::update::SEAL_MAX / 2, "puts wait during a seal: {waited:?}");
    let error = moving.release().unwrap_err().to_string();
    assert!(error.contains("its seal has expired"), "{error}");
    drop(moving);
    assert_eq!(two.owners(), [1; 3]);
    client.commit().unwrap();
    let mut found = [0; 104];
    client.sync_pull("feat", &[lodestore_graph::NodeId(node)], &mut found).unwrap();
    assert_eq!(found, row);
    PartitionTransfer::run(plan(&source, 1, &two.folders[1], Some(&target)), &mut |_, _| {})
        .unwrap();
    client.sync_pull("feat", &[lodestore_graph::NodeId(node)], &mut found).unwrap();
    assert_eq!(found, row);
}
