//! `lode-lab reproduce capgnn`: its figures agree with each other and with what training is held
//! to.

use serde_json::Value;
use testing::graph::generated_as;
use testing::process::lode_line;

fn floats(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|of| of.as_f64().unwrap()).collect()
}

#[test]
fn all_figures_are_there_and_agree_with_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let flags = "--nodes 600 --degree 8 --dim 12 --classes 4 --community 50 --train 0.3 --seed 3";
    let imported = generated_as(dir.path(), flags, 2);
    let out = dir.path().join("out");
    let found = lode_line(&format!(
        "reproduce capgnn --graph {imported} --out {} --parts 2,4 --trained-parts 3 --seeds 2 \
         --epochs 30 --hidden 16 --layers 2 --staleness 1,3 --splits stored,random --rate 1Gbit --json",
        out.display()
    ))
    .succeeded()
    .json();
    let graph = &found["graphs"][0];

    let halos = graph["halos"].as_array().unwrap();
    let halo = |name: &str, parts: u64, hops: u64| {
        let is_it =
            |of: &&Value| of["partitioner"] == name && of["parts"] == parts && of["hops"] == hops;
        halos.iter().find(is_it).unwrap()["per_node"].as_f64().unwrap()
    };
    for parts in [2, 4] {
        assert!(halo("spring, refined", parts, 1) < halo("hash", parts, 1));
        assert!(halo("hash", parts, 1) < halo("hash", parts, 2));
    }

    for moved in graph["moved"].as_array().unwrap() {
        let [resent, kept, exact] =
            ["resent_bytes", "kept_bytes", "exact_bytes"].map(|key| moved[key].as_u64().unwrap());
        assert!(0 < exact && exact <= kept && kept < resent, "{moved}");
    }

    let cached = graph["cached"].as_array().unwrap();
    let hits = |policy: &str, percent: u64| {
        let is_it = |of: &&Value| of["policy"] == policy && of["percent"] == percent;
        cached.iter().find(is_it).unwrap()["hit_rate"].as_f64().unwrap()
    };
    let kept = cached.iter().find(|of| of["policy"].is_null()).unwrap();
    assert_eq!((kept["hit_rate"].as_f64(), kept["input_bytes"].as_u64()), (Some(1.0), Some(0)));
    for percent in [10, 25, 50, 75, 90] {
        let jaca = hits("overlap", percent);
        // Rows that most halos have are pulled most.
        assert!(jaca > percent as f64 / 100.0 - 0.01 && jaca < 1.0, "{percent} %: {jaca}");
        for control in ["fifo", "lru"] {
            assert!(hits(control, percent) <= jaca + 1e-9, "{control}, {percent} %");
        }
    }
    assert!(["overlap", "fifo", "lru"].iter().all(|policy| hits(policy, 100) == 1.0));

    let learnt = graph["learnt"].as_array().unwrap();
    for splits in ["stored", "random"] {
        let of = |way: &Value| {
            learnt.iter().find(|of| of["splits"] == splits && of["way"] == *way).unwrap()
        };
        let named = |way: &str| of(&Value::from(way));
        let stale = |epochs: u32| of(&serde_json::json!({ "stale": epochs }));
        let bytes = |of: &Value| of["halo_bytes"].as_f64().unwrap();
        let exact = named("exact");
        for (found, expected) in exact["losses"]
            .as_array()
            .unwrap()
            .iter()
            .zip(named("whole")["losses"].as_array().unwrap())
        {
            for (found, expected) in floats(found).iter().zip(floats(expected)) {
                assert!((found - expected).abs() <= 1e-5 * expected, "{found} {expected}");
            }
        }
        assert_ne!(named("zero")["losses"], exact["losses"]);
        assert_eq!((bytes(named("zero")), bytes(named("whole"))), (0.0, 0.0));
        assert!(
            bytes(named("f16")) < 0.8 * bytes(exact) && bytes(named("int8")) < bytes(named("f16"))
        );
        for epochs in [1, 3] {
            assert_eq!(stale(epochs)["max_staleness"], epochs);
            assert!(bytes(stale(epochs)) < bytes(exact));
        }
        assert!(bytes(stale(3)) < bytes(stale(1)));
        assert!(named("rapa")["kept_share"].as_f64().unwrap() < 1.0);
        let accuracy =
            |of: &Value| of["accuracies"][0].as_array().unwrap().last().unwrap()[1].as_f64();
        assert!(accuracy(exact) > Some(0.6), "{exact}");
    }

    let links = graph["links"].as_array().unwrap();
    let runs = links[0]["runs"].as_array().unwrap();
    assert_eq!((links.len(), runs.len()), (1, 10));
    let sent = |way: &str| {
        runs.iter().find(|run| run["way"] == way).unwrap()["halo_bytes"].as_f64().unwrap()
    };
    // Table 8 by bytes: kept features save theirs, and RAPA those of the edges that are gone.
    assert!(sent("waiting") < sent("resent") && sent("resent-rapa") < sent("resent"));
    assert!(sent("rapa-waiting") < sent("waiting") && sent("rapa-waiting") < sent("resent-rapa"));
    assert_eq!((sent("waiting"), sent("rapa-waiting")), (sent("exact"), sent("rapa")));
    assert!(runs.iter().all(|run| run["seconds"].as_f64().unwrap() > 0.0));
    let report = std::fs::read_to_string(out.join("report.md")).unwrap();
    for part in [
        "C6, Figs. 4, 6",
        "C1, C8",
        "C4, C5",
        "split: random",
        "Tables 7, 8",
        "zero halos",
        "A slow worker",
    ] {
        assert!(report.contains(part), "no `{part}` in {report}");
    }
    for chart in ["fig4.svg", "bytes.svg", "fig22-graph.svg"] {
        assert!(out.join(chart).exists(), "{chart}");
    }
    lode_line(&format!("reproduce capgnn --graph {imported} --out {}", out.display()))
        .failed(1, &["cannot make the folder"]);
    lode_line(&format!("reproduce capgnn --graph {imported} --out x --staleness 0"))
        .failed(2, &["--staleness"]);
}

#[test]
fn a_worker_with_half_a_processor_is_the_slowest_and_rapa_takes_edges_from_it() {
    let n_cores = std::thread::available_parallelism().unwrap().get();
    if n_cores < 2 {
        eprintln!("SKIPPED: two workers need a processor each, and there is {n_cores}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let flags = "--nodes 4000 --degree 30 --dim 64 --classes 4 --community 50 --train 0.3 --seed 3";
    let imported = generated_as(dir.path(), flags, 2);
    let out = dir.path().join("out");
    let found = lode_line(&format!(
        "reproduce capgnn --graph {imported} --out {} --only slow-worker --epochs 30 --layers 2 --json",
        out.display()
    ))
    .succeeded()
    .json();
    let throttled = &found["graphs"][0]["throttled"];
    eprintln!("a slow worker: {throttled}");
    let runs = throttled["runs"].as_array().unwrap();
    let of = |at: usize, key: &str| runs[at][key].as_f64().unwrap();
    assert_eq!(runs.len(), 3);
    assert_eq!((of(0, "kept_share"), of(1, "kept_share")), (1.0, 1.0));
    assert!(of(2, "kept_share") < 1.0, "{throttled}");
    // A throttled run has the losses of one that is not.
    assert_eq!(of(0, "test_accuracy"), of(1, "test_accuracy"));
    assert!(of(2, "test_accuracy") > of(1, "test_accuracy") - 0.1, "{throttled}");
    assert!((0..3).all(|at| (1.0..2.0).contains(&of(at, "slowest_over_mean"))), "{throttled}");
    // Two to one is a third above the mean, and less beside others that take processors from both.
    assert!(of(1, "slowest_over_mean") > 1.05, "{throttled}");
    let report = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(report.contains("A slow worker") && !report.contains("Tables 7, 8"), "{report}");
}
