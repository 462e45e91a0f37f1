//! The head of an HTTP/1 request, from bytes of anybody.

use std::net::{IpAddr, Ipv6Addr};

use httparse::{EMPTY_HEADER, Error, Header, Status};

use lodestore_schema::Token;

use crate::limits::{HTTP_HEAD_BYTES_MAX, HTTP_HEADERS_MAX};

/// A request that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Without the query.
    pub(super) path: String,
    /// The answer shall have no body.
    pub(super) is_head: bool,
    /// The token after `Authorization: Bearer`.
    pub(super) token: Option<Token>,
}

/// Why bytes are no request that can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadRequest {
    /// They are no HTTP.
    Malformed,
    /// There are too many of them.
    TooLarge,
    /// Another method than GET and HEAD.
    Method,
    /// A request with a body.
    Body,
    /// It came under a name that anybody may have given this machine.
    Host,
}

impl Request {
    /// Reads a request; `None` while it is not whole. Bytes after it are ignored.
    ///
    /// Where no token keeps others out (`hosts`) it must name this machine by number, as
    /// `localhost`, or by one of these names. A site whose name leads its own pages here ("DNS
    /// rebinding") would have them read the answers as its own. A browser says that name in `Host`.
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

/// Returns the token of an `Authorization`, if it is of that kind.
fn bearer(value: &[u8]) -> Option<Token> {
    let (scheme, token) = value.trim_ascii().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| Token::new(token.trim_ascii()).ok())?
}

/// Returns whether a `Host`, with or without a port, is an address, `localhost` or one of these: no
/// name that leads elsewhere for others.
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
    fn a_request_is_read_when_it_is_whole() {
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
    fn a_request_names_this_machine_by_number_as_localhost_or_as_configured() {
        let hosts = ["rows.lan".to_owned()];
        let is_taken = |host: &str, is_asked: bool| {
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
            assert!(is_taken(host, true), "{host}");
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
            assert!(!is_taken(host, true) && is_taken(host, false), "{host}");
        }
    }

    #[test]
    fn no_length_of_line_or_headers_passes_its_limit() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(HTTP_HEAD_BYTES_MAX));
        assert_eq!(parse(&long), Some(Err(BadRequest::TooLarge)));
        assert_eq!(parse(&long[..=HTTP_HEAD_BYTES_MAX]), Some(Err(BadRequest::TooLarge)));
        assert_eq!(parse(&long[..HTTP_HEAD_BYTES_MAX]), None);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HTTP_HEADERS_MAX + 1));
        assert_eq!(parse(&many), Some(Err(BadRequest::TooLarge)));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic_nor_wait_for_ever(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..9000)
        ) {
            let found = Request::parse(&bytes, Some(&[]));
            proptest::prop_assert!(found.is_some() || bytes.len() <= HTTP_HEAD_BYTES_MAX);
        }
    }
}
