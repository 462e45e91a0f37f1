//! Where a figure is measured.

use std::path::Path;

use super::graphs::Size;
use super::papers::Model;
use crate::console::Console;

/// Where a figure is measured.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    pub(super) model: &'a Model,
    pub(super) size: Size,
    pub(super) epochs: u32,
    pub(super) scratch: &'a Path,
    pub(super) console: &'a Console,
}
