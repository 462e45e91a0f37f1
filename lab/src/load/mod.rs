//! `lode-lab load`: requests as fast as they are answered, or at a given rate, and how long they
//! take.

mod ids;
mod plot;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lodestore_client::load::{IdDraw, LoadConfig, Pace, Spacing};
use lodestore_client::{Client, ClientConfig, EmbeddedSource, RowSource};
use lodestore_store::EmbeddedStore;

use self::ids::{IdChoice, parse_draw};
use self::report::{LoadReport, text};
use lode_cli::console::Console;
use lode_cli::outputs::NamedFiles;
use lode_cli::security_args::SecurityArgs;
use lode_cli::traces::TraceArgs;
use lode_cli::usage::UsageError;

/// Put load on servers and measure rows per second and latencies.
#[derive(Args)]
#[command(after_help = "\
Example: as fast as 8 clients go; then 2000 requests per second, a tenth of them bulk
  lode-lab load --connect 127.0.0.1:7171 --connections 8 --rows 1000 --duration 10
  lode-lab load --connect 127.0.0.1:7171 --connections 32 --rows 50 --rate 2000 \\
      --vector-share 0.1 --ids zipf:1.1 --svg latencies.svg

Each connection is a client with a socket to every shard. Without --rate each keeps --window
requests in flight (closed loop); with --rate requests start at times that do not depend on the
answers (open loop), and latency counts from those times, so that a server that stalls is charged for
everything that was due meanwhile. Look at `generator`: near --threads it was the limit, not the server.
Rows are taken from the sockets and forgotten, or compared with --verify. Over a Unix socket with a
window of 1 larger answers come through memory that the server shares, as a trainer has them. The exit code is 1 if a row
was wrong or no request was answered.")]
pub(crate) struct LoadArgs {
    /// Address of a server: HOST:PORT or unix:PATH; repeat for several.
    #[arg(long, value_name = "ADDR", required = true)]
    connect: Vec<String>,
    /// Name of the tensor.
    #[arg(long, value_name = "T", default_value = "feat")]
    tensor: String,
    /// Clients, each with a socket to every shard.
    #[arg(long, value_name = "N", default_value_t = 4)]
    connections: usize,
    /// Requests that each of them may have in flight.
    #[arg(long, value_name = "K", default_value_t = 1)]
    window: usize,
    /// Threads that drive them.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Open loop: this many requests per second, over all connections.
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// How the starts of an open loop are spaced: poisson unless given.
    #[arg(long, value_enum, value_name = "A", requires = "rate")]
    arrivals: Option<Arrivals>,
    /// Which rows: uniform, zipf:S, or sequential; or a trace by the flags below.
    #[arg(long, value_name = "IDS", default_value = "uniform", value_parser = parse_draw,
          conflicts_with_all = ["schedule", "trace", "oracle_general", "lcs"])]
    ids: IdDraw,
    #[command(flatten)]
    trace: TraceArgs,
    /// Rows of a request; a trace has its own batches.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    rows: usize,
    /// Share of requests that are VectorPulls; the others are SyncPulls.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    vector_share: f64,
    /// Seconds that are measured.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    duration: Duration,
    /// Seconds before that, which are not.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    warm_up: Duration,
    /// A request that is not answered within these seconds has failed.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    deadline: Duration,
    /// Draws depend on it alone.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Compare every row with this graph's; no put may change rows meanwhile.
    #[arg(long, value_name = "GRAPH")]
    verify: Option<PathBuf>,
    /// Draw latencies against percentiles here.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    security: SecurityArgs,
}

/// [`Spacing`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Arrivals {
    /// As of many independent clients: exponential gaps.
    Poisson,
    /// Evenly.
    Fixed,
}

impl LoadArgs {
    pub(crate) fn run(self, console: &Console) -> Result<ExitCode> {
        let Self { connect, verify, svg, .. } = &self;
        let (connect, verify, svg) = (connect.clone(), verify.clone(), svg.clone());
        let security = self.security.clone();
        let files = self.trace.name_inputs(NamedFiles::default()).outputs("--svg", &svg);
        security.name_inputs(files).check()?;
        let (choice, config) = self.check()?;
        let truth = verify.map(|graph| EmbeddedStore::open(&graph, None)).transpose()?;
        let truth = truth.map(EmbeddedSource::new);
        let deadline = config.deadline;
        let security = security.read()?;
        let client_config = ClientConfig { deadline, security, ..ClientConfig::default() };
        let client = Client::connect(&connect, client_config)?;
        let ids = choice.load(client.book().n_nodes())?;
        let config = LoadConfig { ids, ..config };
        config.check().map_err(UsageError::of)?;
        console.stage("load");
        let tally = client.load(&config, truth.as_ref().map(|truth| truth as &dyn RowSource))?;
        let report = LoadReport::new(&connect, &choice, &config, &tally);
        if let Some(path) = &svg {
            let drawn = plot::svg(&report, &tally)?;
            std::fs::write(path, drawn)
                .with_context(|| format!("{}: cannot write", path.display()))?;
        }
        console.report(&report, text)?;
        let is_good = report.wrong_rows == 0 && report.requests > 0;
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Returns the settings, and which trace, checked before anything is opened.
    fn check(self) -> Result<(IdChoice, LoadConfig), UsageError> {
        let choice = IdChoice::new(self.ids, self.trace)?;
        let pace = match (self.rate, self.arrivals) {
            (None, _) => Pace::Closed,
            (Some(rate), Some(Arrivals::Fixed)) => Pace::Open { rate, spacing: Spacing::Fixed },
            (Some(rate), _) => Pace::Open { rate, spacing: Spacing::Poisson },
        };
        let config = LoadConfig {
            tensor: self.tensor,
            connections: self.connections,
            window: self.window,
            threads: self.threads,
            pace,
            ids: choice.draw(),
            rows: self.rows,
            vector_share: self.vector_share,
            warm_up: self.warm_up,
            duration: self.duration,
            deadline: self.deadline,
            seed: self.seed,
        };
        config.check().map_err(UsageError::of)?;
        Ok((choice, config))
    }
}

/// Parses seconds with a fraction, a day at most.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 2.5".to_owned())?;
    if !(0.0..=86_400.0).contains(&seconds) {
        return Err("expected 0 to 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}
