//! A real etcd of one member on free ports, with a folder of its own.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http::exchange;

pub(crate) struct Engine {
    dir: TempDir,
    ports: [u16; 2],
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
        Some(Self { dir: tempfile::tempdir().unwrap(), ports, child: None })
    }

    pub(crate) fn started(mut self) -> Self {
        self.run();
        self
    }

    /// Starts it again where it was, with what it had.
    pub(crate) fn run(&mut self) {
        let [clients, peers] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let child = Command::new("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("one={peers}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap());
        crate::eventually("etcd answers", || {
            self.try_ask("kv/range", &json!({"key": "YQ=="})).is_some()
        });
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
