//! Requests to a whole server: its description and its counters.

use std::time::Instant;

use lodestore_schema::reply::Description;
use lodestore_schema::stats::ServerStats;
use lodestore_schema::{Reply, Request, RequestBody};

use crate::address::Address;
use crate::connection::Connection;
use crate::error::ClientError;
use crate::security::Security;
use crate::source::TensorInfo;

pub(crate) fn describe(
    address: &Address,
    security: &Security,
    deadline: Instant,
) -> Result<Description, ClientError> {
    match ask_server(address, security, Request::new(RequestBody::Describe), deadline)? {
        Reply::Description(description) => Ok(description),
        _ => Err(ClientError::Confused { address: address.clone() }),
    }
}

pub(super) fn stats(
    address: &Address,
    security: &Security,
    deadline: Instant,
) -> Result<ServerStats, ClientError> {
    match ask_server(address, security, Request::new(RequestBody::Stat), deadline)? {
        Reply::Stats(stats) => Ok(stats),
        _ => Err(ClientError::Confused { address: address.clone() }),
    }
}

/// Sends one request to the common address of a server, over a new connection.
pub(crate) fn ask_server(
    address: &Address,
    security: &Security,
    request: Request,
    deadline: Instant,
) -> Result<Reply, ClientError> {
    Connection::open(address, security, deadline)?.ask(request, &[], deadline)
}

/// Checks a tensor in a server's description. No server sends rows of 0 bytes.
pub(super) fn tensor_info(
    address: &Address,
    name: &str,
    dtype: &str,
    width: u32,
    row_bytes: u32,
) -> Result<TensorInfo, ClientError> {
    let known = dtype.parse().ok();
    let info = known.map(|dtype| TensorInfo { name: name.to_owned(), dtype, width });
    info.filter(|info| info.row_bytes() == row_bytes as usize).ok_or_else(|| {
        let address = address.clone();
        let reason =
            format!("the invalid tensor `{name}` of {width} x {dtype} in {row_bytes} bytes");
        ClientError::BadDescription { address, reason }
    })
}
