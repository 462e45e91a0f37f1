//! The folder with a run's checkpoint: one file, replaced as a whole.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use lodestore_graph::create_partial;
use rustix::fs::OFlags;

use super::format::{self, HEADER_BYTES, Header};
use super::{Checkpoint, CheckpointError, CheckpointFault, Identity};

/// A folder that is locked against other runs.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    _lock: File,
}

impl Folder {
    /// Opens or makes the folder. Refuses a folder with a checkpoint unless `resume`.
    pub(crate) fn open(dir: &Path, resume: bool) -> Result<Self, CheckpointError> {
        make_durable(dir)?;
        let path = dir.join("lock");
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let lock = options.open(&path).map_err(io_error(&path, "create"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(CheckpointError::Busy { path: dir.to_owned() });
            }
            Err(TryLockError::Error(source)) => {
                return Err(CheckpointError::Io { path, action: "lock", source });
            }
        }
        let folder = Self { dir: dir.to_owned(), _lock: lock };
        let path = folder.path();
        if !resume && path.try_exists().map_err(io_error(&path, "look for"))? {
            return Err(CheckpointError::Exists { path });
        }
        Ok(folder)
    }

    /// Loads the checkpoint, if there is one.
    pub(super) fn load(
        &self,
        identity: &Identity,
    ) -> Result<Option<Checkpoint<'static>>, CheckpointError> {
        let path = self.path();
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(io_error(&path, "open"))?,
        };
        let n_bytes = file.metadata().map_err(io_error(&path, "measure"))?.len();
        let in_file = |fault| self.fault(fault);
        let mut bytes = Vec::new();
        let mut read = |most| (&file).take(most).read_to_end(&mut bytes);
        read(HEADER_BYTES as u64).map_err(io_error(&path, "read"))?;
        // Lengths in the header are checked against the file's size, the model and the run first.
        let header = Header::decode(&bytes).map_err(in_file)?;
        header.check_length(n_bytes).map_err(in_file)?;
        let place = identity.check_place(header.place(), header.n_losses);
        let is_other =
            header.n_elements != identity.n_elements() || header.n_replicas != identity.n_replicas;
        if is_other || place.is_err() {
            let n_settings = u64::from(header.settings_bytes);
            let mut read = |most| (&file).take(most).read_to_end(&mut bytes);
            read(n_settings).map_err(io_error(&path, "read"))?;
            let settings = &bytes[HEADER_BYTES..];
            let checked = format::check_identity(&header, settings, identity).and(place);
            checked.map_err(in_file)?;
        }
        let mut read = |most| (&file).take(most).read_to_end(&mut bytes);
        read(n_bytes - HEADER_BYTES as u64).map_err(io_error(&path, "read"))?;
        format::decode(&bytes, identity).map(Some).map_err(in_file)
    }

    /// Replaces the checkpoint by `bytes`. They are written to a file beside it and synced, the
    /// file is renamed, and the folder is synced. A crash at any point leaves either the old or the
    /// new checkpoint.
    pub(super) fn save(&self, bytes: &[u8]) -> Result<(), CheckpointError> {
        let (path, partial) = (self.path(), self.dir.join("checkpoint.partial"));
        let mut file = create_partial(&partial).map_err(io_error(&partial, "create"))?;
        file.write_all(bytes).map_err(io_error(&partial, "write"))?;
        file.sync_all().map_err(io_error(&partial, "sync"))?;
        fs::rename(&partial, &path).map_err(io_error(&path, "replace"))?;
        let dir = File::open(&self.dir).and_then(|dir| dir.sync_all());
        dir.map_err(io_error(&self.dir, "sync"))
    }

    /// Returns the error of a checkpoint with this fault.
    pub(super) fn fault(&self, fault: CheckpointFault) -> CheckpointError {
        CheckpointError::File { path: self.path(), fault }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("checkpoint")
    }
}

/// Makes the folder and its parents, and syncs each entry.
fn make_durable(dir: &Path) -> Result<(), CheckpointError> {
    let parents = parents_of_missing(dir);
    fs::create_dir_all(dir).map_err(io_error(dir, "make folder"))?;
    for parent in parents {
        let synced = File::open(&parent).and_then(|parent| parent.sync_all());
        synced.map_err(io_error(&parent, "sync"))?;
    }
    Ok(())
}

/// Returns the folders that get an entry when `dir` is made, the innermost first.
pub(super) fn parents_of_missing(dir: &Path) -> Vec<PathBuf> {
    let here = |parent: &Path| match parent {
        // The parent of a relative path of one name.
        empty if empty.as_os_str().is_empty() => PathBuf::from("."),
        parent => parent.to_owned(),
    };
    let missing = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
    missing.filter_map(|dir| dir.parent().map(here)).collect()
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Io { path, action, source }
}
