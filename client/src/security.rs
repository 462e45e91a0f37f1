//! Credentials that a client presents to servers over TCP, and requires of them.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::fork::PerProcess;
pub use lodestore_schema::Token;
use lodestore_schema::pem;
pub use lodestore_schema::token::BadToken;
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::ClientError;

/// Token and certificates of a client. The default has none, and does not encrypt connections.
///
/// Over a Unix socket neither is used: the mode of the socket restricts its users.
#[derive(Clone, Default)]
pub struct Security {
    pub(crate) token: Option<Token>,
    pub(crate) tls: Option<Arc<Tls>>,
}

/// Configuration of TLS. Sessions for resumption are kept behind a lock, and each may be resumed
/// once, so a forked child inherits none.
pub(crate) struct Tls(PerProcess<Arc<rustls::ClientConfig>>);

impl Tls {
    /// Returns the configuration of this process.
    pub(crate) fn config(&self) -> Arc<rustls::ClientConfig> {
        let own = self.0.get_or(|parents| {
            let parents = parents.unwrap_or_else(|| unreachable!("it is made with one"));
            let mut config = (**parents).clone();
            config.resumption = Resumption::default();
            Arc::new(config)
        });
        Arc::clone(own)
    }
}

impl Security {
    /// Sends `token` first on every connection.
    #[must_use]
    pub fn with_token(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Speaks TLS with servers whose certificates are signed by an authority in the file `ca`.
    /// Presents its own certificate if `identity` (certificate and key) is given. All files are
    /// PEM.
    ///
    /// # Errors
    /// [`ClientError::Tls`] if a file cannot be used.
    pub fn with_tls(
        self,
        ca: &Path,
        identity: Option<(&Path, &Path)>,
    ) -> Result<Self, ClientError> {
        let mut roots = RootCertStore::empty();
        for cert in certificates(ca)? {
            let added = roots.add(cert);
            added.map_err(|error| bad(ca, pem::certificate_fault(&error.to_string())))?;
        }
        let builder =
            rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|error| bad(ca, error))?
                .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let private = private_key(key)?;
                let config = builder.with_client_auth_cert(certificates(cert)?, private);
                config.map_err(|error| bad(cert, pem::certificate_fault(&error.to_string())))?
            }
        };
        let tls = Tls(PerProcess::with(Arc::new(config)));
        Ok(Self { tls: Some(Arc::new(tls)), ..self })
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (token, tls) = (self.token.is_some(), self.tls.is_some());
        f.debug_struct("Security").field("token", &token).field("tls", &tls).finish()
    }
}

/// Reads all certificates of a file; there must be at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    pem::certificates(open(path)?).map_err(|reason| bad(path, reason))
}

/// Reads the key in a file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ClientError> {
    pem::private_key(open(path)?).map_err(|reason| bad(path, reason))
}

fn open(path: &Path) -> Result<File, ClientError> {
    File::open(path).map_err(|error| bad(path, format!("cannot read: {error}")))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` wants")]
fn bad(path: &Path, reason: impl ToString) -> ClientError {
    ClientError::Tls { path: path.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let error = private_key(&dir.path().join("key")).err().unwrap().to_string();
        assert!(error.contains("cannot read") && error.contains("key"), "{error}");
    }
}
