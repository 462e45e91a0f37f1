//! Certificates and keys as PEM. Errors never contain a byte of them: any may be of a key.

use std::io::Read;

use rustls_pki_types::pem::{Error, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Returns all certificates of a file, of which there must be one.
///
/// # Errors
/// The fault of the file, in words without its bytes.
pub fn certificates(file: impl Read) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(file).collect();
    let found = found.map_err(plainly)?;
    if found.is_empty() {
        return Err("no certificate is in it; give a file in PEM".to_owned());
    }
    Ok(found)
}

/// Returns the key in a file.
///
/// # Errors
/// The fault of the file, in words without its bytes.
pub fn private_key(file: impl Read) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_reader(file).map_err(|error| match error {
        Error::NoItemsFound => "no private key is in it; give a file in PEM".to_owned(),
        error => plainly(error),
    })
}

/// Returns the fault that a TLS library found with a certificate, in words where it has but a name.
#[must_use]
pub fn certificate_fault(reason: &str) -> String {
    match reason.contains("UnsupportedCertVersion") {
        true => {
            "the certificate is X.509 version 1, and version 3 is taken; sign it with extensions \
                 (docs/operations.md, Secure)"
                .to_owned()
        }
        false => reason.to_owned(),
    }
}

/// Returns what is wrong with a file, in words of our own: those of the parser have lines of the
/// file in them.
fn plainly(error: Error) -> String {
    let reason = match error {
        Error::Io(error) => return format!("cannot read: {error}"),
        Error::MissingSectionEnd { .. } => {
            "a section has no END line; PEM has BEGIN and END on lines of their own, and line breaks \
             that are not written as \\n"
        }
        Error::IllegalSectionStart { .. } => {
            "a line that starts like BEGIN continues otherwise; PEM has it on a line of its own, and \
             line breaks that are not written as \\n"
        }
        Error::Base64Decode(_) => "the text between BEGIN and END is not base64",
        Error::SectionTooLarge => "a section is larger than any key or certificate",
        _ => "not PEM; give a file in PEM",
    };
    reason.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgSECRET";

    /// Returns the bytes as text, and as numbers in a list.
    fn is_told(error: &String, line: &str) -> bool {
        let (shown, debugged) = (error.to_string(), format!("{error:?}"));
        let numbers: Vec<String> = line.bytes().map(|byte| byte.to_string()).collect();
        let parts = [line.to_owned(), numbers[..4].join(", "), numbers[..4].join(",")];
        parts.iter().any(|part| shown.contains(part) || debugged.contains(part))
    }

    #[test]
    fn of_a_broken_key_no_byte_is_printed() {
        let (begin, end) = ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----");
        for (text, told) in [
            (format!("{begin} {BODY} {end}\n"), "PEM has"),
            (format!("{begin}\\n{BODY}\\n{end}\\n"), "PEM has"),
            (format!("{begin}{BODY}{end}"), "PEM has"),
            (format!("-----BEGIN {BODY}"), "PEM has"),
            (format!("{begin}\n{BODY}\n"), "no END line"),
            (format!("{begin}\n{BODY}\n-----END {BODY}"), "no END line"),
            (format!("{begin}\n{BODY}!\n{end}\n"), "not base64"),
            (BODY.to_owned(), "is in it"),
            (String::new(), "is in it"),
        ] {
            let bytes = text.as_bytes();
            let errors = [private_key(bytes).err().unwrap(), certificates(bytes).err().unwrap()];
            for error in &errors {
                assert!(!is_told(error, BODY), "{text}: {error}");
                assert!(!is_told(error, "-----BEGIN"), "{text}: {error}");
            }
            assert!(errors[0].contains(told), "{text}: {}", errors[0]);
        }
    }
}
