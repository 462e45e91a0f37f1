//! The folder of a reproduction: a report, all figures, and charts.

use std::path::Path;
use std::{fmt, fs};

use anyhow::{Context, Result};
use serde::Serialize;

use lode_cli::console::Console;
use lode_cli::outputs::NamedFiles;

/// Figures that are written as a report and as charts.
pub(super) trait Figures: Serialize {
    /// Writes the report as Markdown.
    fn write(&self, text: &mut String) -> fmt::Result;

    /// Returns the report as Markdown.
    fn markdown(&self) -> String {
        let mut text = String::new();
        // Memory takes whatever is written to it.
        self.write(&mut text).map_or_else(|error| error.to_string(), |()| text)
    }

    /// Returns the charts by the names of their files.
    fn charts(&self) -> Result<Vec<(String, String)>>;
}

/// A folder that this run has made.
pub(super) struct OutputFolder<'a> {
    dir: &'a Path,
}

impl<'a> OutputFolder<'a> {
    /// Makes the folder; fails where it exists.
    pub(super) fn new(dir: &'a Path) -> Result<Self> {
        NamedFiles::default().outputs("--out", [dir]).check()?;
        fs::create_dir(dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// Writes `report.md`, `runs.json` and the charts of what has been found so far.
    pub(super) fn write(&self, found: &impl Figures) -> Result<()> {
        let write = |name: &str, content: &str| {
            let path = self.dir.join(name);
            fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
        };
        write("report.md", &found.markdown())?;
        write("runs.json", &serde_json::to_string_pretty(found)?)?;
        found.charts()?.iter().try_for_each(|(name, svg)| write(name, svg))
    }

    /// Adds the figures of each of `graphs` to `found`, and writes all of them after each. Reports
    /// them at the end, and where they are written.
    pub(super) fn report_each<F: Figures, G>(
        &self,
        graphs: &[G],
        mut found: F,
        console: &Console,
        mut add: impl FnMut(&mut F, &G) -> Result<()>,
    ) -> Result<()> {
        for graph in graphs {
            add(&mut found, graph)?;
            self.write(&found)?;
        }
        console.report(&found, |found| {
            format!("{}\nWritten to {}", found.markdown(), self.dir.display())
        })
    }
}
