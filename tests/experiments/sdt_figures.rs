//! `lode-lab reproduce sdtgnn`: its figures are those of partitioning and of training.

use serde_json::Value;
use testing::graph::generated_as;
use testing::memory_limit::MemoryLimit;
use testing::process::lode_line;

fn named<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
    list.as_array().unwrap().iter().find(|of| of[key] == name).unwrap()
}

#[test]
fn all_figures_are_there_and_agree_with_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let flags = "--nodes 600 --degree 8 --dim 12 --classes 4 --community 50 --train 0.3 --seed 3";
    let imported = generated_as(dir.path(), flags, 2);
    let out = dir.path().join("out");
    let found = lode_line(&format!(
        "reproduce sdtgnn --graph {imported} --out {} --parts 2,4 --trained-parts 4 --seeds 2 \
         --epochs 11 --batch 32 --fanout 5,5 --hidden 16 --rate 1Gbit --json",
        out.display()
    ))
    .succeeded()
    .json();
    let graph = &found["graphs"][0];

    let spring = named(&graph["partitioners"], "name", "spring");
    let refined = named(&graph["partitioners"], "name", "spring, refined");
    assert!(spring["clusters"][0].as_u64() >= spring["clusters"][1].as_u64());
    let replication = |of: &Value| of["replication_factor"].as_f64().unwrap();
    assert!(replication(refined) <= replication(spring) && replication(refined) >= 1.0);
    assert!(named(&graph["partitioners"], "name", "2ps-l")["clusters"].is_null());

    let learnt = |way: &str| named(&graph["learnt"], "way", way);
    let last = |way: &str| -> Vec<f64> {
        let runs = learnt(way)["accuracies"].as_array().unwrap();
        assert_eq!(runs.len(), 2, "{way}");
        runs.iter().map(|run| run.as_array().unwrap()[10].as_f64().unwrap()).collect()
    };
    for way in ["whole", "gradients", "sdt", "sdt-local", "sdt-reset", "one-hop", "once"] {
        assert!(last(way).iter().all(|&accuracy| accuracy > 0.5), "{way}: {:?}", last(way));
    }
    assert_ne!(last("sdt"), last("alone"));
    assert_eq!(learnt("sdt")["kept_share"], 1.0);
    let kept = learnt("one-hop")["kept_share"].as_f64().unwrap();
    assert!(kept > 0.0 && kept < 1.0, "{kept}");
    let bytes = |way: &str, key: &str| learnt(way)[key].as_f64().unwrap();
    assert!(bytes("one-hop", "row_bytes") < bytes("sdt", "row_bytes"));
    assert!(bytes("sdt-local", "synchronised_bytes") < bytes("gradients", "synchronised_bytes"));
    assert_eq!(bytes("sdt", "synchronised_bytes"), 3.0 * bytes("sdt-local", "synchronised_bytes"));
    assert_eq!([bytes("once", "synchronised_bytes"), bytes("whole", "row_bytes")], [0.0; 2]);

    let held = graph["held"].as_array().unwrap();
    let whole = held[0]["bytes"].as_u64().unwrap();
    assert!(held[1..].iter().all(|held| held["bytes"].as_u64().unwrap() <= 2 * whole));
    for link in graph["links"].as_array().unwrap() {
        let sdt = named(&link["runs"], "strategy", "sdt");
        let rows = |run: &Value, at: usize| run["row_bytes"][at].as_u64().unwrap();
        // A partition of each worker stays.
        assert!(rows(sdt, 0) > 0 && rows(sdt, 1) == 0, "{sdt}");
        assert!(rows(named(&link["runs"], "strategy", "ondemand"), 1) > 0);
    }
    assert_eq!(graph["links"].as_array().unwrap().len(), 2);
    let report = std::fs::read_to_string(out.join("report.md")).unwrap();
    for part in ["Figs. 6, 7, Table II", "Fig. 9", "Figs. 8, 10", "Table IV", "never averaged"] {
        assert!(report.contains(part), "no `{part}` in {report}");
    }
    for chart in ["fig6.svg", "fig7.svg", "fig9.svg", "fig10-graph.svg"] {
        assert!(out.join(chart).exists(), "{chart}");
    }
    lode_line(&format!("reproduce sdtgnn --graph {imported} --out {}", out.display()))
        .failed(1, &["cannot make the folder"]);
}

#[test]
fn training_stays_within_a_fifth_more_than_its_memory() {
    const MEMORY: u64 = 96 << 20;
    let dir = tempfile::tempdir().unwrap();
    let flags = "--nodes 150000 --degree 15 --dim 256 --classes 16 --train 0.1 --seed 3";
    let graph = generated_as(dir.path(), flags, 16);
    let line = format!(
        "train --graph {graph} --strategy sdt --memory {MEMORY} --halo-hops 1 --fanout 10,5 \
         --hidden 32 --batch 500 --epochs 2 --evaluation-memory 16MiB --reader mapped --json"
    );
    let Some(limit) = MemoryLimit::new(MEMORY + MEMORY / 5) else { return };
    let report = limit.lode_line(&line).succeeded().json();
    let held = report["memory_measured_bytes"].as_u64().unwrap();
    assert!(held > 0 && held <= MEMORY / 3, "{held}");
    drop(limit);
    // The limit is a real one, and the memory is needed.
    let limit = MemoryLimit::new(MEMORY / 3).unwrap();
    assert_ne!(limit.lode_line(&line).code, Some(0));
}
