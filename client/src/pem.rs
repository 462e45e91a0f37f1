//! Certificates and keys in files, of which errors never tell a byte: any of them may be of a key.

use std::path::Path;

use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::ClientError;

/// All certificates of a file, of which there must be one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| bad(path, plainly(error)))?;
    if found.is_empty() {
        return Err(bad(path, "no certificate stands in it"));
    }
    Ok(found)
}

/// The key in a file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ClientError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        Error::NoItemsFound => bad(path, "no private key stands in it"),
        error => bad(path, plainly(error)),
    })
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` wants")]
pub(crate) fn bad(path: &Path, reason: impl ToString) -> ClientError {
    ClientError::Tls { path: path.to_owned(), reason: reason.to_string() }
}

/// What is wrong with a file, in words of our own: those of the parser have lines of the file in them.
fn plainly(error: Error) -> String {
    let reason = match error {
        Error::Io(error) => return format!("cannot read: {error}"),
        Error::MissingSectionEnd { .. } => {
            "a section has no END line; PEM has BEGIN and END on lines of their own, and line breaks \
             that are not written as \\n"
        }
        Error::IllegalSectionStart { .. } => {
            "a line that starts like BEGIN goes on otherwise; PEM has it on a line of its own, and \
             line breaks that are not written as \\n"
        }
        Error::Base64Decode(_) => "what stands between BEGIN and END is not base64",
        Error::SectionTooLarge => "a section is larger than any key or certificate",
        _ => "not PEM",
    };
    reason.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgSECRET";

    /// The bytes as text, and as numbers in a list.
    fn is_told(error: &ClientError, line: &str) -> bool {
        let (shown, debugged) = (error.to_string(), format!("{error:?}"));
        let numbers: Vec<String> = line.bytes().map(|byte| byte.to_string()).collect();
        let parts = [line.to_owned(), numbers[..4].join(", "), numbers[..4].join(",")];
        parts.iter().any(|part| shown.contains(part) || debugged.contains(part))
    }

    #[test]
    fn of_a_broken_key_no_byte_is_told() {
        let (begin, end) = ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----");
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, told) in [
            (format!("{begin} {BODY} {end}\n"), "PEM has"),
            (format!("{begin}\\n{BODY}\\n{end}\\n"), "PEM has"),
            (format!("{begin}{BODY}{end}"), "PEM has"),
            (format!("-----BEGIN {BODY}"), "PEM has"),
            (format!("{begin}\n{BODY}\n"), "no END line"),
            (format!("{begin}\n{BODY}\n-----END {BODY}"), "no END line"),
            (format!("{begin}\n{BODY}!\n{end}\n"), "not base64"),
            (BODY.to_owned(), "stands in it"),
            (String::new(), "stands in it"),
        ] {
            std::fs::write(file.path(), &text).unwrap();
            let errors =
                [private_key(file.path()).err().unwrap(), certificates(file.path()).err().unwrap()];
            for error in &errors {
                assert!(!is_told(error, BODY), "{text}: {error}");
                assert!(!is_told(error, "-----BEGIN"), "{text}: {error}");
            }
            assert!(errors[0].to_string().contains(told), "{text}: {}", errors[0]);
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let error = private_key(&dir.path().join("key")).err().unwrap().to_string();
        assert!(error.contains("cannot read") && error.contains("key"), "{error}");
    }
}
