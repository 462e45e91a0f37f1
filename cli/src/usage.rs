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

/// Returns the first of `flags` that is given.
pub(crate) fn first_given<'a>(flags: &[(&'a str, bool)]) -> Option<&'a str> {
    flags.iter().find(|(_, is_given)| *is_given).map(|(flag, _)| *flag)
}

/// Fails for the first of `flags` that is given; `reason` says what it is for.
pub(crate) fn refuse_given(flags: &[(&str, bool)], reason: &str) -> Result<(), UsageError> {
    match first_given(flags) {
        Some(flag) => Err(UsageError::new(format!("{flag} {reason}"))),
        None => Ok(()),
    }
}
