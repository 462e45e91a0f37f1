//! Failures, ends and bad messages in groups of processes.

use lodestore_comm::error::CollectiveError;
use lodestore_comm::group::{Group, GroupError, fail_before_start};
use lodestore_comm::tag::Payload;

use super::{ENGINES, TIMEOUT, in_all};

/// Runs `body` in each of three processes, over every engine. Returns the results by rank.
fn in_groups<T: Send + 'static>(body: fn(&mut Group<'_>) -> T) -> Vec<Vec<T>> {
    let run = |(_, engine): (&str, super::Engine)| {
        in_all(engine(3, TIMEOUT), move |mut rank| body(&mut Group::new(&mut *rank)))
    };
    ENGINES.map(run).into()
}

#[test]
fn messages_of_all_reach_all_and_the_leaders_is_the_first() {
    for found in in_groups(|group| {
        let all: Vec<u32> = group.exchange(&(10 * group.rank())).unwrap();
        let of_leader = group.exchange_with_leader(&group.rank()).unwrap();
        let traffic = group.end().unwrap();
        (all, of_leader, traffic.control > 0)
    }) {
        assert_eq!(found, vec![(vec![0, 10, 20], 0, true); 3]);
    }
}

#[test]
fn a_failure_reaches_all_at_their_next_exchange() {
    for found in in_groups(|group| {
        if group.rank() == 1 {
            group.fail("no rows");
            return "no rows".to_owned();
        }
        let error = group.check_status().unwrap_err();
        assert!(matches!(error, GroupError::Peer { rank: 1, .. }));
        group.fail("a later error");
        error.to_string()
    }) {
        assert_eq!(found[0], "process 1 of the run: no rows");
        assert_eq!(found[0], found[2]);
    }
    let [first, others @ ..] = &in_all(super::by_threads(3, TIMEOUT), |mut rank| {
        if rank.rank() == 2 {
            return fail_before_start(&mut *rank, "no graph").map(|()| String::new()).unwrap();
        }
        Group::new(&mut *rank).exchange(&1).unwrap_err().to_string()
    })[..] else {
        unreachable!("three ranks")
    };
    assert_eq!(first, "process 2 of the run: no graph");
    assert_eq!(&others[0], first);
}

#[test]
fn the_leader_ends_the_run_for_all() {
    for found in in_groups(|group| {
        if group.leads() {
            return group.end().is_ok();
        }
        matches!(group.check_status(), Err(GroupError::Ended)) && group.end().is_ok()
    }) {
        assert_eq!(found, [true; 3]);
    }
}

#[test]
fn a_process_that_expects_a_step_at_the_end_is_out_of_step() {
    for found in
        in_groups(
            |group| {
                if group.leads() { group.check_status().is_ok() } else { group.end().is_err() }
            },
        )
    {
        assert_eq!(found, [true; 3]);
    }
}

#[test]
fn messages_of_another_type_or_length_are_refused() {
    for found in in_groups(|group| {
        if group.leads() {
            return group.exchange::<u32>(&1).unwrap_err().to_string();
        }
        group.exchange(&"text".to_owned()).map_or_else(|error| error.to_string(), |_| String::new())
    }) {
        assert!(found[0].contains("process 1 of the run is out of step"), "{found:?}");
    }
    for found in in_groups(|group| {
        let mut bytes = vec![group.rank() as u8; 4 + group.rank() as usize];
        let sent = group.broadcast_from_leader(Payload::Parameters, &mut bytes, &mut Vec::new());
        sent.map_err(|error| matches!(error, CollectiveError::OutOfStep { rank: 0, .. }))
    }) {
        assert_eq!(found, [Ok(()), Err(true), Err(true)]);
    }
}
