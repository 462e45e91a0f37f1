//! A running server as an operator sees it: metrics, health, the status page, `lode top`, logs.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

#[path = "operations/browser.rs"]
mod browser;
#[path = "operations/container.rs"]
mod container;
#[path = "operations/hostile.rs"]
mod hostile;
#[path = "operations/logs.rs"]
mod logs;
#[path = "operations/scrape.rs"]
mod scrape;
#[path = "operations/settings.rs"]
mod settings;
#[path = "operations/unit.rs"]
mod unit;
#[path = "operations/watching.rs"]
mod watching;
#[path = "operations/webdriver.rs"]
mod webdriver;

use std::path::PathBuf;

use support::graph::Source;
use support::process::Serving;

/// A small graph and a server of it with a metrics port.
struct Watched {
    source: Source,
    graph: PathBuf,
    server: Serving,
}

impl Watched {
    fn start(more: &str) -> Self {
        Self::with_metrics(&format!("127.0.0.1:0 {more}"))
    }

    /// Starts a server with metrics on this address, and more arguments behind it.
    fn with_metrics(metrics: &str) -> Self {
        let source = Source::random(600, 2000);
        let graph = source.import("graph", 2, "hash");
        let args = format!("--listen 127.0.0.1:0 --metrics {metrics}");
        let server = Serving::start(&graph, &args);
        Self { source, graph, server }
    }
}
