//! The version that rows are of: its number, and the commit that made it.

use std::fmt;
use std::str::FromStr;

use lodestore_store::VersionId;
use serde::{Deserialize, Serialize};

/// A version of a graph: a number, and a tag of the commit that made it.
///
/// Two writers may make the same number, so that the number alone names no version. As text it is
/// `3:9f1c0a33b2d4e5f6`, or `3` where the commit is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "VersionText", try_from = "VersionText")]
pub struct RowVersion {
    /// The number.
    pub number: u32,
    /// The tag of its commit; 0 where it is unknown, and for the version of an import.
    pub commit: u64,
}

/// A text that is no version.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected a version such as 3 or 3:9f1c0a33b2d4e5f6, found {0:?}")]
pub struct VersionTextError(String);

/// A version as JSON has it.
#[derive(Serialize, Deserialize)]
struct VersionText {
    number: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
}

impl RowVersion {
    /// Returns the version of this number, whichever commit made it.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        Self { number, commit: 0 }
    }

    /// Returns whether both may be the same version: where a commit is unknown, the number decides.
    #[must_use]
    pub fn agrees(self, other: Self) -> bool {
        let commits_agree = self.commit == other.commit || self.commit == 0 || other.commit == 0;
        self.number == other.number && commits_agree
    }

    /// Returns the tag of the commit as 16 hexadecimal digits, where it is known.
    #[must_use]
    pub fn commit_text(self) -> Option<String> {
        (self.commit != 0).then(|| format!("{:016x}", self.commit))
    }
}

impl From<VersionId> for RowVersion {
    fn from(version: VersionId) -> Self {
        Self { number: version.number, commit: version.commit.tag() }
    }
}

impl fmt::Display for RowVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        match self.commit_text() {
            Some(commit) => write!(f, ":{commit}"),
            None => Ok(()),
        }
    }
}

impl FromStr for RowVersion {
    type Err = VersionTextError;

    fn from_str(text: &str) -> Result<Self, VersionTextError> {
        let bad = || VersionTextError(text.to_owned());
        let (number, commit) = match text.split_once(':') {
            Some((number, commit)) => (number, commit_of(commit).ok_or_else(bad)?),
            None => (text, 0),
        };
        Ok(Self { number: number.parse().map_err(|_| bad())?, commit })
    }
}

impl From<RowVersion> for VersionText {
    fn from(version: RowVersion) -> Self {
        Self { number: version.number, commit: version.commit_text() }
    }
}

impl TryFrom<VersionText> for RowVersion {
    type Error = VersionTextError;

    fn try_from(text: VersionText) -> Result<Self, VersionTextError> {
        let commit = match text.commit {
            Some(commit) => commit_of(&commit).ok_or(VersionTextError(commit))?,
            None => 0,
        };
        Ok(Self { number: text.number, commit })
    }
}

fn commit_of(text: &str) -> Option<u64> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_they_are_written() {
        for version in [RowVersion::of_number(7), RowVersion { number: 3, commit: 0x9f1c }] {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        assert_eq!(RowVersion { number: 3, commit: 0x9f1c }.to_string(), "3:0000000000009f1c");
        for bad in ["", "x", "3:", "3:12", "-1", "3:+00000000000001f", "4294967296"] {
            assert!(bad.parse::<RowVersion>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_number_of_another_commit_is_another_version() {
        let version = RowVersion { number: 3, commit: 5 };
        assert!(version.agrees(version) && version.agrees(RowVersion::of_number(3)));
        assert!(!version.agrees(RowVersion { number: 3, commit: 6 }));
        assert!(!version.agrees(RowVersion { number: 2, commit: 5 }));
    }
}
