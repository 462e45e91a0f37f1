//! Checks of the source and the target of a move, and of what an earlier run has left.

use std::path::Path;
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_schema::reply::Description;
use lodestore_schema::request::CopyStep;
use lodestore_schema::{FailureCode, Reply, Request, RequestBody};
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions, StoreError};

use super::{PAUSE, TransferPlan, TransferStats};
use crate::address::Address;
use crate::error::ClientError;
use crate::remote::{ask_server, describe};
use crate::route::{have_same_tensors, same_graph};

/// Returns the stats of a transfer whose last step in an earlier run was the rename; the target's
/// server may not know of it.
pub(super) fn was_here(plan: &TransferPlan) -> Result<TransferStats, ClientError> {
    let source = describe_end(plan, &plan.from)?;
    let (graph, options) = (Graph::open(&plan.into)?, OpenOptions::default());
    let version = GraphHandle::open(graph, Some(&[plan.part]), OpenMode::Read, &options)?.version();
    let has_it = source.parts.contains(&plan.part.0);
    let reason = match (has_it, plan.keep) {
        (true, false) => NOT_GIVEN_UP,
        (_, true) if plan.to.is_none() => "nothing was copied",
        (true, true) if version != source.version => "its version differs from the source's",
        _ => {
            ask_target(plan, CopyStep::Adopt)?;
            return Ok(TransferStats { version, was_here: true, ..TransferStats::default() });
        }
    };
    let reason = format!("{} is there already; {reason}", plan.into.display());
    Err(StoreError::MoveRefused { part: plan.part, reason }.into())
}

/// Why a copy in its place is not the result of a move.
const NOT_GIVEN_UP: &str = "the source has it as well: nothing was moved";

/// Fails if an earlier run has left a copy in its place that the source has not released.
pub(super) fn check_taken(plan: &TransferPlan) -> Result<(), ClientError> {
    let source = describe_end(plan, &plan.from)?;
    if plan.keep || !source.parts.contains(&plan.part.0) {
        return Ok(());
    }
    let reason = format!("{} has a copy of it; {NOT_GIVEN_UP}", plan.into.display());
    Err(StoreError::MoveRefused { part: plan.part, reason }.into())
}

/// Has the target's server run a step, if there is one; waits until the deadline while it is busy.
pub(super) fn ask_target(plan: &TransferPlan, step: CopyStep) -> Result<(), ClientError> {
    let Some(to) = &plan.to else { return Ok(()) };
    let request = Request::new(RequestBody::Copy { part: plan.part.0, step });
    let ask = |end| match ask_server(to, &plan.config.security, request.clone(), end)? {
        Reply::Copied(_) => Ok(()),
        _ => Err(ClientError::Confused { address: to.clone() }),
    };
    while_busy(plan.config.deadline, ask).map_err(|error| stalled(error, plan.config.deadline))
}

/// Retries a step for this time while its server is busy; `step` receives the deadline.
pub(super) fn while_busy<T>(
    time: Duration,
    mut step: impl FnMut(Instant) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let end = Instant::now() + time;
    loop {
        match step(end) {
            Err(ClientError::Refused { failure, .. })
                if failure.code == FailureCode::Overloaded
                    && Instant::now() + failure.retry_after.max(PAUSE) < end =>
            {
                std::thread::sleep(failure.retry_after.max(PAUSE));
            }
            done => return done,
        }
    }
}

/// Returns the description of the source or the target.
fn describe_end(plan: &TransferPlan, address: &Address) -> Result<Description, ClientError> {
    let time = plan.config.deadline;
    let described = describe(address, &plan.config.security, Instant::now() + time);
    described.map_err(|error| stalled(error, time))
}

/// Turns an expired deadline into the error of a stalled move.
pub(super) fn stalled(error: ClientError, time: Duration) -> ClientError {
    match error {
        ClientError::Deadline { address } => ClientError::MoveStalled { address, time },
        error => error,
    }
}

/// Returns whether a server is busy now, and may not be later.
pub(super) fn is_busy(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { failure, .. } if failure.code == FailureCode::Overloaded)
}

pub(super) fn is_in_place(into: &Path, part: PartId) -> bool {
    Graph::open(into).is_ok_and(|graph| graph.local_parts().contains(&part))
}

/// Fails for everything in a plan that can be wrong before the first byte is fetched.
pub(super) fn check_ends(plan: &TransferPlan) -> Result<(), ClientError> {
    let refused = |address: &Address, reason: &str| {
        let (address, reason) = (address.clone(), reason.to_owned());
        Err(ClientError::Move { address, reason })
    };
    let Some(to) = &plan.to else {
        if plan.keep || plan.unserved {
            return Ok(());
        }
        let reason = "no server would hold the partition; name the server of the folder, keep the \
                      partition at the source too, or allow it to be unserved";
        return refused(&plan.from, reason);
    };
    if *to == plan.from {
        return refused(to, "it is both source and target; name two servers");
    }
    let target = describe_end(plan, to)?;
    let source = describe_end(plan, &plan.from)?;
    if target.is_same_server(&source) {
        return refused(to, "it is both source and target, by two names; name two servers");
    }
    if target.graph != source.graph {
        let (address, other) = (to.clone(), plan.from.clone());
        return Err(ClientError::GraphsDiffer { address, other });
    }
    if !same_graph(&target, &source) || !have_same_tensors(&target, &source) {
        let reason = "its tensors differ from those of the source; add or drop tensors there, or, \
                      if it holds no partition, stop it and copy graph.toml";
        return refused(to, reason);
    }
    if !target.roams {
        return refused(to, "its partitions are fixed; start it with local partitions");
    }
    if !plan.keep && !target.writable {
        return refused(to, "it accepts no puts, so it can own no partition; start it writable");
    }
    if plan.keep && (source.writable || target.writable) {
        let reason = "a second server would accept puts, or one would stay as it is while another \
                      accepts them; have the target follow the source instead";
        return refused(to, reason);
    }
    Ok(())
}
