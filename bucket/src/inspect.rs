//! Figures of the content of a bucket.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lodestore_graph::PartId;
use serde::Serialize;

use crate::bucket::{Bucket, N_PARALLEL};
use crate::error::BucketError;
use crate::publication::{Publication, Published};

/// A bucket at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketSummary {
    /// Its URL.
    pub url: String,
    /// Identity of the graph.
    pub uuid: String,
    /// The newest version that every partition has published; `null` without one.
    pub version: Option<u32>,
    /// This version and those before it that every partition still has, the newest first: as many
    /// as were asked for.
    pub versions: Vec<u32>,
    /// Its partitions.
    pub parts: Vec<BucketPart>,
}

/// The newest publication of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketPart {
    /// The partition.
    pub part: u16,
    /// Number of the publication; 0 without one.
    pub publication: u64,
    /// Its version; 0 without one.
    pub version: u32,
    /// Files of the version.
    pub files: usize,
    /// Bytes of these.
    pub bytes: u64,
}

impl Bucket {
    /// Returns what is published, with the newest `n_versions` complete versions.
    pub fn inspect(&self, n_versions: usize) -> Result<BucketSummary, BucketError> {
        self.run(async {
            let graph = self.graph().await?;
            let newest = |part| async move {
                Ok::<_, BucketError>((part, self.newest(graph, part, 0).await?))
            };
            let newest: Vec<(PartId, Option<(Published, Bytes)>)> =
                stream::iter(graph.parts()).map(newest).buffered(N_PARALLEL).try_collect().await?;
            let mut parts = Vec::new();
            for (part, newest) in newest {
                let live = newest.as_ref().and_then(|(published, _)| published.live());
                parts.push(BucketPart {
                    part: part.0,
                    publication: live.map_or(0, |it| it.sequence),
                    version: live.map_or(0, Publication::version),
                    files: live.map_or(0, |it| it.files.len()),
                    bytes: live.map_or(0, Publication::n_bytes),
                });
            }
            let versions = self.complete_versions(graph, n_versions.max(1)).await?;
            let version = versions.first().copied();
            let (url, uuid) = (self.url().to_owned(), graph.graph.to_string());
            Ok(BucketSummary { url, uuid, version, versions, parts })
        })
    }
}
