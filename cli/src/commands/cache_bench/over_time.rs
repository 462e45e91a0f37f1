//! Hit rate against time, as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::plot::{FONT, LEGEND_WIDTH, SIZE, legend, style, title};
use super::report::BenchReport;

/// Points of a curve, about.
const N_POINTS: u32 = 200;

/// Returns the batches from one point to the next, for a trace of `n_batches`.
pub(super) fn batches_per_point(n_batches: u32) -> u32 {
    n_batches.div_ceil(N_POINTS).max(1)
}

/// Returns a chart with a curve for each policy: the hit rate of the batches since the point before
/// (MassiveGNN, Figs. 10, 12 and 13). A point without accesses is left out.
pub(super) fn svg(report: &BenchReport) -> Result<String> {
    let mut svg = String::new();
    draw(report, &mut svg).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    Ok(svg)
}

fn draw(report: &BenchReport, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let results = &report.results;
    let n_batches = report.batches_per_point.unwrap_or(1);
    let last = f64::from(report.trace.batches.max(1));
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title(report), FONT)
        .margin(12)
        .margin_right(LEGEND_WIDTH)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..last, 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc("batch")
        .y_desc("hit rate")
        .x_label_formatter(&|batch| format!("{batch:.0}"))
        .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
        .label_style(FONT)
        .light_line_style(TRANSPARENT)
        .draw()?;
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
