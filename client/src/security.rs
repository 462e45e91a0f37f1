//! What a client shows to servers over TCP, and what it wants to see of them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use lodestore_schema::Token;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::ClientError;

/// Token and certificates of a client; by default none, and connections in the clear.
///
/// Over a Unix socket neither is used: its mode says who may open it.
#[derive(Clone, Default)]
pub struct Security {
    pub(crate) token: Option<Token>,
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
}

impl Security {
    /// Tells `token` first on every connection.
    #[must_use]
    pub fn with_token(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Speaks TLS with servers whose certificates an authority in the file `ca` has signed, and
    /// shows a certificate of its own if `identity` (certificate and key) is given. All are PEM.
    ///
    /// # Errors
    /// [`ClientError::Tls`] when a file cannot be used.
    pub fn with_tls(
        self,
        ca: &Path,
        identity: Option<(&Path, &Path)>,
    ) -> Result<Self, ClientError> {
        let mut roots = RootCertStore::empty();
        for cert in certificates(ca)? {
            roots.add(cert).map_err(|error| bad(ca, error))?;
        }
        let builder =
            rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|error| bad(ca, error))?
                .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let private = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, error))?;
                let config = builder.with_client_auth_cert(certificates(cert)?, private);
                config.map_err(|error| bad(cert, error))?
            }
        };
        Ok(Self { tls: Some(Arc::new(config)), ..self })
    }
}

/// All certificates of a file, of which there must be one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| bad(path, error))?;
    if found.is_empty() {
        return Err(bad(path, "no certificate stands in it"));
    }
    Ok(found)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` wants")]
fn bad(path: &Path, reason: impl ToString) -> ClientError {
    ClientError::Tls { path: path.to_owned(), reason: reason.to_string() }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (token, tls) = (self.token.is_some(), self.tls.is_some());
        f.debug_struct("Security").field("token", &token).field("tls", &tls).finish()
    }
}
