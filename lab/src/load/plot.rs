//! Latency against percentile, as SVG.

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use lodestore_client::PullKind;
use lodestore_client::load::Tally;
use plotters::prelude::*;

use super::report::LoadReport;

const SIZE: (u32, u32) = (960, 560);
const FONT: (&str, u32) = ("sans-serif", 14);
/// Latencies of both kinds.
const COLOURS: [RGBColor; 2] = [RGBColor(0x1f, 0x77, 0xb4), RGBColor(0xd6, 0x27, 0x28)];
/// Points of a curve for each nine.
const POINTS_PER_NINE: u32 = 20;
/// 99.999 %: further to the right is noise.
const NINES_MAX: u32 = 5;

/// Returns a chart with a curve for each kind of pull. Each step to the right is another nine, so
/// that the slowest requests, which a trainer waits for, have most of the room.
pub(super) fn svg(report: &LoadReport, tally: &Tally) -> Result<String> {
    let mut svg = String::new();
    let kinds = [("sync", PullKind::Sync), ("vector", PullKind::Vector)];
    let curves: Vec<_> = kinds
        .into_iter()
        .filter(|(name, _)| report.kinds.contains_key(name))
        .map(|(name, kind)| (name, curve(&tally.of(kind).latency_ns)))
        .collect();
    draw(report, &curves, &mut svg).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    Ok(svg)
}

/// Returns nines and milliseconds, as far as there are requests to distinguish them.
fn curve(ns: &Histogram<u64>) -> Vec<(f64, f64)> {
    let nines =
        (0..=NINES_MAX * POINTS_PER_NINE).map(|i| f64::from(i) / f64::from(POINTS_PER_NINE));
    let told_apart = |nines: &f64| 10f64.powf(*nines) <= ns.len() as f64;
    let at = |nines: f64| ns.value_at_quantile(1.0 - 10f64.powf(-nines)) as f64 / 1e6;
    nines.take_while(told_apart).map(|nines| (nines, at(nines))).collect()
}

fn draw(
    report: &LoadReport,
    curves: &[(&str, Vec<(f64, f64)>)],
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let all = || curves.iter().flat_map(|(_, points)| points);
    let slowest = all().map(|point| point.1).fold(1e-3, f64::max);
    let fastest = all().map(|point| point.1).fold(slowest, f64::min).max(1e-4);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(report.title(), FONT)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d(
            0.0..f64::from(NINES_MAX),
            (fastest / 1.2..slowest * 1.2).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("percentile")
        .y_desc("latency in ms")
        .x_labels(NINES_MAX as usize + 1)
        .x_label_formatter(&|nines| percentile(*nines))
        .label_style(FONT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for ((name, points), colour) in curves.iter().zip(COLOURS) {
        let style = colour.stroke_width(2);
        let line = chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        line.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(TRANSPARENT)
        .label_font(FONT)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Returns the percentile that this many nines stand for.
fn percentile(nines: f64) -> String {
    let percent = 100.0 * (1.0 - 10f64.powf(-nines));
    let decimals = (nines - 2.0).max(0.0).ceil() as usize;
    format!("{percent:.decimals$} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_a_nine() {
        assert_eq!([0.0, 1.0, 2.0, 3.0].map(percentile), ["0 %", "90 %", "99 %", "99.9 %"]);
    }

    #[test]
    fn a_curve_ends_where_its_requests_do() {
        let mut ns = Histogram::new(3).unwrap();
        assert_eq!(curve(&ns), []);
        (1..=1000u64).for_each(|ms| ns.record(ms * 1_000_000).unwrap());
        let points = curve(&ns);
        assert_eq!(points.len(), 3 * POINTS_PER_NINE as usize + 1);
        assert!(points.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        let last = points[points.len() - 1].1;
        assert!((990.0..1001.0).contains(&last), "{last}");
    }
}
