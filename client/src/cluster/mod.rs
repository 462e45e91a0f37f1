//! Which servers there are: named one by one, in a file, or registered in etcd.
//!
//! Input from a file or from etcd is untrusted: lengths are bounded, and unreadable entries are
//! reported or left out. It says where servers may be and no more; what one holds, and whether it
//! is of this graph, it is asked itself.

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
/// Most servers of a map; the others are left out.
const SERVERS_MAX: usize = 4096;

/// Where the servers are to be found. Shared by all threads of a client.
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
    /// Busy share of its time, where it reports one.
    pub(crate) busy: Option<f64>,
    /// Partitions that it says it serves; clients ask it themselves when this changes.
    pub(crate) parts: Vec<u16>,
}

impl Member {
    /// Returns a server of which no more is known.
    fn at(address: Address) -> Self {
        Self { address, busy: None, parts: Vec::new() }
    }
}

impl ClusterMap {
    /// Reads addresses as people write them: `HOST:PORT`, `unix:PATH`, `map:FILE`, and with the
    /// feature `etcd` `etcd:HOST:PORT,HOST:PORT/PREFIX`, which is reached by `access`.
    pub(crate) fn of<A: AsRef<str>>(
        addresses: &[A],
        access: &EtcdAccess,
    ) -> Result<Self, ClientError> {
        let sources = addresses.iter().map(|text| Source::of(text.as_ref(), access));
        sources.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the servers of this moment, each once, in the order of their sources.
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

    /// Returns whether servers may come, leave, and move to other addresses.
    pub(crate) fn is_live(&self) -> bool {
        self.0.iter().any(|source| !matches!(source, Source::Address(_)))
    }

    /// Returns whether it is up to date: while etcd is unreachable it is not.
    pub(crate) fn is_current(&self) -> bool {
        self.0.iter().all(Source::is_current)
    }

    /// Returns the number of known changes of the map; only etcd reports them.
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
                reason: "this build knows no etcd (cargo feature `etcd`)".to_owned(),
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
            // It is read again each time.
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

/// Reads a map in a file as it is now: one address on a line. Empty lines and what follows `#` do
/// not count.
fn read_file(path: &Path) -> Result<Vec<Member>, ClientError> {
    let failed = |reason: String| ClientError::Map { map: path.display().to_string(), reason };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let read = file.take(MAP_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > MAP_BYTES_MAX {
        return Err(failed(format!("a map has at most {MAP_BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| failed("it is no UTF-8".to_owned()))?;
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
    fn sources_are_joined_and_no_server_comes_twice() {
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
    fn a_fault_of_a_map_is_reported_with_its_place() {
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
