//! Counts of a comparison, and their presentation.

use std::fs;

use serde_json::Value;

use crate::cache_bench::traces::{batches, bench, counts, figure, name, write};
use testing::process::lode_line;

/// Returns the hits of a list of rows, the first to go first, that a batch does not take from
/// itself.
fn naive_hits(batches: &[Vec<u32>], n_rows: usize, moves_hits: bool) -> u64 {
    let (mut rows, mut n_hits) = (Vec::<u32>::new(), 0);
    for batch in batches {
        let (hits, misses): (Vec<u32>, Vec<u32>) = batch.iter().partition(|id| rows.contains(id));
        n_hits += hits.len() as u64;
        if moves_hits {
            rows.retain(|id| !hits.contains(id));
            rows.extend(hits);
        }
        for id in misses {
            if rows.len() == n_rows {
                let Some(at) = rows.iter().position(|row| !batch.contains(row)) else { continue };
                rows.remove(at);
            }
            rows.push(id);
        }
    }
    n_hits
}

#[test]
fn counts_are_those_of_a_naive_simulation_and_of_earlier_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (batches, rows) = (batches(), [0, 1, 39, 40, 100, 250, 1000]);
    let trace = write(dir.path(), &batches);
    // A batch has 40 rows: the first capacities are smaller than one.
    let report = bench(&trace, "--capacities 0,1,39,40,100,250,1000").succeeded().json();
    for n_rows in rows {
        for (policy, moves_hits) in [("lru", true), ("fifo", false)] {
            let expected = naive_hits(&batches, n_rows as usize, moves_hits);
            assert_eq!(figure(&report, policy, n_rows, "hits"), expected, "{policy} {n_rows}");
        }
        assert_eq!(figure(&report, "none", n_rows, "hits"), 0);
        let misses = figure(&report, "unbounded", n_rows, "misses");
        assert_eq!(Some(misses), report["trace"]["distinct_rows"].as_u64());
    }
    let lru = |rows| figure(&report, "lru", rows, "hits");
    assert_eq!([lru(40), lru(100), lru(250)], PINNED_LRU);
    let oracle = |rows| figure(&report, "oracle", rows, "hits");
    assert_eq!([oracle(40), oracle(100), oracle(250)], PINNED_ORACLE);
}

/// Results of capacities 40, 100 and 250; worked out by another program.
const PINNED_LRU: [u64; 3] = [745, 1678, 3454];
const PINNED_ORACLE: [u64; 3] = [2055, 3091, 4096];

/// Misses of the Python package `libcachesim` 0.3.5 on the same accesses, one by one, with objects
/// of one byte. It is another project's, and so shows a rule that all of ours misread.
#[test]
fn misses_are_those_of_libcachesim() {
    const MISSES: [(u64, [u64; 4]); 3] = [
        (20, [16_227, 15_572, 15_280, 13_090]),
        (100, [11_591, 10_584, 10_291, 8_780]),
        (250, [7_958, 6_962, 6_776, 5_935]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let trace = name(&dir.path().join("z"));
    let zipf = "--kind zipf --ids 1000 --batches 20000 --batch 1 --alpha 0.9 --seed 1";
    lode_line(&format!("generate-trace {zipf} --out {trace}")).succeeded();
    let trace = format!("--trace {trace}.ids.npy --offsets {trace}.offsets.npy");
    let args: Vec<&str> = trace.split(' ').collect();
    let report = bench(&args, "--policies fifo,lru,clock,sieve --capacities 20,100,250");
    let report = report.succeeded().json();
    for (rows, misses) in MISSES {
        for (policy, misses) in ["fifo", "lru", "clock", "sieve"].into_iter().zip(misses) {
            assert_eq!(figure(&report, policy, rows, "misses"), misses, "{policy}, {rows} rows");
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let trace = write(dir.path(), &batches());
    let run = |threads| {
        let more = format!("--ahead --gamma 0.9,0.99 --delta 8,32 --threads {threads}");
        counts(&bench(&trace, &more).succeeded().json())
    };
    assert_eq!(run(1), run(2));
}

/// Asserts that nothing moves fewer rows than the optimum, and that without rows ahead nothing hits
/// more often.
fn assert_optimum_is_upper(report: &Value) {
    for result in report["results"].as_array().unwrap() {
        let rows = result["capacity_rows"].as_u64().unwrap();
        if result["policy"] == "unbounded" {
            assert!(result["gap"].is_null(), "it has slots that the optimum has not");
            continue;
        }
        let moved = result["moved_rows"].as_u64().unwrap();
        assert!(moved >= figure(report, "oracle", rows, "moved_rows"), "{result}");
        assert!(result["gap"].as_f64().unwrap() >= 0.0, "{result}");
        if report["ahead"] == false {
            assert!(result["hits"].as_u64() <= Some(figure(report, "oracle", rows, "hits")));
            assert_eq!(result["misses"], result["moved_rows"]);
        }
    }
}

#[test]
fn the_optimum_is_the_upper_curve_on_every_trace() {
    let dir = tempfile::tempdir().unwrap();
    let patterns = [
        "zipf --ids 2000 --batches 200 --batch 64 --alpha 0.8",
        "loop --ids 500 --batches 60 --batch 37",
        "scan --ids 3000 --batch 100",
        "neighbours --nodes 3000 --degree 8 --batch 32 --epochs 3 --fanout 5,5",
    ];
    for (number, pattern) in patterns.into_iter().enumerate() {
        let out = name(&dir.path().join(format!("t{number}")));
        let made = lode_line(&format!("generate-trace --json --kind {pattern} --out {out}"));
        let made = made.succeeded().json();
        let (ids, offsets) = (made["ids"].as_str().unwrap(), made["offsets"].as_str().unwrap());
        let trace = ["--trace", ids, "--offsets", offsets, "--epoch-batches", "20"];
        for more in ["--capacities 0,1%,10%,50%,100%", "--ahead --delta 4,16"] {
            assert_optimum_is_upper(&bench(&trace, more).succeeded().json());
        }
        let report = bench(&trace, "--policies lru --capacities 50%").succeeded().json();
        let hits = report["results"][0]["hits"].as_u64().unwrap();
        let never_hits = pattern.starts_with("scan") || pattern.starts_with("loop");
        assert_eq!(hits == 0, never_hits, "{pattern}: {hits} hits of lru");
    }
}

#[test]
fn the_chart_is_xml_with_one_curve_per_policy() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a<b&c>\"'");
    fs::create_dir(&folder).unwrap();
    write(&folder, &batches());
    let odd = folder.join("i<d>&s.npy");
    fs::rename(folder.join("ids.npy"), &odd).unwrap();
    let (odd, offsets) = (name(&odd), name(&folder.join("offsets.npy")));
    let (svg, csv) = (dir.path().join("c.svg"), dir.path().join("c.csv"));
    let files =
        ["--trace", &odd, "--offsets", &offsets, "--svg", &name(&svg), "--csv", &name(&csv)];
    let more = "--capacities 1%,5%,10%,25%,50% --gamma 0.9,0.99";
    let report = bench(&files, more).succeeded().json();
    let n_capacities = 5;
    let results = report["results"].as_array().unwrap().len();
    let text = fs::read_to_string(&svg).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let n_points = |node: roxmltree::Node<'_, '_>| {
        node.attribute("points").map_or(0, |points| points.split_whitespace().count())
    };
    let curves = document.descendants().filter(|&node| n_points(node) == n_capacities).count();
    assert_eq!(curves, results / n_capacities);
    let words: String = document.descendants().filter_map(|node| node.text()).collect();
    for word in ["oracle", "decay 0.9/64", "decay 0.99/64", "s3-fifo", "i<d>&s.npy"] {
        assert!(words.contains(word), "no `{word}` in the chart");
    }

    let csv = fs::read_to_string(&csv).unwrap();
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), results + 1);
    for (line, result) in lines[1..].iter().zip(report["results"].as_array().unwrap()) {
        assert_eq!(line.len(), lines[0].len());
        for (head, cell) in lines[0].iter().zip(line) {
            match &result[*head] {
                Value::String(text) => assert_eq!(cell, text),
                Value::Null => assert_eq!(*cell, ""),
                number => {
                    let (cell, number) = (cell.parse::<f64>().unwrap(), number.as_f64().unwrap());
                    assert!((cell - number).abs() <= 0.01, "{head}: {cell} is not {number}");
                }
            }
        }
    }
}

#[test]
fn a_chart_of_nothing_is_a_chart() {
    let dir = tempfile::tempdir().unwrap();
    let svg = name(&dir.path().join("c.svg"));
    for batches in [vec![], vec![vec![]], vec![vec![7]]] {
        let trace = [write(dir.path(), &batches), vec!["--svg".to_owned(), svg.clone()]].concat();
        let report = bench(&trace, "--capacities 0,10%").succeeded().json();
        assert_eq!(report["trace"]["accesses"], batches.concat().len());
        roxmltree::Document::parse(&fs::read_to_string(&svg).unwrap()).unwrap();
    }
}

#[test]
fn the_table_names_every_policy_and_what_it_knew() {
    let dir = tempfile::tempdir().unwrap();
    let trace = write(dir.path(), &batches()).join(" ");
    let text = lode_line(&format!("cache-bench {trace} --capacities 10%")).succeeded().stdout;
    for part in ["lru", "tinylfu", "decay 0.9995/64", "unbounded", "optimum", "10 %: "] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    assert!(text.contains("frequency knew how often the whole trace asks"), "{text}");
    assert!(text.contains("overlap was left out: it needs --graph"), "{text}");
}
