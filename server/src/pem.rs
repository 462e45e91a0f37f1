//! Files of certificates and keys.

use std::fs::File;
use std::io;
use std::path::Path;

use lodestore_schema::pem;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::ServerError;

/// Reads all certificates of a file, of which there must be one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerError> {
    pem::certificates(open_regular(path)?).map_err(|reason| bad(path, reason))
}

/// Reads the key in a file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ServerError> {
    pem::private_key(open_regular(path)?).map_err(|reason| bad(path, reason))
}

/// Opens a file without blocking, as an open of a pipe would.
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
pub(crate) fn bad(path: &Path, reason: impl ToString) -> ServerError {
    ServerError::Tls { path: path.to_owned(), reason: reason.to_string() }
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
