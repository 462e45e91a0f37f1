//! A browser that is driven: what a person types and sees.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Code of the key Enter (WebDriver, 17.4.2).
pub(crate) const ENTER: &str = "\u{e007}";
const SEEN_MAX: Duration = Duration::from_secs(30);
/// A browser takes long to start where others take the processors.
const ANSWER_MAX: Duration = Duration::from_secs(90);

/// A session of a browser, through `chromedriver`.
pub(crate) struct Driven {
    driver: Child,
    address: String,
    session: String,
}

impl Driven {
    /// Starts a browser; `None`, and a line that says so, where there is no `chromedriver`.
    pub(crate) fn start(profile: &str) -> Option<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(driver) = command.spawn() else {
            eprintln!("SKIPPED: no chromedriver; `apt-get install chromium-driver` brings one");
            return None;
        };
        let address = format!("127.0.0.1:{port}");
        let mut this = Self { driver, address, session: String::new() };
        until("chromedriver answers", || TcpStream::connect(&this.address).ok());
        let profile = format!("--user-data-dir={profile}");
        let args = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let args = [&args[..], &["--no-proxy-server", &profile]].concat();
        let wanted = json!({ "goog:chromeOptions": { "args": args } });
        let session = json!({ "capabilities": { "alwaysMatch": wanted } });
        let told = this.ask("POST", "/session", &session).expect("a session");
        this.session = format!("/session/{}", told["sessionId"].as_str().unwrap());
        Some(this)
    }

    pub(crate) fn open(&self, url: &str) {
        self.tell("/url", &json!({ "url": url })).unwrap();
    }

    /// Types into what a selector finds.
    pub(crate) fn type_into(&self, selector: &str, keys: &str) {
        let element = self.element(selector).unwrap();
        self.tell(&format!("{element}/value"), &json!({ "text": keys })).unwrap();
    }

    /// Waits until what a selector finds has this text and can be seen, or cannot.
    pub(crate) fn shows(&self, selector: &str, text: &str) {
        until(&format!("{selector}: {text:?}"), || (self.text(selector)? == text).then_some(()));
    }

    /// Returns the text of the element of a selector, as a person sees it.
    pub(crate) fn text(&self, selector: &str) -> Option<String> {
        let path = format!("{}{}/text", self.session, self.element(selector)?);
        Some(self.ask("GET", &path, &Value::Null)?.as_str().unwrap().to_owned())
    }

    fn element(&self, selector: &str) -> Option<String> {
        let found =
            self.tell("/element", &json!({ "using": "css selector", "value": selector }))?;
        let id = found.as_object().unwrap().values().next().unwrap().as_str().unwrap();
        Some(format!("/element/{id}"))
    }

    fn tell(&self, path: &str, body: &Value) -> Option<Value> {
        self.ask("POST", &format!("{}{path}", self.session), body)
    }

    /// Returns the output of a command; `None` if it is refused.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(ANSWER_MAX)).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        Some(take_answer(&mut BufReader::new(stream))?["value"].take())
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // The browser ends with its session, and not with the driver.
        let _ = self.ask("DELETE", &self.session, &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Returns the body of one answer, unless it is a refusal. The driver keeps its connections.
fn take_answer(stream: &mut impl BufRead) -> Option<Value> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (stream.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let mut body = vec![0; lengths.next()?.1.trim().parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    (head.split(' ').nth(1) == Some("200")).then(|| serde_json::from_slice(&body).ok())?
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let late = Instant::now() + SEEN_MAX;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < late, "not within {SEEN_MAX:?}: {what}");
        sleep(Duration::from_millis(50));
    }
}
