//! All that was counted: lines for people, and one JSON object, also to `LODE_SOAK_JSON`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::clients::Clients;
use crate::ending::Whole;
use crate::error_counts::Kind;
use crate::faults::{Fault, Faults};
use crate::growth::{Growth, Sample};

pub(crate) struct Report<'a> {
    pub(crate) seed: u64,
    pub(crate) has_disk: bool,
    pub(crate) elapsed: Duration,
    pub(crate) faults: &'a Faults,
    pub(crate) clients: &'a Clients<'a>,
    pub(crate) growth: &'a Growth,
    pub(crate) whole: Whole,
}

impl Report<'_> {
    pub(crate) fn print(&self) {
        let json = self.json();
        for (group, entries) in json.as_object().unwrap() {
            let Some(entries) = entries.as_object() else {
                println!("{group:48} {entries:>14}");
                continue;
            };
            println!("{group}");
            for (name, value) in entries {
                println!("  {name:46} {:>14}", line(value));
            }
        }
        println!("{json}");
        if let Some(path) = std::env::var_os("LODE_SOAK_JSON") {
            std::fs::write(path, json.to_string()).unwrap();
        }
    }

    /// Returns the report. Reached only where every row was right: a wrong one ends the test.
    fn json(&self) -> Value {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (load, calls) = (&self.clients.load.counts, &self.clients.counts);
        let faults = Fault::ALL.iter().map(|&fault| {
            let at = fault as usize;
            let counts = json!({"tried": self.faults.counts[at], "done": self.faults.done[at]});
            (fault.name().to_owned(), counts)
        });
        let errors = Kind::ALL
            .iter()
            .map(|&kind| (kind.name().to_owned(), self.clients.errors.count(kind).into()));
        let sample = |sample: Sample| json!({"mib": sample.resident_bytes >> 20, "descriptors": sample.descriptors});
        json!({
            "seed": self.seed,
            "seconds": self.elapsed.as_secs(),
            "disk of its own": self.has_disk,
            "puts": {
                "acknowledged": of(&load.puts),
                "rows of these": of(&load.rows_put),
                "failed, and tried again": of(&load.puts_failed),
            },
            "pulls": {
                "answered": of(&load.pulls),
                "rows compared": of(&load.rows_compared),
                "failed": of(&load.pulls_failed),
            },
            "clients": {
                "connects": of(&calls.connects),
                "connects that failed": of(&calls.connects_failed),
                "longest call, ms": of(&calls.longest_ms),
                "latest call past its deadline, ms": of(&calls.late_ms),
            },
            "errors reported": Value::Object(errors.collect()),
            "faults": Value::Object(faults.collect()),
            "the server that was never restarted": {
                "before the load": sample(self.growth.first()),
                "most in the 1st quarter": sample(self.growth.most(0)),
                "most in the 2nd quarter": sample(self.growth.most(1)),
                "most in the 3rd quarter": sample(self.growth.most(2)),
                "most in the 4th quarter": sample(self.growth.most(3)),
                "after the load": sample(self.growth.last()),
            },
            "at the end": {
                "versions committed": self.whole.version,
                "bytes verified": self.whole.bytes,
            },
        })
    }
}

/// Returns a number, or `2 of 3` for what was done of what was tried, or all numbers with their
/// names.
fn line(value: &Value) -> String {
    match value.as_object() {
        None => value.to_string(),
        Some(counts) => match (counts.get("done"), counts.get("tried")) {
            (Some(done), Some(tried)) => format!("{done} of {tried}"),
            _ => {
                counts.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
            }
        },
    }
}
