//! Reads done synchronously by the calling thread: for a read or two, and where nothing else works.

use std::collections::VecDeque;
use std::io;

use rustix::io::Errno;

use super::{Arena, Outcome, Read, ReadQueue};
use crate::file_system::FileReader;
use crate::limits::PAGE_BYTES;

/// Positional reads, one after the other.
pub(crate) struct InlineQueue<'a> {
    file: &'a dyn FileReader,
    arena: &'a mut Arena,
    finished: VecDeque<(Read, Outcome)>,
}

impl<'a> InlineQueue<'a> {
    pub(crate) fn new(file: &'a dyn FileReader, arena: &'a mut Arena) -> Self {
        Self { file, arena, finished: VecDeque::new() }
    }
}

impl ReadQueue for InlineQueue<'_> {
    fn arena(&mut self) -> &mut Arena {
        self.arena
    }

    fn depth(&self) -> usize {
        1
    }

    fn in_flight(&self) -> usize {
        self.finished.len()
    }

    fn push(&mut self, mut read: Read) {
        let outcome = read_now(self.file, &mut read);
        self.finished.push_back((read, outcome));
    }

    fn submit(&mut self, _want: usize) -> io::Result<()> {
        Ok(())
    }

    fn pop(&mut self) -> Option<(Read, Outcome)> {
        self.finished.pop_front()
    }
}

/// Does what a read asks for next.
///
/// A device may stop anywhere; direct reads continue at whole pages only, and so does the caller.
pub(super) fn read_now(file: &dyn FileReader, read: &mut Read) -> Outcome {
    let (offset, range) = read.rest();
    let buffer = &mut read.region_mut().bytes_mut()[range];
    let mut n_done = 0;
    while n_done < buffer.len() {
        match file.read_at(&mut buffer[n_done..], offset + n_done as u64) {
            Ok(0) => break,
            Ok(n) => n_done += n,
            Err(_) if n_done >= PAGE_BYTES as usize => break,
            // A device without numbers for its errors has failed.
            Err(error) => {
                return Err(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error));
            }
        }
    }
    Ok(n_done)
}
