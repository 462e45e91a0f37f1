//! Where a figure is measured.

use std::path::Path;

use anyhow::{Context, Result};

use super::graphs::Size;
use super::papers::Model;
use super::recording::Recording;
use super::runs::Run;
use lode_cli::console::Console;

/// Setting of a figure's measurement.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    pub(super) model: &'a Model,
    pub(super) size: Size,
    pub(super) epochs: u32,
    pub(super) repeats: u32,
    /// Computation in place of the models.
    pub(super) recording: Option<&'a Recording>,
    pub(super) scratch: &'a Path,
    pub(super) console: &'a Console,
}

impl Bench<'_> {
    /// Returns the middle one of all repeats of `run`.
    pub(super) fn repeated(&self, run: &dyn Fn() -> Result<Run>) -> Result<Run> {
        let runs = (0..self.repeats).map(|_| run()).collect::<Result<_>>()?;
        Run::middle_of(runs).context("no repeat of a run")
    }
}
