//! HTTP by hand, as a scraper and as a stranger.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// An answer.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends bytes and takes the whole answer; `None` when the connection ends without one.
pub fn exchange(address: &str, request: &[u8]) -> Option<HttpAnswer> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request).unwrap();
    take_answer(&mut stream)
}

/// Reads to the end of the connection.
pub fn take_answer(stream: &mut TcpStream) -> Option<HttpAnswer> {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok().filter(|&n| n > 0)?;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Some(HttpAnswer { status, head: head.to_owned(), body: body.to_owned() })
}

/// Returns the answer of a path.
pub fn get(address: &str, path: &str) -> HttpAnswer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    exchange(address, request.as_bytes()).expect("an answer")
}
