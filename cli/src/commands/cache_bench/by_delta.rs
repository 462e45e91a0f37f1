//! Hit rate and rows moved against Δ, as SVG (MassiveGNN, Figs. 11 to 13).

use anyhow::{Result, anyhow};
use lodestore_cache::PolicyKind;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::plot::{FONT, LEGEND_WIDTH, SIZE, legend, style, title};
use super::report::{BenchReport, BenchResult};

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The value of a result that a row of panels shows.
struct Shown {
    name: &'static str,
    of: fn(&BenchResult) -> f64,
}

const SHOWN: [Shown; 2] = [
    Shown { name: "hit rate", of: |result| result.hit_rate },
    Shown { name: "rows moved per access", of: |result| 1.0 - result.unmoved() },
];

/// Returns a chart with a panel for each capacity, above for hits and below for rows moved. Each γ
/// has a curve over Δ, and a policy without Δ a level line.
pub(super) fn svg(report: &BenchReport) -> Result<String> {
    let mut svg = String::new();
    draw(report, &mut svg).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    Ok(svg)
}

fn draw(report: &BenchReport, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let capacities: Vec<&[BenchResult]> = report.results.chunk_by(|a, b| a.at == b.at).collect();
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let labels = curve_labels(capacities.first().copied().unwrap_or_default());
    let (panels, _) = area.titled(&title(report), FONT)?.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let panels = panels.split_evenly((SHOWN.len(), capacities.len().max(1)));
    for (number, panel) in panels.iter().enumerate() {
        let (row, column) = (number / capacities.len().max(1), number % capacities.len().max(1));
        if let Some(results) = capacities.get(column) {
            draw_panel(panel, results, &SHOWN[row], &labels)?;
        }
    }
    for (number, (label, policy)) in labels.iter().enumerate() {
        legend(&area, number, label, style(policy, number))?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel(
    panel: &Panel<'_>,
    results: &[BenchResult],
    shown: &Shown,
    labels: &[(String, &str)],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut deltas: Vec<u32> = results.iter().filter_map(|result| result.delta).collect();
    deltas.sort_unstable();
    deltas.dedup();
    let last = deltas.len().saturating_sub(1) as i32;
    let values = results.iter().filter(|result| curve_of(result).is_some()).map(shown.of);
    let most = values.fold(0.0, f64::max).clamp(0.1, 1.5) * 1.05;
    let capacity = results.first().map_or("", |result| result.capacity.as_str());
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("{}, {capacity}", shown.name), FONT)
        .margin(6)
        .x_label_area_size(34)
        .y_label_area_size(44)
        .build_cartesian_2d(0..last.max(1), 0.0..most)?;
    let delta = |at: &i32| deltas.get(*at as usize).map_or_else(String::new, u32::to_string);
    chart
        .configure_mesh()
        .x_labels(deltas.len())
        .x_label_formatter(&delta)
        .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
        .label_style(FONT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (number, (label, policy)) in labels.iter().enumerate() {
        let own = || results.iter().filter(|result| curve_of(result).as_ref() == Some(label));
        let at = |result: &BenchResult| deltas.iter().position(|&of| Some(of) == result.delta);
        let mut points: Vec<(i32, f64)> = own()
            .filter_map(|result| Some((at(result)? as i32, (shown.of)(result).min(most))))
            .collect();
        points.sort_unstable_by_key(|&(at, _)| at);
        if points.is_empty() {
            points.extend(own().flat_map(|of| [0, last.max(1)].map(|at| (at, (shown.of)(of)))));
        }
        chart.draw_series(LineSeries::new(points, style(policy, number)))?;
    }
    Ok(())
}

/// Returns the curve that a result is a point of: its γ, or its policy's level line.
fn curve_of(result: &BenchResult) -> Option<String> {
    match result.gamma {
        Some(gamma) => Some(format!("γ {gamma}")),
        None if result.policy == PolicyKind::Degree.name() => Some("no eviction".to_owned()),
        None if result.policy == PolicyKind::Unbounded.name() => None,
        None => Some(result.label.clone()),
    }
}

/// Returns each curve once, with its policy.
fn curve_labels(results: &[BenchResult]) -> Vec<(String, &'static str)> {
    let mut labels: Vec<(String, &'static str)> = Vec::new();
    for result in results {
        if let Some(label) = curve_of(result)
            && labels.iter().all(|(known, _)| *known != label)
        {
            labels.push((label, result.policy));
        }
    }
    labels
}
