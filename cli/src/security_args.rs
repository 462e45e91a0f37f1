//! Tokens and certificates: files that are named on the command line, never their contents.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use lodestore_client::cluster::EtcdAccess;
use lodestore_client::security::Token;
use lodestore_client::{ClientConfig, Security};
use lodestore_server::auth::Tokens;

use crate::outputs::NamedFiles;
use crate::small_file::{read_small_file, read_small_regular_file};
use crate::usage::{UsageError, refuse_given};

/// Longest wait for servers unless another one is given.
const DEADLINE_SECONDS: u64 = 30;

/// Credentials that a client shows to servers over TCP, and requires of them. Over a Unix socket
/// none of it is used.
#[derive(Args, Clone, Default)]
pub struct SecurityArgs {
    /// Server over TCP: file with the token that it wants, readable by its owner alone.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Server over TCP: speak TLS, and take certificates that these authorities (PEM) have signed.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// With --tls-ca: show this certificate (PEM) where a server wants one.
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM), not readable by others.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
}

/// What an etcd is shown that names the servers, and required of it; for addresses `etcd:`.
#[derive(Args, Clone, Default)]
pub struct EtcdArgs {
    /// etcd: speak TLS with it, and take certificates that these authorities (PEM) have signed.
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// With --etcd-ca: show this certificate (PEM).
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// The key of --etcd-cert (PEM), not readable by others.
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_key: Option<PathBuf>,
    /// etcd: authenticate as this user.
    #[arg(long, value_name = "NAME")]
    pub(crate) etcd_user: Option<String>,
    /// File with the password of --etcd-user, readable by its owner alone.
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_password_file: Option<PathBuf>,
}

impl EtcdArgs {
    /// Returns which of the flags are given.
    fn given(&self) -> [(&'static str, bool); 5] {
        [
            ("--etcd-ca", self.etcd_ca.is_some()),
            ("--etcd-cert", self.etcd_cert.is_some()),
            ("--etcd-key", self.etcd_key.is_some()),
            ("--etcd-user", self.etcd_user.is_some()),
            ("--etcd-password-file", self.etcd_password_file.is_some()),
        ]
    }

    /// Reads the files.
    pub(crate) fn read(&self) -> Result<EtcdAccess> {
        let mut access = EtcdAccess::default();
        let identity = match (&self.etcd_cert, &self.etcd_key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert.as_path(), key.as_path())),
            _ => return Err(UsageError::new("--etcd-cert and --etcd-key go together").into()),
        };
        if let Some((_, key)) = identity {
            check_key(key)?;
        }
        match (&self.etcd_ca, identity) {
            (Some(ca), identity) => access = access.with_tls(ca, identity)?,
            (None, None) => {}
            (None, Some(_)) => return Err(UsageError::new("--etcd-cert needs --etcd-ca").into()),
        }
        match (&self.etcd_user, &self.etcd_password_file) {
            (None, None) => {}
            (Some(user), Some(path)) => access = access.with_user(user, &read_password(path)?),
            _ => {
                let message = "--etcd-user and --etcd-password-file go together";
                return Err(UsageError::new(message).into());
            }
        }
        Ok(access)
    }
}

/// Reads a password: the one line of a file, which only its owner may read.
fn read_password(path: &Path) -> Result<String> {
    check_mode(path, 0o077, "a password")?;
    let text = read_small_file(path)?;
    let mut lines = text.lines().filter(|line| !line.is_empty());
    match (lines.next(), lines.next()) {
        (Some(password), None) => Ok(password.to_owned()),
        _ => bail!("{}: expected one line with the password", path.display()),
    }
}

/// Flags of a client, for commands that have servers or a folder.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Servers")]
pub(crate) struct ClientArgs {
    /// With servers: give up on a request after this many seconds [default: 30].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    deadline: Option<u64>,
    #[command(flatten)]
    pub(crate) security: SecurityArgs,
}

impl ClientArgs {
    /// Reads the files; returns the settings of a client.
    pub(crate) fn config(&self) -> Result<ClientConfig> {
        self.security.client_config(self.deadline())
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline.unwrap_or(DEADLINE_SECONDS))
    }

    /// Fails for a flag of these, or of `others`, that is given where no server is named.
    pub(crate) fn refuse_without_servers(&self, others: &[(&str, bool)]) -> Result<(), UsageError> {
        let own = [("--deadline", self.deadline.is_some())];
        self.security.refuse_without_servers(&[&own[..], others].concat())
    }
}

impl SecurityArgs {
    /// Fails for a flag of these, or of `others`, that is given where no server is named.
    pub(crate) fn refuse_without_servers(&self, others: &[(&str, bool)]) -> Result<(), UsageError> {
        let own = self.files().map(|(flag, file)| (flag, file.is_some()));
        let reason = "is for servers, and none is named";
        refuse_given(&own, reason)?;
        refuse_given(&self.etcd.given(), reason)?;
        refuse_given(others, reason)
    }

    /// Adds the files of credentials to those that a command reads.
    pub fn name_inputs(&self, files: NamedFiles) -> NamedFiles {
        self.files().into_iter().fold(files, |files, (flag, file)| files.inputs(flag, file))
    }

    fn files(&self) -> [(&'static str, Option<&PathBuf>); 4] {
        [
            ("--token-file", self.token_file.as_ref()),
            ("--tls-ca", self.tls_ca.as_ref()),
            ("--tls-cert", self.tls_cert.as_ref()),
            ("--tls-key", self.tls_key.as_ref()),
        ]
    }

    /// Reads the files; returns the settings of a client that gives up after `deadline`.
    pub(crate) fn client_config(&self, deadline: Duration) -> Result<ClientConfig> {
        let (security, etcd) = (self.read()?, self.etcd.read()?);
        Ok(ClientConfig { deadline, security, etcd, ..ClientConfig::default() })
    }

    /// Reads the files.
    pub fn read(&self) -> Result<Security> {
        let mut security = Security::default();
        if let Some(path) = &self.token_file {
            security = security.with_token(read_token(path)?);
        }
        if let Some(ca) = &self.tls_ca {
            if let Some(key) = &self.tls_key {
                check_key(key)?;
            }
            let identity = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
            security = security.with_tls(ca, identity)?;
        }
        Ok(security)
    }
}

/// Reads the token to show: the first in a file, which only its owner may read.
pub fn read_token(path: &Path) -> Result<Token> {
    tokens_in(path, read_small_file).map(|tokens| tokens.first())
}

/// Reads the tokens to take. The file is read again while a server runs, and so must be one that
/// stays.
pub fn read_lasting_tokens(path: &Path) -> Result<Tokens> {
    tokens_in(path, read_small_regular_file)
}

fn tokens_in(path: &Path, read: fn(&Path) -> Result<String>) -> Result<Tokens> {
    check_mode(path, 0o077, "a token")?;
    let text = read(path)?;
    Tokens::parse(&text).with_context(|| format!("{}", path.display()))
}

/// Fails for a key that others may read; a group may, as that of the service.
pub fn check_key(path: &Path) -> Result<()> {
    check_mode(path, 0o007, "a key")
}

fn check_mode(path: &Path, refused: u32, what: &str) -> Result<()> {
    let meta =
        std::fs::metadata(path).with_context(|| format!("{}: cannot open", path.display()))?;
    let mode = meta.permissions().mode();
    if mode & refused != 0 {
        bail!(
            "{}: {what} that others may read (mode {:03o}); chmod 600 it, and make another if they \
             have",
            path.display(),
            mode & 0o777
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(file.path(), mode).unwrap();
        file
    }

    #[test]
    fn a_password_is_one_line_of_a_file_of_ones_own_and_goes_with_a_user() {
        let good = file("SECRET word\n", 0o600);
        assert_eq!(read_password(good.path()).unwrap(), "SECRET word");
        for (text, mode, told) in [
            ("SECRET", 0o644, "a password that others may read"),
            ("", 0o600, "one line"),
            ("SECRET\nmore", 0o600, "one line"),
        ] {
            let error = format!("{:#}", read_password(file(text, mode).path()).unwrap_err());
            assert!(error.contains(told) && !error.contains("SECRET"), "{error}");
        }
        let of = |user: Option<&str>, cert: Option<&str>| EtcdArgs {
            etcd_user: user.map(str::to_owned),
            etcd_cert: cert.map(Into::into),
            ..EtcdArgs::default()
        };
        for (args, told) in [
            (of(Some("lode"), None), "--etcd-password-file"),
            (of(None, Some("cert.pem")), "--etcd-key"),
        ] {
            let error = args.read().unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_token_is_read_from_a_file_of_ones_own_and_never_printed() {
        let secret = "0123456789abcdefSECRET";
        let good = file(&format!("{secret}\n"), 0o600);
        assert_eq!(read_token(good.path()).unwrap().as_bytes(), secret.as_bytes());
        assert!(read_token(file(secret, 0o400).path()).is_ok());
        for (text, mode, told) in [
            (secret, 0o644, "mode 644"),
            (secret, 0o640, "chmod 600"),
            (&secret[..9], 0o600, "16 to 128"),
            ("0123456789abcdef SECRET", 0o600, "without spaces"),
            ("", 0o600, "0 lines; expected one with a token"),
        ] {
            let error = format!("{:#}", read_token(file(text, mode).path()).unwrap_err());
            assert!(error.contains(told) && !error.contains("SECRET"), "{error}");
        }
        assert!(check_key(file("", 0o640).path()).is_ok());
        assert!(check_key(file("", 0o604).path()).is_err());
    }
}
