//! Graphs go to a bucket and come back: over a local folder here, and over a server of S3's
//! protocol in `object_storage.rs`.

mod away;
mod home;
mod many_parts;
mod servers;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bucket::home::Home;
use testing::Numbers;
use testing::process::{command, finish, lode};

/// Returns the files below a folder with their bytes.
fn files_below(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => drop(files.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    files
}

/// Returns the segments and lists of a graph's folder, by their paths in it.
fn data_files(graph: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let is_of_folder = |name: &OsStr| name == "catalog" || name == "bucket-epochs";
    let is_data = |path: &PathBuf| !path.iter().any(is_of_folder);
    let files = files_below(graph).into_iter().filter(|(path, _)| is_data(path));
    files.map(|(path, bytes)| (path.strip_prefix(graph).unwrap().to_owned(), bytes)).collect()
}

fn chunks_of(home: &Home) -> Vec<PathBuf> {
    let files = files_below(&home.bucket()).into_keys();
    files.filter(|path| path.parent().unwrap().ends_with("chunks")).collect()
}

#[test]
fn a_graph_goes_to_a_bucket_and_comes_back_byte_for_byte() {
    let home = Home::new();
    let pushed = home.push(&home.graph).succeeded().json();
    assert_eq!(
        (pushed["version"].as_u64(), pushed["parts"].as_array().unwrap().len()),
        (Some(1), 2)
    );
    assert!(pushed["bytes"].as_u64().unwrap() > 2_000_000, "{pushed}");
    let pulled = home.pull("pulled", &[]).succeeded().json();
    assert!(pulled["bytes"].as_u64() >= pushed["bytes"].as_u64(), "{pulled}");
    assert!(data_files(&home.graph) == data_files(&home.path("pulled")));
    home.check_same(&home.graph, &home.path("pulled"));
    let inspected = lode(["inspect", "--json", &home.url()]).succeeded().json();
    assert_eq!(
        (inspected["version"].as_u64(), inspected["parts"][1]["publication"].as_u64()),
        (Some(1), Some(1))
    );
    let verified = home.verify().succeeded().json();
    assert_eq!(
        (verified["ok"].as_bool(), verified["publications"].as_u64()),
        (Some(true), Some(2))
    );
    // A pulled graph takes puts, and publishes.
    home.put(&home.path("pulled"), 1, true);
    home.push(&home.path("pulled")).succeeded();
}

#[test]
fn only_what_is_missing_travels_and_versions_stay() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let again = home.push(&home.graph).succeeded().json();
    assert_eq!(
        (again["bytes"].as_u64(), again["parts"][0]["is_new"].as_bool()),
        (Some(0), Some(false))
    );
    home.pull("pulled", &[]).succeeded();
    let first = home.rows(&home.graph, "feat");
    home.put(&home.graph, 2, true);
    // Rows that are not committed stay.
    home.put(&home.graph, 3, false);
    let pushed = home.push(&home.graph).succeeded().json();
    let bytes = pushed["bytes"].as_u64().unwrap();
    assert!((1..200_000).contains(&bytes), "two small deltas: {pushed}");
    let pulled = home.pull("pulled", &[]).succeeded().json();
    assert!(pulled["bytes"].as_u64().unwrap() <= bytes, "{pulled}");
    assert_eq!(pulled["version"].as_u64(), Some(2));
    assert!(home.rows(&home.path("pulled"), "feat") != first);
    home.check_same(&home.graph, &home.path("pulled"));
    let nothing = home.pull("pulled", &[]).succeeded().json();
    assert_eq!((nothing["bytes"].as_u64(), nothing["files"].as_u64()), (Some(0), Some(0)));
    home.pull("old", &["--version", "1"]).succeeded();
    assert!(home.rows(&home.path("old"), "feat") == first);
    home.pull("one", &["--parts", "1"]).succeeded();
    assert!(home.path("one/part-001").exists() && !home.path("one/part-000").exists());
    home.pull("one", &["--parts", "0"]).succeeded();
    home.check_same(&home.graph, &home.path("one"));
    home.pull("one", &["--parts", "2"]).failed(1, &["no partition 2", "the graph has 2"]);
    home.pull("none", &["--version", "9"]).failed(1, &["no version 9 is complete"]);
    assert!(!home.path("none").exists());
}

#[test]
fn of_two_writers_the_second_is_fenced_and_rows_not_committed_are_not_overwritten() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    home.pull("other", &[]).succeeded();
    home.put(&home.graph, 4, true);
    home.put(&home.path("other"), 5, true);
    home.push(&home.graph).succeeded();
    let before = files_below(&home.bucket());
    home.push(&home.path("other")).failed(1, &["fenced", "partition 0", "version 2"]);
    home.put(&home.path("other"), 6, true);
    home.push(&home.path("other"))
        .failed(1, &["fenced", "pull what is published into a new folder"]);
    assert!(files_below(&home.bucket()) == before, "nothing was published");
    home.pull("other", &[]).failed(1, &["this folder is at version 3"]);
    home.pull("third", &["--version", "1"]).succeeded();
    home.push(&home.path("third")).failed(1, &["published at version 2, and version 1 is here"]);
    home.put(&home.path("third"), 7, false);
    home.pull("third", &[]).failed(1, &["rows that are not committed"]);
}

#[test]
fn urls_of_other_graphs_and_of_nothing_are_refused() {
    let home = Home::new();
    home.pull("pulled", &[]).failed(1, &["no graph is there", "lode push"]);
    assert!(!home.bucket().exists() && !home.path("pulled").exists());
    home.push(&home.graph).succeeded();
    let other = home.source.import("other", 2, "hash");
    home.push(&other).failed(1, &["and", "is graph", "use the URL of this graph"]);
    home.pull("other", &[]).failed(1, &["use the URL of this graph"]);
    lode(["push", home.graph.to_str().unwrap(), "bucket"]).failed(1, &["expected a URL such as"]);
    lode(["pull", "s3://key:SECRET@bucket/g", "x"]).failed(1, &["do not belong in the URL"]);
    let secret = lode(["verify", "https://host/g?sig=SECRET"]);
    assert!(!secret.failed(1, &["set them in the environment"]).stderr.contains("SECRET"));
}

/// The file and the object are named, and no partition gets its name.
#[test]
fn damage_in_the_bucket_is_named_and_never_pulled() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let mut chunks = chunks_of(&home);
    chunks.retain(|path| fs::metadata(path).unwrap().len() > 100_000);
    chunks.sort();
    let (a, b) = (&chunks[0], &chunks[1]);
    let whole = [fs::read(a).unwrap(), fs::read(b).unwrap()];
    let damaged = |reason: &str, n_damaged: usize| {
        let report = home.verify().failed(1, &[]).json();
        let found = report["damaged"].as_array().unwrap();
        assert_eq!(found.len(), n_damaged, "{report}");
        assert!(found[0]["reason"].as_str().unwrap().contains(reason), "{report}");
        assert!(found[0]["file"].as_str().unwrap().starts_with("part-00"), "{report}");
        home.pull("pulled", &[]).failed(1, &["damaged", "chunks/"]);
        assert!(!home.path("pulled/part-000").exists() || !home.path("pulled/part-001").exists());
    };
    fs::write(a, &whole[0][..whole[0].len() - 1]).unwrap();
    damaged("bytes, expected", 1);
    let mut flipped = whole[0].clone();
    flipped[50_000] ^= 1;
    fs::write(a, &flipped).unwrap();
    damaged("has BLAKE3", 1);
    fs::write(a, &whole[1]).unwrap();
    fs::write(b, &whole[0]).unwrap();
    damaged("", 2);
    fs::remove_file(a).unwrap();
    fs::write(b, &whole[1]).unwrap();
    damaged("is not there", 1);
    fs::write(a, &whole[0]).unwrap();
    home.pull("pulled", &[]).succeeded();
    home.check_same(&home.graph, &home.path("pulled"));
    let first = home.bucket().join("part-000/published/0000000001");
    let published = fs::read(&first).unwrap();
    fs::write(&first, &published[..published.len() - 1]).unwrap();
    home.pull("pulled", &[]).failed(1, &["part-000/published/0000000001: damaged"]);
    home.push(&home.graph).failed(1, &["part-000/published/0000000001: damaged"]);
    fs::copy(home.bucket().join("part-001/published/0000000001"), &first).unwrap();
    home.verify().failed(1, &[]);
    home.pull("pulled", &[]).failed(1, &["expected partition 0"]);
}

#[test]
fn a_damaged_page_is_not_pushed() {
    let home = Home::new();
    let path = home.graph.join("part-001/wide.v1.seg");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100_000] ^= 1;
    fs::write(&path, bytes).unwrap();
    home.push(&home.graph).failed(1, &["wide.v1.seg", "damaged page"]);
    home.pull("pulled", &[]).failed(1, &["no version is complete"]);
    let home = Home::new();
    let path = home.graph.join("part-000/topology.csr");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    home.push(&home.graph).failed(1, &["topology.csr is damaged", "nothing was published"]);
}

#[test]
fn garbage_collection_keeps_versions_pins_and_what_is_young() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let mut at_2 = Vec::new();
    for seed in 10..13 {
        home.put(&home.graph, seed, true);
        home.push(&home.graph).succeeded();
        if seed == 10 {
            at_2 = home.rows(&home.graph, "feat");
        }
    }
    lode(["compact", home.graph.to_str().unwrap()]).succeeded();
    home.put(&home.graph, 13, true);
    home.push(&home.graph).succeeded();
    let kept = home.gc(&["--keep", "1"]).succeeded().json();
    assert_eq!(
        (kept["publications"].as_u64(), kept["chunks"].as_u64()),
        (Some(0), Some(0)),
        "all are young"
    );
    let before = files_below(&home.bucket());
    let dry = home.gc(&["--keep", "1", "--grace", "0", "--dry-run"]).succeeded().json();
    assert_eq!(dry["publications"].as_u64(), Some(8));
    assert!(files_below(&home.bucket()) == before);
    let dry = ["--keep", "1", "--grace", "0", "--dry-run", "--pin", "paper=1"];
    let dry = home.gc(&dry).succeeded().json();
    assert_eq!((dry["publications"].as_u64(), &dry["pins"]["paper"]), (Some(6), &1.into()));
    assert!(files_below(&home.bucket()) == before, "a dry run sets no pin");
    let removed = home.gc(&["--keep", "2", "--grace", "0", "--pin", "paper=1"]).succeeded().json();
    assert_eq!(
        (removed["publications"].as_u64(), removed["publications_kept"].as_u64()),
        (Some(4), Some(6))
    );
    assert!(removed["pins"]["paper"] == 1, "{removed}");
    home.gc(&["--keep", "2", "--pin", "paper=4"]).failed(1, &["keeps version 1, not 4"]);
    home.gc(&["--keep", "2", "--unpin", "papr"])
        .failed(1, &["no pin \"papr\"", "there are: paper"]);
    let both = ["--keep", "2", "--pin", "paper=1", "--unpin", "paper"];
    home.gc(&both).failed(2, &["found paper in both"]);
    home.verify().succeeded();
    // Version 2 is among the layers of version 4.
    for version in ["1", "2", "4", "5"] {
        home.pull(&format!("v{version}"), &["--version", version]).succeeded();
    }
    assert!(home.rows(&home.path("v2"), "feat") == at_2);
    home.check_same(&home.graph, &home.path("v5"));
    let removed = home.gc(&["--keep", "1", "--grace", "0", "--unpin", "paper"]).succeeded().json();
    assert!(
        removed["chunks"].as_u64() > Some(0) && removed["bytes"].as_u64() > Some(100_000),
        "{removed}"
    );
    home.verify().succeeded();
    home.pull("gone", &["--version", "2"]).failed(1, &["no version 2 is complete", "removed it"]);
    home.pull("last", &[]).succeeded();
    home.check_same(&home.graph, &home.path("last"));
    // Numbers continue after tombstones, from a folder that knows them and from one that does not.
    home.put(&home.path("last"), 14, true);
    let pushed = home.push(&home.path("last")).succeeded().json();
    assert_eq!(pushed["parts"][0]["publication"].as_u64(), Some(6));
    // Without its first publication a partition seems to have none.
    let first = home.bucket().join("part-000/published/0000000001");
    let bytes = fs::read(&first).unwrap();
    fs::remove_file(&first).unwrap();
    let before = files_below(&home.bucket());
    home.gc(&["--keep", "1", "--grace", "0"]).failed(1, &["0000000001", "nothing was removed"]);
    assert!(files_below(&home.bucket()) == before);
    fs::write(&first, bytes).unwrap();
    home.gc(&["--keep", "0"]).failed(2, &["keep"]);
    home.gc(&["--keep", "1", "--pin", "a/b=1"]).failed(2, &["letters, digits"]);
    home.gc(&["--keep", "1", "--pin", "gone=2"]).failed(1, &["no version 2 is complete"]);
}

#[test]
fn a_push_uploads_what_the_bucket_has_lost_or_cut_short() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let chunks: Vec<PathBuf> =
        files_below(&home.bucket().join("part-000/chunks")).into_keys().collect();
    for (publication, cut) in [(2, false), (3, true)] {
        let bytes = fs::read(&chunks[0]).unwrap();
        match cut {
            true => fs::write(&chunks[0], &bytes[1..]).unwrap(),
            false => fs::remove_file(&chunks[0]).unwrap(),
        }
        home.verify().failed(1, &[]);
        let pushed = home.push(&home.graph).succeeded().json();
        let of = |part: usize, key: &str| pushed["parts"][part][key].as_u64();
        assert_eq!((of(0, "publication"), of(1, "publication")), (Some(publication), Some(1)));
        home.verify().succeeded();
    }
    home.pull("whole", &[]).succeeded();
    home.check_same(&home.graph, &home.path("whole"));
}

#[test]
fn a_push_and_a_pull_that_are_killed_at_any_time_continue() {
    let home = Home::new();
    let pulled = home.path("pulled");
    let (graph, url) = (home.graph.to_str().unwrap().to_owned(), home.url());
    let mut numbers = Numbers(21);
    for round in 0..12 {
        let seed = 100 + round;
        home.put(&home.graph, seed, true);
        for args in [["push", &graph, &url], ["pull", &url, pulled.to_str().unwrap()]] {
            for _ in 0..4 {
                let mut child = command(args).spawn().unwrap();
                std::thread::sleep(Duration::from_micros(u64::from(numbers.below(60_000))));
                // It may have ended.
                let _ = child.kill();
                finish(child, Duration::from_secs(20));
                // A published version is whole, whenever the push was killed.
                if round % 4 == 0
                    && args[0] == "push"
                    && home.bucket().join("part-001/published/0000000001").exists()
                {
                    home.verify().succeeded();
                }
            }
            lode(args).succeeded();
        }
        home.check_same(&home.graph, &pulled);
    }
    let left: Vec<_> = fs::read_dir(&pulled).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains(".copy-")), "{left:?}");
}

/// The drill of `docs/object-storage.md`, with a partition on each of two machines.
#[test]
fn every_disk_is_lost_and_the_graph_comes_back() {
    let home = Home::new();
    home.put(&home.graph, 50, true);
    home.push(&home.graph).succeeded();
    home.put(&home.graph, 51, true);
    // The machine of partition 1 is lost before its push.
    let (graph, url) = (home.graph.to_str().unwrap().to_owned(), home.url());
    lode(["push", "--parts", "0", &graph, &url]).succeeded();
    let at_3 = home.rows(&home.graph, "feat");
    let inspected = lode(["inspect", "--json", &url]).succeeded().json();
    assert_eq!(
        (inspected["version"].as_u64(), inspected["parts"][0]["version"].as_u64()),
        (Some(2), Some(3))
    );
    let machines = ["m0", "m1"].map(|name| home.path(name));
    let restore = |version: u64| {
        for (part, dir) in machines.iter().enumerate() {
            let (dir, part) = (dir.to_str().unwrap(), part.to_string());
            let pulled = lode(["pull", "--json", &url, dir, "--parts", &part]).succeeded().json();
            assert_eq!(pulled["version"].as_u64(), Some(version));
            lode(["verify", dir, "--parts", &part]).succeeded();
        }
    };
    restore(2);
    machines.iter().for_each(|dir| fs::remove_dir_all(dir).unwrap());
    lode(["push", &graph, &url]).succeeded();
    fs::remove_dir_all(&home.graph).unwrap();
    restore(3);
    for dir in &machines {
        let pushed = home.push(dir).succeeded().json();
        assert_eq!(pushed["parts"][0]["is_new"].as_bool(), Some(false));
    }
    home.pull("whole", &[]).succeeded();
    assert!(home.rows(&home.path("whole"), "feat") == at_3);
}

/// Both have the same history and commit concurrently; exactly one of them continues.
#[test]
fn two_concurrent_pushes_make_one_history() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let n_trials = if std::env::var_os("LODE_LONG").is_some() { 100 } else { 8 };
    for trial in 0..n_trials {
        let [a, b] = ["a", "b"].map(|name| home.path(&format!("{name}{trial}")));
        for (at, dir) in [&a, &b].into_iter().enumerate() {
            home.pull(dir.file_name().unwrap().to_str().unwrap(), &[]).succeeded();
            home.put(dir, 1000 + 2 * trial + at as u64, true);
        }
        let url = home.url();
        let push = |dir: &PathBuf| command(["push", dir.to_str().unwrap(), &url]).spawn().unwrap();
        let pushes = [push(&a), push(&b)];
        let ended = pushes.map(|child| finish(child, Duration::from_secs(60)));
        let won: Vec<usize> = (0..2).filter(|at| ended[*at].code == Some(0)).collect();
        assert_eq!(won.len(), 1, "{ended:?}");
        assert!(ended[1 - won[0]].stderr.contains("fenced"), "{ended:?}");
        let follower = format!("f{trial}");
        home.pull(&follower, &[]).succeeded();
        home.check_same([&a, &b][won[0]], &home.path(&follower));
        for dir in [a, b, home.path(&follower)] {
            fs::remove_dir_all(dir).unwrap();
        }
    }
    home.verify().succeeded();
}
