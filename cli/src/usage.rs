//! A mistake in the arguments: exit code 2, before any file is opened.

use std::fmt::Display;

use thiserror::Error;

/// A flag, or several together, that cannot work.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct UsageError(String);

impl UsageError {
    /// Returns an error with this message, which says what was expected and what was found.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Returns an error with the message of a library's own check of its settings.
    pub fn of(error: impl Display) -> Self {
        Self(error.to_string())
    }
}
