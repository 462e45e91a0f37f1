//! Requests of volatile tensors: rows in memory alone, each with a stamp.

use std::time::Duration;

use crate::error::Decoded;
use crate::lodestore_capnp::{declare, publish, pull_volatile};
use crate::name::Name;

/// A volatile tensor that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declare {
    /// Its name, apart from those of stored tensors.
    pub name: Name,
    /// Name of its element type.
    pub dtype: Name,
    /// Elements of a row.
    pub width: u32,
    /// Rows that are claimed together, counted from the start of each partition; 0 for all of one.
    pub range_rows: u32,
}

/// A piece of a publication, less its body: ids and then as many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Name of the tensor.
    pub name: Name,
    /// Number of ids, and of rows.
    pub n_rows: u32,
    /// When the rows are of.
    pub stamp: u32,
}

/// A pull of volatile rows, less its body: ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullVolatile {
    /// Name of the tensor.
    pub name: Name,
    /// Rows with a lower stamp are not there.
    pub min_stamp: u32,
    /// How long rows that are not there are waited for, in whole milliseconds.
    pub wait: Duration,
}

impl Declare {
    pub(super) fn write(self, mut to: declare::Builder<'_>) {
        to.set_name(self.name.as_str());
        to.set_dtype(self.dtype.as_str());
        to.set_width(self.width);
        to.set_range_rows(self.range_rows);
    }

    pub(super) fn read(from: declare::Reader<'_>) -> Decoded<Self> {
        Ok(Self {
            name: Name::read(from.get_name())?,
            dtype: Name::read(from.get_dtype())?,
            width: from.get_width(),
            range_rows: from.get_range_rows(),
        })
    }
}

impl Publish {
    pub(super) fn write(self, mut to: publish::Builder<'_>) {
        to.set_name(self.name.as_str());
        to.set_n_rows(self.n_rows);
        to.set_stamp(self.stamp);
    }

    pub(super) fn read(from: publish::Reader<'_>) -> Decoded<Self> {
        let name = Name::read(from.get_name())?;
        Ok(Self { name, n_rows: from.get_n_rows(), stamp: from.get_stamp() })
    }
}

impl PullVolatile {
    pub(super) fn write(self, mut to: pull_volatile::Builder<'_>) {
        to.set_name(self.name.as_str());
        to.set_min_stamp(self.min_stamp);
        to.set_wait_ms(u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX));
    }

    pub(super) fn read(from: pull_volatile::Reader<'_>) -> Decoded<Self> {
        let name = Name::read(from.get_name())?;
        let wait = Duration::from_millis(from.get_wait_ms().into());
        Ok(Self { name, min_stamp: from.get_min_stamp(), wait })
    }
}
