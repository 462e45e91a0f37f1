//! A pull at a shard: admission, then rows of this shard and of the other owners.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use glommio::sync::StaticPermit;
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::{CHUNK_BYTES, IDS_PER_PULL_MAX, REPLY_BODY_BYTES_MAX};
use lodestore_schema::name::Name;
use lodestore_schema::request::PullKind;
use lodestore_schema::tags::{graph_tag, tensor_tag};
use lodestore_schema::versions::VersionTag;
use lodestore_schema::{Failure, FailureCode, Request, RequestBody, Versions};
use lodestore_store::{GraphHandle, StoreError};

use super::Shard;
use crate::buffers::{Buffers, HEAD_ROOM};
use crate::cut::{Cut, PartCut, commit_tag, distinct_parts};
use crate::deadline::with_deadline;
use crate::error::{failure, store_failure};
use crate::limits::{BULK_BYTES_PER_SHARD, IN_FLIGHT_BYTES_PER_SHARD};
use crate::mesh::{GatherRequest, ShardRequest};
use crate::pins::{PINS_MAX, Use};
use crate::reads::{Progress, PullOrder, ReadTurn};
use crate::rows::{ShardRows, Want, wrong_server};
use crate::stats::count;

/// Ids of one owner shard, and their positions in the request.
type Share = (Vec<NodeId>, Vec<usize>);

impl Shard {
    /// Returns the row length of a tensor that [`Self::admit_pull`] has checked.
    pub(crate) fn row_bytes(&self, tensor: u16) -> usize {
        self.tensors[usize::from(tensor)].row_bytes
    }

    /// Checks a pull before its ids are read. Reserves memory for the pull until the permit is
    /// dropped, and lends buffers within that.
    pub(crate) fn admit_pull(
        &self,
        tensor: u16,
        kind: PullKind,
        body_bytes: usize,
    ) -> Result<(StaticPermit, Buffers), Failure> {
        let rows = self.tensor(tensor)?;
        check_ids(body_bytes)?;
        // Ids, a chunk of the reply, and three times the ids for keys and positions.
        let n_bytes = 4 * body_bytes + HEAD_ROOM + CHUNK_BYTES.max(rows.row_bytes);
        Ok((self.take_room(kind, n_bytes)?, self.buffers.lend(n_bytes)))
    }

    /// Queues a new pull for disk reads, and returns its turn.
    pub(crate) fn read_turn(&self, kind: PullKind, deadline: Instant) -> ReadTurn {
        let (arrived, progress) = (Instant::now(), Progress::New);
        self.reads.turn(&PullOrder { kind, arrived, deadline, progress })
    }

    /// Gathers rows of any shard: directly if this shard owns them all, else split by owner and
    /// merged.
    pub(crate) async fn gather(
        &self,
        tensor: u16,
        want: Want<'_>,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<(), Failure> {
        let rows = &self.tensors[usize::from(tensor)];
        if rows.gather(&self.plan, want, ids, out).await? {
            return Ok(());
        }
        let Want { turn, cut } = want;
        // Rows of other shards are buffered here, besides `out`, until they are merged.
        let _room = self.take_room(turn.order().kind, size_of_val(ids) + out.len())?;
        let asks = self.split(tensor, ids)?.into_iter().enumerate();
        let asks = asks.filter(|(_, (ids, _))| !ids.is_empty());
        let n_rows = ids.len();
        let asks = asks.map(|(owner, (ids, positions))| async move {
            let rows = if owner == self.id {
                self.gather_owned(tensor, want, &ids).await
            } else {
                count(&self.counters().forwarded_rows, ids.len());
                let n_rows_after = turn.n_rows_after.get() * ids.len() / n_rows;
                let (order, cut) = (turn.order(), cut.cloned());
                let request = GatherRequest::new(tensor, ids, order, n_rows_after, cut);
                self.mesh.ask(owner, ShardRequest::Gather(request)).await
            };
            rows.map(|rows| (rows, positions))
        });
        let row_bytes = rows.row_bytes;
        for answer in join_all(asks).await {
            let (rows, positions) = answer?;
            for (row, position) in rows.chunks_exact(row_bytes).zip(positions) {
                out[position * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
        // Other shards may have read from disk for this pull.
        turn.set_begun();
        Ok(())
    }

    /// Returns the number of tensors.
    pub(crate) fn n_tensors(&self) -> u16 {
        u16::try_from(self.tensors.len()).unwrap_or(u16::MAX)
    }

    /// Gathers rows of this shard for another shard, within this shard's memory. The permit is held
    /// until the rows are sent.
    pub(super) async fn gather_asked(
        &self,
        wanted: &GatherRequest,
    ) -> Result<(Vec<u8>, StaticPermit), Failure> {
        if wanted.is_given_up() {
            return Err(failure(FailureCode::Deadline, "the request for these rows has ended"));
        }
        let (tensor, ids) = (wanted.tensor, &wanted.ids[..]);
        let n_bytes = size_of_val(ids) * 4 + ids.len() * self.row_bytes(tensor);
        let room = self.take_room(wanted.order.kind, n_bytes)?;
        let turn = self.reads.turn(&wanted.order);
        turn.n_rows_after.set(wanted.n_rows_after);
        let want = Want { turn: &turn, cut: wanted.cut.as_ref() };
        let gather = self.gather_owned(tensor, want, ids);
        Ok((with_deadline(wanted.order.deadline, gather).await?, room))
    }

    /// Fails if a request was meant for another graph, for another tensor than the one at its
    /// position, or for a volatile tensor of another shape. A client that does not know the
    /// tensor's uuid names only the graph.
    pub(crate) fn check_meant(&self, request: &Request) -> Result<(), Failure> {
        let partitions = &self.plan.partitions;
        let (asked, graph) = (request.graph, partitions.graph());
        if asked == 0 || asked == graph_tag(graph) {
            return Ok(());
        }
        let tensor = |position: u16| {
            let tensor = partitions.tensors.get(usize::from(position));
            tensor.map(|it| tensor_tag(graph, it.description.uuid))
        };
        let volatile = |name: &Name| self.plan.volatile.tag_of(graph, name.as_str());
        let (expected, what) = match &request.body {
            RequestBody::Pull { tensor: position, .. } => (tensor(*position), "tensor"),
            RequestBody::Push(push) => (tensor(push.tensor), "tensor"),
            RequestBody::Claim { tensor } => (volatile(tensor), "volatile tensor"),
            RequestBody::Publish(publish) => (volatile(&publish.name), "volatile tensor"),
            RequestBody::PullVolatile(pull) => (volatile(&pull.name), "volatile tensor"),
            _ => (None, "graph"),
        };
        if expected == Some(asked) {
            return Ok(());
        }
        let message = match what {
            "graph" => {
                "this server now serves another graph; ask the server of your graph for its address"
                    .to_owned()
            }
            what => format!(
                "this server now serves another graph, or the {what} has moved to another position \
                 or was created again; ask `describe`"
            ),
        };
        Err(failure(FailureCode::Elsewhere, message))
    }

    /// Returns the versions that a pull reads in all of its chunks: a pinned version, the versions
    /// that it names, or the newest.
    ///
    /// Fails with `otherVersion` for a version that is not committed here, or no longer kept; with
    /// `behind` if a partition has a lower version than the pull requires; with `otherHistory` if
    /// another commit made that version.
    pub(crate) async fn cut_of(
        &self,
        asked: Asked<'_>,
        ids: &[NodeId],
    ) -> Result<Arc<Cut>, Failure> {
        let Asked { version, floors, exactly } = asked;
        let cut = match version {
            0 if exactly => self.exactly(floors, ids).await?,
            0 => self.plan.partitions.served(),
            version => self.pin(version).await?,
        };
        self.check_floors(ids, floors, &cut).await?;
        Ok(cut)
    }

    /// Returns exactly these versions of the partitions of `ids`.
    async fn exactly(&self, wanted: &Versions, ids: &[NodeId]) -> Result<Arc<Cut>, Failure> {
        let partitions = &self.plan.partitions;
        let served = partitions.served();
        if served.is_exactly(wanted) {
            return Ok(served);
        }
        let parts = distinct_parts(&partitions.book, ids);
        let mut others = Vec::new();
        for part in parts {
            let number = wanted.of(part.0).number;
            // Version 0 stands for the newest.
            if number != 0 && served.version(part).is_some_and(|it| it.number != number) {
                others.push((part, number));
            }
        }
        if others.is_empty() {
            return Ok(served);
        }
        let partitions = Arc::clone(partitions);
        self.call_store(move |live| {
            let n_tensors = partitions.tensors.len();
            let mut changed = Vec::new();
            for (part, number) in others {
                let kept = partitions.pins.peek(number);
                let kept = kept.and_then(|cut| cut.part(part).cloned());
                let found = kept.or_else(|| PartCut::at(live, part, number, n_tensors));
                let newest = live.part_version(part).unwrap_or(0);
                changed.push((part, Some(found.ok_or_else(|| no_version(number, newest))?)));
            }
            Ok(Arc::new(served.with(changed)))
        })
        .await?
    }

    /// Returns one version on all partitions. A partition that was added since may lack the
    /// version; the other partitions still have it.
    async fn pin(&self, version: u32) -> Result<Arc<Cut>, Failure> {
        let partitions = &self.plan.partitions;
        let known = partitions.pins.get(version, Instant::now());
        let parts = partitions.parts();
        if let Some(pinned) = &known
            && parts.iter().all(|part| pinned.part(*part).is_some())
        {
            return Ok(Arc::clone(pinned));
        }
        let pins = Arc::clone(partitions);
        let pin = move |live: &Arc<GraphHandle>| {
            let pinned = live.pin(version)?;
            let pinned = Arc::new(Cut::pinned(live, &pinned, pins.tensors.len()));
            Ok(pins.pins.keep(version, &pinned, Use::Reader, Instant::now()).then_some(pinned))
        };
        match (self.call_store(pin).await?, known) {
            (Ok(Some(pinned)), _) => Ok(pinned),
            (Ok(None), _) => {
                let message = format!(
                    "{PINS_MAX} versions are pinned already, the limit; wait until readers of some \
                     version end, or read the newest"
                );
                Err(failure(FailureCode::Overloaded, message))
            }
            (Err(StoreError::NoVersion { .. }), Some(known)) => Ok(known),
            (Err(StoreError::NoVersion { newest, .. }), None) => Err(no_version(version, newest)),
            (Err(error), _) => Err(store_failure(error)),
        }
    }

    /// Fails if a cut has lower versions than a pull requires of the partitions of its rows, or
    /// versions of other commits.
    async fn check_floors(
        &self,
        ids: &[NodeId],
        floors: &Versions,
        cut: &Cut,
    ) -> Result<(), Failure> {
        let highest = floors.above.iter().map(|it| it.version.number);
        let highest = highest.fold(floors.lowest.number, u32::max);
        if highest == 0 || cut.is_exactly(floors) {
            return Ok(());
        }
        let mut passed = Vec::new();
        for part in distinct_parts(&self.plan.partitions.book, ids) {
            let Some(found) = cut.version(part) else { continue };
            let wanted = floors.of(part.0);
            if found.number < wanted.number {
                return Err(behind(part, wanted, found));
            }
            if found.is_other_history(wanted) {
                return Err(other_history(part, wanted, found));
            }
            if found.number > wanted.number && wanted.tag != 0 {
                match cut.part(part).and_then(|it| it.earlier(wanted.number)) {
                    Some(made) if made.is_other_history(wanted) => {
                        return Err(other_history(part, wanted, made));
                    }
                    Some(_) => {}
                    None => passed.push((part, wanted)),
                }
            }
        }
        self.check_passed(passed).await
    }

    /// Fails if this server made a version that the client has seen by another commit. The later
    /// version that the server has now does not show that.
    async fn check_passed(&self, passed: Vec<(PartId, VersionTag)>) -> Result<(), Failure> {
        if passed.is_empty() {
            return Ok(());
        }
        let made = move |live: &Arc<GraphHandle>| {
            let tag = |(part, wanted): (PartId, VersionTag)| {
                let found = VersionTag { tag: commit_tag(live, part, wanted.number), ..wanted };
                found.is_other_history(wanted).then(|| other_history(part, wanted, found))
            };
            passed.into_iter().find_map(tag)
        };
        match self.call_store(made).await? {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    /// Returns the tensor at a position of the description.
    pub(crate) fn tensor(&self, tensor: u16) -> Result<&ShardRows, Failure> {
        self.tensors.get(usize::from(tensor)).ok_or_else(|| {
            let n_tensors = self.tensors.len();
            let message = format!("no tensor {tensor}: the server has 0 to {n_tensors}, exclusive");
            failure(FailureCode::NotFound, message)
        })
    }

    /// Reserves `n_bytes` of the shard's request memory until the permit is dropped. Bulk requests
    /// leave the reserve of SyncPulls free, because slow readers and puts may hold memory for long.
    pub(crate) fn take_room(
        &self,
        kind: PullKind,
        n_bytes: usize,
    ) -> Result<StaticPermit, Failure> {
        let n_reserved = match kind {
            PullKind::Sync => 0,
            PullKind::Vector => IN_FLIGHT_BYTES_PER_SHARD - BULK_BYTES_PER_SHARD,
        };
        let permit = match self.room.available() >= n_bytes as u64 + n_reserved {
            true => self.room.try_acquire_static_permit(n_bytes as u64).ok(),
            false => None,
        };
        permit.ok_or_else(|| {
            let message = format!("the shard has no memory left for {n_bytes} bytes");
            // Memory is freed as pulls complete, and those wait for the disk.
            let retry_after = self.reads.retry_after();
            Failure { retry_after, ..failure(FailureCode::Overloaded, message) }
        })
    }

    /// Reserves memory for a piece of a copy.
    pub(crate) fn take_piece_room(&self) -> Result<StaticPermit, Failure> {
        self.take_room(PullKind::Vector, 2 * REPLY_BODY_BYTES_MAX)
    }

    /// Reserves shared memory for a client until the permit is dropped.
    pub(crate) fn take_shared_room(&self, n_bytes: usize) -> Option<StaticPermit> {
        self.shared_room.try_acquire_static_permit(n_bytes as u64).ok()
    }

    /// Splits ids by the shard that owns their rows.
    fn split(&self, tensor: u16, ids: &[NodeId]) -> Result<Vec<Share>, Failure> {
        let partitions = &*self.plan.partitions;
        let stripes = partitions.tensors[usize::from(tensor)].stripes;
        let mut by_shard: Vec<Share> = vec![Share::default(); self.plan.counters.len()];
        for (position, &id) in ids.iter().enumerate() {
            let (part, row) =
                partitions.book.locate(id).ok_or_else(|| wrong_server(partitions, id))?;
            let (shard_ids, positions) = &mut by_shard[usize::from(stripes.shard_of(part.0, row))];
            shard_ids.push(id);
            positions.push(position);
        }
        Ok(by_shard)
    }

    /// Returns rows of this shard in their own buffer.
    async fn gather_owned(
        &self,
        tensor: u16,
        want: Want<'_>,
        ids: &[NodeId],
    ) -> Result<Vec<u8>, Failure> {
        let rows = &self.tensors[usize::from(tensor)];
        let mut out = vec![0; ids.len() * rows.row_bytes];
        rows.gather(&self.plan, want, ids, &mut out).await?;
        Ok(out)
    }
}

/// The versions that a pull asks for.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// The only acceptable version; 0 for the newest.
    pub(crate) version: u32,
    /// The lowest acceptable versions.
    pub(crate) floors: &'a Versions,
    /// Whether to read exactly the versions of `floors`.
    pub(crate) exactly: bool,
}

/// Returns the failure for a version that this server cannot read.
fn no_version(version: u32, newest: u32) -> Failure {
    let message = format!(
        "version {version} cannot be read here, where the newest is {newest}: it was not committed \
         here, or is no longer kept; start again with the newest version, or use a server that has \
         version {version}"
    );
    failure(FailureCode::OtherVersion, message)
}

/// Returns the failure for a lower version than the client requires.
fn behind(part: PartId, wanted: VersionTag, found: VersionTag) -> Failure {
    let (wanted, found) = (wanted.number, found.number);
    let message = format!(
        "partition {part} has version {found} here, expected version {wanted}; ask another server, \
         or this one later"
    );
    failure(FailureCode::Behind, message)
}

/// Returns the failure for a version that another commit made than the client has seen.
fn other_history(part: PartId, wanted: VersionTag, found: VersionTag) -> Failure {
    let message = format!(
        "version {} of partition {part} was made by commit {:016x} here, and by commit {:016x} \
         where it was read before: one of the servers was restored from a copy, or another writer \
         took over; use the servers of one history",
        wanted.number, found.tag, wanted.tag
    );
    failure(FailureCode::OtherHistory, message)
}

/// Checks the length of a pull's ids; returns their number.
pub(super) fn check_ids(body_bytes: usize) -> Result<usize, Failure> {
    if !body_bytes.is_multiple_of(size_of::<NodeId>()) {
        let message = format!("node ids take 4 bytes each, the body has {body_bytes} bytes");
        return Err(failure(FailureCode::Invalid, message));
    }
    let n_ids = body_bytes / size_of::<NodeId>();
    if n_ids > IDS_PER_PULL_MAX {
        let message = format!("{n_ids} ids in one pull, the limit is {IDS_PER_PULL_MAX}");
        return Err(failure(FailureCode::TooLarge, message));
    }
    Ok(n_ids)
}
