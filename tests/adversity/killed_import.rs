//! An import that is killed: the graph is whole or not there, and the next import succeeds.

use std::thread::sleep;
use std::time::Instant;

use testing::graph::Source;
use testing::names_in;
use testing::process::{command, lode};

#[test]
fn a_killed_import_leaves_a_whole_graph_or_none_and_the_next_one_succeeds() {
    let n_kills = if std::env::var_os("LODE_LONG").is_some() { 60 } else { 8 };
    let source = Source::random(1500, 6000);
    let out = source.file("graph");
    let before = names_in(source.dir.path());
    let start = Instant::now();
    source.try_import(&out, &["feat", "wide"], &["--parts", "3"]).succeeded();
    let whole = start.elapsed();
    std::fs::remove_dir_all(&out).unwrap();
    let mut n_whole = 0;
    for kill in 0..n_kills {
        // From the start to a little after the end.
        let after = whole.mul_f64(1.15 * f64::from(kill) / f64::from(n_kills - 1));
        let mut args = vec!["import", "--undirected", "--parts", "3", "--edges"];
        let [edges, feat, wide] = ["edges.npy", "feat.npy", "wide.npy"]
            .map(|name| source.file(name).to_str().unwrap().to_owned());
        let (feat, wide) = (format!("feat={feat}"), format!("wide={wide}"));
        args.extend([&edges, "--tensor", &feat, "--tensor", &wide]);
        args.extend(["--out", out.to_str().unwrap()]);
        let mut child = command(args).spawn().unwrap();
        sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
        if out.exists() {
            n_whole += 1;
        } else {
            source.try_import(&out, &["feat", "wide"], &["--parts", "3"]).succeeded();
        }
        lode(["verify".as_ref(), out.as_os_str()]).succeeded();
        std::fs::remove_dir_all(&out).unwrap();
    }
    println!("{n_kills} kills, {n_whole} after the end of the import; it takes {whole:.1?}");
    // Under a name that shows its owner, and that no import minds.
    let left = names_in(source.dir.path()).into_iter().filter(|name| !before.contains(name));
    for name in left {
        assert!(name.starts_with("graph.importing-"), "{name}");
    }
}
