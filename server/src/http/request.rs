//! The head of an HTTP/1 request, parsed from untrusted bytes.

use std::net::{IpAddr, Ipv6Addr};

use httparse::{EMPTY_HEADER, Error, Header, Status};

use lodestore_schema::Token;

use crate::limits::{HTTP_HEAD_BYTES_MAX, HTTP_HEADERS_MAX};

/// A valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Path without the query.
    pub(super) path: String,
    /// Whether the response has no body.
    pub(super) is_head: bool,
    /// The token after `Authorization: Bearer`.
    pub(super) token: Option<Token>,
}

/// Why bytes are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadRequest {
    /// The bytes are not HTTP.
    Malformed,
    /// The request exceeds a limit.
    TooLarge,
    /// Another method than GET and HEAD.
    Method,
    /// A request with a body.
    Body,
    /// The `Host` is a name that anyone may have pointed at this machine.
    Host,
}

impl Request {
    /// Parses a request; `None` while it is incomplete. Bytes after it are ignored.
    ///
    /// If no token is required (`hosts` is given), `Host` must be an IP address, `localhost`, or
    /// one of these names. Otherwise a site whose own name resolves to this machine ("DNS
    /// rebinding") could let its pages read the responses as its own; a browser sends that name in
    /// `Host`.
    pub(super) fn parse(head: &[u8], hosts: Option<&[String]>) -> Option<Result<Self, BadRequest>> {
        let mut headers = [EMPTY_HEADER; HTTP_HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(head) {
            Ok(Status::Partial) if head.len() <= HTTP_HEAD_BYTES_MAX => None,
            Ok(Status::Complete(n_bytes)) if n_bytes <= HTTP_HEAD_BYTES_MAX => {
                Some(Self::check(&request, hosts))
            }
            Ok(_) | Err(Error::TooManyHeaders) => Some(Err(BadRequest::TooLarge)),
            Err(_) => Some(Err(BadRequest::Malformed)),
        }
    }

    fn check(
        request: &httparse::Request<'_, '_>,
        known: Option<&[String]>,
    ) -> Result<Self, BadRequest> {
        let (Some(method), Some(target)) = (request.method, request.path) else {
            return Err(BadRequest::Malformed);
        };
        let is_head = match method {
            "GET" => false,
            "HEAD" => true,
            _ => return Err(BadRequest::Method),
        };
        if request.headers.iter().any(announces_body) {
            return Err(BadRequest::Body);
        }
        let mut hosts = request.headers.iter().filter(|header| is(header, "host"));
        if let Some(known) = known
            && !hosts.all(|host| names_this_machine(host.value, known))
        {
            return Err(BadRequest::Host);
        }
        let tokens = request.headers.iter().filter(|header| is(header, "authorization"));
        let token = tokens.filter_map(|header| bearer(header.value)).next();
        let path = target.split('?').next().unwrap_or_default().to_owned();
        Ok(Self { path, is_head, token })
    }
}

fn announces_body(header: &Header<'_>) -> bool {
    is(header, "transfer-encoding")
        || (is(header, "content-length") && header.value.trim_ascii() != b"0")
}

fn is(header: &Header<'_>, name: &str) -> bool {
    header.name.eq_ignore_ascii_case(name)
}

/// Returns the token of an `Authorization` header of the bearer scheme.
fn bearer(value: &[u8]) -> Option<Token> {
    let (scheme, token) = value.trim_ascii().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| Token::new(token.trim_ascii()).ok())?
}

/// Returns whether a `Host`, with or without a port, is an IP address, `localhost` or a known name:
/// not a name that others may point at this machine.
fn names_this_machine(host: &[u8], known: &[String]) -> bool {
    let Ok(host) = str::from_utf8(host.trim_ascii()) else { return false };
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if address.parse::<Ipv6Addr>().is_ok() => ("localhost", port),
        Some(_) => return false,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = port.strip_prefix(':').unwrap_or(port).bytes().all(|b| b.is_ascii_digit());
    let is_known = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok()
        || known.iter().any(|known| name.eq_ignore_ascii_case(known));
    is_known && is_port && (port.is_empty() || port.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Result<Request, BadRequest>> {
        Request::parse(text.as_bytes(), None)
    }

    #[test]
    fn a_request_is_parsed_once_it_is_complete() {
        let text = "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None, "{end}");
        }
        let request = Request { path: "/metrics".into(), is_head: false, token: None };
        assert_eq!(parse(text), Some(Ok(request.clone())));
        assert_eq!(parse(&format!("{text}GET /more")), Some(Ok(request)));
        let head = Request { path: "/".into(), is_head: true, token: None };
        assert_eq!(parse("HEAD / HTTP/1.0\r\n\r\n"), Some(Ok(head)));
    }

    #[test]
    fn a_token_is_taken_from_its_header_alone() {
        let token_of = |line: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n");
            parse(&head).unwrap().unwrap().token.map(|token| token.as_bytes().to_vec())
        };
        let token = b"0123456789abcdef".to_vec();
        for line in
            ["Authorization: Bearer 0123456789abcdef", "authorization:bearer  0123456789abcdef"]
        {
            assert_eq!(token_of(line), Some(token.clone()), "{line}");
        }
        for line in [
            "Authorization: Basic 0123456789abcdef",
            "Authorization: Bearer",
            "Authorization: Bearer short",
            "X-Token: Bearer 0123456789abcdef",
        ] {
            assert_eq!(token_of(line), None, "{line}");
        }
    }

    #[test]
    fn unanswerable_requests_are_distinguished() {
        let of = |text: &str| parse(text).unwrap().unwrap_err();
        assert_eq!(of("POST / HTTP/1.1\r\n\r\n"), BadRequest::Method);
        assert_eq!(of("GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"), BadRequest::Body);
        assert_eq!(of("GET / HTTP/1.1\r\ntransfer-ENCODING: chunked\r\n\r\n"), BadRequest::Body);
        for text in ["LODESTOR\0\x01", "GET / HTTP/9.9\r\n\r\n", "GET /\u{7f} HTTP/1.1\r\n\r\n"] {
            assert_eq!(of(text), BadRequest::Malformed, "{text:?}");
        }
    }

    #[test]
    fn a_host_is_an_address_localhost_or_a_configured_name() {
        let hosts = ["rows.lan".to_owned()];
        let is_accepted = |host: &str, is_asked: bool| {
            let head = format!("GET / HTTP/1.1\r\nhOST: {host}\r\n\r\n");
            match Request::parse(head.as_bytes(), is_asked.then_some(&hosts)).unwrap() {
                Ok(_) => true,
                Err(bad) => {
                    assert_eq!(bad, BadRequest::Host, "{host}");
                    false
                }
            }
        };
        for host in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:80",
            "10.1.2.3",
            "[::1]",
            "[::1]:80",
            "Rows.lan:9171",
        ] {
            assert!(is_accepted(host, true), "{host}");
        }
        for host in [
            "a",
            "",
            ":80",
            "127.0.0.1.a",
            "a:127.0.0.1",
            "[::1].a",
            "[a]",
            "::1",
            "localhost.",
            "rows.lan.a",
            "lan",
        ] {
            assert!(!is_accepted(host, true) && is_accepted(host, false), "{host}");
        }
    }

    #[test]
    fn no_request_line_or_header_exceeds_its_limit() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(HTTP_HEAD_BYTES_MAX));
        assert_eq!(parse(&long), Some(Err(BadRequest::TooLarge)));
        assert_eq!(parse(&long[..=HTTP_HEAD_BYTES_MAX]), Some(Err(BadRequest::TooLarge)));
        assert_eq!(parse(&long[..HTTP_HEAD_BYTES_MAX]), None);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HTTP_HEADERS_MAX + 1));
        assert_eq!(parse(&many), Some(Err(BadRequest::TooLarge)));
    }

    proptest::proptest! {
        #[test]
        fn parse_never_panics_and_ends_at_the_limit(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..9000)
        ) {
            let found = Request::parse(&bytes, Some(&[]));
            proptest::prop_assert!(found.is_some() || bytes.len() <= HTTP_HEAD_BYTES_MAX);
        }
    }
}
