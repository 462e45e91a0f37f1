//! Reads through an io_uring: one system call hands over and takes back many.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use super::{Arena, Outcome, Read, ReadFile, ReadQueue};

/// How often in a row the kernel may be too short of memory to take reads; 1 ms apart.
const MAX_REFUSALS: u32 = 1000;

/// Marks an unused entry in a table of files.
const NO_FILE: RawFd = -1;

/// A ring with memory of its own; the kernel knows the memory and the file ahead, where it may.
///
/// One thread uses it at a time; between uses it is empty and may change threads and files.
pub(crate) struct ReadRing {
    /// Closed before the memory that it knows is freed.
    uring: IoUring,
    arena: Arena,
    /// Reads that the kernel has or will be handed; the position is their number in the ring.
    reads: Vec<Option<Read>>,
    free: Vec<usize>,
    /// The file of all reads: open for as long as they may be handed over.
    file: Option<Arc<ReadFile>>,
    known: KnownFile,
}

/// The file that the kernel knows by index 0.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownFile {
    /// The kernel takes no table of files from us.
    Refused,
    Nothing,
    File(u64),
}

impl ReadRing {
    /// Asks the kernel for a ring of `depth` reads in flight that fill `arena`.
    ///
    /// Memory and files that the kernel will not know ahead, for want of locked memory say, are
    /// used all the same.
    pub(crate) fn new(depth: u32, mut arena: Arena) -> io::Result<Self> {
        // A forked child does not have its memory: what it would push there, the kernel would read
        // into the memory of this process.
        let mut builder = IoUring::builder();
        builder.dontfork();
        // Completions wait for the thread's next system call instead of interrupting it; kernels
        // before 5.19 do not know that.
        let uring = match builder.clone().setup_coop_taskrun().build(depth) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                builder.build(depth)?
            }
            built => built?,
        };
        arena.set_registered(register_memory(&uring, &arena).is_ok());
        let has_table = uring.submitter().register_files(&[NO_FILE]).is_ok();
        let known = if has_table { KnownFile::Nothing } else { KnownFile::Refused };
        let reads = (0..depth).map(|_| None).collect();
        let free = (0..depth as usize).rev().collect();
        Ok(Self { uring, arena, reads, free, file: None, known })
    }

    /// Returns whether the kernel knows the memory ahead.
    pub(super) fn has_registered_memory(&self) -> bool {
        self.arena.is_registered()
    }

    /// Sets the file of all further reads.
    ///
    /// # Panics
    /// While reads are in flight.
    pub(crate) fn attach(&mut self, file: &Arc<ReadFile>) {
        assert_eq!(self.in_flight(), 0, "reads of another file are in flight");
        if !self.knows(file) {
            self.make_known(Some(file));
        }
        self.file = Some(Arc::clone(file));
    }

    /// Ends the use of a file, which the kernel continues knowing.
    pub(super) fn detach(&mut self) -> Option<Arc<ReadFile>> {
        self.file.take()
    }

    /// Returns whether the kernel knows the file.
    pub(super) fn knows(&self, file: &ReadFile) -> bool {
        self.known == KnownFile::File(file.id())
    }

    /// Makes the kernel forget a file, so that it can be closed.
    pub(super) fn forget(&mut self, file: &ReadFile) {
        if self.knows(file) {
            self.make_known(None);
        }
    }

    fn make_known(&mut self, file: Option<&ReadFile>) {
        if self.known == KnownFile::Refused {
            return;
        }
        let fd = file.map_or(NO_FILE, |file| file.file().as_raw_fd());
        self.known = match (self.uring.submitter().register_files_update(0, &[fd]), file) {
            (Ok(_), Some(file)) => KnownFile::File(file.id()),
            (Ok(_), None) => KnownFile::Nothing,
            (Err(_), _) => KnownFile::Refused,
        };
    }

    /// Returns the kernel's description of a read.
    fn entry(&self, read: &Read, file: &ReadFile) -> squeue::Entry {
        let (offset, range) = read.rest();
        let region = read.region();
        // Does not wrap, and fits: the range is within the region and has 1 MiB at most.
        let (start, n_bytes) = (region.start().wrapping_add(range.start), range.len() as u32);
        let (fd, known) = (types::Fd(file.file().as_raw_fd()), types::Fixed(0));
        match (region.is_registered(), self.knows(file)) {
            (true, true) => opcode::ReadFixed::new(known, start, n_bytes, 0).offset(offset).build(),
            (true, false) => opcode::ReadFixed::new(fd, start, n_bytes, 0).offset(offset).build(),
            (false, true) => opcode::Read::new(known, start, n_bytes).offset(offset).build(),
            (false, false) => opcode::Read::new(fd, start, n_bytes).offset(offset).build(),
        }
    }
}

impl ReadQueue for ReadRing {
    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn depth(&self) -> usize {
        self.reads.len()
    }

    fn in_flight(&self) -> usize {
        self.reads.len() - self.free.len()
    }

    /// Hands a read to the ring.
    ///
    /// # Panics Past the depth, and before a file is attached.
    #[expect(unsafe_code, reason = "the kernel is handed an address")]
    fn push(&mut self, read: Read) {
        let (Some(file), Some(slot)) = (&self.file, self.free.pop()) else {
            panic!("a read without a file or past the depth of the ring");
        };
        let entry = self.entry(&read, file).user_data(slot as u64);
        self.reads[slot] = Some(read);
        // SAFETY: the entry's address and length lie within the region of the read, which stays
        // in `reads` until its completion has been taken, also when the ring is dropped: see
        // there. The file is open until then, held by `file` or known to the kernel.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the queue has room for as many reads as the ring");
    }

    fn submit(&mut self, want: usize) -> io::Result<()> {
        let want = want.min(self.in_flight());
        if want == 0 && self.uring.submission().is_empty() {
            return Ok(());
        }
        for _ in 0..MAX_REFUSALS {
            let Err(error) = self.uring.submit_and_wait(want) else { return Ok(()) };
            match Errno::from_io_error(&error) {
                // A signal came, or completions have to be taken first.
                Some(Errno::INTR | Errno::BUSY) => return Ok(()),
                Some(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                _ => return Err(error),
            }
        }
        Err(Errno::AGAIN.into())
    }

    fn pop(&mut self) -> Option<(Read, Outcome)> {
        let entry = self.uring.completion().next()?;
        let slot = entry.user_data() as usize;
        let read = self.reads.get_mut(slot).and_then(Option::take);
        let read = read.unwrap_or_else(|| unreachable!("the kernel completes read {slot} twice"));
        self.free.push(slot);
        let result = entry.result();
        Some((read, usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result))))
    }
}

impl Drop for ReadRing {
    fn drop(&mut self) {
        if self.drain().is_err() {
            // The kernel may still write to the memory of these reads: it is never freed.
            std::mem::forget(std::mem::take(&mut self.reads));
        }
    }
}

/// Makes the kernel know the memory by index 0, which spares it looking the pages up for each read.
#[expect(unsafe_code, reason = "the kernel is handed an address")]
fn register_memory(uring: &IoUring, arena: &Arena) -> io::Result<()> {
    let (start, iov_len) = arena.span();
    let memory = libc::iovec { iov_base: start.cast(), iov_len };
    // SAFETY: the span is one live mapping. The kernel holds its pages for as long as it knows
    // them, so they outlive the mapping if need be.
    unsafe { uring.submitter().register_buffers(&[memory]) }
}
