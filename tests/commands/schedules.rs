//! `lode schedule` as a process: killed and taken up again, and what it reports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use testing::graph::Source;
use testing::process::{command, lode};

const HEADER_BYTES: usize = 4096;
const FRAME_BYTES: usize = 24;

fn arguments(graph: &Path, out: &Path, epochs: u32) -> Vec<String> {
    let line = "schedule --json --seed 3 --fanout 5,3 --batch 8 --workers 2 --epochs";
    let mut args: Vec<String> = line.split(' ').map(ToOwned::to_owned).collect();
    args.extend([epochs.to_string(), "--out".to_owned(), out.display().to_string()]);
    args.push(graph.display().to_string());
    args
}

fn schedule(graph: &Path, out: &Path, epochs: u32) -> Value {
    lode(arguments(graph, out, epochs)).succeeded().json()
}

/// Returns the number of whole blocks in a file that may end in the middle of one.
fn whole_blocks(partial: &Path) -> u64 {
    let Ok(bytes) = fs::read(partial) else { return 0 };
    let (mut at, mut n_blocks) = (HEADER_BYTES, 0);
    while let Some(frame) = bytes.get(at..at + FRAME_BYTES) {
        at += FRAME_BYTES + u32::from_le_bytes(frame[16..20].try_into().unwrap()) as usize;
        n_blocks += u64::from(at <= bytes.len());
    }
    n_blocks
}

/// Returns once a file that `child` writes has more than `n_bytes`, or when the child has ended.
fn wait_for_bytes(path: &Path, n_bytes: u64, child: &mut Child) {
    let limit = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if fs::metadata(path).is_ok_and(|meta| meta.len() > n_bytes) {
            return;
        }
        assert!(Instant::now() < limit, "{} stays below {n_bytes} bytes", path.display());
        sleep(Duration::from_micros(500));
    }
}

#[test]
fn a_killed_schedule_continues_and_ends_as_if_it_had_not_been() {
    let long = std::env::var_os("LODE_LONG").is_some();
    let (n_kills, epochs) = if long { (60u64, 2000) } else { (6, 150) };
    let source = Source::random(1500, 9000);
    let graph = source.import("graph", 3, "hash");
    let [whole, out] = ["whole.sched", "run.sched"].map(|name| source.file(name));
    let expected = schedule(&graph, &whole, epochs);
    let whole_bytes = fs::metadata(&whole).unwrap().len();
    let partial = PathBuf::from(format!("{}.partial", out.display()));
    let (mut killed, mut killed_with) = (0, 0);
    for kill in 1..=n_kills {
        let before = whole_blocks(&partial);
        let mut child = command(arguments(&graph, &out, epochs)).spawn().unwrap();
        wait_for_bytes(&partial, whole_bytes * kill / (n_kills + 2), &mut child);
        child.kill().unwrap();
        child.wait().unwrap();
        if out.exists() {
            break;
        }
        let after = whole_blocks(&partial);
        assert!(after >= before, "{before} blocks before, {after} after");
        (killed, killed_with) = (killed + 1, after);
    }
    println!("killed {killed} times, last with {killed_with} of {} batches", expected["batches"]);
    assert!(killed > n_kills / 2 && killed_with > 0, "{killed} of {n_kills} kills were in time");
    if !out.exists() {
        // Nothing that was whole in the file is sampled again.
        let finished = schedule(&graph, &out, epochs);
        assert_eq!(finished["resumed_batches"], killed_with);
        assert_eq!(finished["digest"], expected["digest"]);
    }
    assert!(fs::read(&out).unwrap() == fs::read(&whole).unwrap());
    assert!(!partial.exists());
}

#[test]
fn an_interrupted_schedule_stays_until_it_is_complete_and_a_damaged_one_is_reported() {
    let source = Source::random(600, 3000);
    let graph = source.import("graph", 2, "hash");
    let out = source.file("run.sched");
    let expected = schedule(&graph, &out, 3);
    assert_eq!(expected["resumed_batches"], 0);
    let whole = fs::read(&out).unwrap();
    let partial = source.file("run.sched.partial");
    // As after a kill in the middle, and a bit that changed since.
    let mut left = whole[..whole.len() / 2].to_vec();
    left[HEADER_BYTES + 5000] ^= 4;
    fs::write(&partial, left).unwrap();
    let again = schedule(&graph, &out, 3);
    assert_eq!(again["digest"], expected["digest"]);
    assert!(again["resumed_batches"].as_u64().unwrap() < whole_blocks(&out) / 2);
    assert!(fs::read(&out).unwrap() == whole);
    // A finished one that was damaged.
    let mut damaged = whole;
    damaged[HEADER_BYTES + 5000] ^= 4;
    fs::write(&out, damaged).unwrap();
    let name = out.display().to_string();
    lode(["cache-bench", "--schedule", &name, "--capacities", "10"])
        .failed(1, &["run.sched", "block at byte", "damaged"]);
    // Out of reach of a second writer.
    let lock = fs::File::create(&partial).unwrap();
    lock.lock().unwrap();
    lode(arguments(&graph, &out, 3)).failed(1, &["run.sched.partial", "being written"]);
    sleep(Duration::from_millis(1));
}

#[test]
fn locality_and_size_are_reported() {
    let source = Source::random(600, 3000);
    let graph = source.import("graph", 2, "spring");
    let out = source.file("run.sched");
    let mut args = arguments(&graph, &out, 2);
    args.extend(["--locality", "7"].map(ToOwned::to_owned));
    let report = lode(&args).succeeded().json();
    let share = |key: &str| report["locality"][key].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&share("r_micro")) && (0.0..=1.0).contains(&share("r_sub")));
    assert!((1..=56).contains(&report["locality"]["roots"].as_u64().unwrap()));
    let bytes_per_id = report["bytes"].as_f64().unwrap() / report["ids"].as_f64().unwrap();
    assert!((report["bytes_per_id"].as_f64().unwrap() - bytes_per_id).abs() < 1e-9);
    assert_eq!(report["bytes"], fs::metadata(&out).unwrap().len());
    let text = lode(args.iter().filter(|arg| *arg != "--json")).succeeded().stdout;
    assert!(text.contains("bytes an id") && text.contains("of micrographs"), "{text}");
}

#[test]
fn a_file_that_is_no_schedule_is_not_written_over() {
    let source = Source::random(100, 300);
    let graph = source.import("graph", 2, "hash");
    let out = source.file("run.sched");
    let partial = source.file("run.sched.partial");
    fs::write(&partial, "notes of another user").unwrap();
    lode(arguments(&graph, &out, 1)).failed(1, &["run.sched.partial", "another file"]);
    assert_eq!(fs::read(&partial).unwrap(), b"notes of another user");
    // An image or an array that begins with zeros.
    for zeros in [8, HEADER_BYTES] {
        let foreign = [vec![0; zeros], b"pixels".to_vec()].concat();
        fs::write(&partial, &foreign).unwrap();
        lode(arguments(&graph, &out, 1)).failed(1, &["run.sched.partial", "another file"]);
        assert!(fs::read(&partial).unwrap() == foreign);
    }
    // Another schedule behind a link.
    fs::remove_file(&partial).unwrap();
    let kept = source.file("kept.sched");
    schedule(&graph, &kept, 2);
    let whole = fs::read(&kept).unwrap();
    let link: [fn(&Path, &Path) -> std::io::Result<()>; 2] = [
        |kept, name| std::os::unix::fs::symlink(kept, name),
        |kept, name| fs::hard_link(kept, name),
    ];
    for link in link {
        link(&kept, &partial).unwrap();
        lode(arguments(&graph, &out, 1))
            .failed(1, &["run.sched.partial", "a link to another file"]);
        assert!(fs::read(&kept).unwrap() == whole && !out.exists());
        fs::remove_file(&partial).unwrap();
    }
    std::os::unix::fs::symlink(source.file("none"), &partial).unwrap();
    lode(arguments(&graph, &out, 1)).failed(1, &["run.sched.partial", "a link to another file"]);
    assert!(!source.file("none").exists());
    fs::remove_file(&partial).unwrap();
    // A crash may leave any part of a header, which is replaced.
    for left in [&b""[..], b"LODE", &[0; 100], &[0; HEADER_BYTES]] {
        fs::write(&partial, left).unwrap();
        schedule(&graph, &out, 1);
        assert!(!partial.exists());
    }
}
