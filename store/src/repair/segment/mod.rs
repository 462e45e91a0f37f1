//! One segment: what is left of it, and putting it together again.

mod assess;
mod index;
mod settle;
mod stub;
mod sums;

use std::io;
use std::path::Path;

pub(super) use assess::{Assessment, Expected, Mended, assess, identity_of};
pub(super) use stub::Stub;

use crate::device::{Device, FileReader, FileWriter};
use crate::error::StoreError;
use crate::layout::PAGE_BYTES;
use sums::{PAGES_PER_READ, read_pages};

/// Looks at the file at `path` with all threads; a file that is not there is hopeless.
pub(super) fn look(
    device: &dyn Device,
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
pub(super) fn write(
    mended: &Mended,
    file: &dyn FileReader,
    out: &mut dyn FileWriter,
) -> io::Result<()> {
    out.append(&mended.header())?;
    let n_pages = mended.sections.n_pages();
    let mut buffer = vec![0; (PAGES_PER_READ * PAGE_BYTES) as usize];
    for first in (0..n_pages).step_by(PAGES_PER_READ as usize) {
        let n_bytes = PAGES_PER_READ.min(n_pages - first) * PAGE_BYTES;
        let bytes = &mut buffer[..n_bytes as usize];
        read_pages(file, first, bytes);
        out.append(bytes)?;
    }
    out.append(&mended.tables)?;
    out.append(&mended.footer())
}
