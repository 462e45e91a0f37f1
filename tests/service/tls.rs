//! TLS, of the server alone and of both sides.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::support::graph::Source;
use crate::support::process::{Serving, lode_line};
use crate::write_file;

/// An authority, and the files of who it vouches for.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert: PathBuf,
}

impl Authority {
    fn new(source: &Source, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let cert = source.file(&format!("{name}.pem"));
        write_file(&cert, &params.self_signed(&key).unwrap().pem(), 0o644);
        Self { issuer: Issuer::new(params, key), cert }
    }

    /// Certificate and key for these names, as arguments.
    fn sign(&self, source: &Source, file: &str, names: &[&str]) -> String {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let paths = [source.file(&format!("{file}.pem")), source.file(&format!("{file}.key"))];
        write_file(&paths[0], &cert.pem(), 0o644);
        write_file(&paths[1], &key.serialize_pem(), 0o600);
        format!("--tls-cert {} --tls-key {}", paths[0].display(), paths[1].display())
    }

    fn trusted(&self) -> String {
        format!("--tls-ca {}", self.cert.display())
    }
}

#[test]
fn rows_come_under_tls_from_servers_whose_certificate_is_right_and_from_no_other() {
    let source = Source::random(900, 3000);
    let graph = source.import("graph", 2, "hash");
    let (ours, theirs) = (Authority::new(&source, "ours"), Authority::new(&source, "theirs"));
    let server_files = ours.sign(&source, "server", &["localhost", "127.0.0.1"]);
    let server = Serving::start(&graph, &format!("--listen 127.0.0.1:0 --shards 2 {server_files}"));
    let port = server.address.rsplit(':').next().unwrap();
    let verify = format!("--verify {} --duration 0.4 --warm-up 0", graph.display());
    for host in ["127.0.0.1", "localhost"] {
        let load = format!("load --json --connect {host}:{port} {}", ours.trusted());
        for more in ["--rows 300 --window 3", "--rows 9 --tensor wide", "--rows 900 --tensor wide"]
        {
            let report = lode_line(&format!("{load} {more} {verify}")).succeeded().json();
            assert_eq!(report["wrong_rows"], 0);
            assert_eq!(report["errors"].as_object().unwrap().len(), 0, "{report}");
        }
    }
    let stat = format!("stat --deadline 5 {}", server.address);
    lode_line(&format!("{stat} {}", ours.trusted())).succeeded();
    lode_line(&format!("{stat} {}", theirs.trusted())).failed(1, &["no TLS", "certificate"]);
    lode_line(&stat).failed(1, &[&server.address]);
    server.stop();
    // A certificate for another name, and no TLS at all.
    let elsewhere = ours.sign(&source, "elsewhere", &["elsewhere.lan"]);
    let server = Serving::start(&graph, &format!("--listen 127.0.0.1:0 {elsewhere}"));
    let stat = format!("stat --deadline 5 {} {}", server.address, ours.trusted());
    lode_line(&stat).failed(1, &["no TLS", "not valid for name"]);
    server.stop();
    let server = Serving::start(&graph, "--listen 127.0.0.1:0");
    let stat = format!("stat --deadline 5 {} {}", server.address, ours.trusted());
    lode_line(&stat).failed(1, &["no TLS"]);
    server.stop();
}

#[test]
fn a_server_may_want_certificates_of_its_clients() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let (ours, theirs) = (Authority::new(&source, "ours"), Authority::new(&source, "theirs"));
    let server_files = ours.sign(&source, "server", &["127.0.0.1"]);
    let args =
        format!("--listen 127.0.0.1:0 {server_files} --tls-client-ca {}", ours.cert.display());
    let server = Serving::start(&graph, &args);
    let stat = format!("stat --deadline 5 {} {}", server.address, ours.trusted());
    let friend = ours.sign(&source, "friend", &["friend"]);
    lode_line(&format!("{stat} {friend}")).succeeded();
    lode_line(&stat).failed(1, &[&server.address]);
    let stranger = theirs.sign(&source, "stranger", &["stranger"]);
    lode_line(&format!("{stat} {stranger}")).failed(1, &[&server.address]);
    server.stop();
    write_file(&source.file("server.key"), "", 0o644);
    lode_line(&format!("serve {} {args}", graph.display())).failed(1, &["server.key", "mode 644"]);
    write_file(&source.file("server.key"), "nothing", 0o600);
    lode_line(&format!("serve {} {args}", graph.display())).failed(1, &["server.key", "PEM"]);
}
