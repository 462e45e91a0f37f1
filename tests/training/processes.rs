//! Workers as processes: the same bits as threads, and no process left when one dies.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::graph::generated;
use testing::process::{Serving, children_of, command, finish, lode_line, wait_until_gone};

/// Longest time until a run has come so far, or has noticed that one of its processes is dead.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns the cora in four partitions, unless it is not here.
fn cora(dir: &Path) -> Option<String> {
    let root =
        std::env::var_os("LODE_DATA").map_or_else(|| "../../shared/data".into(), PathBuf::from);
    let data = root.join("cora");
    if !data.is_dir() {
        eprintln!(
            "SKIPPED: no {}; set LODE_DATA to the folder with the real graphs",
            data.display()
        );
        return None;
    }
    let (graph, data) = (dir.join("cora").display().to_string(), data.display());
    lode_line(&format!(
        "import --edges {data}/edges.npy --undirected --tensor feat={data}/features_csr.npz \
         --tensor label={data}/labels.npy --tensor split={data}/split.npy --parts 4 --out {graph}"
    ))
    .succeeded();
    Some(graph)
}

/// Returns what was computed, and with what rows: losses as they were printed, every bit of them.
fn computed(report: &Value) -> Vec<String> {
    let mut all: Vec<String> = report["epochs"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|epoch| {
            ["steps", "loss", "accuracy", "test_accuracy", "validation_accuracy"]
                .map(|key| epoch[key].to_string())
        })
        .collect();
    for key in ["step_losses", "parameters_digest", "best_parameters_digest", "best_epoch"] {
        assert!(!report[key].is_null(), "{key}");
        all.push(report[key].to_string());
    }
    all
}

/// Returns what an epoch moved, but for what depends on which hot set was ready when.
fn moved(report: &Value, key: &str) -> Vec<u64> {
    let epochs = report["epochs"].as_array().unwrap();
    epochs.iter().map(|epoch| epoch[key].as_u64().unwrap()).collect()
}

/// Returns each line of a log but for its times, in order of steps and workers.
fn log_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        line.remove("seconds");
        line.remove("batch");
        line.remove("load_seconds");
    }
    lines
}

#[test]
fn processes_learn_what_threads_learn_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let settings = format!(
        "train --graph {graph} --workers 4 --epochs 3 --batch 64 --fanout 5,5 --hidden 16 --seed 9 --json"
    );
    let strategies = [
        "ondemand",
        "massive",
        "rapid",
        "rapid --policy frequency",
        "ondemand --roots global",
        "rapid --roots global",
        "hop",
        "hop --fetch rapid",
        "hop --migration paper",
        "hop --migration paper --no-pregather",
        "sdt",
        "sdt --average-every 2 --halo-hops 1 --optimizer-state local",
    ];
    for (n, strategy) in strategies.iter().enumerate() {
        let log = |form: &str| dir.path().join(format!("log-{n}-{form}"));
        let run = |form: &str, flag: &str| {
            let log = log(form).display().to_string();
            lode_line(&format!("{settings} --strategy {strategy} --log {log} {flag}"))
                .succeeded()
                .json()
        };
        let (threads, processes) = (run("threads", ""), run("processes", "--processes"));
        assert_eq!(computed(&processes), computed(&threads), "{strategy}");
        assert_eq!([&threads["processes"], &processes["processes"]], [1, 4], "{strategy}");
        assert_eq!(threads["sent_bytes"]["gradients"], 0, "{strategy}");
        // Parts of four gradients and of their sum: more than one gradient in a step.
        let kind = if strategy.starts_with("sdt") { "parameters" } else { "gradients" };
        let sent = processes["sent_bytes"][kind].as_u64().unwrap();
        assert!(sent > 1000 && processes["sent_bytes"]["rows"] == 0, "{strategy}: {sent}");
        for key in ["local_rows", "filled_rows", "batches"] {
            assert_eq!(moved(&processes, key), moved(&threads, key), "{strategy}: {key}");
        }
        // Which epoch the hot sets' rows count in, and how many came late, is a matter of time.
        if !strategy.ends_with("frequency") {
            for key in ["remote_rows", "remote_bytes", "hit_rows", "ahead_rows"] {
                assert_eq!(moved(&processes, key), moved(&threads, key), "{strategy}: {key}");
            }
            assert_eq!(log_lines(&log("processes")), log_lines(&log("threads")), "{strategy}");
            let hits = |report: &Value| report["tiers"][0]["hits"].clone();
            assert_eq!(hits(&processes), hits(&threads), "{strategy}");
        }
        assert!(processes["memory_measured_bytes"].as_u64() >= Some(1) || n == 0, "{strategy}");
    }
    lode_line(&format!("train --graph {graph} --strategy hop --roots global"))
        .failed(2, &["--roots is not for --strategy hop"]);
    // More workers than fit: no process is started.
    lode_line(&format!("train --graph {graph} --workers 5 --processes"))
        .failed(2, &["needs as many partitions"]);
    // One worker is one process.
    let one =
        lode_line(&format!("train --graph {graph} --processes --epochs 1 --json")).succeeded();
    assert_eq!(one.json()["processes"], 1);
    lode_line(&format!("train --graph {graph} --peer 1,2"))
        .failed(1, &["the sockets that connect the processes"]);
}

#[test]
fn a_host_tier_is_each_process_own_and_they_divide_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let line = format!(
        "train --graph {graph} --workers 4 --epochs 3 --batch 64 --strategy ondemand --tier 128KiB --json"
    );
    let threads = lode_line(&line).succeeded().json();
    let processes = lode_line(&format!("{line} --processes")).succeeded().json();
    assert_eq!(computed(&processes), computed(&threads));
    let rows = |report: &Value| report["tiers"][0]["rows"].as_u64().unwrap();
    let (rows, shared) = (rows(&processes), rows(&threads));
    assert!(rows <= shared && rows > shared * 3 / 4, "{rows} rows where one tier has {shared}");
    let hits = |report: &Value| report["tiers"][0]["hits"].as_u64().unwrap();
    assert_eq!(hits(&processes), moved(&processes, "hit_rows").iter().sum::<u64>());
    assert!(hits(&processes) < hits(&threads), "none finds rows that another has pulled");
}

#[test]
fn cora_through_two_servers_is_learnt_alike_by_threads_and_processes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(graph) = cora(dir.path()) else { return };
    let serve = |parts: &str| {
        let more = format!("--parts {parts} --listen 127.0.0.1:0 --shards 1");
        Serving::start(Path::new(&graph), &more)
    };
    let servers = [serve("0,1"), serve("2,3")];
    let connect: String =
        servers.iter().map(|server| format!(" --connect {}", server.address)).collect();
    for (model, strategy) in [("sage", "rapid --hot 300"), ("gat", "massive"), ("gcn", "ondemand")]
    {
        let line = format!(
            "train --graph {graph}{connect} --workers 4 --model {model} --strategy {strategy} \
             --epochs 4 --batch 70 --fanout -1,-1 --normalize --patience 3 --json"
        );
        let threads = lode_line(&line).succeeded().json();
        let processes = lode_line(&format!("{line} --processes")).succeeded().json();
        assert_eq!(processes["rows_from"], "servers");
        assert_eq!(computed(&processes), computed(&threads), "{model}, {strategy}");
    }
    // Halos come from the servers, and the number of workers changes nothing.
    let line = format!(
        "train --graph {graph}{connect} --strategy sdt --epochs 4 --batch 70 --fanout 5,5 \
         --normalize --json"
    );
    let one = lode_line(&format!("{line} --workers 1")).succeeded().json();
    for flags in ["--workers 2", "--workers 4", "--workers 4 --processes"] {
        let found = lode_line(&format!("{line} {flags}")).succeeded().json();
        assert_eq!(computed(&found), computed(&one), "sdt {flags}");
        assert_eq!(moved(&found, "halo_rows")[0], moved(&one, "halo_rows")[0]);
        assert!(moved(&found, "remote_rows")[0] > 0 && moved(&found, "pulls")[0] > 0);
    }
    servers.into_iter().for_each(Serving::stop);
}

/// Starts `line`, and waits until its checkpoint has been replaced `n` times, or the run has this
/// many processes; returns it and its processes.
fn started(line: &str, checkpoint: Option<(&Path, u32)>) -> (Child, Vec<u32>) {
    let written = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let mut last = checkpoint.and_then(|(path, _)| written(path));
    let mut run = command(line.split_whitespace()).spawn().unwrap();
    let (start, mut n) = (Instant::now(), 0);
    loop {
        let processes = children_of(run.id());
        if let Some((path, _)) = checkpoint
            && written(path) != last
        {
            (last, n) = (written(path), n + 1);
        }
        if processes.len() == 3 && checkpoint.is_none_or(|(_, wanted)| n >= wanted) {
            return (run, processes);
        }
        assert!(run.try_wait().unwrap().is_none(), "the run has ended");
        assert!(start.elapsed() < DEADLINE, "the run does not come so far");
        sleep(Duration::from_micros(300));
    }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_worker_that_is_killed_ends_the_run_with_an_error_and_no_process_stays() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    // Epochs of a schedule take place on the disk.
    let line = |strategy: &str| {
        let epochs = if strategy.starts_with("rapid") { 300 } else { 100_000 };
        format!(
            "train --graph {graph} --workers 4 --processes --epochs {epochs} --batch 64 --fanout 5,5 \
             --strategy {strategy} --evaluate-every 0 --json"
        )
    };
    // Immediately, while it begins, and later, while it trains.
    let strategies = ["ondemand", "massive", "rapid", "rapid --policy frequency"];
    for (n, then_ms) in [0, 5, 15, 30, 60, 400, 20, 40].into_iter().enumerate() {
        let log = dir.path().join(format!("{n}.jsonl"));
        let line = format!("{} --log {}", line(strategies[n % 4]), log.display());
        let (run, processes) = started(&line, None);
        let (start, trains) = (Instant::now(), n >= 5);
        while trains && fs::metadata(&log).map_or(0, |log| log.len()) == 0 {
            assert!(start.elapsed() < DEADLINE, "no step");
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(then_ms));
        kill(processes[n % 3]);
        let found = finish(run, DEADLINE).failed(1, &["of the run is gone", "SIGKILL"]);
        let error = found.json()["error"].to_string();
        assert!(
            error.contains("is gone") && error.contains(&processes[n % 3].to_string()),
            "{error}"
        );
        wait_until_gone(&processes);
    }
    let (mut run, processes) = started(&line("ondemand"), None);
    sleep(Duration::from_millis(200));
    kill(run.id());
    wait_until_gone(&processes);
    run.wait().unwrap();
}

/// Returns which process of its run it is.
fn rank_of(pid: u32) -> u32 {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    let peer = line.split('\0').skip_while(|arg| *arg != "--peer").nth(1).unwrap();
    peer.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn a_worker_that_hangs_ends_the_run_with_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let line = format!(
        "train --graph {graph} --workers 4 --processes --epochs 100000 --batch 64 --fanout 5,5 \
         --strategy ondemand --evaluate-every 0 --peer-timeout 6 --json"
    );
    let send = |pid: u32, signal| {
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    };
    // Before it has joined the others, and while it trains.
    for (victim, then_ms) in [(0, 0), (2, 400)] {
        let (run, processes) = started(&line, None);
        sleep(Duration::from_millis(then_ms));
        let rank = rank_of(processes[victim]);
        send(processes[victim], Signal::STOP);
        let named = format!("process {rank} of the run is there");
        finish(run, DEADLINE).failed(1, &[&named, "has not answered for 6 s", "--peer-timeout"]);
        wait_until_gone(&processes);
    }
    // The first hangs: the others end, and so does it when it continues.
    let (run, processes) = started(&line, None);
    sleep(Duration::from_millis(400));
    send(run.id(), Signal::STOP);
    wait_until_gone(&processes);
    send(run.id(), Signal::CONT);
    finish(run, DEADLINE).failed(1, &["process 0 of the run is there"]);
    lode_line(&format!("{line} --peer-timeout 0")).failed(2, &["--peer-timeout"]);
}

#[test]
fn a_failure_of_one_process_ends_all_and_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let line = format!("train --graph {graph} --workers 4 --processes --batch 64 --json");
    // All meet with it.
    let found = lode_line(&format!("{line} --lr 1e30")).failed(1, &["try a lower learning rate"]);
    assert_eq!(found.stderr.lines().count(), 1, "{found:?}");
    // One alone meets with it, before it trains: the rows of its own partition are not there.
    let part = Path::new(&graph).join("part-002");
    fs::rename(&part, dir.path().join("away")).unwrap();
    let found = lode_line(&line);
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(found.json()["error"].as_str().unwrap().contains("part"), "{found:?}");
}

#[test]
fn a_run_killed_in_any_form_continues_in_any_other_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let settings = format!(
        "train --graph {graph} --workers 4 --epochs 8 --batch 32 --fanout 5,5 --hidden 16 --seed 9 --json"
    );
    let plain = lode_line(&format!("{settings} --strategy ondemand")).succeeded().json();
    for strategy in ["ondemand", "rapid", "massive"] {
        let of_run = dir.path().join(strategy);
        let line = format!(
            "{settings} --strategy {strategy} --checkpoint {} --checkpoint-every 2 --resume",
            of_run.display()
        );
        let (checkpoint, in_processes) = (of_run.join("checkpoint"), format!("{line} --processes"));
        // A worker, then the first process, then a worker again.
        for victim in [Some(1), None, Some(2)] {
            let (mut run, processes) = started(&in_processes, Some((&checkpoint, 2)));
            match victim {
                Some(worker) => {
                    kill(processes[worker]);
                    finish(run, DEADLINE).failed(1, &["of the run is gone"]);
                }
                None => {
                    run.kill().unwrap();
                    run.wait().unwrap();
                }
            }
            wait_until_gone(&processes);
        }
        let form = if strategy == "ondemand" { &line } else { &in_processes };
        let report = lode_line(form).succeeded().json();
        assert!(report["resumed_at"]["epoch"].is_u64(), "{strategy}");
        assert_eq!(computed(&report), computed(&plain), "{strategy}");
        assert_eq!(report["schedule_stored"], strategy == "rapid", "{strategy}");
        // A run that is over is over for all.
        let over = lode_line(&in_processes).succeeded().json();
        assert_eq!(computed(&over), computed(&plain), "{strategy}");
    }
}

#[cfg(feature = "mpi")]
mod mpi {
    use std::process::{Command, Stdio};

    use super::*;
    use testing::process::Finished;

    /// Returns `lode` with these arguments, as an MPI job of `n` processes.
    fn mpirun(n: u32, line: &str) -> Command {
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", &n.to_string()]);
        command.arg(env!("CARGO_BIN_EXE_lode")).args(line.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(n: u32, line: &str) -> Finished {
        finish(mpirun(n, line).spawn().unwrap(), DEADLINE)
    }

    #[test]
    fn a_job_learns_what_threads_learn_bit_for_bit() {
        let dir = tempfile::tempdir().unwrap();
        let mut graphs = vec![generated(dir.path())];
        graphs.extend(cora(dir.path()));
        for graph in graphs {
            for strategy in [
                "ondemand --tier 256KiB",
                "rapid",
                "massive",
                "hop",
                "hop --fetch rapid",
                "hop --migration paper",
                "hop --migration paper --no-pregather",
                "sdt",
                "full --layers 3",
                "full --layers 2 --model gat --staleness 2 --compress int8",
            ] {
                let batches =
                    if strategy.starts_with("full") { "" } else { "--batch 40 --fanout 5,5" };
                let line = format!(
                    "train --graph {graph} --epochs 3 {batches} --hidden 16 --normalize \
                     --strategy {strategy} --json"
                );
                let threads = lode_line(&format!("{line} --workers 4")).succeeded().json();
                // One worker for each process by default; else as many or more.
                for (n, workers) in [(4, ""), (2, "--workers 4")] {
                    let job = run(n, &format!("{line} {workers}")).succeeded().json();
                    assert_eq!(job["processes"], n, "{strategy}");
                    assert_eq!(computed(&job), computed(&threads), "{strategy}, {n} processes");
                }
            }
        }
        run(2, &format!("train --graph {} --processes", dir.path().join("graph").display()))
            .failed(2, &["leave it out"]);
    }

    /// The others are in the first exchange then, and learn of it there.
    #[test]
    fn a_first_process_without_a_place_for_its_folder_ends_the_job_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let graph = generated(dir.path());
        let missing = format!("TMPDIR={}", dir.path().join("missing").display());
        let line = format!(
            "train --graph {graph} --epochs 1 --strategy ondemand --peer-timeout 20 --json"
        );
        let lode = [env!("CARGO_BIN_EXE_lode")].into_iter().chain(line.split_whitespace());
        let mut job = Command::new("mpirun");
        job.args(["--allow-run-as-root", "--oversubscribe", "-n", "1", "env", &missing]);
        job.args(lode.clone()).args([":", "-n", "1"]).args(lode);
        job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(job.spawn().unwrap(), DEADLINE).failed(1, &["missing: cannot make a folder in it"]);
    }

    #[test]
    fn a_job_that_lost_a_process_continues_from_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let graph = generated(dir.path());
        for (n, (strategy, epochs)) in [
            ("rapid --batch 32 --fanout 5,5", 6),
            ("hop --batch 32 --fanout 5,5", 6),
            ("hop --migration paper --batch 32 --fanout 5,5", 6),
            ("full --layers 2", 60),
        ]
        .iter()
        .enumerate()
        {
            let settings = format!(
                "train --graph {graph} --epochs {epochs} --hidden 16 --strategy {strategy} --json"
            );
            let plain = lode_line(&format!("{settings} --workers 4")).succeeded().json();
            let of_run = dir.path().join(format!("run-{n}"));
            let line = format!(
                "{settings} --checkpoint {} --checkpoint-every 2 --resume",
                of_run.display()
            );
            let job = mpirun(4, &line).spawn().unwrap();
            let start = Instant::now();
            while !of_run.join("checkpoint").exists() {
                assert!(start.elapsed() < DEADLINE, "no checkpoint");
                sleep(Duration::from_millis(1));
            }
            let processes = children_of(job.id());
            kill(processes[2]);
            let ended = finish(job, DEADLINE);
            assert_ne!(ended.code, Some(0), "{ended:?}");
            wait_until_gone(&processes);
            let report = run(4, &line).succeeded().json();
            assert!(report["resumed_at"]["epoch"].is_u64(), "{strategy}");
            assert_eq!(computed(&report), computed(&plain), "{strategy}");
        }
    }
}
