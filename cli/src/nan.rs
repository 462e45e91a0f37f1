//! The flag that says what to do with NaN.

use clap::ValueEnum;
use lodestore_store::nan::NanPolicy;

/// Policies for NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Nan {
    /// End with an error that names row and column, before the graph is there or changes.
    Refuse,
    /// Store every row byte for byte.
    Keep,
}

impl From<Nan> for NanPolicy {
    fn from(nan: Nan) -> Self {
        match nan {
            Nan::Refuse => Self::Refuse,
            Nan::Keep => Self::Keep,
        }
    }
}
