//! Paths of the metrics port and their responses.

use std::sync::atomic::{AtomicU64, Ordering};

use lodestore_schema::Tokens;
use lodestore_store::update::StoppedWrites;

use super::request::{BadRequest, Request};
use crate::following::FollowedPart;
use crate::metrics::{CONTENT_TYPE, Observed, Phase, Served, ServerFigures};
use crate::stats::Counters;

/// The status page; `NONCE` stands for a nonce that is drawn per response.
const PAGE: &str = include_str!("status.html");
/// Maximum partitions that `/readyz` names as stopped or lagging.
const STOPPED_MAX: usize = 3;
const TEXT: &str = "text/plain; charset=utf-8";

/// A response before it is serialized.
struct HttpAnswer {
    status: &'static str,
    content_type: &'static str,
    /// Further headers, each with its line end.
    headers: String,
    body: String,
}

/// Returns the response bytes for a request.
pub(super) fn answer(
    request: Result<Request, BadRequest>,
    tokens: Option<&Tokens>,
    observed: &Observed,
) -> Vec<u8> {
    let is_head = request.as_ref().is_ok_and(|request| request.is_head);
    let answer = match request {
        Ok(request) if is_for(&request, tokens) => {
            of_path(&request.path, is_admitted(&request, tokens), observed)
        }
        Ok(_) => HttpAnswer {
            headers: "WWW-Authenticate: Bearer\r\n".to_owned(),
            ..text("401 Unauthorized", "send the token: Authorization: Bearer TOKEN")
        },
        Err(bad) => refusal(bad),
    };
    // A page of another site cannot read these responses, nor reinterpret their type, nor frame
    // them. `BadRequest::Host` covers pages under a name that resolves to this machine.
    let HttpAnswer { status, content_type, headers, body } = answer;
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         X-Frame-Options: DENY\r\nCross-Origin-Resource-Policy: same-origin\r\n\
         Referrer-Policy: no-referrer\r\n{headers}\r\n",
        body.len()
    );
    if !is_head {
        bytes += &body;
    }
    bytes.into_bytes()
}

/// Returns whether a request is permitted. Health checks and the page (which asks for the token
/// itself) are public; figures need the token.
fn is_for(request: &Request, tokens: Option<&Tokens>) -> bool {
    let is_for_all = matches!(request.path.as_str(), "/" | "/healthz" | "/readyz");
    is_for_all || is_admitted(request, tokens)
}

/// Returns whether a request has the token, if one is set.
fn is_admitted(request: &Request, tokens: Option<&Tokens>) -> bool {
    tokens.is_none_or(|tokens| request.token.as_ref().is_some_and(|told| tokens.take(told)))
}

fn of_path(path: &str, is_admitted: bool, observed: &Observed) -> HttpAnswer {
    match path {
        "/" => page(),
        "/metrics" => ok(CONTENT_TYPE, ServerFigures::read(observed).prometheus()),
        "/status.json" => status(observed),
        "/healthz" => health(observed),
        "/readyz" => readiness(is_admitted, observed),
        _ => text("404 Not Found", "not found; use /, /status.json, /metrics, /healthz or /readyz"),
    }
}

fn ok(content_type: &'static str, body: String) -> HttpAnswer {
    HttpAnswer { status: "200 OK", content_type, headers: String::new(), body }
}

fn text(status: &'static str, line: impl Into<String>) -> HttpAnswer {
    HttpAnswer { status, ..ok(TEXT, line.into() + "\n") }
}

/// Returns the page. Its policy allows only its own scripts and styles, and no other origin.
fn page() -> HttpAnswer {
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let headers = format!(
        "Content-Security-Policy: default-src 'none'; script-src 'nonce-{nonce}'; \
         style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'\r\n"
    );
    HttpAnswer { headers, ..ok("text/html; charset=utf-8", PAGE.replace("NONCE", &nonce)) }
}

fn status(observed: &Observed) -> HttpAnswer {
    match serde_json::to_string(&ServerFigures::read(observed)) {
        Ok(body) => ok("application/json", body),
        Err(error) => text("500 Internal Server Error", error.to_string()),
    }
}

/// Returns whether every shard responds.
fn health(observed: &Observed) -> HttpAnswer {
    match observed.silent_shard() {
        None => text("200 OK", "ok"),
        Some((shard, age)) => {
            let line = format!("shard {shard} has not responded for {:.1} s", age.as_secs_f64());
            text("503 Service Unavailable", line)
        }
    }
}

/// Returns 200 if all partitions are open, requests are accepted, and every shard responds. Reasons
/// of the store name files, so only admitted clients see them.
fn readiness(is_admitted: bool, observed: &Observed) -> HttpAnswer {
    match observed.phase() {
        Phase::Serving if observed.silent_shard().is_none() => {
            // Stopped writes do not affect readiness: reads continue, and a load balancer must keep
            // the server.
            let state = |served| state(is_admitted, served);
            let state = observed.served().map_or_else(|| "ready".to_owned(), state);
            text("200 OK", state)
        }
        Phase::Serving => health(observed),
        phase => text("503 Service Unavailable", phase.name()),
    }
}

/// Returns the state of a ready server: partitions that reject updates, partitions that lag, and
/// the progress of the preload.
fn state(is_admitted: bool, served: &Served) -> String {
    let stopped = served.partitions.live.stopped_writes();
    let mut line = if stopped.is_empty() { "ready" } else { "ready to read" }.to_owned();
    for stopped in stopped.iter().take(STOPPED_MAX) {
        line += &reason(is_admitted, stopped);
    }
    if let Some(more) = stopped.len().checked_sub(STOPPED_MAX).filter(|&more| more > 0) {
        line += &format!("; and {more} more partitions");
    }
    line += &lags(is_admitted, &served.partitions.followed());
    let sum = |bytes: fn(&Counters) -> &AtomicU64| -> u64 {
        served.counters.iter().map(|shard| bytes(shard).load(Ordering::Relaxed)).sum()
    };
    let (done, all) = (sum(|shard| &shard.preloaded_bytes), sum(|shard| &shard.preload_bytes));
    if done < all {
        let percent = done as f64 / all as f64 * 100.0;
        line += &format!("; preloading: {done} of {all} bytes ({percent:.1} %)");
    }
    if let Some(fault) = served.preload.fault() {
        line += &match is_admitted {
            true => format!("; some rows could not be preloaded: {fault}"),
            false => "; some rows could not be preloaded: the token shows why".to_owned(),
        };
    }
    // A reason may have several lines, the state has one.
    line.replace('\n', " ")
}

/// Returns the partitions that lag. Reads of them continue at the served versions. Reasons name
/// files, so only admitted clients see them.
fn lags(is_admitted: bool, followed: &[FollowedPart]) -> String {
    let late = followed.iter().filter_map(|part| Some((part, part.lag_reason()?)));
    let late: Vec<(&FollowedPart, String)> = late.collect();
    let mut line = String::new();
    for (part, reason) in late.iter().take(STOPPED_MAX) {
        let reason = if is_admitted { reason } else { "the token shows why" };
        line += &format!(
            "; partition {} is behind: version {} of {}, last poll {} s ago: {reason}",
            part.part,
            part.served,
            part.newest,
            part.look_age.as_secs()
        );
    }
    if let Some(more) = late.len().checked_sub(STOPPED_MAX).filter(|&more| more > 0) {
        line += &format!("; and {more} more partitions are behind");
    }
    line
}

/// Returns why a partition rejects updates.
fn reason(is_admitted: bool, StoppedWrites { part, reason, advice }: &StoppedWrites) -> String {
    match is_admitted {
        true => format!("; partition {part} takes no updates ({reason}): {advice}"),
        false => format!("; partition {part} takes no updates: the token shows why"),
    }
}

fn refusal(bad: BadRequest) -> HttpAnswer {
    match bad {
        BadRequest::Malformed => text("400 Bad Request", "not an HTTP request"),
        BadRequest::TooLarge => {
            text("431 Request Header Fields Too Large", "the request is too large")
        }
        BadRequest::Body => text("413 Content Too Large", "send the request without a body"),
        BadRequest::Host => {
            let line = "name this machine by address, as localhost, or by a configured name";
            text("421 Misdirected Request", line)
        }
        BadRequest::Method => HttpAnswer {
            headers: "Allow: GET, HEAD\r\n".to_owned(),
            ..text("405 Method Not Allowed", "use GET or HEAD")
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lodestore_schema::Token;

    use super::*;
    use crate::config::ServerConfig;
    use crate::following::FollowFault;

    fn ask(path: &str, is_head: bool, observed: &Observed) -> String {
        let request = Request { path: path.into(), is_head, token: None };
        String::from_utf8(answer(Ok(request), None, observed)).unwrap()
    }

    #[test]
    fn every_response_ends_the_connection_and_has_its_length() {
        let observed = Observed::new(&ServerConfig::new("."));
        for path in ["/", "/metrics", "/status.json", "/healthz", "/readyz", "/else"] {
            let whole = ask(path, false, &observed);
            let (head, body) = whole.split_once("\r\n\r\n").unwrap();
            assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
            let head_only = ask(path, true, &observed);
            assert!(head_only.ends_with("\r\n\r\n"), "{path}: a HEAD has no body");
        }
    }

    #[test]
    fn a_server_is_ready_only_while_it_serves() {
        let observed = Observed::new(&ServerConfig::new("."));
        let status = |path: &str| ask(path, false, &observed)[9..12].to_owned();
        for (phase, ready) in
            [(Phase::Opening, "503"), (Phase::Serving, "200"), (Phase::Draining, "503")]
        {
            observed.enter(phase);
            assert_eq!([status("/healthz"), status("/readyz")], ["200", ready], "{phase:?}");
        }
    }

    #[test]
    fn figures_need_the_token_and_health_does_not() {
        let [right, wrong] =
            [b"0123456789abcdef", b"0123456789abcdeF"].map(|t| Token::new(t).unwrap());
        let status = |path: &str, told: Option<Token>| {
            let request = Request { path: path.into(), is_head: false, token: told };
            let bytes =
                answer(Ok(request), Some(&right.into()), &Observed::new(&ServerConfig::new(".")));
            String::from_utf8(bytes).unwrap()[9..12].to_owned()
        };
        for path in ["/metrics", "/status.json", "/else"] {
            assert_eq!(status(path, None), "401", "{path}");
            assert_eq!(status(path, Some(wrong)), "401", "{path}");
            assert_ne!(status(path, Some(right)), "401", "{path}");
        }
        assert_eq!([status("/healthz", None), status("/", None)], ["200", "200"]);
        assert_eq!(status("/readyz", None), "503", "the server is opening");
    }

    /// The message of a failed write names the catalog's folder.
    #[test]
    fn reasons_of_the_store_need_the_token() {
        let stopped = StoppedWrites {
            part: lodestore_graph::PartId(3),
            reason: "/srv/rows/part-003: No space left".into(),
            advice: "make room",
        };
        let line = |is_admitted| reason(is_admitted, &stopped);
        assert!(line(true).contains("/srv/rows") && line(true).contains("make room"));
        assert!(!line(false).contains('/') && line(false).contains("partition 3"));
    }

    #[test]
    fn lagging_partitions_are_named_and_their_reasons_need_the_token() {
        let part = |part: u16, fault: Option<&str>| FollowedPart {
            part: lodestore_graph::PartId(part),
            source: "10.0.0.5:7171".into(),
            newest: 7,
            served: 5,
            look_age: Duration::from_secs(12),
            behind_for: None,
            fault: fault.map(|reason| FollowFault {
                reason: reason.into(),
                lasts: Duration::from_secs(60),
                is_refused: false,
            }),
            interval: Duration::from_secs(60),
        };
        assert_eq!(lags(true, &[part(0, None)]), "");
        let line = lags(true, &[part(0, None), part(1, Some("/srv/part-001: no space"))]);
        let expected = "; partition 1 is behind: version 5 of 7, last poll 12 s ago: \
                        /srv/part-001: no space";
        assert_eq!(line, expected);
        let many: Vec<FollowedPart> = (0..9).map(|at| part(at, Some("/srv"))).collect();
        let line = lags(false, &many);
        assert!(!line.contains("/srv") && line.contains("the token shows why"), "{line}");
        assert!(line.contains("partition 2 ") && !line.contains("partition 3 "), "{line}");
        assert!(line.ends_with("and 6 more partitions are behind"), "{line}");
    }

    #[test]
    fn each_page_has_its_own_nonce_for_scripts() {
        let pages = [(); 2].map(|()| ask("/", false, &Observed::new(&ServerConfig::new("."))));
        assert_ne!(pages[0], pages[1]);
        for page in pages {
            let (_, rest) = page.split_once("script-src 'nonce-").unwrap();
            let nonce = &rest[..32];
            assert!(page.contains(&format!("<script nonce=\"{nonce}\">")));
            assert!(page.contains(&format!("<style nonce=\"{nonce}\">")));
            assert!(!page.contains("NONCE"));
            for outside in ["http:", "https:", "src=", "url(", "onclick", "style=\""] {
                let body = page.split_once("\r\n\r\n").unwrap().1;
                assert!(!body.contains(outside), "`{outside}` in the page");
            }
        }
    }
}
