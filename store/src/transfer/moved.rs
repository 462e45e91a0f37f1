//! Where partitions went that a folder gave up: a file beside them, for those that look for them.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use lodestore_graph::PartId;

use crate::error::StoreError;
use crate::graph::Graph;
use crate::new_file::replace_file;

/// Name of the file: lines of a partition and the address of the server that took it over.
const MOVED_FILE: &str = "moved-to";
/// Most bytes of it: an address for each of 65 535 partitions.
const MOVED_BYTES_MAX: u64 = 16 << 20;

impl Graph {
    /// Returns the servers that took over partitions from this folder, as far as they are noted.
    /// Lines that are not understood are passed over: nothing depends on them.
    pub fn moved_to(&self) -> Result<BTreeMap<PartId, String>, StoreError> {
        let path = self.dir().join(MOVED_FILE);
        let file = match self.file_system().open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
            file => file.map_err(StoreError::io(&path, "open"))?,
        };
        let n_bytes = file.len_bytes().map_err(StoreError::io(&path, "read"))?;
        let mut text = vec![0; n_bytes.min(MOVED_BYTES_MAX) as usize];
        file.read_exact_at(&mut text, 0).map_err(StoreError::io(&path, "read"))?;
        Ok(parse(&String::from_utf8_lossy(&text)))
    }

    /// Notes the servers that took over partitions, durably, in the place of what was noted.
    pub fn note_moved_to(&self, moved: &BTreeMap<PartId, String>) -> Result<(), StoreError> {
        let path = self.dir().join(MOVED_FILE);
        if moved.is_empty() && !self.file_system().exists(&path) {
            return Ok(());
        }
        let text: String = moved.iter().map(|(part, to)| format!("{part} {to}\n")).collect();
        replace_file(&**self.file_system(), &path, text.as_bytes())
    }
}

fn parse(text: &str) -> BTreeMap<PartId, String> {
    let mut moved = BTreeMap::new();
    for line in text.lines() {
        let Some((part, to)) = line.split_once(' ') else { continue };
        if let Ok(part) = part.parse() {
            moved.insert(PartId(part), to.to_owned());
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_not_understood_are_passed_over() {
        let moved = parse("1 10.0.0.6:7171\nnonsense\nx y\n99999 z\n3 unix:/a b\n");
        let expected = [(PartId(1), "10.0.0.6:7171"), (PartId(3), "unix:/a b")];
        assert_eq!(moved, expected.map(|(part, to)| (part, to.to_owned())).into());
        assert_eq!(parse("\u{fffd}\u{fffd}"), BTreeMap::new());
    }
}
