//! Charts as SVG: hit rate against capacity, against time, and against Δ.

use std::error::Error;
use std::ops::Range;

use anyhow::{Result, anyhow};
use lodestore_cache::PolicyKind;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::report::{BenchReport, BenchResult};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

const SIZE: (u32, u32) = (960, 600);
/// Beside the curves, for the legend.
const LEGEND_WIDTH: u32 = 170;
const FONT: (&str, u32) = ("sans-serif", 14);
/// Colours that are distinct also without red and green.
const COLOURS: [RGBColor; 12] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0xe3, 0x77, 0xc2),
    RGBColor(0xbc, 0xbd, 0x22),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0x00, 0x6d, 0x5b),
    RGBColor(0xc4, 0x9c, 0x94),
    RGBColor(0x39, 0x3b, 0x79),
];

/// Returns a chart with a curve for each policy over its capacities. A point is a hit rate. Where
/// rows came ahead of their misses, it is the share of accesses that had no row moved. So the
/// optimum is the upper curve in any case. `unbounded` is what no capacity can pass, drawn thin.
pub(super) fn by_capacity(report: &BenchReport) -> Result<String> {
    drawn(|svg| draw_by_capacity(report, svg))
}

/// Returns a chart with a curve for each policy: the hit rate of the batches since the point before
/// (MassiveGNN, Figs. 10, 12 and 13). A point without accesses is left out.
pub(super) fn over_time(report: &BenchReport) -> Result<String> {
    drawn(|svg| draw_over_time(report, svg))
}

/// Returns a chart with a panel for each capacity, above for hits and below for rows moved
/// (MassiveGNN, Figs. 11 to 13). Each γ has a curve over Δ, and a policy without Δ a level line.
pub(super) fn by_delta(report: &BenchReport) -> Result<String> {
    drawn(|svg| draw_by_delta(report, svg))
}

fn drawn(draw: impl FnOnce(&mut String) -> Result<(), Box<dyn Error>>) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    Ok(svg)
}

/// A quantity and its range.
struct Axis<'a> {
    name: &'a str,
    range: Range<f64>,
}

/// Draws the axes of a chart with room for a legend; those of y are shares.
fn axes<'a>(
    area: &Area<'a>,
    title: String,
    x: Axis<'_>,
    y: Axis<'_>,
) -> Result<Chart<'a>, Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .caption(title, FONT)
        .margin(12)
        .margin_right(LEGEND_WIDTH)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(x.range, y.range)?;
    chart
        .configure_mesh()
        .x_desc(x.name)
        .y_desc(y.name)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
        .label_style(FONT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    Ok(chart)
}

fn draw_by_capacity(report: &BenchReport, svg: &mut String) -> Result<(), Box<dyn Error>> {
    let results = &report.results;
    let most_rows = results.iter().map(|result| result.capacity_rows).max().unwrap_or(0).max(1);
    let least = results.iter().map(BenchResult::unmoved).fold(0.0, f64::min).max(-1.0);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let x = Axis { name: "capacity in rows", range: 0.0..f64::from(most_rows) };
    let name = if report.ahead { "accesses without a row moved" } else { "hit rate" };
    let mut chart = axes(&area, title(report), x, Axis { name, range: least..1.0 })?;
    for (number, &label) in labels(results).iter().enumerate() {
        let own = || results.iter().filter(|result| result.label == label && result.is_drawn);
        let points: Vec<(f64, f64)> =
            own().map(|result| (f64::from(result.capacity_rows), result.unmoved())).collect();
        let style = style(own().next().map_or("", |result| result.policy), number);
        let dots = points.iter().map(|&point| Circle::new(point, 2, style.filled()));
        chart.draw_series(dots)?;
        chart.draw_series(LineSeries::new(points, style))?;
        legend(&area, number, label, style)?;
    }
    area.present()?;
    Ok(())
}

/// Points of a curve, about.
const N_POINTS: u32 = 200;

/// Returns the batches from one point to the next, for a trace of `n_batches`.
pub(super) fn batches_per_point(n_batches: u32) -> u32 {
    n_batches.div_ceil(N_POINTS).max(1)
}

fn draw_over_time(report: &BenchReport, svg: &mut String) -> Result<(), Box<dyn Error>> {
    let results = &report.results;
    let n_batches = report.batches_per_point.unwrap_or(1);
    let last = f64::from(report.trace.batches.max(1));
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let x = Axis { name: "batch", range: 0.0..last };
    let y = Axis { name: "hit rate", range: 0.0..1.0 };
    let mut chart = axes(&area, title(report), x, y)?;
    for (number, result) in results.iter().enumerate() {
        let points = (1u32..).zip(&result.over_time).filter_map(|(at, &rate)| Some((at, rate?)));
        let points = points.map(|(at, rate)| (f64::from(at * n_batches).min(last), rate));
        let style = style(result.policy, number);
        chart.draw_series(LineSeries::new(points, style))?;
        legend(&area, number, &result.label, style)?;
    }
    area.present()?;
    Ok(())
}

/// The value of a result that a row of panels shows.
struct Shown {
    name: &'static str,
    of: fn(&BenchResult) -> f64,
}

const SHOWN: [Shown; 2] = [
    Shown { name: "hit rate", of: |result| result.hit_rate },
    Shown { name: "rows moved per access", of: |result| 1.0 - result.unmoved() },
];

fn draw_by_delta(report: &BenchReport, svg: &mut String) -> Result<(), Box<dyn Error>> {
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
    panel: &Area<'_>,
    results: &[BenchResult],
    shown: &Shown,
    labels: &[(String, &str)],
) -> Result<(), Box<dyn Error>> {
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

/// Draws the legend of curve `number` beside the chart, where it covers no curve.
fn legend(
    area: &Area<'_>,
    number: usize,
    label: &str,
    style: ShapeStyle,
) -> Result<(), Box<dyn Error>> {
    let (x, y) = ((SIZE.0 - LEGEND_WIDTH) as i32 + 12, 40 + 18 * number as i32);
    area.draw(&PathElement::new([(x, y), (x + 18, y)], style)).map_err(|e| e.to_string())?;
    area.draw(&Text::new(label.to_owned(), (x + 26, y - 6), FONT)).map_err(|e| e.to_string())?;
    Ok(())
}

fn title(report: &BenchReport) -> String {
    // The file's name may hold anything; what XML cannot is left out.
    let name: String = report.trace.name.chars().filter(|c| !c.is_control()).collect();
    format!("{name}, {} different rows", report.trace.distinct_rows)
}

fn style(policy: &str, number: usize) -> ShapeStyle {
    if policy == PolicyKind::Oracle.name() {
        return BLACK.stroke_width(3);
    }
    if policy == PolicyKind::Unbounded.name() {
        return RGBColor(0x99, 0x99, 0x99).stroke_width(1);
    }
    COLOURS[number % COLOURS.len()].stroke_width(2)
}

/// Returns the series of each contestant, in their order.
fn labels(results: &[BenchResult]) -> Vec<&str> {
    let first = results.chunk_by(|a, b| a.at == b.at).next();
    first.into_iter().flatten().map(|result| result.label.as_str()).collect()
}
