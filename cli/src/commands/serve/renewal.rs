//! Tokens and certificates that are replaced while a server runs.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use lodestore_server::Server;
use tracing::{error, info};

use super::ServeArgs;

/// How often the files are looked at.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// The files of a server's tokens and certificates, as they were when they were read last.
pub(super) struct Renewal {
    files: Vec<PathBuf>,
    seen: Vec<Stamp>,
}

/// What changes with a file: device, number, bytes, when it was written, and when renamed or given
/// another mode; `None` where there is none.
type Stamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;

impl Renewal {
    /// Notes how the files are, before they are read: what is written meanwhile is a change.
    pub(super) fn new(args: &ServeArgs) -> Self {
        let files = [
            &args.token_file,
            &args.admin_token_file,
            &args.tls_cert,
            &args.tls_key,
            &args.tls_client_ca,
        ];
        let files: Vec<PathBuf> = files.into_iter().flatten().cloned().collect();
        let seen = stamps(&files);
        Self { files, seen }
    }

    /// Has the server take what is in the files if they have changed. Where that cannot be used it
    /// stays with what it has, which is told once for each change.
    pub(super) fn look(&mut self, args: &ServeArgs, server: &Server) {
        let now = stamps(&self.files);
        if now == self.seen {
            return;
        }
        self.seen = now;
        let renewed = args.check().and_then(|config| Ok(server.renew(&config)?));
        match renewed {
            Ok(()) => info!("tokens and certificates are read anew: who connects must show those"),
            Err(error) => {
                let error = format!("{error:#}");
                error!(
                    error,
                    "changed tokens or certificates cannot be used; those from before go on"
                );
            }
        }
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let meta = std::fs::metadata(file).ok()?;
        let (written, changed) =
            ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()));
        Some((meta.dev(), meta.ino(), meta.len(), written, changed))
    };
    files.iter().map(stamp).collect()
}
