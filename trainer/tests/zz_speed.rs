#![allow(missing_docs, unreachable_pub, clippy::all, dead_code)]
mod stored;
use lodestore_graph::sampler::Fanout;
use lodestore_graph::generate::*;
use lodestore_trainer::*;
use stored::import;
#[test]
#[ignore = "x"]
fn speed() {
    let v = |n: &str, d: u32| std::env::var(n).map_or(d, |x| x.parse().unwrap());
    let dir = std::path::PathBuf::from(std::env::var("D").unwrap_or("/tmp/zz-train".into())); let dir = dir.as_path();
    if !dir.join("feat.npy").exists() {
        let r = GraphRecipe { n_nodes: 200_000, mean_degree: v("DEG", 15) as f32, n_classes: 16, homophily: 0.8, community_nodes: 1000, train: v("T", 10) as f32 / 100.0, val: 0.05, test: 0.1, seed: 1 };
        generate(&r, dir, &mut |_, _| ()).unwrap();
        lodestore_store::synthetic::write_features(&dir.join("labels.npy"), 128, 1, &dir.join("feat.npy"), &mut |_, _| ()).unwrap();
    }
    let _ = std::fs::remove_dir_all(dir.join("g"));
    let t = std::time::Instant::now();
    let g = import(dir, "feat.npy", 4, &dir.join("g"));
    println!("import {:?}", t.elapsed());
    for strategy in [Strategy::Ondemand, Strategy::Rapid] {
        let c = TrainConfig { strategy, workers: v("W", 4), fanouts: vec![Fanout::at_most(10).unwrap(); 2], epochs: v("E", 3), batch_size: v("B", 500) as usize, n_hot: v("H", 20000) as usize, window: v("Q", 4) as usize, schedule_path: dir.join("s"), hidden: 64, evaluate_every: 1, ..TrainConfig::default() };
        let t = std::time::Instant::now();
        let r = g.train(&c).unwrap();
        println!("{strategy} total {:?} setup {:.2} schedule {:.2} ({} MB) bound {} measured {} rss {} MB losses {:x}", t.elapsed(), r.setup_seconds, r.schedule_seconds, r.schedule_bytes >> 20, r.memory_bound_bytes, r.memory_measured_bytes, r.peak_rss_bytes >> 20, r.step_losses.iter().fold(0u64, |a, l| a.rotate_left(5) ^ l.to_bits()));
        for e in &r.epochs { println!("  {:.2}s loss {:.3} acc {:.3} val {:?} test {:?} local {} hit {} remote {} hot {} hitrate {:.3} wait {:.2} MB/step {:.2} ready {} waited {} default {}", e.seconds, e.loss, e.accuracy, e.validation_accuracy, e.test_accuracy, e.local_rows, e.hit_rows, e.remote_rows, e.hot_set_rows, e.hit_rate, e.wait_seconds, e.remote_bytes_per_step / 1e6, e.ready_batches, e.waited_batches, e.default_path_batches); }
    }
}

#[test]
#[ignore = "x"]
fn cora() {
    let v = |n: &str, d: f32| std::env::var(n).map_or(d, |x| x.parse().unwrap());
    let data = stored::data("cora").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let graph = import(&data, "features_csr.npz", 2, &dir.path().join("cora"));
    let mut sum = 0.0;
    for seed in 0..5 {
        let config = TrainConfig { strategy: Strategy::Ondemand, workers: 2, seed,
            fanouts: vec![Fanout::All; 2], epochs: v("E", 60.0) as u32, batch_size: 140, normalize: true, learning_rate: v("LR", 0.01) as f64,
            weight_decay: v("WD", 5e-4), dropout: v("DR", 0.5),
            model: if std::env::var("M").is_ok() { ModelKind::Gcn } else { ModelKind::Sage },
            ..TrainConfig::default() };
        let r = graph.train(&config).unwrap();
        print!("{:?}@{} ", r.test_accuracy.unwrap(), r.best_epoch); sum += r.test_accuracy.unwrap();
    }
    println!("mean {}", sum / 5.0);
}
