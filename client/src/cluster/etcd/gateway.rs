//! etcd over its gateway: JSON over HTTP, keys and values in base64.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lodestore_graph::lock::IgnorePoison;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde_json::{Value, json};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body};

use super::super::{MAP_BYTES_MAX, SERVERS_MAX};
use super::{EtcdAccess, EtcdLocation};

/// Time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a first reply is waited for.
pub(super) const CALL_PATIENCE: Duration = Duration::from_secs(3);
/// Duration of a watch before it is started again, by which a lost etcd is noticed.
pub(super) const WATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of a failure that are read.
const FAILURE_BYTES_MAX: u64 = 4096;

/// A successful reply, or a failure that a new token ends.
enum Answer {
    Body(Body),
    /// The token is not valid, or not any more.
    TokenRefused,
}

/// The error is a sentence.
pub(super) type GatewayResult<T> = Result<T, String>;

/// A client of etcd's gateway.
pub(super) struct Gateway {
    place: EtcdLocation,
    access: EtcdAccess,
    /// The user's latest token; `None` before the first, and after etcd has refused it.
    token: Mutex<Option<String>>,
    calls: Agent,
    watches: Agent,
    /// The endpoint that replied last.
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

/// Returns the graph that a value names; an invalid value names none.
fn graph_in(pair: &Pair) -> String {
    let bytes = STANDARD.decode(&pair.value).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns an agent whose requests have this time limit.
fn agent(timeout: Duration, access: &EtcdAccess) -> Agent {
    let config = Agent::config_builder().timeout_global(Some(timeout)).max_redirects(0);
    // The text of a failure is reported.
    let config = config.http_status_as_error(false);
    let Some(tls) = &access.tls else { return config.build().into() };
    let provider = Arc::new(ring::default_provider());
    let builder = TlsConfig::builder().provider(TlsProvider::Rustls);
    let builder = builder.unversioned_rustls_crypto_provider(provider);
    let builder = builder.root_certs(RootCerts::new_with_certs(&certificates(&tls.authorities)));
    let identity = tls.identity.as_ref().map(|(chain, key)| {
        let key = PrivateKey::from_pem(&pem_of(key)).expect("it was read as a key before");
        ClientCert::new_with_certs(&certificates(chain), key)
    });
    config.tls_config(builder.client_cert(identity).build()).build().into()
}

/// Returns a key in the form that ureq reads.
fn pem_of(key: &PrivateKeyDer<'_>) -> Vec<u8> {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    let body = STANDARD.encode(key.secret_der());
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n").into_bytes()
}

fn certificates(all: &[CertificateDer<'static>]) -> Vec<Certificate<'static>> {
    all.iter().map(|cert| Certificate::from_der(cert).to_owned()).collect()
}

/// Returns whether a connection ended as if the certificate of the client was refused: with an
/// alert, or with a broken connection if the client was still writing.
fn is_ended_for_certificate(text: &str) -> bool {
    ["received fatal alert", "Broken pipe", "Connection reset"].iter().any(|it| text.contains(it))
}

/// Returns the text of a failure, in one line.
fn refusal(status: u16, text: &str) -> String {
    let told: Value = serde_json::from_str(text).unwrap_or_default();
    let reason = told["error"].as_str().or(told["message"].as_str()).unwrap_or(text.trim());
    let advice = if reason.contains("user name is empty") {
        "; etcd requires a user and a password"
    } else if reason.contains("CommonName of client") {
        "; present a certificate without a common name, which etcd accepts along with users"
    } else if reason.contains("HTTP request to an HTTPS server") {
        "; etcd requires TLS"
    } else {
        ""
    };
    format!("status {status}: {}{advice}", reason.replace('\n', " "))
}

impl Gateway {
    pub(super) fn new(place: EtcdLocation, access: EtcdAccess) -> Self {
        let (calls, watches) = (agent(CALL_TIMEOUT, &access), agent(WATCH_TIMEOUT, &access));
        Self { place, access, token: Mutex::default(), calls, watches, current: Mutex::new(0) }
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
        // A value that is not base64 is not from etcd, and names no server.
        let values = ranged.kvs.into_iter().map(|pair| STANDARD.decode(pair.value));
        let values = values.map(Result::unwrap_or_default).collect();
        // Read after the servers: each server registers after the graph is set.
        Ok((values, self.graph()?, revision))
    }

    fn graph(&self) -> GatewayResult<Option<String>> {
        let key = STANDARD.encode(self.place.graph());
        let ranged: Ranged = self.call("kv/range", &json!({"key": key}))?;
        Ok(ranged.kvs.first().map(graph_in))
    }

    /// Sets the graph of the prefix unless it has one; returns the graph of the prefix.
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

    /// Waits until the key of a server changes after `revision`, at most [`WATCH_TIMEOUT`].
    pub(super) fn wait_for_change(&self, revision: u64) -> GatewayResult<()> {
        let (key, range_end) = self.servers();
        let start = (revision + 1).to_string();
        let watch = json!({"key": key, "range_end": range_end, "start_revision": start});
        let create = json!({"create_request": watch}).to_string();
        let body = self.post(&self.watches, "watch", &create)?.into_reader();
        let mut lines = BufReader::new(body.take(MAP_BYTES_MAX));
        let mut line = String::new();
        loop {
            line.clear();
            match lines.read_line(&mut line) {
                // Both end the watch; the next range sees every change.
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

    /// Renews a lease; returns `false` if it has expired.
    pub(super) fn keep_alive(&self, lease: &str) -> GatewayResult<bool> {
        let kept: Value = self.call("lease/keepalive", &json!({"ID": lease}))?;
        let seconds = kept["result"]["TTL"].as_str().and_then(|ttl| ttl.parse::<u64>().ok());
        Ok(seconds.is_some_and(|seconds| seconds > 0))
    }

    /// Revokes a lease, which removes its key.
    pub(super) fn revoke(&self, lease: &str) -> GatewayResult<()> {
        self.call::<Value>("lease/revoke", &json!({"ID": lease})).map(drop)
    }

    /// Sets the value of a server's key, for as long as the lease lasts.
    pub(super) fn put(&self, name: &str, value: &[u8], lease: &str) -> GatewayResult<()> {
        let key = STANDARD.encode([&self.place.servers(), name.as_bytes()].concat());
        let body = json!({"key": key, "value": STANDARD.encode(value), "lease": lease});
        self.call::<Value>("kv/put", &body).map(drop)
    }

    /// Returns the first key of servers and the key after the last.
    fn servers(&self) -> (String, String) {
        let first = self.place.servers();
        let mut end = first.clone();
        // The prefix ends with a slash.
        *end.last_mut().expect("a prefix is not empty") += 1;
        (STANDARD.encode(first), STANDARD.encode(end))
    }

    /// Asks the endpoint that replied last, then the others.
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
        let mut answer = self.post(&self.calls, path, &body.to_string())?;
        let text = answer.with_config().limit(MAP_BYTES_MAX * 4).read_to_string();
        let text = text.map_err(|error| self.unreached(path, &error))?;
        serde_json::from_str(text.trim()).map_err(|error| format!("{}: {error}", self.url(path)))
    }

    /// Sends a request as the user, if there is one; returns the body of a successful reply. A
    /// token lasts for minutes, and not beyond a restart of etcd: the user then authenticates
    /// again.
    fn post(&self, agent: &Agent, path: &str, body: &str) -> GatewayResult<Body> {
        let token = self.token()?;
        if let Answer::Body(body) = self.send(agent, path, body, token.as_deref())? {
            return Ok(body);
        }
        *self.token.lock().ignore_poison() = None;
        let token = self.token()?;
        match self.send(agent, path, body, token.as_deref())? {
            Answer::Body(body) => Ok(body),
            Answer::TokenRefused => {
                Err(format!("{}: etcd refuses the token that it issued", self.url(path)))
            }
        }
    }

    /// Returns the user's token, after authenticating if there is none.
    fn token(&self) -> GatewayResult<Option<String>> {
        let Some(user) = &self.access.user else { return Ok(None) };
        if let Some(token) = self.token.lock().ignore_poison().clone() {
            return Ok(Some(token));
        }
        let path = "auth/authenticate";
        let body = json!({"name": user.name, "password": user.password}).to_string();
        let answer = self.send(&self.calls, path, &body, None);
        let answer = answer.map_err(|error| format!("{error} (user `{}`)", user.name))?;
        let Answer::Body(mut body) = answer else {
            return Err(format!("{}: etcd rejects user `{}`", self.url(path), user.name));
        };
        let text = body.with_config().limit(MAP_BYTES_MAX).read_to_string();
        let text = text.map_err(|error| self.unreached(path, &error))?;
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
        let Some(token) = told["token"].as_str() else {
            return Err(format!(
                "{}: etcd issued no token for user `{}`",
                self.url(path),
                user.name
            ));
        };
        *self.token.lock().ignore_poison() = Some(token.to_owned());
        Ok(Some(token.to_owned()))
    }

    fn send(
        &self,
        agent: &Agent,
        path: &str,
        body: &str,
        token: Option<&str>,
    ) -> GatewayResult<Answer> {
        let mut request = agent.post(self.url(path));
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let answer = request.send(body).map_err(|error| self.unreached(path, &error))?;
        let status = answer.status().as_u16();
        let mut body = answer.into_body();
        match status {
            200 => Ok(Answer::Body(body)),
            401 => Ok(Answer::TokenRefused),
            _ => {
                let text = body.with_config().limit(FAILURE_BYTES_MAX).read_to_string();
                Err(format!("{}: {}", self.url(path), refusal(status, &text.unwrap_or_default())))
            }
        }
    }

    /// Returns why no reply arrived; with TLS, whose certificate was refused.
    fn unreached(&self, path: &str, error: &ureq::Error) -> String {
        let (url, text) = (self.url(path), error.to_string());
        let Some(tls) = &self.access.tls else {
            let is_ended = text.contains("Peer disconnected");
            let why = if is_ended { "etcd may require TLS: " } else { "" };
            return format!("{url}: {why}{text}");
        };
        let why = if text.contains("UnknownIssuer") || text.contains("BadSignature") {
            format!("the certificate of etcd is signed by no authority of {}: ", tls.ca.display())
        } else if is_ended_for_certificate(&text) && tls.identity.is_some() {
            "etcd refuses the certificate of this client: ".to_owned()
        } else if is_ended_for_certificate(&text) {
            "etcd requires a certificate of its clients: ".to_owned()
        } else if text.contains("InvalidContentType") || text.contains("unexpected end of file") {
            "etcd may not speak TLS: ".to_owned()
        } else {
            String::new()
        };
        format!("{url}: {why}{text}")
    }

    fn url(&self, path: &str) -> String {
        let endpoints = &self.place.endpoints;
        format!("{}/v3/{path}", endpoints[*self.current() % endpoints.len()])
    }

    fn current(&self) -> std::sync::MutexGuard<'_, usize> {
        self.current.lock().ignore_poison()
    }
}
