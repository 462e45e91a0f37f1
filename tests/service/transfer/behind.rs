//! Followers: which partitions they follow, where these go, and what they say about being behind.

use std::path::Path;
use std::time::{Duration, Instant};

use lodestore_client::transfer::PartitionTransfer;
use lodestore_client::{Client, ClientConfig};
use lodestore_graph::NodeId;
use serde_json::Value;

use crate::transfer::{N_NODES, N_PARTS, Two, plan};
use testing::http::get;
use testing::process::{Serving, lode_line};
use testing::workload::{ROW_BYTES, known_graph, put_row};

/// Longest time until a follower has come so far.
const DEADLINE: Duration = Duration::from_secs(60);

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

fn write(graph: &Path, parts: &str, address: &str) -> Serving {
    let more = format!("--parts {parts} --writable --insecure --shards 1 --listen {address}");
    Serving::start(graph, &more)
}

fn follow_line(folder: &Path, writers: &str, more: &str) -> String {
    format!(
        "serve {} --json --follow {writers} --follow-interval 20 --shards 1 --listen 127.0.0.1:0 \
         --metrics 127.0.0.1:0 {more}",
        folder.display()
    )
}

fn follow(folder: &Path, writers: &str, more: &str) -> Serving {
    Serving::start_command(&follow_line(folder, writers, more))
}

fn client(addresses: &[&str]) -> Client {
    let config = ClientConfig { deadline: Duration::from_secs(20), ..ClientConfig::default() };
    Client::connect(addresses, config).unwrap()
}

fn put_and_commit(client: &Client, ids: &[NodeId], turn: u32) -> u32 {
    let rows: Vec<u8> = ids.iter().flat_map(|&id| put_row(id, turn)).collect();
    client.put_rows("feat", ids, &rows).unwrap();
    client.commit().unwrap()
}

fn row_at(address: &str, id: NodeId) -> Vec<u8> {
    let mut row = vec![0; ROW_BYTES];
    client(&[address]).sync_pull("feat", &[id], &mut row).unwrap();
    row
}

fn has_partition(folder: &Path) -> bool {
    (0..N_PARTS).any(|part| folder.join(format!("part-{part:03}")).exists())
}

fn following(server: &Serving) -> Value {
    lode_line(&format!("stat {} --json", server.address)).succeeded().json()["following"].clone()
}

/// Returns the value of a metric of a followed partition.
fn metric(server: &Serving, name: &str, part: u16) -> f64 {
    let series = format!("{name}{{part=\"{part}\"}} ");
    let text = get(&server.metrics, "/metrics").body;
    let value = text.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
}

/// The first node of the last partition, and one of the first.
fn nodes() -> [NodeId; 2] {
    [NodeId(N_NODES - 1), NodeId(0)]
}

#[test]
fn a_follower_follows_the_partitions_that_its_writer_has_and_says_which_it_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_NODES, N_PARTS);
    let (first, second) = (write(&graph, "0,1", "127.0.0.1:0"), write(&graph, "2", "127.0.0.1:0"));
    let folder = dir.path().join("follower");
    let follower = follow(&folder, &first.address, "");
    put_and_commit(&client(&[&first.address, &second.address]), &nodes(), 5);
    let [_, of_first] = nodes();
    wait_for("the version comes", || row_at(&follower.address, of_first) == put_row(of_first, 5));
    assert!(!folder.join("part-002").exists());
    let log = follower.stop_and_take_log();
    let said = format!(
        "following partitions 0, 1 of {}; no server named writes partition 2",
        first.address
    );
    assert!(log.contains(&said), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
    // With the other writer it follows all; there is nothing to say then.
    let both = format!("{},{}", first.address, second.address);
    let follower = follow(&folder, &both, "");
    let [of_second, _] = nodes();
    wait_for("the version comes", || row_at(&follower.address, of_second) == put_row(of_second, 5));
    let log = follower.stop_and_take_log();
    assert!(log.is_empty(), "{log}");
    first.stop();
    second.stop();
    // A follower starts without its writers where all of its partitions are there.
    let follower = follow(&folder, &both, "--parts 0,1,2");
    assert!(row_at(&follower.address, of_second) == put_row(of_second, 5));
    follower.stop();
}

#[test]
fn partitions_without_a_writer_or_with_two_are_refused_before_anything_is_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_NODES, N_PARTS);
    let copy = dir.path().join("copy");
    crate::transfer::followers::copy_dir(&graph, &copy);
    let (first, second) = (write(&graph, "0,1", "127.0.0.1:0"), write(&copy, "1,2", "127.0.0.1:0"));
    let folder = dir.path().join("follower");
    let refused = |writers: &str, more: &str, said: &[&str]| {
        lode_line(&follow_line(&folder, writers, more)).failed(1, said);
        assert!(!has_partition(&folder), "{said:?}: something was fetched");
    };
    let said = format!("{} writes partitions 0, 1", first.address);
    refused(&first.address, "--parts 0,2", &["writes partition 2", &said]);
    refused(&first.address, "--parts 0,9", &["writes partition 9", &said]);
    let both = format!("{},{}", first.address, second.address);
    let two = [&first.address[..], &second.address, "partition 1"];
    refused(&both, "", &two);
    refused(&both, "--parts 0,1", &two);
    // The partitions that have one writer can be followed.
    follow(&folder, &both, "--parts 0,2").stop();
    first.stop();
    second.stop();
}

#[test]
fn a_follower_goes_where_its_partition_goes_though_only_its_first_writer_was_named() {
    let two = Two::new();
    let [from, to] = [0, 1].map(|at| two.serve(at, "127.0.0.1:0"));
    let folder = two.folders[1].with_file_name("follower");
    let follower = follow(&folder, &from.address, "");
    let all = client(&[&from.address, &to.address]);
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    all.wait_for_followers(put_and_commit(&all, &ids, 1), 1).unwrap();
    PartitionTransfer::run(plan(&from, 1, &two.folders[1], Some(&to)), &mut |_, _| {}).unwrap();
    all.wait_for_followers(put_and_commit(&all, &ids, 2), 1).unwrap();
    let in_moved = NodeId(N_NODES / 2);
    assert!(row_at(&follower.address, in_moved) == put_row(in_moved, 2));
    let told = following(&follower);
    let sources = told["from"].as_str().unwrap();
    assert!(sources.contains(&from.address) && sources.contains(&to.address), "{told}");
    assert_eq!(told["versions_behind"], 0);
    assert_eq!(get(&follower.metrics, "/readyz").body, "ready\n");
    follower.stop();
    // The source says it after a restart too, also where the folder that it gave up is removed.
    let address = from.address.clone();
    from.stop();
    for entry in std::fs::read_dir(&two.folders[0]).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains("part-001.moved-") {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
    let from = two.serve(0, &address);
    let follower = follow(&folder, &from.address, "");
    all.wait_for_followers(put_and_commit(&all, &ids, 3), 1).unwrap();
    assert!(row_at(&follower.address, in_moved) == put_row(in_moved, 3));
    // Its new owner gives it back; nothing is said of that move any more.
    PartitionTransfer::run(plan(&to, 1, &two.folders[0], Some(&from)), &mut |_, _| {}).unwrap();
    all.wait_for_followers(put_and_commit(&all, &ids, 4), 1).unwrap();
    to.stop();
    wait_for("the follower is up to date", || {
        row_at(&follower.address, in_moved) == put_row(in_moved, 4)
    });
    let again = follow(&folder.with_file_name("another"), &from.address, "");
    assert!(row_at(&again.address, in_moved) == put_row(in_moved, 4));
    again.stop();
    follower.stop();
    from.stop();
}

#[test]
fn a_follower_says_that_it_is_behind_why_and_that_it_caught_up() {
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_NODES, N_PARTS);
    let writer = write(&graph, "0,1,2", "127.0.0.1:0");
    let address = writer.address.clone();
    let follower = follow(&dir.path().join("follower"), &address, "");
    put_and_commit(&client(&[&address]), &nodes(), 1);
    wait_for("the version comes", || {
        metric(&follower, "lodestore_follow_newest_version", 2) == 2.0
    });
    wait_for("it is served", || metric(&follower, "lodestore_follow_behind_versions", 2) == 0.0);
    assert_eq!(metric(&follower, "lodestore_follow_failing", 0), 0.0);
    let told = following(&follower);
    assert_eq!((&told["from"], &told["fault"]), (&Value::from(&address[..]), &Value::from("")));
    let text = lode_line(&format!("stat {}", follower.address)).succeeded().stdout;
    assert!(text.contains(&format!("follows {address}: up to date, seen")), "{text}");
    writer.kill();
    let readiness = || get(&follower.metrics, "/readyz");
    wait_for("it is behind", || {
        readiness().body.contains("; partition 0 is behind: version 2 of 2")
    });
    let ready = readiness();
    assert_eq!(ready.status, 200, "reads continue: {ready:?}");
    assert!(ready.body.contains(&address), "{ready:?}");
    wait_for("its log says so", || follower.log().contains("behind in partitions 0, 1, 2"));
    assert_eq!(metric(&follower, "lodestore_follow_failing", 0), 1.0);
    let age = metric(&follower, "lodestore_follow_look_age_seconds", 0);
    wait_for("the age grows", || {
        metric(&follower, "lodestore_follow_look_age_seconds", 0) > age + 1.0
    });
    let told = following(&follower);
    assert!(told["fault"].as_str().unwrap().contains(&address), "{told}");
    let text = lode_line(&format!("stat {}", follower.address)).succeeded().stdout;
    assert!(text.contains("no version can be fetched: partition 0: "), "{text}");
    let writer = write(&graph, "0,1,2", &address);
    put_and_commit(&client(&[&address]), &nodes(), 2);
    wait_for("it is ready", || readiness().body == "ready\n");
    wait_for("it has the version", || {
        metric(&follower, "lodestore_follow_newest_version", 0) == 3.0
            && metric(&follower, "lodestore_follow_behind_versions", 0) == 0.0
    });
    assert_eq!(metric(&follower, "lodestore_follow_failing", 0), 0.0);
    wait_for("its log says so", || follower.log().contains("caught up at version "));
    let log = follower.stop_and_take_log();
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].contains("behind in partitions 0, 1, 2 since"), "{log}");
    assert!(lines[0].contains("version 2 is served, the newest when it was last seen"), "{log}");
    assert!(lines[0].contains(&address), "{log}");
    let last = lines.last().unwrap();
    assert!(last.contains("caught up at version ") && last.contains(" after "), "{log}");
    writer.stop();
}
