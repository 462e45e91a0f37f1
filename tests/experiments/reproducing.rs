//! `lode-lab reproduce`: small, but every part of it.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use testing::graph::generated;
use testing::process::{command, finish, lode, lode_line};

const SMALL: &str = "--scale 0.003 --epochs 2 --rate 1Gbit --delay 200us --json";

/// Hundreds of runs, short as they are.
const DEADLINE: Duration = Duration::from_secs(300);

/// Runs `paper` and checks what all reports have in common, its `figures` among it; returns the
/// report as text and JSON.
fn reproduce(
    [paper, graphs]: [&str; 2],
    n_contestants: usize,
    bars: &[&str],
    figures: &[&str],
) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let args = ["reproduce", paper, "--out", out.to_str().unwrap()];
    let run = command(args.into_iter().chain(SMALL.split(' ')).chain(["--graphs", graphs])).spawn();
    let found = finish(run.unwrap(), DEADLINE).succeeded().json();
    let graphs = found["graphs"].as_array().unwrap();
    assert_eq!(graphs.len(), 2);
    for group in graphs.iter().flat_map(|graph| graph["groups"].as_array().unwrap()) {
        let runs = group["runs"].as_array().unwrap();
        assert_eq!(runs.len(), n_contestants);
        for run in runs {
            assert_eq!(run["parameters_digest"], runs[0]["parameters_digest"]);
            assert!(run["step_seconds"].as_f64().unwrap() > 0.0, "{run}");
        }
    }
    let kept: Value =
        serde_json::from_str(&fs::read_to_string(out.join("runs.json")).unwrap()).unwrap();
    assert_eq!(kept, found);
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    for chart in bars {
        let svg = fs::read_to_string(out.join(chart)).unwrap();
        let drawn = roxmltree::Document::parse(&svg).unwrap();
        assert!(drawn.descendants().filter(|node| node.has_tag_name("rect")).count() > 12 * 2);
        assert!(report.contains(&format!("({chart})")), "{chart} in {report}");
    }
    for figure in figures {
        let svg = fs::read_to_string(out.join(figure)).unwrap();
        let drawn = roxmltree::Document::parse(&svg).unwrap();
        assert!(drawn.descendants().filter(|node| node.has_tag_name("circle")).count() > 5);
        assert!(report.contains(&format!("({figure})")), "{figure} in {report}");
    }
    // Graphs are gone, and the folder is somebody's now.
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2 + bars.len() + figures.len());
    lode(args).failed(1, &["cannot make the folder"]);
    (report, found)
}

#[test]
fn rapidgnn_moves_fewer_bytes_and_its_report_has_the_papers_figures() {
    let (report, found) = reproduce(
        ["rapidgnn", "products-like,reddit-like"],
        5,
        &["fast.svg", "slow.svg", "fig4.svg"],
        &["fig3.svg", "fig5.svg", "fig6.svg", "fig9.svg"],
    );
    let texts =
        ["disturbed", "(3.97)", "(6.8)", "(0.3)", "reddit-like", "slow.svg", "1000 Mbit/s, 0.2 ms"];
    for text in texts.into_iter().chain(["solved from RapidGNN's own speed-ups", "explained by"]) {
        assert!(report.contains(text), "no {text} in {report}");
    }
    assert!(!report.contains("NaN") && !report.contains("inf"), "{report}");
    for reuse in found["rapid_figures"]["reuse"].as_array().unwrap() {
        let histogram = reuse["histogram"].as_object().unwrap();
        let counted: u64 = histogram.values().map(|nodes| nodes.as_u64().unwrap()).sum();
        assert_eq!(reuse["nodes"].as_u64(), Some(counted));
        assert!(reuse["nodes_once"].as_u64() < Some(counted), "some row is used twice: {reuse}");
    }
    let baselines = found["baselines"].as_array().unwrap();
    assert_eq!(baselines.len(), 2 * 3);
    for (beside, of) in baselines.iter().zip([1.52, 1.34, 1.46, 3.41, 4.24, 4.31]) {
        assert_eq!(beside["published"]["others"][0].as_f64(), Some(of));
        let digest = |run: &str| beside[run]["parameters_digest"].as_str().unwrap();
        assert_ne!(digest("random"), digest("gcn"));
    }
    assert_eq!(machines(&found), [2, 3, 4].repeat(2));
    for learnt in found["convergence"].as_array().unwrap() {
        let [seeded, ordinary] = ["seeded", "ordinary"].map(|of| learnt[of].as_array().unwrap());
        assert_eq!((seeded.len(), ordinary.len()), (5, 5));
        for (a, b) in seeded.iter().zip(ordinary) {
            assert_eq!(a["accuracies"].as_array().unwrap().len(), 10);
            assert_ne!(a["accuracies"], b["accuracies"], "other samples: {learnt}");
        }
    }
    for graph in found["graphs"].as_array().unwrap() {
        for group in graph["groups"].as_array().unwrap() {
            let [base, prefetching, cache, _, oracle] = std::array::from_fn(|i| &group["runs"][i]);
            let of = |run: &Value, key: &str| run["rows"][key].as_f64().unwrap();
            let all = of(base, "missed");
            for run in group["runs"].as_array().unwrap() {
                let sum = of(run, "kept") + of(run, "joined") + of(run, "missed");
                assert!((sum - all).abs() < 1e-6 * all, "each row has one source: {run}");
            }
            assert_eq!((of(prefetching, "kept"), of(prefetching, "ahead")), (0.0, 0.0));
            assert_eq!(of(cache, "joined"), 0.0, "without a window nothing is joined");
            assert!(of(prefetching, "joined") > 0.0 && of(cache, "kept") > 0.0);
            let bytes = |run: &Value| run["remote_bytes"].as_f64().unwrap();
            assert!(bytes(oracle) <= bytes(base), "the oracle moves no more: {group}");
            check_counted(&found, graph, group);
        }
    }
}

/// Checks that Fig. 5 counts the fetches of the cache alone, unless a set came late.
fn check_counted(found: &Value, graph: &Value, group: &Value) {
    let cache = &group["runs"][2]["rows"];
    let fetches = found["rapid_figures"]["fetches"].as_array().unwrap();
    let mut same = fetches.iter().filter(|of| {
        let is_size = of["hot_rows"].as_u64() == graph["kept_rows"].as_u64().map(|rows| rows / 2);
        of["graph"] == graph["name"] && of["batch"] == group["batch"] && is_size
    });
    let counted = same.next().unwrap();
    let off = |key: &str| (cache[key].as_f64().unwrap() - counted[key].as_f64().unwrap()).abs();
    if cache["late_swaps"].as_u64() == Some(0) {
        assert!(off("missed") < 1e-6 && off("ahead") < 1e-6, "{cache} {counted}");
    }
}

#[test]
fn one_graph_without_figures_and_with_room_for_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let args = ["reproduce", "rapidgnn", "--out", out.to_str().unwrap()];
    let only = "--graphs reddit-like --no-figures --no-solved-links --keep 2".split(' ');
    let run = command(args.into_iter().chain(SMALL.split(' ')).chain(only)).spawn().unwrap();
    let found = finish(run, DEADLINE).succeeded().json();
    let graphs = found["graphs"].as_array().unwrap();
    assert_eq!(graphs.len(), 1);
    for group in graphs[0]["groups"].as_array().unwrap() {
        assert_eq!(group["link"], "fast");
        let bytes_of = |run: &Value, key: &str| run[key].as_f64().unwrap();
        let asked = bytes_of(&group["runs"][0], "remote_bytes");
        for kept in [3, 4] {
            let run = &group["runs"][kept];
            let (held, bound) = (&run["memory_bytes"], &run["memory_bound_bytes"]);
            assert!(held.as_u64() <= bound.as_u64(), "{run}");
            let [all, missed] = ["remote_bytes", "missed_bytes"].map(|key| bytes_of(run, key));
            if kept == 3 {
                // The first epoch's set is there before it. The second's may be late, and the
                // smallest partition lacks a few rows more than a set has.
                assert!(missed < 0.6 * asked && missed < all, "{asked} {run}");
            } else {
                // Rows that the first epoch uses fill the oracle's tier before it.
                assert!(missed < all && all < asked, "{asked} {run}");
            }
        }
    }
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(!report.contains("fig6.svg") && !report.contains("products-like |"), "{report}");
}

/// A graph of the user's own, recorded steps, several links and repeats.
#[test]
fn a_graph_of_ones_own_sleeps_recorded_steps() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (raw, mine) = (at("raw"), at("mine"));
    lode(["generate", "--nodes", "900", "--degree", "8", "--dim", "16", "--out", &raw]).succeeded();
    let tensors = [("feat", "features"), ("label", "labels"), ("split", "split")]
        .map(|(name, file)| format!("{name}={raw}/{file}.npy"));
    let [feat, label, split] = &tensors;
    let edges = format!("{raw}/edges.npy");
    lode([
        "import",
        "--edges",
        &edges,
        "--undirected",
        "--tensor",
        feat,
        "--tensor",
        label,
        "--tensor",
        split,
        "--parts",
        "2",
        "--out",
        &mine,
    ])
    .succeeded();
    let recording = at("steps.json");
    fs::write(&recording, r#"{"source": "a test's clock", "seconds": {"20": [0.03]}}"#).unwrap();
    let compute = format!("replay:{recording}");
    let run = |out: &str, batches: &str, more: &[&str]| {
        let args = [
            "reproduce",
            "rapidgnn",
            "--graph",
            &mine,
            "--epochs",
            "2",
            "--repeats",
            "3",
            "--json",
            "--rate",
            "1Gbit,200Mbit",
            "--delay",
            "200us",
            "--compute",
            &compute,
        ];
        let args = args
            .into_iter()
            .chain(["--out", out, "--batches", batches])
            .chain(more.iter().copied());
        finish(command(args).spawn().unwrap(), DEADLINE)
    };
    let out = at("out");
    let found = run(&out, "20", &["--no-figures"]).succeeded().json();
    let groups = found["graphs"][0]["groups"].as_array().unwrap();
    assert_eq!(
        groups.iter().map(|of| of["rate_bits"].as_f64().unwrap()).collect::<Vec<_>>(),
        [1e9, 2e8]
    );
    for run in groups.iter().flat_map(|group| group["runs"].as_array().unwrap()) {
        let [least, most] = [0, 1].map(|i| run["step_range"][i].as_f64().unwrap());
        let median = run["step_seconds"].as_f64().unwrap();
        assert!(0.03 <= least && least <= median && median <= most, "{run}");
        assert!(run["compute_seconds"].as_f64().unwrap() >= 0.03, "{run}");
    }
    let report = fs::read_to_string(format!("{out}/report.md")).unwrap();
    for text in [
        "not computed: each step sleeps as recorded (a test's clock)",
        "3 runs of each cell",
        "| mine | itself | 900 ",
        "200 Mbit/s, 0.2 ms",
        "1000 Mbit/s, 0.2 ms",
    ] {
        assert!(report.contains(text), "no {text} in {report}");
    }
    assert!(fs::metadata(&mine).unwrap().is_dir(), "a graph of one's own stays");
    run(&at("other"), "30", &[]).failed(2, &["batches of 20 roots", "batches of 30"]);
    run(&at("other"), "20", &["--workers", "3"]).failed(2, &["2 partitions", "--parts 3"]);
    lode(["reproduce", "rapidgnn", "--graph", &mine, "--out", &at("none")])
        .failed(2, &["--batches"]);
    fs::write(&recording, r#"{"source": "", "seconds": {"20": [0.03, 0.03]}}"#).unwrap();
    run(&at("third"), "20", &["--no-figures"]).failed(1, &["1 step or of the", "found 2 steps"]);
}

#[test]
fn massivegnn_has_all_contestants() {
    let (report, found) = reproduce(
        ["massivegnn", "papers-like,products-like"],
        5,
        &["fast.svg", "slow.svg", "fig9.svg", "fig11.svg"],
        &["fig6.svg", "fig10.svg", "fig12.svg", "fig13.svg"],
    );
    for text in ["massive, no eviction", "rapid, oracle", "15 to 40 %", "fast.svg"] {
        assert!(report.contains(text), "no {text} in {report}");
    }
    assert_eq!(machines(&found), [2, 3, 4].repeat(2));
    for group in found["graphs"].as_array().unwrap().iter().flat_map(|of| of["groups"].as_array()) {
        for group in group {
            let number = |run: usize, key: &str| group["runs"][run][key].as_f64().unwrap();
            let [kept, evicting] = [1, 2].map(|run| number(run, "hit_rate"));
            assert!(kept > 0.0 && evicting > 0.0 && kept != evicting, "{group}");
            assert_eq!(number(0, "hit_rate"), 0.0);
            // The second's include rows that eviction fetches ahead.
            assert!(number(1, "missed_bytes") < number(0, "missed_bytes"), "{group}");
            for run in [1, 2] {
                let overlap = number(run, "overlap_efficiency");
                assert!((0.0..=1.0).contains(&overlap), "{group}");
            }
        }
    }
    let figures = &found["massive_figures"];
    let sweep = figures["sweep"].as_array().unwrap();
    assert!(sweep.len() >= 5 * 2 && sweep.len().is_multiple_of(5), "{sweep:?}");
    let mut rates: Vec<_> = sweep.iter().map(|of| of["hit_rate"].as_f64().unwrap()).collect();
    rates.sort_by(f64::total_cmp);
    assert!(rates.first() < rates.last(), "neither γ nor Δ changes anything: {sweep:?}");
    let progress = figures["progress"].as_array().unwrap();
    assert_eq!(progress.len(), 2 * 2);
    for followed in progress {
        let points = followed["points"].as_array().unwrap();
        assert!(
            points.len() > 5 && points.iter().any(|at| at[1].as_f64() > Some(0.0)),
            "{followed}"
        );
        let remote = followed["remote_share"].as_f64().unwrap();
        assert!(remote > 0.0 && remote < 1.0, "{followed}");
    }
}

/// Nothing is solved for such a graph.
#[test]
fn massivegnn_on_an_own_graph_draws_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, out) = (generated(dir.path()), dir.path().join("out"));
    let line = format!(
        "reproduce massivegnn --graph {graph} --workers 4 --batches 20 --epochs 2 --rate 1Gbit --delay 200us \
         --json --out {}",
        out.display()
    );
    finish(command(line.split(' ')).spawn().unwrap(), DEADLINE).succeeded();
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(!report.contains("slow"), "{report}");
    for chart in ["fast.svg", "fig9.svg", "fig11.svg"] {
        let svg = fs::read_to_string(out.join(chart)).unwrap();
        let drawn = roxmltree::Document::parse(&svg).unwrap();
        let bars = drawn.descendants().filter(|node| node.has_tag_name("rect")).count();
        assert!(bars > 2 * 5 && report.contains(&format!("({chart})")), "{chart}: {bars}");
    }
}

#[test]
fn a_recording_with_a_time_for_each_step_is_refused_for_figures() {
    let dir = tempfile::tempdir().unwrap();
    let recording = dir.path().join("steps.json");
    fs::write(&recording, r#"{"source": "", "seconds": {"20": [0.01, 0.01]}}"#).unwrap();
    let (recording, out) = (recording.display(), dir.path().join("out"));
    let line = format!(
        "reproduce massivegnn --graphs reddit-like --batches 20 --compute replay:{recording} --out {} {SMALL}",
        out.display()
    );
    lode_line(&line).failed(2, &["2 steps of batches of 20 roots", "--no-figures"]);
    assert!(!out.exists(), "before anything is made");
}

#[test]
fn a_batch_that_is_past_its_bound_is_refused() {
    for paper in ["rapidgnn", "massivegnn"] {
        lode_line(&format!("reproduce {paper} --batches 4294967296 --out /dev/null/none"))
            .failed(2, &["from 1 to 16777216"]);
    }
}

fn machines(found: &Value) -> Vec<u64> {
    let of = found["machines"].as_array().unwrap();
    of.iter().map(|of| of["machines"].as_u64().unwrap()).collect()
}
