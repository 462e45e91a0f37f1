//! `lode completions`: completion scripts for shells.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde::Serialize;

use crate::Cli;
use crate::console::Console;

/// Print a script that completes commands, flags and values of `lode` in a shell.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode completions bash >~/.local/share/bash-completion/completions/lode
  lode completions zsh >\"${fpath[1]}/_lode\"
  lode completions fish >~/.config/fish/completions/lode.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell that reads the script.
    shell: Shell,
}

/// The report of `--json`.
#[derive(Serialize)]
struct CompletionsReport {
    shell: String,
    script: String,
}

impl CompletionsArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "lode", &mut script);
        let report =
            CompletionsReport { shell: self.shell.to_string(), script: String::from_utf8(script)? };
        console.report(&report, |report| report.script.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn each_script_names_each_command() {
        for &shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lode", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
