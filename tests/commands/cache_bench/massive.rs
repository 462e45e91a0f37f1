//! MassiveGNN's buffers: replayed as they are trained with.

use lodestore_graph::npy::NpyType;
use serde_json::Value;

use crate::cache_bench::traces::name;
use testing::graph::{Source, generated_as};
use testing::process::{Finished, lode_line};
use testing::write_npy;

const RUN: &str = "--fanout 6,4 --batch 24 --epochs 6 --workers 3 --seed 5";

/// A graph in three partitions, and the schedule of [`RUN`].
struct Scheduled {
    dir: tempfile::TempDir,
    graph: String,
}

impl Scheduled {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flags = "--nodes 3000 --degree 10 --dim 2 --classes 4 --community 200 --hub-share 0.2 \
                     --hub-power 4 --train 0.2";
        let graph = generated_as(dir.path(), flags, 3);
        let scheduled = Self { dir, graph };
        let Self { graph, .. } = &scheduled;
        lode_line(&format!("schedule {graph} {RUN} --out {}", scheduled.file("s"))).succeeded();
        scheduled
    }

    fn file(&self, file: &str) -> String {
        name(&self.dir.path().join(file))
    }

    fn replay(&self, more: &str) -> Finished {
        let (graph, schedule) = (&self.graph, self.file("s"));
        lode_line(&format!(
            "cache-bench --json --schedule {schedule} --graph {graph} --remote --per-worker --ahead {more}"
        ))
    }

    fn train(&self, more: &str) -> Value {
        let line = format!(
            "train --graph {} --strategy massive --json {RUN} --hidden 4 {more}",
            self.graph
        );
        lode_line(&format!("{line} --evaluate-every 0 --no-test")).succeeded().json()
    }
}

fn number(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap_or_else(|| panic!("no {key} in {of}"))
}

fn of_policy<'a>(report: &'a Value, policy: &str) -> &'a Value {
    let results = report["results"].as_array().unwrap();
    results.iter().find(|result| result["policy"] == policy).unwrap()
}

/// Hits, evictions, rows moved and slots of a replay are those of the run for all rules.
#[test]
fn a_replay_moves_the_rows_that_a_run_moves() {
    let scheduled = Scheduled::new();
    let mut seen = Vec::new();
    for (share, percent) in [("0.3", "30%"), ("1", "100%"), ("0", "0%")] {
        for rules in [
            "--gamma 0.9 --delta 5",
            "--gamma 0.9 --delta 1 --candidates halo",
            "--gamma 0.99 --delta 3 --replace scored --rank degree",
            "--gamma 0.5 --delta 4 --replace any --scoreboard compact",
            "--gamma 0.5 --delta 4 --replace any --scoreboard dense",
        ] {
            let policies = format!("--policies decay --capacities {percent} {rules}");
            let replayed = scheduled.replay(&policies).succeeded().json();
            let replayed = of_policy(&replayed, "decay");
            let trained = scheduled.train(&format!("--buffer {share} {rules}"));
            let tier = &trained["tiers"][0];
            for key in ["hits", "misses", "evictions"] {
                let (found, expected) = (number(tier, key), number(replayed, key));
                assert_eq!(found, expected, "{share} {rules} {key}");
            }
            let epochs = trained["epochs"].as_array().unwrap().iter();
            let moved: u64 = epochs.map(|epoch| number(epoch, "remote_rows")).sum();
            let expected = number(replayed, "moved_rows");
            assert_eq!(moved, expected, "{share} {rules}");
            seen.push([number(tier, "hits"), moved]);
        }
    }
    // A share of 0 keeps nothing, and the scoreboard decides nothing.
    let (some, none) = seen.split_at(10);
    assert!(some.iter().all(|[hits, _]| *hits > 0) && none.iter().all(|[hits, _]| *hits == 0));
    assert!(some.chunks(5).all(|of| of[3] == of[4]));
    assert!(some[0] != some[1] && some[0] != some[2] && some[0] != some[3], "rules decide");

    let replayed = scheduled.replay("--policies degree --capacities 30%").succeeded().json();
    let replayed = of_policy(&replayed, "degree");
    let trained = scheduled.train("--buffer 0.3 --no-eviction");
    assert_eq!(number(&trained["tiers"][0], "hits"), number(replayed, "hits"));
    assert_eq!(number(&trained["tiers"][0], "filled_rows"), number(replayed, "rows_ahead"));
}

#[test]
fn a_grid_names_its_best_and_is_drawn() {
    let scheduled = Scheduled::new();
    let svg = scheduled.file("grid.svg");
    let grid = format!(
        "--policies decay,degree --capacities 15%,50% --gamma 0.9,0.9995 --delta 2,8,32 --by-delta {svg}"
    );
    let report = scheduled.replay(&grid).succeeded().json();
    assert_eq!(number(&report["trace"], "workers"), 3);
    assert_eq!(report["rules"]["candidates"], "remote");
    assert_eq!(report["rules"]["replace"], "missed");
    let results = report["results"].as_array().unwrap();
    for (best, capacity) in report["best"].as_array().unwrap().iter().zip(["15 %", "50 %"]) {
        assert_eq!(best["capacity"], capacity);
        let cells = || {
            let of_capacity = results.iter().filter(|of| of["capacity"] == capacity);
            of_capacity.filter(|of| of["policy"] == "decay")
        };
        assert_eq!(cells().count(), 6);
        let least = cells().map(|cell| number(cell, "moved_rows")).min().unwrap();
        assert_eq!(number(best, "moved_rows"), least);
        let cell = cells().find(|cell| number(cell, "moved_rows") == least).unwrap();
        assert_eq!((&cell["gamma"], &cell["delta"]), (&best["gamma"], &best["delta"]));
        let accesses = number(cell, "accesses") as f64;
        assert!((best["moved_share"].as_f64().unwrap() - least as f64 / accesses).abs() < 1e-9);
        let kept = results.iter().find(|of| of["policy"] == "degree" && of["capacity"] == capacity);
        assert_eq!(best["without_eviction"]["moved_rows"], kept.unwrap()["moved_rows"]);
    }
    let text = std::fs::read_to_string(&svg).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let words: String = document.descendants().filter_map(|node| node.text()).collect();
    for word in
        ["γ 0.9", "γ 0.9995", "no eviction", "hit rate, 15 %", "rows moved per access, 50 %"]
    {
        assert!(words.contains(word), "no `{word}`");
    }
    // Each worker has a cache of its own: the sums are those of one after the other.
    let (graph, schedule) = (&scheduled.graph, scheduled.file("s"));
    let (mut accesses, mut unbounded) = (0, 0);
    for worker in 0..3 {
        let line = format!(
            "cache-bench --json --schedule {schedule} --graph {graph} --remote --worker {worker} \
             --policies none --capacities 1"
        );
        let report = lode_line(&line).succeeded().json();
        accesses += number(of_policy(&report, "none"), "misses");
        unbounded += number(of_policy(&report, "unbounded"), "hits");
    }
    assert_eq!(number(&report["trace"], "accesses"), accesses);
    assert_eq!(number(of_policy(&report, "unbounded"), "hits"), unbounded);
}

/// Edges point from 100 to 199 into the halves: a few nodes are the source of most.
#[test]
fn on_a_directed_graph_the_first_rows_are_the_sources_of_most_lists() {
    let dir = tempfile::tempdir().unwrap();
    let file = |file: &str| dir.path().join(file);
    // Partition 0 is 0 to 99; each of its nodes has in-edges from 100 and 101, and one of 110 to
    // 159. The latter have in-edges themselves, 100 and 101 have none.
    let own = (0..100u32).flat_map(|to| [[100, to], [101, to], [110 + to % 50, to]]);
    let others = (110..160u32).flat_map(|to| (160..170).map(move |from| [from, to]));
    let edges: Vec<[u32; 2]> = own.chain(others).collect();
    write_npy(&file("e.npy"), NpyType::U32, &[edges.len() as u64, 2], &edges);
    write_npy(&file("feat.npy"), NpyType::F32, &[200, 1], &[0.5f32; 200]);
    write_npy(&file("label.npy"), NpyType::I64, &[200], &[0i64, 1].repeat(100));
    write_npy(&file("split.npy"), NpyType::U8, &[200], &[0u8; 200]);
    let (raw, graph) = (dir.path().display(), name(&file("g")));
    lode_line(&format!(
        "import --edges {raw}/e.npy --tensor feat={raw}/feat.npy --tensor label={raw}/label.npy \
         --tensor split={raw}/split.npy --parts 2 --partitioner range --out {graph}"
    ))
    .succeeded();
    // Two of 52 halo nodes, which two thirds of all draws are of.
    let hits = |rank: &str| {
        let line = format!(
            "train --graph {graph} --workers 2 --strategy massive --no-eviction --buffer 0.03 \
             --fanout -1 --epochs 2 --batch 1 --evaluate-every 0 --json {rank}"
        );
        let report = lode_line(&line).succeeded().json();
        assert_eq!(number(&report["tiers"][0], "filled_rows"), 2);
        report["tiers"][0]["hit_rate"].as_f64().unwrap()
    };
    assert!((hits("") - 2.0 / 3.0).abs() < 1e-9, "{}", hits(""));
    assert!(hits("--rank degree") < 0.03, "{}", hits("--rank degree"));
}

#[test]
fn without_a_halo_there_is_nothing_to_keep() {
    let source = Source::random(300, 2000);
    let graph = name(&source.import("g", 1, "range"));
    let schedule = name(&source.file("s"));
    lode_line(&format!("schedule {graph} --batch 50 --epochs 1 --roots all --out {schedule}"))
        .succeeded();
    let line = format!("cache-bench --schedule {schedule} --graph {graph} --remote");
    lode_line(&format!("{line} --per-worker")).failed(1, &["1 worker(s)", "several workers"]);
    let report = lode_line(&format!("{line} --worker 0 --json")).succeeded().json();
    assert_eq!(number(&report["trace"], "accesses"), 0);
    let dir = tempfile::tempdir().unwrap();
    let graph = generated_as(dir.path(), "--nodes 300 --dim 2 --classes 2", 1);
    let line = format!("train --graph {graph} --strategy massive --buffer 1 --epochs 1 --json");
    let report = lode_line(&line).succeeded().json();
    assert_eq!(number(&report["tiers"][0], "rows"), 0);
    assert_eq!(number(&report["epochs"][0], "remote_rows"), 0);
}
