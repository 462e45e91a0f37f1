//! Where the shards of a server on a Unix socket listen.

use std::path::{Path, PathBuf};

/// Returns the socket of shard `shard` beside the common one at `path`: `path.shard`.
#[must_use]
pub fn shard_socket(path: &Path, shard: u16) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{shard}"));
    name.into()
}
