//! Faults in bytes from a peer.

use thiserror::Error;

use crate::wire_versions::WireVersions;

/// A peer broke the wire's rules. The connection cannot continue after any of these.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WireError {
    /// The peer is something else.
    #[error(
        "the peer does not speak Lodestore: expected a hello starting \"LODESTOR\", found \"{}\"; \
         check the address", found.escape_ascii()
    )]
    Magic {
        /// Its first 8 bytes.
        found: [u8; 8],
    },
    /// The peer speaks no version that this side speaks.
    #[error("the peer speaks wire version {found}, this side {ours}; upgrade the older")]
    Version {
        /// Versions of the peer.
        found: WireVersions,
        /// Versions of this side.
        ours: WireVersions,
    },
    /// A request that the version of the connection does not have.
    #[error(
        "`{request}` is a request of wire version {known}, and this connection has agreed on version \
         {agreed}; upgrade the older of client and server"
    )]
    Lacks {
        /// Name of the request in the schema.
        request: &'static str,
        /// Versions that have it.
        known: WireVersions,
        /// Version of the connection.
        agreed: u16,
    },
    /// Reserved bytes of the hello are set.
    #[error("the peer's hello sets reserved bytes; it may be newer than this side")]
    Reserved,
    /// A length passes its limit.
    #[error("a frame announces a {part} of {found} bytes, the limit is {limit}")]
    FrameTooLarge {
        /// `head` or `body`.
        part: &'static str,
        /// Bytes announced.
        found: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The head is not a message of the schema.
    #[error("the {message} cannot be decoded: {reason}")]
    Malformed {
        /// Which message.
        message: &'static str,
        /// The fault that the decoder found.
        reason: String,
    },
}

/// A part of a message, or the reason why it cannot be decoded.
pub(crate) type Decoded<T> = Result<T, Box<dyn std::error::Error>>;
