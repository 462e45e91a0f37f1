//! Holders that were counted apart, and servers of two names: neither is taken for what it is not.

use lodestore_client::{Client, ClientError, RowSource};
use lodestore_graph::NodeId;

use crate::Two;
use crate::holders::{assert_refused, client, put, replicated, turn};
use crate::support::process::{Serving, lode_line};
use crate::support::workload::ROW_BYTES;

/// Pulls a row of a node.
fn pull(client: &Client, node: u32) -> Result<(), ClientError> {
    client.sync_pull("feat", &[NodeId(node)], &mut [0; ROW_BYTES]).map(drop)
}

#[test]
fn rows_of_two_histories_are_not_mixed_until_a_person_says_which_is_right() {
    let two = Two::new();
    let [first, second] = replicated(&two);
    let (a, b) = (first.address.clone(), second.address.clone());
    let both = format!("--connect {a} --connect {b}");
    lode_line(&format!("holders 1 --set 2 {both}")).succeeded();
    // With the second away a person leaves it out, and with the first away another leaves that out.
    second.stop();
    lode_line(&format!("holders 1 --set 1 --connect {a}")).succeeded();
    put(&client(&[&a]), 3).unwrap();
    let early = client(&[&a]);
    first.stop();
    let second = two.serve(1, &b);
    lode_line(&format!("holders 1 --set 1 --connect {b}")).succeeded();
    put(&client(&[&b]), 4).unwrap();

    let first = two.serve(0, &a);
    for addresses in [[&*a, &*b], [&*b, &*a]] {
        let of_both = client(&addresses);
        let here = of_both.book().range(crate::holders::PART).start;
        let told = |result: Result<(), ClientError>| {
            let text = result.unwrap_err().to_string();
            let says = ["partition 1", "generation 2", &a, &b, "lode holders 1 --set"];
            assert!(says.iter().all(|it| text.contains(it)), "{text}");
        };
        told(put(&of_both, 5));
        told(pull(&of_both, here));
        told(of_both.commit().map(drop));
        pull(&of_both, 0).unwrap();
    }
    assert_eq!(turn(&early), 3, "who knows of one history goes on with it");
    let looked = lode_line(&format!("holders 1 {both}")).succeeded();
    assert!(looked.stdout.contains("changes that know nothing of each other"), "{looked:?}");
    let told = lode_line(&format!("holders 1 --set 2 {both}"));
    told.failed(1, &[&a, &b, "--set 1", "--include-behind"]);

    // One of them is right; the other is of an earlier generation then, and to be copied anew.
    lode_line(&format!("holders 1 --set 1 --connect {a}")).succeeded();
    for addresses in [[&*a, &*b], [&*b, &*a]] {
        let of_both = client(&addresses);
        assert_eq!(turn(&of_both), 3);
        put(&of_both, 3).unwrap();
    }
    lode_line(&format!("holders 1 --set 2 {both} --include-behind")).succeeded();
    put(&client(&[&a, &b]), 6).unwrap();
    assert_eq!([turn(&client(&[&a])), turn(&client(&[&b]))], [6, 6]);
    first.stop();
    second.stop();
}

#[test]
fn a_server_of_two_names_is_one_holder_and_is_put_to_once() {
    let two = Two::new();
    let socket = two.folders[1].with_file_name("first.sock");
    let more = format!(
        "--parts-here --writable --insecure --shards 2 --listen 127.0.0.1:0 --unix {}",
        socket.display()
    );
    let first = Serving::start(&two.folders[0], &more);
    let (a, also_a) = (first.address.clone(), format!("unix:{}", socket.display()));
    let twice = format!("--connect {a} --connect {also_a}");
    for n in [1, 2] {
        let told = lode_line(&format!("holders 1 --set {n} {twice}"));
        told.failed(1, &[&a, &also_a, "one server"]);
    }
    let looked = lode_line(&format!("holders 1 {twice}")).succeeded();
    assert!(looked.stdout.contains(&format!("{also_a}, the same server as {a}")), "{looked:?}");
    // Whether or not anybody has said a number.
    let put_once = || {
        let client = client(&[&a, &also_a]);
        let node = NodeId(client.book().range(crate::holders::PART).start);
        let row = crate::support::workload::put_row(node, 1);
        assert_eq!(client.put_rows("feat", &[node], &row).unwrap().requests, 1);
    };
    put_once();
    lode_line(&format!("holders 1 --set 1 --connect {a}")).succeeded();
    put_once();

    // Its second name does not stand for the other holder, which is away.
    let into = two.folders[1].display();
    let second = two.serve(1, "127.0.0.1:0");
    let b = second.address.clone();
    lode_line(&format!("copy-part 1 --from {a} --into {into} --to {b} --keep")).succeeded();
    assert_refused(put(&client(&[&a, &also_a]), 2), (2, 1));
    put(&client(&[&a, &also_a, &b]), 3).unwrap();
    assert_eq!(turn(&client(&[&b])), 3);
    let itself = format!("copy-part 1 --from {a} --into {into} --to {also_a}");
    lode_line(&itself).failed(1, &["the source as well as the target"]);

    // Nor does it once it has started anew, and has been asked at one of its names since.
    second.stop();
    let early = client(&[&a, &also_a]);
    first.stop();
    let first = Serving::start(&two.folders[0], &more.replace("127.0.0.1:0", &a));
    pull(&early, early.book().range(crate::holders::PART).start).unwrap();
    assert_refused(put(&early, 4), (2, 1));
    first.stop();
}
