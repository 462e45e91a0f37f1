//! A real etcd of one member on free ports, with a folder of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use testing::http::exchange;

pub(crate) struct Engine {
    dir: TempDir,
    ports: [u16; 2],
    /// Flags of TLS with clients; without them it speaks none.
    tls: Vec<String>,
    /// Whether it wants users.
    has_users: bool,
    child: Option<Child>,
}

impl Engine {
    /// Starts one and waits until it answers; `None` where it is not installed.
    pub(crate) fn start() -> Option<Self> {
        let this = Self::prepared()?;
        Some(this.started())
    }

    /// Returns one that does not run yet, although its place is known.
    pub(crate) fn prepared() -> Option<Self> {
        let version = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        assert!(
            version.is_ok() || std::env::var_os("LODE_NEEDS_ETCD").is_none(),
            "etcd is not installed"
        );
        version.ok()?;
        let free = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, other) = (free(), free());
        let ports = [one, other].map(|socket| socket.local_addr().unwrap().port());
        Some(Self {
            dir: tempfile::tempdir().unwrap(),
            ports,
            tls: Vec::new(),
            has_users: false,
            child: None,
        })
    }

    pub(crate) fn started(mut self) -> Self {
        self.run();
        self
    }

    /// Starts it again where it was, with what it had.
    pub(crate) fn run(&mut self) {
        let scheme = if self.tls.is_empty() { "http" } else { "https" };
        let [clients, peers] = self.ports;
        let clients = format!("{scheme}://127.0.0.1:{clients}");
        let peers = format!("http://127.0.0.1:{peers}");
        let child = Command::new("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("one={peers}")])
            .args(&self.tls)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap());
        crate::eventually("etcd answers", || {
            let address = format!("127.0.0.1:{}", self.ports[0]);
            // Under TLS and where it wants users it answers those that have what it wants.
            match self.tls.is_empty() && !self.has_users {
                true => self.try_ask("kv/range", &json!({"key": "YQ=="})).is_some(),
                false => std::net::TcpStream::connect(address).is_ok(),
            }
        });
    }

    /// Makes a user that may do everything below `test/`, and refuses others from now on.
    pub(crate) fn want_users(&mut self, name: &str, password: &str) {
        let end = STANDARD.encode("test0");
        let permission =
            json!({"permType": "READWRITE", "key": STANDARD.encode("test/"), "range_end": end});
        for (path, body) in [
            ("auth/user/add", json!({"name": "root", "password": password})),
            ("auth/role/add", json!({"name": "root"})),
            ("auth/user/grant", json!({"user": "root", "role": "root"})),
            ("auth/user/add", json!({"name": name, "password": password})),
            ("auth/role/add", json!({"name": "servers"})),
            ("auth/role/grant", json!({"name": "servers", "perm": permission})),
            ("auth/user/grant", json!({"user": name, "role": "servers"})),
            ("auth/enable", json!({})),
        ] {
            self.ask(path, &body);
        }
        self.has_users = true;
    }

    /// Speaks TLS from the next start on, with clients that show a certificate of `ca`.
    pub(crate) fn want_tls(&mut self, ca: &Path, cert: &Path, key: &Path) {
        let files = [("--cert-file", cert), ("--key-file", key), ("--trusted-ca-file", ca)];
        let flags = files.map(|(flag, file)| [flag.to_owned(), file.display().to_string()]);
        self.tls = flags.into_iter().flatten().chain(["--client-cert-auth".to_owned()]).collect();
    }

    /// Kills it without a warning.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Returns the map of servers, as servers and clients receive it.
    pub(crate) fn map(&self) -> String {
        format!("etcd:127.0.0.1:{}/test", self.ports[0])
    }

    /// Sets a key below `test/servers/`.
    pub(crate) fn put(&self, name: &str, value: &[u8]) {
        let key = STANDARD.encode(format!("test/servers/{name}"));
        self.ask("kv/put", &json!({"key": key, "value": STANDARD.encode(value)}));
    }

    /// Returns the values of the keys of servers.
    pub(crate) fn servers(&self) -> Vec<Value> {
        let (key, end) = (STANDARD.encode("test/servers/"), STANDARD.encode("test/servers0"));
        let found = self.ask("kv/range", &json!({"key": key, "range_end": end}));
        let value = |pair: &Value| {
            let bytes = STANDARD.decode(pair["value"].as_str().unwrap_or_default()).unwrap();
            serde_json::from_slice(&bytes).unwrap_or(Value::Null)
        };
        found["kvs"].as_array().map(|pairs| pairs.iter().map(value).collect()).unwrap_or_default()
    }

    fn ask(&self, path: &str, body: &Value) -> Value {
        self.try_ask(path, body).expect("etcd answers")
    }

    fn try_ask(&self, path: &str, body: &Value) -> Option<Value> {
        let (address, body) = (format!("127.0.0.1:{}", self.ports[0]), body.to_string());
        std::net::TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(1))
            .ok()?;
        let request = format!(
            "POST /v3/{path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(&address, request.as_bytes())?;
        (answer.status == 200).then(|| serde_json::from_str(&answer.body).unwrap())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}
