//! Schedules that are cut short, changed or forged.

use super::*;

/// Opens the file and reads all that the schedule of `spec` has.
fn read_all(path: &Path) -> Result<(), ScheduleError> {
    let schedule = Schedule::open(path)?;
    for epoch in 0..schedule.spec().epochs {
        for worker in 0..schedule.spec().workers {
            schedule.batches(worker, epoch).collect::<Result<Vec<_>, _>>()?;
        }
    }
    Ok(())
}

#[test]
fn every_truncation_is_an_error_when_opened() {
    let (_dir, path, _) = written_as(&short());
    let whole = std::fs::read(&path).unwrap();
    read_all(&path).unwrap();
    for len in (0..whole.len()).chain([whole.len() + 1]) {
        let mut bytes = whole.clone();
        bytes.resize(len, 0);
        std::fs::write(&path, &bytes).unwrap();
        let error = Schedule::open(&path).unwrap_err().to_string();
        assert!(error.contains("run.sched: "), "{len} bytes: {error}");
    }
}

#[test]
fn every_changed_byte_is_an_error_that_names_the_place() {
    let (_dir, path, _) = written_as(&short());
    let whole = std::fs::read(&path).unwrap();
    // The zeros of the header page have a test of their own.
    for at in (0..whole.len()).filter(|at| !(200..4000).contains(at)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bytes).unwrap();
        let error = read_all(&path).unwrap_err().to_string();
        assert!(error.contains("run.sched: "), "byte {at}: {error}");
    }
}

/// Returns the file of a short run with other index bytes under good checksums; what opening it
/// says.
fn with_forged_index(change: impl FnOnce(&mut [u8])) -> Result<Schedule, ScheduleError> {
    let (_dir, path, summary) = written_as(&short());
    let mut bytes = std::fs::read(&path).unwrap();
    let header_crc = crc32fast::hash(&bytes[..header::HEADER_BYTES - 4]);
    let footer_at = bytes.len() - footer::FOOTER_BYTES;
    let index_at = footer_at - 4 * 3 - 8 * summary.batches as usize;
    change(&mut bytes[index_at..footer_at]);
    let last = bytes[footer_at..].try_into().unwrap();
    let mut footer = footer::Footer::decode(last, header_crc, &path, footer_at as u64).unwrap();
    footer.index_crc = footer::crc_of(header_crc, &[&bytes[index_at..footer_at]]);
    bytes.splice(footer_at.., footer.encode(header_crc));
    std::fs::write(&path, bytes).unwrap();
    Schedule::open(&path)
}

#[test]
fn a_forged_index_is_refused() {
    assert!(with_forged_index(|_| {}).is_ok());
    // 3 counts, then offsets: the first is that of the header's end, 4096.
    for (at, byte) in [(0, 9), (3, 255), (12, 1), (13, 0), (21, 0), (21, 16), (27, 1), (27, 255)] {
        let error = with_forged_index(|index| index[at] = byte).unwrap_err();
        assert!(matches!(error, ScheduleError::Format { what: "index", .. }), "{at}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_damage_is_an_error_or_no_change(
        start in 0usize..1 << 20,
        damage in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        let (_dir, path, _) = written_as(&short());
        let mut bytes = std::fs::read(&path).unwrap();
        let start = start % bytes.len();
        let whole = bytes.clone();
        for (byte, damage) in bytes[start..].iter_mut().zip(damage) {
            *byte = damage;
        }
        std::fs::write(&path, &bytes).unwrap();
        prop_assert_eq!(read_all(&path).is_ok(), bytes == whole);
    }
}
