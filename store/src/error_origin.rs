//! Whether an error says something about the files, or only about the system that was asked.

use std::io;

use rustix::io::Errno;

/// The cause of a failed read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// It is not there, or not as it must be.
    Damage,
    /// The medium does not give it back, at this attempt.
    Medium,
    /// The system refused to look: too few descriptors or memory, no permission, a lock. It says
    /// nothing about the files.
    System,
}

impl ErrorOrigin {
    /// Returns the cause behind an error of the system or of RocksDB, which describes its causes in
    /// words only.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        if let Some(errno) = Errno::from_io_error(error) {
            return Self::of_errno(errno);
        }
        let words = error.to_string();
        match error.kind() {
            // RocksDB wraps what the system says in errors of other kinds, too.
            _ if words.contains("IO error: ") => Self::of_words(&words),
            Kind::NotFound | Kind::InvalidData | Kind::UnexpectedEof | Kind::InvalidInput => {
                Self::Damage
            }
            Kind::Other if words.starts_with("Invalid argument: ") => Self::Damage,
            Kind::Other if words.starts_with("Not implemented: ") => Self::Damage,
            _ => Self::System,
        }
    }

    fn of_errno(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP => Self::Damage,
            Errno::IO | Errno::BADMSG | Errno::UCLEAN | Errno::NODATA | Errno::ILSEQ => {
                Self::Medium
            }
            _ => Self::System,
        }
    }

    /// Finds the origin by RocksDB's message, which ends with the system's own words for errors of
    /// input and output.
    fn of_words(words: &str) -> Self {
        let told_by = |errno: &Errno| {
            let of_system = io::Error::from(*errno).to_string();
            let plain = of_system.split(" (os error").next().unwrap_or_default();
            words.contains(plain)
        };
        let told = [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::IO, Errno::BADMSG];
        told.iter()
            .find(|errno| told_by(errno))
            .map_or(Self::System, |errno| Self::of_errno(*errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_and_the_files_are_distinguished() {
        let of = |errno: Errno| ErrorOrigin::of(&errno.into());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS, Errno::ROFS] {
            assert_eq!(of(errno), ErrorOrigin::System, "{errno}");
        }
        assert_eq!(of(Errno::NOENT), ErrorOrigin::Damage);
        assert_eq!(of(Errno::IO), ErrorOrigin::Medium);
        assert_eq!(ErrorOrigin::of(&io::ErrorKind::WouldBlock.into()), ErrorOrigin::System);
        assert_eq!(ErrorOrigin::of(&io::ErrorKind::InvalidData.into()), ErrorOrigin::Damage);
    }

    #[test]
    fn words_of_rocksdb_tell_what_numbers_would() {
        let of = |words: &str| ErrorOrigin::of(&io::Error::other(words.to_owned()));
        let open = "IO error: While open a file for random read: /a/000009.sst: ";
        assert_eq!(of(&format!("{open}Too many open files")), ErrorOrigin::System);
        assert_eq!(of(&format!("{open}Permission denied")), ErrorOrigin::System);
        assert_eq!(of(&format!("{open}No such file or directory")), ErrorOrigin::Damage);
        assert_eq!(of(&format!("{open}Input/output error")), ErrorOrigin::Medium);
        assert_eq!(of("Invalid argument: unknown checksum type"), ErrorOrigin::Damage);
        let wrapped = "Invalid argument: Found options incompatible with filesystem: ";
        assert_eq!(of(&format!("{wrapped}{open}Too many open files")), ErrorOrigin::System);
        let corruption = format!("Corruption: Can't access /000009.sst: {open}Too many open files");
        let corruption = io::Error::new(io::ErrorKind::InvalidData, corruption);
        assert_eq!(ErrorOrigin::of(&corruption), ErrorOrigin::System);
        assert_eq!(of("something else"), ErrorOrigin::System);
    }
}
