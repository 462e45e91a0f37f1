//! A running server as an operator sees it: metrics, health, the status page, `lode top`, logs.

mod browser;
mod container;
mod hostile;
mod logs;
mod scrape;
mod settings;
mod unit;
mod watching;
mod webdriver;

use std::path::PathBuf;

use testing::graph::Source;
use testing::process::Serving;

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
