//! Credentials that a connection must present before it is served: certificates and tokens.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, RwLock};

use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::pem;
pub use lodestore_schema::token::{BadToken, BadTokens};
pub use lodestore_schema::{Token, Tokens};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;

use crate::config::{ServerConfig, TlsFiles};
use crate::error::ServerError;

/// Credentials required of TCP clients; by default none.
#[derive(Default)]
pub(crate) struct AuthPolicy {
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    pub(crate) token: Option<Tokens>,
    /// Token that is required to move partitions.
    pub(crate) admin_token: Option<Tokens>,
    /// Whether clients must present a certificate.
    pub(crate) asks_certificate: bool,
}

impl AuthPolicy {
    /// Reads certificates and keys.
    pub(crate) fn new(config: &ServerConfig) -> Result<Self, ServerError> {
        let tls = config.tls.as_ref().map(tls_config).transpose()?;
        let asks_certificate = config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let (token, admin_token) = (config.token, config.admin_token);
        Ok(Self { tls, token, admin_token, asks_certificate })
    }

    /// Returns which kinds of credentials clients must present, by the name of the setting.
    fn asks(&self) -> [(&'static str, bool); 4] {
        [
            ("token", self.token.is_some()),
            ("admin_token", self.admin_token.is_some()),
            ("tls", self.tls.is_some()),
            ("tls.client_ca", self.asks_certificate),
        ]
    }
}

/// The credentials in use. They are replaced as a whole, and apply to later connections.
#[derive(Default)]
pub(crate) struct AuthHandle(RwLock<Arc<AuthPolicy>>);

impl AuthHandle {
    pub(crate) fn new(policy: AuthPolicy) -> Self {
        Self(RwLock::new(Arc::new(policy)))
    }

    /// Returns the credentials required of new connections.
    pub(crate) fn policy(&self) -> Arc<AuthPolicy> {
        Arc::clone(&self.0.read().ignore_poison())
    }

    /// Replaces the policy by one with the same kinds of credentials, so that no connection is
    /// admitted with fewer credentials than before.
    fn renew(&self, policy: AuthPolicy) -> Result<(), ServerError> {
        let mut inner = self.0.write().ignore_poison();
        let changed = inner.asks().into_iter().zip(policy.asks()).find(|(now, new)| now != new);
        if let Some(((setting, is_asked), _)) = changed {
            return Err(ServerError::Renewal { setting, is_asked });
        }
        *inner = Arc::new(policy);
        Ok(())
    }
}

/// Replaces tokens and certificates of a running server.
#[derive(Clone)]
pub struct CredentialReloader(pub(crate) Arc<AuthHandle>);

impl CredentialReloader {
    /// Replaces the credentials required of later connections by those of `config`, and reads the
    /// files again. Other settings are ignored. Open connections are not affected.
    ///
    /// # Errors
    /// `Tls` for an unusable file, and `Renewal` if a kind of credential is added or removed.
    /// Settings that [`Server::start`](crate::server::Server::start) rejects fail here likewise.
    /// After an error the old credentials stay in use.
    pub fn renew(&self, config: &ServerConfig) -> Result<(), ServerError> {
        config.check()?;
        self.0.renew(AuthPolicy::new(config)?)
    }
}

fn tls_config(files: &TlsFiles) -> Result<Arc<rustls::ServerConfig>, ServerError> {
    let TlsFiles { cert, key, client_ca } = files;
    let provider = Arc::new(ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| bad(cert, error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for cert in certificates(path)? {
                let added = roots.add(cert);
                added.map_err(|error| bad(path, pem::certificate_fault(&error.to_string())))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| bad(path, error))?)
        }
    };
    let private = pem::private_key(open_regular(key)?).map_err(|reason| bad(key, reason))?;
    let config = builder.with_single_cert(certificates(cert)?, private);
    let fault = |error: rustls::Error| bad(cert, pem::certificate_fault(&error.to_string()));
    Ok(Arc::new(config.map_err(fault)?))
}

/// Reads all certificates of a file; fails if there is none.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerError> {
    pem::certificates(open_regular(path)?).map_err(|reason| bad(path, reason))
}

/// Opens a file without blocking, even if it is a pipe.
fn open_regular(path: &Path) -> Result<File, ServerError> {
    let unread = |error: io::Error| bad(path, format!("cannot read: {error}"));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(|error| unread(error.into()))?;
    let mode = fstat(&file).map_err(|error| unread(error.into()))?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::RegularFile {
        return Err(bad(path, "not a regular file"));
    }
    Ok(file.into())
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` wants")]
fn bad(path: &Path, reason: impl ToString) -> ServerError {
    ServerError::Tls { path: path.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(token: Option<&str>, admin: Option<&str>) -> ServerConfig {
        let [token, admin_token] =
            [token, admin].map(|it| it.map(|text| Tokens::parse(text).unwrap()));
        let listen = Some(([127, 0, 0, 1], 0).into());
        ServerConfig { listen, token, admin_token, ..ServerConfig::new("graph") }
    }

    /// Returns the text of the current token.
    fn told(auth: &AuthHandle) -> Option<&'static str> {
        let tokens = auth.policy().token?;
        TEXTS.into_iter().find(|text| tokens.first().as_bytes() == text.as_bytes())
    }

    const TEXTS: [&str; 3] =
        ["first-first-first-first", "second-second-second", "third-third-third-third"];

    #[test]
    fn tokens_are_replaced_but_not_added_or_removed() {
        let [first, second, third] = TEXTS.map(Some);
        let auth = Arc::new(AuthHandle::new(AuthPolicy::new(&config(first, second)).unwrap()));
        let credential_reloader = CredentialReloader(Arc::clone(&auth));
        for (token, admin, named) in
            [(None, second, "token"), (first, None, "admin_token"), (None, None, "token")]
        {
            let error = credential_reloader.renew(&config(token, admin)).unwrap_err();
            let is_it = matches!(&error, ServerError::Renewal { setting, is_asked: true }
                if *setting == named);
            assert!(is_it, "{error}");
        }
        let exposed = Some(([10, 0, 0, 1], 0).into());
        let config_of = |token| ServerConfig { listen: exposed, ..config(token, None) };
        let error = credential_reloader.renew(&config_of(None)).unwrap_err();
        assert!(matches!(error, ServerError::Exposed { .. }), "{error}");
        assert_eq!(told(&auth), first, "the token stays");
        credential_reloader.renew(&config(third, second)).unwrap();
        assert_eq!(told(&auth), third);
        let open = CredentialReloader(Arc::new(AuthHandle::new(
            AuthPolicy::new(&config(None, None)).unwrap(),
        )));
        let error = open.renew(&config(first, None)).unwrap_err();
        assert!(error.to_string().contains("token was not set"), "{error}");
    }

    #[test]
    fn a_required_client_certificate_stays_required() {
        let with = |asks_certificate| AuthPolicy { asks_certificate, ..AuthPolicy::default() };
        for asked in [false, true] {
            let auth = AuthHandle::new(with(asked));
            let error = auth.renew(with(!asked)).unwrap_err();
            assert!(error.to_string().contains("tls.client_ca"), "{error}");
            auth.renew(with(asked)).unwrap();
        }
    }

    #[test]
    fn a_missing_file_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let error = open_regular(&dir.path().join("key")).unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("key"), "{error}");
    }
}
