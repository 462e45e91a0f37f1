//! What a connection must show before it is served: certificates and a token.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use lodestore_schema::Token;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;

use crate::pem::{bad, certificates, private_key};
use crate::{ServerConfig, ServerError};

/// PEM files of a server that speaks TLS.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Its certificate, and those between it and an authority.
    pub cert: PathBuf,
    /// The key of its certificate.
    pub key: PathBuf,
    /// Authorities of clients; none takes clients without a certificate.
    pub client_ca: Option<PathBuf>,
}

/// What is asked of those who connect over TCP. By default nothing.
#[derive(Default)]
pub(crate) struct Guard {
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    pub(crate) token: Option<Token>,
    /// What those who move partitions must tell.
    pub(crate) admin_token: Option<Token>,
}

impl Guard {
    /// Reads certificates and keys.
    pub(crate) fn new(config: &ServerConfig) -> Result<Self, ServerError> {
        let tls = config.tls.as_ref().map(tls_config).transpose()?;
        Ok(Self { tls, token: config.token, admin_token: config.admin_token })
    }
}

/// The guard of all doors, replaced as a whole: whoever comes later must show what the new one asks.
#[derive(Default)]
pub(crate) struct Gate(RwLock<Arc<Guard>>);

impl Gate {
    pub(crate) fn new(guard: Guard) -> Self {
        Self(RwLock::new(Arc::new(guard)))
    }

    /// What is asked of those who connect now.
    pub(crate) fn guard(&self) -> Arc<Guard> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn renew(&self, guard: Guard) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(guard);
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
                roots.add(cert).map_err(|error| bad(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| bad(path, error))?)
        }
    };
    let private = private_key(key)?;
    let config = builder.with_single_cert(certificates(cert)?, private);
    Ok(Arc::new(config.map_err(|error| bad(cert, error))?))
}
