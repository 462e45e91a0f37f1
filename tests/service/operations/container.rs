//! The container file and its seccomp profile, as far as they can be tried without a container.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use testing::graph::Source;
use testing::process::{Finished, Serving, finish};
use testing::write_file;

const CONTAINER_FILE: &str = include_str!("../../../deploy/Dockerfile");
const SECCOMP_PROFILE: &str = include_str!("../../../deploy/seccomp.json");

/// Returns the words of an instruction in exec form.
fn exec_form(instruction: &str) -> Vec<String> {
    let text = CONTAINER_FILE.replace("\\\n", " ");
    let line = text.lines().find_map(|line| line.strip_prefix(instruction)).unwrap();
    serde_json::from_str(&line[line.find('[').unwrap()..]).unwrap()
}

/// Replaces text that must be there.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no `{from}` in {text}");
    text.replace(from, to)
}

/// Runs the container's health check against another port.
fn check_health(address: &str) -> Finished {
    let words = exec_form("HEALTHCHECK ");
    let [shell, flag, script] = words.as_slice() else { panic!("{words:?}") };
    let (host, port) = address.split_once(':').unwrap();
    let script = replaced(script, "/127.0.0.1/9171 ", &format!("/{host}/{port} "));
    let mut command = Command::new(shell);
    command.arg(flag).arg(script);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap(), Duration::from_secs(20))
}

#[test]
fn the_command_of_the_container_serves_and_its_health_check_sees_whether_it_does() {
    let source = Source::random(300, 900);
    let graph = source.import("graph", 2, "hash");
    write_file(&source.file("token"), "token-of-the-container", 0o600);
    let data = format!("{}/", graph.parent().unwrap().display());
    let line = replaced(&exec_form("CMD ").join(" "), "/data/", &data);
    // Ports of a container are its own; here others may have them.
    let line = replaced(&line, "0.0.0.0:7171", "127.0.0.1:0");
    let line = replaced(&line, "0.0.0.0:9171", "127.0.0.1:0");
    let line = replaced(&line, "--shard-port-base 7172", "");
    let server = Serving::start_command(&format!("{line} --json"));
    let metrics = server.metrics.clone();
    check_health(&metrics).succeeded();
    server.stop();
    check_health(&metrics).failed(1, &["Connection refused"]);
}

#[test]
fn a_server_that_is_not_healthy_fails_the_health_check() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let check = std::thread::spawn(move || check_health(&address));
    let (mut stream, _) = listener.accept().unwrap();
    // All of it: what is not read would end the connection by a reset.
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        request.extend(byte);
    }
    assert!(request.starts_with(b"GET /healthz HTTP/1."), "{request:?}");
    stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n").unwrap();
    drop(stream);
    check.join().unwrap().failed(1, &[]);
}

#[test]
fn the_seccomp_profile_allows_io_uring_and_no_namespaces() {
    let profile: Value = serde_json::from_str(SECCOMP_PROFILE).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules_of = |call: &str| -> Vec<&Value> {
        let rules = profile["syscalls"].as_array().unwrap();
        let names = |rule: &Value| rule["names"].as_array().unwrap().contains(&call.into());
        rules.iter().filter(|rule| names(rule)).collect()
    };
    for call in ["io_uring_setup", "io_uring_enter", "io_uring_register"] {
        let rules = rules_of(call);
        assert_eq!(rules.len(), 1, "{call}");
        assert_eq!(
            (&rules[0]["action"], &rules[0]["args"]),
            (&"SCMP_ACT_ALLOW".into(), &Value::Null)
        );
    }
    for call in ["clone3", "unshare", "setns", "mount", "ptrace", "bpf", "keyctl", "kexec_load"] {
        assert!(rules_of(call).is_empty(), "{call}");
    }
    // Flags of new namespaces, of which none may be set.
    let [clone] = rules_of("clone")[..] else { panic!("clone has one rule") };
    assert_eq!(clone["args"][0]["value"], 0x7e02_0000);
}
