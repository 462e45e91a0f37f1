//! The graph of a run, and where its workers' rows come from.

use std::{fmt, sync::Arc};

use lodestore_client::halo_buffer::HaloBuffer;
use lodestore_client::source::{PullStats, VersionTag};
use lodestore_client::{BatchLoader, ClientError, RowSource};
use lodestore_graph::{PartId, PartitionBook, topology::Topology};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::report::RowsFrom;

/// The graph to train on; rows are not part of it.
#[derive(Clone, Copy, Debug)]
pub struct TrainGraph<'a> {
    /// In-neighbours of all nodes.
    pub topology: &'a Topology,
    /// Which partition owns which node.
    pub book: &'a PartitionBook,
    /// Identity of the graph, which a schedule is bound to.
    pub uuid: [u8; 16],
    /// Description of the remote sources, for the report.
    pub rows_from: RowsFrom,
}

/// Sources of one worker's rows.
#[derive(Clone)]
pub struct WorkerSources {
    /// Rows of the worker's own partitions.
    pub local: Arc<dyn RowSource>,
    /// All other rows; only these count as communication.
    pub remote: Arc<dyn RowSource>,
    /// The same rows without any tier that `remote` has: measuring accuracy reads all of them once,
    /// and would sweep it.
    pub untiered: Arc<dyn RowSource>,
    /// Pulls into `remote` before the run, such as the first fill of a buffer: the first epoch of
    /// the process counts them.
    pub filled: PullStats,
    /// `remote`, if it is a buffer.
    buffer: Option<Arc<HaloBuffer>>,
}

/// The versions that the rows of a run are of. They are one, unless the run may mix versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowVersions {
    /// That of workers' own rows; `None` where these keep to no version.
    #[serde(with = "version_fields")]
    pub own: Option<VersionTag>,
    /// That of all other rows; `None` where these keep to no version.
    #[serde(with = "version_fields")]
    pub remote: Option<VersionTag>,
}

impl RowVersions {
    /// Returns the versions of the sources of a process, each worker's the same.
    ///
    /// # Errors
    /// [`TrainError::MixedVersions`] where rows of two versions would meet in a batch, and
    /// [`ClientError::Unpinned`] where rows keep to none, unless the run `mixes` versions.
    pub(crate) fn of(sources: &[WorkerSources], mixes: bool) -> Result<Self, TrainError> {
        let Some(first) = sources.first() else { return Ok(Self::default()) };
        let own = first.local.pinned_version();
        let remote = first.untiered.pinned_version();
        for of_worker in sources {
            let rows = [&of_worker.local, &of_worker.remote, &of_worker.untiered];
            let versions = rows.map(|source| source.pinned_version());
            if let Some(&other) = versions.iter().find(|&&version| !agree(own, version))
                && !mixes
            {
                return Err(TrainError::MixedVersions { own: name(own), remote: name(other) });
            }
        }
        if own.is_none() && !mixes {
            return Err(ClientError::Unpinned { what: "a training run" }.into());
        }
        Ok(Self { own, remote })
    }

    /// Returns whether all rows are of one version.
    #[must_use]
    pub fn is_one(self) -> bool {
        agree(self.own, self.remote)
    }

    /// Returns whether both may be the same versions: where a commit is unknown, numbers decide.
    pub(crate) fn agree(self, other: Self) -> bool {
        agree(self.own, other.own) && agree(self.remote, other.remote)
    }
}

fn agree(one: Option<VersionTag>, other: Option<VersionTag>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.may_be(other),
        (one, other) => one == other,
    }
}

impl fmt::Display for RowVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_one() {
            true => write!(f, "{}", name(self.own)),
            false => write!(f, "{} and {}", name(self.own), name(self.remote)),
        }
    }
}

/// Returns a version for messages.
fn name(version: Option<VersionTag>) -> String {
    version.map_or("the newest of each moment".to_owned(), |version| format!("version {version}"))
}

impl WorkerSources {
    /// Returns sources without a tier: own rows from `local`, all others from `remote`. A tier goes
    /// before [`Self::remote`].
    #[must_use]
    pub fn new(local: Arc<dyn RowSource>, remote: Arc<dyn RowSource>) -> Self {
        let untiered = Arc::clone(&remote);
        Self { local, remote, untiered, filled: PullStats::default(), buffer: None }
    }

    /// Puts MassiveGNN's buffer before the rows of others; `filled` are the pulls that filled it.
    #[must_use]
    pub fn with_buffer(self, buffer: Arc<HaloBuffer>, filled: PullStats) -> Self {
        let remote: Arc<dyn RowSource> = Arc::clone(&buffer) as _;
        Self { remote, filled, buffer: Some(buffer), ..self }
    }

    /// Returns the buffer before the rows of others.
    pub(crate) fn buffer(&self) -> Option<&Arc<HaloBuffer>> {
        self.buffer.as_ref()
    }

    /// Returns a loader of `tensor` for a worker that owns `owned`.
    pub(crate) fn loader(
        &self,
        tensor: &str,
        owned: &[PartId],
    ) -> Result<BatchLoader, ClientError> {
        BatchLoader::new(Arc::clone(&self.local), Arc::clone(&self.remote), tensor, owned)
    }

    /// Returns whether rows of others pass through a tier.
    pub(crate) fn has_tier(&self) -> bool {
        !std::ptr::addr_eq(Arc::as_ptr(&self.remote), Arc::as_ptr(&self.untiered))
    }

    /// Does as [`Self::loader`], past any tier.
    pub(crate) fn untiered_loader(
        &self,
        tensor: &str,
        owned: &[PartId],
    ) -> Result<BatchLoader, ClientError> {
        BatchLoader::new(Arc::clone(&self.local), Arc::clone(&self.untiered), tensor, owned)
    }
}

/// A version as JSON has it: its number, and the tag of its commit in hexadecimal digits.
mod version_fields {
    use lodestore_client::VersionTag;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Fields {
        number: u32,
        /// Absent where it is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        commit: Option<String>,
    }

    pub(super) fn serialize<S: Serializer>(
        version: &Option<VersionTag>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let commit = |tag: u64| (tag != 0).then(|| format!("{tag:016x}"));
        let fields = version.map(|it| Fields { number: it.number, commit: commit(it.tag) });
        fields.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<VersionTag>, D::Error> {
        let Some(Fields { number, commit }) = Option::deserialize(from)? else { return Ok(None) };
        let tag = match commit {
            Some(commit) => u64::from_str_radix(&commit, 16).map_err(D::Error::custom)?,
            None => 0,
        };
        Ok(Some(VersionTag { number, tag }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_they_are_written() {
        let own = Some(VersionTag { number: 3, tag: 0x9f1c });
        for remote in [own, Some(VersionTag::any(4)), None] {
            let versions = RowVersions { own, remote };
            let text = serde_json::to_string(&versions).unwrap();
            assert_eq!(serde_json::from_str::<RowVersions>(&text).unwrap(), versions, "{text}");
            assert!(text.contains(r#""own":{"number":3,"commit":"0000000000009f1c"}"#), "{text}");
        }
    }
}
