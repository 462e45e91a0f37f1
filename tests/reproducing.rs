//! `lode reproduce`: small, but every part of it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::fs;
use std::time::Duration;

use serde_json::Value;
use support::process::{command, finish, lode};

const SMALL: &str = "--scale 0.002 --epochs 2 --rate 1Gbit --delay 200us --json";

/// Hundreds of runs, short as they are.
const DEADLINE: Duration = Duration::from_secs(300);

/// Runs `paper` and checks what all reports have in common, its `figures` among it; gives the report as
/// text and JSON.
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
        3,
        &["fast.svg", "slow.svg", "fig4.svg"],
        &["fig3.svg", "fig5.svg", "fig6.svg", "fig9.svg"],
    );
    for text in ["disturbed", "(3.97)", "(32.6)", "(6.8)", "(0.3)", "reddit-like", "slow.svg"] {
        assert!(report.contains(text), "no {text} in {report}");
    }
    assert!(!report.contains("NaN") && !report.contains("inf"), "{report}");
    let figures = &found["rapid_figures"];
    let reuse = &figures["reuse"];
    let histogram = reuse["histogram"].as_object().unwrap();
    let counted: u64 = histogram.values().map(|nodes| nodes.as_u64().unwrap()).sum();
    assert_eq!(reuse["nodes"].as_u64(), Some(counted));
    assert_eq!(reuse["nodes_once"], histogram["1"]);
    assert!(reuse["nodes_once"].as_u64() < Some(counted), "some row is used twice: {reuse}");
    let fetches = figures["fetches"].as_array().unwrap();
    assert_eq!(fetches.len(), 3 * 7);
    let rows = |of: &Value| of["remote_rows_per_epoch"].as_f64().unwrap();
    for sizes in fetches.chunks(7) {
        assert!(rows(&sizes[6]) < rows(&sizes[0]), "a set for all rows fetches less: {sizes:?}");
    }
    let baselines = found["baselines"].as_array().unwrap();
    assert_eq!(baselines.len(), 2 * 3);
    for (beside, of) in baselines.iter().zip([1.52, 1.34, 1.46, 3.41, 4.24, 4.31]) {
        assert_eq!(beside["published"][0].as_f64(), Some(of));
        let digest = |run: &str| beside[run]["parameters_digest"].as_str().unwrap();
        assert_ne!(digest("random"), digest("gcn"));
    }
    assert_eq!(machines(&found), [2, 3, 4].repeat(2));
    for graph in found["graphs"].as_array().unwrap() {
        for group in graph["groups"].as_array().unwrap() {
            let bytes = |run: usize| group["runs"][run]["remote_bytes"].as_f64().unwrap();
            assert!(bytes(2) <= bytes(0), "the oracle moves no more than the baseline: {group}");
        }
    }
}

#[test]
fn one_graph_without_figures_and_with_room_for_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let args = ["reproduce", "rapidgnn", "--out", out.to_str().unwrap()];
    let only = "--graphs reddit-like --no-figures --keep 2".split(' ');
    let run = command(args.into_iter().chain(SMALL.split(' ')).chain(only)).spawn().unwrap();
    let found = finish(run, DEADLINE).succeeded().json();
    let graphs = found["graphs"].as_array().unwrap();
    assert_eq!(graphs.len(), 1);
    for group in graphs[0]["groups"].as_array().unwrap() {
        let bytes_of = |run: &Value, key: &str| run[key].as_f64().unwrap();
        let asked = bytes_of(&group["runs"][0], "remote_bytes");
        for kept in [1, 2] {
            let run = &group["runs"][kept];
            let (held, bound) = (&run["memory_bytes"], &run["memory_bound_bytes"]);
            assert!(held.as_u64() <= bound.as_u64(), "{run}");
            let [all, missed] = ["remote_bytes", "missed_bytes"].map(|key| bytes_of(run, key));
            if kept == 1 {
                // The first epoch's set is there before it. The second's may be late, and the smallest
                // partition lacks a few rows more than a set has.
                assert!(missed < 0.6 * asked && missed < all, "{asked} {run}");
            } else {
                // What the first epoch uses fills the oracle's tier before it.
                assert!(missed < all && all < asked, "{asked} {run}");
            }
        }
    }
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(!report.contains("fig3.svg") && !report.contains("products-like |"), "{report}");
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
            // What eviction fetches ahead is among the second's.
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

fn machines(found: &Value) -> Vec<u64> {
    let of = found["machines"].as_array().unwrap();
    of.iter().map(|of| of["machines"].as_u64().unwrap()).collect()
}
