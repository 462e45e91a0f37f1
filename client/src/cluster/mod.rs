//! Maps of servers: named one by one, in a file, or registered in etcd.
//!
//! Input from a file or from etcd is untrusted: lengths are bounded, and unreadable entries are
//! reported or skipped. A map says only where servers may be: clients ask each server itself what
//! it holds, and whether it serves this graph.

mod access;
#[cfg(feature = "etcd")]
mod etcd;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::address::Address;
#[cfg(not(feature = "etcd"))]
use crate::address::AddressError;
use crate::error::ClientError;

pub use access::EtcdAccess;
#[cfg(feature = "etcd")]
pub use etcd::{Registration, ServerEntry};

/// Most bytes of a map that are read.
const MAP_BYTES_MAX: u64 = 1 << 20;
/// Most servers of a map; further ones are skipped.
const SERVERS_MAX: usize = 4096;

/// The sources that name the servers. Shared by all threads of a client.
pub(crate) struct ClusterMap(Vec<Source>);

enum Source {
    Address(Address),
    File(PathBuf),
    #[cfg(feature = "etcd")]
    Etcd(etcd::Watch),
}

/// A server that a map names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub(crate) address: Address,
    /// Busy share of its time, if it reports one.
    pub(crate) busy: Option<f64>,
    /// Partitions that it says it serves. Clients ask the server itself when this changes.
    pub(crate) parts: Vec<u16>,
}

impl Member {
    /// Returns a server of which only the address is known.
    fn at(address: Address) -> Self {
        Self { address, busy: None, parts: Vec::new() }
    }
}

impl ClusterMap {
    /// Parses addresses: `HOST:PORT`, `unix:PATH`, `map:FILE`, and with the feature `etcd`
    /// `etcd:HOST:PORT,HOST:PORT/PREFIX`, which is reached with `access`.
    pub(crate) fn of<A: AsRef<str>>(
        addresses: &[A],
        access: &EtcdAccess,
    ) -> Result<Self, ClientError> {
        let sources = addresses.iter().map(|text| Source::of(text.as_ref(), access));
        sources.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the current servers, each once, in the order of their sources.
    pub(crate) fn members(&self) -> Result<Vec<Member>, ClientError> {
        let mut members: Vec<Member> = Vec::new();
        for source in &self.0 {
            for member in source.members()? {
                if members.len() < SERVERS_MAX
                    && members.iter().all(|known| known.address != member.address)
                {
                    members.push(member);
                }
            }
        }
        Ok(members)
    }

    /// Returns whether servers may be added, removed, or moved to other addresses.
    pub(crate) fn is_live(&self) -> bool {
        self.0.iter().any(|source| !matches!(source, Source::Address(_)))
    }

    /// Returns whether the map is up to date, which it is not while etcd is unreachable.
    pub(crate) fn is_current(&self) -> bool {
        self.0.iter().all(Source::is_current)
    }

    /// Returns the number of changes of the map that were seen. Only etcd reports changes.
    pub(crate) fn changes(&self) -> u64 {
        self.0.iter().map(Source::changes).sum()
    }
}

impl Source {
    #[cfg_attr(not(feature = "etcd"), expect(unused_variables, reason = "etcd alone reads it"))]
    fn of(text: &str, access: &EtcdAccess) -> Result<Self, ClientError> {
        if let Some(path) = text.strip_prefix("map:") {
            return Ok(Self::File(path.into()));
        }
        if let Some(at) = text.strip_prefix("etcd:") {
            #[cfg(feature = "etcd")]
            return etcd::Watch::start(at, access.clone()).map(Self::Etcd);
            #[cfg(not(feature = "etcd"))]
            return Err(AddressError {
                address: format!("etcd:{at}"),
                reason: "this build has no etcd support (cargo feature `etcd`)".to_owned(),
            }
            .into());
        }
        Ok(Self::Address(text.parse()?))
    }

    fn members(&self) -> Result<Vec<Member>, ClientError> {
        match self {
            Self::Address(address) => Ok(vec![Member::at(address.clone())]),
            Self::File(path) => read_file(path),
            #[cfg(feature = "etcd")]
            Self::Etcd(watch) => watch.members(),
        }
    }

    fn is_current(&self) -> bool {
        match self {
            // A file is read again each time.
            Self::Address(_) | Self::File(_) => true,
            #[cfg(feature = "etcd")]
            Self::Etcd(watch) => watch.is_current(),
        }
    }

    fn changes(&self) -> u64 {
        match self {
            Self::Address(_) | Self::File(_) => 0,
            #[cfg(feature = "etcd")]
            Self::Etcd(watch) => watch.changes(),
        }
    }
}

/// Reads the map in a file: one address on a line. Empty lines, and text after `#`, are ignored.
fn read_file(path: &Path) -> Result<Vec<Member>, ClientError> {
    let failed = |reason: String| ClientError::Map { map: path.display().to_string(), reason };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let read = file.take(MAP_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > MAP_BYTES_MAX {
        return Err(failed(format!("a map has at most {MAP_BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| failed("the file is not UTF-8".to_owned()))?;
    let mut members = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let address = line.split('#').next().unwrap_or_default().trim();
        if address.is_empty() {
            continue;
        }
        let address: Address =
            address.parse().map_err(|error| failed(format!("line {number}: {error}")))?;
        members.push(Member::at(address));
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map_of(addresses: &[&str]) -> Result<ClusterMap, ClientError> {
        ClusterMap::of(addresses, &EtcdAccess::default())
    }

    #[test]
    fn sources_are_joined_and_no_server_is_listed_twice() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# ours\n127.0.0.1:2\n\n unix:/run/l \n127.0.0.1:1\n").unwrap();
        let path = format!("map:{}", file.path().display());
        let map = map_of(&["127.0.0.1:1", &path]).unwrap();
        let found = || -> Vec<String> {
            map.members().unwrap().iter().map(|member| member.address.to_string()).collect()
        };
        assert_eq!(found(), ["127.0.0.1:1", "127.0.0.1:2", "unix:/run/l"]);
        assert!(map.is_live() && !map_of(&["127.0.0.1:1"]).unwrap().is_live());
        std::fs::write(file.path(), "127.0.0.1:9").unwrap();
        assert_eq!(found(), ["127.0.0.1:1", "127.0.0.1:9"], "it is read again");
    }

    #[test]
    fn an_error_in_a_map_is_reported_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).unwrap();
            let map = map_of(&[&format!("map:{}", file.path().display())]).unwrap();
            map.members().unwrap_err().to_string()
        };
        assert!(error(b"127.0.0.1:1\nnowhere\n").contains("line 2"));
        assert!(error(b"map:other").contains("line 1"));
        assert!(error(b"\xff").contains("UTF-8"));
        assert!(error(&vec![b'#'; MAP_BYTES_MAX as usize + 1]).contains("at most"));
        let missing = map_of(&["map:/nowhere"]).unwrap().members();
        assert!(missing.unwrap_err().to_string().contains("/nowhere"));
        if cfg!(not(feature = "etcd")) {
            let error = map_of(&["etcd:127.0.0.1:1"]).err().unwrap().to_string();
            assert!(error.contains("feature `etcd`"), "{error}");
        }
    }
}
