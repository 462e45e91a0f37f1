//! Permissions of a connection besides reads: which clients may move partitions.

use std::os::fd::AsFd;

use lodestore_schema::{Failure, FailureCode, Token};
use rustix::net::getsockname;

use crate::auth::AuthPolicy;
use crate::error::failure;

/// Whether a connection may copy and move partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permissions {
    /// The connection uses a Unix socket, has presented the admin token, or is local where no admin
    /// token is set.
    Moves,
    /// An admin token is set, and the client has not presented it.
    WantsAdminToken,
    /// The client is on another machine, and no admin token is set.
    Elsewhere,
}

impl Permissions {
    /// Returns the permissions of a client before it has presented a token.
    pub(super) fn of(policy: &AuthPolicy, socket: impl AsFd, is_local: bool) -> Self {
        match policy.admin_token {
            _ if is_local => Self::Moves,
            Some(_) => Self::WantsAdminToken,
            None if is_loopback(socket) => Self::Moves,
            None => Self::Elsewhere,
        }
    }

    /// Applies a token that the client has presented; returns whether it is the admin token.
    pub(super) fn hear(&mut self, policy: &AuthPolicy, token: &Token) -> bool {
        let is_admin = policy.admin_token.as_ref().is_some_and(|admin| admin.take(token));
        if is_admin {
            *self = Self::Moves;
        }
        is_admin
    }

    /// Fails for a connection that may not move partitions.
    pub(super) fn check_moves(self) -> Result<(), Failure> {
        let message = match self {
            Self::Moves => return Ok(()),
            Self::WantsAdminToken => {
                "moving partitions needs the admin token; use the file of the admin token that the \
                 server has"
            }
            Self::Elsewhere => {
                "partitions are moved over a Unix socket or from the server's own machine; for \
                 other clients start the server with an admin token"
            }
        };
        Err(failure(FailureCode::Unauthenticated, message))
    }
}

/// Returns whether the local address of a connection is a loopback address.
fn is_loopback(socket: impl AsFd) -> bool {
    let address = getsockname(socket).ok().and_then(|at| std::net::SocketAddr::try_from(at).ok());
    address.is_some_and(|at| at.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use lodestore_schema::Tokens;

    use super::*;

    #[test]
    fn moves_need_the_admin_token_or_without_one_the_own_machine() {
        let token = |text: &str| Token::new(text.as_bytes()).unwrap();
        let (rows, admin) = (token("rows-rows-rows-rows"), token("admin-admin-admin-admin"));
        let policy = |admin: Option<Token>| AuthPolicy {
            admin_token: admin.map(Tokens::from),
            token: Some(rows.into()),
            ..AuthPolicy::default()
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let may = |permissions: Permissions| permissions.check_moves().is_ok();
        assert!(may(Permissions::of(&policy(None), &listener, false)));
        assert!(may(Permissions::of(&policy(Some(admin)), &listener, true)));
        let mut admitted = Permissions::of(&policy(Some(admin)), &listener, false);
        assert!(!may(admitted) && !admitted.hear(&policy(Some(admin)), &rows) && !may(admitted));
        assert!(admitted.hear(&policy(Some(admin)), &admin) && may(admitted));
        let everywhere = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let mut other = Permissions::of(&policy(None), &everywhere, false);
        assert!(!may(other) && !other.hear(&policy(None), &admin) && !may(other));
    }
}
