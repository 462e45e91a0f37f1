//! Errors made where a check fails, and what follows from one.

use lodestore_schema::FailureCode;

use super::ClientError;
use crate::source::TensorInfo;

impl ClientError {
    /// Returns whether the connection that it came over is in step, and serves the next request as
    /// well. A server may close it all the same.
    pub(crate) fn leaves_connection(&self) -> bool {
        let Self::Refused { failure, .. } = self else { return false };
        !matches!(failure.code, FailureCode::Unauthenticated | FailureCode::Stopping)
    }

    /// Returns the error for no tensor `name` among those that are `known`.
    pub(crate) fn unknown_tensor<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<_> = known.collect();
        Self::UnknownTensor { name: name.to_owned(), known: known.join(", ") }
    }

    /// Checks that a tier is for rows as `tensor` has them.
    pub(crate) fn check_tier(tensor: &TensorInfo, found: usize) -> Result<(), Self> {
        let expected = tensor.row_bytes();
        if expected == found {
            return Ok(());
        }
        Err(Self::TierWidth { tensor: tensor.name.clone(), expected, found })
    }

    /// Checks that a buffer of `found` bytes holds exactly `n_ids` rows.
    pub(crate) fn check_buffer(
        tensor: &str,
        n_ids: usize,
        row_bytes: usize,
        found: usize,
    ) -> Result<(), Self> {
        let expected = n_ids.saturating_mul(row_bytes);
        if expected == found {
            return Ok(());
        }
        Err(Self::BufferSize { tensor: tensor.to_owned(), n_ids, expected, found })
    }
}
