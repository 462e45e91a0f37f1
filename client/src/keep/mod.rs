//! Which remote rows a worker keeps.

pub mod scored;

/// Remote rows that a worker keeps by its schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// None.
    Nothing,
    /// Those that an epoch uses most, pulled before it, in two buffers (RapidGNN, sections 4.5 and
    /// 4.6).
    Hot,
    /// Those that are used soonest (Belady's MIN), in the memory of both buffers. No other choice
    /// moves fewer rows.
    Oracle,
}
