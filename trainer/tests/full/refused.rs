//! Devices of RAPA, settings that cannot work, and runs that fail.

use super::*;

fn device(name: &str, seconds: f64) -> DeviceProfile {
    DeviceProfile {
        name: name.to_owned(),
        h2d_seconds: seconds,
        d2h_seconds: seconds,
        idt_seconds: seconds,
        spmm_seconds: seconds,
        mm_seconds: seconds,
        memory_bytes: 1 << 33,
    }
}

#[test]
fn a_slow_device_does_without_edges_and_that_is_reported() {
    let graph = Cut::new(CUTS[3]).graph();
    let with = |devices: Vec<DeviceProfile>, n_ranks| {
        let full = FullConfig { devices, ..FullConfig::default() };
        run_in_ranks(&graph, &settings(gcn(), 3, full), n_ranks).swap_remove(0)
    };
    let exact = run(&graph, &exact(gcn(), 3)).unwrap();
    let unlike = || vec![device("a", 1.0), device("b", 2.0), device("c", 1.0)];
    let found = with(unlike(), 1).unwrap().unwrap();
    let kept = found.epochs[0].kept_share.unwrap();
    assert!(kept > 0.1 && kept < 1.0, "{kept}");
    assert!(found.epochs[0].halo_rows < exact.epochs[0].halo_rows);
    assert!(found.epochs[1].halo_bytes < exact.epochs[1].halo_bytes);
    assert_ne!(found.step_losses[0], exact.step_losses[0]);
    assert_eq!(computed(&with(unlike(), 3).unwrap().unwrap()), computed(&found));
    let error = with(vec![device("a", 1.0)], 1).unwrap_err().to_string();
    assert!(error.contains("one profile for each of the 3 workers, found 1"), "{error}");
    let mut stopped = unlike();
    stopped[1] = device("stopped", 0.0);
    let error = with(stopped, 1).unwrap_err().to_string();
    assert!(error.contains("device `stopped`") && error.contains("above 0"), "{error}");
    let mut small = unlike();
    small[0].memory_bytes = 1000;
    let error = with(small, 1).unwrap_err().to_string();
    assert!(error.contains("device `a` has 1000") || error.contains("`a` has 1000"), "{error}");
}

#[test]
fn settings_that_cannot_work_are_named() {
    let message = |change: fn(&mut TrainConfig)| {
        let mut config = exact(gcn(), 1);
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    let none = message(|c| c.fanouts = Vec::new());
    assert!(none.contains("`layers` must be 1 to 64, found 0"), "{none}");
    let many = message(|c| c.fanouts = vec![Fanout::All; 65]);
    assert!(many.contains("`layers` must be 1 to 64, found 65"), "{many}");
    let sampled = message(|c| c.fanouts[1] = Fanout::at_most(5).unwrap());
    assert!(sampled.contains("all neighbours"), "{sampled}");
    let with = |full| settings(gcn(), 1, full).validate().unwrap_err().to_string();
    let zero = || FullConfig { halo: Halo::Zero, ..FullConfig::default() };
    let old = with(FullConfig { staleness: 1, ..zero() });
    assert!(old.contains("`staleness` must be 0 where halos are zeros, found 1"), "{old}");
    let narrow = with(FullConfig { compress: Some(Compression::F16), ..zero() });
    assert!(narrow.contains("`compress` must be none"), "{narrow}");
    let graph = Cut::new(CUTS[1]).graph();
    let error = run(&graph, &exact(gcn(), 3)).unwrap_err().to_string();
    assert!(error.contains("at most one for each of the 2 partitions"), "{error}");
}

#[test]
fn what_leaves_the_numbers_ends_all_processes_alike() {
    let graph = Cut::new(CUTS[2]).graph();
    // An evaluation would meet with it first.
    let rate = TrainConfig { learning_rate: 1e38, ..exact(gcn(), 3) };
    let config = TrainConfig { evaluate_every: 0, ..rate };
    for error in run_in_ranks(&graph, &config, 3) {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("try a lower learning rate"), "{error}");
    }
    let mut rows = MemorySource::new(graph.book.clone());
    let mut features = vec![0.5f32; (N * 7) as usize];
    features[7 * 33 + 2] = f32::NAN;
    rows.add("feat", Dtype::F32, 7, bytes_of(&features, f32::to_le_bytes)).unwrap();
    for (tensor, dtype, n) in [("label", Dtype::I64, 8), ("split", Dtype::U8, 1)] {
        rows.add(tensor, dtype, 1, vec![0; N as usize * n]).unwrap();
    }
    let bad = Planted { rows: Arc::new(rows), ..graph };
    for error in run_in_ranks(&bad, &exact(gcn(), 3), 3) {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("feature 2 of node 33 is NaN"), "{error}");
    }
}

#[test]
fn rows_that_cannot_be_had_end_all_processes_with_the_cause() {
    let graph = Cut::new(CUTS[2]).graph();
    let bad = failing(&graph.rows, 2);
    let rows_of = |rank| if rank == 1 { Arc::clone(&bad) } else { Arc::clone(&graph.rows) as _ };
    let found = crate::planted::run_in_ranks_from(&graph, &exact(gcn(), 3), 3, &rows_of);
    let errors: Vec<String> = found.into_iter().map(|of| of.unwrap_err().to_string()).collect();
    assert!(errors[0].starts_with("process 1 of the run: "), "{errors:?}");
    assert_eq!(errors[0], errors[2]);
}
