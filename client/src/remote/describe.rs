//! Questions to a whole server: what it holds, and what it counted.

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

/// Sends one request over a connection of its own to the common address.
pub(crate) fn ask_server(
    address: &Address,
    security: &Security,
    request: Request,
    deadline: Instant,
) -> Result<Reply, ClientError> {
    Connection::open(address, security, deadline)?.ask(request, &[], deadline)
}

/// Returns a tensor as a server describes it, if that can be. No server sends rows of no bytes.
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
            format!("tensor `{name}` as {width} x {dtype} in {row_bytes} bytes, which cannot be");
        ClientError::BadDescription { address, reason }
    })
}
