//! Hit rate against capacity, as SVG.

use anyhow::{Result, anyhow};
use lodestore_cache::PolicyKind;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{BenchReport, BenchResult};

pub(super) const SIZE: (u32, u32) = (960, 600);
/// Beside the curves, for the legend.
pub(super) const LEGEND_WIDTH: u32 = 170;
pub(super) const FONT: (&str, u32) = ("sans-serif", 14);
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
pub(super) fn svg(report: &BenchReport) -> Result<String> {
    let mut svg = String::new();
    let labels = labels(&report.results);
    draw(report, &labels, &mut svg).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    Ok(svg)
}

fn draw(
    report: &BenchReport,
    labels: &[&str],
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let results = &report.results;
    let most_rows = results.iter().map(|result| result.capacity_rows).max().unwrap_or(0).max(1);
    let least = results.iter().map(BenchResult::unmoved).fold(0.0, f64::min).max(-1.0);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let y_name = if report.ahead { "accesses without a row moved" } else { "hit rate" };
    let mut chart = ChartBuilder::on(&area)
        .caption(title(report), FONT)
        .margin(12)
        .margin_right(LEGEND_WIDTH)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..f64::from(most_rows), least..1.0)?;
    chart
        .configure_mesh()
        .x_desc("capacity in rows")
        .y_desc(y_name)
        .x_label_formatter(&|rows| format!("{rows:.0}"))
        .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
        .label_style(FONT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (number, &label) in labels.iter().enumerate() {
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

/// Draws the legend of curve `number` beside the chart, where it covers no curve.
pub(super) fn legend(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    number: usize,
    label: &str,
    style: ShapeStyle,
) -> Result<(), Box<dyn std::error::Error>> {
    let (x, y) = ((SIZE.0 - LEGEND_WIDTH) as i32 + 12, 40 + 18 * number as i32);
    area.draw(&PathElement::new([(x, y), (x + 18, y)], style)).map_err(|e| e.to_string())?;
    area.draw(&Text::new(label.to_owned(), (x + 26, y - 6), FONT)).map_err(|e| e.to_string())?;
    Ok(())
}

pub(super) fn title(report: &BenchReport) -> String {
    // The file's name may hold anything; what XML cannot is left out.
    let name: String = report.trace.name.chars().filter(|c| !c.is_control()).collect();
    format!("{name}, {} different rows", report.trace.distinct_rows)
}

pub(super) fn style(policy: &str, number: usize) -> ShapeStyle {
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
