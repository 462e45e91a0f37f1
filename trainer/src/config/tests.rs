use super::*;

#[test]
fn epochs_end_with_an_evaluation_when_it_is_due_and_at_the_end() {
    let due = |evaluate_every, measure_test, has_test| {
        let usual = TrainConfig::default();
        let config = TrainConfig { epochs: 5, evaluate_every, measure_test, ..usual };
        (1..=5).map(|n| config.evaluation_after(n, has_test)).collect::<Vec<_>>()
    };
    let (no, any, last) = (Due::No, Due::InAnyRun, Due::AsLast);
    assert_eq!(due(2, false, false), [no, any, no, any, last]);
    assert_eq!(due(5, true, true), [no, no, no, no, any]);
    assert_eq!(due(0, true, true), [no, no, no, no, last]);
    assert_eq!([due(0, false, true), due(0, true, false)], [[no; 5]; 2]);
}

#[test]
fn settings_that_cannot_work_are_named() {
    assert!(TrainConfig::default().validate().is_ok());
    let message = |change: fn(&mut TrainConfig)| {
        let mut config = TrainConfig::default();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    assert_eq!(message(|c| c.workers = 0), "setting `workers` must be at least 1, found 0");
    assert!(message(|c| c.fanouts = vec![]).contains("fanouts"));
    assert!(message(|c| c.n_heads = 0).contains("n_heads"));
    let uneven = message(|c| (c.model, c.hidden) = (ModelKind::Gat, 60));
    assert_eq!(uneven, "setting `hidden` must be a multiple of 8 heads, found 60");
    let blind = message(|c| (c.patience, c.evaluate_every) = (3, 0));
    assert!(blind.contains("evaluate_every` must be at least 1 with a patience"), "{blind}");
    assert!(message(|c| c.dropout = 1.0).contains("dropout"));
    assert!(message(|c| c.learning_rate = f64::NAN).contains("learning_rate"));
    assert!(message(|c| c.weight_decay = -1.0).contains("weight_decay"));
    assert!(message(|c| c.batch_size = 0).contains("batch_size"));
}

#[test]
fn settings_of_strategies_that_cannot_work_are_named() {
    let message = |strategy| {
        let config = TrainConfig { strategy, ..TrainConfig::default() };
        config.validate().unwrap_err().to_string()
    };
    let hop = HopConfig::default;
    let merged = message(Strategy::Hop(HopConfig { merge: Merge::Min, ..hop() }));
    assert!(merged.contains("`merge` must be none without migration"), "{merged}");
    let apart = message(Strategy::Hop(HopConfig { pregather: false, ..hop() }));
    assert!(apart.contains("`pregather` must be true without migration"), "{apart}");
    let (migration, schedule) = (Migration::Paper, Some(ScheduleConfig::default()));
    let planned = message(Strategy::Hop(HopConfig { migration, schedule, ..hop() }));
    assert!(planned.contains("`schedule` must be none with migration"), "{planned}");
    let never = message(Strategy::Sdt(SdtConfig { average_every: 0, ..SdtConfig::default() }));
    assert!(never.contains("`average_every` must be at least 1, found 0"), "{never}");
    let (roots, sampling) = (Roots::Global, Sampling::Ordinary);
    let ordinary = message(Strategy::Ondemand(OndemandConfig { roots, sampling }));
    assert!(
        ordinary.contains("`sampling` must be seeded with global roots or a checkpoint"),
        "{ordinary}"
    );
}
