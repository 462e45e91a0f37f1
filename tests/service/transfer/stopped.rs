//! Moves of which a server stalls: it takes connections and answers nothing.

use std::time::{Duration, Instant};

use lodestore_client::transfer::{PartitionTransfer, TransferPlan};
use lodestore_client::{ClientError, Security};
use rustix::process::Signal;

use crate::transfer::cut_off::{STEPS, take_steps};
use crate::transfer::{Two, plan};
use testing::authority::Authority;
use testing::process::{Serving, lode_line, signal};

/// Time for one step.
const STEP: Duration = Duration::from_secs(5);
/// Within which the move ends: the step, and some on a busy machine.
const BOUND: Duration = Duration::from_secs(12);

/// Runs the move again to its end while the servers continue, and checks that nothing is missing.
fn is_taken_up(two: &Two, again: TransferPlan, servers: [Serving; 2]) {
    PartitionTransfer::run(again, &mut |_, _| {}).unwrap();
    assert_eq!(two.owners(), [1; 3]);
    servers.into_iter().for_each(Serving::stop);
    two.assert_whole();
}

/// Stops a server after a number of steps of a move, which must end in time, and be taken up again.
fn stands_still_after(n_steps: usize, is_source: bool) {
    let two = Two::new();
    let (source, target) = (two.serve(0, "127.0.0.1:0"), two.serve(1, "127.0.0.1:0"));
    let still = if is_source { &source } else { &target };
    let planned = || plan(&source, 1, &two.folders[1], Some(&target));
    let in_time = || {
        let mut planned = planned();
        planned.config.deadline = STEP;
        planned
    };
    let begun = (n_steps > 0).then(|| take_steps(in_time(), n_steps).unwrap());
    signal(&still.child, Signal::STOP);
    let start = Instant::now();
    let gone_on = match begun {
        None => PartitionTransfer::run(in_time(), &mut |_, _| {}).map(drop),
        Some(mut moving) => match STEPS[n_steps] {
            "open" => moving.open().map(drop),
            "fetch" => moving.fetch(&mut |_, _| {}),
            "seal" => moving.seal(),
            "release" => moving.release(),
            _ => moving.take().map(drop),
        },
    };
    let took = start.elapsed();
    let error = gone_on.unwrap_err();
    assert!((STEP..BOUND).contains(&took), "{took:?} after {n_steps} steps: {error}");
    let expected = still.address.parse().unwrap();
    let is_told = matches!(&error, ClientError::MoveStalled { address, time }
        if *address == expected && *time == STEP);
    assert!(is_told, "after {n_steps} steps: {error}");
    signal(&still.child, Signal::CONT);
    let again = planned();
    is_taken_up(&two, again, [source, target]);
}

#[test]
fn a_source_that_hangs_ends_a_move_in_time_which_is_taken_up_again() {
    (0..STEPS.len() - 1).for_each(|n_steps| stands_still_after(n_steps, true));
}

#[test]
fn a_target_that_hangs_ends_a_move_in_time_which_is_taken_up_again() {
    [0, STEPS.len() - 1].into_iter().for_each(|n_steps| stands_still_after(n_steps, false));
}

/// Keys are agreed on before the first hello, with a server that says nothing.
#[test]
fn under_tls_a_server_that_hangs_is_reported_alike() {
    let two = Two::new();
    let dir = two.folders[0].parent().unwrap();
    let ours = Authority::new(dir, "ours");
    let files = ours.sign(dir, "server", &["127.0.0.1"]);
    let [source, target] = [0, 1].map(|at| two.serve(at, &format!("127.0.0.1:0 {files}")));
    let security = Security::default().with_tls(&ours.cert, None).unwrap();
    let planned = || {
        let mut planned = plan(&source, 1, &two.folders[1], Some(&target));
        (planned.config.deadline, planned.config.security) = (STEP, security.clone());
        planned
    };
    let mut begun = take_steps(planned(), 1).unwrap();
    signal(&source.child, Signal::STOP);
    let start = Instant::now();
    let errors = [PartitionTransfer::begin(planned()).map(drop), begun.open().map(drop)];
    let took = start.elapsed();
    let expected = source.address.parse().unwrap();
    for error in errors.map(Result::unwrap_err) {
        let is_told = matches!(&error, ClientError::MoveStalled { address, time }
            if *address == expected && *time == STEP);
        assert!(is_told, "{error}");
    }
    assert!((2 * STEP..2 * BOUND).contains(&took), "{took:?}");
    signal(&source.child, Signal::CONT);
    drop(begun);
    let again = planned();
    is_taken_up(&two, again, [source, target]);
}

#[test]
fn the_command_names_the_hanging_server_and_the_remedy() {
    let two = Two::new();
    let (source, target) = (two.serve(0, "127.0.0.1:0"), two.serve(1, "127.0.0.1:0"));
    signal(&source.child, Signal::STOP);
    let (from, to, into) = (&source.address, &target.address, two.folders[1].display());
    let copy = format!("transfer 1 --from {from} --to {to} --into {into}");
    let start = Instant::now();
    lode_line(&format!("{copy} --deadline 5"))
        .failed(1, &[from, "within 5 s", "repeat the same move"]);
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    signal(&source.child, Signal::CONT);
    lode_line(&copy).succeeded();
    source.stop();
    target.stop();
    two.assert_whole();
}
