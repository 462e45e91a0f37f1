//! Subjects of the measurements: graphs that stand for the papers', and graphs of the user's own.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::papers::{MODELS, Model, Published};
use lode_cli::usage::UsageError;

/// A graph, and the batches that it is trained with.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) origin: Origin,
    pub(super) batches: Vec<(usize, Option<Published>)>,
}

/// Origin of a graph.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// Generated, to stand for a paper's.
    Model(&'static Model),
    /// Imported before, in a folder that stays as it is.
    Folder(PathBuf),
}

impl Subject {
    /// Returns the papers' graphs that `names` lists, or all where neither it nor `folders` has
    /// any, then those in `folders`. `batches` take the place of the papers' batch sizes, at
    /// `scale`.
    pub(super) fn all(
        names: &[String],
        folders: &[PathBuf],
        batches: &[usize],
        scale: f64,
    ) -> Result<Vec<Self>> {
        let models: &'static [Model] = &MODELS;
        let is_asked = |model: &&Model| match names {
            [] => folders.is_empty(),
            names => names.iter().any(|name| name == model.name),
        };
        let of_model = |model: &'static Model| Self {
            name: model.name.to_owned(),
            origin: Origin::Model(model),
            batches: batches_of(model, batches, scale),
        };
        let mut subjects: Vec<Self> = models.iter().filter(is_asked).map(of_model).collect();
        if !folders.is_empty() && batches.is_empty() {
            let message =
                "--graph needs --batches N,...: roots of a batch, as the papers' graphs have";
            return Err(UsageError::new(message).into());
        }
        for folder in folders {
            let name = name_of(folder)?;
            if subjects.iter().any(|other| other.name == name) {
                let message =
                    format!("--graph: two graphs are named `{name}`; rename one's folder");
                return Err(UsageError::new(message).into());
            }
            subjects.push(Self {
                name,
                origin: Origin::Folder(folder.clone()),
                batches: batches.iter().map(|&batch| (batch, None)).collect(),
            });
        }
        Ok(subjects)
    }

    /// Returns the paper's graph that it stands for.
    pub(super) fn model(&self) -> Option<&'static Model> {
        match self.origin {
            Origin::Model(model) => Some(model),
            Origin::Folder(_) => None,
        }
    }

    /// Returns the middle batch size.
    pub(super) fn middle_batch(&self) -> usize {
        self.batches[self.batches.len() / 2].0
    }
}

/// Returns the paper's batches at `scale`, or those of `asked`, with the paper's figures of their
/// size.
fn batches_of(model: &Model, asked: &[usize], scale: f64) -> Vec<(usize, Option<Published>)> {
    let usual = || model.batches(scale).into_iter().zip(model.rapidgnn);
    if asked.is_empty() {
        return usual().map(|(batch, published)| (batch, Some(published))).collect();
    }
    let published = |batch| usual().find(|(other, _)| *other == batch).map(|(_, of)| of);
    asked.iter().map(|&batch| (batch, published(batch))).collect()
}

fn name_of(folder: &Path) -> Result<String> {
    let path = folder.canonicalize();
    let path = path.with_context(|| format!("--graph {}: cannot open", folder.display()))?;
    let name = path.file_name().context("--graph: a folder with a name is needed, found `/`")?;
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_the_papers_figures_where_their_size_is_the_papers() {
        let subjects = Subject::all(&[], &[], &[], 0.1).unwrap();
        assert_eq!(subjects.len(), MODELS.len());
        assert_eq!(subjects[0].batches.iter().map(|of| of.0).collect::<Vec<_>>(), [100, 200, 300]);
        let only = ["products-like".to_owned()];
        let subjects = Subject::all(&only, &[], &[1000, 1500, 3000], 1.0).unwrap();
        let paper = |of: &(usize, Option<Published>)| of.1.map(|of| of.batch);
        let papers: Vec<_> = subjects[0].batches.iter().map(paper).collect();
        assert_eq!(papers, [Some(1000), None, Some(3000)]);
        assert_eq!(subjects[0].middle_batch(), 1500);
    }

    #[test]
    fn folders_need_batches_and_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let folders: Vec<PathBuf> = ["a/g", "b/g", "h"].map(|name| dir.path().join(name)).to_vec();
        folders.iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
        let error = |folders: &[PathBuf], batches: &[usize]| {
            Subject::all(&[], folders, batches, 1.0).err().unwrap().to_string()
        };
        assert!(error(&folders, &[]).contains("--batches"));
        assert!(error(&folders, &[7]).contains("two graphs are named `g`"));
        assert!(error(&[dir.path().join("none")], &[7]).contains("cannot open"));
        let subjects = Subject::all(&[], &folders[1..], &[7, 9], 1.0).unwrap();
        assert_eq!(subjects.iter().map(|of| &of.name[..]).collect::<Vec<_>>(), ["g", "h"]);
        assert!(subjects.iter().all(|of| of.model().is_none() && of.batches.len() == 2));
    }
}
