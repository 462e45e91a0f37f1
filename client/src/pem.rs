//! Files of certificates and keys.

use std::fs::File;
use std::path::Path;

use lodestore_schema::pem;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::ClientError;

/// Reads all certificates of a file, of which there must be one.
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
pub(crate) fn bad(path: &Path, reason: impl ToString) -> ClientError {
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
