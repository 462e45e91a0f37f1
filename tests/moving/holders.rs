//! How many servers are to hold a partition: puts that would leave one behind are refused, a copy
//! joins under puts, and one that was left out is asked for nothing.

use std::thread;
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, ClientError, MovePlan, PartMove, RowSource};
use lodestore_graph::{NodeId, PartId};

use crate::support::process::{Serving, lode_line};
use crate::support::workload::{EndOnDrop, N_WRITERS, ROW_BYTES, Workload, put_row};
use crate::{N_NODES, Two, plan};

pub(super) const PART: PartId = PartId(1);

pub(super) fn client(addresses: &[&str]) -> Client {
    let config = ClientConfig { deadline: Duration::from_secs(10), ..ClientConfig::default() };
    Client::connect(addresses, config).unwrap()
}

fn nodes(client: &Client) -> Vec<NodeId> {
    client.book().range(PART).map(NodeId).collect()
}

/// Puts a row of the partition.
pub(super) fn put(client: &Client, turn: u32) -> Result<(), ClientError> {
    let node = nodes(client)[0];
    client.put_rows("feat", &[node], &put_row(node, turn)).map(drop)
}

/// The turn of that row.
pub(super) fn turn(client: &Client) -> u32 {
    let mut row = vec![0; ROW_BYTES];
    client.sync_pull("feat", &nodes(client)[..1], &mut row).unwrap();
    u32::from_le_bytes(row[4..8].try_into().unwrap())
}

pub(super) fn assert_refused(put: Result<(), ClientError>, numbers: (usize, usize)) {
    let error = put.unwrap_err();
    let ClientError::HolderCount { part: PART, expected, found, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((expected, found), numbers, "{error}");
    assert!(error.to_string().contains("lode holders 1"), "{error}");
}

/// Two servers, both with the partition, copied while nobody put.
pub(super) fn replicated(two: &Two) -> [Serving; 2] {
    let first = two.serve(0, "127.0.0.1:0");
    let (from, into) = (&first.address, two.folders[1].display());
    lode_line(&format!("copy-part 1 --from {from} --into {into} --keep")).succeeded();
    [first, two.serve(1, "127.0.0.1:0")]
}

#[test]
fn who_sees_too_few_holders_puts_nothing_and_one_that_was_left_out_is_asked_for_nothing() {
    let two = Two::new();
    let [first, second] = replicated(&two);
    let (a, b) = (first.address.clone(), second.address.clone());
    // They are told of no number.
    let (of_both, of_one) = (client(&[&a, &b]), client(&[&a]));
    put(&of_both, 1).unwrap();
    let too_few = format!("holders 1 --set 3 --connect {a} --connect {b}");
    lode_line(&too_few).failed(1, &["it has 2 holders", &a, &b]);
    let counted = lode_line(&format!("holders 1 --set 2 --connect {a} --connect {b} --json"));
    assert_eq!(counted.succeeded().json()["holders"], 2);
    put(&of_both, 2).unwrap();
    assert_refused(put(&of_one, 3), (2, 1));
    // As with a holder whose lease has run out.
    let map = two.folders[1].with_file_name("map");
    std::fs::write(&map, &a).unwrap();
    let map = format!("map:{}", map.display());
    let config = ClientConfig { deadline: Duration::from_secs(1), ..ClientConfig::default() };
    let lapsed = Client::connect(&[&map], config).unwrap();
    assert_refused(put(&lapsed, 3), (2, 1));
    assert_refused(lapsed.commit().map(drop), (2, 1));
    for address in [&a, &b] {
        assert_eq!(turn(&client(&[address])), 2, "readers are asked for no number");
    }

    // The second is lost, left out, and comes back.
    second.stop();
    assert_refused(put(&client(&[&a]), 3), (2, 1));
    lode_line(&format!("holders 1 --set 1 --connect {a}")).succeeded();
    put(&of_one, 4).unwrap();
    let second = two.serve(1, &b);
    for client in [client(&[&b, &a]), client(&[&a, &b])] {
        assert_eq!(turn(&client), 4, "the one that was left out lacks it");
        put(&client, 4).unwrap();
    }
    let both = format!("--connect {a} --connect {b}");
    let told = lode_line(&format!("holders 1 {both}")).succeeded();
    assert!(told.stdout.contains(&format!("{b}, left out")), "{told:?}");
    lode_line(&format!("holders 1 --set 2 {both}")).failed(1, &[&b, "--include-behind"]);
    // Files of one alone are put to by nobody who would leave the others behind.
    lode_line(&format!("holders 1 --set 2 {both} --include-behind")).succeeded();
    first.stop();
    second.stop();
    let file = |name: &str| two.folders[1].with_file_name(name);
    let (ids, rows) = (file("ids.npy"), file("rows.npy"));
    let node = nodes(&of_one)[0];
    let row: Vec<i32> = [node.0.cast_signed(), 5].repeat(ROW_BYTES / 8);
    let npy = lodestore_graph::npy::NpyType::U32;
    crate::support::write_npy(&ids, npy, &[1], &[node.0]);
    let npy = lodestore_graph::npy::NpyType::I32;
    crate::support::write_npy(&rows, npy, &[1, row.len() as u64], &row);
    let (graph, ids, rows) = (two.folders[0].display(), ids.display(), rows.display());
    lode_line(&format!("put --graph {graph} --tensor feat --ids {ids} --rows {rows}"))
        .failed(1, &["held by 2 servers", "--connect"]);
}

#[test]
fn a_copy_becomes_one_holder_more_under_puts_however_it_is_cut_off() {
    for n_steps in 1..=6 {
        joins_though_cut_off_after(n_steps);
    }
}

fn joins_though_cut_off_after(n_steps: usize) {
    let (two, load) = (Two::new(), Workload::new(N_NODES));
    let (first, second) = (two.serve(0, "127.0.0.1:0"), two.serve(1, "127.0.0.1:0"));
    let addresses = [first.address.clone(), second.address.clone()];
    let plan = || {
        let plan = plan(&first, PART.0, &two.folders[1], Some(&second));
        MovePlan { keep: true, unserved: false, ..plan }
    };
    let refused = PartMove::run(plan(), &mut |_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("lode holders 1 --set 1"), "{refused}");
    client(&[&addresses[0]]).set_holders(PART, 1, false).unwrap();
    thread::scope(|scope| {
        let nothing_fails = |error: &ClientError| panic!("a client was told of it: {error}");
        for writer in 0..N_WRITERS {
            let client = load.client(&addresses, Duration::from_secs(20)).unwrap();
            let load = &load;
            scope.spawn(move || load.write(&client, writer, &nothing_fails));
        }
        let end = EndOnDrop(&load);
        thread::sleep(Duration::from_millis(30));
        let mut moving = PartMove::begin(plan()).unwrap();
        if n_steps > 1 {
            assert!(!moving.open().unwrap());
        }
        if n_steps > 2 {
            moving.fetch(&mut |_, _| {}).unwrap();
        }
        if n_steps > 3 {
            moving.seal().unwrap();
        }
        if n_steps > 4 {
            moving.release().unwrap();
            // From here on the copy must have what is put, and does not take any yet.
            let deadline = Duration::from_millis(500);
            let config = ClientConfig { deadline, ..ClientConfig::default() };
            assert_refused(put(&Client::connect(&addresses[..1], config).unwrap(), 1), (2, 1));
        }
        if n_steps > 5 {
            assert_eq!(moving.take().unwrap().n_holders, 2);
        } else {
            drop(moving);
        }
        thread::sleep(Duration::from_millis(30));
        let stats = PartMove::run(plan(), &mut |_, _| {}).unwrap();
        assert!(stats.was_here == (n_steps > 5) && (stats.was_here || stats.n_holders == 2));
        thread::sleep(Duration::from_millis(100));
        drop(end);
    });
    client(&[&addresses[0], &addresses[1]]).commit().unwrap();
    // Each alone has every row that was acknowledged.
    load.check_all(&client(&[&addresses[0]]));
    let of_copy = client(&[&addresses[1]]);
    load.check(&of_copy, &nodes(&of_copy));
    first.stop();
    second.stop();
    assert_eq!(two.owners(), [1, 2, 1]);
    let left = crate::support::names_in(&two.folders[1]).join(" ");
    assert!(!left.contains(".copy-"), "{left}");
}

#[test]
fn a_copy_in_a_folder_is_no_holder_and_is_not_taken_for_one_later() {
    let two = Two::new();
    let first = two.serve(0, "127.0.0.1:0");
    let a = first.address.clone();
    let of_first = client(&[&a]);
    put(&of_first, 1).unwrap();
    of_first.set_holders(PART, 1, false).unwrap();
    lode_line(&format!("copy-part 1 --from {a} --into {} --keep", two.folders[1].display()))
        .succeeded();
    put(&of_first, 2).unwrap();
    let second = two.serve(1, "127.0.0.1:0");
    let b = second.address.clone();
    let join = || MovePlan {
        keep: true,
        unserved: false,
        ..plan(&first, PART.0, &two.folders[1], Some(&second))
    };
    let refused = PartMove::run(join(), &mut |_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("copy it anew"), "{refused}");
    for addresses in [[&*a, &*b], [&*b, &*a]] {
        let client = client(&addresses);
        assert_eq!(turn(&client), 2, "the copy lacks it");
        put(&client, 2).unwrap();
    }
    // Anew, with the copy out of the way.
    second.stop();
    std::fs::remove_dir_all(two.folders[1].join("part-001")).unwrap();
    let second = two.serve(1, &b);
    let join = MovePlan {
        keep: true,
        unserved: false,
        ..plan(&first, PART.0, &two.folders[1], Some(&second))
    };
    assert_eq!(PartMove::run(join, &mut |_, _| {}).unwrap().n_holders, 2);
    put(&client(&[&a, &b]), 3).unwrap();
    assert_eq!(turn(&client(&[&b])), 3);
    first.stop();
    second.stop();
}
