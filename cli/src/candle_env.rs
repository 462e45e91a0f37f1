//! Threads of candle's own, without which training is faster.
//!
//! candle 0.11 spreads element-wise operations of 64 Ki elements or more over one pool for the
//! whole process. Users of the pool take turns, and its threads spin until all are done. Workers
//! that have the cores already wait there for each other, and for whatever else runs on the
//! machine. A step then takes 1.5 to 4.1 times as long (`benches/notes/training-steps.md`). The
//! pool's size is read from the environment once, and nothing else sets it.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Threads of that pool, its user included.
const VARIABLE: &str = "CANDLE_NUM_THREADS";

/// Begins this process again with a pool of none, unless the environment says how large it is. Must
/// be called before anything is done; continues as it is if the program's file is gone.
pub(crate) fn begin_without_pool() {
    let mut args = env::args_os();
    if let (None, Some(name), Ok(program)) =
        (env::var_os(VARIABLE), args.next(), env::current_exe())
    {
        // It returns only if it cannot.
        let _ = Command::new(program).arg0(name).args(args).env(VARIABLE, "1").exec();
    }
}
