//! An etcd with TLS, certificates of its clients, and users with passwords.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lodestore_client::cluster::EtcdAccess;
use lodestore_client::{Client, ClientConfig, ClientError};
use lodestore_graph::npy::NpyType;

use crate::engine::Engine;
use crate::{N_NODES, check};
use testing::authority::Authority;
use testing::process::{Serving, lode_line};
use testing::workload::known_graph;
use testing::{write_file, write_npy};

const PASSWORD: &str = "0123456789SECRET";

/// Files of certificates and passwords.
struct Files {
    dir: PathBuf,
    authority: Authority,
}

impl Files {
    fn new(dir: &Path) -> Self {
        let authority = Authority::new(dir, "authority");
        for name in ["etcd", "client"] {
            authority.sign(dir, name, &["127.0.0.1"]);
        }
        write_file(&dir.join("password"), &format!("{PASSWORD}\n"), 0o600);
        Self { dir: dir.to_owned(), authority }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the flags of a client of etcd.
    fn flags(&self) -> String {
        format!(
            "--etcd-ca {} --etcd-cert {} --etcd-key {} --etcd-user lode --etcd-password-file {}",
            self.authority.cert.display(),
            self.file("client.pem").display(),
            self.file("client.key").display(),
            self.file("password").display()
        )
    }

    /// Returns an access with TLS.
    fn tls(&self) -> EtcdAccess {
        let (cert, key) = (self.file("client.pem"), self.file("client.key"));
        let identity = Some((cert.as_path(), key.as_path()));
        EtcdAccess::default().with_tls(&self.authority.cert, identity).unwrap()
    }
}

fn connect(engine: &Engine, etcd: EtcdAccess, seconds: u64) -> Result<Client, ClientError> {
    let deadline = Duration::from_secs(seconds);
    Client::connect(&[engine.map()], ClientConfig { deadline, etcd, ..ClientConfig::default() })
}

#[test]
fn servers_and_clients_authenticate_with_an_etcd_that_wants_certificates_and_users() {
    let Some(mut engine) = Engine::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path());
    engine.want_users("lode", PASSWORD);
    engine.kill();
    engine.want_tls(&files.authority.cert, &files.file("etcd.pem"), &files.file("etcd.key"));
    engine.run();
    let graph = known_graph(dir.path(), N_NODES, 3);
    let serve =
        format!("--shards 1 --listen 127.0.0.1:0 --register {} {}", engine.map(), files.flags());
    let server = Serving::start(&graph, &serve);
    let right = files.tls().with_user("lode", PASSWORD);
    let client = connect(&engine, right.clone(), 20).unwrap();
    check(&client);
    let (ids, out) = (dir.path().join("ids.npy"), dir.path().join("out.npy"));
    write_npy(&ids, NpyType::U32, &[1], &[5u32]);
    let gather = format!(
        "gather --connect {} {} --tensor feat --ids {} --out {}",
        engine.map(),
        files.flags(),
        ids.display(),
        out.display()
    );
    lode_line(&gather).succeeded();
    // Its tokens end with it: server and client authenticate again.
    engine.kill();
    engine.run();
    // The lease of 6 s would be over by then.
    std::thread::sleep(Duration::from_secs(8));
    check(&connect(&engine, right, 5).unwrap());
    check(&client);
    let log = server.stop_and_take_log();
    assert!(!log.contains("SECRET"), "{log}");
}

#[test]
fn what_a_secured_etcd_refuses_is_named() {
    let Some(mut engine) = Engine::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path());
    let other = Authority::new(dir.path(), "other");
    other.sign(dir.path(), "stranger", &["127.0.0.1"]);
    engine.want_users("lode", PASSWORD);
    let refused = |engine: &Engine, access: EtcdAccess, said: &[&str]| {
        let error = connect(engine, access, 1).err().unwrap();
        assert!(matches!(error, ClientError::Map { .. }), "{error}");
        let text = error.to_string();
        for part in said {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
        assert!(!text.contains("SECRET"), "{text}");
    };
    // On loopback a password needs no TLS.
    refused(&engine, EtcdAccess::default(), &["etcd requires a user and a password"]);
    let wrong = EtcdAccess::default().with_user("lode", "SECRET of another");
    refused(&engine, wrong, &["authentication failed", "user `lode`"]);
    refused(&engine, files.tls(), &["etcd may not speak TLS"]);
    engine.kill();
    engine.want_tls(&files.authority.cert, &files.file("etcd.pem"), &files.file("etcd.key"));
    engine.run();
    refused(&engine, EtcdAccess::default(), &["etcd may require TLS"]);
    refused(&engine, files.tls(), &["etcd requires a user and a password"]);
    let ca = &files.authority.cert;
    let without = EtcdAccess::default().with_tls(ca, None).unwrap();
    refused(&engine, without, &["etcd requires a certificate of its clients"]);
    let stranger = (files.file("stranger.pem"), files.file("stranger.key"));
    let identity = Some((stranger.0.as_path(), stranger.1.as_path()));
    let stranger = EtcdAccess::default().with_tls(ca, identity).unwrap();
    refused(&engine, stranger, &["etcd refuses the certificate of this client"]);
    let unknown = EtcdAccess::default().with_tls(&other.cert, None).unwrap();
    let said = format!("signed by no authority of {}", other.cert.display());
    refused(&engine, unknown, &[&said]);
    // A server that is refused serves on, and logs it.
    let graph = known_graph(dir.path(), N_NODES, 3);
    let map = engine.map();
    let line =
        format!("--shards 1 --listen 127.0.0.1:0 --register {map} --etcd-ca {}", ca.display());
    let server = Serving::start(&graph, &line);
    std::thread::sleep(Duration::from_secs(2));
    let log = server.stop_and_take_log();
    assert!(log.contains("not registered in etcd") && log.contains("a certificate"), "{log}");
}
