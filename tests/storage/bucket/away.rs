//! Servers whose bucket does not answer for some time.

use std::fs;
use std::path::PathBuf;

use crate::bucket::home::Home;
use crate::bucket::servers::wait_for;

/// Puts a file in the place of the bucket, so that nothing can be read or written there; returns
/// where the bucket is.
pub(crate) fn take_away(home: &Home) -> PathBuf {
    let aside = home.path("aside");
    fs::rename(home.bucket(), &aside).unwrap();
    fs::write(home.bucket(), "no folder").unwrap();
    aside
}

pub(crate) fn bring_back(home: &Home) {
    fs::remove_file(home.bucket()).unwrap();
    fs::rename(home.path("aside"), home.bucket()).unwrap();
}

#[test]
fn a_server_whose_bucket_is_away_serves_reads_and_takes_puts_after_the_comparison() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    home.put(&home.graph, 2, true);
    take_away(&home);
    let server = home.publish(&home.graph, "").unwrap();
    let target = ["--connect", &server.address];
    let rows = home.try_rows(&target, "wide").unwrap();
    assert!(rows == home.try_rows(&["--graph", home.graph.to_str().unwrap()], "wide").unwrap());
    let refused = home.put_through(&server.address, 3);
    assert!(refused.stderr.contains("what is published is not known yet"), "{refused:?}");
    bring_back(&home);
    wait_for("puts are taken", || home.put_through(&server.address, 3).code == Some(0));
    wait_for("they are published", || home.published() == 3);
    server.stop();
    home.verify().succeeded();
}

#[test]
fn a_server_that_was_taken_over_while_its_bucket_was_away_takes_no_puts() {
    let home = Home::new();
    home.push(&home.graph).succeeded();
    let other = home.path("other");
    home.publish(&other, "--take-over").unwrap().stop();
    take_away(&home);
    let server = home.publish(&home.graph, "").unwrap();
    bring_back(&home);
    wait_for("it is fenced", || {
        let refused = home.put_through(&server.address, 3);
        refused.code != Some(0) && refused.stderr.contains("another writer has taken partition")
    });
    assert!(home.try_rows(&["--connect", &server.address], "wide").is_ok());
    server.stop();
}

#[test]
fn commits_stop_where_nothing_can_be_published_within_the_time_given() {
    let home = Home::new();
    let server = home.publish(&home.graph, "--publish-within 15").unwrap();
    home.put_through(&server.address, 2).succeeded();
    wait_for("it is published", || home.published() == 2);
    take_away(&home);
    home.put_through(&server.address, 3).succeeded();
    wait_for("no more is taken", || {
        let refused = home.put_through(&server.address, 4);
        refused.code != Some(0) && refused.stderr.contains("nothing was published for")
    });
    bring_back(&home);
    wait_for("puts are taken again", || home.put_through(&server.address, 5).code == Some(0));
    server.stop();
    home.verify().succeeded();
}
