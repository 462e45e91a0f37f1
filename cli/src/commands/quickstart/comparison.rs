//! The two strategies side by side, and how to repeat every step by hand.

use std::path::Path;

use lodestore_trainer::TrainReport;

use super::{QuickstartConfig, QuickstartReport, SERVED};
use crate::human;
use crate::table::Table;

/// Ports of the servers that the commands start.
const FIRST_PORT: usize = 7171;

/// The whole answer.
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
        commands(config),
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
    format!("{losses}; rapid moved {saved:.1} times fewer remote bytes, hot sets included.")
}

/// Time in which a worker had no batch to train on, as a share of the epochs.
fn wait_share(report: &TrainReport) -> f64 {
    let sum = |figure: fn(&lodestore_trainer::EpochReport) -> f64| -> f64 {
        report.epochs.iter().map(figure).sum()
    };
    sum(|epoch| epoch.wait_seconds) / sum(|epoch| epoch.seconds).max(1e-9)
}

fn mean(report: &TrainReport, figure: fn(&lodestore_trainer::EpochReport) -> f64) -> f64 {
    let sum: f64 = report.epochs.iter().map(figure).sum();
    sum / report.epochs.len().max(1) as f64
}

/// What a user would type to do the same in a fresh folder.
fn commands(config: &QuickstartConfig) -> String {
    let (recipe, train) = (&config.generate.recipe, &config.train);
    let mut lines = vec!["cd \"$(mktemp -d)\"".to_owned()];
    if let Some(alias) = alias() {
        lines.push(alias);
    }
    lines.push(format!(
        "lode generate --nodes {} --degree {} --dim {} --classes {} --seed {} --out raw",
        recipe.n_nodes, recipe.mean_degree, config.generate.dim, recipe.n_classes, recipe.seed,
    ));
    let mut import = "lode import --edges raw/edges.npy --undirected".to_owned();
    for tensor in &config.import.tensors {
        let file = tensor.file.file_name().map(Path::new).unwrap_or(&tensor.file);
        import.push_str(&format!(" --tensor {}=raw/{}", tensor.name, file.display()));
    }
    let (n_parts, partitioner) = (config.import.n_parts, &config.import.partitioner);
    lines.push(format!(
        "{import} \\\n      --parts {n_parts} --partitioner {partitioner} --out graph"
    ));
    let mut connect = String::new();
    for (parts, port) in SERVED.iter().zip(FIRST_PORT..) {
        let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        let parts = parts.join(",");
        lines.push(format!("lode serve graph --parts {parts} --listen 127.0.0.1:{port} &"));
        connect.push_str(&format!(" --connect 127.0.0.1:{port}"));
    }
    for strategy in ["ondemand", "rapid"] {
        lines.push(format!(
            "lode train --graph graph{connect} \\\n      --strategy {strategy} --workers {} \
             --epochs {} --evaluate-every {} --hot {} --seed {}",
            train.workers, train.epochs, train.evaluate_every, train.n_hot, train.seed,
        ));
    }
    lines.push("kill %1 %2".to_owned());
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Makes `lode` mean this program, where the shell would not find it.
fn alias() -> Option<String> {
    let typed = std::env::args_os().next()?;
    if typed == "lode" {
        return None;
    }
    let program = std::env::current_exe().ok()?;
    Some(format!("alias lode='{}'", program.display()))
}
