//! `lode train --strategy full`: threads and processes alike, killed runs, and what is refused.

use std::{
    fs,
    path::Path,
    process::Child,
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::graph::{generated, generated_as};
use testing::process::{Serving, children_of, command, finish, lode_line, wait_until_gone};

/// Longest time until a run has come so far, or has noticed that one of its processes is dead.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns what was computed: losses and rates as they were printed, every bit of them, and
/// parameters.
fn computed(report: &Value) -> Vec<String> {
    let epochs = report["epochs"].as_array().unwrap().iter();
    let keys = ["steps", "loss", "accuracy", "test_accuracy", "validation_accuracy"];
    let mut all: Vec<String> =
        epochs.flat_map(|epoch| keys.map(|key| epoch[key].to_string())).collect();
    for key in ["step_losses", "parameters_digest", "best_parameters_digest", "best_epoch"] {
        assert!(!report[key].is_null(), "{key}");
        all.push(report[key].to_string());
    }
    all
}

fn bytes(report: &Value, epoch: usize, key: &str) -> u64 {
    report["epochs"][epoch][key].as_u64().unwrap()
}

#[test]
fn processes_servers_and_partitions_learn_alike() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let server = Serving::start(Path::new(&graph), "--listen 127.0.0.1:0 --shards 1");
    for (model, more) in [
        ("gcn", ""),
        ("sage --norm layer", "--no-overlap"),
        ("gat --heads 4", "--staleness 1 --compress int8"),
    ] {
        let line = format!(
            "train --graph {graph} --strategy full --model {model} --hidden 16 --epochs 4 --layers 2 \
             --seed 9 {more} --json"
        );
        let one = lode_line(&line).succeeded().json();
        let log = dir.path().join(format!("{}.jsonl", &model[..3]));
        let forms = ["--workers 4", "--workers 4 --processes", "--workers 3 --processes"];
        for (n, form) in forms.into_iter().enumerate() {
            let connect = format!("--connect {}", server.address);
            let log = format!("{}-{n}", log.display());
            let found = lode_line(&format!("{line} {form} {connect} --log {log}"));
            let found = found.succeeded().json();
            assert_eq!(computed(&found), computed(&one), "{model} {form}");
            let is_refreshed = more.contains("staleness");
            for epoch in 0..4 {
                let moves = epoch % 2 == 0 || !is_refreshed;
                let embeddings = bytes(&found, epoch, "embedding_bytes");
                assert_eq!(embeddings > 0, moves, "{model} {form}");
                let gradients = bytes(&found, epoch, "gradient_bytes");
                let inputs = bytes(&found, epoch, "input_bytes");
                assert_eq!(inputs > 0, epoch == 0);
                assert_eq!(bytes(&found, epoch, "halo_bytes"), embeddings + gradients + inputs);
                assert_eq!(bytes(&found, epoch, "halo_rows"), bytes(&one, epoch, "halo_rows"));
                assert_eq!(bytes(&found, epoch, "max_staleness"), u64::from(!moves));
            }
            let text = fs::read_to_string(&log).unwrap();
            let lines: Vec<Value> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(lines.len(), 4 * found["workers"].as_u64().unwrap() as usize);
            let in_log: u64 =
                lines.iter().map(|line| line["embedding_bytes"].as_u64().unwrap()).sum();
            let all = (0..4).map(|epoch| bytes(&found, epoch, "embedding_bytes")).sum::<u64>();
            assert_eq!(in_log, all);
            // Bytes that ranks really sent, without headers.
            if form.ends_with("--processes") && !more.contains("staleness") {
                let back = (0..4).map(|epoch| bytes(&found, epoch, "gradient_bytes")).sum::<u64>();
                let sent = found["sent_bytes"]["embeddings"].as_u64().unwrap();
                // Evaluations send rows too.
                assert!(sent > all + back, "{sent} {all} {back}");
            }
        }
    }
    let text = lode_line(&format!("train --graph {graph} --strategy full --workers 2 --epochs 2"));
    assert!(text.succeeded().stdout.contains("nodes in halos, features pulled once"));
    server.stop();
}

fn written(checkpoint: &Path) -> Option<SystemTime> {
    fs::metadata(checkpoint).and_then(|metadata| metadata.modified()).ok()
}

/// Waits until `run` has replaced its checkpoint `n` times; false if it ended before.
fn wait_for(run: &mut Child, checkpoint: &Path, n: u32) -> bool {
    let (start, mut last) = (Instant::now(), written(checkpoint));
    for _ in 0..n {
        while written(checkpoint) == last {
            if run.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(start.elapsed() < DEADLINE, "no checkpoint came");
            sleep(Duration::from_micros(200));
        }
        last = written(checkpoint);
    }
    true
}

#[test]
fn a_run_killed_again_and_again_ends_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    for (n, more) in ["", "--staleness 2 --compress f16"].into_iter().enumerate() {
        let settings = format!(
            "train --graph {graph} --strategy full --model gcn --layers 2 --hidden 16 --epochs 12 \
             --seed 9 --json {more}"
        );
        let plain = lode_line(&settings).succeeded().json();
        let of_run = dir.path().join(format!("run-{n}"));
        let checkpoint = of_run.join("checkpoint");
        let line = format!("{settings} --checkpoint {} --resume", of_run.display());
        let mut n_killed = 0;
        for (form, n) in [("--workers 1", 2), ("--workers 4 --processes", 3), ("--workers 2", 1)] {
            let mut run = command(format!("{line} {form}").split_whitespace()).spawn().unwrap();
            if wait_for(&mut run, &checkpoint, n) && run.try_wait().unwrap().is_none() {
                n_killed += 1;
            }
            let processes = children_of(run.id());
            run.kill().unwrap();
            run.wait().unwrap();
            wait_until_gone(&processes);
        }
        assert!(n_killed >= 2, "{more}: killed {n_killed} times");
        let report = lode_line(&format!("{line} --workers 3")).succeeded().json();
        assert!(report["resumed_at"]["epoch"].is_u64(), "{more}");
        assert_eq!(computed(&report), computed(&plain), "{more}");
    }
}

#[test]
fn a_worker_that_dies_or_hangs_ends_the_others_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let line = format!(
        "train --graph {graph} --workers 4 --processes --strategy full --epochs 100000 --hidden 16 \
         --evaluate-every 0 --peer-timeout 6 --json"
    );
    let signal = |pid: u32, signal| {
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    };
    for (n, then_ms) in [300, 700, 1500].into_iter().enumerate() {
        let log = dir.path().join(format!("{n}.jsonl"));
        let line = format!("{line} --log {}", log.display());
        let run = command(line.split_whitespace()).spawn().unwrap();
        let start = Instant::now();
        while fs::metadata(&log).map_or(0, |log| log.len()) == 0 {
            assert!(start.elapsed() < DEADLINE, "no step");
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(then_ms));
        let processes = children_of(run.id());
        assert_eq!(processes.len(), 3);
        let victim = processes[n];
        if n < 2 {
            signal(victim, Signal::KILL);
            let found = finish(run, DEADLINE).failed(1, &["of the run is gone", "SIGKILL"]);
            let error = found.json()["error"].to_string();
            assert!(error.contains(&victim.to_string()), "{error}");
        } else {
            signal(victim, Signal::STOP);
            let named = ["of the run is there", "has not answered for 6 s", "--peer-timeout"];
            finish(run, DEADLINE).failed(1, &named);
        }
        wait_until_gone(&processes);
    }
}

#[test]
fn profiles_of_devices_leave_edges_out_and_bad_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated_as(dir.path(), "--nodes 800 --degree 8 --dim 8 --classes 3 --seed 2", 2);
    let profile = |name: &str, seconds: f64| {
        let path = dir.path().join(format!("{name}.json"));
        let text = format!(
            "{{\"name\": \"{name}\", \"h2d_seconds\": {seconds}, \"d2h_seconds\": {seconds}, \
             \"idt_seconds\": {seconds}, \"spmm_seconds\": {seconds}, \"mm_seconds\": {seconds}, \
             \"memory_bytes\": 4000000000}}"
        );
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (fast, slow, stopped) =
        (profile("fast", 1.0), profile("slow", 2.0), profile("stopped", 0.0));
    let line = format!("train --graph {graph} --strategy full --epochs 2 --workers 2 --hidden 8");
    let whole = lode_line(&format!("{line} --json")).succeeded().json();
    let found = lode_line(&format!("{line} --rapa {fast} {slow} --json")).succeeded().json();
    let kept = found["epochs"][0]["kept_share"].as_f64().unwrap();
    assert!(kept < 1.0 && kept > 0.4, "{kept}");
    assert!(bytes(&found, 1, "halo_bytes") < bytes(&whole, 1, "halo_bytes"));
    assert_ne!(computed(&found), computed(&whole));
    let processes = format!("{line} --rapa {fast},{slow} --processes --json");
    assert_eq!(computed(&lode_line(&processes).succeeded().json()), computed(&found));
    let text = lode_line(&format!("{line} --rapa {fast},{slow}")).succeeded().stdout;
    assert!(text.contains("of edges kept by RAPA"), "{text}");
    lode_line(&format!("{line} --rapa {fast},{stopped}"))
        .failed(1, &["device `stopped`", "must be a time above 0, found 0"]);
    lode_line(&format!("{line} --rapa {fast}"))
        .failed(2, &["a profile for each worker: 2, found 1"]);
    lode_line(&format!("{line} --rapa {fast},/nowhere.json")).failed(1, &["/nowhere.json"]);
}

fn rate(report: &Value, epoch: usize) -> f64 {
    report["epochs"][epoch]["input_hit_rate"].as_f64().unwrap()
}

#[test]
fn tiers_of_any_size_change_no_loss_and_jaca_hits_most() {
    let dir = tempfile::tempdir().unwrap();
    let flags = "--nodes 3000 --degree 8 --dim 12 --classes 4 --community 60 --train 0.3 --seed 3";
    let graph = generated_as(dir.path(), flags, 4);
    let line = format!(
        "train --graph {graph} --strategy full --model gcn --hidden 8 --layers 2 --epochs 4 \
         --workers 4 --seed 9 --json"
    );
    let kept = lode_line(&line).succeeded().json();
    assert_eq!((rate(&kept, 0), rate(&kept, 1), rate(&kept, 3)), (0.0, 1.0, 1.0));
    let with = |flags: &str| {
        let found = lode_line(&format!("{line} {flags}")).succeeded().json();
        assert_eq!(computed(&found), computed(&kept), "{flags}");
        found
    };
    let row_bytes = 4 * 12;
    for percent in [10, 25, 50, 75, 90] {
        let hits = |policy: &str| {
            let found = with(&format!("--tier {percent}% --policy {policy}"));
            let pulled = bytes(&found, 3, "input_bytes") / row_bytes;
            let needed = bytes(&kept, 0, "input_bytes") / row_bytes;
            let expected = 1.0 - pulled as f64 / needed as f64;
            assert!((rate(&found, 3) - expected).abs() < 1e-9, "{policy} {percent}");
            rate(&found, 3)
        };
        let (jaca, fifo, lru) = (hits("overlap"), hits("fifo"), hits("lru"));
        assert!(jaca >= f64::from(percent) / 100.0 - 0.01, "{percent} %: {jaca}");
        assert!(fifo <= jaca && lru <= jaca, "{percent} %: {jaca} {fifo} {lru}");
    }
    // One host copy: what a worker has pulled the others find, in the first epoch too.
    let whole = with("--tier 100%");
    let once = bytes(&whole, 0, "input_bytes");
    assert!(once < bytes(&kept, 0, "input_bytes") && rate(&whole, 0) > 0.0, "{once}");
    let [host] = &whole["tiers"].as_array().unwrap()[..] else { panic!("{whole}") };
    assert_eq!(host["policy"], "overlap");
    assert_eq!(host["rows"].as_u64().unwrap() * row_bytes, once);
    assert!((1..4).all(|epoch| bytes(&whole, epoch, "input_bytes") == 0));
    // A device's tier before it has at most what its worker's halos have.
    let both = with("--tier 30% --device-tier 50%");
    let tiers: Vec<&Value> = both["tiers"].as_array().unwrap().iter().collect();
    assert_eq!(
        (tiers[0]["tier"].as_str(), tiers[1]["tier"].as_str()),
        (Some("device"), Some("host"))
    );
    assert!(tiers.iter().all(|tier| tier["hits"].as_u64().unwrap() > 0), "{tiers:?}");
    assert!(rate(&both, 3) > rate(&with("--tier 30%"), 3));
    // Processes have a tier each, of an equal share; what is stale is so with tiers too.
    with("--tier 20kB --processes");
    let stale = format!("{line} --staleness 1 --compress int8");
    let expected = lode_line(&stale).succeeded().json();
    let found = lode_line(&format!("{stale} --tier 25%")).succeeded().json();
    assert_eq!(computed(&found), computed(&expected));
}

#[test]
fn a_tier_that_hits_too_little_is_passed_by() {
    let dir = tempfile::tempdir().unwrap();
    let graph =
        generated_as(dir.path(), "--nodes 3000 --degree 8 --dim 12 --classes 4 --seed 3", 2);
    let line = format!(
        "train --graph {graph} --strategy full --model gcn --hidden 8 --layers 2 --epochs 12 \
         --workers 2 --evaluate-every 0 --json"
    );
    let kept = lode_line(&line).succeeded().json();
    let bypassed = |flags: &str| {
        let found =
            lode_line(&format!("{line} --tier 30% --policy lru {flags}")).succeeded().json();
        assert_eq!(computed(&found), computed(&kept), "{flags}");
        found["tiers"][0]["bypassed"].as_u64().unwrap()
    };
    assert!(bypassed("") > 0, "LRU in a loop that is longer hits nothing");
    assert_eq!(bypassed("--bypass 0"), 0);
}

#[test]
fn flags_that_cannot_work_are_refused_before_any_file_is_opened() {
    for (flags, expected) in [
        ("--batch 5", "--batch is not for --strategy full"),
        ("--fanout 5,5", "--fanout is not for --strategy full"),
        ("--roots owned", "--roots is not for --strategy full"),
        ("--tier 1MB --max-age 3", "--max-age is not for --strategy full"),
        ("--tier 101%", "write 0% to 100%"),
        ("--policy lru", "--policy is for --tier"),
        ("--memory 1MB", "--memory"),
        ("--hot 5", "--hot"),
        ("--norm batch", "no normalisation `batch`; there are: none, layer"),
        ("--aggregation max", "unexpected argument '--aggregation'"),
        ("--staleness=-1", "--staleness"),
        ("--staleness 1 --halo zero", "--staleness must be 0 where halos are zeros"),
        ("--compress f16 --halo zero", "--compress must be none"),
        ("--compress f8", "there are: f16, int8"),
        ("--halo some", "there are: exchange, zero"),
        ("--layers 0", "--layers"),
        ("--layers 65", "--layers"),
    ] {
        lode_line(&format!("train --graph g --strategy full {flags}")).failed(2, &[expected]);
    }
    for flag in
        ["--layers 2", "--halo zero", "--staleness 1", "--compress f16", "--no-overlap", "--rapa p"]
    {
        let name = flag.split(' ').next().unwrap();
        lode_line(&format!("train --graph g --strategy ondemand {flag}"))
            .failed(2, &[name, "is for --strategy full"]);
    }
}
