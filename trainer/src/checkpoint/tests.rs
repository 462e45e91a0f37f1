use std::fs;
use std::os::unix::fs::symlink;

use lodestore_models::metric::Accuracy;

use super::{folder::parents_of_missing, format::decode, *};
use crate::config::{
    FullConfig, HopConfig, MassiveConfig, Merge, Migration, OndemandConfig, RapidConfig, Roots,
    ScheduleConfig, SdtConfig, Strategy, TrainConfig,
};

const LENGTHS: [usize; 3] = [7, 3, 1];

fn identity() -> Identity {
    let settings = Settings::new(&TrainConfig::default(), 5, "abc");
    let (lengths, epochs, n_steps) = (LENGTHS.to_vec(), 5, 4);
    Identity {
        graph_uuid: [7; 16],
        settings,
        lengths,
        n_replicas: 2,
        updates_each_step: true,
        epochs,
        n_steps,
    }
}

fn sample() -> Checkpoint<'static> {
    let lists = |scale: f32| -> Vec<Vec<f32>> {
        LENGTHS.iter().map(|&n| (0..n).map(|i| scale / (i as f32 + 3.0)).collect()).collect()
    };
    let replica = |scale: f32| ReplicaState {
        n_steps: 11,
        values: lists(scale),
        means: lists(f32::MIN_POSITIVE / 8.0),
        variances: lists(-1e30 * scale),
    };
    let epochs: Vec<EpochReport> = (0..2)
        .map(|epoch| EpochReport { epoch, steps: 4, loss: 1.0 / 3.0, ..EpochReport::default() })
        .collect();
    Checkpoint {
        place: Place { epoch: 2, step: 3 },
        replicas: vec![replica(1.0), replica(-0.3)].into(),
        best: BestModel {
            epoch: 0,
            accuracy: Accuracy { validation: Some(0.1 + 0.2), test: None },
            parameters: lists(7.0),
            evaluated: 1,
        },
        measured: Measured {
            versions: Some(RowVersions::default()),
            epochs,
            n_roots: 96,
            n_right: 31,
            loss: 0.1 * 3.0,
        },
        step_losses: (0..11).map(|i| 1.0 / f64::from(i + 3)).collect(),
    }
}

fn encode(checkpoint: &Checkpoint<'_>) -> Vec<u8> {
    format::encode(checkpoint, &identity()).unwrap()
}

/// Returns `bytes` after `change`, with a digest that fits.
fn forged(mut bytes: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    bytes.truncate(bytes.len() - 32);
    change(&mut bytes);
    let digest = blake3::hash(&bytes);
    bytes.extend_from_slice(digest.as_bytes());
    bytes
}

#[test]
fn reads_back_what_was_written_bit_for_bit() {
    let mut checkpoint = sample();
    assert_eq!(decode(&encode(&checkpoint), &identity()).unwrap(), checkpoint);
    checkpoint.best = BestModel::default();
    assert_eq!(decode(&encode(&checkpoint), &identity()).unwrap(), checkpoint);
}

#[test]
fn every_flipped_bit_and_every_truncation_is_an_error() {
    let bytes = encode(&sample());
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&damaged, &identity()).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        let found = decode(&bytes[..len], &identity());
        assert!(matches!(found, Err(CheckpointFault::Length { .. })), "{len}: {found:?}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(decode(&longer, &identity()), Err(CheckpointFault::Length { .. })));
}

/// Faults in spite of a good digest: none may panic or take memory.
#[test]
fn forged_bytes_are_errors_or_what_they_say() {
    let (bytes, random) = (encode(&sample()), lodestore_models::random::CounterRandom::new(1, 0));
    for i in 0..20_000 {
        let forged = forged(bytes.clone(), |bytes| {
            for change in 0..=random.bits(3 * i) % 3 {
                let at = random.bits(3 * i + 1).wrapping_mul(change + 1) as usize % bytes.len();
                bytes[at] = random.bits(3 * i + 2).rotate_left(8 * change as u32) as u8;
            }
        });
        if let Ok(found) = decode(&forged, &identity()) {
            for replica in found.replicas.iter() {
                assert_eq!(replica.values.iter().map(Vec::len).collect::<Vec<_>>(), LENGTHS);
                assert_eq!(found.step_losses.len(), replica.n_steps as usize);
            }
            assert_eq!(found.replicas.len(), 2);
        }
    }
}

#[test]
fn lengths_past_their_bounds_are_refused_by_name() {
    let with = |at: usize, value: &[u8]| {
        let forged =
            forged(encode(&sample()), |bytes| bytes[at..at + value.len()].copy_from_slice(value));
        decode(&forged, &identity()).unwrap_err()
    };
    let message = |at, value: &[u8]| with(at, value).to_string();
    let other = message(0, b"LODETOPO");
    assert!(other.contains("no checkpoint") && other.contains("; name another folder"), "{other}");
    assert_eq!(with(8, &[1, 0, 0, 0]), CheckpointFault::Version { found: 1, known: 2 });
    assert!(message(40, &[0xff; 4]).contains("bytes of settings must be at most 65536"));
    // The limit for three epochs, the present one among them.
    assert!(message(44, &[0xff; 4]).contains("bytes of measurements must be at most 12288, found"));
    for (at, bytes) in [(12, 4), (48, 8), (56, 8)] {
        assert!(matches!(with(at, &[0xff; 8][..bytes]), CheckpointFault::Length { .. }), "{at}");
    }
}

#[test]
fn another_run_is_refused_with_what_differs() {
    let bytes = encode(&sample());
    let other = |config: &TrainConfig, n_features, labels| {
        let settings = Settings::new(config, n_features, labels);
        decode(&bytes, &Identity { settings, ..identity() }).unwrap_err().to_string()
    };
    let config = TrainConfig { hidden: 32, seed: 5, ..TrainConfig::default() };
    let found = other(&config, 5, "abc");
    assert!(found.contains("run with hidden = 64, seed = 0, this one has hidden = 32, seed = 5"));
    assert!(other(&TrainConfig::default(), 6, "abc").contains("features = 5"));
    assert!(other(&TrainConfig::default(), 5, "x").contains("labels_and_splits = \"abc\""));
    assert!(identity().settings.as_str().contains("mode = MiniBatch\n"));
    // These only say how rows come and when to end.
    let schedule = ScheduleConfig { n_hot: 1, ..ScheduleConfig::default() };
    for strategy in [
        Strategy::Ondemand(OndemandConfig::default()),
        Strategy::Massive(MassiveConfig::default()),
        Strategy::Rapid(RapidConfig { schedule, ..RapidConfig::default() }),
    ] {
        let config = TrainConfig { strategy, epochs: 99, patience: 7, ..TrainConfig::default() };
        assert_eq!(Settings::new(&config, 5, "abc"), identity().settings);
    }
    let graph_uuid = [8; 16];
    let found = decode(&bytes, &Identity { graph_uuid, ..identity() }).unwrap_err();
    assert!(matches!(found, CheckpointFault::Graph { .. }), "{found}");
    assert!(found.to_string().contains("; train on that graph, or"), "{found}");
    let lengths = vec![7, 3, 2];
    let found = decode(&bytes, &Identity { lengths, ..identity() }).unwrap_err().to_string();
    assert!(found.contains("11 parameters where the model has 12"), "{found}");
    let found = decode(&bytes, &Identity { n_replicas: 1, ..identity() }).unwrap_err().to_string();
    assert!(found.contains("2 replicas where the run has 1"), "{found}");
}

/// Settings of a strategy are compared as text with those of older releases.
#[test]
fn settings_of_each_strategy_have_the_same_text_in_all_releases() {
    let (roots, migration, merge) = (Roots::Global, Migration::Paper, Merge::Min);
    for (strategy, computed, further) in [
        (Strategy::default(), ["MiniBatch", "Owned", "None", "None"], "workers = 1\n"),
        (
            Strategy::Massive(MassiveConfig { roots }),
            ["MiniBatch", "Global", "None", "None"],
            "workers = 1\n",
        ),
        (
            Strategy::Hop(HopConfig { migration, merge, ..HopConfig::default() }),
            ["Hop", "Owned", "Paper", "Min"],
            "workers = 1\n",
        ),
        (
            Strategy::Sdt(SdtConfig::default()),
            ["Sdt", "Owned", "None", "None"],
            "average_every = 1\noptimizer_state = Averaged\nhalo_hops = 2\nfull_partition = false\n",
        ),
        (
            Strategy::Full(FullConfig::default()),
            ["Full", "Owned", "None", "None"],
            "halo = Exchange\nstaleness = 0\ncompress = None\n",
        ),
    ] {
        let config = TrainConfig { strategy, ..TrainConfig::default() };
        let [mode, roots, migration, merge] = computed;
        let expected = format!(
            "mode = {mode}\nroots = {roots}\nmigration = {migration}\nmerge = {merge}\n\
             model = Sage\nheads = 8\noutput_heads = 8\n{further}fanouts = "
        );
        let found = Settings::new(&config, 5, "abc");
        assert!(found.as_str().starts_with(&expected), "{}", found.as_str());
    }
}

/// A file as long as its header says, of a model as no run has it: nothing of it is read.
#[test]
fn a_file_for_a_larger_model_is_refused_by_its_first_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path(), true).unwrap();
    let n_elements: u64 = 1 << 34;
    let mut bytes = encode(&sample());
    bytes[48..56].copy_from_slice(&n_elements.to_le_bytes());
    let n_bytes = bytes.len() as u64 + 28 * (n_elements - LENGTHS.iter().sum::<usize>() as u64);
    let file = fs::File::create(dir.path().join("checkpoint")).unwrap();
    file.set_len(n_bytes).unwrap();
    std::io::Write::write_all(&mut &file, &bytes).unwrap();
    let found = folder.load(&identity()).unwrap_err().to_string();
    assert!(found.contains(&format!("{n_elements} parameters where the model has 11")), "{found}");
    // Settings that differ are named.
    let settings = Settings::new(&TrainConfig { hidden: 3, ..TrainConfig::default() }, 5, "abc");
    let found = folder.load(&Identity { settings, ..identity() }).unwrap_err().to_string();
    assert!(found.contains("run with hidden = 64, this one has hidden = 3"), "{found}");
}

#[test]
fn settings_of_earlier_releases_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path(), true).unwrap();
    let bytes = encode(&sample());
    let line = b"normalize = false";
    let at = bytes.windows(line.len()).position(|window| window == line).unwrap();
    for (removed, lines) in [
        ("aggregation = Max", b"aggregation = Max"),
        ("aggregation = Sum", b"aggregation = Sum"),
        ("norm = Batch", b"norm = Batch\na= b"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at..at + line.len()].copy_from_slice(lines);
        let n_hashed = bytes.len() - 32;
        let digest = blake3::hash(&bytes[..n_hashed]);
        bytes[n_hashed..].copy_from_slice(digest.as_bytes());
        fs::write(dir.path().join("checkpoint"), bytes).unwrap();
        let found = folder.load(&identity()).unwrap_err().to_string();
        let expected =
            format!("run with {removed}, which this release lacks; resume with the release");
        assert!(found.contains(&expected), "{found}");
    }
}

/// A file as long as its header says, of more steps than the run can have made: nothing of it is
/// read.
#[test]
fn a_file_of_more_steps_than_the_run_has_is_refused_by_its_first_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path(), true).unwrap();
    let load = |[epoch, step, n_losses]: [u32; 3], identity: &Identity| {
        let mut bytes = encode(&sample());
        let fields = [(32, epoch), (36, step), (56, n_losses)];
        for (at, value) in fields {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let n_bytes = bytes.len() as u64 + 8 * u64::from(n_losses) - 8 * 11;
        let file = fs::File::create(dir.path().join("checkpoint")).unwrap();
        std::io::Write::write_all(&mut &file, &bytes).unwrap();
        file.set_len(n_bytes).unwrap();
        folder.load(identity).unwrap_err().to_string()
    };
    let found = load([2, 3, 1 << 31], &identity());
    assert!(
        found.contains("2147483648 losses in epoch 2, step 3, with 4 steps an epoch"),
        "{found}"
    );
    let found = load([2, u32::MAX - 8, u32::MAX], &identity());
    assert!(found.contains("with 4 steps an epoch"), "{found}");
    let found = load([1 << 29, 3, (1 << 31) + 3], &identity());
    assert!(found.contains("of a run of 5; ask for more epochs"), "{found}");
    // A place alone that is damaged: no epoch has these losses.
    for epoch in [3, u32::MAX] {
        let found = load([epoch, 3, 11], &identity());
        assert!(found.contains(&format!("11 losses in epoch {epoch}, step 3")), "{found}");
        assert!(found.contains("; remove it to start again"), "{found}");
    }
    // A run with other batches is refused with these.
    let settings = TrainConfig { batch_size: 3, ..TrainConfig::default() };
    let settings = Settings::new(&settings, 5, "abc");
    let found = load([2, 3, 11], &Identity { settings, n_steps: 9, ..identity() });
    assert!(found.contains("run with batch_size = 512, this one has batch_size = 3"), "{found}");
}

#[test]
fn every_folder_that_gets_an_entry_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let (top, a) = (dir.path(), dir.path().join("a"));
    assert_eq!(parents_of_missing(&a.join("b/c")), [a.join("b"), a.clone(), top.to_owned()]);
    fs::create_dir(&a).unwrap();
    assert_eq!(parents_of_missing(&a.join("b")), [&*a]);
    assert!(parents_of_missing(&a).is_empty());
    let here = parents_of_missing(std::path::Path::new("no-such-folder/of-a-run"));
    assert_eq!(here, [std::path::Path::new("no-such-folder"), std::path::Path::new(".")]);
}

#[test]
fn parts_that_contradict_each_other_are_refused() {
    let message = |change: fn(&mut Checkpoint<'_>)| {
        let mut checkpoint = sample();
        change(&mut checkpoint);
        decode(&encode(&checkpoint), &identity()).unwrap_err().to_string()
    };
    assert!(message(|c| c.place.epoch = 3).contains("2 epochs of measurements in epoch 3"));
    assert!(message(|c| c.place.step = 2).contains("11 losses and 11 updates in 10 steps"));
    assert!(message(|c| c.replicas.to_mut()[1].n_steps = 12).contains("12 updates"));
    assert!(message(|c| c.best.epoch = 2).contains("best epoch 2 of 1 evaluated"));
    assert!(message(|c| c.measured.loss = f64::NAN).contains("measurements: "));
}

#[test]
fn a_folder_keeps_the_last_checkpoint_and_is_used_by_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    let folder = Folder::open(&path, false).unwrap();
    assert!(folder.load(&identity()).unwrap().is_none());
    let mut first = Checkpoints::new(folder, identity(), 4);
    assert!(matches!(Folder::open(&path, true), Err(CheckpointError::Busy { .. })));
    first.save(&sample()).unwrap();
    let last = Checkpoint { best: BestModel::default(), ..sample() };
    first.save(&last).unwrap();
    assert_eq!(
        (first.written, first.load(RowVersions::default(), false).unwrap()),
        (2, Some(last.clone()))
    );
    assert!(first.is_due(8) && !first.is_due(9));
    drop(first);
    assert!(matches!(Folder::open(&path, false), Err(CheckpointError::Exists { .. })));
    // No link is followed: one in the place of the lock is refused, one of the partial file
    // replaced.
    let others = path.join("others");
    fs::write(&others, b"others").unwrap();
    fs::remove_file(path.join("lock")).unwrap();
    symlink(&others, path.join("lock")).unwrap();
    assert!(matches!(Folder::open(&path, true), Err(CheckpointError::Io { .. })));
    fs::remove_file(path.join("lock")).unwrap();
    symlink(&others, path.join("checkpoint.partial")).unwrap();
    let linked = Folder::open(&path, true).unwrap();
    linked.save(&encode(&last)).unwrap();
    assert_eq!(fs::read(&others).unwrap(), b"others");
    drop(linked);
    // A checkpoint that was cut off by a crash is ignored.
    fs::write(path.join("checkpoint.partial"), b"LODE").unwrap();
    let folder = Folder::open(&path, true).unwrap();
    assert_eq!(folder.load(&identity()).unwrap(), Some(last));
    for damaged in [&b""[..], b"LODECKPT", &[0; 4096]] {
        fs::write(path.join("checkpoint"), damaged).unwrap();
        let found = folder.load(&identity()).unwrap_err();
        assert!(matches!(found, CheckpointError::File { .. }), "{found}");
    }
}
