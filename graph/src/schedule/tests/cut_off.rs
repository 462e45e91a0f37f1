//! Runs that are cut off while they write a schedule, and those after them.

use super::*;
use crate::header::array;

/// Writes the schedule of `spec` over a partial file of these bytes; returns it and the summary.
fn taken_up(spec: &ScheduleSpec, partial: &[u8]) -> (Vec<u8>, ScheduleSummary) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sched");
    std::fs::write(dir.path().join("run.sched.partial"), partial).unwrap();
    let summary = write(spec, &path, 2);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    (std::fs::read(path).unwrap(), summary)
}

/// Returns where the blocks of a file end, by its index.
fn block_ends(path: &Path) -> Vec<usize> {
    let bytes = std::fs::read(path).unwrap();
    let n_batches = Schedule::open(path).unwrap().spec().epochs as usize;
    let footer_at = bytes.len() - footer::FOOTER_BYTES;
    let n: usize = u64::from_le_bytes(array(&bytes, footer_at + 8)) as usize;
    assert!(n >= n_batches);
    let index_at = footer_at - 8 * n;
    let starts = bytes[index_at..footer_at].chunks_exact(8);
    let mut ends: Vec<usize> =
        starts.skip(1).map(|b| u64::from_le_bytes(array(b, 0)) as usize).collect();
    ends.push(index_at - 4 * spec().workers as usize);
    ends
}

#[test]
fn a_run_cut_off_anywhere_continues_to_the_same_file() {
    let (_dir, path, whole_summary) = written();
    let (whole, ends) = (std::fs::read(&path).unwrap(), block_ends(&path));
    assert_eq!(ends.len() as u64, whole_summary.batches);
    let near = |end: &usize| [end - 1, *end, end + 1, end + 30];
    let mut cuts: Vec<usize> = ends.iter().step_by(3).flat_map(near).collect();
    cuts.extend([0, 1, 4095, 4096, 4097, 4120, whole.len() - 1, whole.len()]);
    for cut in cuts.into_iter().filter(|&cut| cut <= whole.len()) {
        let (file, summary) = taken_up(&spec(), &whole[..cut]);
        assert!(file == whole, "cut at {cut}");
        assert_eq!(summary.digest, whole_summary.digest);
        assert_eq!(summary.resumed, ends.iter().filter(|&&end| end <= cut).count() as u64);
        assert_eq!((summary.batches, summary.ids), (whole_summary.batches, whole_summary.ids));
    }
    // What a power failure may leave: a file of the right length whose end never came to the disk.
    let mut holes = whole.clone();
    holes[ends[4] + 7..].fill(0);
    let (file, summary) = taken_up(&spec(), &holes);
    assert!(file == whole);
    assert_eq!(summary.resumed, 5);
}

#[test]
fn damage_in_what_a_run_has_left_is_found_and_sampled_again() {
    let (_dir, path, _) = written();
    let (whole, ends) = (std::fs::read(&path).unwrap(), block_ends(&path));
    for at in (4096..ends[8]).step_by(37) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        let (file, summary) = taken_up(&spec(), &damaged);
        assert!(file == whole, "byte {at}");
        assert_eq!(summary.resumed, ends.iter().filter(|&&end| end <= at).count() as u64);
    }
}

#[test]
fn what_another_run_has_left_is_overwritten() {
    let (_dir, path, _) = written();
    let whole = std::fs::read(&path).unwrap();
    let others = [
        ScheduleSpec { seed: 12, ..spec() },
        ScheduleSpec { graph_uuid: [4; 16], ..spec() },
        ScheduleSpec { epochs: 4, ..spec() },
    ];
    for other in others {
        let (file, summary) = taken_up(&other, &whole);
        assert_eq!(summary.resumed, 0);
        let (_dir, path, _) = written_as(&other);
        assert!(file == std::fs::read(path).unwrap());
    }
    // Other roots are the one thing that the header does not tell.
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("a.partial"), &whole).unwrap();
    let (topology, book) = (topology(), book());
    let fewer: Vec<NodeId> = roots()[..40].to_vec();
    let write = |name: &str| {
        write_schedule(
            &ScheduleInput { topology: &topology, book: &book, train_roots: &fewer },
            &spec(),
            &at(name),
            2,
            &mut |_, _| {},
        )
        .unwrap()
    };
    assert_eq!(write("a").resumed, 0);
    write("b");
    assert_eq!(std::fs::read(at("a")).unwrap(), std::fs::read(at("b")).unwrap());
    // Roots that repeat are sampled once, and recognised.
    let twice = [roots(), roots()].concat();
    let write = |name: &str| {
        write_schedule(
            &ScheduleInput { topology: &topology, book: &book, train_roots: &twice },
            &spec(),
            &at(name),
            2,
            &mut |_, _| {},
        )
        .unwrap()
    };
    let batches = write("c").batches;
    std::fs::rename(at("c"), at("d.partial")).unwrap();
    assert_eq!(write("d").resumed, batches);
}

#[test]
fn a_schedule_that_is_being_written_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let other = partial::Partial::open(&path, &spec(), N_NODES).unwrap();
    let result = write_schedule(
        &ScheduleInput { topology: &topology(), book: &book(), train_roots: &roots() },
        &spec(),
        &path,
        1,
        &mut |_, _| {},
    );
    assert!(matches!(result, Err(ScheduleError::Busy { .. })));
    drop(other);
    write(&spec(), &path, 1);
}
