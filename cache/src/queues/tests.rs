use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const N_SLOTS: u32 = 9;

/// Events of queues.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A slot goes to the front of a queue, wherever it is.
    Push(u32, u32),
    Unlink(u32),
    PopOldest(u32),
    /// A batch begins that reads a slot.
    Batch(u32),
    /// The batch reads another slot.
    Read(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slot = 0..N_SLOTS;
    let step = prop_oneof![
        6 => (0..2u32, slot.clone()).prop_map(|(queue, slot)| Step::Push(queue, slot)),
        2 => slot.clone().prop_map(Step::Unlink),
        3 => (0..2u32).prop_map(Step::PopOldest),
        2 => slot.clone().prop_map(Step::Batch),
        1 => slot.prop_map(Step::Read),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    /// Beside deques, back first. There is hardly a spare entry, so rings are closed up all the
    /// time.
    #[test]
    fn queues_are_deques(steps in steps(), n_spare in 0..4u32) {
        let mut slots = Slots::new(N_SLOTS).unwrap();
        (0..N_SLOTS).for_each(|id| {
            let slot = slots.take_free().unwrap();
            slots.fill(slot, id);
        });
        slots.begin_batch();
        let sizes = [QueueSize { n_slots: N_SLOTS, n_spare }; 2];
        let mut queues = Queues::new(&sizes).unwrap();
        prop_assert_eq!(queues.bytes(), Queues::planned_bytes(&sizes));
        let mut naive = [VecDeque::new(), VecDeque::new()];
        for step in steps {
            let of = |naive: &[VecDeque<u32>; 2], slot| {
                (0..2).find(|&queue| naive[queue as usize].contains(&slot))
            };
            match step {
                Step::Push(_, slot) | Step::Unlink(slot) => {
                    if let Some(queue) = of(&naive, slot) {
                        prop_assert_eq!(queues.queue_of(slot, &slots), queue);
                        queues.unlink(queue, slot, &slots);
                        naive[queue as usize].retain(|&at| at != slot);
                    }
                    if let Step::Push(queue, _) = step {
                        queues.push_front(queue, slot, &mut slots);
                        naive[queue as usize].push_back(slot);
                    }
                }
                Step::PopOldest(queue) => {
                    let oldest = queues.oldest(queue, &mut slots);
                    let popped = queues.pop_oldest(queue, &mut slots);
                    let naive = &mut naive[queue as usize];
                    let at = naive.iter().position(|&slot| !slots.is_held(slot));
                    let expected = at.and_then(|at| naive.remove(at));
                    prop_assert_eq!((oldest, popped), (expected, expected));
                }
                Step::Batch(slot) => {
                    slots.begin_batch();
                    slots.read(&[slot]);
                }
                Step::Read(slot) => slots.read(&[slot]),
            }
            for (queue, naive) in (0..).zip(&naive) {
                prop_assert!(queues.slots(queue).iter().eq(naive.iter().rev()));
                prop_assert_eq!(queues.n_slots(queue) as usize, naive.len());
                prop_assert_eq!(queues.back(queue), naive.front().copied());
                let before = naive.iter().zip(naive.iter().skip(1));
                for (&slot, &before) in before {
                    prop_assert_eq!(queues.before(queue, slot, &slots), Some(before));
                }
            }
        }
    }
}

#[test]
fn more_entries_than_can_be_numbered_are_refused() {
    let room = QueueSize::any_order(1 << 31);
    assert!(matches!(Queues::new(&[room]), Err(MemoryError::TooLarge { .. })));
}

#[test]
fn a_row_that_every_batch_reads_costs_later_batches_nothing() {
    let mut slots = Slots::new(100).unwrap();
    let mut queues = Queues::new(&[QueueSize::any_order(100)]).unwrap();
    for id in 0..100 {
        let slot = slots.take_free().unwrap();
        slots.fill(slot, id);
        queues.push_front(0, slot, &mut slots);
    }
    for _ in 0..50 {
        slots.begin_batch();
        slots.read(&[0]);
        let slot = queues.pop_oldest(0, &mut slots).unwrap();
        queues.push_front(0, slot, &mut slots);
        let ring = &queues.rings[0];
        let behind = (ring.scan.at + ring.end - ring.back) % ring.end;
        assert!(behind <= 4, "{behind} entries are passed again in each batch");
    }
}

#[test]
fn reading_ahead_does_not_pass_what_many_removals_struck_out() {
    let mut slots = Slots::new(1000).unwrap();
    let mut queues = Queues::new(&[QueueSize::any_order(1000)]).unwrap();
    let filled: Vec<u32> = (0..1000).map(|_| slots.take_free().unwrap()).collect();
    for (id, &slot) in (0..).zip(&filled) {
        slots.fill(slot, id);
        queues.push_front(0, slot, &mut slots);
    }
    filled[1..999].iter().for_each(|&slot| queues.unlink(0, slot, &slots));
    let (back, front) = (filled[0], filled[999]);
    for n in [1, 10, 100] {
        assert!(queues.next_of_all(0, n).eq([back]), "{n}");
        assert!(queues.onwards(0, Some(back), n, &slots).eq([back]), "{n}");
        assert!(queues.next(0, n, &slots).eq([back]), "{n}");
    }
    assert!(queues.onwards(0, Some(front), 10, &slots).eq([front]));
    assert_eq!(queues.slots(0), [front, back], "others see all");
}
