//! The server that is asked for each row.

use std::time::Instant;

use lodestore_schema::reply::TensorDescription;

use super::*;

fn server(parts: &[u16], n_shards: u16) -> Description {
    let tensor = TensorDescription {
        name: "feat".into(),
        dtype: "f32".into(),
        width: 1,
        row_bytes: 4,
        stripe_rows: 2,
        uuid: [0; 16],
    };
    Description {
        graph: [7; 16],
        n_edges: 0,
        bounds: vec![0, 5, 10],
        parts: parts.to_vec(),
        tensors: vec![tensor],
        shard_ports: (0..n_shards).map(|shard| 9000 + shard).collect(),
        n_shards,
        version: 1,
        writable: false,
        shares: false,
        roams: false,
        ..Description::default()
    }
}

/// Returns the routes of a client that knows the tensors of these servers.
fn routes_of(servers: &[(Address, Description)]) -> Result<Routes, ClientError> {
    Routes::new(servers, &known_tensors(servers)?)
}

fn address(port: u16) -> Address {
    format!("127.0.0.1:{port}").parse().unwrap()
}

fn endpoints(routes: &Routes, ids: &[u32]) -> Vec<usize> {
    ids.iter().map(|&id| routes.endpoint_of(0, NodeId(id)).unwrap().0).collect()
}

#[test]
fn rows_go_to_the_shard_that_owns_their_stripe() {
    let servers = [(address(1), server(&[0], 2)), (address(2), server(&[1], 1))];
    let routes = routes_of(&servers).unwrap();
    assert_eq!(endpoints(&routes, &[0, 1, 2, 3, 4, 5, 9]), [0, 0, 1, 1, 0, 2, 2]);
    assert_eq!(routes.endpoints[1].address, address(9001));
    let mut buckets = Vec::new();
    let ids = [9, 0, 2, 0].map(NodeId);
    routes.split(0, &ids, 0..4, &mut buckets).unwrap();
    let positions: Vec<_> = buckets.iter().map(|b| b.positions.clone()).collect();
    assert_eq!(positions, [vec![1, 3], vec![2], vec![0]]);
}

#[test]
fn rows_of_the_last_partition_go_to_the_shards_that_own_them() {
    let routes = routes_of(&[(address(1), server(&[0, 1], 3))]).unwrap();
    let all: Vec<u32> = (0..10).collect();
    // Stripes of two rows, the first of partition 1 at the second shard.
    assert_eq!(endpoints(&routes, &all), [0, 0, 1, 1, 2, 1, 1, 2, 2, 0]);
}

#[test]
fn another_holder_is_asked_after_a_failure() {
    let servers = [(address(1), server(&[0, 1], 1)), (address(2), server(&[1], 1))];
    let routes = routes_of(&servers).unwrap();
    let now = Instant::now();
    let parts = |ids: &[u32]| {
        let (ids, mut buckets): (Vec<NodeId>, _) =
            (ids.iter().copied().map(NodeId).collect(), Vec::new());
        routes.split(0, &ids, 0..ids.len() as u32, &mut buckets).unwrap();
        buckets.swap_remove(0).parts
    };
    let (both, second) = (parts(&[0, 5]), parts(&[5]));
    assert!(!routes.can_do_without(0), "no other holds partition 0");
    assert!(!routes.are_elsewhere(&both, 0) && routes.are_elsewhere(&second, 0));
    assert!(routes.can_do_without(1) && routes.are_well_elsewhere(&second, 1, now));
    routes.health(0).failed(now);
    routes.choose(now);
    assert_eq!(endpoints(&routes, &[0, 5]), [0, 1]);
    assert!(routes.are_elsewhere(&second, 1), "it rests");
    assert!(!routes.are_well_elsewhere(&second, 1, now), "it rests");
    // Both rest: the server that failed longest ago is asked.
    let now = now + std::time::Duration::from_millis(5);
    routes.health(1).failed(now);
    routes.choose(now);
    assert_eq!(endpoints(&routes, &[0, 5]), [0, 0]);
}

#[test]
fn a_hedge_has_every_partition_of_the_request() {
    let others: [&[u16]; 3] = [&[0], &[1], &[0, 1]];
    for (ids, expected) in [([0, 9], 3), ([9, 0], 3), ([0, 4], 1), ([5, 9], 2)] {
        let held = std::iter::once(&[0u16, 1][..]).chain(others);
        let servers: Vec<_> =
            held.zip(1..).map(|(held, at)| (address(at), server(held, 1))).collect();
        let (routes, now) = (routes_of(&servers).unwrap(), Instant::now());
        // Servers with one partition are faster.
        for (at, ms) in [(0, 1), (1, 2), (2, 2), (3, 50)] {
            routes.health(at).answered(std::time::Duration::from_millis(ms), now);
        }
        let (ids, mut buckets) = (ids.map(NodeId), Vec::new());
        routes.split(0, &ids, 0..2, &mut buckets).unwrap();
        let Bucket { parts, .. } = buckets.swap_remove(0);
        assert_eq!(routes.hedge(0, &ids, &parts, 0), Some(expected), "{ids:?}");
        // Without the server that holds both partitions there is no hedge.
        let routes = routes_of(&servers[..3]).unwrap();
        let both = (ids[0].0 < 5) != (ids[1].0 < 5);
        assert_eq!(routes.hedge(0, &ids, &parts, 0).is_none(), both, "{ids:?}");
    }
}

#[test]
fn a_set_has_the_inserted_partitions_also_past_a_word() {
    let mut set = PartSet::default();
    let parts = [0, 62, 63, 64, 127, 128, 65_534];
    parts.iter().for_each(|&part| set.insert(PartId(part)));
    assert!(set.indexes().eq(parts.map(usize::from)));
    assert!(set.contains(PartId(64)) && !set.contains(PartId(65)) && !set.contains(PartId(65_535)));
    let mut joined = PartSet::default();
    joined.insert(PartId(1));
    joined.insert_all(&set);
    assert_eq!(joined.iter().count(), parts.len() + 1);
}

#[test]
fn the_server_with_the_lowest_latency_is_asked() {
    let servers = [(address(1), server(&[0, 1], 1)), (address(2), server(&[0, 1], 1))];
    let (routes, now) = (routes_of(&servers).unwrap(), Instant::now());
    let answered = |server, ms| {
        routes.health(server).answered(std::time::Duration::from_millis(ms), now);
        routes.choose(now);
        endpoints(&routes, &[0])[0]
    };
    assert_eq!(answered(0, 10), 1, "the other is unknown");
    assert_eq!(answered(1, 100), 0);
    assert_eq!(answered(1, 90), 0);
    routes.health(1).copy(&Health::default());
    assert_eq!(answered(1, 9), 0, "not clearly better");
    routes.health(1).copy(&Health::default());
    assert_eq!(answered(1, 2), 1);
    let same = routes_of(&servers).unwrap();
    (0..2).for_each(|server| same.health(server).copy(routes.health(server)));
    same.choose(now);
    assert_eq!(endpoints(&same, &[0]), [1]);
}

#[test]
fn other_graphs_and_missing_partitions_are_reported() {
    assert!(matches!(routes_of(&[]), Err(ClientError::NoServers)));
    let other = Description { graph: [8; 16], ..server(&[1], 1) };
    let servers = [(address(1), server(&[0], 1)), (address(2), other)];
    assert!(matches!(routes_of(&servers), Err(ClientError::GraphsDiffer { .. })));
    let routes = routes_of(&[(address(1), server(&[0], 1))]).unwrap();
    let split = |id| routes.split(0, &[NodeId(4), NodeId(id)], 0..2, &mut Vec::new());
    assert!(matches!(split(5), Err(ClientError::NoReplica { part: PartId(1) })));
    let unknown = split(10);
    assert!(matches!(unknown, Err(ClientError::UnknownNode { node: NodeId(10), n_nodes: 10 })));
}
