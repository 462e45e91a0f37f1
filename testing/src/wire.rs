//! The wire by hand: a client that knows nothing of shards.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lodestore_graph::NodeId;
use lodestore_schema::hello::hello;
use lodestore_schema::limits::{HELLO_BYTES, PREFIX_BYTES};
use lodestore_schema::reply::Description;
use lodestore_schema::request::PullKind;
use lodestore_schema::{Failure, Prefix, Reply, Request, RequestBody, WireVersions};

/// One connection, frame by frame.
pub struct PlainConnection {
    pub stream: TcpStream,
}

impl PlainConnection {
    pub fn open(address: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&hello()).unwrap();
        let mut theirs = [0; HELLO_BYTES];
        stream.read_exact(&mut theirs).unwrap();
        assert_eq!(Some(theirs), WireVersions::SPOKEN.answer(&hello()).0);
        Self { stream }
    }

    pub fn ask(&mut self, body: RequestBody, ids: &[NodeId]) {
        self.ask_bytes(body, bytemuck::cast_slice(ids));
    }

    /// Sends a request as it is, with the ids of a pull.
    pub fn send(&mut self, request: &Request, ids: &[NodeId]) {
        let mut frame = Vec::new();
        request.append_to(size_of_val(ids), &mut frame);
        frame.extend_from_slice(bytemuck::cast_slice(ids));
        self.stream.write_all(&frame).unwrap();
    }

    /// Returns the next answer, which must be a failure.
    pub fn failure(&mut self) -> Failure {
        match self.answer() {
            (Reply::Failure(failure), _) => failure,
            other => panic!("{other:?}"),
        }
    }

    pub fn ask_bytes(&mut self, body: RequestBody, ids: &[u8]) {
        let mut frame = Vec::new();
        Request::new(body).append_to(ids.len(), &mut frame);
        frame.extend_from_slice(ids);
        self.stream.write_all(&frame).unwrap();
    }

    pub fn answer(&mut self) -> (Reply, Vec<u8>) {
        let mut prefix = [0; PREFIX_BYTES];
        self.stream.read_exact(&mut prefix).unwrap();
        let prefix = Prefix::of_reply(prefix).unwrap();
        let (mut head, mut body) = (vec![0; prefix.head_bytes], vec![0; prefix.body_bytes]);
        self.stream.read_exact(&mut head).unwrap();
        self.stream.read_exact(&mut body).unwrap();
        (Reply::decode(&head).unwrap(), body)
    }

    pub fn describe(&mut self) -> Description {
        self.ask(RequestBody::Describe, &[]);
        match self.answer() {
            (Reply::Description(description), _) => description,
            other => panic!("{other:?}"),
        }
    }

    pub fn pull(
        &mut self,
        tensor: u16,
        kind: PullKind,
        ids: &[NodeId],
        row_bytes: usize,
    ) -> Vec<u8> {
        self.ask(RequestBody::Pull { tensor, kind }, ids);
        let mut rows = Vec::new();
        while rows.len() < ids.len() * row_bytes {
            match self.answer() {
                (Reply::Rows { first_row, .. }, body) => {
                    assert_eq!(first_row as usize * row_bytes, rows.len());
                    rows.extend_from_slice(&body);
                }
                other => panic!("{other:?}"),
            }
        }
        rows
    }
}
