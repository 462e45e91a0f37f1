//! One cell of the probe's table: random reads of one size at one queue depth.

use std::path::Path;
use std::time::{Duration, Instant};

use lodestore_graph::splitmix64;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::limits::PAGE_BYTES;
use crate::ring::{Read, ReadQueue, Step};

/// Random reads of one size at one queue depth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeCell {
    /// Bytes of each request.
    pub request_bytes: u64,
    /// Requests in flight.
    pub depth: u32,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Median duration of a request, in microseconds.
    pub p50_us: f64,
    /// Duration that one request in a hundred exceeds, in microseconds.
    pub p99_us: f64,
}

impl ProbeCell {
    /// Returns whether some disk could have these figures.
    pub(super) fn is_sensible(&self) -> bool {
        let figures = [self.iops, self.bytes_per_s, self.p50_us, self.p99_us];
        figures.iter().all(|&x| x == 0.0 || (1e-3..=1e15).contains(&x))
    }
}

/// The measurement of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) request_bytes: usize,
    pub(super) depth: usize,
}

/// Keeps `shape.depth` reads at random pages in flight for `duration`, and waits for the last.
pub(super) fn measure(
    dir: &Path,
    queue: &mut dyn ReadQueue,
    shape: Shape,
    file_bytes: u64,
    duration: Duration,
) -> Result<ProbeCell, StoreError> {
    let offsets = Offsets::new(random_start(), shape.request_bytes as u64, file_bytes);
    let mut run = Run { queue, offsets, started: Vec::new(), latencies_ns: Vec::new() };
    let measured = run.all(dir, shape, duration);
    let drained = run.queue.drain().map_err(StoreError::io(dir, "wait for reads of"));
    let seconds = measured?;
    drained?;
    let mut latencies_ns = run.latencies_ns;
    let iops = latencies_ns.len() as f64 / seconds;
    Ok(ProbeCell {
        request_bytes: shape.request_bytes as u64,
        depth: shape.depth as u32,
        iops,
        bytes_per_s: iops * shape.request_bytes as f64,
        p50_us: quantile_us(&mut latencies_ns, 0.5),
        p99_us: quantile_us(&mut latencies_ns, 0.99),
    })
}

struct Run<'a> {
    queue: &'a mut dyn ReadQueue,
    offsets: Offsets,
    /// When each read in flight was pushed, by its tag.
    started: Vec<Instant>,
    latencies_ns: Vec<u64>,
}

impl Run<'_> {
    /// Returns the seconds from the first push to the last answer.
    fn all(&mut self, dir: &Path, shape: Shape, duration: Duration) -> Result<f64, StoreError> {
        let start = Instant::now();
        for tag in 0..shape.depth {
            self.started.push(start);
            self.push(dir, shape.request_bytes, tag as u32)?;
        }
        let mut is_over = false;
        while self.queue.in_flight() > 0 {
            let want = self.queue.in_flight().div_ceil(8);
            self.queue.submit(want).map_err(StoreError::io(dir, "wait for reads of"))?;
            is_over = is_over || start.elapsed() >= duration;
            while let Some((mut read, outcome)) = self.queue.pop() {
                match read.advance(outcome) {
                    Step::Again => self.queue.push(read),
                    Step::Done => {
                        let tag = read.tag;
                        let latency = self.started[tag as usize].elapsed();
                        self.latencies_ns.push(latency.as_nanos() as u64);
                        self.queue.arena().give_back(read.into_region());
                        if !is_over {
                            self.push(dir, shape.request_bytes, tag)?;
                        }
                    }
                    Step::Fail(fault) => {
                        let offset_bytes = read.missing_from_bytes();
                        self.queue.arena().give_back(read.into_region());
                        let (file, source) = (dir.to_owned(), fault.into());
                        return Err(StoreError::Read { file, offset_bytes, source });
                    }
                }
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn push(&mut self, dir: &Path, n_bytes: usize, tag: u32) -> Result<(), StoreError> {
        let region = self.queue.arena().take(n_bytes);
        let region = region.map_err(StoreError::io(dir, "get memory for"))?;
        let region = region.unwrap_or_else(|| unreachable!("cells fit into the memory"));
        self.started[tag as usize] = Instant::now();
        self.queue.push(Read::new(region, self.offsets.next(), tag));
        Ok(())
    }
}

/// Random whole-page offsets.
struct Offsets {
    state: u64,
    n_places: u64,
}

impl Offsets {
    fn new(state: u64, request_bytes: u64, file_bytes: u64) -> Self {
        let n_places = (file_bytes - request_bytes) / PAGE_BYTES + 1;
        Self { state, n_places }
    }

    fn next(&mut self) -> u64 {
        self.state = splitmix64(self.state);
        ((u128::from(self.state) * u128::from(self.n_places)) >> 64) as u64 * PAGE_BYTES
    }
}

/// Returns another start in every run and cell: what is below a virtual disk remembers what was
/// read.
pub(super) fn random_start() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

fn quantile_us(latencies_ns: &mut [u64], quantile: f64) -> f64 {
    if latencies_ns.is_empty() {
        return 0.0;
    }
    let position = ((latencies_ns.len() - 1) as f64 * quantile).round() as usize;
    *latencies_ns.select_nth_unstable(position).1 as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_whole_pages_within_the_file_and_reach_its_ends() {
        let mut offsets = Offsets::new(1, 8192, 10 * 4096);
        let found: std::collections::BTreeSet<u64> = (0..1000).map(|_| offsets.next()).collect();
        assert!(found.into_iter().eq((0..=8).map(|page| page * 4096)));
        assert_eq!(Offsets::new(1, 4096, 4096).next(), 0);
    }

    #[test]
    fn quantiles_are_of_what_was_measured() {
        assert_eq!(quantile_us(&mut [], 0.5), 0.0);
        let mut latencies: Vec<u64> = (1..=101).rev().map(|us| us * 1000).collect();
        assert_eq!(quantile_us(&mut latencies, 0.5), 51.0);
        assert_eq!(quantile_us(&mut latencies, 0.99), 100.0);
    }
}
