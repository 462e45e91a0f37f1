//! Writes sound inputs of every target: `seeds FOLDER` fills `FOLDER/TARGET/`.

use std::path::PathBuf;
use std::{env, fs, io};

// The instrumented code calls it.
use libfuzzer_sys as _;
use lodestore_fuzz::{
    catalog, device_toml, edges, graph_toml, groups, npy, npz, records, requests, schedule,
    segment, stateful, topology,
};

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::args_os().nth(1).expect("usage: seeds FOLDER"));
    let targets = [
        ("catalog", catalog::seeds()),
        ("edges", edges::seeds()),
        ("device_toml", device_toml::seeds()),
        ("graph_toml", graph_toml::seeds()),
        ("groups", groups::seeds()),
        ("npy", npy::seeds()),
        ("npz", npz::seeds()),
        ("records", records::seeds()),
        ("requests", requests::seeds()),
        ("schedule", schedule::seeds()),
        ("segment", segment::seeds()),
        ("stateful", stateful::seeds()),
        ("topology", topology::seeds()),
    ];
    for (target, seeds) in targets {
        let dir = out.join(target);
        fs::create_dir_all(&dir)?;
        for (i, seed) in seeds.iter().enumerate() {
            fs::write(dir.join(format!("seed-{i}")), seed)?;
        }
    }
    Ok(())
}
