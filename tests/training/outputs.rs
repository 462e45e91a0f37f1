//! Files that a run writes: its log, and its model.

use super::*;

#[test]
fn the_log_has_a_line_per_step_and_worker_and_adds_up_to_the_report() {
    let dir = tempfile::tempdir().unwrap();
    let flags = "--nodes 2000 --degree 8 --dim 16 --classes 4 --community 200 --hub-share 0.2 \
                 --hub-power 4 --train 0.2";
    let g = generated_as(dir.path(), flags, 2);
    for (n, (strategy, source, is_ahead)) in [
        ("ondemand --tier 64KiB", "host_tier", false),
        ("massive", "buffer", true),
        ("rapid --hot 200", "hot_set", true),
        ("rapid --hot 200 --policy frequency", "hot_set", true),
        ("hop --fetch rapid --hot 200", "hot_set", true),
    ]
    .into_iter()
    .enumerate()
    {
        let line =
            format!("train --graph {g} --workers 2 --epochs 2 --batch 100 --strategy {strategy}");
        let log = dir.path().join(format!("log-{n}.jsonl"));
        let report = lode_line(&format!("{line} --log {} --json", log.display()));
        let report = report.succeeded().json();
        let text = std::fs::read_to_string(&log).unwrap();
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len() as u64, sum(&report, "batches"), "{strategy}");
        let in_log = |of: &str| lines.iter().map(|l| l["rows"][of].as_u64().unwrap()).sum::<u64>();
        assert!(in_log(source) > 0, "{strategy}");
        assert_eq!(in_log(source) + in_log("together"), sum(&report, "hit_rows"), "{strategy}");
        assert_eq!(in_log("together"), sum(&report, "together_rows"), "{strategy}");
        assert_eq!(in_log("local"), sum(&report, "local_rows"), "{strategy}");
        assert_eq!(report["step"]["overlap_efficiency"].is_f64(), is_ahead, "{strategy}");
        assert!(report["step"]["bottleneck"].is_string());
        let text = lode_line(&line).succeeded().stdout;
        assert!(text.contains("bottleneck") && text.contains("% of a step"), "{text}");
        assert_eq!(text.contains("\n  overlap "), is_ahead, "{text}");
    }
    // A line for each partition: what its batches used, and what was loaded for it.
    let log = dir.path().join("sdt.jsonl");
    let line = format!("train --graph {g} --epochs 3 --batch 100 --strategy sdt");
    let report = lode_line(&format!("{line} --log {} --json", log.display())).succeeded().json();
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len() as u64, sum(&report, "steps"));
    for key in ["halo_rows", "halo_bytes"] {
        let in_log: u64 = lines.iter().map(|l| l[key].as_u64().unwrap()).sum();
        assert!(in_log > 0 && in_log == sum(&report, key), "{key}");
    }
    let text = lode_line(&line).succeeded().stdout;
    assert!(
        text.contains("halo rows") && text.contains("100.0 % of neighbourhoods kept"),
        "{text}"
    );
    // Memory for one partition of the two.
    let error =
        lode_line(&format!("{line} --memory 30KiB")).failed(1, &["--parts", "takes"]).stderr;
    let needed: u64 =
        error.split(" takes ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let enough = lode_line(&format!("{line} --memory {} --json", 3 * needed)).succeeded().json();
    assert_eq!(enough["memory_measured_bytes"], needed);
    assert_eq!(enough["parameters_digest"], report["parameters_digest"]);
    let other = format!("train --graph {g} --strategy rapid --policy lru");
    lode_line(&other).failed(2, &["rapid cannot follow `lru`; one of: frequency, oracle"]);
    // The bound is what was asked for at most, and the report says what was held.
    let tight =
        format!("train --graph {g} --workers 2 --epochs 2 --batch 100 --memory 200KiB --json");
    for policy in ["frequency", "oracle"] {
        let report = lode_line(&format!("{tight} --policy {policy}")).succeeded().json();
        let bytes = |key: &str| report[key].as_u64().unwrap();
        assert!(bytes("memory_bound_bytes") <= 200 << 10, "{report}");
        assert!(bytes("memory_measured_bytes") <= bytes("memory_bound_bytes"), "{report}");
        assert_eq!(report["hot_policy"], policy);
    }
    // A failure to report ends the run at that step, and the results so far are printed.
    let full = format!("train --graph {g} --epochs 1000 --batch 100 --log /dev/full");
    let found = lode_line(&full).failed(1, &["cannot write to the log /dev/full", "No space left"]);
    assert!(found.stdout.contains("after 1 steps of the run"), "{found:?}");
    let report = lode_line(&format!("{full} --json")).failed(1, &["/dev/full"]).json();
    assert_eq!(report["step_losses"].as_array().unwrap().len(), 1, "{report}");
    assert!(report["error"].as_str().unwrap().contains("/dev/full"), "{report}");
    // So does a reader that leaves: had the run gone on, the deadline of a command would come
    // first.
    let endless = format!("train --graph {g} --strategy ondemand --epochs 1000000 --batch 1000");
    for json in ["", "--json"] {
        let endless = format!("{endless} {json}");
        let mut left = command(endless.split_whitespace()).spawn().unwrap();
        drop(left.stdout.take());
        assert_eq!(wait(&mut left, std::time::Duration::from_secs(60)), Some(1));
    }
    let nowhere = dir.path().join("no/such/log").display().to_string();
    lode_line(&format!("train --graph {g} --log {nowhere}")).failed(1, &[&nowhere]);
}

#[test]
fn a_saved_model_does_on_the_graph_as_its_run_reported() {
    let dir = tempfile::tempdir().unwrap();
    let graph = |dim: u32| {
        let (raw, graph) =
            (dir.path().join(format!("raw-{dim}")), dir.path().join(dim.to_string()));
        let (r, g) = (raw.display(), graph.display());
        lode_line(&format!("generate --nodes 2000 --degree 8 --dim {dim} --classes 4 --out {r}"))
            .succeeded();
        lode_line(&format!(
            "import --edges {r}/edges.npy --undirected --tensor feat={r}/features.npy \
             --tensor label={r}/labels.npy --tensor split={r}/split.npy --parts 2 --out {g}"
        ))
        .succeeded();
        g.to_string()
    };
    let (graph, other) = (graph(16), graph(17));
    let path = dir.path().join("model.safetensors");
    let model = path.display();
    for (kind, more) in [
        ("sage", ""),
        ("gcn", "--fanout 4,4,4 --processes"),
        ("gat", "--heads 4 --output-heads 1 --hidden 16 --normalize"),
        (
            "sage",
            "--fanout 4,4,4 --norm layer --residual --optimizer adamw \
             --lr-schedule cosine --warm-up 1epochs --clip-norm 1 --processes",
        ),
    ] {
        let trained = lode_line(&format!(
            "train --graph {graph} --workers 2 --epochs 3 --batch 50 --model {kind} {more} \
             --save-model {model} --json"
        ));
        let (trained, found) = (
            trained.succeeded().json(),
            lode_line(&format!("evaluate {graph} --model {model} --json")).succeeded().json(),
        );
        for key in ["model", "test_accuracy", "validation_accuracy"] {
            assert_eq!(found[key], trained[key], "{kind}: {key}");
        }
    }
    let text = lode_line(&format!("evaluate {graph} --model {model}")).succeeded().stdout;
    assert!(text.contains("sage of ") && text.contains("on test nodes"), "{text}");
    let served = Serving::start(Path::new(&graph), "--listen 127.0.0.1:0 --shards 1");
    let connected = format!("evaluate {graph} --model {model} --connect {}", served.address);
    assert_eq!(lode_line(&connected).succeeded().stdout, text);
    served.stop();
    lode_line(&format!("evaluate {other} --model {model}"))
        .failed(1, &["layers.0.weight", "as the graph asks for", &model.to_string()]);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
    lode_line(&format!("evaluate {graph} --model {model}")).failed(1, &["no file of tensors"]);
    std::fs::remove_file(&path).unwrap();
    lode_line(&format!("evaluate {graph} --model {model}")).failed(1, &["cannot read it"]);
    lode_line(&format!(
        "train --graph {graph} --epochs 1 --save-model {}/no/m",
        dir.path().display()
    ))
    .failed(1, &["model", "cannot write it", "no/m"]);
}
