//! Servers that follow a writer: what they end with, whatever is killed, and what clients read.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::transfer::PartitionTransfer;
use lodestore_client::{Client, ClientConfig, ClientError, Pin, RowSource};
use lodestore_graph::NodeId;
use lodestore_schema::request::CommitStep;
use lodestore_schema::{FailureCode, Reply, RequestBody};
use lodestore_store::update::Folding;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions};
use tempfile::TempDir;

use crate::transfer::{N_NODES, N_PARTS, Two, plan};
use testing::Numbers;
use testing::process::{Serving, lode_line};
use testing::wire::PlainConnection;
use testing::workload::{ROW_BYTES, known_graph, put_row};

/// A graph with its writer, and folders for followers.
struct Cluster {
    dir: TempDir,
    graph: PathBuf,
    writer: Serving,
}

impl Cluster {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let graph = known_graph(dir.path(), N_NODES, N_PARTS);
        let writer = write_at(&graph, "127.0.0.1:0");
        Self { dir, graph, writer }
    }

    fn folder(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("follower-{at}"))
    }

    fn follow(&self, at: usize, interval_ms: u64) -> Serving {
        let more = format!(
            "--follow {} --follow-interval {interval_ms} --shards 2 --listen 127.0.0.1:0",
            self.writer.address
        );
        Serving::start(&self.folder(at), &more)
    }

    /// Kills the writer, and starts it again where it was.
    fn restart_writer(&mut self) {
        let address = self.writer.address.clone();
        self.writer.child.kill().unwrap();
        self.writer.child.wait().unwrap();
        self.writer = write_at(&self.graph, &address);
    }
}

fn write_at(graph: &Path, address: &str) -> Serving {
    Serving::start(graph, &format!("--writable --insecure --shards 2 --listen {address}"))
}

fn client(addresses: &[&str]) -> Client {
    let config = ClientConfig { deadline: Duration::from_secs(20), ..ClientConfig::default() };
    Client::connect(addresses, config).unwrap()
}

fn all_nodes() -> Vec<NodeId> {
    (0..N_NODES).map(NodeId).collect()
}

/// Returns all rows, through this server alone.
fn rows_at(address: &str) -> Vec<u8> {
    rows_of(&client(&[address]))
}

fn rows_of(client: &Client) -> Vec<u8> {
    let mut out = vec![0; N_NODES as usize * ROW_BYTES];
    client.vector_pull("feat", &all_nodes(), &mut out).unwrap();
    out
}

fn put(client: &Client, ids: &[NodeId], turn: u32) -> Result<u32, ClientError> {
    let rows: Vec<u8> = ids.iter().flat_map(|&id| put_row(id, turn)).collect();
    Ok(client.put_rows("feat", ids, &rows)?.version)
}

fn turn_of(row: &[u8]) -> u32 {
    u32::from_le_bytes(row[4..8].try_into().unwrap())
}

fn is_long() -> bool {
    std::env::var_os("LODE_LONG").is_some()
}

#[test]
fn two_clients_that_put_the_same_rows_leave_all_servers_with_the_same() {
    let cluster = Cluster::new();
    let followers = [cluster.follow(0, 20), cluster.follow(1, 30)];
    let writer = &cluster.writer.address;
    let putters = [client(&[writer]), client(&[writer])];
    let all = client(&[writer, &followers[0].address, &followers[1].address]);
    let n_trials = if is_long() { 100 } else { 12 };
    for trial in 0..n_trials {
        thread::scope(|scope| {
            for (at, client) in (0u32..).zip(&putters) {
                // At times enough that they travel in pieces, each row again and again.
                let n_times = if trial % 4 == 3 { 60 } else { 1 };
                let ids: Vec<NodeId> = all_nodes().repeat(n_times);
                scope.spawn(move || put(client, &ids, 2 * trial + 1 + at).unwrap());
            }
        });
        let version = all.commit().unwrap();
        all.wait_for_followers(version, 2).unwrap();
        let expected = rows_at(writer);
        // One of the two was last in each partition, as a whole.
        for part in all.book().parts() {
            let range = all.book().range(part);
            let turns = range.map(|node| turn_of(&expected[node as usize * ROW_BYTES..]));
            let turns: std::collections::BTreeSet<u32> = turns.collect();
            assert_eq!(turns.len(), 1, "trial {trial}: a put is atomic in partition {part}");
        }
        for follower in &followers {
            assert!(rows_at(&follower.address) == expected, "trial {trial}: {}", follower.address);
        }
    }
    followers.into_iter().for_each(Serving::stop);
    cluster.writer.stop();
}

#[test]
fn a_follower_that_is_killed_at_any_moment_continues_and_ends_with_the_writers_rows() {
    let cluster = Cluster::new();
    let writing = client(&[&cluster.writer.address]);
    let (is_over, numbers) = (&AtomicBool::new(false), &mut Numbers(7));
    let folder = cluster.folder(0);
    thread::scope(|scope| {
        let address = &cluster.writer.address;
        scope.spawn(move || {
            let (mut turn, client) = (0, client(&[address]));
            while !is_over.load(Ordering::Relaxed) {
                turn += 1;
                put(&client, &all_nodes(), turn).unwrap();
                client.commit().unwrap();
                if turn % 5 == 0 {
                    client.compact().unwrap();
                }
            }
        });
        let n_kills = if is_long() { 100 } else { 8 };
        for _ in 0..n_kills {
            let line = format!(
                "serve {} --json --follow {} --follow-interval 1 --shards 1 --listen 127.0.0.1:0",
                folder.display(),
                address
            );
            // At times before it has come up.
            let mut child = testing::process::command(line.split_whitespace()).spawn().unwrap();
            thread::sleep(Duration::from_millis(u64::from(20 + numbers.below(400))));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let follower = cluster.follow(0, 10);
    let all = client(&[&cluster.writer.address, &follower.address]);
    all.wait_for_followers(all.commit().unwrap(), 1).unwrap();
    assert!(rows_at(&follower.address) == rows_of(&writing));
    follower.stop();
    let report = lodestore_store::verify::verify(&folder, &mut |_, _| {}).unwrap();
    assert!(report.damaged.is_empty(), "{report:?}");
    cluster.writer.stop();
}

#[test]
fn a_commit_that_is_cut_off_between_its_steps_is_repeated_and_ends_the_same() {
    let mut cluster = Cluster::new();
    let follower = cluster.follow(0, 10);
    let before = rows_at(&cluster.writer.address);
    let version = put(&client(&[&cluster.writer.address]), &all_nodes(), 5).unwrap();
    let prepare = RequestBody::Commit { version, step: CommitStep::Prepare, label: 0 };
    let mut plain = PlainConnection::open(&cluster.writer.address);
    for _ in 0..2 {
        plain.ask_bytes(prepare, &[]);
        assert!(matches!(plain.answer().0, Reply::Committed { .. }));
    }
    cluster.restart_writer();
    for address in [&cluster.writer.address, &follower.address] {
        assert!(rows_at(address) == before, "prepared, and not visible");
    }
    // Puts from now on are for the version after.
    let all = client(&[&cluster.writer.address, &follower.address]);
    let some = [NodeId(0), NodeId(N_NODES - 1)];
    assert_eq!(put(&all, &some, 6).unwrap(), version + 1);
    assert_eq!(all.commit_as(version).unwrap(), version);
    assert_eq!(all.commit_as(version).unwrap(), version, "once more");
    all.wait_for_followers(version, 1).unwrap();
    let expected: Vec<u8> = all_nodes().iter().flat_map(|&id| put_row(id, 5)).collect();
    for address in [&cluster.writer.address, &follower.address] {
        assert!(rows_at(address) == expected, "{address}");
    }
    assert_eq!(all.commit().unwrap(), version + 1);
    assert_eq!(turn_of(&rows_at(&cluster.writer.address)), 6);
    follower.stop();
    cluster.writer.stop();
}

#[test]
fn a_client_reads_nothing_before_what_it_has_committed_or_seen() {
    let mut cluster = Cluster::new();
    let follower = cluster.follow(0, 300);
    let addresses = [follower.address.clone(), cluster.writer.address.clone()];
    let both = client(&[&addresses[0], &addresses[1]]);
    let node = [NodeId(7)];
    for turn in 1..40 {
        put(&both, &node, turn).unwrap();
        both.commit().unwrap();
        for _ in 0..3 {
            let mut row = vec![0; ROW_BYTES];
            both.sync_pull("feat", &node, &mut row).unwrap();
            assert_eq!(turn_of(&row), turn, "a follower that is behind is not asked");
        }
    }
    // Without the writer the follower that lacks the version is asked, and says which it has.
    cluster.writer.child.kill().unwrap();
    cluster.writer.child.wait().unwrap();
    let short = ClientConfig { deadline: Duration::from_secs(2), ..ClientConfig::default() };
    let alone = Client::connect(&[&follower.address], short).unwrap();
    alone.read_from(1000);
    let mut row = vec![0; ROW_BYTES];
    let error = alone.sync_pull("feat", &node, &mut row).unwrap_err();
    let ClientError::Refused { failure, .. } = &error else { panic!("{error}") };
    assert_eq!(failure.code, FailureCode::Behind, "{error}");
    assert!(failure.message.contains("expected version 1000"), "{error}");
    follower.stop();
}

#[test]
fn a_pinned_reader_has_the_same_rows_while_others_put_and_commit() {
    let cluster = Cluster::new();
    let follower = cluster.follow(0, 10);
    let addresses = [cluster.writer.address.as_str(), follower.address.as_str()];
    let writing = client(&addresses);
    put(&writing, &all_nodes(), 1).unwrap();
    writing.wait_for_followers(writing.commit().unwrap(), 1).unwrap();
    let pin = ClientConfig { pin: Some(Pin::Newest), ..ClientConfig::default() };
    let pinned = Client::connect(&addresses, pin).unwrap();
    let expected = rows_of(&pinned);
    assert_eq!(turn_of(&expected), 1);
    let end = Instant::now() + Duration::from_secs(if is_long() { 60 } else { 3 });
    let mut turn = 1;
    while Instant::now() < end {
        turn += 1;
        put(&writing, &all_nodes(), turn).unwrap();
        writing.commit().unwrap();
        if turn % 3 == 0 {
            let runs = writing.compact().unwrap();
            writing.wait_for_compactions(&runs, &mut |_, _| {}).unwrap();
        }
        assert!(rows_of(&pinned) == expected, "turn {turn}");
    }
    assert!(turn > 3, "{turn}");
    follower.stop();
    cluster.writer.stop();
}

#[test]
fn what_cannot_follow_says_what_to_do() {
    let mut cluster = Cluster::new();
    let follower = cluster.follow(0, 10);
    let (writer, address) = (cluster.writer.address.clone(), follower.address.clone());
    let stat = lode_line(&format!("stat {address} --json")).succeeded().json();
    assert_eq!(stat["role"], "follower");
    // It takes no puts, and names the writer.
    let error = put(&client(&[&address]), &[NodeId(1)], 1).unwrap_err();
    assert!(matches!(error, ClientError::NoWriter { .. }), "{error}");
    let mut plain = PlainConnection::open(&address);
    plain.ask_bytes(RequestBody::Commit { version: 2, step: CommitStep::Publish, label: 0 }, &[]);
    let Reply::Failure(failure) = plain.answer().0 else { panic!("it commits") };
    assert!(
        failure.code == FailureCode::ReadOnly && failure.message.contains(&writer),
        "{failure}"
    );
    // The writer goes back in time: the follower stays as it is, and says so.
    let old = cluster.dir.path().join("old");
    cluster.writer.child.kill().unwrap();
    cluster.writer.child.wait().unwrap();
    copy_dir(&cluster.graph, &old);
    cluster.writer = write_at(&cluster.graph, &writer);
    let all = client(&[&writer, &address]);
    for turn in 1..3 {
        put(&all, &all_nodes(), turn).unwrap();
        all.wait_for_followers(all.commit().unwrap(), 1).unwrap();
    }
    let expected = rows_at(&address);
    cluster.writer.child.kill().unwrap();
    cluster.writer.child.wait().unwrap();
    let restored = write_at(&old, &writer);
    let other = client(&[&writer]);
    for turn in 11..14 {
        put(&other, &all_nodes(), turn).unwrap();
        other.commit().unwrap();
        thread::sleep(Duration::from_millis(100));
        assert!(rows_at(&address) == expected, "it serves what it had");
    }
    let log = follower.stop_and_take_log();
    assert!(log.contains("restored from a copy") && log.contains("version 3"), "{log}");
    // The rows that it was offered replace nothing that it had.
    let folder = cluster.folder(0);
    lode_line(&format!("verify {}", folder.display())).succeeded();
    let again = cluster.follow(0, 10);
    assert!(rows_at(&again.address) == expected, "it serves what it had");
    again.stop();
    restored.stop();
    // Its folder is the writer's to change.
    let serve = format!("serve {} --writable --insecure --listen 127.0.0.1:0", folder.display());
    lode_line(&serve).failed(1, &[&writer, "`follows`"]);
    // And one that owns partitions does not follow.
    let serve = format!("serve {} --follow {writer} --listen 127.0.0.1:0", old.display());
    lode_line(&serve).failed(1, &["no follower's folder"]);
}

/// Its files have other versions than those here, as if it had folded them.
#[test]
fn a_writer_that_was_restored_and_has_passed_its_follower_is_refused() {
    refused_after(15);
}

#[test]
fn a_writer_that_was_restored_and_has_come_to_its_followers_version_is_refused() {
    refused_after(13);
}

/// Checks that a follower refuses a restored writer. The writer commits turns from 11 to `last`;
/// the follower is at the third turn after the copy.
fn refused_after(last: u32) {
    let mut cluster = Cluster::new();
    let follower = cluster.follow(0, 10);
    let (writer, address) = (cluster.writer.address.clone(), follower.address.clone());
    let old = cluster.dir.path().join("old");
    cluster.writer.child.kill().unwrap();
    cluster.writer.child.wait().unwrap();
    copy_dir(&cluster.graph, &old);
    cluster.writer = write_at(&cluster.graph, &writer);
    let all = client(&[&writer, &address]);
    for turn in 1..4 {
        put(&all, &[NodeId(turn)], turn).unwrap();
        all.wait_for_followers(all.commit().unwrap(), 1).unwrap();
        rows_at(&address);
    }
    let expected = rows_at(&address);
    assert_eq!(turn_of(&expected[ROW_BYTES..]), 1);
    cluster.writer.child.kill().unwrap();
    cluster.writer.child.wait().unwrap();
    // It has not listened before it has folded past the follower's version.
    {
        let graph = Graph::open(&old).unwrap();
        let live =
            GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
        for turn in 11..=last {
            live.put_rows("feat", &[NodeId(turn)], &put_row(NodeId(turn), turn)).unwrap();
            live.commit_version().unwrap();
        }
        live.compact(None, None, Folding::All, &mut |_, _| ControlFlow::Continue(())).unwrap();
    }
    let restored = write_at(&old, &writer);
    let has_passed = last > 13;
    let commit = has_passed.then(|| client(&[&writer]).commit().unwrap());
    thread::sleep(Duration::from_millis(500));
    assert!(rows_at(&address) == expected, "it serves what it had");
    if let Some(commit) = commit {
        let behind = ClientConfig { deadline: Duration::from_secs(1), ..ClientConfig::default() };
        let behind = Client::connect(&[&writer, &address], behind).unwrap();
        behind.wait_for_followers(commit, 1).unwrap_err();
    }
    let log = follower.stop_and_take_log();
    assert!(log.contains("made version 4 by another commit"), "{log}");
    restored.stop();
}

pub(crate) fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A partition moves to another writer: its follower goes over to that.
#[test]
fn a_follower_goes_over_to_the_writer_that_takes_its_partition() {
    let two = Two::new();
    let servers = [0, 1].map(|at| two.serve(at, "127.0.0.1:0"));
    let [from, to] = &servers;
    let folder = two.folders[1].with_file_name("follower");
    let follow = format!("--follow {} --follow {}", from.address, to.address);
    let follow = format!("{follow} --follow-interval 20 --shards 1 --listen 127.0.0.1:0");
    let follower = Serving::start(&folder, &follow);
    let all = client(&[&from.address, &to.address]);
    // It counts though the client is not connected to it.
    put(&all, &all_nodes(), 1).unwrap();
    all.wait_for_followers(all.commit().unwrap(), 1).unwrap();
    assert_eq!(turn_of(&rows_at(&follower.address)), 1);
    let plan = plan(from, 1, &two.folders[1], Some(to));
    PartitionTransfer::run(plan, &mut |_, _| {}).unwrap();
    for turn in 2..4 {
        put(&all, &all_nodes(), turn).unwrap();
        all.wait_for_followers(all.commit().unwrap(), 1).unwrap();
        let rows = rows_at(&follower.address);
        assert!(rows.chunks_exact(ROW_BYTES).all(|row| turn_of(row) == turn), "turn {turn}");
    }
    let error = all.wait_for_followers(all.commit().unwrap(), 2).unwrap_err();
    assert!(error.to_string().contains("1 are known to"), "{error}");
    follower.stop();
    servers.into_iter().for_each(Serving::stop);
}
