//! Report of a run: a line per epoch, then the summary.

use lodestore_client::keep::Keep;
use lodestore_client::source::VersionTag;
use lodestore_trainer::bottleneck::{Bottleneck, Preparation, StepShares};
use lodestore_trainer::checkpoint::Place;
use lodestore_trainer::config::{FullConfig, Halo, HopConfig, Migration, SdtConfig};
use lodestore_trainer::report::{EpochReport, RowsFrom};
use lodestore_trainer::step::{RowsBySource, StepSeconds, WorkerStep};
use lodestore_trainer::{Metric, RowVersions, Strategy};

use super::{TierReport, Trained};
use crate::human;

/// Returns the heads of the columns of [`epoch_row`].
pub(super) fn epoch_head() -> String {
    row([
        "epoch",
        "loss",
        "train",
        "valid",
        "test",
        "time",
        "remote rows",
        "remote",
        "hits",
        "wait",
    ])
}

/// Returns one epoch as a line of a table.
pub(super) fn epoch_row(epoch: &EpochReport) -> String {
    row([
        &(epoch.epoch + 1).to_string(),
        &format!("{:.4}", epoch.loss),
        &format!("{:.4}", epoch.accuracy),
        &human::accuracy(epoch.validation_accuracy),
        &human::accuracy(epoch.test_accuracy),
        &human::seconds(epoch.seconds),
        &human::count(epoch.remote_rows),
        &human::bytes(epoch.remote_bytes),
        &epoch.hit_rate.map_or_else(|| "-".to_owned(), human::percent),
        &human::percent(epoch.wait_seconds / epoch.seconds.max(1e-9)),
    ])
}

/// Returns the present step, short enough for a line of progress: shares of its time in %, and rows
/// by source.
pub(super) fn step_line(loss: f64, workers: &[WorkerStep]) -> String {
    let mut seconds = StepSeconds::default();
    workers.iter().for_each(|worker| seconds += worker.seconds);
    let StepSeconds { step, sample, lookup, pull, read, copy, wait, compute, .. } = seconds;
    let share = |of: f64| format!("{:.0}", 100.0 * of / step.max(1e-9));
    let [sample, lookup, pull, read, copy] = [sample, lookup, pull, read, copy].map(share);
    let (wait, compute) = (share(wait), share(compute));
    let sum = |of: fn(&RowsBySource) -> u64| -> u64 { workers.iter().map(|w| of(&w.rows)).sum() };
    let kept = sum(kept);
    let [local, kept, remote] =
        [sum(|rows| rows.local), kept, sum(|rows| rows.remote + rows.ahead)].map(human::count);
    let bytes: u64 = workers.iter().map(|worker| worker.bytes.remote + worker.bytes.ahead).sum();
    format!(
        "loss {loss:.4}; compute {compute} %, wait {wait}, sample {sample}, lookup {lookup}, pull {pull}, \
         read {read}, copy {copy}; {local} rows local, {kept} kept, {remote} remote ({}){}",
        human::bytes(bytes),
        traffic(workers)
    )
}

/// Returns what `hop` moved beside rows in a step.
fn traffic(workers: &[WorkerStep]) -> String {
    let all = || workers.iter().filter_map(|worker| worker.hop);
    let Some(n) = all().map(|hop| hop.time_steps).next() else { return String::new() };
    let models = human::bytes(all().map(|hop| hop.model_bytes).sum());
    let gradients = human::bytes(all().map(|hop| hop.gradient_bytes).sum());
    format!(
        "; {}, {models} of models, {gradients} of gradients",
        human::counted(n.into(), "time step")
    )
}

/// Returns remote rows that did not travel for their batch.
fn kept(rows: &RowsBySource) -> u64 {
    rows.hot_set + rows.buffer + rows.device_tier + rows.host_tier + rows.together
}

/// Returns where a mean step's time went, and what it took to prepare its batch: perhaps beside
/// other steps.
fn shares(step: &StepShares) -> [String; 2] {
    let StepShares { compute, wait, update, others, .. } = *step;
    let [compute, wait, update, others] = [compute, wait, update, others].map(human::percent);
    let StepShares { prepare, sample, lookup, pull, read, copy, .. } = *step;
    let [prepare, sample, lookup, pull, read, copy] =
        [prepare, sample, lookup, pull, read, copy].map(human::percent);
    [
        format!("compute {compute}, wait {wait}, update {update}, other workers {others}"),
        format!(
            "prepared in {prepare} of a step's time: sample {sample}, lookup {lookup}, pull {pull}, \
             read own rows {read}, copy {copy}"
        ),
    ]
}

/// Returns the rows that batches used, by where they came from.
fn rows(epochs: &[EpochReport]) -> String {
    let sum = |of: fn(&EpochReport) -> u64| human::count(epochs.iter().map(of).sum());
    let travelled =
        |epoch: &EpochReport| epoch.remote_rows - epoch.hot_set_rows - epoch.filled_rows;
    let missed = human::count(epochs.iter().map(|e| travelled(e) - e.ahead_rows).sum());
    let together: u64 = epochs.iter().map(|epoch| epoch.together_rows).sum();
    let together = match together {
        0 => String::new(),
        n => format!("{} of a batch loaded with it, ", human::count(n)),
    };
    let [local, kept, ahead] = [
        sum(|epoch| epoch.local_rows),
        sum(|epoch| epoch.hit_rows - epoch.together_rows),
        sum(|epoch| epoch.hot_set_rows + epoch.filled_rows + epoch.ahead_rows),
    ];
    format!("{local} local, {kept} kept, {together}{missed} remote; {ahead} pulled to be kept")
}

/// Returns the bytes of own rows, and of what was read from disk for all.
fn read_from_disk(disk_bytes: u64, epochs: &[EpochReport]) -> String {
    let own_bytes: u64 = epochs.iter().map(|epoch| epoch.local_bytes).sum();
    let own = human::bytes(own_bytes);
    if disk_bytes == 0 {
        return format!("{own} of own rows used; nothing read from disk");
    }
    let times = match own_bytes {
        0 => String::new(),
        _ => format!(", {:.1} times as much", disk_bytes as f64 / own_bytes as f64),
    };
    format!("{own} of own rows used; {} read from disk in all{times}", human::bytes(disk_bytes))
}

/// Returns what `hop` moved beside rows.
fn moved(hop: &HopConfig, epochs: &[EpochReport]) -> String {
    let sum = |of: fn(&EpochReport) -> Option<u64>| epochs.iter().filter_map(of).sum::<u64>();
    let time_steps = human::counted(sum(|epoch| epoch.time_steps), "time step");
    let gradients = human::bytes(sum(|epoch| epoch.gradient_bytes));
    match hop.migration {
        Migration::None => format!("no migration: {time_steps}, {gradients} of gradients"),
        Migration::Paper => {
            let models = human::bytes(sum(|epoch| epoch.model_bytes));
            format!("{time_steps}, {models} of models that moved, {gradients} of gradients")
        }
    }
}

/// Returns what `sdt` loaded and sent beside the rows of its partitions.
fn partitioned(sdt: &SdtConfig, epochs: &[EpochReport]) -> String {
    let sum = |of: fn(&EpochReport) -> Option<u64>| epochs.iter().filter_map(of).sum::<u64>();
    let (rows, bytes) = (sum(|epoch| epoch.halo_rows), sum(|epoch| epoch.halo_bytes));
    let kept = epochs.iter().filter_map(|epoch| epoch.kept_share).next_back().unwrap_or(1.0);
    format!(
        "{} halo rows ({}) loaded, {} of neighbourhoods kept; average every {}, optimiser states {}, {} \
         synchronised",
        human::count(rows),
        human::bytes(bytes),
        human::percent(kept),
        human::counted(sdt.average_every.into(), "epoch"),
        sdt.optimizer_state,
        human::bytes(sum(|epoch| epoch.synchronised_bytes))
    )
}

/// Returns what partitions exchanged under `full`, in the whole run and in its last epoch.
fn exchanged(full: &FullConfig, epochs: &[EpochReport]) -> String {
    let last = |of: fn(&EpochReport) -> Option<u64>| epochs.last().and_then(of).unwrap_or(0);
    let rows = human::count(last(|epoch| epoch.halo_rows));
    if full.halo == Halo::Zero {
        return format!("{rows} nodes in halos, whose rows are zeros: nothing travelled");
    }
    let inputs = epochs.iter().filter_map(|epoch| epoch.input_bytes).sum();
    let [forward, back] =
        [last(|epoch| epoch.embedding_bytes), last(|epoch| epoch.gradient_bytes)].map(human::bytes);
    let mut text = format!(
        "{rows} nodes in halos, features pulled once ({}); rows of the last epoch {forward}, gradients \
         {back}",
        human::bytes(inputs)
    );
    if full.staleness > 0 {
        text += &format!("; exchanged every {} epochs", full.staleness + 1);
    }
    let error = epochs.iter().filter_map(|epoch| epoch.compression_error).fold(0.0, f64::max);
    if let Some(compress) = full.compress {
        text += &format!("; as {compress}, off by {error:.2e} of their size");
    }
    if !full.devices.is_empty() {
        let kept = epochs.iter().filter_map(|epoch| epoch.kept_share).next_back().unwrap_or(1.0);
        text += &format!("; {} of edges kept by RAPA", human::percent(kept));
    }
    text
}

/// Returns what held the steps up, such as `compute, 71 % of a step; waiting for rows 12 %`.
fn bottleneck(step: &StepShares) -> String {
    let waiting = match step.preparation {
        Preparation::Sample => "waiting for batches, most of it sampling",
        Preparation::Lookup => "waiting for rows, most of it looking up",
        Preparation::Pull => "waiting for rows, most of it on their way",
        Preparation::Read => "waiting for rows, most of it reading own rows",
        Preparation::Copy => "waiting for rows, most of it copying",
    };
    let of = |share| format!("{} of a step", human::percent(share));
    let wait = format!("waiting for rows {}", human::percent(step.wait));
    match step.bottleneck {
        Bottleneck::Compute => format!("compute, {}; {wait}", of(step.compute)),
        Bottleneck::Update => format!("averaging and update, {}; {wait}", of(step.update)),
        Bottleneck::Others => format!("waiting for other workers, {}; {wait}", of(step.others)),
        Bottleneck::Wait => {
            format!("{waiting}, {}; compute {}", of(step.wait), human::percent(step.compute))
        }
    }
}

/// Returns the text of the whole run.
pub(super) fn text(Trained { report, tiers, .. }: &Trained) -> String {
    let accuracy = match (report.test_accuracy, report.validation_accuracy) {
        (None, None) => "not measured".to_owned(),
        (None, Some(validation)) => {
            let epoch = report.best_epoch + 1;
            format!("not measured; best on validation nodes {validation:.4}, after epoch {epoch}")
        }
        (Some(test), None) => format!("{test:.4}, after the last epoch"),
        (Some(test), Some(validation)) => {
            let epoch = report.best_epoch + 1;
            format!("{test:.4}, after epoch {epoch}: best on validation nodes ({validation:.4})")
        }
    };
    let rows_from = match report.rows_from {
        RowsFrom::Embedded => "the graph's files; nothing travelled (no --connect)",
        RowsFrom::Servers => "servers",
    };
    let mut workers = human::counted(report.workers.into(), "worker");
    if report.processes > 1 {
        workers = format!("{workers} in {} processes", report.processes);
    }
    let metric = match report.metric {
        Metric::Accuracy => "test accuracy",
        Metric::F1Micro => "test f1-micro",
        Metric::RocAuc => "test roc-auc",
    };
    let mut lines = vec![(metric, accuracy)];
    if report.stopped_early {
        let (n_epochs, best) = (report.epochs.len(), report.best_epoch + 1);
        let what =
            format!("after epoch {n_epochs}: none better on validation nodes than epoch {best}");
        lines.push(("stopped", what));
    }
    if report.interrupted {
        let n_steps = human::count(report.step_losses.len() as u64);
        let what = if report.checkpoints > 0 { "; --resume continues from there" } else { "" };
        lines.push(("interrupted", format!("after {n_steps} steps of the run{what}")));
        // In any other run this is its error.
        if let Some(error) = &report.save_error {
            lines.push(("model", format!("not saved: {error}")));
        }
    }
    if let Some(Place { epoch, step }) = report.resumed_at {
        lines.push(("resumed", format!("in epoch {}, after step {step}", epoch + 1)));
    }
    if report.checkpoints > 0 {
        let (written, seconds) = (report.checkpoints, human::seconds(report.checkpoint_seconds));
        lines.push(("checkpoints", format!("{} in {seconds}", human::count(written))));
    }
    lines.extend([
        ("mean step", human::seconds(report.mean_step_seconds)),
        (
            "remote per step",
            format!(
                "{} rows, {} per batch of one worker",
                human::count(report.remote_rows_per_step.round() as u64),
                human::bytes_f64(report.remote_bytes_per_step)
            ),
        ),
        ("remote rows from", rows_from.to_owned()),
        ("rows of", versions(report.versions)),
        ("model", format!("{}, {workers}, on {}", report.model, report.device)),
    ]);
    lines.push(("rows", rows(&report.epochs)));
    lines
        .extend(report.disk_bytes.map(|n_bytes| ("disk", read_from_disk(n_bytes, &report.epochs))));
    match &report.strategy {
        Strategy::Ondemand(_) | Strategy::Rapid(_) | Strategy::Massive(_) => {}
        Strategy::Hop(hop) => lines.push(("hop", moved(hop, &report.epochs))),
        Strategy::Sdt(sdt) => lines.push(("sdt", partitioned(sdt, &report.epochs))),
        Strategy::Full(full) => lines.push(("full", exchanged(full, &report.epochs))),
    }
    if let Some(step) = &report.step {
        let [of_step, of_batch] = shares(step);
        lines.extend([("step", of_step), ("batches", of_batch)]);
        lines.push(("bottleneck", bottleneck(step)));
        if let Some(overlap) = step.overlap_efficiency {
            lines.push(("overlap", format!("{} of the time not waiting", human::percent(overlap))));
        }
    }
    if let Some(schedule) = &report.schedule {
        let (size, seconds) = (human::bytes(schedule.n_bytes), human::seconds(schedule.seconds));
        let digest = &schedule.digest[..16];
        lines.push(("schedule", format!("{size} in {seconds}, digest {digest}")));
        if schedule.window < schedule.window_asked {
            let (window, asked) = (schedule.window, schedule.window_asked);
            let what = match window {
                0 => "the memory has no room for batches ahead: each is prepared when it is needed",
                _ => "the memory has room for no more",
            };
            lines.push(("window", format!("{window} of {asked} batches; {what}")));
        }
        let late: u64 = report.epochs.iter().map(|epoch| epoch.late_swaps).sum();
        if late > 0 {
            let what = format!("{late} times not there at the start of an epoch");
            lines.push(("hot sets", format!("{what}: the one before served meanwhile")));
        }
    }
    if report.memory_measured_bytes > 0 {
        let held = human::bytes(report.memory_measured_bytes);
        let schedule = report.schedule.as_ref();
        let bound = schedule.map(|schedule| human::bytes(schedule.memory_bound_bytes));
        let bound = bound.map(|bound| format!(", at most {bound}")).unwrap_or_default();
        let kept = match (&report.strategy, schedule.map(|schedule| schedule.keep)) {
            (_, Some(Keep::Hot)) => "hot sets + window",
            (_, Some(Keep::Oracle)) => "oracle + window",
            (_, Some(Keep::Nothing)) => "window",
            (Strategy::Massive(_), None) => "buffer + batches",
            (Strategy::Sdt(_), None) => "partitions",
            (_, None) => "batch",
        };
        lines.push((kept, format!("{held} held{bound} per worker")));
    }
    lines.extend(tiers.iter().map(of_tier));
    lines.push(("peak memory", human::bytes(report.peak_anonymous_bytes)));
    let lines = lines.iter().map(|(name, value)| format!("\n  {name:<17}  {value}"));
    lines.collect()
}

/// Returns the versions of rows.
fn versions(RowVersions { own, remote }: RowVersions) -> String {
    let name = |version: Option<VersionTag>| match version {
        Some(version) => format!("version {version}"),
        None => "the newest version of each moment".to_owned(),
    };
    let versions = RowVersions { own, remote };
    match versions.is_one() {
        true => name(own),
        false => format!("{} for own rows, {} for all others", name(own), name(remote)),
    }
}

fn of_tier(report: &TierReport) -> (&'static str, String) {
    let TierReport { tier, device, policy, rows, hit_rate, filled_rows, .. } = report;
    let beside = beside(report);
    let (rows, hits) = (human::count(*rows), human::percent(*hit_rate));
    let what = format!("rows under {policy}, {hits} of look-ups hit{beside}");
    match *tier {
        "buffer" => {
            let filled = human::count(*filled_rows);
            let of = report.rules.as_ref().map_or("", |rules| rules.candidates);
            ("buffers", format!("{rows} {of} {what}; {filled} rows pulled to fill them"))
        }
        "device" => ("device tiers", format!("on {device}: {rows} {what}")),
        _ => ("host tier", format!("{rows} {what}")),
    }
}

/// Returns what a tier did beside hits and misses, if it did.
fn beside(tier: &TierReport) -> String {
    let counts = [
        (tier.promotions, "moved up"),
        (tier.demotions, "moved down"),
        (tier.stale, "too old"),
        (tier.bypassed, "went past"),
    ];
    let done = counts.iter().filter(|(n_rows, _)| *n_rows > 0);
    done.map(|&(n_rows, what)| format!(", {} {what}", human::count(n_rows))).collect()
}

fn row(cells: [&str; 10]) -> String {
    let widths = [5, 7, 7, 7, 7, 8, 12, 8, 7, 7];
    let cells = cells.iter().zip(widths).map(|(cell, width)| format!("  {cell:>width$}"));
    cells.collect()
}
