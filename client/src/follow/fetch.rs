//! Files of a partition, fetched into a folder unless they are complete there.

use lodestore_store::StoreError;
use lodestore_store::follow::{FetchCheck, FetchedFile, Manifest};
use lodestore_store::graph::META_FILE;
use lodestore_store::transfer::Arrival;

use super::Link;
use crate::error::ClientError;

/// A function that receives bytes fetched, and bytes to fetch.
pub(crate) type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// Counts of fetched files, without the description of the graph, which is fetched each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fetched {
    /// Files fetched.
    pub(crate) files: u64,
    /// Files that were complete before.
    pub(crate) kept: u64,
    /// Bytes of the files fetched.
    pub(crate) n_bytes: u64,
}

/// Fetches the files of a partition's manifest that an arrival lacks. Each file of rows is read
/// back and checked as a whole; edge lists are not.
pub(crate) fn fetch_part(
    link: &mut Link,
    arrival: &Arrival,
    manifest: &Manifest,
    progress: &mut Progress<'_>,
) -> Result<Fetched, ClientError> {
    let all = |sum: u64, (_, n_bytes): &(String, u64)| sum.saturating_add(*n_bytes);
    let total = link.files().iter().fold(0, all);
    let (mut fetched, mut done, mut graph) = (Fetched::default(), 0u64, None);
    for at in 0..link.n_files() {
        let (name, n_bytes) = link.file(at);
        let mut report = |n: u64| progress(done.saturating_add(n), total);
        let is_new = if manifest.files().any(|it| it == name) {
            let Some(graph) = &graph else {
                return Err(link.broken(format!("{name} before {META_FILE}")));
            };
            let begin = |name: &str, n_bytes| {
                FetchedFile::begin(graph, manifest, name, n_bytes, FetchCheck::ReadBack)
            };
            fetch_file(link, begin, at, &mut report)?
        } else {
            fetch_list(link, arrival, at, &mut report)?
        };
        done = done.saturating_add(n_bytes);
        if name == META_FILE {
            // Checked before anything else is fetched.
            graph = Some(arrival.check_graph()?);
            continue;
        }
        fetched.files += u64::from(is_new);
        fetched.kept += u64::from(!is_new);
        fetched.n_bytes += if is_new { n_bytes } else { 0 };
    }
    Ok(fetched)
}

/// Fetches a file of rows unless it is complete; returns whether it was fetched. Continues where an
/// earlier attempt was interrupted. `begin` receives the name and the length.
pub(super) fn fetch_file(
    link: &mut Link,
    begin: impl FnOnce(&str, u64) -> Result<Option<FetchedFile>, StoreError>,
    at: u16,
    report: &mut dyn FnMut(u64),
) -> Result<bool, ClientError> {
    let (name, n_bytes) = link.file(at);
    let Some(mut file) = begin(&name, n_bytes)? else {
        return Ok(false);
    };
    let mut piece = Vec::new();
    while file.n_bytes() < n_bytes {
        let is_last = link.read(at, file.n_bytes(), &mut piece)?;
        link.check_length(&name, n_bytes, file.n_bytes() + piece.len() as u64, is_last)?;
        file.append(&piece)?;
        report(file.n_bytes());
    }
    file.finish()?;
    Ok(true)
}

/// Fetches the description of the graph, or an edge list that is not complete; returns whether it
/// was fetched.
fn fetch_list(
    link: &mut Link,
    arrival: &Arrival,
    at: u16,
    report: &mut dyn FnMut(u64),
) -> Result<bool, ClientError> {
    let (name, n_bytes) = link.file(at);
    // The description may have changed.
    if name != META_FILE && arrival.has(&name, n_bytes)? {
        return Ok(false);
    }
    let (mut file, mut offset, mut piece) = (arrival.file(&name)?, 0, Vec::new());
    loop {
        let is_last = link.read(at, offset, &mut piece)?;
        offset += piece.len() as u64;
        link.check_length(&name, n_bytes, offset, is_last)?;
        file.append(&piece)?;
        report(offset);
        if is_last {
            break;
        }
    }
    file.finish()?;
    Ok(true)
}
