//! Small traces in files.

use std::path::{Path, PathBuf};

use lodestore_graph::npy::NpyType;
use serde_json::Value;

use testing::process::{Finished, lode};
use testing::{Numbers, write_npy};

/// Returns batches in which few rows are often used, none of them twice in a batch.
pub(crate) fn batches() -> Vec<Vec<u32>> {
    let mut numbers = Numbers(3);
    let batch = |_| {
        let mut ids: Vec<u32> = Vec::new();
        while ids.len() < 40 {
            let most = 1 + numbers.below(500);
            let id = numbers.below(most);
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    };
    (0..120).map(batch).collect()
}

/// Writes ids and offsets; returns the arguments that name them.
pub(crate) fn write(dir: &Path, batches: &[Vec<u32>]) -> Vec<String> {
    let (ids, offsets) = arrays(batches);
    let (ids_path, offsets_path) = (dir.join("ids.npy"), dir.join("offsets.npy"));
    write_npy(&ids_path, NpyType::U32, &[ids.len() as u64], &ids);
    write_npy(&offsets_path, NpyType::I64, &[offsets.len() as u64], &offsets);
    ["--trace", &name(&ids_path), "--offsets", &name(&offsets_path)].map(str::to_owned).to_vec()
}

pub(crate) fn arrays(batches: &[Vec<u32>]) -> (Vec<u32>, Vec<i64>) {
    let mut offsets = vec![0i64];
    for batch in batches {
        offsets.push(offsets[offsets.len() - 1] + batch.len() as i64);
    }
    (batches.concat(), offsets)
}

pub(crate) fn name(path: &Path) -> String {
    path.display().to_string()
}

/// Runs `lode cache-bench --json`.
pub(crate) fn bench<S: AsRef<str>>(trace: &[S], more: &str) -> Finished {
    let mut args = vec!["cache-bench", "--json"];
    args.extend(trace.iter().map(AsRef::as_ref));
    args.extend(more.split_whitespace());
    lode(args)
}

/// Returns the results, without what differs from run to run.
pub(crate) fn counts(report: &Value) -> Vec<Value> {
    let mut results = report["results"].as_array().unwrap().clone();
    for result in &mut results {
        assert!(result["ns_per_access"].as_f64().unwrap() >= 0.0);
        result.as_object_mut().unwrap().remove("ns_per_access");
    }
    results
}

/// Returns the figure `key` of one policy at one capacity.
pub(crate) fn figure(report: &Value, policy: &str, rows: u64, key: &str) -> u64 {
    let results = report["results"].as_array().unwrap();
    let own = results.iter().find(|r| r["policy"] == policy && r["capacity_rows"] == rows);
    own.unwrap_or_else(|| panic!("no {policy} at {rows} rows"))[key].as_u64().unwrap()
}

/// Writes a file in a folder, and returns its path.
pub(crate) fn file(dir: &Path, file: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(file);
    std::fs::write(&path, bytes).unwrap();
    path
}
