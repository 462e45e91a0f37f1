//! Training that is asked to end by a signal, and what stays of it; places that it must not write
//! to.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
    thread::sleep,
    time::{Duration, Instant},
};

use lodestore_graph::npy::NpyType;
use rustix::process::Signal;
use serde_json::Value;
use testing::graph::generated;
use testing::process::{
    Finished, Serving, children_of, command, finish, lode_line, signal, wait_until_gone,
};
use testing::{names_in, write_npy};

/// Longest time until a run has come so far, or has ended.
const DEADLINE: Duration = Duration::from_secs(60);

/// A graph, and a folder in the place of the system's for temporary files.
struct Place {
    dir: tempfile::TempDir,
    graph: String,
    tmp: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (graph, tmp) = (generated(dir.path()), dir.path().join("tmp"));
        fs::create_dir(&tmp).unwrap();
        Self { dir, graph, tmp }
    }

    fn start(&self, line: &str) -> Child {
        command(line.split_whitespace()).env("TMPDIR", &self.tmp).spawn().unwrap()
    }

    /// Starts `line`, which logs to `log`, and waits until it has made `n_steps` steps. Then sends
    /// `asks` twice, as GNU `timeout` does: to its child, and to the child's group.
    fn ended(&self, line: &str, log: &Path, n_steps: usize, asks: Signal) -> Finished {
        let mut run = self.start(&format!("{line} --log {}", log.display()));
        let (start, before) = (Instant::now(), n_lines(log));
        while n_lines(log) < before + n_steps {
            assert!(run.try_wait().unwrap().is_none(), "the run has ended");
            assert!(start.elapsed() < DEADLINE, "the run does not come so far");
            sleep(Duration::from_micros(300));
        }
        let processes = children_of(run.id());
        signal(&run, asks);
        // Two that are pending together are one.
        sleep(Duration::from_millis(2));
        signal(&run, asks);
        let found = finish(run, DEADLINE);
        wait_until_gone(&processes);
        assert_eq!(names_in(&self.tmp), Vec::<String>::new(), "nothing is left behind");
        found
    }
}

fn n_lines(log: &Path) -> usize {
    fs::read(log).map_or(0, |bytes| bytes.iter().filter(|&&byte| byte == b'\n').count())
}

/// Returns what was computed, every bit of it.
fn computed(report: &Value) -> Vec<String> {
    let keys = ["step_losses", "parameters_digest", "best_parameters_digest", "best_epoch"];
    assert!(keys.iter().all(|key| !report[key].is_null()));
    keys.iter().map(|key| report[key].to_string()).collect()
}

#[test]
fn a_run_that_is_asked_to_end_does_so_at_its_step_and_continues_from_there() {
    let place = Place::new();
    let settings = format!(
        "train --graph {} --workers 4 --epochs 60 --batch 32 --fanout 5,5 --hidden 16 --seed 9 \
         --evaluate-every 0 --json",
        place.graph
    );
    let plain = lode_line(&format!("{settings} --strategy ondemand")).succeeded().json();
    let batches = |epoch: &Value| epoch["batches"].as_u64().unwrap();
    let n_batches: u64 = plain["epochs"].as_array().unwrap().iter().map(batches).sum();
    for (n, (form, strategy, asks, code)) in [
        ("", "rapid", Signal::INT, 130),
        ("", "massive", Signal::TERM, 143),
        ("--processes", "ondemand", Signal::INT, 130),
        ("--processes", "rapid --policy frequency", Signal::TERM, 143),
    ]
    .into_iter()
    .enumerate()
    {
        let (of_run, log) =
            (place.dir.path().join(n.to_string()), place.dir.path().join(format!("{n}.jsonl")));
        // One checkpoint an epoch, and one where it ends.
        let line = format!(
            "{settings} {form} --strategy {strategy} --checkpoint {} --resume",
            of_run.display()
        );
        let mut n_before = 0;
        for n_steps in [4, 24] {
            let found = place.ended(&line, &log, n_steps, asks);
            assert_eq!(found.code, Some(code), "{strategy} {form}: {found:?}");
            assert!(found.stderr.contains("ended by SIG"), "{found:?}");
            let report = found.json();
            assert_eq!(report["interrupted"], true, "{strategy} {form}");
            assert!(report["error"].as_str().unwrap().contains("ended by SIG"));
            let n_losses = report["step_losses"].as_array().unwrap().len();
            assert!(n_losses > n_before, "{n_losses} after {n_before}");
            n_before = n_losses;
        }
        let report = lode_line(&format!("{line} --log {}", log.display())).succeeded().json();
        let n_steps = report["epochs"][0]["steps"].as_u64().unwrap();
        let at = ["epoch", "step"].map(|key| report["resumed_at"][key].as_u64().unwrap());
        assert_eq!(at[0] * n_steps + at[1], n_before as u64, "from where it ended");
        assert_eq!(computed(&report), computed(&plain), "{strategy} {form}");
        // No step was made twice, and none is missing.
        assert_eq!(n_lines(&log) as u64, n_batches, "{strategy} {form}");
    }
}

#[test]
fn a_later_second_signal_ends_immediately_what_does_not_come_to_its_end() {
    let place = Place::new();
    let server = Serving::start(Path::new(&place.graph), "--listen 127.0.0.1:0");
    let log = place.dir.path().join("log");
    let mut run = place.start(&format!(
        "train --graph {} --connect {} --workers 2 --epochs 100000 --batch 32 --strategy ondemand --log {}",
        place.graph,
        server.address,
        log.display()
    ));
    let start = Instant::now();
    while n_lines(&log) < 4 {
        assert!(start.elapsed() < DEADLINE, "the run does not come so far");
        sleep(Duration::from_millis(1));
    }
    // Its step waits for rows.
    signal(&server.child, Signal::STOP);
    sleep(Duration::from_millis(100));
    signal(&run, Signal::TERM);
    sleep(Duration::from_millis(1100));
    assert!(run.try_wait().unwrap().is_none(), "it has not waited for its step");
    signal(&run, Signal::TERM);
    let found = finish(run, Duration::from_secs(2));
    assert_eq!((found.code, &found.stdout[..]), (Some(143), ""), "{found:?}");
    assert_eq!(names_in(&place.tmp), Vec::<String>::new());
}

#[test]
fn a_signal_before_the_first_step_ends_it_immediately_and_later_a_text_says_where() {
    let place = Place::new();
    // Its schedule alone takes longer than the test waits.
    let line = format!("train --graph {} --epochs 600 --batch 8 --fanout 20,20", place.graph);
    let run = place.start(&line);
    let start = Instant::now();
    let has_begun = || {
        let folders = fs::read_dir(&place.tmp).unwrap().flatten();
        folders.into_iter().any(|folder| folder.path().join("schedule.partial").exists())
    };
    while !has_begun() {
        assert!(start.elapsed() < DEADLINE, "no schedule");
        sleep(Duration::from_millis(1));
    }
    signal(&run, Signal::INT);
    let found = finish(run, DEADLINE);
    assert_eq!(found.code, Some(130), "{found:?}");
    assert_eq!(names_in(&place.tmp), Vec::<String>::new());
    // A text says where it ended, and the model is there.
    let (log, model) = (place.dir.path().join("log"), place.dir.path().join("model"));
    let line = format!(
        "train --graph {} --epochs 100000 --batch 64 --strategy ondemand --save-model {}",
        place.graph,
        model.display()
    );
    let found = place.ended(&line, &log, 3, Signal::TERM);
    assert_eq!(found.code, Some(143), "{found:?}");
    assert!(found.stdout.contains("interrupted") && found.stdout.contains("steps of the run"));
    lode_line(&format!("evaluate {} --model {}", place.graph, model.display())).succeeded();
}

#[test]
fn a_schedule_takes_no_other_file_s_place() {
    let place = Place::new();
    let file = place.dir.path().join("labels.npy");
    let line = format!(
        "train --graph {} --epochs 2 --batch 200 --fanout 3 --json --schedule {}",
        place.graph,
        file.display()
    );
    fs::write(&file, "the work of years").unwrap();
    lode_line(&line).failed(1, &["the name is taken", &file.display().to_string()]);
    assert_eq!(fs::read(&file).unwrap(), b"the work of years");
    fs::remove_file(&file).unwrap();
    assert_eq!(lode_line(&line).succeeded().json()["schedule_stored"], false);
    assert_eq!(lode_line(&line).succeeded().json()["schedule_stored"], true);
    let before = fs::read(&file).unwrap();
    for (flags, expected) in [
        ("--seed 3", "its seed is 0, expected 3"),
        ("--strategy hop --fetch rapid", "its deal of roots is owned, expected home"),
        ("--roots global", "its deal of roots is owned, expected turns"),
        ("--workers 2", "its number of workers is 1, expected 2"),
    ] {
        let other = format!("{} {flags}", line.replace("--json ", ""));
        lode_line(&other).failed(1, &["the schedule of another run", expected]);
        assert_eq!(fs::read(&file).unwrap(), before, "{flags}");
    }
    // Beside checkpoints it is replaced: no flag has named that place.
    let kept = place.dir.path().join("kept").display().to_string();
    let line = format!(
        "train --graph {} --batch 200 --fanout 3 --json --checkpoint {kept} --resume --epochs",
        place.graph
    );
    for epochs in [1, 2] {
        assert_eq!(
            lode_line(&format!("{line} {epochs}")).succeeded().json()["schedule_stored"],
            false
        );
    }
}

#[test]
fn memory_that_no_batch_fits_into_is_refused_with_the_least_that_works() {
    let place = Place::new();
    let line = format!(
        "train --graph {} --workers 2 --epochs 2 --batch 200 --fanout 5,5 --json",
        place.graph
    );
    let found = lode_line(&format!("{line} --hot 0 --memory 4KiB"));
    let found = found.failed(1, &["less than the largest batch takes", "--memory"]);
    let least: u64 =
        found.stderr.split("allow ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let expected = lode_line(&format!("{line} --strategy ondemand")).succeeded().json();
    for (memory, window) in [(least, 0), (3 * least, 1), (4 * least - 1, 1), (4 * least, 2)] {
        let found = lode_line(&format!("{line} --hot 0 --memory {memory}")).succeeded().json();
        let of = |key: &str| found[key].as_u64().unwrap();
        assert_eq!((of("window"), of("window_asked")), (window, 4), "{memory}");
        assert!(of("memory_measured_bytes") <= of("memory_bound_bytes"), "{memory}");
        assert!(of("memory_bound_bytes") <= memory, "{memory}");
        // A batch is as long as one of them at least.
        assert!(of("memory_measured_bytes") >= least, "{memory}");
        assert_eq!(computed(&found), computed(&expected), "{memory}");
    }
    lode_line(&format!("{line} --memory {}", least - 1)).failed(1, &["less than the largest"]);
    let text = lode_line(&format!("{} --memory {least}", line.replace("--json", "")));
    let text = text.succeeded().stdout;
    assert!(text.contains("0 of 4 batches; the memory has no room for batches ahead"), "{text}");
    let massive = lode_line(&format!("{line} --strategy massive")).succeeded().json();
    assert!(massive["memory_bound_bytes"].is_null());
    // Every node has 24 bytes of scores.
    assert!(massive["memory_measured_bytes"].as_u64() > Some(3000 * 24));
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    for strategy in ["ondemand", "massive"] {
        for flag in ["--memory 1MB", "--hot 5", "--window 2", "--together 2", "--schedule s"] {
            let name = flag.split(' ').next().unwrap();
            lode_line(&format!("train --graph g --strategy {strategy} {flag}"))
                .failed(2, &[name, "is for --strategy rapid"]);
        }
    }
    for flag in
        ["--average-every 2", "--optimizer-state reset", "--halo-hops 1", "--full-partition"]
    {
        let name = flag.split(' ').next().unwrap();
        lode_line(&format!("train --graph g --strategy rapid {flag}"))
            .failed(2, &[name, "is for --strategy sdt"]);
    }
    for (flags, expected) in [
        ("--roots owned", "--roots is not for --strategy sdt"),
        ("--tier 1MB", "not for --strategy sdt"),
        ("--reserve 1MB", "--reserve is a part of --memory"),
        ("--optimizer-state none", "there are: local, averaged, reset"),
    ] {
        lode_line(&format!("train --graph g --strategy sdt {flags}")).failed(2, &[expected]);
    }
    for flag in ["--migration paper", "--no-pregather", "--merge min", "--fetch rapid"] {
        let name = flag.split(' ').next().unwrap();
        lode_line(&format!("train --graph g --strategy rapid {flag}"))
            .failed(2, &[name, "is for --strategy hop"]);
    }
    for (flags, expected) in [
        ("--merge min", "--merge is for --migration paper"),
        ("--no-pregather", "--no-pregather is for --migration paper"),
        ("--migration paper --fetch rapid", "--fetch is for --migration none"),
        ("--hot 5", "or hop with --fetch rapid"),
        ("--migration all", "no migration `all`; there are: none, paper"),
        ("--fetch massive", "--fetch must be ondemand or rapid under hop"),
    ] {
        lode_line(&format!("train --graph g --strategy hop {flags}")).failed(2, &[expected]);
    }
}

#[test]
fn workers_without_training_nodes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (raw, graph) = (at("raw"), at("g"));
    lode_line(&format!("generate --nodes 400 --degree 6 --dim 4 --out {raw}")).succeeded();
    let mut split = [2u8; 400];
    // The first and the third of four ranges have training nodes.
    split[..5].fill(0);
    split[210..220].fill(0);
    write_npy(Path::new(&at("few.npy")), NpyType::U8, &[400], &split);
    lode_line(&format!(
        "import --edges {raw}/edges.npy --undirected --tensor feat={raw}/features.npy \
         --tensor label={raw}/labels.npy --tensor split={} --parts 4 --partitioner range \
         --order input --out {graph}",
        at("few.npy")
    ))
    .succeeded();
    let train = |flags: &str| {
        let line =
            format!("train --graph {graph} --epochs 1 --batch 2 --no-test --evaluate-every 0");
        lode_line(&format!("{line} --workers {flags}")).succeeded().stderr
    };
    for flags in ["4 --strategy hop", "4 --strategy hop --migration paper", "4 --strategy rapid"] {
        for form in ["", "--processes"] {
            let told = train(&format!("{flags} {form}"));
            assert_eq!(told.matches("no training node").count(), 1, "{flags} {form}: {told}");
            assert!(told.contains("of worker 1, 3") && told.contains("global roots"), "{told}");
        }
    }
    for flags in ["4 --strategy ondemand --roots global", "1 --strategy hop"] {
        assert!(!train(flags).contains("no training node"), "{flags}");
    }
}

#[test]
fn one_of_many_tasks_of_slurm_does_not_train_by_itself() {
    let mut run = command("train --graph g".split_whitespace());
    run.env("SLURM_STEP_NUM_TASKS", "4").env("SLURM_PROCID", "0");
    // MPI has no peer to meet, or is not in this program.
    let found = finish(run.spawn().unwrap(), DEADLINE);
    assert_ne!(found.code, Some(0), "{found:?}");
    assert!(found.stderr.contains("one of 4 processes"), "{found:?}");
    assert!(found.stderr.contains("env -u ") && found.stderr.contains("-u SLURM_STEP_NUM_TASKS"));
}

#[test]
fn a_run_reports_where_rows_came_from_and_where_time_went() {
    let place = Place::new();
    let text = lode_line(&format!(
        "train --graph {} --workers 2 --epochs 2 --batch 200 --policy frequency --hot 50",
        place.graph
    ));
    let text = text.succeeded().stdout;
    for part in
        [" local, ", " kept, ", " remote; ", "compute ", "sample ", "lookup ", "pull ", "copy "]
    {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}
