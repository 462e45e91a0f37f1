//! `lode reproduce`: small, but every part of it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::fs;

use serde_json::Value;
use support::process::lode;

const SMALL: &str = "--scale 0.01 --epochs 2 --rate 1Gbit --delay 200us --json";

/// Runs `paper` and checks what all reports have in common; gives the report as text and JSON.
fn reproduce(paper: &str, n_contestants: usize) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let args = ["reproduce", paper, "--out", out.to_str().unwrap()];
    let found = lode(args.into_iter().chain(SMALL.split(' '))).succeeded().json();
    let graphs = found["graphs"].as_array().unwrap();
    assert_eq!(graphs.len(), 3);
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
        assert!(bars.descendants().filter(|node| node.has_tag_name("rect")).count() > 18 * 3);
    }
    // Graphs are gone, and the folder is somebody's now.
    assert_eq!(fs::read_dir(&out).unwrap().count(), 4);
    lode(args).failed(1, &["cannot make the folder"]);
    (fs::read_to_string(out.join("report.md")).unwrap(), found)
}

#[test]
fn rapidgnn_moves_fewer_bytes_and_its_report_has_the_papers_figures() {
    let (report, found) = reproduce("rapidgnn", 3);
    for text in ["(2.46)", "(3.97)", "(32.6)", "(6.8 → 0.3)", "reddit-like", "slow.svg"] {
        assert!(report.contains(text), "no {text} in {report}");
    }
    assert!(!report.contains("NaN") && !report.contains("inf"), "{report}");
    for graph in found["graphs"].as_array().unwrap() {
        for group in graph["groups"].as_array().unwrap() {
            let bytes = |run: usize| group["runs"][run]["remote_bytes"].as_f64().unwrap();
            assert!(bytes(2) <= bytes(0), "the oracle moves no more than the baseline: {group}");
        }
    }
}

#[test]
fn massivegnn_has_all_contestants() {
    let (report, _) = reproduce("massivegnn", 5);
    for text in ["massive, no eviction", "rapid, oracle", "15 to 40 %", "fast.svg"] {
        assert!(report.contains(text), "no {text} in {report}");
    }
}
