//! `lode-lab profile-device`: what the device that trains can do.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_graph::rapa::DeviceProfile;
use lodestore_store::reader::available_memory_bytes;
use lodestore_trainer::profile::profile_device;

use lode_cli::console::Console;
use lode_cli::flags::parse_size;
use lode_cli::human;
use lode_cli::outputs::NamedFiles;

/// Measure the device that trains, for `lode rapa`: copies, sparse and dense products.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode-lab profile-device --name big --out big.json
  lode rapa my-graph --profiles big.json,small.json

Training computes on the processor, so that is what is measured. Compare profiles of the same size and
number of runs only, made while the machine did nothing else.")]
pub(crate) struct ProfileDeviceArgs {
    /// Rows of the square matrices.
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(1..=46_340))]
    size: u32,
    /// Runs of each job, after one that does not count.
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Memory for a subgraph; what is available unless given.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// The device's name in reports.
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    name: String,
    /// Write the profile here, as JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl ProfileDeviceArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        NamedFiles::default().outputs("--out", &self.out).check()?;
        let memory = self.memory.or_else(available_memory_bytes);
        let memory = memory.context("the system does not tell its memory; give --memory")?;
        let mut progress = console.progress("profile");
        let measured = profile_device(self.size as usize, self.runs, memory, &mut progress)?;
        drop(progress);
        let profile = DeviceProfile { name: self.name, ..measured };
        if let Some(out) = &self.out {
            let text = serde_json::to_string_pretty(&profile)? + "\n";
            std::fs::write(out, text)
                .with_context(|| format!("{}: cannot write", out.display()))?;
        }
        console.report(&profile, text)
    }
}

fn text(profile: &DeviceProfile) -> String {
    format!(
        "{}, {} for a subgraph\n\n  host to device    {}\n  device to host    {}\n  within the device {}\n  \
         sparse product    {}\n  dense product     {}",
        profile.name,
        human::bytes(profile.memory_bytes),
        human::seconds(profile.h2d_seconds),
        human::seconds(profile.d2h_seconds),
        human::seconds(profile.idt_seconds),
        human::seconds(profile.spmm_seconds),
        human::seconds(profile.mm_seconds),
    )
}
