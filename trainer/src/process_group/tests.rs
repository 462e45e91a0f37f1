use std::{thread, time::Duration};

use super::*;
use lodestore_comm::tag::Tag;
use lodestore_comm::threads::ThreadCollective;

fn opening(first: u32) -> Opening {
    let filled = LoadStats { remote_rows: 5, ..LoadStats::default() };
    Opening { digest: [first; 8], filled, ..Opening::default() }
}

/// Runs `body` as each of `n_ranks` processes.
fn in_all<T: Send>(n_ranks: u32, body: impl Fn(ProcessGroup<'_>) -> T + Sync) -> Vec<T> {
    let ranks = ThreadCollective::group(n_ranks, Duration::from_secs(60));
    thread::scope(|scope| {
        let body = &body;
        let start = |mut rank| scope.spawn(move || body(ProcessGroup::new(&mut rank)));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Status in front of a message while the run continues.
const CONTINUE: u8 = 0;

/// Returns the gradient of `worker`.
fn gradient(worker: u32) -> GradientTerm {
    let n = worker as f32;
    let values = vec![n, 0.1 * n, 1e8 - n];
    GradientTerm { order: worker, n_roots: u64::from(worker) + 1, values }
}

/// Returns the outcome of `worker`, and its figures.
fn outcome(worker: u32) -> ((u32, StepOutcome), MemberStats) {
    let outcome = StepOutcome {
        loss: f64::from(worker) / 3.0,
        n_roots: u64::from(worker) + 1,
        ..StepOutcome::default()
    };
    ((worker, outcome), MemberStats { buffer_bytes: worker.into(), ..MemberStats::default() })
}

#[test]
fn a_step_has_the_same_bits_in_any_number_of_processes() {
    // The third worker has no batch; of four processes one has none at all.
    let step = |n_ranks| {
        in_all(n_ranks, |mut group| {
            group.open(vec![2, 1], opening(1), None).unwrap();
            let mut stats = vec![MemberStats::default(); 4];
            let (mut outcomes, mut gradients) = (Vec::new(), Vec::new());
            for worker in group.local_workers(4) {
                let (outcome, of_worker) = outcome(worker);
                stats[worker as usize] = of_worker;
                if worker != 2 {
                    outcomes.push(outcome);
                    gradients.push(gradient(worker));
                }
            }
            let step = group.step(outcomes, gradients, &mut stats).unwrap();
            let figures: Vec<u64> = stats.iter().map(|of| of.buffer_bytes).collect();
            assert_eq!(figures, [0, 1, 2, 3]);
            let bits = step.gradients.iter().flatten().map(|value| value.to_bits());
            let bits: Vec<u32> = bits.collect();
            let workers: Vec<u32> = step.outcomes.iter().map(|(worker, _)| *worker).collect();
            (bits, step.loss.to_bits(), step.n_roots, workers)
        })
    };
    let expected = step(1).remove(0);
    assert_eq!((expected.2, &expected.3[..]), (7, &[0, 1, 3][..]));
    // Shares 1/7, 2/7 and 4/7 of 0, 1 and 3.
    assert!((f32::from_bits(expected.0[0]) - 2.0).abs() < 1e-6);
    for n_ranks in [2, 3, 4] {
        assert!(step(n_ranks).iter().all(|found| *found == expected), "{n_ranks}");
    }
}

#[test]
fn models_move_to_the_same_workers_in_any_number_of_processes() {
    let moved = |n_ranks, by| {
        let found = in_all(n_ranks, |mut group| {
            group.open(vec![2, 1], opening(1), None).unwrap();
            let sum = |worker: u32| vec![worker as f32, -0.0, 0.1 * worker as f32];
            let models = group.local_workers(5);
            let models = models.map(|worker| MovingModel { worker, sum: sum(worker) });
            let parameters = &[1.0, f32::NAN, 3.0];
            let models = group.migrate(models.collect(), by, 5, parameters);
            let models = models.unwrap();
            let own: Vec<u32> = group.local_workers(5).collect();
            assert!(models.iter().map(|model| model.worker).eq(own), "{n_ranks} {by}");
            let bits = |model: MovingModel| {
                (model.worker, model.sum.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
            };
            let traffic = *group.group.collective().traffic();
            assert_eq!(traffic.parameters, traffic.gradients);
            models.into_iter().map(bits).collect::<Vec<_>>()
        });
        let mut found = found.concat();
        found.sort();
        found
    };
    for by in 0..5 {
        let expected = moved(1, by);
        let first = expected[by as usize].1[0];
        assert_eq!(f32::from_bits(first), 0.0, "model 0 is {by} workers on");
        for n_ranks in 2..=5 {
            assert_eq!(moved(n_ranks, by), expected, "{n_ranks} processes, {by} on");
        }
    }
    let found = in_all(2, |mut group| {
        group.open(vec![2, 1], opening(1), None).unwrap();
        let worker = group.rank();
        let models = vec![MovingModel { worker, sum: vec![0.0; 3] }];
        let parameters = [1.0, worker as f32, 3.0];
        group.migrate(models, 1, 2, &parameters).unwrap_err().to_string()
    });
    assert!(found.iter().all(|it| it.contains("models of another step")), "{found:?}");
}

/// A collective that counts the errors that this process alone has raised.
struct Raising {
    ranks: ThreadCollective,
    n_raised: u32,
}

impl Collective for Raising {
    fn rank(&self) -> u32 {
        self.ranks.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.ranks.n_ranks()
    }

    fn traffic(&mut self) -> &mut Traffic {
        self.ranks.traffic()
    }

    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError> {
        self.ranks.transfer(tag, sends, receives)
    }

    fn raise(&mut self, error: CollectiveError) -> CollectiveError {
        self.n_raised += 1;
        error
    }
}

/// Other processes may have taken the same message for a good one, and continue.
#[test]
fn a_message_that_one_process_cannot_use_is_raised_by_it() {
    let foreign = StepMessage { stats: Vec::new(), outcomes: Vec::new() };
    for message in [b"{".to_vec(), serde_json::to_vec(&foreign).unwrap()] {
        let message = [&[CONTINUE], &message[..]].concat();
        let mut ranks = ThreadCollective::group(2, Duration::from_secs(60)).into_iter();
        let (first, mut second) = (ranks.next().unwrap(), ranks.next().unwrap());
        let mut first = Raising { ranks: first, n_raised: 0 };
        thread::scope(|scope| {
            scope.spawn(|| {
                second.all_gather(Payload::Control, &message, &mut Vec::new()).unwrap();
            });
            let stats = &mut [MemberStats::default(); 2];
            let step = ProcessGroup::new(&mut first).step(Vec::new(), Vec::new(), stats);
            assert!(matches!(step, Err(TrainError::Collective(_))), "{step:?}");
        });
        assert_eq!(first.n_raised, 1);
    }
}

#[test]
fn all_continue_with_the_state_of_the_leader() {
    let lists = |n: f32| vec![vec![n, -0.0], vec![n + 0.5]];
    let state = |n_steps, n| {
        let (values, means, variances) = (lists(n), lists(n + 10.0), lists(n + 20.0));
        ReplicaState { n_steps, values, means, variances }
    };
    let states = [state(9, 1.0), state(7, 2.0)];
    let place = Place { epoch: 2, step: 1 };
    // Whole lists, and pieces of them: the leader sends 18 elements to each of two others.
    for piece_elements in [PIECE_ELEMENTS, 1] {
        let found = in_all(3, |mut group| {
            group.piece_elements = piece_elements;
            let resumed = group.leads().then(|| (place, states.to_vec()));
            let opened = group.open(vec![2, 1], opening(1), resumed).unwrap();
            (opened, group.leads(), group.group.collective().traffic().parameters)
        });
        for ((filled, resumed), leads, n_bytes) in found {
            assert_eq!(filled.remote_rows, 15);
            assert_eq!(resumed, Some((place, states.to_vec())));
            assert_eq!(n_bytes, if leads { 2 * 18 * 4 } else { 0 });
        }
    }
}

#[test]
fn a_process_of_another_run_a_failure_and_an_end_reach_all() {
    let found = in_all(3, |mut group| {
        let first = if group.rank() == 2 { 7 } else { 1 };
        group.open(vec![2, 1], opening(first), None).unwrap_err().to_string()
    });
    assert!(found[0].contains("process 2 of the run has other settings"), "{found:?}");
    let found = in_all(3, |mut group| {
        group.open(vec![2, 1], opening(1), None).unwrap();
        if group.rank() == 1 {
            group.fail(&TrainError::WorkerPanicked { worker: 1 });
            return String::new();
        }
        group
            .step(Vec::new(), Vec::new(), &mut [MemberStats::default(); 3])
            .unwrap_err()
            .to_string()
    });
    assert!(found[0].contains("process 1 of the run: worker 1 panicked"), "{found:?}");
    assert_eq!(found[0], found[2]);
    // A process that sends nothing, something else, or figures of another's workers.
    let figures = |worker: u32| StepMessage {
        stats: vec![MemberStats::default()],
        outcomes: vec![outcome(worker).0],
    };
    let foreign = serde_json::to_vec(&figures(0)).unwrap();
    let few = serde_json::to_vec(&StepMessage::default()).unwrap();
    for message in [&b""[..], b"{", &foreign, &few] {
        let message = [&[CONTINUE], message].concat();
        let found = in_all(2, |mut group| {
            group.open(vec![2, 1], opening(1), None).unwrap();
            if group.leads() {
                let stats = &mut [MemberStats::default(); 2];
                return group.step(Vec::new(), Vec::new(), stats).unwrap_err().to_string();
            }
            let sent = if message.len() == 1 { &[][..] } else { &message };
            group.group.collective().all_gather(Payload::Control, sent, &mut Vec::new()).unwrap();
            String::new()
        });
        assert!(found[0].contains("process 1 of the run is out of step"), "{found:?}");
    }
    let ended = in_all(2, |mut group| {
        group.open(vec![2, 1], opening(1), None).unwrap();
        if group.leads() {
            return group.end().is_ok();
        }
        let step = group.step(Vec::new(), Vec::new(), &mut [MemberStats::default(); 2]);
        matches!(step, Err(TrainError::Ended)) && group.end().is_ok()
    });
    assert_eq!(ended, [true, true]);
}
