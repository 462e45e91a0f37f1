//! `lode serve`: serve rows until stopped.

mod config;
#[cfg(test)]
mod config_tests;
mod credential_reload;
mod follow;
mod follow_bucket;
mod follow_log;
mod publish;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::exit;
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_client::Address;
use lodestore_client::cluster::EtcdAccess;
use lodestore_server::{Server, ServerConfig};
use lodestore_store::reader::available_memory_bytes;
use lodestore_store::update::KeepRule;
use serde::Serialize;
use signal_hook::low_level;

use crate::VERSION;
use crate::console::Console;
use crate::human;
use crate::interrupt::{EndOfStdin, stop_signal, wait_for_stop};
use crate::log;
use crate::security_args::read_lasting_tokens;
use crate::usage::UsageError;
use config::ServeSettings;
use credential_reload::Renewal;
use follow::Following;
use publish::{Beginning, PublishThread};

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
    #[command(flatten)]
    settings: ServeSettings,
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
    /// Returns the settings, checked as far as that goes without opening the graph.
    fn check(&self) -> Result<ServerConfig> {
        let settings = &self.settings;
        let listen = match (settings.listen, &settings.unix) {
            (None, None) => Some(DEFAULT_ADDRESS.parse()?),
            (listen, _) => listen,
        };
        if settings.local_parts && !settings.parts.is_empty() {
            let message =
                "parts names partitions that stay, local-parts those that are there; give one";
            return Err(UsageError::new(message).into());
        }
        settings.check_exposure(listen)?;
        let tls = settings.tls()?;
        let token = settings.token_file.as_deref().map(read_lasting_tokens).transpose()?;
        let admin_token =
            settings.admin_token_file.as_deref().map(read_lasting_tokens).transpose()?;
        if let (Some(rows), Some(admin)) = (&token, &admin_token)
            && rows.overlap(admin)
        {
            let message = "--token-file and --admin-token-file have the same token, so that a client \
                           of rows could move partitions; make another for admins: openssl rand -hex 32";
            return Err(UsageError::new(message).into());
        }
        let defaults = ServerConfig::new(&self.graph);
        let follows_bucket = settings.followed_bucket()?.is_some();
        settings.check_publish()?;
        Ok(ServerConfig {
            program: VERSION.to_owned(),
            parts: settings.part_ids(),
            grows: follows_bucket,
            publishes: settings.publish.is_some(),
            local_parts: settings.local_parts,
            listen,
            unix: settings.unix.clone(),
            shard_port_base: settings.shard_port_base,
            unix_mode: settings.unix_mode.unwrap_or(defaults.unix_mode),
            metrics: settings.metrics,
            metrics_insecure: settings.metrics_insecure,
            metrics_hosts: settings.metrics_host.clone(),
            n_shards: settings.shards.unwrap_or(0),
            tier_bytes: settings.memory.unwrap_or(defaults.tier_bytes),
            policy: settings.policy.unwrap_or(defaults.policy),
            preload: settings.preloaded()?,
            state_dir: settings.state_dir.clone(),
            volatile: settings.volatile.clone(),
            writable: settings.writable,
            keep: KeepRule {
                n_versions: settings.keep_versions.unwrap_or(defaults.keep.n_versions),
                age: settings.keep_for.unwrap_or(defaults.keep.age),
            },
            follow: settings.writers(),
            token,
            admin_token,
            tls,
            insecure: settings.insecure,
            ..defaults
        })
    }

    pub(crate) fn run(mut self, console: &Console) -> Result<()> {
        let flags = self.settings.dependent_flags();
        let mut vain = Vec::new();
        if let Some(path) = &self.config {
            let file = ServeSettings::read(path)?;
            let of_file = file.dependent_flags();
            self.settings = self.settings.or(file);
            // A file may serve a writer and readers, whose flags differ.
            for error in self.settings.vain(&of_file) {
                vain.push(format!("{}: a setting does nothing: {error}", path.display()));
            }
        }
        if let Some(error) = self.settings.vain(&flags).into_iter().next() {
            return Err(error.into());
        }
        let settings = &self.settings;
        let renewal = Renewal::new(settings);
        let config = self.check()?;
        let (level, format) = (settings.log_level, settings.log_format);
        log::start(level.unwrap_or_default(), format.unwrap_or_default())?;
        for message in vain {
            tracing::warn!("{message}");
        }
        if let Some(listen) = config.listen
            && !listen.ip().is_loopback()
            && (config.admin_token.is_some() && config.tls.is_none())
        {
            tracing::warn!(%listen, "the admin token crosses the network in the clear: there is no TLS");
        }
        if let Some(free) = available_memory_bytes().filter(|free| config.tier_bytes > *free) {
            let asked = config.tier_bytes;
            tracing::warn!(
                asked,
                free,
                "--memory is more memory than is free here; it is reserved as rows come"
            );
        }
        // Before the first thread starts: a signal must find its handler from now on.
        let end_of_stdin =
            if self.exit_with_stdin { EndOfStdin::Stops } else { EndOfStdin::Ignored };
        let stop = stop_signal(end_of_stdin)?;
        let (sender, events) = mpsc::channel();
        tell(sender.clone(), move || Event::Stop(wait_for_stop(stop)))?;
        let this = Arc::new(self);
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
            this.settings.start_following(following, server.installer())?;
        }
        let publishing = publisher.map(|it| PublishThread::start(it, server.publishing()));
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
        let following = self.settings.begin_following(&self.graph)?;
        if let Some(following) = &following {
            config.parts = following.parts();
        }
        let publisher = self.settings.begin_publishing(&self.graph)?;
        config.paused = publisher.as_ref().and_then(Beginning::refusal);
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
        let registered = self.settings.register.as_deref().map(|map| {
            let address = advertised_address(server, self.settings.advertise.as_ref())?;
            register(map, self.settings.etcd()?, address, server)
        });
        let _registered = registered.transpose()?;
        let report = ServeReport {
            address: server.address().map(|address| address.to_string()),
            unix: server.unix().map(|path| path.display().to_string()),
            metrics: server.metrics().map(|address| address.to_string()),
            parts: server.parts().iter().map(|part| part.0).collect(),
            shards: server.n_shards(),
            writable: self.settings.writable,
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
    publisher: Option<Beginning>,
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

/// Returns the address of a server for clients: as given, or where it listens.
fn advertised_address(server: &Server, told: Option<&Address>) -> Result<Address> {
    if let Some(told) = told {
        return Ok(told.clone());
    }
    match (server.address(), server.unix()) {
        (Some(address), _) if address.ip().is_unspecified() => Err(UsageError::new(format!(
            "{address} is every address of this machine and none that clients find; give one: \
             --advertise HOST:PORT"
        ))
        .into()),
        (Some(address), _) => Ok(Address::Tcp(address)),
        (None, Some(path)) => Ok(Address::Unix(path.to_owned())),
        (None, None) => Err(UsageError::new("there is nothing to register").into()),
    }
}

/// Registers the server until the returned value is dropped.
#[cfg(feature = "etcd")]
fn register(
    map: &str,
    access: EtcdAccess,
    address: Address,
    server: &Arc<Server>,
) -> Result<lodestore_client::cluster::Registration> {
    use std::time::Instant;

    let server = Arc::clone(server);
    let (mut busy_before, mut looked) = (std::time::Duration::ZERO, Instant::now());
    let entry = move || {
        let (busy, n_shards) = (server.busy(), f64::from(server.n_shards()));
        let spent = busy.saturating_sub(busy_before).as_secs_f64();
        let share = spent / (looked.elapsed().as_secs_f64() * n_shards).max(1e-3);
        (busy_before, looked) = (busy, Instant::now());
        lodestore_client::cluster::ServerEntry {
            address: address.to_string(),
            parts: server.parts().iter().map(|part| part.0).collect(),
            version: server.version(),
            busy: share.clamp(0.0, 1.0),
            graph: format!("{:032x}", u128::from_be_bytes(server.graph())),
        }
    };
    Ok(lodestore_client::cluster::Registration::start(map, access, entry)?)
}

/// Registration in a build without etcd.
#[cfg(not(feature = "etcd"))]
enum Registration {}

/// Fails, since a build without etcd registers nowhere.
#[cfg(not(feature = "etcd"))]
fn register(map: &str, _: EtcdAccess, _: Address, _: &Arc<Server>) -> Result<Registration> {
    Err(UsageError::new(format!(
        "{map}: this build knows no etcd; build it with `--features lode/etcd` (`./x etcd` does)"
    ))
    .into())
}

fn text(report: &ServeReport) -> String {
    let unix = report.unix.as_ref().map(|path| format!("unix:{path}"));
    let parts = match &report.parts[..] {
        [] => "no partition".to_owned(),
        [part] => format!("partition {part}"),
        parts => format!("partitions {}", human::joined(parts, ", ")),
    };
    let metrics = report.metrics.as_ref();
    let metrics = metrics.map_or_else(String::new, |at| format!("; metrics on http://{at}/"));
    format!(
        "listening on {} ({parts}, {}{}){metrics}",
        human::joined(report.address.iter().chain(&unix), " and "),
        human::counted(report.shards.into(), "shard"),
        if report.writable { ", writable" } else { "" },
    )
}
