//! Time of a step by contestant, as bars: what is computed below, then what other workers are waited
//! for, then what is waited for rows.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::Reproduction;

const SIZE: (u32, u32) = (960, 480);
const FONT: (&str, u32) = ("sans-serif", 13);
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x94, 0x67, 0xbd),
];

/// One bar.
struct Bar {
    x: f64,
    step_ms: f64,
    compute_ms: f64,
    others_ms: f64,
    colour: RGBColor,
}

/// The chart of the runs over `link`.
pub(super) fn svg(found: &Reproduction, link: &str) -> Result<String> {
    let mut svg = String::new();
    draw(found, link, &mut svg).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    Ok(svg)
}

fn draw(
    found: &Reproduction,
    link: &str,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let (mut bars, mut names, mut at) = (Vec::new(), Vec::new(), 0.0);
    for graph in &found.graphs {
        for group in graph.groups.iter().filter(|group| group.link == link) {
            names.push((at, format!("{} {}", graph.name, group.batch)));
            for (run, colour) in group.runs.iter().zip(COLOURS) {
                let seconds = [run.step_seconds, run.compute_seconds, run.others_seconds];
                let [step_ms, compute_ms, others_ms] = seconds.map(|seconds| seconds * 1e3);
                bars.push(Bar { x: at, step_ms, compute_ms, others_ms, colour });
                at += 1.0;
            }
            at += 1.0;
        }
    }
    let most_ms = bars.iter().map(|bar| bar.step_ms).fold(1.0, f64::max) * 1.15;
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("ms a step: computing (dark), other workers, rows (light)", FONT)
        .margin(12)
        .y_label_area_size(56)
        .x_label_area_size(24)
        .build_cartesian_2d(-0.5..at, 0.0..most_ms)?;
    chart.configure_mesh().disable_x_mesh().disable_x_axis().label_style(FONT).draw()?;
    for Bar { x, step_ms, compute_ms, others_ms, colour } in bars {
        let rectangle = |from: f64, to: f64, style: ShapeStyle| {
            Rectangle::new([(x + 0.08, from), (x + 0.92, to)], style)
        };
        let (computed, together) = (compute_ms.min(step_ms), (compute_ms + others_ms).min(step_ms));
        let parts = [
            rectangle(0.0, computed, colour.filled()),
            rectangle(computed, together, colour.mix(0.6).filled()),
            rectangle(together, step_ms, colour.mix(0.3).filled()),
        ];
        chart.draw_series(parts)?;
    }
    let labels = names.into_iter().map(|(x, name)| Text::new(name, (x, -most_ms * 0.015), FONT));
    chart.draw_series(labels)?;
    for (i, (contestant, colour)) in found.paper.contestants().iter().zip(COLOURS).enumerate() {
        let (x, y) = (80 + 170 * i as i32, 34);
        area.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], colour.filled()))?;
        area.draw(&Text::new(contestant.label(), (x + 18, y), FONT))?;
    }
    area.present()?;
    Ok(())
}
