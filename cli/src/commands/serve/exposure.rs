//! Credentials for each address.

use std::net::SocketAddr;

use anyhow::Result;
use lodestore_server::TlsFiles;

use super::ServeArgs;
use crate::security_args::check_key;
use crate::usage::UsageError;

impl ServeArgs {
    /// Fails for an address that others can reach, unless a flag says which clients may connect, or
    /// that all may. Other users of the machine count where the server takes changes.
    pub(super) fn check_exposure(&self, listen: Option<SocketAddr>) -> Result<(), UsageError> {
        let is_exposed = |address: &SocketAddr| !address.ip().is_loopback();
        if let Some(address) = listen.filter(is_exposed).filter(|_| !self.insecure)
            && self.token_file.is_none()
            && self.tls_cert.is_none()
        {
            return Err(UsageError::new(format!(
                "address {address} can be reached from outside, and connections are neither \
                 authenticated nor encrypted; listen on 127.0.0.1, use --unix, give --token-file or \
                 --tls-cert, or add --insecure on a trusted network"
            )));
        }
        let takes_changes = self.writable || self.local_parts || !self.volatile.is_empty();
        if let Some(address) = listen.filter(|_| takes_changes && !self.insecure)
            && self.token_file.is_none()
            && self.tls_client_ca.is_none()
        {
            return Err(UsageError::new(format!(
                "with {} every user of this machine could change rows by {address}: connections \
                 are not authenticated; give --token-file (or --tls-client-ca), serve by --unix alone, \
                 or add --insecure where all users may",
                match (self.writable, self.local_parts) {
                    (true, _) => "--writable",
                    (_, true) => "--local-parts",
                    _ => "--volatile",
                }
            )));
        }
        let metrics = self.metrics.filter(is_exposed).filter(|_| !self.metrics_insecure);
        if let Some(address) = metrics
            && self.token_file.is_none()
        {
            return Err(UsageError::new(format!(
                "metrics on {address} can be read from outside; listen on 127.0.0.1, give \
                 --token-file, or add --metrics-insecure on a trusted network"
            )));
        }
        if let Some(address) = metrics
            && self.tls_cert.is_some()
        {
            return Err(UsageError::new(format!(
                "metrics on {address} want the token, and that port speaks no TLS, so that others can \
                 read it on its way; listen on 127.0.0.1, or add --metrics-insecure on a trusted \
                 network"
            )));
        }
        Ok(())
    }

    /// Returns the files of TLS, if it is requested.
    pub(super) fn tls(&self) -> Result<Option<TlsFiles>> {
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (None, None, None) => Ok(None),
            (Some(cert), Some(key), client_ca) => {
                check_key(key)?;
                let (cert, key, client_ca) = (cert.clone(), key.clone(), client_ca.clone());
                Ok(Some(TlsFiles { cert, key, client_ca }))
            }
            _ => Err(UsageError::new(
                "TLS needs both --tls-cert and --tls-key, and --tls-client-ca goes with them"
                    .to_owned(),
            )
            .into()),
        }
    }
}
