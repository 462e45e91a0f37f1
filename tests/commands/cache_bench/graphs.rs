//! Traces of schedules and graphs.

use lodestore_graph::schedule::Schedule;
use serde_json::Value;

use crate::cache_bench::traces::{bench, name};
use testing::graph::Source;
use testing::process::{lode, lode_line};

fn policies(report: &Value) -> Vec<&str> {
    let results = report["results"].as_array().unwrap();
    results.iter().map(|result| result["policy"].as_str().unwrap()).collect()
}

#[test]
fn a_schedule_is_replayed_for_one_worker_or_all() {
    let source = Source::random(400, 3000);
    let graph = name(&source.import("g", 3, "spring"));
    let schedule = source.file("s");
    let file = name(&schedule);
    let line = format!(
        "schedule {graph} --fanout 3,3 --batch 20 --epochs 2 --workers 3 --roots all --out {file}"
    );
    lode_line(&line).succeeded();
    let all = bench(&["--schedule", &file], "--capacities 10%").succeeded().json();
    let opened = Schedule::open(&schedule).unwrap();
    assert_eq!(all["trace"]["accesses"], opened.n_ids());
    assert_eq!((&all["trace"]["epochs"], &all["trace"]["repeats"]), (&2.into(), &0.into()));
    assert!(!policies(&all).contains(&"overlap") && !policies(&all).contains(&"degree"));
    assert_eq!(all["omitted"][0]["policy"], "degree");

    let with_graph = ["--schedule", &file, "--graph", &graph];
    let known = bench(&with_graph, "--capacities 10%").succeeded().json();
    assert!(policies(&known).contains(&"overlap") && policies(&known).contains(&"degree"));
    assert_eq!(known["omitted"].as_array().unwrap().len(), 0);
    let accesses = |more: &str| {
        let report = bench(&with_graph, &format!("--policies lru {more}")).succeeded().json();
        report["trace"]["accesses"].as_u64().unwrap()
    };
    let workers: u64 = (0..3).map(|worker| accesses(&format!("--worker {worker}"))).sum();
    assert_eq!(workers, opened.n_ids());
    let remote: u64 = (0..3).map(|worker| accesses(&format!("--worker {worker} --remote"))).sum();
    assert_eq!(remote, accesses("--remote"));
    assert!(0 < remote && remote < workers);
    bench(&with_graph, "--worker 3").failed(1, &["no worker 3", "0 to 2"]);

    let other = name(&source.import("other", 2, "hash"));
    bench(&["--schedule", &file, "--graph", &other], "").failed(1, &["made for graph"]);
    let mut bytes = std::fs::read(&schedule).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&schedule, bytes).unwrap();
    bench(&["--schedule", &file], "").failed(1, &[&file]);
}

#[test]
fn halos_and_neighbours_of_a_graph_are_traces() {
    let source = Source::random(300, 2000);
    let graph = name(&source.import("g", 4, "spring"));
    let out = name(&source.file("t"));
    let generate = |more: &str| {
        let line = format!("generate-trace --json --graph {graph} --out {out} --seed 3 {more}");
        lode_line(&line).succeeded().json()
    };
    let halos = generate("--kind halos --epochs 3");
    assert_eq!(halos["batches"], 12);
    let trace = [format!("{out}.ids.npy"), format!("{out}.offsets.npy")];
    let trace = ["--trace", &trace[0], "--offsets", &trace[1], "--graph", &graph];
    let report = bench(&trace, "--capacities 10%,30%,60%").succeeded().json();
    let hits = |policy: &str| -> Vec<u64> {
        let results = report["results"].as_array().unwrap().iter();
        let own = results.filter(|result| result["policy"] == policy);
        own.map(|result| result["hits"].as_u64().unwrap()).collect()
    };
    // A loop longer than the cache: what keeps rows by how many partitions need them wins.
    assert!(hits("overlap").iter().zip(hits("fifo")).all(|(&jaca, fifo)| jaca > fifo));

    // A tier for each partition before one of the host, and a row at a time. A policy that keeps
    // rows of a loop in the order of arrival keeps none that is used again.
    let row_by_row = generate("--kind halos --epochs 3 --batch 1");
    assert_eq!(row_by_row["accesses"], halos["accesses"]);
    assert_eq!(row_by_row["batches"].as_u64().unwrap() % (3 * 4), 0);
    let line = "--devices 4 --capacities 10%+10%,30%+30% --policies overlap,fifo";
    let report = bench(&trace, line).succeeded().json();
    let results = report["results"].as_array().unwrap();
    for result in results.iter().filter(|result| !result["devices"].is_null()) {
        let number = |key: &str| result[key].as_u64().unwrap();
        assert_eq!(number("hits"), number("device_hits") + number("host_hits"), "{result}");
        assert_eq!(number("capacity_rows"), 4 * number("device_rows") + number("host_rows"));
        assert!(number("hits") > 0 || result["policy"] == "fifo", "{result}");
    }
    assert_eq!(results.iter().filter(|result| result["devices"] == 4).count(), 2 * 2);
    // Rows that more partitions need are pulled more often (CaPGNN, Fig. 14).
    let line = "--capacities 20% --policies overlap --lowest-overlap";
    let report = bench(&trace, line).succeeded().json();
    let results = report["results"].as_array().unwrap();
    let overlap: Vec<&Value> = results.iter().filter(|r| r["policy"] == "overlap").collect();
    let hits: Vec<u64> = overlap.iter().map(|result| result["hits"].as_u64().unwrap()).collect();
    assert_eq!(
        (&overlap[0]["priority"], &overlap[1]["priority"]),
        (&Value::Null, &"lowest".into())
    );
    assert!(hits[0] > hits[1] && hits[1] > 0, "{hits:?}");
    bench(&trace, "--devices 5 --capacities 10%+10%").failed(1, &["which that many devices"]);

    let first = generate("--kind neighbours --epochs 2 --batch 10");
    let ids = std::fs::read(first["ids"].as_str().unwrap()).unwrap();
    generate("--kind neighbours --epochs 2 --batch 10");
    assert!(std::fs::read(first["ids"].as_str().unwrap()).unwrap() == ids);
    lode(["generate-trace", "--kind", "halos", "--graph", "nowhere", "--out", &out])
        .failed(1, &["nowhere"]);
}
