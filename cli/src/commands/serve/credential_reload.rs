//! Tokens and certificates that are replaced while a server runs.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use lodestore_server::auth::CredentialReloader;
use tracing::{error, warn};

use super::ServeArgs;
use super::config::ServeSettings;

/// Interval at which the files are checked.
const LOOK: Duration = Duration::from_secs(2);

/// The files of a server's tokens and certificates, and how they were.
pub(super) struct Renewal {
    files: Vec<PathBuf>,
    /// As they were when the server took what is in them. A failure for another reason than the
    /// files is tried again, or a revoked token would stay valid.
    taken: Vec<Stamp>,
    /// The files when it was reported that they cannot be used.
    told: Vec<Stamp>,
}

/// Properties that change with a file: device, number, bytes, time of the write, of renames and of
/// mode changes; `None` where there is none.
type Stamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;

impl Renewal {
    /// Notes how the files are, before they are read: what is written meanwhile is a change.
    pub(super) fn new(settings: &ServeSettings) -> Self {
        let files = [
            &settings.token_file,
            &settings.admin_token_file,
            &settings.tls_cert,
            &settings.tls_key,
            &settings.tls_client_ca,
        ];
        let files: Vec<PathBuf> = files.into_iter().flatten().cloned().collect();
        let taken = stamps(&files);
        Self { files, told: taken.clone(), taken }
    }

    /// Looks at the files again and again, and has the server take what is in them when they have
    /// changed. Where that cannot be used it stays with what it has.
    pub(super) fn look_on(mut self, args: &ServeArgs, reloader: &CredentialReloader) -> ! {
        loop {
            thread::sleep(LOOK);
            match self.look(|| Ok(reloader.renew(&args.check()?)?)) {
                None => {}
                // Logged by default: an operator that replaces a token needs to know from when the
                // old one is refused.
                Some(Ok(())) => {
                    warn!("tokens and certificates are reloaded: new connections must show those");
                }
                Some(Err(error)) => {
                    let error = format!("{error:#}");
                    error!(
                        error,
                        "changed tokens or certificates cannot be used; those from before remain valid"
                    );
                }
            }
        }
    }

    /// Renews if the files are not as they were taken; returns a message about that, a failure once
    /// for each change.
    fn look(&mut self, renew: impl FnOnce() -> Result<()>) -> Option<Result<()>> {
        let now = stamps(&self.files);
        if now == self.taken {
            return None;
        }
        let renewed = renew();
        let is_news = renewed.is_ok() || now != self.told;
        match renewed {
            Ok(()) => self.taken = now,
            Err(_) => self.told = now,
        }
        is_news.then_some(renewed)
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

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn what_could_not_be_read_is_tried_until_it_is_taken_and_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let files = vec![dir.path().join("token"), dir.path().join("key")];
        std::fs::write(&files[0], "first").unwrap();
        let taken = stamps(&files);
        let mut renewal = Renewal { files: files.clone(), told: taken.clone(), taken };
        let unasked = || panic!("nothing has changed");
        assert!(renewal.look(unasked).is_none());
        std::fs::write(&files[0], "the second").unwrap();
        let told =
            |found: Option<Result<()>>| found.map(|it| it.map_err(|error| error.to_string()));
        let full = || bail!("too many open files");
        assert_eq!(told(renewal.look(full)), Some(Err("too many open files".to_owned())));
        assert_eq!(told(renewal.look(full)), None, "it is known");
        std::fs::write(&files[1], "a key").unwrap();
        assert_eq!(told(renewal.look(full)), Some(Err("too many open files".to_owned())));
        assert_eq!(told(renewal.look(|| Ok(()))), Some(Ok(())), "though nothing has changed since");
        assert!(renewal.look(unasked).is_none());
        std::fs::remove_file(&files[1]).unwrap();
        assert_eq!(told(renewal.look(|| Ok(()))), Some(Ok(())));
    }
}
