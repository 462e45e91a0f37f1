//! Open files of a simulated device.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::CrashDevice;
use super::fault::{Fault, Operation};
use super::state::NodeIdx;
use crate::file_system::{FileReader, FileWriter};

/// A file that is read; it stays readable when its name goes.
#[derive(Debug)]
pub(super) struct CrashReader {
    pub(super) device: CrashDevice,
    pub(super) node: NodeIdx,
    pub(super) is_pinned: AtomicBool,
}

/// A file that is written.
#[derive(Debug)]
pub(super) struct CrashWriter {
    pub(super) device: CrashDevice,
    pub(super) node: NodeIdx,
}

impl FileReader for CrashReader {
    fn len_bytes(&self) -> io::Result<u64> {
        let mut state = self.device.lock();
        state.perform(Operation::Length, |state| Ok(state.content(self.node)?.bytes().len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.device.lock();
        let fault = state.strikes(Operation::Read)?;
        let bytes = state.content(self.node)?.bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let mut n = buffer.len().min(bytes.len() - start);
        match fault {
            None => {}
            // Never 0, which would mean the end.
            Some(Fault::ShortRead) => n = n.div_ceil(2),
            Some(fault) => return Err(fault.error()),
        }
        buffer[..n].copy_from_slice(&bytes[start..start + n]);
        Ok(n)
    }

    fn as_file(&self) -> Option<&File> {
        None
    }

    fn pin(&self) -> io::Result<()> {
        let mut state = self.device.lock();
        state.perform(Operation::Pin, |state| {
            if !self.is_pinned.swap(true, Ordering::Relaxed) {
                *state.n_pins(self.node)? += 1;
            }
            Ok(())
        })
    }

    fn is_pinned(&self) -> io::Result<bool> {
        let mut state = self.device.lock();
        state.perform(Operation::Pin, |state| {
            let own = u32::from(self.is_pinned.load(Ordering::Relaxed));
            Ok(*state.n_pins(self.node)? > own)
        })
    }
}

impl Drop for CrashReader {
    fn drop(&mut self) {
        if self.is_pinned.load(Ordering::Relaxed)
            && let Ok(n_pins) = self.device.lock().n_pins(self.node)
        {
            *n_pins -= 1;
        }
    }
}

impl FileWriter for CrashWriter {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.device.lock();
        let Some(fault) = state.strikes(Operation::Append)? else {
            state.content(self.node)?.append(bytes);
            return Ok(());
        };
        // What is refused has written something; what was lost with the power, anything.
        let written = match fault {
            Fault::PowerLoss => bytes.len(),
            _ => state.dice.below(bytes.len() as u64 + 1) as usize,
        };
        state.content(self.node)?.append(&bytes[..written]);
        Err(fault.error())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.device.sync_node(self.node)
    }
}
