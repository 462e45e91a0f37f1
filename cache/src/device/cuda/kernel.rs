//! The gather kernel: compiled once per device, launched for every list of moves.

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

use super::super::DeviceError;
use super::failed;

const SOURCE: &str = include_str!("gather.cu");

/// Threads of a block: eight warps.
const BLOCK_THREADS: u32 = 256;
/// The kernel goes through longer lists in steps.
const MOST_BLOCKS: u32 = 1 << 16;
const WARP_THREADS: u32 = 32;

/// Fields of a list of rows; the numbers are those of `gather.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum ListKind {
    /// A source or `NO_SLOT` for each target, which follow each other.
    Sources = 0,
    /// A target for each source, which follow each other from row 0.
    Targets = 1,
    /// A source and a target for each move.
    Pairs = 2,
}

/// Rows to be moved, as they are listed on the device.
pub(super) struct List<'a> {
    words: &'a CudaSlice<u32>,
    n_moves: u32,
    kind: ListKind,
    first: u32,
}

impl<'a> List<'a> {
    /// Returns a list of `n_moves` of this kind; `first` is the target of the first source, where a
    /// list has sources.
    pub(super) fn new(
        words: &'a CudaSlice<u32>,
        n_moves: usize,
        kind: ListKind,
        first: u32,
    ) -> Self {
        Self { words, n_moves: n_moves as u32, kind, first }
    }
}

/// The compiled kernel of `gather.cu`.
pub(super) struct MoveRows {
    function: CudaFunction,
}

impl MoveRows {
    /// Compiles for the oldest architecture that the compiler knows. The driver translates the
    /// result for the device, once per process.
    pub(super) fn compile(context: &Arc<CudaContext>) -> Result<Self, DeviceError> {
        let name = Some("gather.cu".to_owned());
        let ptx = compile_ptx_with_opts(SOURCE, CompileOptions { name, ..Default::default() })
            .map_err(|error| DeviceError::Kernel { log: log_of(&error) })?;
        let module = context.load_module(ptx).map_err(failed("load the gather kernel"))?;
        let function = module.load_function("move_rows").map_err(failed("find the kernel"))?;
        Ok(Self { function })
    }

    /// Begins to copy the rows of `list` from one block to the other, after everything that was
    /// begun on these three and on `stream`.
    ///
    /// # Safety
    ///
    /// When the stream gets to it, the list holds its words. Each of its rows, of `row_bytes`, is
    /// wholly in `from` or `to`; and no two have the same target.
    #[expect(unsafe_code, reason = "a kernel trusts its arguments")]
    pub(super) unsafe fn launch(
        &self,
        stream: &CudaStream,
        from: &CudaSlice<u8>,
        to: &mut CudaSlice<u8>,
        list: &List<'_>,
        row_bytes: u32,
    ) -> Result<(), DriverError> {
        let List { words, n_moves, kind, first } = list;
        if *n_moves == 0 {
            return Ok(());
        }
        let n_lanes = lanes_per_row(row_bytes);
        let n_blocks = n_moves.div_ceil(BLOCK_THREADS / n_lanes).min(MOST_BLOCKS);
        let config = LaunchConfig {
            grid_dim: (n_blocks, 1, 1),
            block_dim: (BLOCK_THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        let kind = *kind as u32;
        let mut launch = stream.launch_builder(&self.function);
        launch.arg(from).arg(to).arg(*words).arg(n_moves);
        launch.arg(&kind).arg(first).arg(&row_bytes).arg(&n_lanes);
        // SAFETY: these are the eight parameters of `move_rows` in their order and types. It reads
        // the list and the rows in it, and writes rows of `to`, which the caller vouches for. The
        // allocations outlive the launch: they are freed on their stream after the events that
        // cudarc records here.
        unsafe { launch.launch(config) }?;
        Ok(())
    }
}

/// Returns the number of threads that share a row, at most a warp. There is one for each access of
/// the widest kind that all rows allow, rounded up to a power of two.
fn lanes_per_row(row_bytes: u32) -> u32 {
    let unit = 1 << row_bytes.trailing_zeros().min(4);
    row_bytes.div_ceil(unit).next_power_of_two().min(WARP_THREADS)
}

fn log_of(error: &CompileError) -> String {
    match error {
        CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_follow_the_width() {
        for (row_bytes, lanes) in
            [(1, 1), (3, 4), (4, 1), (16, 1), (20, 8), (64, 4), (100, 32), (400, 32), (1 << 30, 32)]
        {
            assert_eq!(lanes_per_row(row_bytes), lanes, "{row_bytes}");
        }
    }
}
