//! Common parts of the benches: a graph with known bytes, and the physical limits to compare with.
//!
//! Every bench checks its answer, says what it does not measure, and runs small as a test.

mod graph;
mod loopback;
mod plain_copy;
mod plain_reads;
mod random_ids;
mod rounds;
mod table;
mod trace;

pub use graph::{feature_graph, row_of, shuffled_ids};
pub use loopback::PlainPeer;
pub use plain_copy::PlainTable;
pub use plain_reads::plain_reads;
pub use random_ids::random_ids;
pub use rounds::{Contestant, Figures, Rounds, is_asked_for, is_smoke};
pub use table::table_graph;
pub use trace::Trace;
