//! Several files of edges as one stream.

use std::path::PathBuf;

use super::{EdgeError, EdgeFile, EdgeFormat, EdgeStream, VisitChunk, believed_nodes};

/// Files whose edges follow each other, over nodes that they share.
#[derive(Clone, Debug)]
pub struct EdgeFiles {
    /// At least one, read in this order.
    pub files: Vec<EdgeFile>,
}

impl EdgeFiles {
    /// Returns a list of one file.
    #[must_use]
    pub fn one(file: EdgeFile) -> Self {
        Self { files: vec![file] }
    }

    /// Opens all files, each as [`EdgeFile::open`] does. Without `n_nodes` there are as many nodes
    /// as the largest id of all files asks for, in proportion to the edges of all.
    pub fn open(&self, n_nodes: Option<u32>) -> Result<Box<dyn EdgeStream>, EdgeError> {
        if let [file] = &self.files[..] {
            return file.open(n_nodes);
        }
        let mut streams = Vec::with_capacity(self.files.len());
        let mut sparse = Vec::new();
        for (i, file) in self.files.iter().enumerate() {
            match file.open(n_nodes) {
                Ok(stream) => streams.push(stream),
                // A short file of a large graph: all files together decide.
                Err(EdgeError::Sparse { found, n_edges, .. }) => sparse.push((i, found, n_edges)),
                Err(error) => return Err(error),
            }
        }
        if let Some(&(i, found, _)) = sparse.iter().max_by_key(|(_, found, _)| found) {
            let in_others: u64 = streams.iter().map(|stream| stream.n_edges()).sum();
            let n_edges = in_others + sparse.iter().map(|(_, _, n_edges)| n_edges).sum::<u64>();
            let n_nodes = believed_nodes(&self.files[i].path, found, n_edges)?;
            for (i, ..) in sparse {
                streams.insert(i, self.files[i].open(Some(n_nodes))?);
            }
        }
        Ok(Box::new(Chain::of(streams, n_nodes)))
    }

    /// Returns whether a pass must parse text.
    pub fn has_text(&self) -> Result<bool, EdgeError> {
        let formats = self.files.iter().map(EdgeFile::format);
        Ok(formats.collect::<Result<Vec<_>, _>>()?.contains(&EdgeFormat::Text))
    }

    /// Returns where the files are, for messages.
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

    #[test]
    fn a_short_file_of_a_large_graph_is_judged_with_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, pairs: &[[u32; 2]]| {
            let bytes: Vec<u8> =
                pairs.as_flattened().iter().flat_map(|id| id.to_le_bytes()).collect();
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            EdgeFile::at(path)
        };
        let text = dir.path().join("c.txt");
        std::fs::write(&text, "4 3999998\n").unwrap();
        let long: Vec<[u32; 2]> = (0..4000).map(|i| [i, i + 1]).collect();
        let rest = [write("a.u32", &[[3_999_999, 7]]), write("b.u32", &long), EdgeFile::at(text)];
        let all = EdgeFiles { files: rest.to_vec() };
        let edges = all.open(None).unwrap();
        assert_eq!((edges.n_edges(), edges.n_nodes()), (4002, 4_000_000));
        let mut seen = Vec::new();
        edges
            .for_each_chunk(&mut |chunk| {
                seen.extend_from_slice(chunk);
                Ok(())
            })
            .unwrap();
        assert_eq!([seen[0], seen[1], seen[4001]], [[3_999_999, 7], [0, 1], [4, 3_999_998]]);
        let few = EdgeFiles { files: vec![rest[0].clone(), rest[2].clone()] };
        let Err(EdgeError::Sparse { path, found, n_edges }) = few.open(None) else { panic!() };
        assert!(path.ends_with("a.u32") && (found, n_edges) == (4_000_000, 2), "{path:?}");
    }
}
