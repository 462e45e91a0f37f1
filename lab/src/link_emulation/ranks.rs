//! Ranks of a training run whose messages travel over the links of their machines' servers.

use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lodestore_comm::collective::Collective;
use lodestore_comm::error::CollectiveError;
use lodestore_comm::tag::Tag;
use lodestore_comm::threads::ThreadCollective;
use lodestore_comm::traffic::Traffic;

use super::link::Link;
use super::{ShapedServer, lock};

/// Bytes behind each message: when it arrives.
const STAMP_BYTES: usize = size_of::<u64>();

/// A rank that is a thread, and a machine of its own. Its messages queue with the rows of its
/// server for the one link that leaves the machine. Each receiver waits until its messages have
/// arrived.
pub(crate) struct ShapedRank {
    inner: ThreadCollective,
    outgoing: Arc<Mutex<Link>>,
    /// Stamps count from here.
    start: Instant,
}

impl ShapedRank {
    /// Returns a rank for each of `servers`, by rank; they wait for each other for `timeout`.
    pub(crate) fn group(servers: &[ShapedServer], timeout: Duration) -> Vec<Self> {
        let ranks = ThreadCollective::group(servers.len() as u32, timeout).into_iter();
        let start = Instant::now();
        let rank = |(inner, server): (ThreadCollective, &ShapedServer)| {
            let outgoing = Arc::clone(&server.links.to_client);
            Self { inner, outgoing, start }
        };
        ranks.zip(servers).map(rank).collect()
    }

    /// Returns `bytes` with the time of their arrival, if they leave now.
    fn stamped(&self, bytes: &[u8]) -> Vec<u8> {
        let arrival = {
            let mut link = lock(&self.outgoing);
            link.send(Instant::now(), bytes.len())
        };
        let nanos = arrival.duration_since(self.start).as_nanos() as u64;
        [bytes, &nanos.to_le_bytes()].concat()
    }
}

impl Collective for ShapedRank {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner.n_ranks()
    }

    fn n_local(&self) -> u32 {
        self.inner.n_local()
    }

    fn traffic(&mut self) -> &mut Traffic {
        self.inner.traffic()
    }

    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError> {
        let stamped: Vec<(u32, Vec<u8>)> =
            sends.iter().map(|&(rank, bytes)| (rank, self.stamped(bytes))).collect();
        let sends: Vec<(u32, &[u8])> =
            stamped.iter().map(|(rank, bytes)| (*rank, &bytes[..])).collect();
        self.inner.transfer(tag, &sends, receives)?;
        let mut last = 0;
        for (_, bytes) in receives {
            if let Some((message, stamp)) = bytes.split_last_chunk::<STAMP_BYTES>() {
                last = last.max(u64::from_le_bytes(*stamp));
                let n_bytes = message.len();
                bytes.truncate(n_bytes);
            }
        }
        let arrived = self.start + Duration::from_nanos(last);
        sleep(arrived.saturating_duration_since(Instant::now()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use lodestore_comm::tag::Payload;

    use super::super::link::LinkSpec;
    use super::*;

    #[test]
    fn messages_take_the_time_of_the_link_that_they_leave_by() {
        // 125 bytes take 10 ms.
        let spec = LinkSpec { rate_bits: 1e5, delay: Duration::from_millis(20) };
        let start = Instant::now();
        let rank = |inner| {
            let outgoing = Arc::new(Mutex::new(Link::new(spec)));
            ShapedRank { inner, outgoing, start }
        };
        let ranks = ThreadCollective::group(3, Duration::from_secs(60)).into_iter().map(rank);
        let exchange = |mut rank: ShapedRank| {
            let sent = vec![rank.rank() as u8; 125 * rank.rank() as usize];
            let mut all = Vec::new();
            rank.all_gather(Payload::Control, &sent, &mut all).unwrap();
            for (bytes, of) in all.iter().zip(0u8..) {
                assert_eq!(bytes, &vec![of; 125 * of as usize]);
            }
            let own = lock(&rank.outgoing).n_bytes();
            (start.elapsed(), own, rank.traffic().control)
        };
        let found: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || exchange(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // The last rank's messages take 20 ms each, and the second one follows the first.
        let least = [40, 60, 40].map(Duration::from_millis);
        for ((rank, (elapsed, sent, counted)), least) in (0..).zip(found).zip(least) {
            assert!(elapsed + Duration::from_millis(1) >= least, "{rank}: {elapsed:?}");
            assert_eq!((sent, counted), (250 * rank, 250 * rank));
        }
    }
}
