//! A graph of many partitions, on a machine where a process may have few files open.

use crate::bucket::home::Home;
use testing::process::{Serving, lode_with_files};

const N_PARTS: u16 = 60;

#[test]
fn many_partitions_are_imported_with_few_open_files_and_other_commands_say_what_they_need() {
    let home = Home::with_parts(N_PARTS, |args| lode_with_files(100, args));
    let (graph, url) = (home.graph.to_str().unwrap(), home.url());
    // At the start, and not after half of the work.
    let needed = ["360 open files", "may open 300", "ulimit -n"];
    for args in [
        &["push", graph, &url][..],
        &["commit", graph],
        &["serve", graph, "--listen", "127.0.0.1:0"],
    ] {
        lode_with_files(300, args).failed(1, &needed);
    }
    assert!(!home.bucket().exists());
    // The shards of a server open each of them once more.
    let args = ["serve", graph, "--listen", "127.0.0.1:0"];
    lode_with_files(440, &args).failed(1, &["may have 440", "ulimit -n"]);

    // The usual limit is enough for this graph.
    let usual = |args: &[&str]| lode_with_files(1024, args).succeeded();
    home.put(&home.graph, 1, true);
    usual(&["push", graph, &url]);
    let pulled = home.path("pulled");
    usual(&["pull", &url, pulled.to_str().unwrap()]);
    usual(&["verify", pulled.to_str().unwrap()]);
    usual(&["verify", &url]);
    let inspected = usual(&["inspect", "--json", &url]).json();
    assert_eq!(inspected["version"].as_u64(), Some(2));
    home.check_same(&home.graph, &pulled);
    let server =
        Serving::start(&home.graph, "--writable --insecure --listen 127.0.0.1:0 --shards 3");
    home.put_through(&server.address, 2).succeeded();
    server.stop();
    usual(&["push", graph, &url]);
    usual(&["pull", &url, pulled.to_str().unwrap()]);
    home.check_same(&home.graph, &pulled);
}
