//! Holders that are lost, left out, not enough, or nowhere.

use std::sync::Arc;
use std::time::Instant;

use super::super::renewed;
use super::*;
use crate::Security;

fn server(port: u16, parts: &[u16]) -> (Address, Description) {
    let description = Description {
        graph: [7; 16],
        n_edges: 0,
        bounds: vec![0, 5, 10],
        parts: parts.to_vec(),
        tensors: Vec::new(),
        shard_ports: vec![port],
        n_shards: 1,
        version: 1,
        writable: true,
        shares: false,
        roams: true,
        ..Description::default()
    };
    (format!("127.0.0.1:{port}").parse().unwrap(), description)
}

#[test]
fn a_holder_that_is_lost_holds_up_puts_of_its_partition_alone() {
    let servers = vec![server(1, &[0, 1]), server(2, &[0])];
    let shares = Arc::default();
    let fleet = Arc::new(Fleet::new(servers, Security::default(), shares).unwrap());
    let check = |fleet: &Fleet, part| fleet.check_holders(PartId(part));
    assert!(check(&fleet, 0).is_ok() && check(&fleet, 1).is_ok());
    // The first partition has left a holder, and the other one has come there.
    let fleet = fleet.with(1, server(2, &[1]).1).unwrap();
    assert_eq!(fleet.routes.holders_of(PartId(1)), [0, 1], "what is new is believed");
    assert!(matches!(check(&fleet, 0), Err(ClientError::LostHolder { part: PartId(0) })));
    assert!(check(&fleet, 1).is_ok());
    let fleet = fleet.with(0, server(1, &[0]).1).unwrap().with(1, server(2, &[0]).1).unwrap();
    assert!(check(&fleet, 0).is_ok(), "it is found again");
    assert!(matches!(check(&fleet, 1), Err(ClientError::NoHolder { part: PartId(1) })));
}

#[test]
fn a_server_that_no_map_names_stays_for_what_too_few_others_hold() {
    let servers = vec![server(1, &[0, 1]), server(2, &[0])];
    let shares = Arc::default();
    let fleet = Fleet::new(servers.clone(), Security::default(), shares).unwrap();
    assert!(fleet.needs(&servers[..1], &servers[1].1), "two held it");
    assert!(fleet.needs(&[], &servers[1].1));
    assert!(!fleet.needs(&[servers[0].clone(), server(3, &[0])], &servers[1].1));
    assert!(!fleet.needs(&servers, &server(4, &[1]).1));
}

fn counted(port: u16, parts: &[u16], generation: u32, n_holders: u16) -> (Address, Description) {
    let (address, description) = server(port, parts);
    let change = 2 * u64::from(generation);
    let memberships = vec![Membership { generation, n_holders, change }; parts.len()];
    (address, Description { memberships, ..description })
}

fn fleet_of(servers: Vec<(Address, Description)>) -> Fleet {
    Fleet::new(servers, Security::default(), Arc::default()).unwrap()
}

#[test]
fn puts_want_as_many_holders_as_those_that_are_there_tell_of() {
    let check = |servers| fleet_of(servers).check_holders(PartId(0));
    assert!(check(vec![counted(1, &[0, 1], 1, 1)]).is_ok());
    assert!(check(vec![counted(1, &[0, 1], 1, 2), counted(2, &[0], 1, 2)]).is_ok());
    // A holder is away, or one more is there.
    for (servers, numbers) in [
        (vec![counted(1, &[0, 1], 4, 2)], (2, 1)),
        (vec![counted(1, &[0, 1], 4, 1), counted(2, &[0], 4, 1)], (1, 2)),
    ] {
        let error = check(servers).unwrap_err();
        let text = error.to_string();
        let ClientError::HolderCount { part: PartId(0), expected, found, .. } = error else {
            panic!("{text}")
        };
        assert_eq!((expected, found), numbers);
        assert!(text.contains("127.0.0.1:1") && text.contains("lode holders 0"), "{text}");
    }
}

#[test]
fn holders_that_were_counted_apart_are_neither_put_to_nor_committed() {
    let (a, (address, mut other)) = (counted(1, &[0, 1], 4, 1), counted(2, &[0], 4, 1));
    assert!(matches!(
        fleet_of(vec![a.clone(), (address.clone(), other.clone())]).check_holders(PartId(0)),
        Err(ClientError::HolderCount { .. })
    ));
    other.memberships[0].change = 6;
    let fleet = fleet_of(vec![a, (address, other)]);
    for told in [fleet.check_holders(PartId(0)), fleet.check_count(PartId(0))] {
        let error = told.unwrap_err();
        assert!(matches!(error, ClientError::HoldersCountedApart { generation: 4, .. }), "{error}");
    }
    assert!(fleet.check_holders(PartId(1)).is_ok());
}

#[test]
fn a_server_counts_once_whatever_its_names() {
    let named = |port, instance, (address, description): (Address, Description)| {
        let name = if port == 0 { address } else { format!("b:{port}").parse().unwrap() };
        (name, Description { instance, ..description })
    };
    for (instances, n_holders) in [([5, 5], 1), ([5, 6], 2), ([0, 0], 2)] {
        let of = |n: u16| {
            let [one, other] = instances;
            let held = || counted(1, &[0, 1], 4, n);
            fleet_of(vec![named(0, one, held()), named(2, other, held())])
        };
        assert_eq!(of(1).routes.holders_of(PartId(0)).len(), n_holders);
        assert!(of(n_holders as u16).check_holders(PartId(0)).is_ok());
        assert!(of(3 - n_holders as u16).check_holders(PartId(0)).is_err());
        // Where nobody has said a number too.
        let [one, other] = instances;
        let told = vec![named(0, one, server(1, &[0])), named(2, other, server(1, &[0]))];
        assert_eq!(replicas(&told)[&0], n_holders);
        let (_, second) = &told[1];
        let is_needed = fleet_of(told.clone()).needs(&told[..1], second);
        assert_eq!(is_needed, n_holders == 2, "of one server a name is enough");
    }
}

#[test]
fn a_server_that_has_started_anew_counts_once_by_addresses_that_were_not_asked_since() {
    let name = |port: u16| format!("b:{port}").parse::<Address>().unwrap();
    let runs = |instance| Description { instance, ..counted(1, &[0, 1], 4, 2).1 };
    let other = Description { instance: 9, ..counted(3, &[0], 4, 2).1 };
    let fleet = fleet_of(vec![(name(1), runs(5)), (name(2), runs(5))]);
    let anew = Arc::new(fleet).with(1, runs(6)).unwrap();
    assert_eq!(anew.routes.holders_of(PartId(0)).len(), 1);
    let error = anew.check_holders(PartId(0)).unwrap_err();
    assert!(matches!(error, ClientError::HolderCount { expected: 2, found: 1, .. }), "{error}");
    // Who is another stays so.
    let fleet = fleet_of(vec![(name(1), runs(5)), (name(2), runs(5)), (name(3), other.clone())]);
    let anew = Arc::new(fleet).with(0, runs(6)).unwrap();
    assert_eq!(anew.routes.holders_of(PartId(0)).len(), 2);
    assert_eq!(anew.servers[2].1, other);
    // Those of no number are never taken for one.
    let fleet = fleet_of(vec![(name(1), runs(0)), (name(2), runs(0))]);
    assert_eq!(Arc::new(fleet).with(0, runs(6)).unwrap().servers[1].1, runs(0));
}

#[test]
fn what_a_silent_address_led_to_is_told_by_another_of_its_server() {
    let runs = |instance| Description { instance, ..server(1, &[0]).1 };
    let all = [0, 5, 6, 7].map(runs);
    let [none, old, new, other] = &all;
    let told = [(other, other), (none, new), (old, new)];
    assert_eq!(renewed(old, told.into_iter()), Some(new));
    assert_eq!(renewed(other, told.into_iter()), None, "it goes on");
    assert_eq!(renewed(none, told.into_iter()), None, "nobody can know");
    assert_eq!(renewed(old, [(old, old)].into_iter()), None);
}

#[test]
fn servers_of_another_graph_do_not_take_the_place_of_those_that_are_known() {
    let fleet = fleet_of(vec![server(1, &[0, 1])]);
    assert!(fleet.anew(vec![server(2, &[0]), server(1, &[1])]).is_ok());
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
        let error = fleet.anew(others).err().unwrap();
        assert!(matches!(error, ClientError::GraphsDiffer { .. }), "{error}");
    }
}

#[test]
fn one_that_starts_anew_again_and_again_rests_and_one_that_has_changed_is_asked() {
    let runs = |instance, parts: &[u16]| Description { instance, ..server(1, parts).1 };
    let address = server(1, &[]).0;
    let fleet = Arc::new(fleet_of(vec![(address, runs(5, &[0, 1])), server(2, &[0, 1])]));
    let now = Instant::now();
    fleet.routes.health(0).failed(now);
    let fleet = fleet.with(0, runs(6, &[0, 1])).unwrap();
    assert!(fleet.routes.health(0).is_resting(now));
    let fleet = fleet.with(0, runs(7, &[0])).unwrap();
    assert!(!fleet.routes.health(0).is_resting(now));
}

#[test]
fn one_that_was_left_out_of_a_change_is_asked_for_nothing() {
    for servers in [
        vec![counted(1, &[0, 1], 2, 1), counted(2, &[0], 1, 2)],
        vec![server(2, &[0]), counted(1, &[0, 1], 2, 1)],
    ] {
        let fleet = fleet_of(servers.clone());
        let right = servers.iter().position(|(_, it)| it.parts.len() == 2).unwrap();
        assert_eq!(fleet.routes.holders_of(PartId(0)), [right]);
        assert_eq!(fleet.routes.behind, [(1 - right, PartId(0))]);
        assert!(fleet.check_holders(PartId(0)).is_ok());
    }
}

#[test]
fn a_partition_is_nowhere_unless_somebody_who_is_away_had_it_or_it_is_on_its_way() {
    let before = fleet_of(vec![server(1, &[0]), server(2, &[1])]);
    let after = |servers| {
        let mut fleet = fleet_of(servers);
        fleet.find_lost(&before);
        fleet
    };
    assert!(!after(vec![server(1, &[0]), server(2, &[1])]).is_nowhere(PartId(1)));
    assert!(after(vec![server(1, &[0]), server(2, &[])]).is_nowhere(PartId(1)));
    let gone = after(vec![server(1, &[0])]);
    assert!(!gone.is_nowhere(PartId(1)), "who had it may come back");
    let mut later = fleet_of(vec![server(1, &[0]), server(3, &[])]);
    later.find_lost(&gone);
    assert!(!later.is_nowhere(PartId(1)), "for as long as nobody has it");
    let mut back = fleet_of(vec![server(1, &[0]), server(3, &[1])]);
    back.find_lost(&later);
    let mut given_on = fleet_of(vec![server(1, &[0]), server(3, &[])]);
    given_on.find_lost(&back);
    assert!(given_on.is_nowhere(PartId(1)));
    let (address, description) = server(2, &[]);
    let target = (address, Description { arriving: vec![1], ..description });
    assert!(!after(vec![server(1, &[0]), target]).is_nowhere(PartId(1)));
}
