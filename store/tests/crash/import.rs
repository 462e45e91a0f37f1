//! Import: there is no graph, or a whole one.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use lodestore_store::file_system::FileSystem;
use lodestore_store::file_system::crash::{CrashFileSystem, Neglect};
use lodestore_store::import::ImportError;

use crate::crash::small::{OUT, import};
use crate::crash::sweep::{Scenario, n_seeds, sweep_faults, sweep_losses};
use crate::crash::world::{Finding, Model, Op, World};

/// Returns a file system with the folder of graphs.
fn with_folder() -> CrashFileSystem {
    let fs = CrashFileSystem::new(0);
    fs.create_dir(Path::new("graphs")).unwrap();
    fs.sync(Path::new("")).unwrap();
    fs
}

/// Returns a file system with the imported graph.
pub(crate) fn imported() -> CrashFileSystem {
    let fs = with_folder();
    import(&(Arc::new(fs.clone()) as Arc<dyn FileSystem>)).unwrap();
    fs
}

struct Import;

impl Scenario for Import {
    /// Whether the import has said that it is done.
    type Acknowledged = bool;

    fn name(&self) -> &'static str {
        "import"
    }

    fn prepare(&self) -> CrashFileSystem {
        with_folder()
    }

    fn run(&self, fs: &CrashFileSystem, _: bool) -> Result<bool, Box<dyn Error>> {
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        match import(&fs).map_err(|error| error.to_string()) {
            Ok(_) => Ok(true),
            Err(told) if told.contains("graphs") && told.len() > 20 => Ok(false),
            Err(told) => Err(format!("not a clear error: {told}").into()),
        }
    }

    fn check(&self, crash: &CrashFileSystem, acknowledged: &bool, _: u64) -> Finding {
        let fs: Arc<dyn FileSystem> = Arc::new(crash.clone());
        if fs.exists(Path::new(OUT)) {
            match import(&fs) {
                Err(ImportError::Exists { .. }) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Err("imported over a graph".into()),
            }
        } else {
            if *acknowledged {
                return Err("an acknowledged import is gone".into());
            }
            import(&fs)?;
        }
        let mut world = World::new(crash, Model::imported());
        world.act(&Op::Look)?;
        world.act(&Op::Reopen)?;
        world.act(&Op::Verify)
    }
}

#[test]
fn an_import_is_whole_or_not_there_wherever_the_power_goes() {
    println!("{} outcomes", sweep_losses(&Import, None, n_seeds(8, 400)).unwrap());
}

#[test]
fn an_import_that_is_refused_anything_says_so_and_leaves_nothing_half_made() {
    println!("{} runs", sweep_faults(&Import).unwrap());
}

/// Checks that the sweep of a file system that breaks this promise finds it.
fn is_found(neglect: Neglect) {
    println!("{}", sweep_losses(&Import, Some(neglect), 8).unwrap_err());
}

#[test]
fn the_sweep_finds_skipped_syncs_of_files() {
    is_found(Neglect::FileSyncs);
}

#[test]
fn the_sweep_finds_skipped_syncs_of_folders() {
    is_found(Neglect::FolderSyncs);
}

#[test]
fn the_sweep_finds_catalogs_that_are_not_durable() {
    is_found(Neglect::PairSyncs);
}

#[test]
fn the_sweep_finds_a_graph_that_appears_before_its_files_are_durable() {
    is_found(Neglect::Order);
}
