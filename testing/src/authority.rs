//! Certificates that tests sign themselves.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair};

use crate::write_file;

/// An authority, and the files of the certificates that it signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub cert: PathBuf,
}

impl Authority {
    pub fn new(dir: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let cert = dir.join(format!("{name}.pem"));
        write_file(&cert, &params.self_signed(&key).unwrap().pem(), 0o644);
        Self { issuer: Issuer::new(params, key), cert }
    }

    /// Writes a certificate and key for these names, and returns them as arguments.
    pub fn sign(&self, dir: &Path, file: &str, names: &[&str]) -> String {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        // etcd takes none with a common name beside its users.
        params.distinguished_name = DistinguishedName::new();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let paths = [dir.join(format!("{file}.pem")), dir.join(format!("{file}.key"))];
        write_file(&paths[0], &cert.pem(), 0o644);
        write_file(&paths[1], &key.serialize_pem(), 0o600);
        format!("--tls-cert {} --tls-key {}", paths[0].display(), paths[1].display())
    }

    pub fn trusted(&self) -> String {
        format!("--tls-ca {}", self.cert.display())
    }
}
