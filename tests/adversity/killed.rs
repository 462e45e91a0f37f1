//! A graph whose process is killed while threads of it put, commit, compact and gather.
//!
//! A writer has nodes of its own and puts turn after turn. So one number per writer, the turns that
//! are in the graph, says what it may hold.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_store::verify::verify_rows;
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, View};

use crate::load::{N_NODES, N_PARTS, N_WRITERS, WIDTH, nodes_of, parts, turns, work};
use testing::Numbers;
use testing::features::feature_graph;

const GRAPH: &str = "LODE_TEST_GRAPH";
const FIRST_TURNS: &str = "LODE_TEST_FIRST_TURNS";

/// Longest time for a child to open the graph.
const DEADLINE: Duration = Duration::from_secs(30);

/// Turn of each node's row.
type Turns = Vec<u32>;

/// Not a test of its own: the process that is killed.
#[test]
#[ignore = "another test runs it in a process of its own"]
fn child() {
    let (Some(graph), Ok(turns)) = (std::env::var_os(GRAPH), std::env::var(FIRST_TURNS)) else {
        return;
    };
    let turns: Vec<u32> = turns.split(' ').map(|turn| turn.parse().unwrap()).collect();
    work(Path::new(&graph), &turns);
}

/// Known state of the graph.
struct Known {
    /// As found when it was opened last.
    latest: Turns,
    version: u32,
    /// By writer, the first turn that was not tried.
    next_turns: Vec<u32>,
    /// Committed versions as they were found.
    versions: BTreeMap<u32, Turns>,
    parts: Vec<usize>,
    n_acknowledged: u64,
}

/// Report of a child before it died.
#[derive(Default)]
struct Told {
    /// By writer, the turns that were acknowledged.
    puts: [u32; N_WRITERS as usize],
    /// Acknowledged versions, with the turns that must and that may be in each.
    commits: BTreeMap<u32, [[u32; N_WRITERS as usize]; 2]>,
}

impl Told {
    /// Reads a child's lines; `first` are its first turns.
    fn new(lines: &[String], first: &[u32]) -> Self {
        let mut told = Self { puts: std::array::from_fn(|w| first[w] - 1), ..Self::default() };
        let mut at_begin = told.puts;
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u32>().unwrap();
            match words[0] {
                "put" => {
                    let puts = &mut told.puts[number(1) as usize];
                    assert_eq!(*puts + 1, number(2), "turns come in order");
                    *puts += 1;
                }
                "begin" => at_begin = told.puts,
                "commit" => {
                    // Each writer may have had one more under way.
                    let most = told.puts.map(|puts| puts + 1);
                    told.commits.insert(number(1), [at_begin, most]);
                }
                _ => {}
            }
        }
        told
    }
}

fn spawn(graph: &Path, known: &Known) -> Child {
    let turns: Vec<String> = known.next_turns.iter().map(ToString::to_string).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["killed::child", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(GRAPH, graph).env(FIRST_TURNS, turns.join(" ")).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Lets a child work for some time, kills it, and returns the lines that it had written.
fn load_and_kill(graph: &Path, known: &Known, after: Duration) -> Vec<String> {
    let mut child = spawn(graph, known);
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (is_ready, ready) = mpsc::channel();
    let lines = std::thread::spawn(move || {
        let told = BufReader::new(stdout).split(b'\n').map(|line| line.unwrap());
        let lines = told.map(|line| String::from_utf8(line).unwrap());
        let lines = lines.inspect(|line| {
            if line == "ready" {
                is_ready.send(()).unwrap();
            }
        });
        lines.collect::<Vec<String>>()
    });
    let started = ready.recv_timeout(DEADLINE);
    sleep(after);
    let is_over = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let errors = std::io::read_to_string(stderr).unwrap();
    assert!(started.is_ok() && is_over.is_none(), "it ended by itself: {errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    lines.join().unwrap()
}

impl Known {
    /// Returns a writer's rows after some more of its turns.
    fn after(&self, writer: u32, base: &Turns, turns: std::ops::RangeInclusive<u32>) -> Turns {
        let mut rows = base.clone();
        for turn in turns {
            nodes_of(writer, turn).for_each(|node| rows[node.index()] = turn);
        }
        rows
    }

    /// Returns whether a writer's rows, in the partitions that `within` takes, are as in `model`.
    fn agrees(&self, writer: u32, found: &Turns, model: &Turns, within: Option<usize>) -> bool {
        (writer..N_NODES).step_by(N_WRITERS as usize).map(|node| node as usize).all(|node| {
            within.is_some_and(|part| self.parts[node] != part) || found[node] == model[node]
        })
    }

    /// Checks the rows of the newest versions before anything else is committed. In each partition
    /// they are those after one of a writer's turns, none before the last acknowledged commit.
    fn check_visible(&self, found: &Turns, told: &Told) {
        let none = std::array::from_fn(|w| self.next_turns[w] - 1);
        let least = told.commits.last_key_value().map_or(none, |(_, [least, _])| *least);
        for writer in 0..N_WRITERS {
            let (first, w) = (self.next_turns[writer as usize], writer as usize);
            for part in 0..usize::from(N_PARTS) {
                let mut model = self.after(writer, &self.latest, first..=least[w]);
                let fits = (least[w]..=told.puts[w] + 1).any(|turn| {
                    if turn > least[w] {
                        nodes_of(writer, turn).for_each(|node| model[node.index()] = turn);
                    }
                    self.agrees(writer, found, &model, Some(part))
                });
                assert!(fits, "writer {writer}, partition {part}: the rows after no turn");
            }
        }
    }

    /// Checks all rows after a commit. They have every acknowledged turn, and in each partition one
    /// more or none.
    fn check_latest(&self, found: &Turns, told: &Told) {
        for writer in 0..N_WRITERS {
            let (first, last) = (self.next_turns[writer as usize], told.puts[writer as usize]);
            let without = self.after(writer, &self.latest, first..=last);
            let with = self.after(writer, &without, last + 1..=last + 1);
            for part in 0..usize::from(N_PARTS) {
                let fits = |model: &Turns| self.agrees(writer, found, model, Some(part));
                assert!(
                    fits(&without) || fits(&with),
                    "writer {writer}, partition {part}: not the rows after turn {last} or the next"
                );
            }
        }
    }

    /// Checks an acknowledged version: for each writer the rows after one of its turns, everywhere.
    fn check_version(&self, version: u32, found: &Turns, told: &Told) {
        let [least, most] = told.commits[&version];
        for writer in 0..N_WRITERS {
            let (first, w) = (self.next_turns[writer as usize], writer as usize);
            let mut model = self.after(writer, &self.latest, first..=least[w]);
            let fits = (least[w]..=most[w]).any(|turn| {
                if turn > least[w] {
                    nodes_of(writer, turn).for_each(|node| model[node.index()] = turn);
                }
                self.agrees(writer, found, &model, None)
            });
            assert!(fits, "version {version}, writer {writer}: half of something");
        }
    }

    /// Opens the graph after a kill and compares it with the report. For writing, also commits what
    /// was put, and takes over what is found then.
    fn check(&mut self, graph: &Path, mode: OpenMode, told: &Told) {
        let opened = Graph::open(graph).unwrap();
        let options = OpenOptions::default();
        let live = Arc::new(GraphHandle::open(opened, None, mode, &options).unwrap());
        let at = |view| {
            let store = EmbeddedStore::from_handle(Arc::clone(&live), view).unwrap();
            turns(&store, &(0..N_NODES).map(NodeId).collect::<Vec<_>>())
        };
        let acknowledged = told.commits.last_key_value().map_or(self.version, |(&last, _)| last);
        let version = live.version();
        assert!(
            (acknowledged..=acknowledged + 1).contains(&version),
            "version {version}, {acknowledged} was acknowledged"
        );
        self.check_visible(&at(View::Latest), told);
        for version in live.oldest_version()..=version {
            let found = at(View::At(version));
            if told.commits.contains_key(&version) {
                self.check_version(version, &found, told);
            }
            // Reading does not roll a commit forward that was cut off.
            let is_settled = mode == OpenMode::Write || version <= acknowledged;
            if is_settled {
                let before = self.versions.entry(version).or_insert_with(|| found.clone());
                assert!(*before == found, "version {version} has changed");
            }
        }
        if mode == OpenMode::Write {
            self.version = live.commit_version().unwrap();
            self.latest = at(View::Latest);
            self.check_latest(&self.latest, told);
            self.versions.insert(self.version, self.latest.clone());
            let puts = told.puts.iter().map(|&last| u64::from(last));
            self.n_acknowledged += puts
                .zip(&self.next_turns)
                .map(|(last, &first)| last + 1 - u64::from(first))
                .sum::<u64>();
            self.next_turns = told.puts.iter().map(|last| last + 2).collect();
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_a_writing_process_is_killed() {
    let is_long = std::env::var_os("LODE_LONG").is_some();
    let n_kills = if is_long { 200 } else { 20 };
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, N_PARTS);
    let mut known = Known {
        latest: vec![0; N_NODES as usize],
        version: 1,
        next_turns: vec![1; N_WRITERS as usize],
        versions: BTreeMap::new(),
        parts: parts(Graph::open(&graph).unwrap().book()),
        n_acknowledged: 0,
    };
    let (mut numbers, start) = (Numbers(41), Instant::now());
    for cycle in 0..n_kills {
        let after = Duration::from_micros(u64::from(numbers.below(150_000)));
        let lines = load_and_kill(&graph, &known, after);
        let told = Told::new(&lines, &known.next_turns);
        // As another process sees it, before anything is recovered.
        if cycle % 4 == 0 {
            known.check(&graph, OpenMode::Read, &told);
        }
        known.check(&graph, OpenMode::Write, &told);
    }
    let report = verify_rows(&Graph::open(&graph).unwrap());
    assert!(report.ok, "{:?}", report.damaged);
    assert!(known.version > 1 && known.n_acknowledged > 0, "something was done");
    println!(
        "{n_kills} kills in {:.1?}: {} acknowledged puts, version {}",
        start.elapsed(),
        known.n_acknowledged,
        known.version
    );
}
