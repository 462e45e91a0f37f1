//! Files that programs write for people: whole under their names, or not there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// Links that are followed from one to the next, as the kernel does.
const MAX_LINKS: usize = 40;

/// The place that an output's path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPlace {
    /// A regular file, or none yet; links are resolved. A new file may take its place.
    File(PathBuf),
    /// A pipe, a device or a file that is open elsewhere, by the path that was given. It is written
    /// to and never replaced.
    Stream(PathBuf),
}

impl OutputPlace {
    /// Follows the links of `path`, also those to no file yet.
    ///
    /// Fails for a folder, and for links that lead in a circle.
    pub fn of(path: &Path) -> io::Result<Self> {
        if path.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if is_stream(path) {
            return Ok(Self::Stream(path.to_owned()));
        }
        let mut place = path.to_owned();
        for _ in 0..MAX_LINKS {
            // A new file in the place of such a link would not reach who has it open.
            if is_of_kernel(&place) {
                return Ok(Self::Stream(path.to_owned()));
            }
            match fs::read_link(&place) {
                Ok(target) => place = folder_of(&place).join(target),
                Err(_) => return Ok(Self::File(place)),
            }
        }
        Err(io::Error::other("too many links, one behind the other"))
    }
}

/// Returns whether `path` leads to a pipe, a socket or a device: what can be read once, if at all.
#[must_use]
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// A file that is being written.
///
/// A regular file is written under another name in the same folder. It takes its name when it is
/// committed, and is removed if it is not.
#[derive(Debug)]
pub struct OutputFile {
    writer: Writer,
}

#[derive(Debug)]
enum Writer {
    Staged { file: NamedTempFile, place: PathBuf },
    Direct(File),
}

impl OutputFile {
    /// Begins an output at `path`. A regular file that is there keeps its content until the commit,
    /// and its permissions.
    pub fn create(path: &Path) -> io::Result<Self> {
        let place = match OutputPlace::of(path)? {
            OutputPlace::File(place) => place,
            OutputPlace::Stream(path) => {
                let file = OpenOptions::new().write(true).open(path)?;
                return Ok(Self { writer: Writer::Direct(file) });
            }
        };
        // As for any new file; the process's mask takes its part away.
        let usual = || Permissions::from_mode(0o666);
        let of_old = fs::metadata(&place).map(|found| found.permissions());
        let mut prefix = place.file_name().unwrap_or_default().to_owned();
        prefix.push(".");
        let mut builder = Builder::new();
        builder.prefix(&prefix).suffix(".partial").permissions(usual());
        let file = builder.tempfile_in(folder_of(&place))?;
        if let Ok(permissions) = of_old {
            file.as_file().set_permissions(permissions)?;
        }
        Ok(Self { writer: Writer::Staged { file, place } })
    }

    /// Makes what was written durable, where the place keeps anything.
    pub fn sync(&mut self) -> io::Result<()> {
        match &mut self.writer {
            Writer::Staged { file, .. } => file.as_file().sync_all(),
            Writer::Direct(file) => file.flush(),
        }
    }

    /// Gives the file its name.
    pub fn commit(self) -> io::Result<()> {
        match self.writer {
            Writer::Staged { file, place } => {
                file.persist(place)?;
                Ok(())
            }
            Writer::Direct(mut file) => file.flush(),
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.writer {
            Writer::Staged { file, .. } => file.write(bytes),
            Writer::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.writer {
            Writer::Staged { file, .. } => file.flush(),
            Writer::Direct(file) => file.flush(),
        }
    }
}

/// Creates a file that replaces what has its name: the rest of a killed writer, or a link, which is
/// not followed.
pub fn create_partial(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns whether a path is below `/proc` or `/dev`, whose links lead to open files.
fn is_of_kernel(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && components
            .next()
            .is_some_and(|top| matches!(top.as_os_str().to_str(), Some("proc" | "dev")))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileTypeExt, symlink};
    use std::process::Command;
    use std::thread;

    use super::*;

    fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = OutputFile::create(path)?;
        file.write_all(bytes)?;
        file.commit()
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all_and_keeps_its_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
        write(&path, b"first").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn links_are_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("far")).unwrap();
        fs::write(at("far/file"), "old").unwrap();
        symlink("far/file", at("link")).unwrap();
        symlink("link", at("second")).unwrap();
        symlink("far/new", at("dangling")).unwrap();
        write(&at("second"), b"new").unwrap();
        write(&at("dangling"), b"made").unwrap();
        for (name, to) in [("link", "far/file"), ("second", "link"), ("dangling", "far/new")] {
            assert_eq!(fs::read_link(at(name)).unwrap(), Path::new(to), "{name}");
        }
        assert_eq!(fs::read(at("far/file")).unwrap(), b"new");
        assert_eq!(fs::read(at("far/new")).unwrap(), b"made");
        symlink("round", at("round")).unwrap();
        assert!(OutputPlace::of(&at("round")).is_err());
        assert!(OutputFile::create(&at("far")).is_err(), "a folder");
    }

    #[test]
    fn pipes_and_devices_are_written_to_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let to_read = pipe.clone();
        let reader = thread::spawn(move || fs::read(to_read).unwrap());
        write(&pipe, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        write(Path::new("/dev/null"), b"gone").unwrap();
        assert_eq!(
            OutputPlace::of(Path::new("/dev/null")).unwrap(),
            OutputPlace::Stream("/dev/null".into())
        );
        let open = File::create(dir.path().join("open")).unwrap();
        let link = dir.path().join("fd");
        symlink(format!("/proc/self/fd/{}", open.as_raw_fd()), &link).unwrap();
        assert_eq!(OutputPlace::of(&link).unwrap(), OutputPlace::Stream(link.clone()));
    }
}
