//! Several files of edges as one stream.

use std::path::PathBuf;

use super::{EdgeError, EdgeFile, EdgeFormat, EdgeStream, VisitChunk};

/// Files whose edges follow each other, over nodes that they share.
#[derive(Clone, Debug)]
pub struct EdgeFiles {
    /// At least one, read in this order.
    pub files: Vec<EdgeFile>,
}

impl EdgeFiles {
    /// One file.
    #[must_use]
    pub fn one(file: EdgeFile) -> Self {
        Self { files: vec![file] }
    }

    /// Opens all files, each as [`EdgeFile::open`] does. Without `n_nodes` there are as many nodes
    /// as the largest id of all files asks for.
    pub fn open(&self, n_nodes: Option<u32>) -> Result<Box<dyn EdgeStream>, EdgeError> {
        let mut streams =
            self.files.iter().map(|file| file.open(n_nodes)).collect::<Result<Vec<_>, _>>()?;
        match streams.pop() {
            Some(one) if streams.is_empty() => Ok(one),
            last => {
                streams.extend(last);
                Ok(Box::new(Chain::of(streams, n_nodes)))
            }
        }
    }

    /// Whether a pass must parse text.
    pub fn has_text(&self) -> Result<bool, EdgeError> {
        let formats = self.files.iter().map(EdgeFile::format);
        Ok(formats.collect::<Result<Vec<_>, _>>()?.contains(&EdgeFormat::Text))
    }

    /// Where the files are, for messages.
    #[must_use]
    pub fn names(&self) -> String {
        let names: Vec<_> = self.files.iter().map(|f| f.path.display().to_string()).collect();
        names.join(", ")
    }
}

impl From<PathBuf> for EdgeFiles {
    fn from(path: PathBuf) -> Self {
        Self::one(EdgeFile::at(path))
    }
}

/// Streams one after the other.
struct Chain {
    streams: Vec<Box<dyn EdgeStream>>,
    n_edges: u64,
    n_nodes: u32,
}

impl Chain {
    fn of(streams: Vec<Box<dyn EdgeStream>>, n_nodes: Option<u32>) -> Self {
        let n_edges = streams.iter().map(|stream| stream.n_edges()).sum();
        let largest = streams.iter().map(|stream| stream.n_nodes()).max().unwrap_or(0);
        Self { streams, n_edges, n_nodes: n_nodes.unwrap_or(largest) }
    }
}

impl EdgeStream for Chain {
    fn n_edges(&self) -> u64 {
        self.n_edges
    }

    fn n_nodes(&self) -> u32 {
        self.n_nodes
    }

    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        self.streams.iter().try_for_each(|stream| stream.for_each_chunk(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_several_formats_follow_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            EdgeFile::at(path)
        };
        let raw: Vec<u8> = [7u32, 2, 0, 0].iter().flat_map(|id| id.to_le_bytes()).collect();
        let files = vec![
            write("a.txt", b"0 1\n1,2\n"),
            write("b.u32", &raw),
            write("c.csv", b""),
            write("d.el", b"5 5"),
        ];
        let files = EdgeFiles { files };
        assert!(files.has_text().unwrap());
        for (given, n_nodes) in [(None, 8), (Some(9), 9)] {
            let edges = files.open(given).unwrap();
            assert_eq!((edges.n_edges(), edges.n_nodes()), (5, n_nodes));
            for _ in 0..2 {
                let mut seen = Vec::new();
                edges
                    .for_each_chunk(&mut |chunk| {
                        seen.extend_from_slice(chunk);
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(seen, [[0, 1], [1, 2], [7, 2], [0, 0], [5, 5]]);
            }
        }
        let error = files.open(Some(7)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("b.u32: edge 0 names node 7"), "{error}");
        assert!(files.names().contains("a.txt, "), "{}", files.names());
        let raw = EdgeFiles { files: vec![files.files[1].clone()] };
        assert!(!raw.has_text().unwrap());
        assert_eq!(raw.open(None).unwrap().n_nodes(), 8);
    }
}
