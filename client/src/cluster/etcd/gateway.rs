//! etcd by its gateway: JSON over HTTP, keys and values in base64.

use std::io::{BufRead, BufReader, Read};
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lodestore_graph::lock::IgnorePoison;
use serde::Deserialize;
use serde_json::{Value, json};
use ureq::Agent;

use super::super::{MAP_BYTES_MAX, SERVERS_MAX};
use super::EtcdLocation;

/// Longest time for a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a first answer is waited for.
pub(super) const CALL_PATIENCE: Duration = Duration::from_secs(3);
/// How long a watch continues before it is begun again: an etcd that is gone is noticed by then.
pub(super) const WATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The failure, as a sentence.
pub(super) type GatewayResult<T> = Result<T, String>;

/// A client of etcd's gateway.
pub(super) struct Gateway {
    place: EtcdLocation,
    calls: Agent,
    watches: Agent,
    /// The endpoint that answered last.
    current: Mutex<usize>,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    revision: String,
}

#[derive(Deserialize)]
struct Ranged {
    header: Header,
    #[serde(default)]
    kvs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    #[serde(default)]
    value: String,
}

/// Returns the graph that a value names; nonsense is no graph's name.
fn graph_in(pair: &Pair) -> String {
    let bytes = STANDARD.decode(&pair.value).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Gateway {
    pub(super) fn new(place: EtcdLocation) -> Self {
        let agent = |timeout| -> Agent {
            let config = Agent::config_builder();
            config.timeout_global(Some(timeout)).max_redirects(0).build().into()
        };
        let (calls, watches) = (agent(CALL_TIMEOUT), agent(WATCH_TIMEOUT));
        Self { place, calls, watches, current: Mutex::new(0) }
    }

    pub(super) fn place(&self) -> &EtcdLocation {
        &self.place
    }

    /// Returns the values of all servers' keys, the graph of the prefix, and their revision.
    pub(super) fn range(&self) -> GatewayResult<(Vec<Vec<u8>>, Option<String>, u64)> {
        let (key, range_end) = self.servers();
        let body = json!({"key": key, "range_end": range_end, "limit": SERVERS_MAX});
        let ranged: Ranged = self.call("kv/range", &body)?;
        let revision = ranged.header.revision.parse().map_err(|_| "no revision".to_owned())?;
        // What is no base64 is no value of etcd's, and so no server's.
        let values = ranged.kvs.into_iter().map(|pair| STANDARD.decode(pair.value));
        let values = values.map(Result::unwrap_or_default).collect();
        // After the servers, none of which is there before it.
        Ok((values, self.graph()?, revision))
    }

    fn graph(&self) -> GatewayResult<Option<String>> {
        let key = STANDARD.encode(self.place.graph());
        let ranged: Ranged = self.call("kv/range", &json!({"key": key}))?;
        Ok(ranged.kvs.first().map(graph_in))
    }

    /// Sets the graph of the prefix, unless it has one; returns the graph that it has then.
    pub(super) fn claim(&self, graph: &str) -> GatewayResult<String> {
        let key = STANDARD.encode(self.place.graph());
        let absent = json!({
            "key": key, "target": "CREATE", "create_revision": "0", "result": "EQUAL"
        });
        let put = json!({"request_put": {"key": key, "value": STANDARD.encode(graph)}});
        let look = json!({"request_range": {"key": key}});
        let body = json!({"compare": [absent], "success": [put], "failure": [look]});
        let done: Value = self.call("kv/txn", &body)?;
        if done["succeeded"] == Value::Bool(true) {
            return Ok(graph.to_owned());
        }
        // A range within a transaction has no header.
        let found = done["responses"][0]["response_range"]["kvs"][0].clone();
        let found: Option<Pair> =
            serde_json::from_value(found).map_err(|error| error.to_string())?;
        Ok(found.as_ref().map(graph_in).unwrap_or_default())
    }

    /// Waits until a server's key changes after `revision`, [`WATCH_TIMEOUT`] at most.
    pub(super) fn wait_for_change(&self, revision: u64) -> GatewayResult<()> {
        let (key, range_end) = self.servers();
        let start = (revision + 1).to_string();
        let watch = json!({"key": key, "range_end": range_end, "start_revision": start});
        let url = self.url("watch");
        let answer = self.watches.post(&url).send(json!({"create_request": watch}).to_string());
        let body = answer.map_err(|error| error.to_string())?.into_body().into_reader();
        let mut lines = BufReader::new(body.take(MAP_BYTES_MAX));
        let mut line = String::new();
        loop {
            line.clear();
            match lines.read_line(&mut line) {
                // Either is an end of the watch; whatever changed is seen by the next look.
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
            let told: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
            let is_news = told["result"]["events"].is_array() || !told["error"].is_null();
            if is_news || told["result"]["canceled"] == Value::Bool(true) {
                return Ok(());
            }
        }
    }

    /// Grants a lease of this many seconds; returns its id.
    pub(super) fn grant(&self, seconds: u64) -> GatewayResult<String> {
        let granted: Value = self.call("lease/grant", &json!({"TTL": seconds}))?;
        granted["ID"].as_str().map(str::to_owned).ok_or_else(|| "no lease was granted".to_owned())
    }

    /// Keeps a lease; `false` if it is gone.
    pub(super) fn keep_alive(&self, lease: &str) -> GatewayResult<bool> {
        let kept: Value = self.call("lease/keepalive", &json!({"ID": lease}))?;
        let seconds = kept["result"]["TTL"].as_str().and_then(|ttl| ttl.parse::<u64>().ok());
        Ok(seconds.is_some_and(|seconds| seconds > 0))
    }

    /// Ends a lease, and with it its key.
    pub(super) fn revoke(&self, lease: &str) -> GatewayResult<()> {
        self.call::<Value>("lease/revoke", &json!({"ID": lease})).map(drop)
    }

    /// Sets the value of a server's key, for as long as the lease is kept.
    pub(super) fn put(&self, name: &str, value: &[u8], lease: &str) -> GatewayResult<()> {
        let key = STANDARD.encode([&self.place.servers(), name.as_bytes()].concat());
        let body = json!({"key": key, "value": STANDARD.encode(value), "lease": lease});
        self.call::<Value>("kv/put", &body).map(drop)
    }

    /// Returns the first key of servers and the key after the last.
    fn servers(&self) -> (String, String) {
        let first = self.place.servers();
        let mut end = first.clone();
        // It ends with a slash.
        *end.last_mut().expect("a prefix is not empty") += 1;
        (STANDARD.encode(first), STANDARD.encode(end))
    }

    /// Asks the endpoint that answered last, and the others after it.
    fn call<T: for<'de> Deserialize<'de>>(&self, path: &str, body: &Value) -> GatewayResult<T> {
        let mut failure = String::new();
        for _ in 0..self.place.endpoints.len() {
            match self.call_one(path, body) {
                Ok(answer) => return Ok(answer),
                Err(error) => failure = error,
            }
            *self.current() += 1;
        }
        Err(failure)
    }

    fn call_one<T: for<'de> Deserialize<'de>>(&self, path: &str, body: &Value) -> GatewayResult<T> {
        let url = self.url(path);
        let answer = self.calls.post(&url).send(body.to_string());
        let mut answer = answer.map_err(|error| format!("{url}: {error}"))?;
        let text = answer.body_mut().with_config().limit(MAP_BYTES_MAX * 4).read_to_string();
        let text = text.map_err(|error| format!("{url}: {error}"))?;
        serde_json::from_str(text.trim()).map_err(|error| format!("{url}: {error}"))
    }

    fn url(&self, path: &str) -> String {
        let endpoints = &self.place.endpoints;
        format!("{}/v3/{path}", endpoints[*self.current() % endpoints.len()])
    }

    fn current(&self) -> std::sync::MutexGuard<'_, usize> {
        self.current.lock().ignore_poison()
    }
}
