//! Credentials for etcd: authorities, a certificate, a user.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::ClientError;
use crate::security::{certificates, private_key};

/// How clients and servers reach an etcd that requires TLS or a user. The default has neither.
#[derive(Clone, Default)]
pub struct EtcdAccess {
    pub(super) tls: Option<Arc<EtcdTls>>,
    pub(super) user: Option<Arc<EtcdUser>>,
}

/// Certificates of TLS with etcd.
#[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "etcd alone reads it"))]
pub(super) struct EtcdTls {
    /// The file of the authorities, for messages.
    pub(super) ca: PathBuf,
    pub(super) authorities: Vec<CertificateDer<'static>>,
    /// The certificates to present, and their key.
    pub(super) identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

/// A user of etcd.
#[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "etcd alone reads it"))]
pub(super) struct EtcdUser {
    pub(super) name: String,
    pub(super) password: String,
}

impl EtcdAccess {
    /// Speaks TLS with an etcd whose certificate is signed by an authority in the file `ca`.
    /// Presents a certificate if `identity` (certificate and key) is given. All files are PEM.
    ///
    /// # Errors
    /// [`ClientError::Tls`] if a file cannot be used.
    pub fn with_tls(
        self,
        ca: &Path,
        identity: Option<(&Path, &Path)>,
    ) -> Result<Self, ClientError> {
        let identity = match identity {
            None => None,
            Some((cert, key)) => Some((certificates(cert)?, private_key(key)?)),
        };
        let tls = EtcdTls { ca: ca.to_owned(), authorities: certificates(ca)?, identity };
        Ok(Self { tls: Some(Arc::new(tls)), ..self })
    }

    /// Authenticates as a user. Beyond loopback this requires TLS.
    #[must_use]
    pub fn with_user(self, name: &str, password: &str) -> Self {
        let user = EtcdUser { name: name.to_owned(), password: password.to_owned() };
        Self { user: Some(Arc::new(user)), ..self }
    }
}

impl fmt::Debug for EtcdAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|user| &user.name);
        f.debug_struct("EtcdAccess").field("tls", &self.tls.is_some()).field("user", &user).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        let access = EtcdAccess::default().with_user("lode", "SECRET");
        let text = format!("{access:?}");
        assert!(text.contains("lode") && !text.contains("SECRET"), "{text}");
    }
}
