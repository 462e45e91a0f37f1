//! `lode-lab reproduce hopgnn --links --seeds`: every way is trained over links, and learns.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use testing::process::{command, finish, lode_line};

const DEADLINE: Duration = Duration::from_secs(300);

/// Names of the ways in tables and JSON.
const WAYS: [&str; 7] =
    ["model_centric", "owned", "micrographs", "pregathered", "merged_min", "merged_random", "home"];

#[test]
fn ways_are_timed_over_links_and_learn() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (raw, graph, one, out) = (at("raw"), at("g"), at("one"), at("out"));
    let line = "generate --nodes 400 --degree 8 --dim 12 --classes 4 --community 50 --seed 3";
    lode_line(&format!("{line} --out {raw}")).succeeded();
    let import = format!(
        "import --edges {raw}/edges.npy --undirected --tensor feat={raw}/features.npy \
         --tensor label={raw}/labels.npy --tensor split={raw}/split.npy"
    );
    lode_line(&format!("{import} --parts 3 --out {graph}")).succeeded();
    lode_line(&format!("{import} --out {one}")).succeeded();
    let recording = at("steps.json");
    fs::write(
        &recording,
        r#"{"source": "a test's clock", "seconds": {"1": [0.002], "20": [0.02]}}"#,
    )
    .unwrap();
    let usual = "--servers 3 --fanout 3,2 --batch 20 --hidden 8 --iterations 1 --json";
    let line = |graph: &str, flags: &str| {
        format!("reproduce hopgnn --graph {graph} --out {out} {usual} {flags}")
    };
    for (graph, flags, expected) in [
        (&one, "--links 1Gbit/1ms", "import it with --parts"),
        (&graph, "--links 1Gbit", "such as 1Gbit/1ms"),
        (&graph, "--repeats 2", "--links"),
    ] {
        lode_line(&line(graph, flags)).failed(2, &[expected]);
        assert!(!fs::exists(&out).unwrap());
    }
    let flags = format!(
        "--links 1Gbit/100us,100Mbit/2ms --repeats 2 --epochs 4 --seeds 2 --learn-epochs 2 \
         --compute replay:{recording}"
    );
    let run = command(line(&graph, &flags).split_whitespace()).spawn().unwrap();
    let found = finish(run, DEADLINE).succeeded().json();
    let report = fs::read_to_string(format!("{out}/report.md")).unwrap();
    for part in ["a test's clock", "100 Mbit/s, 2 ms, merged, min: ", "### Accuracy (Table 3)"] {
        assert!(report.contains(part), "no {part} in {report}");
    }
    assert!(!report.contains("NaN") && !report.contains("inf"), "{report}");
    for chart in ["fig13", "fig15", "fig17"] {
        let svg = fs::read_to_string(format!("{out}/{chart}.svg")).unwrap();
        roxmltree::Document::parse(&svg).unwrap();
        assert!(report.contains(&format!("({chart}.svg)")), "{chart} in {report}");
    }
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2 + 9, "the servers' folder is gone");
    let graph = &found["graphs"][0];
    let timed = graph["timed"].as_array().unwrap();
    assert_eq!(timed.len(), 2);
    for link in timed {
        let runs = link["runs"].as_array().unwrap();
        let names: Vec<&str> = runs.iter().map(|run| run["way"].as_str().unwrap()).collect();
        assert_eq!(names, WAYS);
        for run in runs {
            check_times(run, link["delay_seconds"].as_f64().unwrap());
        }
        // One process counts the bytes that its ranks together move, whatever the link.
        assert_eq!(bytes(&runs[3]), bytes(&runs[6]), "pre-gathering moves the rows of none");
        assert!(bytes(&runs[2]) >= bytes(&runs[3]));
        assert!(bytes(&runs[0]) > bytes(&runs[6]), "{link}");
    }
    assert_eq!(bytes(&timed[0]["runs"][0]), bytes(&timed[1]["runs"][0]));
    let learnt = graph["learnt"].as_array().unwrap();
    assert_eq!(learnt.len(), 3);
    for way in learnt.iter().flat_map(|learnt| learnt["ways"].as_array().unwrap()) {
        let rates = way["accuracies"].as_array().unwrap();
        assert_eq!(rates.len(), 2);
        assert!(rates.iter().all(|rate| (0.0..=1.0).contains(&rate.as_f64().unwrap())));
    }
}

/// Returns the bytes of rows in the first epoch.
fn bytes(run: &Value) -> f64 {
    run["epochs"][0]["remote_bytes"].as_f64().unwrap()
}

/// Checks that time steps are those of the way, and no iteration is faster than its messages.
fn check_times(run: &Value, delay: f64) {
    let epochs = run["epochs"].as_array().unwrap();
    let steps: Vec<u64> = epochs.iter().map(|of| of["time_steps"].as_u64().unwrap()).collect();
    let way = run["way"].as_str().unwrap();
    match way {
        "micrographs" | "pregathered" => assert_eq!(steps, [3; 4], "{run}"),
        "merged_min" | "merged_random" => assert_eq!(steps[..2], [3, 2], "{run}"),
        _ => assert_eq!(steps, [1; 4], "{run}"),
    }
    for (epoch, steps) in epochs.iter().zip(steps) {
        // Figures, a share of the gradients, its sum; with each move a word, a model, its
        // gradients.
        let messages = 3.0 + 3.0 * (steps - 1) as f64;
        let seconds = epoch["iteration_seconds"].as_f64().unwrap();
        // The first may be on its way when the iteration begins.
        let least = (messages - 1.0) * delay;
        assert!(seconds >= least, "{way}: {seconds} s of {messages} messages");
    }
    let [least, most] = [0, 1].map(|at| run["range"][at].as_f64().unwrap());
    let middle = run["iteration_seconds"].as_f64().unwrap();
    assert!(least <= middle && middle <= most && least > 0.0, "{run}");
}
