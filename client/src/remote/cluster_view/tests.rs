//! Partitions with no writer, with two writers, and with no server.

use lodestore_schema::reply::PartState;

use super::refresh::restarted;
use super::*;

fn server(port: u16, parts: &[u16]) -> (Address, Description) {
    let description = Description {
        graph: [7; 16],
        bounds: vec![0, 5, 10],
        parts: parts.to_vec(),
        shard_ports: vec![port],
        n_shards: 1,
        version: 1,
        writable: true,
        roams: true,
        ..Description::default()
    };
    (format!("127.0.0.1:{port}").parse().unwrap(), description)
}

fn view_of(servers: Vec<(Address, Description)>) -> ClusterView {
    let tensors = crate::route::known_tensors(&servers).unwrap().into();
    ClusterView::new(servers, tensors, Security::default(), Arc::default()).unwrap()
}

/// Returns a server that has these partitions in these roles.
fn in_role(port: u16, instance: u64, roles: &[(u16, Role)]) -> (Address, Description) {
    let parts: Vec<u16> = roles.iter().map(|&(part, _)| part).collect();
    let (address, description) = server(port, &parts);
    let states = roles.iter().map(|&(_, role)| PartState { version: 1, tag: 0, role }).collect();
    (address, Description { states, instance, ..description })
}

#[test]
fn puts_need_exactly_one_writer_and_the_error_says_what_to_do() {
    use Role::{Follower, Reader, Writer};
    let writer = |all: Vec<(Address, Description)>| view_of(all).writer_of(PartId(0));
    let one = || in_role(1, 1, &[(0, Writer), (1, Writer)]);
    assert_eq!(writer(vec![one()]).unwrap(), 0);
    let others = [in_role(2, 2, &[(0, Follower)]), in_role(3, 3, &[(0, Reader)])];
    assert_eq!(writer([&others[..], &[one()]].concat()).unwrap(), 2);
    let none = writer(others.to_vec()).unwrap_err().to_string();
    assert!(none.contains("127.0.0.1:2, 127.0.0.1:3") && none.contains("writable"), "{none}");
    assert!(matches!(
        writer(vec![in_role(1, 1, &[(1, Writer)])]),
        Err(ClientError::NoReplica { part: PartId(0) })
    ));
    let view = view_of(vec![one(), in_role(4, 4, &[(0, Writer)])]);
    let two = view.writer_of(PartId(0)).unwrap_err();
    assert!(matches!(two, ClientError::TwoWriters { part: PartId(0), .. }), "{two}");
    let two = two.to_string();
    let says = ["127.0.0.1:1", "127.0.0.1:4", "a follower of the other", "nothing was put"];
    assert!(says.iter().all(|it| two.contains(it)), "{two}");
    assert_eq!(view.writer_of(PartId(1)).unwrap(), 0, "the other partition has one");
    // Two addresses of one server.
    assert_eq!(writer(vec![one(), in_role(4, 1, &[(0, Writer)])]).unwrap(), 0);
}

#[test]
fn a_server_that_no_map_names_stays_if_it_alone_holds_or_writes_a_partition() {
    let (w, f) = (Role::Writer, Role::Follower);
    let servers = vec![in_role(1, 1, &[(0, w), (1, w)]), in_role(2, 2, &[(0, f)])];
    let view = view_of(servers.clone());
    assert!(!view.needs(&servers[..1], &servers[1].1) && view.needs(&[], &servers[1].1));
    assert!(view.needs(&servers[1..], &servers[0].1), "none writes the first, none has the second");
    assert!(view.needs(&servers[1..], &in_role(3, 3, &[(0, w)]).1));
    assert!(!view.needs(&servers, &in_role(4, 4, &[(1, w)]).1));
    assert!(
        !view.needs(&servers, &in_role(5, 1, &[(0, w)]).1),
        "one address of a server is enough"
    );
}

#[test]
fn a_restarted_server_counts_once_though_an_address_was_not_asked_again() {
    let name = |port: u16| format!("b:{port}").parse::<Address>().unwrap();
    let runs = |instance| in_role(1, instance, &[(0, Role::Writer)]).1;
    let view = Arc::new(view_of(vec![(name(1), runs(5)), (name(2), runs(5))]));
    let renewed = view.with(1, runs(6)).unwrap();
    assert_eq!(renewed.writer_of(PartId(0)).unwrap(), 0);
    // Another server keeps its description, and servers without an instance number are never
    // merged.
    let view = Arc::new(view_of(vec![(name(1), runs(5)), (name(3), runs(9))]));
    assert!(view.with(0, runs(6)).unwrap().writer_of(PartId(0)).is_err());
    let view = Arc::new(view_of(vec![(name(1), runs(0)), (name(2), runs(0))]));
    assert_eq!(view.with(0, runs(6)).unwrap().servers[1].1, runs(0));
}

#[test]
fn the_server_behind_a_silent_address_is_known_by_another_of_its_addresses() {
    let runs = |instance| Description { instance, ..server(1, &[0]).1 };
    let all = [0, 5, 6, 7].map(runs);
    let [none, old, new, other] = &all;
    let told = [(other, other), (none, new), (old, new)];
    assert_eq!(restarted(old, told.into_iter()), Some(new));
    assert_eq!(restarted(other, told.into_iter()), None, "it has not restarted");
    assert_eq!(restarted(none, told.into_iter()), None, "it has no instance number");
    assert_eq!(restarted(old, [(old, old)].into_iter()), None);
}

#[test]
fn servers_of_another_graph_do_not_replace_known_servers() {
    let view = view_of(vec![server(1, &[0, 1])]);
    assert!(view.with_servers(vec![server(2, &[0]), server(1, &[1])]).is_ok());
    let of_graph = |change: fn(&mut Description)| {
        let (address, mut description) = server(2, &[0]);
        change(&mut description);
        vec![(address, description)]
    };
    for others in [
        of_graph(|it| it.graph = [8; 16]),
        of_graph(|it| it.bounds = vec![0, 10]),
        of_graph(|it| it.bounds = vec![0, 3, 10]),
    ] {
        let error = view.with_servers(others).err().unwrap();
        assert!(matches!(error, ClientError::GraphsDiffer { .. }), "{error}");
    }
}

#[test]
fn a_server_that_keeps_restarting_rests_and_one_that_changed_is_asked() {
    let runs = |instance, parts: &[u16]| Description { instance, ..server(1, parts).1 };
    let address = server(1, &[]).0;
    let view = Arc::new(view_of(vec![(address, runs(5, &[0, 1])), server(2, &[0, 1])]));
    let now = Instant::now();
    view.routes.health(0).failed(now);
    let view = view.with(0, runs(6, &[0, 1])).unwrap();
    assert!(view.routes.health(0).is_resting(now));
    let view = view.with(0, runs(7, &[0])).unwrap();
    assert!(!view.routes.health(0).is_resting(now));
}

#[test]
fn a_partition_is_missing_unless_an_absent_server_held_it_or_it_is_moving() {
    let before = view_of(vec![server(1, &[0]), server(2, &[1])]);
    let after = |servers| {
        let mut view = view_of(servers);
        view.find_away(&before);
        view
    };
    assert!(!after(vec![server(1, &[0]), server(2, &[1])]).is_missing(PartId(1)));
    assert!(after(vec![server(1, &[0]), server(2, &[])]).is_missing(PartId(1)));
    let gone = after(vec![server(1, &[0])]);
    assert!(!gone.is_missing(PartId(1)), "the server that held it may come back");
    let mut later = view_of(vec![server(1, &[0]), server(3, &[])]);
    later.find_away(&gone);
    assert!(!later.is_missing(PartId(1)), "while no server has it");
    let mut back = view_of(vec![server(1, &[0]), server(3, &[1])]);
    back.find_away(&later);
    let mut given_on = view_of(vec![server(1, &[0]), server(3, &[])]);
    given_on.find_away(&back);
    assert!(given_on.is_missing(PartId(1)));
    let (address, description) = server(2, &[]);
    let target = (address, Description { arriving: vec![1], ..description });
    assert!(!after(vec![server(1, &[0]), target]).is_missing(PartId(1)));
}
