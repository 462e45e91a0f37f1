//! Push, pull and garbage collection over a real server of S3's protocol, moto, and a proxy before
//! it that fails. `./x buckets` installs moto; without it the tests report that they are skipped.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_graph::npy::NpyType;
use serde_json::Value;

use testing::graph::Source;
use testing::process::{Finished, Serving, command, finish};
use testing::{Numbers, write_npy};

const N_NODES: u32 = 600;
const URL: &str = "s3://graphs/below/g";
const SECRET: &str = "SECRETSECRET";
const DEADLINE: Duration = Duration::from_secs(120);

/// The server, killed on drop.
struct Moto {
    child: Child,
    address: SocketAddr,
}

impl Moto {
    /// Starts it with an empty bucket; `None`, with a line that says so, where it is not installed.
    fn start() -> Option<Self> {
        let Some(program) = std::env::var_os("LODE_MOTO") else {
            eprintln!("SKIPPED: object storage over S3: ./x buckets installs a server and runs it");
            return None;
        };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let this = Self { child, address };
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < end, "moto does not listen");
            thread::sleep(Duration::from_millis(50));
        }
        let reply = this.ask("PUT /graphs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        assert!(reply.contains(" 200 "), "{reply}");
        Some(this)
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fault that the proxy adds to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The request is passed on, the reply is not.
    LosesReply,
    /// It is answered with this status and not passed on.
    Answers(u16),
    /// The connection ends in the middle of the body.
    CutsBody,
    /// The reply comes late.
    Slow(Duration),
    /// Lists of objects are those that were sent the first time, when the fault was set.
    StaleLists,
}

/// Passes requests on, one after the other on a connection, but for those that are to fail.
struct Proxy {
    address: SocketAddr,
    plan: Arc<Plan>,
}

#[derive(Default)]
struct Plan {
    /// The fault, and what a request line must contain to have it.
    fault: Mutex<Option<(Fault, &'static str)>>,
    /// How many more have it.
    n_left: AtomicU32,
    n_faults: AtomicU32,
    /// Replies to requests of lists, by request line.
    lists: Mutex<HashMap<String, Vec<u8>>>,
}

impl Proxy {
    fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, plan) = (listener.local_addr().unwrap(), Arc::<Plan>::default());
        let shared = Arc::clone(&plan);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let plan = Arc::clone(&shared);
                // A connection that ends is the client's affair.
                thread::spawn(move || serve(&client, server, &plan));
            }
        });
        Self { address, plan }
    }

    /// Sets the fault of the next `n` requests whose line contains `part`.
    fn fail(&self, fault: Fault, part: &'static str, n: u32) {
        *self.plan.fault.lock().unwrap() = Some((fault, part));
        self.plan.n_faults.store(0, Ordering::SeqCst);
        self.plan.n_left.store(n, Ordering::SeqCst);
    }

    fn n_faults(&self) -> u32 {
        self.plan.n_faults.load(Ordering::SeqCst)
    }
}

impl Plan {
    fn fault_of(&self, line: &str) -> Fault {
        let Some((fault, part)) = *self.fault.lock().unwrap() else { return Fault::None };
        let take = |n: u32| n.checked_sub(1);
        if line.contains(part)
            && self.n_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
        {
            self.n_faults.fetch_add(1, Ordering::SeqCst);
            return fault;
        }
        Fault::None
    }
}

fn serve(client: &TcpStream, server: SocketAddr, plan: &Plan) -> Option<()> {
    loop {
        let (head, mut body) = read_head(client)?;
        let line = head.lines().next()?.to_owned();
        let length = header(&head, "content-length").unwrap_or(0);
        let fault = plan.fault_of(&line);
        if header_text(&head, "expect").is_some() {
            (&*client).write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
        }
        if fault == Fault::CutsBody {
            let _ = client.shutdown(Shutdown::Both);
            return None;
        }
        let start = body.len();
        body.resize(length.max(start), 0);
        (&*client).read_exact(&mut body[start..]).ok()?;
        if let Fault::Answers(status) = fault {
            let reply = format!("HTTP/1.1 {status} Fault\r\nContent-Length: 0\r\n\r\n");
            (&*client).write_all(reply.as_bytes()).ok()?;
            continue;
        }
        let upstream = TcpStream::connect(server).ok()?;
        let head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        (&upstream).write_all(head.as_bytes()).ok()?;
        (&upstream).write_all(&body).ok()?;
        let mut reply = Vec::new();
        (&upstream).read_to_end(&mut reply).ok()?;
        if let Fault::Slow(time) = fault {
            thread::sleep(time);
        }
        if line.contains("list-type=2") {
            let mut lists = plan.lists.lock().unwrap();
            match fault == Fault::StaleLists {
                true => reply.clone_from(lists.entry(line).or_insert(reply.clone())),
                false => drop(lists.insert(line, reply.clone())),
            }
        }
        if fault != Fault::LosesReply {
            (&*client).write_all(&reply).ok()?;
        }
        // The reply says that the connection ends.
        let _ = client.shutdown(Shutdown::Both);
        return None;
    }
}

/// Returns the head of a request with its empty line, and what has arrived of the body.
fn read_head(mut client: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let n = client.read(&mut piece).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&piece[..n]);
        if let Some(at) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            let body = bytes.split_off(at + 4);
            return Some((String::from_utf8(bytes).ok()?, body));
        }
    }
}

fn header_text<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    Some(headers.find(|(found, _)| found.eq_ignore_ascii_case(name))?.1.trim())
}

fn header(head: &str, name: &str) -> Option<usize> {
    header_text(head, name)?.parse().ok()
}

/// A graph, and the server behind a proxy.
struct Home {
    source: Source,
    graph: PathBuf,
    moto: Moto,
    proxy: Proxy,
}

impl Home {
    fn new() -> Option<Self> {
        let moto = Moto::start()?;
        let proxy = Proxy::before(moto.address);
        let source = Source::random(N_NODES, 2400);
        let graph = source.import("graph", 2, "hash");
        Some(Self { source, graph, moto, proxy })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.source.file(name)
    }

    fn start(&self, args: &[&str]) -> Child {
        self.command(args).spawn().unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.proxy.address))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", SECRET);
        command
    }

    fn serve(&self, graph: &Path, more: &[&str]) -> Serving {
        let mut args = vec!["serve", graph.to_str().unwrap(), "--json", "--insecure"];
        args.extend(["--listen", "127.0.0.1:0", "--shards", "1"]);
        args.extend(more);
        Serving::try_start(self.command(&args)).unwrap_or_else(|log| panic!("no server: {log}"))
    }

    /// Returns the version that every partition has published.
    fn published(&self) -> u64 {
        let inspected = self.lode(&["inspect", "--json", URL]).succeeded().json();
        inspected["version"].as_u64().unwrap_or(0)
    }

    fn lode(&self, args: &[&str]) -> Finished {
        let ended = finish(self.start(args), DEADLINE);
        assert!(!format!("{ended:?}").contains(SECRET), "{ended:?}");
        ended
    }

    fn push(&self, graph: &Path) -> Finished {
        self.lode(&["push", "--json", graph.to_str().unwrap(), URL])
    }

    fn pull(&self, name: &str) -> Finished {
        self.lode(&["pull", "--json", URL, self.path(name).to_str().unwrap()])
    }

    fn put(&self, graph: &Path, seed: u64) {
        self.put_to(&["--graph", graph.to_str().unwrap()], seed);
    }

    fn put_to(&self, target: &[&str], seed: u64) {
        let mut numbers = Numbers(seed);
        let ids: Vec<u32> = (0..100).map(|_| numbers.below(N_NODES)).collect();
        let rows: Vec<[f32; 13]> =
            ids.iter().map(|_| std::array::from_fn(|_| numbers.next() as f32)).collect();
        let (ids_file, rows_file) = (self.path("ids.npy"), self.path("rows.npy"));
        write_npy(&ids_file, NpyType::U32, &[100], &ids);
        write_npy(&rows_file, NpyType::F32, &[100, 13], &rows);
        let [ids, rows] = [&ids_file, &rows_file].map(|path| path.to_str().unwrap());
        let mut args = vec!["put", "--tensor", "feat", "--ids", ids, "--rows", rows, "--commit"];
        args.extend(target);
        self.lode(&args).succeeded();
    }

    fn rows(&self, graph: &Path) -> Vec<u8> {
        let (ids, out) = (self.path("all.npy"), self.path("out.npy"));
        write_npy(&ids, NpyType::U32, &[u64::from(N_NODES)], &(0..N_NODES).collect::<Vec<_>>());
        let [graph, ids, path] = [graph, &ids, &out].map(|path| path.to_str().unwrap());
        self.lode(&["gather", "--graph", graph, "--tensor", "feat", "--ids", ids, "--out", path])
            .succeeded();
        std::fs::read(out).unwrap()
    }
}

#[test]
fn a_graph_goes_to_s3_and_comes_back_and_garbage_is_collected() {
    let Some(home) = Home::new() else { return };
    home.push(&home.graph).succeeded();
    home.put(&home.graph, 1);
    let pushed = home.push(&home.graph).succeeded().json();
    assert!(pushed["bytes"].as_u64().unwrap() < 200_000, "{pushed}");
    home.pull("pulled").succeeded();
    assert!(home.rows(&home.path("pulled")) == home.rows(&home.graph));
    let inspected = home.lode(&["inspect", "--json", URL]).succeeded().json();
    assert_eq!((inspected["url"].as_str(), inspected["version"].as_u64()), (Some(URL), Some(2)));
    home.lode(&["verify", URL]).succeeded();
    let removed =
        home.lode(&["gc", "--json", URL, "--keep", "1", "--grace", "0"]).succeeded().json();
    assert_eq!(removed["publications"].as_u64(), Some(2), "{removed}");
    home.lode(&["verify", URL]).succeeded();
    home.lode(&["pull", "s3://graphs/elsewhere", "x"]).failed(1, &["no graph is there"]);
    home.lode(&["pull", "s3://nobucket/g", "x"]).failed(1, &["s3://nobucket/g"]);
}

/// The first publication of partition 0 is taken, and its reply lost: the writer finds that it won.
/// Then every fault at every step of a push.
#[test]
fn a_push_holds_over_lost_replies_refusals_and_cut_connections() {
    let Some(home) = Home::new() else { return };
    let faults = [
        (Fault::LosesReply, "published/"),
        (Fault::LosesReply, "chunks/"),
        (Fault::LosesReply, "lodestore-graph"),
        (Fault::Answers(500), "published/"),
        (Fault::Answers(503), "chunks/"),
        (Fault::CutsBody, "chunks/"),
        (Fault::CutsBody, "published/"),
        (Fault::Slow(Duration::from_millis(300)), "below"),
    ];
    for (at, (fault, part)) in faults.into_iter().enumerate() {
        home.put(&home.graph, at as u64);
        let version = at as u64 + 2;
        // Reads of the key before it is written are not meant.
        home.proxy.fail(fault, part, 2);
        let pushed = home.push(&home.graph).succeeded().json();
        assert!(home.proxy.n_faults() >= 1, "{fault:?} at {part}");
        home.proxy.fail(Fault::None, part, 0);
        assert_eq!(pushed["version"].as_u64(), Some(version), "{fault:?} at {part}");
        for each in pushed["parts"].as_array().unwrap() {
            assert_eq!(
                each["publication"].as_u64(),
                Some(at as u64 + 1),
                "{fault:?} at {part}: {pushed}"
            );
        }
        home.proxy.fail(fault, part, 2);
        home.pull("pulled").succeeded();
        home.proxy.fail(Fault::None, part, 0);
        assert!(home.rows(&home.path("pulled")) == home.rows(&home.graph), "{fault:?} at {part}");
    }
    home.lode(&["verify", URL]).succeeded();
}

/// Exactly the creation of a publication is taken and its reply lost.
#[test]
fn a_writer_finds_out_whether_it_has_won() {
    let Some(home) = Home::new() else { return };
    home.push(&home.graph).succeeded();
    for name in ["a", "b"] {
        home.pull(name).succeeded();
    }
    let [a, b] = ["a", "b"].map(|name| home.path(name));
    home.put(&a, 1);
    home.put(&b, 2);
    home.proxy.fail(Fault::LosesReply, "PUT /graphs/below/g/part-000/published/0000000002", 2);
    home.push(&a).succeeded();
    assert!(home.proxy.n_faults() >= 1);
    home.proxy.fail(Fault::LosesReply, "PUT /graphs/below/g/part-000/published/0000000002", 2);
    home.push(&b).failed(1, &["fenced"]);
    home.pull("c").succeeded();
    assert!(home.rows(&home.path("c")) == home.rows(&a));
}

/// Lists of a moment before two versions: nothing that is needed is removed, and pushes continue.
#[test]
fn no_decision_depends_on_a_list_that_is_late() {
    let Some(home) = Home::new() else { return };
    home.push(&home.graph).succeeded();
    home.lode(&["gc", URL, "--keep", "1", "--grace", "0", "--dry-run"]).succeeded();
    for seed in 1..3 {
        home.put(&home.graph, seed);
        home.push(&home.graph).succeeded();
    }
    home.proxy.fail(Fault::None, "", 0);
    let stale = |part: &'static str| home.proxy.fail(Fault::StaleLists, part, u32::MAX);
    home.pull("before").succeeded();
    stale("list-type=2");
    home.put(&home.graph, 3);
    home.push(&home.graph).succeeded();
    home.lode(&["gc", "--json", URL, "--keep", "1", "--grace", "0"]).succeeded();
    assert!(home.proxy.n_faults() >= 4);
    home.proxy.fail(Fault::None, "", 0);
    home.lode(&["verify", URL]).succeeded();
    home.pull("pulled").succeeded();
    assert!(home.rows(&home.path("pulled")) == home.rows(&home.graph));
    // Ages have whole seconds here.
    thread::sleep(Duration::from_secs(2));
    let removed = home.lode(&["gc", "--json", URL, "--keep", "1", "--grace", "0"]);
    assert_eq!(removed.succeeded().json()["publications"].as_u64(), Some(6));
    home.lode(&["verify", URL]).succeeded();
}

#[test]
fn a_server_publishes_through_faults_and_another_follows() {
    let Some(home) = Home::new() else { return };
    let writer = home.serve(&home.graph, &["--writable", "--publish", URL]);
    let wait_for = |version: u64, what: &str| {
        let end = Instant::now() + DEADLINE;
        while home.published() != version {
            assert!(Instant::now() < end, "version {version} is not published: {what}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for(1, "no fault");
    let dir = home.path("follower");
    let follower = home.serve(&dir, &["--follow", URL, "--follow-interval", "100"]);
    let faults = [
        (Fault::LosesReply, "/published/"),
        (Fault::Answers(503), "/published/"),
        (Fault::Answers(500), "/chunks/"),
        (Fault::CutsBody, "/published/"),
        (Fault::Slow(Duration::from_millis(200)), "below"),
    ];
    for (at, (fault, part)) in faults.into_iter().enumerate() {
        home.proxy.fail(fault, part, 3);
        home.put_to(&["--connect", &writer.address], 10 + at as u64);
        wait_for(at as u64 + 2, &format!("{fault:?} at {part}"));
        home.proxy.fail(Fault::None, "", 0);
    }
    let version = faults.len() as u64 + 1;
    let wait_for_stat = |server: &Serving, key: &str, expected: Value| {
        let end = Instant::now() + DEADLINE;
        loop {
            let stat = home.lode(&["stat", "--json", &server.address]).succeeded().json();
            if stat[key] == expected {
                return;
            }
            assert!(Instant::now() < end, "{key} does not become {expected}: {stat}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for_stat(&follower, "version", version.into());
    assert!(home.rows(&dir) == home.rows(&home.graph));
    follower.stop();
    // Another server takes over, and the secrets are in no file of either.
    let other = home.path("other");
    let second = home.serve(&other, &["--writable", "--publish", URL, "--take-over"]);
    home.put_to(&["--connect", &second.address], 50);
    wait_for(version + 1, "after the takeover");
    wait_for_stat(&writer, "writable", false.into());
    let log = second.stop_and_take_log() + &writer.stop_and_take_log();
    assert!(!log.contains(SECRET), "{log}");
    assert!(log.contains("no more puts are taken"), "{log}");
    home.lode(&["verify", URL]).succeeded();
}

#[test]
fn a_server_without_rights_or_that_is_gone_is_named() {
    let Some(mut home) = Home::new() else { return };
    home.proxy.fail(Fault::Answers(403), "PUT", u32::MAX);
    home.push(&home.graph).failed(1, &["the credentials do not permit it"]);
    home.proxy.fail(Fault::Answers(403), "chunks/", u32::MAX);
    home.push(&home.graph).failed(1, &["chunks/", "the credentials do not permit it"]);
    home.proxy.fail(Fault::None, "", 0);
    home.pull("pulled").failed(1, &["no version is complete"]);
    home.push(&home.graph).succeeded();
    // It dies in the middle of an upload, and comes back without what it had.
    home.put(&home.graph, 1);
    home.proxy.fail(Fault::Slow(Duration::from_secs(1)), "PUT", u32::MAX);
    let push = home.start(&["push", home.graph.to_str().unwrap(), URL]);
    thread::sleep(Duration::from_millis(500));
    home.moto.child.kill().unwrap();
    finish(push, DEADLINE).failed(1, &[URL, "cannot"]);
}
