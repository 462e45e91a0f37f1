//! Topology and halos: topology is in one place only, halos follow from it.

use std::path::{Path, PathBuf};

use lodestore_graph::PartId;
use lodestore_graph::halo::find_halos;
use lodestore_graph::topology::Topology;

use super::actions::RepairActions;
use super::report::Lost;
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::graph::Graph;
use crate::verify::verify_lists;

/// Looks at topology and halos of `parts`, and repairs halos if all topology of the graph is among
/// it and sound. Damaged topology stays where it is.
pub(super) fn restore(
    actions: &mut RepairActions,
    graph: &Graph,
    parts: &[PartId],
) -> Result<(), StoreError> {
    let is_here = |part: &&PartId| actions.fs.exists(&graph.part_dir(**part));
    let here: Vec<PartId> = parts.iter().filter(is_here).copied().collect();
    let mut all_usable = here.len() == usize::from(graph.book().n_parts());
    let mut damaged = Vec::new();
    for &part in &here {
        let report = verify_lists(graph, part)?;
        let fault = |path: &Path| {
            let path = path.display().to_string();
            report.damaged.iter().find(|it| it.file == path).map(|it| it.reason.clone())
        };
        let path = graph.topology_path(part);
        if let Some(reason) = fault(&path) {
            all_usable = false;
            let reason = format!(
                "{reason}; it stays as it is, and rows are served without it; bring the file back \
                 from a copy, or move the partition's folder away and fetch the partition from a \
                 replica"
            );
            actions.note_lost(Lost::file(&path, reason));
        }
        damaged.extend(fault(&graph.halo_path(part)).map(|reason| (part, reason)));
    }
    if all_usable && !damaged.is_empty() {
        return rebuild_halos(actions, graph, &damaged);
    }
    for (part, reason) in damaged {
        let reason = format!(
            "{reason}; it follows from all topology, which is not all there, or not all asked for; \
             bring that back and repair again"
        );
        actions.note_lost(Lost::file(&graph.halo_path(part), reason));
    }
    Ok(())
}

/// Returns whether the file of the file system is one of the system's, so that it can be mapped.
fn is_on_system(fs: &dyn FileSystem, path: &Path) -> bool {
    fs.open(path).is_ok_and(|file| file.as_file().is_some())
}

/// Returns the bytes of a file.
fn read_whole(fs: &dyn FileSystem, path: &Path) -> Result<Vec<u8>, StoreError> {
    let file = fs.open(path).map_err(StoreError::io(path, "open"))?;
    let n_bytes = file.len_bytes().map_err(StoreError::io(path, "measure"))?;
    let mut bytes = vec![0; usize::try_from(n_bytes).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0).map_err(StoreError::io(path, "read"))?;
    Ok(bytes)
}

/// Finds the halos of damaged files again from the topology of the whole graph.
fn rebuild_halos(
    actions: &mut RepairActions,
    graph: &Graph,
    damaged: &[(PartId, String)],
) -> Result<(), StoreError> {
    let (book, uuid) = (graph.book(), graph.uuid());
    let unusable =
        |reason: String| StoreError::Unrepairable { file: graph.dir().to_owned(), reason };
    let paths: Vec<PathBuf> = book.parts().map(|part| graph.topology_path(part)).collect();
    let fs = &*actions.fs;
    let topology = if paths.iter().all(|path| is_on_system(fs, path)) {
        // Mapped: it may be longer than memory.
        Topology::open(&paths, book, *uuid.as_bytes())
    } else {
        let files = paths.iter().map(|path| read_whole(fs, path));
        Topology::from_bytes(files.collect::<Result<_, _>>()?, book, *uuid.as_bytes())
    };
    let topology = topology.map_err(|error| unusable(error.to_string()))?;
    let mut failure = None;
    let found = find_halos(&topology, book, &mut |part, halo| {
        let wanted = damaged.iter().find(|(of, _)| *of == part);
        if let (Some((_, reason)), None) = (wanted, &failure) {
            let bytes = halo.to_bytes(book, part, *uuid.as_bytes());
            let path = graph.halo_path(part);
            let action = format!("found again from the topology ({reason})");
            failure = actions.publish(&path, action, &mut |out| out.append(&bytes)).err();
        }
        Ok(())
    });
    found.map_err(|error| unusable(error.to_string()))?;
    failure.map_or(Ok(()), Err)
}
