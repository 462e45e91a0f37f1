//! Idle rings and memory, for later readers.
//!
//! They belong to the process and not to a file. Their number follows the concurrently reading
//! threads, not the open files. A forked child has its own: it does not have the memory of its
//! parent's, and the kernel has but one side of their rings.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use rustix::io::Errno;

use super::{
    ARENA_BYTES, Arena, DEPTH, MAX_LARGE_ARENAS, MIDDLE_ARENA_BYTES, ReadFile, ReadQueue, ReadRing,
    SMALL_ARENA_BYTES,
};

/// Most idle rings, and most idle arenas, that are kept: 448 MiB at most together, since few are
/// large.
const MAX_IDLE: usize = 8;

/// Rings and memory of a process.
#[derive(Default)]
struct Pools {
    rings: Mutex<Vec<ReadRing>>,
    arenas: Mutex<Vec<Arena>>,
    n_large: AtomicUsize,
}

static POOLS: PerProcess<Pools> = PerProcess::new();

fn pools() -> &'static Pools {
    POOLS.get_or(|_| Pools::default())
}

/// The system refuses rings for good.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Lends a ring for reads of `file` to `with`.
///
/// A ring that does not come back, after a panic say, waits for its reads and ends.
pub(crate) fn lend_ring<T>(
    file: &Arc<ReadFile>,
    with: impl FnOnce(&mut ReadRing) -> T,
) -> io::Result<T> {
    if is_refused() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let lender = pools();
    let mut ring = match idle_ring(lender, file) {
        Some(ring) => ring,
        None => new_ring(lender).inspect_err(note_refusal)?,
    };
    ring.attach(file);
    let result = with(&mut ring);
    if !std::ptr::eq(lender, pools()) {
        // Its memory is not mapped in a child, and may be something else's by now.
        std::mem::forget(ring);
        return Ok(result);
    }
    // Reads may be in flight, and memory be lost to the arena.
    if ring.drain().is_err() || !ring.arena().is_whole() {
        return Ok(result);
    }
    let file = ring.detach();
    let mut rings = lender.rings.lock().ignore_poison();
    if rings.len() < MAX_IDLE {
        rings.push(ring);
    }
    drop(rings);
    // Last: the end of the file's last user makes idle rings forget it, this one included.
    drop(file);
    Ok(result)
}

/// Returns a ring with as much memory as the kernel registers.
fn new_ring(pools: &'static Pools) -> io::Result<ReadRing> {
    let mut arena = new_arena(pools)?;
    for smaller_bytes in [MIDDLE_ARENA_BYTES, SMALL_ARENA_BYTES] {
        let ring = ReadRing::new(DEPTH as u32, arena)?;
        if ring.has_registered_memory() {
            return Ok(ring);
        }
        // Never two together, which would take more memory than either needs.
        drop(ring);
        arena = Arena::new(smaller_bytes)?;
    }
    ReadRing::new(DEPTH as u32, arena)
}

/// Returns a large arena, while there are few of them.
fn new_arena(pools: &'static Pools) -> io::Result<Arena> {
    let Some(large) = Large::take(&pools.n_large) else { return Arena::new(MIDDLE_ARENA_BYTES) };
    let mut arena = Arena::new(ARENA_BYTES)?;
    arena.keep(large);
    Ok(arena)
}

/// The right to one of few large arenas, which ends with the arena.
#[derive(Debug)]
pub(super) struct Large(&'static AtomicUsize);

impl Large {
    fn take(n_large: &'static AtomicUsize) -> Option<Self> {
        let one_more = |n| (n < MAX_LARGE_ARENAS).then_some(n + 1);
        let taken = n_large.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.ok().map(|_| Self(n_large))
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether the system has refused rings for good.
pub(crate) fn is_refused() -> bool {
    REFUSED.load(Ordering::Relaxed)
}

/// Makes rings that are idle forget a file; the others forget it when they come back.
pub(super) fn forget(file: &ReadFile) {
    if let Some(pools) = POOLS.get() {
        pools.rings.lock().ignore_poison().iter_mut().for_each(|ring| ring.forget(file));
    }
}

/// Lends memory to `with`, for reads without a ring.
pub(crate) fn lend_arena<T>(with: impl FnOnce(&mut Arena) -> T) -> io::Result<T> {
    let pools = pools();
    let idle = pools.arenas.lock().ignore_poison().pop();
    let mut arena = match idle {
        Some(arena) => arena,
        None => new_arena(pools)?,
    };
    let result = with(&mut arena);
    let mut idle = pools.arenas.lock().ignore_poison();
    // Memory that was not returned stays with its owner.
    if arena.is_whole() && idle.len() < MAX_IDLE {
        idle.push(arena);
    }
    Ok(result)
}

/// Takes an idle ring: one that knows the file already, or any.
fn idle_ring(pools: &Pools, file: &ReadFile) -> Option<ReadRing> {
    let mut rings = pools.rings.lock().ignore_poison();
    let position = rings.iter().position(|ring| ring.knows(file));
    match position {
        Some(position) => Some(rings.swap_remove(position)),
        None => rings.pop(),
    }
}

fn note_refusal(error: &io::Error) {
    let refusals = [Errno::NOSYS, Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP];
    if Errno::from_io_error(error).is_some_and(|errno| refusals.contains(&errno)) {
        REFUSED.store(true, Ordering::Relaxed);
    }
}
