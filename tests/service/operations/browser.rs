//! The status page in a real browser, where one is installed.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::operations::Watched;
use crate::operations::webdriver::{Driven, ENTER};
use testing::http::get;
use testing::process::{finish, lode_line};

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

fn browser() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut files =
        std::env::split_paths(&folders).flat_map(|dir| BROWSERS.map(|name| dir.join(name)));
    files.find(|file| file.is_file())
}

#[test]
fn a_browser_shows_the_figures() {
    let Some(browser) = browser() else {
        eprintln!("SKIPPED: no browser among {BROWSERS:?}; `apt-get install chromium` brings one");
        return;
    };
    let watched = Watched::start("--shards 2");
    let load =
        format!("load --connect {} --rows 40 --duration 0.5 --warm-up 0", watched.server.address);
    lode_line(&load).succeeded();
    let profile = watched.source.dir.path().join("profile");
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=3000", "--enable-logging=stderr", "--dump-dom"])
        .arg(format!("http://{}/", watched.server.metrics))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let shown = finish(command.spawn().unwrap(), Duration::from_secs(90)).succeeded();
    let page = &shown.stdout;
    assert!(page.contains("<span id=\"phase\" class=\"good\">ready</span>"), "{page}");
    let rows_of = |body: &str| {
        let (_, rest) = page.split_once(&format!("id=\"{body}\">")).unwrap();
        rest.split_once("</tbody>").unwrap().0.matches("<tr>").count()
    };
    // Kinds that were never asked for have no line.
    let status = get(&watched.server.metrics, "/status.json").body;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let kinds = status["kinds"].as_object().unwrap().values();
    let n_seen = kinds.filter(|kind| kind["begun"].as_u64() != Some(0)).count();
    assert_eq!((rows_of("shards"), rows_of("kinds")), (2, n_seen), "{page}");
    assert!(page.contains("partitions 0, 1") && page.contains("sync pull"), "{page}");
    assert!(page.contains("<p id=\"lost\" class=\"bad\" role=\"alert\"></p>"), "{page}");
    for fault in ["Content Security Policy", "Uncaught", "SyntaxError"] {
        assert!(!shown.stderr.contains(fault), "{}", shown.stderr);
    }
    watched.server.stop();
}

#[test]
fn a_browser_shows_figures_to_a_user_with_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let Some(browser) = Driven::start(dir.path().to_str().unwrap()) else { return };
    let (token, file) = ("0123456789abcdef0123456789abcdef", dir.path().join("token"));
    std::fs::write(&file, token).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let watched = Watched::with_metrics(&format!("0.0.0.0:0 --token-file {}", file.display()));
    let port = watched.server.metrics.rsplit_once(':').unwrap().1;
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.shows("#ask button", "show");
    assert_eq!(browser.text("#shards").unwrap(), "", "strangers see no figures");

    browser.type_into("#token", &format!("wrong{ENTER}"));
    browser.shows("#lost", "That is not the token.");
    browser.type_into("#token", &format!("{token}{ENTER}"));
    browser.shows("#phase", "ready");
    browser.shows("#ask", "");
    browser.shows("#lost", "");
    assert!(browser.text("#what").unwrap().contains("partitions 0, 1"));
    assert_ne!(browser.text("#shards").unwrap(), "");
    watched.server.stop();
}
