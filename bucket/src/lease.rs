//! Leases of uploads: which chunks without a publication garbage collection leaves, and why no
//! chunk is used that it removes.
//!
//! A chunk is named by the hash of its bytes and the number of the upload that has written it. An
//! upload is drawn by a writer for some time: for the partitions that it publishes within
//! [`OWN_MAX`], and for a partition that takes longer until it is published. Its lease is the object
//! `pushing/NUMBER`, which the writer renews before [`HELD_MAX`] have passed. It removes the lease
//! after its last publication, and never uses the number again.
//!
//! Garbage collection looks in this order: at leases, at publications, at chunks. It leaves the
//! chunks of an upload whose lease is younger than the grace period. It removes those of another
//! upload, D, that no publication names. That is safe because
//!
//! 1. nobody writes such a chunk of D any more: its writer had removed the lease, or not renewed it
//!    for longer than [`HELD_MAX`], and knows so by its own clocks. Others write again what the
//!    bucket has lost of the newest publication, which names it;
//! 2. for the same reason whatever the writer of D has published was there when publications were
//!    looked at;
//! 3. later publications name a chunk of D only where the publication before does, which is created
//!    before them, or where they continue D. Who continues an upload writes its number into its own
//!    lease first, and then finds the lease of D younger than [`HELD_MAX`]. So the look at leases
//!    has found one of the two.
//!
//! The difference between the grace period and [`HELD_MAX`] is room for clocks and slow requests.
//! Chunks of releases that did not number their uploads are named by publications only, or garbage.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::error::BucketError;
use crate::layout::{UPLOADS_PREFIX, UploadId, upload_key, upload_of_key};
use crate::publication::{lease_from_bytes, lease_to_bytes};

/// Longest time for which a writer relies on its lease without renewing it.
pub(crate) const HELD_MAX: Duration = Duration::from_secs(6 * 3600);
/// Time after which it is renewed.
const RENEW_AFTER: Duration = Duration::from_secs(600);
/// Longest time for which an upload takes further partitions.
const OWN_MAX: Duration = Duration::from_secs(3600);
/// Most bytes of a lease.
const LEASE_BYTES_MAX: u64 = 16 << 20;

/// An upload of this process.
#[derive(Debug)]
pub(crate) struct UploadLease {
    id: UploadId,
    /// Uploads whose chunks it uses as its own.
    continued: BTreeSet<UploadId>,
    drawn: Moment,
    renewed: Moment,
}

/// A moment by both clocks: one does not run while the machine sleeps, the other can be set back.
#[derive(Clone, Copy, Debug)]
struct Moment(Instant, SystemTime);

impl Moment {
    fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// Returns the longer of the times since.
    fn elapsed(self) -> Duration {
        self.0.elapsed().max(self.1.elapsed().unwrap_or_default())
    }
}

impl UploadLease {
    pub(crate) fn id(&self) -> UploadId {
        self.id
    }

    /// Returns whether a chunk of an upload may be taken for being there.
    pub(crate) fn covers(&self, upload: UploadId) -> bool {
        upload == self.id || self.continued.contains(&upload)
    }

    /// Returns whether it was renewed lately enough to be relied on.
    pub(crate) fn is_recent(&self) -> bool {
        self.renewed.elapsed() < HELD_MAX
    }

    /// Lets it be renewed so much earlier.
    #[cfg(test)]
    pub(crate) fn renewed_before(&mut self, time: Duration) {
        self.renewed.1 -= time;
    }

    /// Returns whether it takes no further partition.
    pub(crate) fn is_old(&self) -> bool {
        self.drawn.elapsed() > OWN_MAX
    }
}

impl Bucket {
    /// Draws an upload.
    pub(crate) async fn draw_upload(&self) -> Result<UploadLease, BucketError> {
        let id = UploadId(Uuid::new_v4().as_u64_pair().1);
        let (continued, drawn) = (BTreeSet::new(), Moment::now());
        let mut lease = UploadLease { id, continued, drawn, renewed: drawn };
        self.write_lease(&mut lease).await?;
        Ok(lease)
    }

    async fn write_lease(&self, lease: &mut UploadLease) -> Result<(), BucketError> {
        // The age counts from some moment after this one.
        let before = Moment::now();
        let continued: Vec<UploadId> = lease.continued.iter().copied().collect();
        let bytes = Bytes::from(lease_to_bytes(&continued));
        self.write(&upload_key(lease.id), bytes).await?;
        lease.renewed = before;
        Ok(())
    }

    /// Renews a lease that was not renewed for some time; does nothing for one that was lost.
    pub(crate) async fn renew(&self, lease: &mut UploadLease) -> Result<(), BucketError> {
        let is_due = lease.renewed.elapsed() > RENEW_AFTER;
        match is_due && self.holds(lease).await? {
            true => self.write_lease(lease).await,
            false => Ok(()),
        }
    }

    /// Returns whether chunks of an upload can be published: its lease was renewed in time, and
    /// nobody has removed it.
    pub(crate) async fn holds(&self, lease: &UploadLease) -> Result<bool, BucketError> {
        let is_there = self.has(&upload_key(lease.id)).await?;
        Ok(is_there && lease.is_recent())
    }

    /// Ends an upload, all of whose publications are made.
    pub(crate) async fn end_upload(&self, lease: UploadLease) {
        if let Err(error) = self.remove(&upload_key(lease.id)).await {
            tracing::debug!(%error, "the lease of an upload stays until it is old");
        }
    }

    /// Continues the uploads among `candidates` that were cut off lately, or are under way.
    pub(crate) async fn continue_uploads(
        &self,
        lease: &mut UploadLease,
        candidates: &BTreeSet<UploadId>,
    ) -> Result<(), BucketError> {
        let claimed = self.leased_uploads(HELD_MAX).await?;
        let is_new = |upload: &UploadId| !lease.covers(*upload) && claimed.contains_key(upload);
        let claimed: BTreeSet<UploadId> = candidates.iter().copied().filter(is_new).collect();
        if claimed.is_empty() {
            return Ok(());
        }
        lease.continued.extend(&claimed);
        self.write_lease(lease).await?;
        // Garbage collection has found this lease, or those that are still there.
        let there = self.leased_uploads(HELD_MAX).await?;
        let id = lease.id;
        let is_held = |upload: &UploadId| {
            let leases = there.get(upload);
            leases.is_some_and(|leases| leases.iter().any(|it| *it != id))
        };
        lease.continued.retain(|upload| !claimed.contains(upload) || is_held(upload));
        Ok(())
    }

    /// Returns the uploads that leases up to an age hold, each with these leases.
    pub(crate) async fn leased_uploads(
        &self,
        age_max: Duration,
    ) -> Result<BTreeMap<UploadId, Vec<UploadId>>, BucketError> {
        let mut held = BTreeMap::<UploadId, Vec<UploadId>>::new();
        for (key, lease, age) in self.leases().await? {
            if age > age_max {
                continue;
            }
            // It ended since it was listed.
            let Some(bytes) = self.read(&key, LEASE_BYTES_MAX).await? else { continue };
            let continued = lease_from_bytes(&bytes).map_err(|error| self.unsealed(&key, error))?;
            for upload in continued.into_iter().chain([lease]) {
                held.entry(upload).or_default().push(lease);
            }
        }
        Ok(held)
    }

    /// Removes the leases that are older than the grace period.
    pub(crate) async fn remove_old_leases(&self, grace: Duration) -> Result<(), BucketError> {
        for (key, _, age) in self.leases().await? {
            if age > grace {
                self.remove(&key).await?;
            }
        }
        Ok(())
    }

    /// Returns the key, the upload and the age of each lease.
    async fn leases(&self) -> Result<Vec<(String, UploadId, Duration)>, BucketError> {
        // One of the future, after the clock was set back, is held.
        let listed = self.list(UPLOADS_PREFIX, self.time().await?).await?;
        let lease = |it: crate::bucket::Listed| {
            let upload = upload_of_key(&it.key)?;
            Some((it.key, upload, it.age))
        };
        Ok(listed.into_iter().filter_map(lease).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gc_plan::GRACE;

    #[test]
    fn a_lease_that_is_relied_on_is_younger_than_what_is_collected() {
        assert!(RENEW_AFTER < HELD_MAX && OWN_MAX < HELD_MAX && 2 * HELD_MAX < GRACE);
    }
}
