//! Admission of a connection: TLS, hellos and token, all within one timeout.
//!
//! Until then a connection uses a few hundred bytes, plus the memory of a TLS handshake.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use futures_rustls::TlsAcceptor;
use glommio::net::TcpStream;
use lodestore_schema::limits::{HELLO_BYTES, PREFIX_BYTES, REQUEST_HEAD_BYTES_MAX};
use lodestore_schema::{
    Failure, FailureCode, Prefix, Reply, Request, RequestBody, Tokens, WireError, WireVersions,
};

use super::permissions::Permissions;
use super::stream::Stream;
use super::{Connection, ConnectionError};
use crate::auth::AuthPolicy;
use crate::deadline::{QueueDelay, SlowReaderLimit, io_timeout, with_timeout};
use crate::error::failure;
use crate::limits::{HELLO_TIMEOUT, REFUSAL_LINGER};
use crate::tls_scheduler::{TlsScheduler, in_turn};

/// Size of the buffer that discards what a refused client still sends.
const LINGER_BYTES: usize = 4 << 10;
/// Maximum bytes discarded of what a refused client still sends.
const LINGER_BYTES_MAX: usize = 64 << 10;

impl Connection {
    /// Admits a client, or refuses it.
    pub(crate) async fn enter(
        stream: TcpStream,
        socket: Rc<OwnedFd>,
        policy: &AuthPolicy,
        is_local: bool,
        handshakes: &TlsScheduler,
    ) -> Result<Self, ConnectionError> {
        let entry = async {
            let stream = match &policy.tls {
                None => Stream::Left(stream),
                Some(tls) => {
                    let handshake = TlsAcceptor::from(Arc::clone(tls)).accept(stream);
                    let agreed = in_turn(handshakes, handshake).await;
                    Stream::Right(Box::new(agreed.map_err(ConnectionError::Tls)?))
                }
            };
            let mut this = Self {
                stream,
                version: 0,
                is_local,
                permissions: Permissions::of(policy, &*socket, is_local),
                socket,
                shared: None,
                lease: None,
                copying: None,
                following: None,
                follower: None,
                claims: Vec::new(),
                lag: QueueDelay::new(Instant::now()),
                pace: SlowReaderLimit::default(),
                head: Vec::new(),
            };
            this.version = this.agree().await?;
            let is_known = match &policy.token {
                None => true,
                Some(tokens) => this.tells(policy, tokens).await?,
            };
            Ok((this, is_known))
        };
        let late = || ConnectionError::Io(io::ErrorKind::TimedOut.into());
        let (mut this, is_known) = with_timeout(HELLO_TIMEOUT, entry, late).await?;
        if is_known {
            return Ok(this);
        }
        let message = "the client sent no token, or a wrong one; use the token file of the server";
        this.reject(failure(FailureCode::Unauthenticated, message)).await?;
        Err(ConnectionError::Unauthenticated)
    }

    /// Replies to the client's hello; returns the wire version that both speak.
    async fn agree(&mut self) -> Result<u16, ConnectionError> {
        let mut theirs = [0; HELLO_BYTES];
        self.stream.read_exact(&mut theirs).await?;
        let (answer, agreed) = WireVersions::SPOKEN.answer(&theirs);
        // A peer of another protocol, such as TLS, receives the hello that identifies this one.
        let is_other = matches!(agreed, Err(WireError::Magic { .. }));
        let answer = answer.or_else(|| is_other.then(|| WireVersions::SPOKEN.hello()));
        if let Some(answer) = answer {
            self.stream.write_all(&answer).await?;
            self.stream.flush().await?;
        }
        Ok(agreed?)
    }

    /// Returns whether the first request has one of these tokens, or the admin token, which implies
    /// them.
    async fn tells(
        &mut self,
        policy: &AuthPolicy,
        tokens: &Tokens,
    ) -> Result<bool, ConnectionError> {
        let mut prefix = [0; PREFIX_BYTES];
        self.stream.read_exact(&mut prefix).await?;
        let prefix = Prefix::of_request(prefix)?;
        let mut head = [0; REQUEST_HEAD_BYTES_MAX];
        let head = &mut head[..prefix.head_bytes];
        self.stream.read_exact(head).await?;
        let found = match Request::decode(head)?.body {
            RequestBody::Authenticate { token } if prefix.body_bytes == 0 => Some(token),
            _ => None,
        };
        // Evaluates both comparisons, for constant time.
        Ok(found.is_some_and(|found| self.permissions.hear(policy, &found) | tokens.take(&found)))
    }

    /// Sends the reason of a refusal, and lingers until the client has read it: closing while bytes
    /// of the client are unread would discard the reply.
    pub(crate) async fn reject(&mut self, refusal: Failure) -> Result<(), ConnectionError> {
        self.pace = SlowReaderLimit::default();
        self.reply(&Reply::Failure(refusal)).await?;
        let linger = async {
            self.stream.close().await?;
            let mut bytes = [0; LINGER_BYTES];
            for _ in 0..LINGER_BYTES_MAX / LINGER_BYTES {
                if self.stream.read(&mut bytes).await? == 0 {
                    break;
                }
                // Bytes that are already buffered do not suspend the read.
                glommio::executor().yield_now().await;
            }
            Ok(())
        };
        // Errors do not matter: the reply was sent.
        let _ = io_timeout(REFUSAL_LINGER, linger).await;
        Ok(())
    }
}
