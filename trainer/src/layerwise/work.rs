//! A pass on disk: the rows of its stages and its progress, so that a killed pass continues.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use lodestore_graph::create_partial;
use serde::{Deserialize, Serialize};

use super::RowStore;

/// Time between two records of the progress.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// The record's file.
const STATE: &str = "state.json";

/// Progress of a pass: complete stages, and complete chunks of the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PassPlace {
    pub(crate) stage: usize,
    pub(crate) n_chunks: usize,
}

/// Contents of the record.
#[derive(Serialize, Deserialize)]
struct State {
    identity: String,
    place: PassPlace,
}

/// The folder of a pass, used by one process at a time.
///
/// Rows are on disk before the record that says so; the record is replaced as a whole. So a crash
/// at any point leaves a record of rows that are there.
#[derive(Debug)]
pub(crate) struct WorkFolder {
    pub(crate) dir: PathBuf,
    identity: String,
    /// Progress at the last record.
    pub(crate) place: PassPlace,
    saved: Instant,
    save_every: Duration,
}

impl WorkFolder {
    /// Opens or creates the folder. Removes the leftovers of a pass of another `identity`.
    pub(crate) fn open(dir: &Path, identity: &str) -> io::Result<Self> {
        let (dir, identity) = (dir.to_owned(), identity.to_owned());
        let state = match fs::read(dir.join(STATE)) {
            Ok(bytes) => serde_json::from_slice::<State>(&bytes).ok(),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let place = match state.filter(|state| state.identity == identity) {
            Some(state) => state.place,
            None => {
                remove(&dir)?;
                fs::create_dir(&dir)?;
                PassPlace::default()
            }
        };
        Ok(Self { dir, identity, place, saved: Instant::now(), save_every: SAVE_EVERY })
    }

    /// Saves the place after every round, for tests that end a pass anywhere.
    #[cfg(test)]
    pub(crate) fn saving_always(self) -> Self {
        Self { save_every: Duration::ZERO, ..self }
    }

    /// Opens the file of a stage's rows. It must have `n_bytes`; the rest is truncated.
    pub(crate) fn rows_file(&self, stage: usize, n_bytes: u64) -> io::Result<File> {
        let path = self.path(stage);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
        let found = file.metadata()?.len();
        if found < n_bytes {
            let reason = format!(
                "{} has {found} bytes of the {n_bytes} that are recorded; remove the folder to \
                 start again",
                path.display()
            );
            return Err(io::Error::new(ErrorKind::UnexpectedEof, reason));
        }
        file.set_len(n_bytes)?;
        Ok(file)
    }

    /// Records `place` if the last record is old enough.
    pub(crate) fn save_if_due(&mut self, place: PassPlace, rows: &RowStore) -> io::Result<()> {
        if self.saved.elapsed() >= self.save_every { self.save(place, rows) } else { Ok(()) }
    }

    /// Records `place` once `rows`, those of the present stage, are on disk. Rows that no stage
    /// from there on reads are removed.
    pub(crate) fn save(&mut self, place: PassPlace, rows: &RowStore) -> io::Result<()> {
        rows.sync()?;
        let state = State { identity: self.identity.clone(), place };
        let partial = self.dir.join(format!("{STATE}.partial"));
        let mut file = create_partial(&partial)?;
        file.write_all(&serde_json::to_vec(&state)?)?;
        file.sync_all()?;
        fs::rename(&partial, self.dir.join(STATE))?;
        File::open(&self.dir)?.sync_all()?;
        (self.place, self.saved) = (place, Instant::now());
        match place.stage.checked_sub(2).map(|old| fs::remove_file(self.path(old))) {
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, stage: usize) -> PathBuf {
        self.dir.join(format!("rows-{stage}"))
    }
}

/// Removes the folder of a pass, if it exists. Fails for a folder with other files, and removes
/// none of these.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_ours = |name: &str| name.starts_with("rows-") || name.starts_with(STATE);
    if let Some(other) = entries.iter().find(|entry| !is_ours(&entry.file_name().to_string_lossy()))
    {
        let reason = format!("{} is not of an inference; move it away", other.path().display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, reason));
    }
    // The record first: without it rows are of no use.
    match fs::remove_file(dir.join(STATE)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir_all(dir),
    }
}
