//! Listening sockets: a common one and one per shard, for TCP and for Unix sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use lodestore_schema::socket::shard_socket;
use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::limits::KEEPALIVE;

/// Length of a Unix socket's accept queue; the system's own limit is lower.
const BACKLOG: i32 = 4096;

/// All listening sockets of a server. Socket files are removed on drop.
pub(crate) struct Listeners {
    pub(crate) sockets: Vec<ListenSocket>,
    /// Bound address of the common TCP socket.
    pub(crate) tcp: Option<SocketAddr>,
    /// TCP port of each shard; empty without TCP.
    pub(crate) shard_ports: Vec<u16>,
    paths: Vec<PathBuf>,
}

/// One listening socket.
pub(crate) struct ListenSocket {
    socket: Socket,
    /// The shard that its connections belong to; `None` spreads them over all shards in turn.
    pub(crate) shard: Option<usize>,
}

/// An accepted connection.
pub(crate) struct Arrival {
    pub(crate) socket: OwnedFd,
    pub(crate) source: Source,
}

/// Source of a connection, at a granularity that is costly to multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A Unix socket, whose mode decides which users may connect.
    Unix,
    V4(Ipv4Addr),
    /// The /64 network of an address; one source usually has all addresses of it.
    V6([u8; 8]),
}

impl Source {
    pub(crate) fn is_trusted(self) -> bool {
        self == Self::Unix
    }

    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let mut half = [0; 8];
                half.copy_from_slice(&address.octets()[..8]);
                Self::V6(half)
            }
        }
    }
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listeners {
    /// Binds all sockets, or none.
    pub(crate) fn bind(config: &ServerConfig, n_shards: u16) -> Result<Self, ServerError> {
        let mut all =
            Self { sockets: Vec::new(), tcp: None, shard_ports: Vec::new(), paths: Vec::new() };
        if let Some(address) = config.listen {
            all.tcp = Some(all.bind_tcp(address, None)?);
            for shard in 0..n_shards {
                let port = shard_port(config.shard_port_base, shard, n_shards)?;
                let bound = all.bind_tcp(SocketAddr::new(address.ip(), port), Some(shard))?;
                all.shard_ports.push(bound.port());
            }
        }
        if let Some(path) = &config.unix {
            let mode = Mode::from_raw_mode(config.unix_mode);
            all.bind_unix(path.to_owned(), mode, None)?;
            for shard in 0..n_shards {
                all.bind_unix(shard_socket(path, shard), mode, Some(shard))?;
            }
        }
        Ok(all)
    }

    /// Binds without `SO_REUSEPORT`, so that a second server on the same port fails.
    fn bind_tcp(
        &mut self,
        address: SocketAddr,
        shard: Option<u16>,
    ) -> Result<SocketAddr, ServerError> {
        let error = |source| ServerError::Listen { address: address.to_string(), source };
        let listener = TcpListener::bind(address).map_err(error)?;
        listener.set_nonblocking(true).map_err(error)?;
        let bound = listener.local_addr().map_err(error)?;
        self.sockets
            .push(ListenSocket { socket: Socket::Tcp(listener), shard: shard.map(usize::from) });
        Ok(bound)
    }

    /// Replaces a socket file that has no listener; fails for anything else at the path.
    fn bind_unix(
        &mut self,
        path: PathBuf,
        mode: Mode,
        shard: Option<u16>,
    ) -> Result<(), ServerError> {
        let error = |source| ServerError::Listen { address: path.display().to_string(), source };
        if let Ok(meta) = std::fs::symlink_metadata(&path) {
            if !meta.file_type().is_socket() {
                return Err(ServerError::SocketPath { path });
            }
            match UnixStream::connect(&path) {
                Ok(_) => return Err(error(io::ErrorKind::AddrInUse.into())),
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {}
                // Without permission or an answer it is unknown whether there is a listener.
                Err(unknown) => return Err(error(unknown)),
            }
            std::fs::remove_file(&path).map_err(error)?;
        }
        let listener = bind_for(&path, mode).map_err(error)?;
        listener.set_nonblocking(true).map_err(error)?;
        self.paths.push(path);
        self.sockets
            .push(ListenSocket { socket: Socket::Unix(listener), shard: shard.map(usize::from) });
        Ok(())
    }
}

/// Returns the port of a shard; 0 selects a free port.
fn shard_port(base: Option<u16>, shard: u16, n_shards: u16) -> Result<u16, ServerError> {
    let Some(base) = base else { return Ok(0) };
    base.checked_add(shard).ok_or(ServerError::Ports { base, n_shards })
}

/// Returns a listening Unix socket that no user outside its mode can connect to at any time.
fn bind_for(path: &Path, mode: Mode) -> io::Result<UnixListener> {
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux creates the file with the mode of the socket, so no user can connect in between.
    rustix::fs::fchmod(&socket, mode)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Covers systems that do not, and a umask that removes bits.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode.as_raw_mode()))?;
    net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

impl Drop for Listeners {
    fn drop(&mut self) {
        for path in &self.paths {
            // The file may already be gone.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl ListenSocket {
    /// Accepts one connection; `WouldBlock` if none is waiting.
    pub(crate) fn accept(&self) -> io::Result<Arrival> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
                sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
                sockopt::set_tcp_keepcnt(&stream, 3)?;
                Ok(Arrival { socket: stream.into(), source: Source::of(peer.ip()) })
            }
            Socket::Unix(listener) => {
                Ok(Arrival { socket: listener.accept()?.0.into(), source: Source::Unix })
            }
        }
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::Unix(listener) => listener.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_of_an_ipv6_network_are_one_source() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.5"), of("10.0.0.5"));
        assert_ne!(of("10.0.0.5"), of("10.0.0.6"));
        assert!(Source::Unix.is_trusted() && !of("127.0.0.1").is_trusted());
    }
}
