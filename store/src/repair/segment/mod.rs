//! One segment: what is left of it, and putting it together again.

mod assess;
mod header_footer;
mod placeholder;
mod reconcile;
mod shape;
mod sums;

use std::io;
use std::path::Path;

pub(super) use assess::{Assessment, Expected, Recovered, assess};
pub(crate) use header_footer::identity_of;
pub(super) use header_footer::newer_format_of;
pub(super) use placeholder::Placeholder;

use crate::checksum::PageChecksum;
use crate::error::StoreError;
use crate::file_system::{FileReader, FileSystem, FileWriter};
use crate::limits::PAGE_BYTES;
use sums::{PAGES_PER_READ, read_pages};

/// Looks at the file at `path` with all threads; a file that is not there is hopeless.
pub(super) fn look(
    device: &dyn FileSystem,
    path: &Path,
    expected: &Expected,
    n_threads: usize,
) -> Result<Assessment, StoreError> {
    match device.open(path) {
        Ok(file) => assess(&*file, path, expected, n_threads),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(Assessment::Hopeless("it is missing".to_owned()))
        }
        Err(error) => Err(StoreError::io(path, "open")(error)),
    }
}

/// Writes a whole segment: the pages of `file`, under the header, tables and footer of `mended`.
///
/// Fails when a page that is not lost is not what it was when it was looked at.
pub(super) fn write(
    mended: &Recovered,
    file: &dyn FileReader,
    out: &mut dyn FileWriter,
) -> io::Result<()> {
    out.append(&mended.header())?;
    let n_pages = mended.sections.n_pages();
    let checksum = PageChecksum::new(mended.identity.segment);
    let mut buffer = vec![0; (PAGES_PER_READ * PAGE_BYTES) as usize];
    for first in (0..n_pages).step_by(PAGES_PER_READ as usize) {
        let n_bytes = PAGES_PER_READ.min(n_pages - first) * PAGE_BYTES;
        let bytes = &mut buffer[..n_bytes as usize];
        read_pages(file, first, bytes);
        for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE_BYTES as usize)) {
            mended.check_page(page, checksum.of(page, bytes))?;
        }
        out.append(bytes)?;
    }
    out.append(&mended.tables)?;
    out.append(&mended.footer())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::SegmentCodec;
    use crate::file_system::Disk;
    use crate::fixture::{flip, identity, write_encoded};

    #[test]
    fn a_page_that_changes_after_it_was_looked_at_is_not_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (path, identity) = (dir.path().join("a.seg"), identity(500, 99));
        let digest = Some(write_encoded(&path, &identity, SegmentCodec::Raw));
        flip(&path, 100);
        flip(&path, 3 * PAGE_BYTES + 9);
        let expected = Expected { identity, digest };
        let Assessment::Recovered(mended) = look(&Disk, &path, &expected, 1).unwrap() else {
            panic!("it can be mended");
        };
        assert_eq!((mended.lost_pages.len(), &mended.lost_pages[0]), (1, &(2..3)));
        let copy = |name: &str| {
            let mut out = Disk.create(&dir.path().join(name)).unwrap();
            write(&mended, &*Disk.open(&path).unwrap(), &mut *out)
        };
        copy("sound").unwrap();
        // The lost page may be anything.
        flip(&path, 3 * PAGE_BYTES + 19);
        copy("lost").unwrap();
        flip(&path, 7 * PAGE_BYTES + 1);
        let error = copy("changed").unwrap_err().to_string();
        assert!(error.contains("page 6"), "{error}");
    }
}
