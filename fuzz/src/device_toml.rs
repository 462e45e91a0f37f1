//! `device.toml`: any text is refused or results in a profile that makes sense.

use std::path::Path;

use lodestore_store::file_system::FileSystem;
use lodestore_store::file_system::crash::CrashFileSystem;
use lodestore_store::plan::DiskProfile;
use lodestore_store::probe::{DEVICE_FILE, StoredProfile};

use crate::memory::bounded;

/// Reads a `device.toml`, and reads it again as it is written. The first byte says whether the rest
/// follows a checksum line that fits it.
pub fn run(data: &[u8]) {
    let Some((&sealed, text)) = data.split_first() else { return };
    let mut text = text.to_vec();
    if sealed % 2 == 1 {
        let line = format!("checksum = \"{:08x}\"\n", crc32fast::hash(&text));
        text.splice(0..0, line.into_bytes());
    }
    let (device, dir) = (CrashFileSystem::new(0), Path::new(""));
    let written = device.create(Path::new(DEVICE_FILE)).and_then(|mut file| file.append(&text));
    written.expect("room in memory");
    let Ok(stored) = bounded(text.len(), || StoredProfile::read(&device, dir)) else { return };
    let stored = stored.expect("the file is there");
    assert!(stored.profile().is_sensible());
    assert!(stored.profile().max_gap_pages() < u64::MAX);
    stored.write(&device, dir).expect("room in memory");
    assert_eq!(StoredProfile::read(&device, dir).expect("what was written"), Some(stored));
}

/// Returns a usual disk, with and without its checksum line.
pub fn seeds() -> Vec<Vec<u8>> {
    let (device, dir) = (CrashFileSystem::new(0), Path::new(""));
    StoredProfile::new(DiskProfile::default(), Vec::new(), 1_800_000_000)
        .write(&device, dir)
        .expect("room in memory");
    let file = device.open(Path::new(DEVICE_FILE)).expect("what was written");
    let mut text = vec![0; file.len_bytes().expect("a length") as usize];
    file.read_exact_at(&mut text, 0).expect("bytes");
    let body = text.iter().position(|&byte| byte == b'\n').expect("a checksum line") + 1;
    vec![[&[0], text.as_slice()].concat(), [&[1], &text[body..]].concat()]
}
