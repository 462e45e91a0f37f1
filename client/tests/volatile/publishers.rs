//! Publishers that compete for claims, are dropped, or lose their server.

use std::ops::Range;

use lodestore_client::volatile::VolatilePublisher;

use super::*;

/// Claims ids, waiting until the claims of a dropped publisher have ended.
pub(super) fn claim(publisher: &mut dyn VolatilePublisher, ids: &[Range<u32>]) {
    let end = Instant::now() + LONG;
    while let Err(error) = publisher.claim("h1", ids) {
        assert_eq!(refused(&error), Some(FailureCode::Held), "{error}");
        assert!(Instant::now() < end, "the claims of the dropped publisher did not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_dropped_publisher_releases_its_claims_and_the_next_claim_clears_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 2);
    let (server, address) = start(&config(&graph, &["h1:60xf32"]));
    let (client, other) = (connect(&[&address], LONG), connect(&[&address], LONG));
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut first = client.publisher();
    first.claim("h1", &[0..N_NODES]).unwrap();
    first.publish("h1", &ids, &rows_of(&ids, 9), 9).unwrap();
    let mut second = other.publisher();
    for held in [0..N_NODES, 0..1500, 1500..3000] {
        let error = second.claim("h1", &[held]).unwrap_err();
        assert_eq!(refused(&error), Some(FailureCode::Held), "{error}");
        assert!(error.to_string().contains("have a publisher already"), "{error}");
    }
    drop(first);
    // Its rows stay until another publisher claims them.
    let found = pull(&client, &ids, StampWanted::now(9)).unwrap();
    check(&ids, &found, 9);
    assert!(found.1.is_whole());
    claim(&mut *second, &[0..1500]);
    let found = pull(&client, &ids, StampWanted::now(0)).unwrap();
    check(&ids, &found, 0);
    assert_eq!(found.1.lacking(), (0..1500).collect::<Vec<u32>>());
    second.publish("h1", &ids[..1500], &rows_of(&ids[..1500], 1), 1).unwrap();
    let found = pull(&client, &ids, StampWanted::now(0)).unwrap();
    check(&ids, &found, 0);
    assert_eq!((found.1.is_whole(), found.1.oldest()), (true, Some(1)));
    // A publisher can go back to an earlier stamp by claiming its rows again.
    assert_eq!(second.claim("h1", &[0..1500]).unwrap(), 1500);
    second.publish("h1", &ids[3..4], &rows_of(&ids[3..4], 0), 0).unwrap();
    let found = pull(&client, &ids[..5], StampWanted::now(0)).unwrap();
    assert_eq!(found.1.lacking(), [0, 1, 2, 4]);
    drop(second);
    server.stop().unwrap();
}

#[test]
fn a_publisher_reports_that_its_server_stopped_and_can_claim_again() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 2);
    let settings = config(&graph, &["h1:60xf32"]);
    let (server, address) = start(&settings);
    let client = connect(&[&address], Duration::from_secs(5));
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let rows = rows_of(&ids, 3);
    let mut publisher = client.publisher();
    publisher.claim("h1", &[0..N_NODES]).unwrap();
    publisher.publish("h1", &ids, &rows, 3).unwrap();
    server.stop().unwrap();
    let gone = publisher.publish("h1", &ids, &rows, 4).unwrap_err();
    assert!(matches!(gone, ClientError::Unavailable { .. }), "{gone}");
    let lost = publisher.publish("h1", &ids, &rows, 4).unwrap_err();
    assert!(matches!(lost, ClientError::ClaimsLost { .. }), "{lost}");
    // The server restarts on the same port, so that the client finds it.
    let again = ServerConfig { listen: Some(address.parse().unwrap()), ..settings };
    let (server, _) = start(&again);
    let lost = publisher.publish("h1", &ids, &rows, 4).unwrap_err();
    assert!(matches!(lost, ClientError::ClaimsLost { .. }), "{lost}");
    let found = pull(&client, &ids, StampWanted::now(0)).unwrap();
    assert_eq!(found.1.lacking().len(), ids.len(), "the rows existed only in memory");
    publisher.claim("h1", &[0..N_NODES]).unwrap();
    publisher.publish("h1", &ids, &rows, 3).unwrap();
    check(&ids, &pull(&client, &ids, StampWanted::now(3)).unwrap(), 3);
    drop(publisher);
    server.stop().unwrap();
}
