//! A device's tier over the host's, the cache below a cache, and hit rates over time.

use std::fs;

use serde_json::Value;

use crate::cache_bench::traces::{batches, bench, counts, name, write};
use testing::process::lode_line;

fn number(result: &Value, key: &str) -> u64 {
    result[key].as_u64().unwrap_or_else(|| panic!("no {key} in {result}"))
}

#[test]
fn two_tiers_are_compared_with_the_optimum_of_both() {
    let dir = tempfile::tempdir().unwrap();
    let trace = write(dir.path(), &batches());
    for inclusion in ["inclusive", "exclusive"] {
        let more = format!(
            "--capacities 5%+20%,20%+5%,25% --inclusion {inclusion} --policies lru,sieve,frequency"
        );
        let report = bench(&trace, &more).succeeded().json();
        let results = report["results"].as_array().unwrap();
        assert_eq!(results.len(), 3 * 5);
        for result in results.iter().filter(|result| !result["device_rows"].is_null()) {
            let (above, below) = (number(result, "device_hits"), number(result, "host_hits"));
            assert_eq!(number(result, "hits"), above + below, "{result}");
            let rows = number(result, "device_rows") + number(result, "host_rows");
            assert_eq!(number(result, "capacity_rows"), rows);
            let (hits, optimum) = (&result["hit_rate"], &result["optimum_hit_rate"]);
            assert!(hits.as_f64().unwrap() <= optimum.as_f64().unwrap(), "{result}");
            // A host's tier that may have what the device has, and is smaller, has nothing else.
            let is_shadow = inclusion == "inclusive"
                && number(result, "host_rows") < number(result, "device_rows");
            assert!(above > 0 && (below > 0 || is_shadow), "{result}");
            // Rows that are planned for the device never leave it.
            let moves_down = inclusion == "exclusive" && result["policy"] != "frequency";
            assert_eq!(moves_down, number(result, "demotions") > 0, "{result}");
        }
        let lru: Vec<u64> = results
            .iter()
            .filter(|result| result["policy"] == "lru")
            .map(|result| number(result, "hits"))
            .collect();
        let [one, two, three] = lru[..] else { panic!("{lru:?}") };
        // Rows that move down when they must leave make one list of two.
        let is_as_one = one.abs_diff(three) < three / 20 && two.abs_diff(three) < three / 20;
        assert!(inclusion == "inclusive" || is_as_one, "{lru:?}");
    }
}

#[test]
fn misses_are_a_trace_for_the_cache_below() {
    let dir = tempfile::tempdir().unwrap();
    let trace = write(dir.path(), &batches());
    let prefix = name(&dir.path().join("below"));
    let more = format!("--policies lru --capacities 10% --misses {prefix}");
    let above = bench(&trace, &more).succeeded().json();
    let lru = &above["results"][0];
    let optimum = format!("--policies oracle --capacities 1%+9% --misses {prefix}-oracle");
    bench(&trace, &optimum).succeeded();
    let (ids, offsets) = (format!("{prefix}.ids.npy"), format!("{prefix}.offsets.npy"));
    let below = bench(&["--trace", &ids, "--offsets", &offsets], "--capacities 100%");
    let below = below.succeeded().json();
    assert_eq!(below["trace"]["accesses"], lru["misses"]);
    assert_eq!(below["trace"]["batches"], above["trace"]["batches"]);
    assert_eq!(below["trace"]["distinct_rows"], above["trace"]["distinct_rows"]);
    for more in [
        "--policies lru,fifo --capacities 10%",
        "--policies all --capacities 10%",
        "--policies lru --capacities 5%,10%",
        "--policies decay --gamma 0.9,0.99 --capacities 10%",
    ] {
        let line = format!("cache-bench --trace t.npy --misses m {more}");
        lode_line(&line).failed(2, &["one policy at one capacity"]);
    }
}

#[test]
fn hit_rates_over_time_are_points_and_a_chart() {
    let dir = tempfile::tempdir().unwrap();
    let trace = write(dir.path(), &batches());
    let svg = dir.path().join("time.svg");
    let plain = "--policies lru,decay --capacities 10%+20% --delta 8";
    let more = format!("{plain} --over-time {}", name(&svg));
    let report = bench(&trace, &more).succeeded().json();
    assert_eq!(report["batches_per_point"], 1);
    for result in report["results"].as_array().unwrap() {
        let points = result["over_time"].as_array().unwrap();
        assert_eq!(points.len(), batches().len());
        // Batches are of one length.
        let mean = points.iter().map(|point| point.as_f64().unwrap()).sum::<f64>() / 120.0;
        assert!((mean - result["hit_rate"].as_f64().unwrap()).abs() < 1e-9, "{result}");
    }
    let text = fs::read_to_string(&svg).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let words: String = document.descendants().filter_map(|node| node.text()).collect();
    assert!(words.contains("lru") && words.contains("decay 0.9995/8"));

    // A batch of nothing has no rate.
    let empty = [batches()[..3].to_vec(), vec![Vec::new()], batches()[3..5].to_vec()].concat();
    let folder = dir.path().join("empty");
    fs::create_dir(&folder).unwrap();
    let empty = bench(&write(&folder, &empty), &more).succeeded().json();
    let points = empty["results"][0]["over_time"].as_array().unwrap();
    let is_null: Vec<bool> = points.iter().map(Value::is_null).collect();
    assert_eq!(is_null, [false, false, false, true, false, false]);

    // Looking does not change what is seen.
    let mut looked = counts(&report);
    looked.iter_mut().for_each(|result| {
        result.as_object_mut().unwrap().remove("over_time");
    });
    assert_eq!(looked, counts(&bench(&trace, plain).succeeded().json()));
}

#[test]
fn impossible_settings_of_two_tiers_are_refused() {
    lode_line("cache-bench --trace t.npy --capacities 1%+1% --ahead").failed(2, &["--ahead"]);
    lode_line("cache-bench --trace t.npy --capacities 1%+").failed(2, &["expected a share"]);
    lode_line("cache-bench --trace t.npy --inclusion some").failed(2, &["inclusive, exclusive"]);
    lode_line("cache-bench --trace t.npy --inclusion exclusive").failed(2, &["for two tiers"]);
    lode_line("cache-bench --trace t.npy --capacities 1%+1% --devices 2 --inclusion most")
        .failed(2, &["inclusive, exclusive"]);
    lode_line("cache-bench --trace t.npy --devices 2").failed(2, &["--devices is for two tiers"]);
    lode_line("cache-bench --trace t.npy --devices 0").failed(2, &["--devices"]);
    lode_line("cache-bench --trace t.npy --over-time c.svg").failed(2, &["for one capacity"]);
    let ahead = "cache-bench --trace t.npy --policies lru --capacities 5% --ahead --misses m";
    lode_line(ahead).failed(2, &["--misses", "--ahead"]);
    let records = "cache-bench --oracle-general t --graph g";
    lode_line(records).failed(2, &["--graph is for ids of its nodes"]);
    let line = "cache-bench --trace t.npy --capacities 5% --over-time no/such/c.svg";
    lode_line(line).failed(1, &["c.svg"]);
}
