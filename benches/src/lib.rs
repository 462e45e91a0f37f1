//! Common parts of the benches: a graph with known bytes, and the physical limits to compare with.
//!
//! Every bench checks its answer, says what it does not measure, and runs small as a test.

mod cold;
mod loopback;
mod plain;
mod rounds;
mod trace;

pub use cold::{ColdSubject, drop_cached};
pub use loopback::PlainPeer;
pub use plain::{Pages, PlainTable, plain_reads};
pub use rounds::{Contestant, Figures, Rounds, check_parts, is_asked_for, is_smoke};
pub use testing::features::{feature_graph, row_of, shuffled_ids};
pub use trace::{Trace, random_ids};
