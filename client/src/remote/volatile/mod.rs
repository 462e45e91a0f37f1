//! Volatile tensors on servers. The rows of a partition are at its writer, or at the only server
//! that holds it.

mod publish;
mod pull;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::{ROW_BYTES_MAX, WIRE_VERSION_IDENTITY};
use lodestore_schema::name::Name;
use lodestore_schema::reply::Declared;
use lodestore_schema::request::Declare;
use lodestore_schema::{Reply, Request, RequestBody};

use super::Client;
use super::cluster_view::ClusterView;
use super::describe::tensor_info;
use super::pull::{FailedRequest, decisive_error};
use super::retry::{RetryAction, RetryBudget};
use crate::error::ClientError;
use crate::route::PartSet;
use crate::source::TensorInfo;
use crate::volatile::{
    StampWanted, VolatileInfo, VolatilePublisher, VolatilePulled, VolatileSource,
};

/// Known volatile tensors, by name.
pub(super) type Known = Mutex<HashMap<String, VolatileInfo>>;

impl ClusterView {
    /// Returns the server that holds the volatile rows of a partition.
    fn volatile_server(&self, part: PartId) -> Result<usize, ClientError> {
        match self.writer_of(part) {
            Err(ClientError::NoWriter { part, readers }) => {
                let servers = self.routes.servers_of(part);
                let first = servers.first().copied();
                let is_same = |first: usize, other: usize| {
                    first == other || self.describes(first).is_same_server(self.describes(other))
                };
                first
                    .filter(|&first| servers.iter().all(|&other| is_same(first, other)))
                    .ok_or(ClientError::NoWriter { part, readers })
            }
            found => found,
        }
    }

    /// Returns the servers that hold volatile rows, ascending.
    fn volatile_servers(&self) -> Result<Vec<usize>, ClientError> {
        let mut servers = Vec::new();
        for part in self.routes.book.parts() {
            match self.volatile_server(part) {
                Ok(server) => servers.push(server),
                // The client is connected to servers of some partitions only.
                Err(ClientError::NoReplica { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        servers.sort_unstable();
        servers.dedup();
        if servers.is_empty() { Err(ClientError::NoNodes) } else { Ok(servers) }
    }
}

/// Returns the tag of a volatile tensor in requests over a connection of wire version `agreed`.
/// From version 6 on it depends on the shape.
fn tag_of(view: &ClusterView, info: &VolatileInfo, agreed: u16) -> u64 {
    if agreed < WIRE_VERSION_IDENTITY {
        return view.graph;
    }
    let TensorInfo { name, dtype, width } = &info.tensor;
    let declared = Declared {
        dtype: dtype.name().to_owned(),
        width: *width,
        row_bytes: u32::try_from(info.tensor.row_bytes()).unwrap_or(u32::MAX),
        range_rows: info.range_rows,
    };
    view.volatile_tag(name, &declared)
}

impl Client {
    /// Checks failures of requests that named a volatile tensor by its shape. If the servers may
    /// have declared another shape, requests that shape and stores it.
    ///
    /// # Errors
    /// `VolatileChanged` if the tensor has another shape.
    fn check_shape(
        &self,
        info: &VolatileInfo,
        failures: &[FailedRequest],
    ) -> Result<(), ClientError> {
        if !failures.iter().any(FailedRequest::is_elsewhere) {
            return Ok(());
        }
        let name = &info.tensor.name;
        let found = self.ask_volatile(name, RequestBody::Volatile { tensor: wire_name(name)? })?;
        if found == *info {
            return Ok(());
        }
        let found = format!(
            "{} x {}, claimed in ranges of {} rows",
            found.tensor.width,
            found.tensor.dtype.name(),
            found.range_rows
        );
        Err(ClientError::VolatileChanged { tensor: name.clone(), found })
    }

    /// Asks each server that holds volatile rows, and checks that their replies agree.
    fn ask_volatile(&self, name: &str, body: RequestBody) -> Result<VolatileInfo, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        let mut retry = RetryBudget::new(&self.config, deadline);
        let mut view = self.current_view(deadline)?;
        loop {
            let servers;
            (view, servers) = self.plan_on(view, &mut retry, ClusterView::volatile_servers)?;
            match ask_all(&view, &servers, name, body, deadline) {
                Ok(info) => {
                    let known = self.volatile.get_or(|_| Mutex::default());
                    known.lock().ignore_poison().insert(name.to_owned(), info.clone());
                    return Ok(info);
                }
                Err(failed) => view = self.retry_alone(view, vec![*failed], &mut retry)?,
            }
        }
    }

    /// Pauses after failures of servers that have no alternative, and returns the view for the next
    /// attempt.
    ///
    /// # Errors
    /// The decisive failure, if no retry helps.
    fn retry_alone(
        &self,
        view: Arc<ClusterView>,
        failures: Vec<FailedRequest>,
        retry: &mut RetryBudget,
    ) -> Result<Arc<ClusterView>, ClientError> {
        let actions = failures.iter().map(|failed| failed.action.without_others());
        let Some(pause) = retry.pause(RetryAction::deciding(actions)) else {
            return Err(retry.report(decisive_error(failures), &view));
        };
        view.warn_of_outage(&failures, retry.time_left());
        std::thread::sleep(pause);
        // The server may have restarted with other ports.
        self.after_failures(view, &failures, retry.deadline)
    }
}

/// Asks each of these servers, and checks that their replies agree.
fn ask_all(
    view: &ClusterView,
    servers: &[usize],
    name: &str,
    body: RequestBody,
    deadline: Instant,
) -> Result<VolatileInfo, Box<FailedRequest>> {
    let failed = |server, error| Box::new(FailedRequest::new(server, PartSet::default(), error));
    let mut found: Option<VolatileInfo> = None;
    for &server in servers {
        let of_server = |error| failed(server, error);
        let declared = ask_one(view, server, body, deadline).map_err(of_server)?;
        let Declared { dtype, width, row_bytes, range_rows } = declared;
        let address = view.address(server);
        let tensor = tensor_info(address, name, &dtype, width, row_bytes).map_err(of_server)?;
        let info = VolatileInfo { tensor, range_rows };
        if found.as_ref().is_some_and(|known| *known != info) {
            let (address, tensor) = (address.clone(), name.to_owned());
            return Err(of_server(ClientError::VolatileDiffers { address, tensor }));
        }
        found = Some(info);
    }
    found.ok_or_else(|| failed(0, ClientError::NoNodes))
}

fn ask_one(
    view: &ClusterView,
    server: usize,
    body: RequestBody,
    deadline: Instant,
) -> Result<Declared, ClientError> {
    let endpoint = view.routes.shard_endpoint(server, 0);
    let mut connection = view.connection(endpoint, deadline)?;
    let request = Request { graph: view.graph, ..Request::new(body) };
    match connection.ask(request, &[], deadline) {
        Ok(Reply::Declared(declared)) => {
            view.give_back(endpoint, connection);
            Ok(declared)
        }
        Ok(_) => Err(ClientError::Confused { address: view.address(server).clone() }),
        Err(error) => {
            if error.leaves_connection() {
                view.give_back(endpoint, connection);
            }
            Err(error)
        }
    }
}

/// Returns the name of a volatile tensor as requests encode it.
fn wire_name(name: &str) -> Result<Name, ClientError> {
    Name::new(name).map_err(|error| ClientError::BadVolatile { reason: error.to_string() })
}

impl VolatileSource for Client {
    fn volatile(&self, name: &str) -> Result<VolatileInfo, ClientError> {
        let known = self.volatile.get_or(|_| Mutex::default());
        if let Some(info) = known.lock().ignore_poison().get(name) {
            return Ok(info.clone());
        }
        self.ask_volatile(name, RequestBody::Volatile { tensor: wire_name(name)? })
    }

    fn declare(&self, info: &VolatileInfo) -> Result<(), ClientError> {
        info.check()?;
        let TensorInfo { name, dtype, width } = &info.tensor;
        let n_bytes = info.tensor.row_bytes();
        if n_bytes > ROW_BYTES_MAX {
            let reason =
                format!("rows of {n_bytes} bytes, the limit of servers is {ROW_BYTES_MAX}");
            return Err(ClientError::BadVolatile { reason });
        }
        let declare = Declare {
            name: wire_name(name)?,
            dtype: wire_name(dtype.name())?,
            width: *width,
            range_rows: info.range_rows,
        };
        self.ask_volatile(name, RequestBody::Declare(declare)).map(drop)
    }

    fn pull_volatile(
        &self,
        tensor: &str,
        ids: &[NodeId],
        wanted: StampWanted,
        out: &mut [u8],
    ) -> Result<VolatilePulled, ClientError> {
        let info = self.volatile(tensor)?;
        let row_bytes = info.tensor.row_bytes();
        ClientError::check_buffer(tensor, ids.len(), row_bytes, out.len())?;
        let stamps = self.pull_stamps(&info, ids, wanted, out)?;
        Ok(VolatilePulled { stamps })
    }

    fn publisher(&self) -> Box<dyn VolatilePublisher + '_> {
        Box::new(publish::RemotePublisher::new(self))
    }
}
