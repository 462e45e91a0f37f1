//! The two strategies side by side.

use lodestore_trainer::TrainReport;
use lodestore_trainer::report::EpochReport;

use super::{QuickstartConfig, QuickstartReport, by_hand};
use crate::human;
use crate::table::Table;

/// Returns the whole answer.
pub(super) fn text(report: &QuickstartReport, config: &QuickstartConfig) -> String {
    let place = if report.kept {
        format!("Kept in {}: raw/ (the .npy files), graph/ (the import), server logs", report.dir)
    } else {
        "The files were removed (--cleanup)".to_owned()
    };
    format!(
        "\n{}\n\n{}\n\n{place}. Took {}.\n\nThe same by hand:\n\n{}",
        table(&report.ondemand, &report.rapid),
        verdict(report),
        human::seconds(report.seconds),
        by_hand::commands(config),
    )
}

fn table(ondemand: &TrainReport, rapid: &TrainReport) -> Table {
    let mut table = Table::new(["", "ondemand", "rapid"]);
    let mut row = |name: &str, figure: &dyn Fn(&TrainReport) -> String| {
        table.row([name.to_owned(), figure(ondemand), figure(rapid)]);
    };
    row("test accuracy", &|r| human::accuracy(r.test_accuracy));
    row("final loss", &|r| r.epochs.last().map_or_else(String::new, |e| format!("{:.6}", e.loss)));
    row("seconds per epoch", &|r| format!("{:.2}", mean(r, |e| e.seconds)));
    row("ms per step", &|r| format!("{:.1}", r.mean_step_seconds * 1e3));
    row("remote rows per step", &|r| human::count(r.remote_rows_per_step.round() as u64));
    row("remote MB per step", &|r| format!("{:.2}", r.remote_bytes_per_step / 1e6));
    row("hit rate", &|r| human::percent(mean(r, |e| e.hit_rate)));
    row("wait share", &|r| human::percent(wait_share(r)));
    row("MB of kept rows and window", &|r| format!("{:.1}", r.memory_measured_bytes as f64 / 1e6));
    row("setup seconds", &|r| format!("{:.2}", r.setup_seconds));
    table
}

fn verdict(report: &QuickstartReport) -> String {
    let n_steps = human::count(report.ondemand.step_losses.len() as u64);
    let losses = if report.losses_identical {
        format!("Losses are bit-identical at all {n_steps} steps")
    } else {
        format!("LOSSES DIFFER somewhere in {n_steps} steps, which must not be")
    };
    let saved = report.ondemand.remote_bytes_per_step / report.rapid.remote_bytes_per_step;
    format!("{losses}; rapid moved {saved:.1} times fewer remote bytes.")
}

/// Returns the time in which a worker had no batch to train on, as a share of the epochs.
fn wait_share(report: &TrainReport) -> f64 {
    let sum = |figure: fn(&EpochReport) -> f64| -> f64 { report.epochs.iter().map(figure).sum() };
    sum(|epoch| epoch.wait_seconds) / sum(|epoch| epoch.seconds).max(1e-9)
}

fn mean(report: &TrainReport, figure: fn(&EpochReport) -> f64) -> f64 {
    let sum: f64 = report.epochs.iter().map(figure).sum();
    sum / report.epochs.len().max(1) as f64
}
