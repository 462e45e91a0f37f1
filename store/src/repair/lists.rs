//! Topology and halos.
//!
//! Topology is in one place only. But the header of a topology file follows from the graph and from
//! the file. It is right when what is left of the damaged header agrees with it. Halos follow from
//! topology.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use lodestore_graph::file_check::{
    FORMAT_VERSION, FileCheck, FileFault, FileKind, FilePartition, HeaderFault, PieceSum, verifies,
};
use lodestore_graph::halo::find_halos;
use lodestore_graph::topology::Topology;
use lodestore_graph::{PartId, PartitionBook};
use uuid::Uuid;

use super::actions::RepairActions;
use super::partitions::Partition;
use super::report::Lost;
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::{FileReader, FileSystem, FileWriter};
use crate::graph::{Graph, topology_path};
use crate::verify::{Lists, ListsError, read_head};

/// Findings about a topology file.
enum Found {
    /// It is there, or will be once this run is no dry one.
    Usable,
    Lost,
}

/// Repairs the topology files of `parts` that can be, then their halos if all topology of the graph
/// is among it.
pub(super) fn restore(
    actions: &mut RepairActions,
    graph: &Graph,
    parts: &[PartId],
) -> Result<(), StoreError> {
    let is_here = |part: &PartId| actions.device.exists(&graph.part_dir(*part));
    let here: Vec<PartId> = parts.iter().copied().filter(is_here).collect();
    let mut all_usable = here.len() == usize::from(graph.book().n_parts());
    for &part in &here {
        all_usable &= matches!(restore_topology(actions, graph, part)?, Found::Usable);
    }
    let mut damaged = Vec::new();
    for &part in &here {
        if let Some(reason) = fault(graph, part, FileKind::Halo)? {
            damaged.push((part, reason));
        }
    }
    if damaged.is_empty() {
        return Ok(());
    }
    if all_usable {
        return rebuild_halos(actions, graph, &damaged);
    }
    for (part, reason) in damaged {
        let reason = format!(
            "{reason}; it follows from all topology, which is not all there, or not all asked for"
        );
        actions.note_lost(Lost::file(&graph.halo_path(part), reason));
    }
    Ok(())
}

/// Puts the header of a topology file right, if that is all that is wrong with it.
fn restore_topology(
    actions: &mut RepairActions,
    graph: &Graph,
    part: PartId,
) -> Result<Found, StoreError> {
    let Some(reason) = fault(graph, part, FileKind::Topology)? else { return Ok(Found::Usable) };
    let path = graph.topology_path(part);
    let Some((header, lists)) = rebuilt_header(graph, part)? else {
        let reason = format!("{reason}; it stays as it is: topology is nowhere else");
        actions.note_lost(Lost::file(&path, reason));
        return Ok(Found::Lost);
    };
    let action = "header rebuilt from the graph and the file; its old checksums vouch for it";
    actions.publish(&path, action.to_owned(), &mut |out| {
        out.append(&header)?;
        copy_rest(&lists, &header, out)
    })?;
    Ok(Found::Usable)
}

/// Returns the header that a topology file must have, if what is left of its header vouches for it,
/// and what it was computed from.
fn rebuilt_header(graph: &Graph, part: PartId) -> Result<Option<(Vec<u8>, Lists)>, StoreError> {
    let path = graph.topology_path(part);
    let (file, head) = match read_head(&**graph.device(), &path) {
        Err(error) if error.origin() == ErrorOrigin::System => return Err(error),
        // A file that cannot be read has no header to vouch for anything.
        Err(_) => return Ok(None),
        Ok(read) => read,
    };
    let file_bytes = file.len_bytes().map_err(StoreError::io(&path, "read the length of"))?;
    let uuid = *graph.uuid().as_bytes();
    let Ok(check) = FileCheck::of_headless_topology(
        file_bytes,
        FilePartition { book: graph.book(), part, uuid },
    ) else {
        return Ok(None);
    };
    let lists = Lists::of(path, file, file_bytes, check);
    let Some(sums) = sums(&lists) else { return Ok(None) };
    let header = lists.check().header_of(sums).ok();
    Ok(header.filter(|header| verifies(&head, header)).map(|header| (header, lists)))
}

/// Returns what is wrong with a file of lists; `None` if it is sound.
///
/// Fails for a file of a later format.
fn fault(graph: &Graph, part: PartId, kind: FileKind) -> Result<Option<String>, StoreError> {
    let lists = match Lists::open(graph, part, kind) {
        Ok(lists) => lists,
        Err(ListsError::Fault {
            path,
            fault: FileFault::Header(HeaderFault::Version { found }),
        }) => {
            return Err(StoreError::NewerFormat { file: path, found, supported: FORMAT_VERSION });
        }
        Err(ListsError::Store(error)) if error.origin() == ErrorOrigin::System => {
            return Err(error);
        }
        Err(error) => return Ok(Some(error.to_string())),
    };
    Ok(match sums(&lists) {
        None => Some("it cannot be read".to_owned()),
        Some(sums) => lists.check().finish(sums).err().map(|fault| fault.to_string()),
    })
}

/// Returns the sums of all pieces; `None` if one cannot be read.
fn sums(lists: &Lists) -> Option<Vec<PieceSum>> {
    let mut buffer = Vec::new();
    for piece in 0..lists.n_pieces() {
        lists.sum(piece, &mut buffer).ok()?;
    }
    lists.sums()
}

/// Copies what `header` was computed from; fails when it is not what it was then.
fn copy_rest(lists: &Lists, header: &[u8], out: &mut dyn FileWriter) -> io::Result<()> {
    let mut buffer = Vec::new();
    for piece in 0..lists.n_pieces() {
        let n_bytes = lists.sum(piece, &mut buffer).map_err(io::Error::other)?;
        out.append(&buffer[..n_bytes])?;
    }
    let copied = lists.sums().and_then(|sums| lists.check().header_of(sums).ok());
    if copied.as_deref() == Some(header) {
        return Ok(());
    }
    let reason = "it was sound and cannot be read as it was; repair again";
    Err(io::Error::new(io::ErrorKind::InvalidData, reason))
}

/// Finds the halos of damaged files again from the topology of the whole graph.
fn rebuild_halos(
    actions: &mut RepairActions,
    graph: &Graph,
    damaged: &[(PartId, String)],
) -> Result<(), StoreError> {
    let action = |reason: &str| format!("found again from the topology ({reason})");
    if actions.is_dry_run() {
        for (part, reason) in damaged {
            actions.quarantine(&graph.halo_path(*part))?;
            actions.note(&graph.halo_path(*part), action(reason));
        }
        return Ok(());
    }
    let (book, uuid) = (graph.book(), graph.uuid());
    let paths: Vec<PathBuf> = book.parts().map(|part| graph.topology_path(part)).collect();
    let unusable =
        |reason: String| StoreError::Unrepairable { file: graph.dir().to_owned(), reason };
    let topology = open_topology(&*actions.device, &paths, book, uuid).map_err(unusable)?;
    let mut failure = None;
    let found = find_halos(&topology, book, &mut |part, halo| {
        let wanted = damaged.iter().find(|(of, _)| *of == part);
        if let (Some((_, reason)), None) = (wanted, &failure) {
            let bytes = halo.to_bytes(book, part, *uuid.as_bytes());
            let path = graph.halo_path(part);
            failure = actions.publish(&path, action(reason), &mut |out| out.append(&bytes)).err();
        }
        Ok(())
    });
    found.map_err(|error| unusable(error.to_string()))?;
    failure.map_or(Ok(()), Err)
}

/// Returns the topology of all partitions, mapped, or read where there is nothing to map.
pub(super) fn open_topology(
    device: &dyn FileSystem,
    paths: &[PathBuf],
    book: &PartitionBook,
    uuid: Uuid,
) -> Result<Topology, String> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| StoreError::io(&path, "read")(error).to_string()
    };
    let mut files = Vec::new();
    for path in paths {
        files.push((path, device.open(path).map_err(failed(path))?));
    }
    let uuid = *uuid.as_bytes();
    if files.iter().all(|(_, file)| file.as_file().is_some()) {
        return Topology::open(paths, book, uuid).map_err(|error| error.to_string());
    }
    let read = |(path, file): (&PathBuf, Box<dyn FileReader>)| {
        let mut bytes = vec![0; file.len_bytes().map_err(failed(path))? as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed(path))?;
        Ok(bytes)
    };
    let bytes = files.into_iter().map(read).collect::<Result<Vec<_>, String>>()?;
    Topology::from_bytes(bytes, book, uuid).map_err(|error| error.to_string())
}

/// Paths of the topology of each partition that is here.
pub(super) fn paths(partitions: &BTreeMap<PartId, Partition>) -> Vec<PathBuf> {
    partitions.values().map(|partition| topology_path(&partition.dir)).collect()
}
