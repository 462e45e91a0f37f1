//! Too few open files: a command says so, or does its work.

use std::process::{Command, Stdio};
use std::time::Duration;

use lodestore_graph::npy::NpyType;

use testing::graph::Source;
use testing::process::{Finished, finish, lode_line};
use testing::write_npy;

/// Runs `lode` with at most `n_files` open files, and none but the standard three at its start.
fn limited(n_files: u32, line: &str) -> Finished {
    let mut command = Command::new("sh");
    let inherited = "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done";
    let script = format!("{inherited}; ulimit -n {n_files}; exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_lode")]).args(line.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap(), Duration::from_secs(100))
}

#[test]
fn a_command_without_descriptors_says_so_and_harms_nothing() {
    let source = Source::random(300, 900);
    let graph = source.import("graph", 2, "range");
    let (ids, rows) = (source.file("ids.npy"), source.file("rows.npy"));
    write_npy(&ids, NpyType::U32, &[2], &[4u32, 299]);
    write_npy(&rows, NpyType::F32, &[2, 13], &[[1f32; 13]; 2]);
    let (graph, ids, rows) = (graph.display(), ids.display(), rows.display());
    let out = source.file("out.npy");
    let lines = [
        format!("put --graph {graph} --tensor feat --ids {ids} --rows {rows} --commit"),
        format!("compact {graph}"),
        format!("verify {graph}"),
        format!("repair {graph}"),
        format!("repair {graph} --dry-run"),
        format!("gather --graph {graph} --tensor wide --ids {ids} --out {}", out.display()),
    ];
    for line in &lines {
        let mut n_refused = 0;
        let enough = [4, 6, 10, 14, 20, 28, 40, 80, 400].into_iter().find(|&n_files| {
            let finished = limited(n_files, line);
            if finished.code == Some(0) {
                return true;
            }
            n_refused += 1;
            let told = finished.failed(1, &["open", "ulimit -n"]);
            assert!(!told.stderr.contains("damaged"), "{n_files}: {}", told.stderr);
            lode_line(&format!("verify {graph}")).succeeded();
            false
        });
        assert!(enough.is_some() && n_refused > 0, "`{line}`: {enough:?}");
    }
}
