//! `lode`: one binary, thin commands over the crates of Lodestore.

use std::process::ExitCode;

fn main() -> ExitCode {
    lode_cli::main()
}
