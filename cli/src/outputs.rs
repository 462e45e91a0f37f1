//! Files that the flags of a command name: outputs lie outside graphs, and apart from each other and
//! from the inputs.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lodestore_graph::{OutputPlace, is_stream};
use lodestore_store::graph::META_FILE;

use crate::usage::UsageError;

/// Outputs and inputs of a command, each with the flag that names it.
#[derive(Default)]
pub struct NamedFiles {
    outputs: Vec<NamedFile>,
    inputs: Vec<NamedFile>,
}

struct NamedFile {
    flag: &'static str,
    path: PathBuf,
}

impl NamedFiles {
    /// Adds files that the command writes.
    #[must_use]
    pub fn outputs<P: AsRef<Path>>(
        mut self,
        flag: &'static str,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        self.outputs.extend(named(flag, paths));
        self
    }

    /// Adds files that the command reads.
    #[must_use]
    pub fn inputs<P: AsRef<Path>>(
        mut self,
        flag: &'static str,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        self.inputs.extend(named(flag, paths));
        self
    }

    /// Fails for an output that would destroy a file of a graph, an input, another output, or what
    /// the command prints.
    pub fn check(&self) -> Result<(), UsageError> {
        for (position, output) in self.outputs.iter().enumerate() {
            output.check_outside_graphs()?;
            output.check_apart_from_stdout()?;
            for input in &self.inputs {
                output.check_apart_from_input(input)?;
            }
            for other in &self.outputs[..position] {
                output.check_apart_from_output(other)?;
            }
        }
        Ok(())
    }
}

fn named<P: AsRef<Path>>(
    flag: &'static str,
    paths: impl IntoIterator<Item = P>,
) -> impl Iterator<Item = NamedFile> {
    paths.into_iter().map(move |path| NamedFile { flag, path: path.as_ref().to_owned() })
}

impl NamedFile {
    /// Fails for an output in the folder of a graph, by its path as given or behind its links.
    fn check_outside_graphs(&self) -> Result<(), UsageError> {
        if is_stream(&self.path) {
            return Ok(());
        }
        for path in [absolute(&self.path), place(&self.path)] {
            if let Some(graph) = path.ancestors().find(|folder| folder.join(META_FILE).is_file()) {
                return Err(UsageError::new(format!(
                    "{} {}: is in the folder of the graph {}, which has no files but its own; name \
                     another place",
                    self.flag,
                    self.path.display(),
                    graph.display()
                )));
            }
        }
        Ok(())
    }

    /// Fails for the file that the command's stdout goes to: the report, which is printed there,
    /// would overwrite the output.
    fn check_apart_from_stdout(&self) -> Result<(), UsageError> {
        let Ok(stdout) = rustix::fs::fstat(io::stdout().as_fd()) else { return Ok(()) };
        let is_file = rustix::fs::FileType::from_raw_mode(stdout.st_mode).is_file();
        let is_same = fs::metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (stdout.st_dev, stdout.st_ino));
        if is_file && is_same {
            return Err(UsageError::new(format!(
                "{} {}: is the file that stdout goes to, where the report is printed; name another \
                 file",
                self.flag,
                self.path.display()
            )));
        }
        Ok(())
    }

    fn check_apart_from_input(&self, input: &Self) -> Result<(), UsageError> {
        if is_stream(&self.path) || is_stream(&input.path) || !self.is_same_file(input) {
            return Ok(());
        }
        Err(UsageError::new(format!(
            "{} {} and {} {}: the output would replace the input; name another file",
            self.flag,
            self.path.display(),
            input.flag,
            input.path.display()
        )))
    }

    fn check_apart_from_output(&self, other: &Self) -> Result<(), UsageError> {
        if !self.is_same_file(other) {
            return Ok(());
        }
        Err(UsageError::new(format!(
            "{} {} and {} {}: both outputs would be one file; name one for each",
            other.flag,
            other.path.display(),
            self.flag,
            self.path.display()
        )))
    }

    /// Returns whether both paths lead to one file, which need not exist.
    fn is_same_file(&self, other: &Self) -> bool {
        let identity = |found: Metadata| (found.dev(), found.ino());
        match (fs::metadata(&self.path), fs::metadata(&other.path)) {
            (Ok(own), Ok(other)) => identity(own) == identity(other),
            (Err(_), Err(_)) => place(&self.path) == place(&other.path),
            _ => false,
        }
    }
}

/// Returns the place that a path leads to, behind the links of its folders and its own.
fn place(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    let path = match OutputPlace::of(path) {
        Ok(OutputPlace::File(place)) => place,
        Ok(OutputPlace::Stream(_)) | Err(_) => path.to_owned(),
    };
    let path = absolute(&path);
    // The folders that exist, and the names behind them.
    for folder in path.ancestors() {
        if let (Ok(found), Ok(rest)) = (folder.canonicalize(), path.strip_prefix(folder)) {
            return found.join(rest);
        }
    }
    path
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns what is said of an output `--out` and an input `--in`.
    fn refusal(output: &Path, input: &Path) -> String {
        let files = NamedFiles::default().outputs("--out", [output]).inputs("--in", [input]);
        files.check().err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn outputs_in_a_graph_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("g/part-000")).unwrap();
        fs::create_dir(at("elsewhere")).unwrap();
        fs::write(at("g/graph.toml"), "").unwrap();
        fs::write(at("g/part-000/topology.csr"), "").unwrap();
        symlink(at("g/part-000/topology.csr"), at("link")).unwrap();
        symlink(at("g/part-000/new"), at("link-to-none")).unwrap();
        symlink(at("g/part-000"), at("folder")).unwrap();
        symlink(at("elsewhere"), at("g/part-001")).unwrap();
        for output in [
            "g",
            "g/graph.toml",
            "g/part-000/topology.csr",
            "g/part-000/no/such/folder",
            "elsewhere/../g/new",
            "link",
            "link-to-none",
            "folder/new",
            "g/part-001/new",
        ] {
            let said = refusal(&at(output), &at("in"));
            assert!(
                said.contains("--out") && said.contains("folder of the graph"),
                "{output}: {said}"
            );
        }
        for output in ["new", "elsewhere/new", "no/such/folder/new"] {
            assert_eq!(refusal(&at(output), &at("in")), "", "{output}");
        }
    }

    #[test]
    fn outputs_that_are_inputs_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("in"), "precious").unwrap();
        symlink(at("in"), at("link")).unwrap();
        fs::hard_link(at("in"), at("hard")).unwrap();
        for output in ["in", "link", "hard", "./in"] {
            let said = refusal(&at(output), &at("in"));
            let names_both = said.contains("--out") && said.contains("--in");
            assert!(names_both && said.contains("replace the input"), "{output}: {said}");
        }
        assert_eq!(refusal(&at("out"), &at("in")), "");
        assert_eq!(refusal(Path::new("/dev/null"), Path::new("/dev/null")), "", "nothing is lost");
    }

    #[test]
    fn two_outputs_on_one_path_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink(at("new"), at("link")).unwrap();
        fs::write(at("old"), "").unwrap();
        symlink(at("old"), at("link-to-old")).unwrap();
        let outputs = |a: &Path, b: &Path| {
            let files = NamedFiles::default().outputs("--csv", [a]).outputs("--svg", [b]);
            files.check().err().map_or_else(String::new, |error| error.to_string())
        };
        for (csv, svg) in
            [("new", "new"), ("link", "new"), ("old", "link-to-old"), ("new", "./new")]
        {
            let said = outputs(&at(csv), &at(svg));
            assert!(said.contains("--csv") && said.contains("--svg"), "{csv} {svg}: {said}");
        }
        let said = outputs(Path::new("/dev/full"), Path::new("/dev/full"));
        assert!(said.contains("both outputs"), "{said}");
        assert_eq!(outputs(&at("new"), &at("old")), "");
    }
}
