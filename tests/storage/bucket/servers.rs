//! Servers that publish in a bucket, follow it, and take partitions over from each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions};
use rustix::process::Signal;
use serde_json::Value;

use crate::bucket::away::{bring_back, take_away};
use crate::bucket::files_below;
use crate::bucket::home::Home;
use testing::Numbers;
use testing::http::get;
use testing::process::{Serving, lode, signal};

/// Longest time until a version has come so far.
const DEADLINE: Duration = Duration::from_secs(60);

impl Home {
    pub(crate) fn publish(&self, graph: &Path, more: &str) -> Result<Serving, String> {
        let (graph, url) = (graph.display(), self.url());
        let port = "--listen 127.0.0.1:0 --insecure --shards 1";
        Serving::try_start_command(&format!(
            "serve {graph} --json {port} --writable --publish {url} {more}"
        ))
    }

    fn follow(&self, graph: &Path, more: &str) -> Result<Serving, String> {
        let (graph, url) = (graph.display(), self.url());
        let port = "--listen 127.0.0.1:0 --insecure --shards 1";
        Serving::try_start_command(&format!(
            "serve {graph} --json {port} --follow {url} --follow-interval 50 {more}"
        ))
    }

    /// Returns the version that every partition has published.
    pub(crate) fn published(&self) -> u64 {
        let inspected = lode(["inspect", "--json", &self.url()]).succeeded().json();
        inspected["version"].as_u64().unwrap_or(0)
    }

    /// Pulls what is published into a new folder.
    fn pulled(&self, name: &str) -> PathBuf {
        self.pull(name, &[]).succeeded();
        self.path(name)
    }
}

/// Waits until something is so.
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

fn stat(server: &Serving) -> Value {
    lode(["stat", "--json", &server.address]).succeeded().json()
}

fn version_of(server: &Serving) -> u64 {
    stat(server)["version"].as_u64().unwrap()
}

#[test]
fn each_commit_is_published_and_the_next_start_publishes_what_is_left() {
    let home = Home::new();
    let server = home.publish(&home.graph, "--metrics 127.0.0.1:0").unwrap();
    wait_for("version 1 is published", || home.published() == 1);
    for version in 2..5 {
        home.put_through(&server.address, version).succeeded();
        wait_for("the commit is published", || home.published() == version);
    }
    wait_for("stat says so", || stat(&server)["published_version"] == 4);
    // Files that cannot be uploaded stay here, and are counted.
    let chunks = home.bucket().join("part-001/chunks");
    let aside = home.path("aside");
    fs::rename(&chunks, &aside).unwrap();
    fs::write(&chunks, "no folder").unwrap();
    home.put_through(&server.address, 5).succeeded();
    wait_for("partition 0 is published", || {
        let inspected = lode(["inspect", "--json", &home.url()]).succeeded().json();
        inspected["parts"][0]["version"] == 5
    });
    let stat_text = lode(["stat", &server.address]).succeeded().stdout;
    assert!(stat_text.contains("published: version 4; 1 version not published yet"), "{stat_text}");
    let metrics = testing::http::get(&server.metrics, "/metrics").body;
    for line in [
        "lodestore_published_version{part=\"0\"} 5",
        "lodestore_published_version{part=\"1\"} 4",
        "lodestore_unpublished_versions{part=\"1\"} 1",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    fs::remove_file(&chunks).unwrap();
    fs::rename(&aside, &chunks).unwrap();
    wait_for("it is published after all", || home.published() == 5);
    home.check_same(&home.graph, &home.pulled("at-5"));
    // A clean stop publishes the last commit; what is committed after it waits for the next start.
    home.put_through(&server.address, 6).succeeded();
    server.stop();
    assert_eq!(home.published(), 6);
    home.put(&home.graph, 7, true);
    let server = home.publish(&home.graph, "").unwrap();
    wait_for("the next start publishes it", || home.published() == 7);
    server.stop();
    home.check_same(&home.graph, &home.pulled("at-7"));
    home.verify().succeeded();
}

#[test]
fn two_servers_publish_the_same_versions() {
    let home = Home::new();
    let servers = [0, 1].map(|part| home.publish(&home.graph, &format!("--parts {part}")).unwrap());
    let target: Vec<&str> =
        servers.iter().flat_map(|server| ["--connect", &server.address]).collect();
    for version in 2..=40 {
        home.try_put(&target, version, true).succeeded();
        if version % 8 == 0 {
            wait_for("a version of this round is published", || home.published() + 8 > version);
        }
    }
    wait_for("the last one is published", || home.published() == 40);
    servers.into_iter().for_each(Serving::stop);
    let epochs = fs::read_to_string(home.graph.join("bucket-epochs")).unwrap();
    assert_eq!(epochs.matches(" 0@40:").count(), 2, "{epochs}");
    home.check_same(&home.graph, &home.pulled("pulled"));
}

#[test]
fn a_writer_that_was_taken_over_takes_no_more_puts_and_does_not_start_again() {
    let home = Home::new();
    let first = home.publish(&home.graph, "").unwrap();
    home.put_through(&first.address, 2).succeeded();
    wait_for("version 2 is published", || home.published() == 2);
    let other = home.path("other");
    let refused = home.publish(&other, "").err().unwrap();
    assert!(refused.contains("other"), "nothing is there: {refused}");
    let second = home.publish(&other, "--take-over").unwrap();
    wait_for("the first one is fenced", || {
        let put = home.put_through(&first.address, 3);
        put.code != Some(0) && put.stderr.contains("no server accepts puts for partition")
    });
    // It answers reads, and says what is wrong.
    assert_eq!(stat(&first)["writable"], false);
    // Its later commits, if any, are not published.
    home.put_through(&second.address, 4).succeeded();
    let version = version_of(&second);
    wait_for("the second one publishes", || home.published() == version);
    home.check_same(&other, &home.pulled("pulled"));
    first.stop();
    let log = home.publish(&home.graph, "").err().unwrap();
    assert!(log.contains("another writer has taken partition 0 over"), "{log}");
    home.push(&home.graph).failed(1, &["another writer has taken partition 0 over"]);
    // The second one starts again as it was; each request is a takeover, also of its own.
    second.stop();
    let epochs = || -> Vec<String> {
        let text = fs::read_to_string(other.join("bucket-epochs")).unwrap();
        text.lines().map(|line| line.split('@').next().unwrap().to_owned()).collect()
    };
    let before = epochs();
    for (more, is_same) in [("", true), ("--take-over", false)] {
        let second = home.publish(&other, more).unwrap();
        home.put_through(&second.address, 5).succeeded();
        second.stop();
        assert_eq!(epochs() == before, is_same, "{more}");
    }
    home.check_same(&other, &home.pulled("last"));
    home.verify().succeeded();
}

/// A commit that was made while another server took over is in no other folder.
#[test]
fn a_history_that_was_not_published_is_never_mixed_with_the_one_that_was() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let other = home.pulled("other");
    home.put(&home.graph, 2, true);
    home.put(&other, 3, true);
    home.push(&other).succeeded();
    for more in ["", "--take-over"] {
        let log = home.publish(&home.graph, more).err().unwrap();
        assert!(log.contains("fenced") && log.contains("version 2"), "{log}");
    }
    home.check_same(&other, &home.pulled("pulled"));
}

#[test]
fn a_follower_serves_partitions_as_they_come_and_then_each_version() {
    let home = Home::new();
    let writer = home.publish(&home.graph, "").unwrap();
    wait_for("version 1 is published", || home.published() == 1);
    let dir = home.path("follower");
    let follower = home.follow(&dir, "").unwrap();
    let all = home.try_rows(&["--graph", home.graph.to_str().unwrap()], "wide").unwrap();
    wait_for("all rows are served", || {
        home.try_rows(&["--connect", &follower.address], "wide").is_ok_and(|rows| rows == all)
    });
    for version in 2..6 {
        home.put_through(&writer.address, version).succeeded();
        wait_for("the follower has the version", || version_of(&follower) == version);
    }
    home.check_same(&home.graph, &dir);
    let refused = home.put_through(&follower.address, 9);
    assert!(refused.code != Some(0), "{refused:?}");
    // From where it was, after a kill.
    follower.kill();
    home.put_through(&writer.address, 6).succeeded();
    let follower = home.follow(&dir, "").unwrap();
    wait_for("the follower has the version", || version_of(&follower) == 6);
    writer.kill();
    follower.stop();
    // A follower's folder becomes the writer's.
    let log = Serving::try_start_command(&format!("serve {} --writable --insecure", dir.display()));
    assert!(log.err().unwrap().contains("follows"), "a follower's folder takes no puts");
    let writer = home.publish(&dir, "--take-over").unwrap();
    home.put_through(&writer.address, 7).succeeded();
    wait_for("it publishes", || home.published() == 7);
    writer.stop();
    home.check_same(&dir, &home.pulled("pulled"));
}

#[test]
fn a_follower_whose_bucket_is_away_says_so_and_that_it_caught_up() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let follower = home.follow(&home.path("follower"), "--metrics 127.0.0.1:0").unwrap();
    wait_for("all partitions are followed", || {
        get(&follower.metrics, "/metrics").body.matches("lodestore_follow_failing{").count() == 2
    });
    home.put(&home.graph, 2, true);
    take_away(&home);
    let readiness = || get(&follower.metrics, "/readyz");
    wait_for("it is behind", || readiness().body.contains("partition 0 is behind: version 1 of 1"));
    assert_eq!(readiness().status, 200, "reads continue");
    let told = stat(&follower)["following"].clone();
    assert_eq!((&told["from"], &told["versions_behind"]), (&home.url().into(), &0.into()));
    assert!(told["fault"].as_str().unwrap().starts_with("partition 0: "), "{told}");
    wait_for("its log says so", || follower.log().contains("behind in partition"));
    bring_back(&home);
    home.push(&home.graph).succeeded();
    wait_for("the follower has the version", || version_of(&follower) == 2);
    wait_for("it is ready", || readiness().body == "ready\n");
    wait_for("its log says that too", || follower.log().contains("caught up at version "));
    follower.stop();
}

#[test]
fn a_follower_keeps_within_its_disk() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let inspected = lode(["inspect", "--json", &home.url()]).succeeded().json();
    let bytes = |part: usize| inspected["parts"][part]["bytes"].as_u64().unwrap();
    let dir = home.path("follower");
    let log = home.follow(&dir, "--disk 1000").err().unwrap();
    assert!(log.contains("no partition fits") && log.contains("raise --disk"), "{log}");
    // Both fit, but for a byte; the order is that of the request.
    let size = bytes(0) + bytes(1) - 1;
    let follower = home.follow(&dir, &format!("--parts 1,0 --disk {size}")).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(dir.join("part-001").exists() && !dir.join("part-000").exists());
    let room = size - bytes(1);
    let log = follower.stop_and_take_log();
    assert!(log.contains("do not fit") && log.contains("parts=\"0\""), "{log}");
    // A version with more bytes than there is room for is not installed, and the one before served.
    let size = size - room + 100;
    let follower = home.follow(&dir, &format!("--parts 1 --disk {size}")).unwrap();
    home.put(&home.graph, 2, true);
    home.push(&home.graph).succeeded();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(version_of(&follower), 1);
    let log = follower.stop_and_take_log();
    assert!(log.contains("brings the folder to") && log.contains("raise that limit"), "{log}");
    let follower = home.follow(&dir, "").unwrap();
    wait_for("it follows again", || version_of(&follower) == 2);
    wait_for("partition 0 has come", || dir.join("part-000").exists());
    follower.stop();
    home.check_same(&home.graph, &dir);
    // A partition that is in the folder and is not followed is not served: it would stay as it is.
    let follower = home.follow(&dir, "--parts 1").unwrap();
    let target = ["--connect", &follower.address];
    assert!(home.try_rows(&target, "feat").unwrap_err().contains("partition 0"));
    follower.stop();
    lode(["serve", dir.to_str().unwrap(), "--follow", "file:///a,h:1"])
        .failed(2, &["one URL alone"]);
    lode(["serve", dir.to_str().unwrap(), "--follow", "h:1", "--disk", "5"])
        .failed(2, &["--disk is for"]);
}

#[test]
fn a_publishing_writer_that_is_killed_at_any_time_publishes_every_commit_after_its_restart() {
    let home = Home::new();
    let mut numbers = Numbers(31);
    for round in 0..6 {
        let server = home.publish(&home.graph, "").unwrap();
        for seed in 0..3 {
            home.put_through(&server.address, 100 * round + seed).succeeded();
        }
        std::thread::sleep(Duration::from_millis(u64::from(numbers.below(120))));
        server.kill();
        if home.published() > 0 {
            home.verify().succeeded();
        }
    }
    let server = home.publish(&home.graph, "").unwrap();
    wait_for("all is published", || home.published() == version_of(&server));
    assert_eq!(version_of(&server), 19);
    server.stop();
    home.check_same(&home.graph, &home.pulled("pulled"));
    // A version in between: from its own publication, or from the layers of a later one.
    home.pull("at-8", &["--version", "8"]).succeeded();
    lode(["verify", home.path("at-8").to_str().unwrap()]).succeeded();
}

/// Both are written to, and the bucket has the history of one.
#[test]
fn of_two_concurrent_takeovers_one_makes_the_history() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let n_trials = if std::env::var_os("LODE_LONG").is_some() { 50 } else { 4 };
    for trial in 0..n_trials {
        let dirs = ["a", "b"].map(|name| home.path(&format!("{name}{trial}")));
        let both = std::thread::scope(|scope| {
            let home = &home;
            let start = |dir| scope.spawn(move || home.publish(dir, "--take-over"));
            let starts = [start(&dirs[0]), start(&dirs[1])];
            starts.map(|start| start.join().unwrap())
        });
        // One of them may be fenced before it has started.
        let servers: Vec<(usize, Serving)> =
            both.into_iter().enumerate().filter_map(|(at, it)| Some((at, it.ok()?))).collect();
        assert!(!servers.is_empty());
        for (at, server) in &servers {
            let seed = 1000 + 10 * trial + *at as u64;
            let _ = home.put_through(&server.address, seed);
        }
        // A fenced one knows so once it has looked.
        let mut writable = Vec::new();
        wait_for("one is fenced", || {
            let writers = servers.iter().filter(|(_, it)| stat(it)["writable"] == true);
            writable = writers.map(|(at, _)| *at).collect();
            writable.len() == 1
        });
        for (_, server) in servers {
            server.stop();
        }
        home.check_same(&dirs[writable[0]], &home.pulled(&format!("p{trial}")));
    }
    home.verify().succeeded();
}

/// A server that is behind by more commits than histories have must not publish its old version.
#[test]
fn a_folder_that_is_far_behind_takes_nothing_over_and_one_far_ahead_may() {
    let home = Home::new();
    // The version of an import is in every history.
    home.put(&home.graph, 2, true);
    home.push(&home.graph).succeeded();
    let old = home.pulled("old");
    let (graph, options) = (Graph::open(&home.graph).unwrap(), OpenOptions::default());
    let live = GraphHandle::open(graph, None, OpenMode::Write, &options).unwrap();
    for _ in 0..1030 {
        live.commit_version().unwrap();
    }
    drop(live);
    // The folder knows what it has published.
    home.push(&home.graph).succeeded();
    assert_eq!(home.published(), 1032);
    let before = files_below(&home.bucket());
    let log = home.publish(&old, "--take-over").err().unwrap();
    assert!(log.contains("away for too long"), "{log}");
    let log = home.publish(&old, "").err().unwrap();
    assert!(log.contains("published at version 1032, and version 2 is here"), "{log}");
    assert!(files_below(&home.bucket()) == before, "no writer was fenced");
    home.verify().succeeded();
}

/// `lode push` beside a server publishes the same history: both continue.
#[test]
fn pushes_beside_a_publishing_server_fence_neither() {
    let home = Home::new();
    let server = home.publish(&home.graph, "").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                home.push(&home.graph).succeeded();
            }
        });
        for seed in 0..25 {
            let put = home.put_through(&server.address, seed);
            if put.code != Some(0) {
                stop.store(true, Ordering::Relaxed);
                put.succeeded();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    wait_for("all is published", || home.published() == 26);
    assert_eq!(stat(&server)["writable"], true);
    server.stop();
    home.check_same(&home.graph, &home.pulled("pulled"));
}

#[test]
fn a_take_over_of_no_partition_takes_none_and_needs_its_flags() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    // A server all of whose partitions were moved away.
    let empty = home.path("empty");
    fs::create_dir(&empty).unwrap();
    fs::copy(home.graph.join("graph.toml"), empty.join("graph.toml")).unwrap();
    let before = files_below(&home.bucket());
    let server = home.publish(&empty, "--local-parts --take-over").unwrap();
    server.stop();
    assert!(files_below(&home.bucket()) == before && !empty.join("part-000").exists());
    let graph = home.graph.to_str().unwrap();
    let socket = home.path("socket");
    let serve = ["serve", graph, "--unix", socket.to_str().unwrap()];
    let with = |more: &[&str]| lode(serve.iter().chain(more));
    with(&["--publish", &home.url()]).failed(2, &["--publish needs --writable"]);
    with(&["--writable", "--take-over"]).failed(2, &["--take-over needs --publish"]);
    // Nothing is taken from a folder that another process follows.
    let dir = home.path("follower");
    let follower = home.follow(&dir, "").unwrap();
    wait_for("both partitions are here", || dir.join("part-001").exists());
    let log = home.publish(&dir, "--take-over").err().unwrap();
    assert!(log.contains("another process") || log.contains("lock"), "{log}");
    assert!(files_below(&home.bucket()) == before, "no writer was fenced");
    assert!(dir.join("follows").exists());
    follower.stop();
}

/// The drill of `docs/object-storage.md`: partition 0 had published one version more.
#[test]
fn every_disk_is_lost_and_servers_come_back() {
    let home = Home::new();
    home.put(&home.graph, 2, true);
    home.push(&home.graph).succeeded();
    home.put(&home.graph, 3, true);
    let (graph, url) = (home.graph.to_str().unwrap().to_owned(), home.url());
    lode(["push", "--parts", "0", &graph, &url]).succeeded();
    let dirs = ["m0", "m1"].map(|name| home.path(name));
    let servers = [0, 1]
        .map(|at: usize| home.publish(&dirs[at], &format!("--parts {at} --take-over")).unwrap());
    assert_eq!(servers.each_ref().map(version_of), [3, 2]);
    let mut commit = vec!["commit"];
    commit.extend(servers.iter().map(|server| server.address.as_str()));
    lode(&commit).succeeded();
    // Partition 1 has made version 3 by another commit than partition 0.
    wait_for("it is published", || home.published() == 4);
    // Nothing that was published of partition 0 is lost.
    let whole = home.pulled("whole");
    home.check_part(&home.graph, &whole, 0);
    servers.into_iter().for_each(Serving::stop);
}

/// A folder that was stopped in the middle of its arrival continues.
#[test]
fn a_take_over_that_is_killed_at_any_time_is_completed_by_the_next() {
    let home = Home::new();
    home.put(&home.graph, 2, true);
    home.push(&home.graph).succeeded();
    let (dir, url) = (home.path("other"), home.url());
    let mut numbers = Numbers(77);
    for _ in 0..8 {
        let mut child = crate::bucket::command([
            "serve",
            dir.to_str().unwrap(),
            "--unix",
            home.path("socket").to_str().unwrap(),
            "--writable",
            "--publish",
            &url,
            "--take-over",
        ])
        .spawn()
        .unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(numbers.below(80))));
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        home.verify().succeeded();
    }
    let before = files_below(&home.bucket()).len();
    let server = home.publish(&dir, "--take-over").unwrap();
    home.put_through(&server.address, 3).succeeded();
    server.stop();
    assert!(files_below(&home.bucket()).len() > before);
    home.check_same(&dir, &home.pulled("pulled"));
    home.push(&home.graph).failed(1, &["another writer has taken"]);
}
