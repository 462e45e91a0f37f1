//! `lode serve`: serve rows until stopped.

mod config;
mod credential_reload;
mod exposure;
mod follow;
mod follow_bucket;
mod publish;
mod register;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::exit;
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_bucket::Publisher;
use lodestore_client::Address;
use lodestore_graph::PartId;
use lodestore_server::{PolicyKind, PreloadChoice, Server, ServerConfig, VolatileChoice};
use serde::Serialize;
use signal_hook::low_level;

use crate::console::Console;
use crate::flags::parse_size;
use crate::human;
use crate::interrupt::{EndOfStdin, stop_signal, wait_for_stop};
use crate::log::{self, LogFormat, LogLevel};
use crate::security_args::read_lasting_tokens;
use crate::usage::UsageError;
use config::{ConfigFile, parse_mode};
use credential_reload::Renewal;
use follow::{FollowArgs, Following};
use publish::{PublishArgs, PublishThread};

/// Default address of a server.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7171";

/// Serve the rows of a graph's partitions over TCP and Unix sockets.
#[derive(Args)]
#[command(after_help = "\
Example: two servers with two partitions each, and a client of both
  lode serve my-graph --parts 0,1 --listen 127.0.0.1:7171 &
  lode serve my-graph --parts 2,3 --listen 127.0.0.1:7172 &
  lode gather --connect 127.0.0.1:7171 --connect 127.0.0.1:7172 \\
      --tensor feat --ids ids.npy --out rows.npy

Where both were started with --writable: a third that follows them, from an empty folder
  lode serve my-copy --follow 127.0.0.1:7171,127.0.0.1:7172 --listen 127.0.0.1:7173 &

Embeddings of two layers in memory beside the graph's rows, which workers publish and pull:
  lode serve my-graph --unix my-socket --volatile h1:256xf32 --volatile h2:256xf32 &

SIGINT, SIGTERM or SIGHUP stops it cleanly: requests in flight are answered first. A second one ends it
immediately, and so does the first while the graph is being opened. Exit code 1 says that it could not
start, or that a part of it had died: restart it.")]
pub(crate) struct ServeArgs {
    /// Folder of the graph.
    graph: PathBuf,
    /// Settings in TOML, under the names of these flags, which go before them; docs/serve.toml has
    /// every one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Partitions to serve; all of them unless given.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',')]
    parts: Vec<u16>,
    /// Serve the partitions whose folders are here, and let `lode transfer` bring and take some
    /// while it runs.
    #[arg(long, alias = "parts-here", conflicts_with = "parts")]
    local_parts: bool,
    /// TCP address; port 0 takes a free one. 127.0.0.1:7171 if neither this nor --unix is given.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The first of the TCP ports of the shards, one after the other; free ones unless given. For
    /// firewalls and containers, which have to know them.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    shard_port_base: Option<u16>,
    /// Path of a Unix socket.
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Mode of the Unix sockets, in octal: every user who may open them is admitted. 600 unless
    /// given.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    unix_mode: Option<u32>,
    /// TCP address of metrics (/metrics), health checks (/healthz, /readyz) and the status page
    /// (/); port 0 takes a free one. None unless given.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Have metrics on an address that is not loopback without a token, or, on a server that speaks
    /// TLS, with the token in the clear.
    #[arg(long)]
    metrics_insecure: bool,
    /// A name of this machine under which metrics may be asked for, besides its numbers and
    /// localhost; several times for several.
    #[arg(long, value_name = "NAME")]
    metrics_host: Vec<String>,
    /// Shards, each with a core of its own; one per core unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    shards: Option<u16>,
    /// Memory for rows that stay resident, over all shards; 0 reads every row from disk.
    /// 1GiB unless given.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Which rows stay resident: lru, fifo, clock, sieve, s3-fifo, tinylfu or none; sieve unless
    /// given. `lode cache-bench` compares them on a trace.
    #[arg(long, value_name = "P")]
    policy: Option<PolicyKind>,
    /// Load these tensors into memory right after the start, behind all pulls: names, or auto for
    /// each that memory holds. A tensor of which memory holds a part gets the rows that were
    /// resident when the server was last stopped cleanly.
    #[arg(long, value_name = "T,T,...|auto", value_delimiter = ',')]
    preload: Vec<PreloadChoice>,
    /// Folder in which --preload remembers which rows were resident; hot-rows in the graph's unless
    /// given.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Keep a tensor in memory alone, over the partitions that are served; clients publish and pull
    /// its rows with stamps. It is NAME:WIDTHxDTYPE, such as h1:256xf32, or NAME:WIDTHxDTYPE/ROWS
    /// for ROWS that are claimed together instead of all of a partition. Its memory is part of
    /// --memory: 16 bytes and the row for each node. Several times for several. Over TCP it needs
    /// what --writable needs.
    #[arg(long, value_name = "TENSOR")]
    volatile: Vec<VolatileChoice>,
    /// Take puts, commits and compactions; no other process may write the partitions meanwhile.
    /// Over TCP it needs --token-file, --tls-client-ca or --insecure, and so does --local-parts.
    #[arg(long)]
    writable: bool,
    #[command(flatten)]
    follow: FollowArgs,
    #[command(flatten)]
    publish: PublishArgs,
    /// File with the token that clients over TCP must present, readable by its owner alone. The
    /// metrics port requires it where it is not on loopback.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the token of clients that move partitions over TCP; it admits them as that of
    /// --token-file does. Without it only clients of this machine may move them.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// TLS for clients over TCP: the server's certificate and those up to its authority (PEM).
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM), not readable by others.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Take only clients with a certificate that these authorities (PEM) have signed.
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Listen on an address that is not loopback, or take changes from every user of this machine,
    /// without authentication or encryption. Metrics have a flag of their own.
    #[arg(long)]
    insecure: bool,
    /// Register in etcd for as long as it runs, under a lease: etcd:HOST:PORT,HOST:PORT/PREFIX.
    /// Wants a build with the cargo feature `etcd`.
    #[arg(long, value_name = "MAP")]
    register: Option<String>,
    /// With --register: where clients find it, if that is not where it listens.
    #[arg(long, value_name = "ADDR", requires = "register")]
    advertise: Option<Address>,
    /// Level of the log on stderr: error, warn, info or debug [default: warn]. LODE_LOG goes before
    /// it.
    #[arg(long, value_enum, value_name = "L")]
    log_level: Option<LogLevel>,
    /// How it goes there: text, or json with one object to a line; text unless given.
    #[arg(long, value_enum, value_name = "F")]
    log_format: Option<LogFormat>,
    /// Stop when stdin ends: a parent that dies takes the server along.
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
}

/// Output of `--json` when the server is ready.
#[derive(Serialize)]
struct ServeReport {
    address: Option<String>,
    unix: Option<String>,
    metrics: Option<String>,
    parts: Vec<u16>,
    shards: u16,
    writable: bool,
}

impl ServeArgs {
    /// Returns the flags, with what the file says for those that are not given.
    fn with_file(mut self) -> Result<Self> {
        let Some(path) = &self.config else { return Ok(self) };
        let file = ConfigFile::read(path)?;
        // Either flag goes before both settings.
        if self.parts.is_empty() && !self.local_parts {
            self.parts = file.parts.unwrap_or_default();
            self.local_parts = file.local_parts.unwrap_or_default();
        }
        self.listen = self.listen.or(file.listen);
        self.shard_port_base = self.shard_port_base.or(file.shard_port_base);
        self.unix = self.unix.or(file.unix);
        self.unix_mode = self.unix_mode.or(file.unix_mode);
        self.metrics = self.metrics.or(file.metrics);
        self.metrics_insecure |= file.metrics_insecure.unwrap_or_default();
        if self.metrics_host.is_empty() {
            self.metrics_host = file.metrics_host.unwrap_or_default();
        }
        self.shards = self.shards.or(file.shards);
        self.memory = self.memory.or(file.memory);
        self.policy = self.policy.or(file.policy);
        if self.preload.is_empty() {
            self.preload = file.preload.unwrap_or_default();
        }
        self.state_dir = self.state_dir.or(file.state_dir);
        if self.volatile.is_empty() {
            self.volatile = file.volatile.unwrap_or_default();
        }
        self.writable |= file.writable.unwrap_or_default();
        self.follow.add(file.follow, file.follow_interval, file.disk);
        self.publish.add(file.publish);
        self.follow.add_security(file.follow_token_file, file.follow_tls_ca);
        self.token_file = self.token_file.or(file.token_file);
        self.admin_token_file = self.admin_token_file.or(file.admin_token_file);
        self.tls_cert = self.tls_cert.or(file.tls_cert);
        self.tls_key = self.tls_key.or(file.tls_key);
        self.tls_client_ca = self.tls_client_ca.or(file.tls_client_ca);
        self.register = self.register.or(file.register);
        self.advertise = self.advertise.or(file.advertise);
        self.insecure |= file.insecure.unwrap_or_default();
        self.log_level = self.log_level.or(file.log_level);
        self.log_format = self.log_format.or(file.log_format);
        Ok(self)
    }

    /// Returns the settings, checked as far as that goes without opening the graph.
    fn check(&self) -> Result<ServerConfig> {
        let listen = match (self.listen, &self.unix) {
            (None, None) => Some(DEFAULT_ADDRESS.parse()?),
            (listen, _) => listen,
        };
        if self.local_parts && !self.parts.is_empty() {
            return Err(UsageError::new(
                "parts names partitions that stay, local-parts those that are there; give one"
                    .to_owned(),
            )
            .into());
        }
        self.check_exposure(listen)?;
        let tls = self.tls()?;
        let token = self.token_file.as_deref().map(read_lasting_tokens).transpose()?;
        let admin_token = self.admin_token_file.as_deref().map(read_lasting_tokens).transpose()?;
        if let (Some(rows), Some(admin)) = (&token, &admin_token)
            && rows.overlap(admin)
        {
            return Err(UsageError::new(
                "--token-file and --admin-token-file have the same token, so that a client of rows \
                 could move partitions; make another for admins: openssl rand -hex 32"
                    .to_owned(),
            )
            .into());
        }
        let defaults = ServerConfig::new(&self.graph);
        let follows_bucket = self.follow.bucket()?.is_some();
        self.publish.check(self.writable)?;
        Ok(ServerConfig {
            parts: self.part_ids(),
            grows: follows_bucket,
            publishes: self.publish.publish.is_some(),
            local_parts: self.local_parts,
            listen,
            unix: self.unix.clone(),
            shard_port_base: self.shard_port_base,
            unix_mode: self.unix_mode.unwrap_or(defaults.unix_mode),
            metrics: self.metrics,
            metrics_insecure: self.metrics_insecure,
            metrics_hosts: self.metrics_host.clone(),
            n_shards: self.shards.unwrap_or(0),
            tier_bytes: self.memory.unwrap_or(defaults.tier_bytes),
            policy: self.policy.unwrap_or(defaults.policy),
            preload: self.preload.clone(),
            state_dir: self.state_dir.clone(),
            volatile: self.volatile.clone(),
            writable: self.writable,
            follow: self.follow.writers(),
            token,
            admin_token,
            tls,
            insecure: self.insecure,
            ..defaults
        })
    }

    fn part_ids(&self) -> Vec<PartId> {
        self.parts.iter().copied().map(PartId).collect()
    }

    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let this = self.with_file()?;
        let renewal = Renewal::new(&this);
        let config = this.check()?;
        log::start(this.log_level.unwrap_or_default(), this.log_format.unwrap_or_default())?;
        if let Some(listen) = config.listen
            && !listen.ip().is_loopback()
            && (config.admin_token.is_some() && config.tls.is_none())
        {
            tracing::warn!(%listen, "the admin token crosses the network in the clear: there is no TLS");
        }
        // Before the first thread starts: a signal must find its handler from now on.
        let end_of_stdin =
            if this.exit_with_stdin { EndOfStdin::Stops } else { EndOfStdin::Ignored };
        let stop = stop_signal(end_of_stdin)?;
        let (sender, events) = mpsc::channel();
        tell(sender.clone(), move || Event::Stop(wait_for_stop(stop)))?;
        let this = Arc::new(this);
        tell(sender.clone(), {
            let this = Arc::clone(&this);
            move || Event::Started(Box::new(this.start(config)))
        })?;
        let Started { server, following, publisher } = match events.recv()? {
            Event::Started(started) => (*started)?,
            Event::Stop(heard) => {
                heard?;
                tracing::info!("stopped before it had started");
                // The graph is still being opened, by a thread that has no other stop: no client
                // was served, and durable data is safe.
                low_level::exit(0);
            }
            Event::Died => unreachable!("it is not read before it has started"),
        };
        let follows = following.is_some();
        if let Some(following) = following {
            this.follow.start(following, server.installer())?;
        }
        let publishing = publisher.map(|it| PublishArgs::start(it, server.publishing()));
        let publishing = publishing.transpose()?;
        let (supervisor, reloader) = (server.supervisor(), server.credential_reloader());
        // A file may take any time to read, and signals must be received meanwhile.
        tell(sender.clone(), {
            let this = Arc::clone(&this);
            move || renewal.look_on(&this, &reloader)
        })?;
        tell(sender, move || {
            if let Some(thread) = supervisor.wait() {
                tracing::error!(
                    thread,
                    "a thread of the server has ended; it cannot continue without"
                );
            }
            Event::Died
        })?;
        this.serve_until(&events, &server, console)?;
        tracing::info!("stopping: what is in flight is finished first");
        let stopped = Arc::into_inner(server).context("the server is still registered")?.stop();
        let has_ended = publishing.is_none_or(PublishThread::stop);
        stopped?;
        tracing::info!("stopped");
        if follows || !has_ended {
            // A thread still has the graph open, which the end of a process may take from under it.
            low_level::exit(0);
        }
        Ok(())
    }

    /// Brings what has to be there, and starts the server.
    fn start(&self, mut config: ServerConfig) -> Result<Started> {
        let following = self.follow.begin(self.graph.clone(), &self.parts)?;
        if let Some(Following::Bucket(following)) = &following {
            // Another one in the folder would never get a new version.
            config.parts = following.parts();
        }
        let publisher = self.publish.begin(&self.graph, &self.part_ids(), self.local_parts)?;
        let server = Arc::new(Server::start(&config)?);
        Ok(Started { server, following, publisher })
    }

    /// Reports where the server listens, and registers it, until it shall stop. Clients that look
    /// for a server do not find it any more when this returns.
    fn serve_until(
        &self,
        events: &mpsc::Receiver<Event>,
        server: &Arc<Server>,
        console: &Console,
    ) -> Result<()> {
        let registered = self.register.as_deref().map(|map| {
            let address = register::address(server, self.advertise.as_ref())?;
            register::start(map, address, server)
        });
        let _registered = registered.transpose()?;
        let report = ServeReport {
            address: server.address().map(|address| address.to_string()),
            unix: server.unix().map(|path| path.display().to_string()),
            metrics: server.metrics().map(|address| address.to_string()),
            parts: server.parts().iter().map(|part| part.0).collect(),
            shards: server.n_shards(),
            writable: self.writable,
        };
        console.report(&report, text)?;
        match events.recv()? {
            Event::Stop(heard) => heard,
            // The stop names the thread.
            Event::Started(_) | Event::Died => Ok(()),
        }
    }
}

/// A server that is up, and what is beside it.
struct Started {
    server: Arc<Server>,
    following: Option<Following>,
    publisher: Option<Publisher>,
}

/// Events that the main thread waits for.
enum Event {
    /// The server is up, or why it is not.
    Started(Box<Result<Started>>),
    /// It shall stop.
    Stop(Result<()>),
    /// A thread of it has ended that must not.
    Died,
}

/// Waits for an event on a thread of its own. A panic there ends the process, as one of the main
/// thread does. Otherwise no thread would wait for its events, a signal to stop for one.
fn tell(
    to: mpsc::Sender<Event>,
    wait: impl FnOnce() -> Event + Send + 'static,
) -> std::io::Result<()> {
    let tell = move || {
        // Its leftovers are not read any more.
        let Ok(event) = catch_unwind(AssertUnwindSafe(wait)) else { exit(101) };
        // No receiver is left after another way out.
        let _ = to.send(event);
    };
    thread::Builder::new().name("lode-event".into()).spawn(tell).map(drop)
}

fn text(report: &ServeReport) -> String {
    let unix = report.unix.as_ref().map(|path| format!("unix:{path}"));
    let addresses: Vec<_> = report.address.iter().chain(&unix).map(String::as_str).collect();
    let parts: Vec<_> = report.parts.iter().map(ToString::to_string).collect();
    let parts = match parts.as_slice() {
        [] => "no partition".to_owned(),
        [part] => format!("partition {part}"),
        parts => format!("partitions {}", parts.join(", ")),
    };
    let metrics = report.metrics.as_ref();
    let metrics = metrics.map_or_else(String::new, |at| format!("; metrics on http://{at}/"));
    format!(
        "listening on {} ({parts}, {}{}){metrics}",
        addresses.join(" and "),
        human::counted(report.shards.into(), "shard"),
        if report.writable { ", writable" } else { "" },
    )
}
