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
    for chart in ["fast.svg", "slow.svg"] {
        let svg = fs::read_to_string(out.join(chart)).unwrap();
        let bars = roxmltree::Document::parse(&svg).unwrap();
        assert!(bars.descendants().filter(|node| node.has_tag_name("rect")).count() > 12 * 3);
    }
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    for figure in figures {
        let svg = fs::read_to_string(out.join(figure)).unwrap();
        let drawn = roxmltree::Document::parse(&svg).unwrap();
        assert!(drawn.descendants().filter(|node| node.has_tag_name("circle")).count() > 5);
        assert!(report.contains(&format!("({figure})")), "{figure} in {report}");
    }
    // Graphs are gone, and the folder is somebody's now.
    assert_eq!(fs::read_dir(&out).unwrap().count(), 4 + figures.len());
    lode(args).failed(1, &["cannot make the folder"]);
    (report, found)
}

#[test]
fn rapidgnn_moves_fewer_bytes_and_its_report_has_the_papers_figures() {
    let (report, found) = reproduce(
        ["rapidgnn", "products-like,reddit-like"],
        3,
        &["fig3.svg", "fig5.svg", "fig6.svg", "fig9.svg"],
    );
    for text in ["disturbed", "(3.97)", "(32.6)", "(6.8)", "(0.3)", "reddit-like", "slow.svg"] {
        assert!(report.contains(text), "no {text} in {report}");
    }
    assert!(!report.contains("NaN") && !report.contains("inf"), "{report}");
    let figures = &found["rapid_figures"];
    assert!(figures["reuse"]["nodes_once"].as_u64() <= figures["reuse"]["nodes"].as_u64());
    let fetches = figures["fetches"].as_array().unwrap();
    assert_eq!(fetches.len(), 3 * 7);
    let rows = |of: &Value| of["remote_rows_per_epoch"].as_f64().unwrap();
    for sizes in fetches.chunks(7) {
        assert!(rows(&sizes[6]) < rows(&sizes[0]), "a set for all rows fetches less: {sizes:?}");
    }
    let scaling = figures["scaling"].as_array().unwrap();
    let machines: Vec<_> = scaling.iter().map(|of| of["machines"].as_u64().unwrap()).collect();
    assert_eq!(machines, [2, 3, 4].repeat(2));
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
        &["fig10.svg", "fig12.svg", "fig13.svg"],
    );
    for text in ["massive, no eviction", "rapid, oracle", "15 to 40 %", "fast.svg"] {
        assert!(report.contains(text), "no {text} in {report}");
    }
    let sweep = found["massive_figures"]["sweep"].as_array().unwrap();
    assert_eq!(sweep.len(), 5 * 4);
    for followed in found["massive_figures"]["progress"].as_array().unwrap() {
        let last = followed["points"].as_array().unwrap().last().unwrap();
        assert!((0.0..=1.0).contains(&last[1].as_f64().unwrap()), "{followed}");
    }
}
