//! The commands, one file each: arguments, their check, one call, a report.

mod cache_bench;
mod commit;
mod compact;
mod completions;
mod drop_tensor;
mod evaluate;
mod gather;
mod gc;
pub mod generate;
pub mod import;
mod infer;
mod inspect;
mod man;
mod partition;
mod probe;
mod pull;
mod push;
mod put;
mod quickstart;
mod rapa;
mod repair;
mod schedule;
mod serve;
mod stat;
mod top;
pub mod train;
mod transfer;
mod verify;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use crate::console::Console;

/// The command.
#[derive(Subcommand)]
pub(crate) enum Command {
    Quickstart(quickstart::QuickstartArgs),
    Generate(generate::GenerateArgs),
    Import(import::ImportArgs),
    Partition(partition::PartitionArgs),
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
    Repair(repair::RepairArgs),
    Probe(probe::ProbeArgs),
    Gather(gather::GatherArgs),
    Put(put::PutArgs),
    Commit(commit::CommitArgs),
    Compact(compact::CompactArgs),
    DropTensor(drop_tensor::DropTensorArgs),
    #[command(alias = "copy-part")]
    Transfer(transfer::TransferArgs),
    Push(push::PushArgs),
    Pull(pull::PullArgs),
    Gc(gc::GcArgs),
    Serve(serve::ServeArgs),
    Schedule(schedule::ScheduleArgs),
    Train(train::TrainArgs),
    Evaluate(evaluate::EvaluateArgs),
    Infer(infer::InferArgs),
    CacheBench(cache_bench::CacheBenchArgs),
    Rapa(rapa::RapaArgs),
    Stat(stat::StatArgs),
    Top(top::TopArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

impl Command {
    /// Returns whether it starts the log itself, once it knows the settings.
    pub(crate) fn starts_its_log(&self) -> bool {
        matches!(self, Self::Serve(_))
    }

    /// Runs the command; an error means exit code 1, or 2 for wrong usage.
    pub(crate) fn run(self, console: &Console) -> Result<ExitCode> {
        let done = match self {
            Self::Quickstart(args) => args.run(console),
            Self::Generate(args) => args.run(console),
            Self::Import(args) => args.run(console),
            Self::Partition(args) => args.run(console),
            Self::Inspect(args) => args.run(console),
            // They answer "damaged", "lost" and "wrong" by their exit codes.
            Self::Verify(args) => return args.run(console),
            Self::Repair(args) => return args.run(console),
            Self::Probe(args) => args.run(console),
            Self::Gather(args) => args.run(console),
            Self::Put(args) => args.run(console),
            Self::Commit(args) => args.run(console),
            Self::Compact(args) => args.run(console),
            Self::DropTensor(args) => args.run(console),
            Self::Transfer(args) => args.run(console),
            Self::Push(args) => args.run(console),
            Self::Pull(args) => args.run(console),
            Self::Gc(args) => args.run(console),
            Self::Serve(args) => args.run(console),
            Self::Schedule(args) => args.run(console),
            Self::Train(args) => args.run(console),
            Self::Evaluate(args) => args.run(console),
            Self::Infer(args) => args.run(console),
            Self::CacheBench(args) => args.run(console),
            Self::Rapa(args) => args.run(console),
            Self::Stat(args) => args.run(console),
            Self::Top(args) => args.run(console),
            Self::Completions(args) => args.run(console),
            Self::Man(args) => args.run(console),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}
