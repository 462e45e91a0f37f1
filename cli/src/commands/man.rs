//! `lode man`: manual pages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use serde::Serialize;

use crate::Cli;
use crate::console::Console;
use crate::outputs::NamedFiles;

/// Write the manual pages of `lode` and of each command into a folder.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode man --out ~/.local/share/man/man1
  man lode-import")]
pub(crate) struct ManArgs {
    /// Folder for the pages; it is made where there is none.
    #[arg(long)]
    out: PathBuf,
}

/// The report of `--json`.
#[derive(Serialize)]
struct ManReport {
    out: String,
    pages: Vec<String>,
}

impl ManArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        NamedFiles::default().outputs("--out", [&self.out]).check()?;
        let failed = || format!("{}: cannot write manual pages", self.out.display());
        let pages = write_pages(&self.out).with_context(failed)?;
        let report = ManReport { out: self.out.display().to_string(), pages };
        console.report(&report, |report| format!("{}: {} pages", report.out, report.pages.len()))
    }
}

/// Writes the pages of all commands; returns the names of their files, sorted.
fn write_pages(out: &Path) -> std::io::Result<Vec<String>> {
    fs::create_dir_all(out)?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    let mut commands = vec![root];
    while let Some(command) = commands.pop() {
        let page = clap_mangen::Man::new(command.clone());
        let name = page.get_filename();
        page.generate_to(out)?;
        pages.push(name);
        commands.extend(command.get_subcommands().filter(|it| !it.is_hide_set()).cloned());
    }
    pages.sort();
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_with_its_flags() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("man1");
        let pages = write_pages(&out).unwrap();
        assert!(pages.contains(&"lode.1".to_owned()), "{pages:?}");
        for command in Cli::command().get_subcommands() {
            let name = format!("lode-{}.1", command.get_name());
            assert!(pages.contains(&name), "{name}");
            let page = fs::read_to_string(out.join(&name)).unwrap();
            let shown = command.get_arguments().filter(|flag| !flag.is_hide_set());
            for flag in shown.filter_map(|flag| flag.get_long()) {
                let escaped = flag.replace('-', "\\-");
                assert!(page.contains(&escaped), "{name} lacks --{flag}");
            }
        }
    }
}
