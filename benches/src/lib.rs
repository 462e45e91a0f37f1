//! What the benches share: a graph whose bytes are known, and the physical limits to stand beside.
//!
//! Every bench checks its answer, says what it does not measure, and runs small as a test.

mod graph;
mod loopback;
mod table;
mod trace;

pub use graph::{feature_graph, row_of, shuffled_ids};
pub use loopback::PlainPeer;
pub use table::table_graph;
pub use trace::Trace;
