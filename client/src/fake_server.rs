//! A server with one shard whose replies are slow, or fail, when a test wants it. The row of node i
//! is i.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lodestore_schema::hello::{hello, plain_hello};
use lodestore_schema::limits::{HELLO_BYTES, PREFIX_BYTES};
use lodestore_schema::reply::{Description, TensorDescription};
use lodestore_schema::request::Push;
use lodestore_schema::versions::VersionTag;
use lodestore_schema::{
    Failure, FailureCode, Prefix, Reply, Request, RequestBody, Versions, WireVersions,
};

/// Nodes of each of the two partitions.
pub(crate) const PART_NODES: u32 = 100;
pub(crate) const ROW_BYTES: usize = 4;

#[derive(Clone)]
pub(crate) struct FakeServer {
    pub(crate) address: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    description: Description,
    /// Whether it speaks wire version 3, which has no ranges of versions.
    is_plain: AtomicBool,
    /// Microseconds before it sends its hello.
    hello_us: AtomicU64,
    /// Microseconds that a pull takes.
    delay_us: AtomicU64,
    /// One pull in this many takes `slow_us` instead; 0 for none.
    slow_one_in: AtomicU64,
    slow_us: AtomicU64,
    /// Whether it ends connections instead of answering pulls.
    breaks: AtomicBool,
    /// Whether it refuses connections as overloaded.
    refuses: AtomicBool,
    /// Whether its rows are wrong.
    falsifies: AtomicBool,
    /// Microseconds between the halves of a reply; 0 for one piece.
    pause_us: AtomicU64,
    /// By how many rows the first row, the row count and the body of a reply are wrong.
    skew: Mutex<[usize; 3]>,
    /// Version in its reply to the last piece of a put.
    push_version: AtomicU32,
    /// The versions of its rows.
    versions: Mutex<Versions>,
    /// Pieces, other than the first of a put, for which it will have lost all earlier pieces.
    n_to_lose: AtomicU64,
    /// Pulls after each of which it commits a version, and drops the previous one.
    n_to_commit: AtomicU64,
    n_pulls: AtomicU64,
    n_described: AtomicU64,
    /// Pulls whose clients had closed the connection before the reply.
    n_given_up: AtomicU64,
}

impl FakeServer {
    pub(crate) fn start(parts: &[u16]) -> Self {
        Self::start_as(parts, |_| {})
    }

    /// Starts a server with a changed description.
    pub(crate) fn start_as(parts: &[u16], change: impl Fn(&mut Description)) -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").unwrap(), parts, change)
    }

    /// Like [`Self::start_as`], on a given listener.
    pub(crate) fn start_at(
        listener: TcpListener,
        parts: &[u16],
        change: impl Fn(&mut Description),
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let tensor = TensorDescription {
            name: "x".into(),
            dtype: "f32".into(),
            width: 1,
            row_bytes: ROW_BYTES as u32,
            stripe_rows: 1000,
            uuid: [0; 16],
        };
        let mut description = Description {
            graph: [7; 16],
            bounds: vec![0, PART_NODES, 2 * PART_NODES],
            parts: parts.to_vec(),
            tensors: vec![tensor],
            shard_ports: vec![address.port()],
            n_shards: 1,
            version: 1,
            instance: address.port().into(),
            ..Description::default()
        };
        change(&mut description);
        let state = Arc::new(State { description, ..State::default() });
        let served = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&served);
                thread::spawn(move || state.serve(stream));
            }
        });
        Self { address: address.to_string(), state }
    }

    /// Sets whether it speaks wire version 3 from now on.
    pub(crate) fn is_plain(&self, is_so: bool) {
        self.state.is_plain.store(is_so, Ordering::Relaxed);
    }

    /// Sets how long it delays its hello from now on.
    pub(crate) fn delay_hello(&self, time: Duration) {
        self.state.hello_us.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Sets how long each pull takes from now on.
    pub(crate) fn delay(&self, time: Duration) {
        self.state.delay_us.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Sets the duration of one pull in `one_in` from now on.
    pub(crate) fn is_slow(&self, one_in: u64, time: Duration) {
        self.state.slow_us.store(time.as_micros() as u64, Ordering::Relaxed);
        self.state.slow_one_in.store(one_in, Ordering::Relaxed);
    }

    pub(crate) fn breaks(&self, is_so: bool) {
        self.state.breaks.store(is_so, Ordering::Relaxed);
    }

    /// Sets whether it refuses connections as overloaded from now on.
    pub(crate) fn refuses(&self, is_so: bool) {
        self.state.refuses.store(is_so, Ordering::Relaxed);
    }

    /// Sets whether it sends the rows of other nodes from now on.
    pub(crate) fn falsifies(&self, is_so: bool) {
        self.state.falsifies.store(is_so, Ordering::Relaxed);
    }

    /// Sets how long it pauses in the middle of each reply from now on.
    pub(crate) fn pause(&self, time: Duration) {
        self.state.pause_us.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Skews replies by this many rows from now on: their first row, their row count, and their
    /// body.
    pub(crate) fn skew(&self, by: [usize; 3]) {
        *self.state.skew.lock().unwrap() = by;
    }

    /// Sets the version in its replies to pushes from now on. It drops the pushed rows.
    pub(crate) fn takes_pushes(&self, version: u32) {
        self.state.push_version.store(version, Ordering::Relaxed);
    }

    /// Sets the version of its rows from now on. A pull that wants it by another commit is refused.
    pub(crate) fn has_version(&self, version: VersionTag) {
        *self.state.versions.lock().unwrap() = Versions { lowest: version, above: Vec::new() };
    }

    /// Makes it lose the earlier pieces at each of the next `n` pieces that are not the first of
    /// their put.
    pub(crate) fn loses_pieces(&self, n: u64) {
        self.state.n_to_lose.store(n, Ordering::SeqCst);
    }

    /// Commits a version after each of the next `n` pulls.
    pub(crate) fn commits_after(&self, n: u64) {
        self.state.n_to_commit.store(n, Ordering::SeqCst);
    }

    pub(crate) fn n_pulls(&self) -> u64 {
        self.state.n_pulls.load(Ordering::Relaxed)
    }

    pub(crate) fn n_described(&self) -> u64 {
        self.state.n_described.load(Ordering::Relaxed)
    }

    pub(crate) fn n_given_up(&self) -> u64 {
        self.state.n_given_up.load(Ordering::Relaxed)
    }
}

impl State {
    /// Serves until the client closes the connection or breaks the protocol.
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        thread::sleep(Duration::from_micros(self.hello_us.load(Ordering::Relaxed)));
        if self.refuses.load(Ordering::Relaxed) {
            return refuse(stream);
        }
        let mut theirs = [0; HELLO_BYTES];
        if self.is_plain.load(Ordering::Relaxed) {
            // Like servers of that version: sends at once, and closes after any other hello.
            stream.write_all(&plain_hello(3))?;
            stream.read_exact(&mut theirs)?;
            if theirs != plain_hello(3) {
                return Ok(());
            }
        } else {
            stream.read_exact(&mut theirs)?;
            stream.write_all(&WireVersions::SPOKEN.answer(&theirs).0.unwrap())?;
        }
        loop {
            let mut prefix = [0; PREFIX_BYTES];
            stream.read_exact(&mut prefix)?;
            let prefix = Prefix::of_request(prefix).unwrap();
            let (mut head, mut body) = (vec![0; prefix.head_bytes], vec![0; prefix.body_bytes]);
            stream.read_exact(&mut head)?;
            stream.read_exact(&mut body)?;
            let mut frame = Vec::new();
            let request = Request::decode(&head).unwrap();
            match request.body {
                RequestBody::Describe => {
                    self.n_described.fetch_add(1, Ordering::Relaxed);
                    Reply::Description(self.description.clone()).append_to(0, &mut frame);
                }
                RequestBody::Pull { .. } => {
                    if !self.waits(&stream) {
                        return Ok(());
                    }
                    if let Some(failure) = self.refuses_version(&request) {
                        Reply::Failure(failure).append_to(0, &mut frame);
                        stream.write_all(&frame)?;
                        continue;
                    }
                    if self.falsifies.load(Ordering::Relaxed) {
                        body.iter_mut().for_each(|byte| *byte ^= 0x55);
                    }
                    if let Some(skewed) = self.skewed(&body) {
                        stream.write_all(&skewed)?;
                        continue;
                    }
                    let pause = Duration::from_micros(self.pause_us.load(Ordering::Relaxed));
                    let n_rows = body.len() / ROW_BYTES;
                    let n_first = if pause.is_zero() { n_rows } else { n_rows / 2 };
                    let (first, rest) = body.split_at(n_first * ROW_BYTES);
                    self.append_rows(0, first, &mut frame);
                    if !rest.is_empty() {
                        stream.write_all(&frame)?;
                        thread::sleep(pause);
                        frame.clear();
                        self.append_rows(n_first as u32, rest, &mut frame);
                    }
                    if takes_one(&self.n_to_commit) {
                        self.commit();
                    }
                }
                RequestBody::Push(push) => self.pushed(&push).append_to(0, &mut frame),
                other => panic!("a fake server does not answer {other:?}"),
            }
            stream.write_all(&frame)?;
        }
    }

    /// Returns the refusal of a version that another commit has made, or that the server lacks.
    fn refuses_version(&self, request: &Request) -> Option<Failure> {
        let (wanted, found) = (request.floors.lowest, self.versions.lock().unwrap().lowest);
        let code = if wanted.is_other_history(found) {
            FailureCode::OtherHistory
        } else if request.exactly && wanted.number != found.number {
            FailureCode::OtherVersion
        } else {
            return None;
        };
        let message = format!("expected {wanted}, found {found}");
        Some(Failure { code, message, retry_after: Duration::ZERO })
    }

    fn commit(&self) {
        let mut versions = self.versions.lock().unwrap();
        versions.lowest.number += 1;
        versions.lowest.tag += 1;
    }

    /// Appends a chunk of a reply.
    fn append_rows(&self, first_row: u32, rows: &[u8], frame: &mut Vec<u8>) {
        let n_rows = (rows.len() / ROW_BYTES) as u32;
        let versions = self.versions.lock().unwrap().clone();
        Reply::Rows { first_row, n_rows, versions }.append_to(rows.len(), frame);
        frame.extend_from_slice(rows);
    }

    /// Returns the reply to a piece of a put.
    fn pushed(&self, push: &Push) -> Reply {
        if push.piece > 0 && takes_one(&self.n_to_lose) {
            let (code, message) = (FailureCode::PutLost, "none is here".into());
            return Reply::Failure(Failure { code, message, retry_after: Duration::ZERO });
        }
        let version = self.push_version.load(Ordering::Relaxed);
        Reply::Pushed { version: if push.is_last { version } else { 0 } }
    }

    /// Returns a wrong reply with these rows, if skewed.
    fn skewed(&self, rows: &[u8]) -> Option<Vec<u8>> {
        let [first_row, named, come] = *self.skew.lock().unwrap();
        if first_row + named + come == 0 {
            return None;
        }
        // Two rows less than requested, and then the skew.
        let n_rows = rows.len() / ROW_BYTES - 2;
        let mut frame = Vec::new();
        Reply::Rows {
            first_row: first_row as u32,
            n_rows: (n_rows + named) as u32,
            versions: Versions::default(),
        }
        .append_to((n_rows + come) * ROW_BYTES, &mut frame);
        frame.resize(frame.len() + (n_rows + come) * ROW_BYTES, 0);
        Some(frame)
    }

    /// Waits for the duration of a pull; returns whether to reply to it.
    fn waits(&self, stream: &TcpStream) -> bool {
        let number = self.n_pulls.fetch_add(1, Ordering::Relaxed) + 1;
        let one_in = self.slow_one_in.load(Ordering::Relaxed);
        let is_slow = one_in > 0 && number.is_multiple_of(one_in);
        let time = if is_slow { &self.slow_us } else { &self.delay_us };
        thread::sleep(Duration::from_micros(time.load(Ordering::Relaxed)));
        stream.set_nonblocking(true).unwrap();
        let has_left = matches!(stream.peek(&mut [0]), Ok(0));
        stream.set_nonblocking(false).unwrap();
        self.n_given_up.fetch_add(has_left.into(), Ordering::Relaxed);
        !has_left && !self.breaks.load(Ordering::Relaxed)
    }
}

fn takes_one(left: &AtomicU64) -> bool {
    let less = |n: u64| n.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
}

/// Sends the hello with a refusal, as an overloaded server does, then reads the bytes that still
/// arrive.
fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let (message, retry_after) = ("no room".into(), Duration::from_millis(5));
    let failure = Failure { code: FailureCode::Overloaded, message, retry_after };
    let mut bytes = WireVersions::SPOKEN.answer(&hello()).0.unwrap().to_vec();
    Reply::Failure(failure).append_to(0, &mut bytes);
    stream.write_all(&bytes)?;
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream, &mut io::sink()).map(drop)
}
