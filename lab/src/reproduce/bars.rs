//! Bars in groups, as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (960, 480);
const FONT: (&str, u32) = ("sans-serif", 13);
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x94, 0x67, 0xbd),
];

/// A figure of bars that stand in groups.
pub(super) struct Bars {
    pub(super) title: String,
    /// A name for each colour.
    pub(super) legend: Vec<&'static str>,
    pub(super) groups: Vec<BarGroup>,
}

/// Bars side by side under one name.
pub(super) struct BarGroup {
    pub(super) name: String,
    pub(super) bars: Vec<Bar>,
}

/// One bar.
pub(super) struct Bar {
    /// Place of its colour in the legend.
    pub(super) colour: usize,
    /// Its parts, from below: each lighter than the one under it.
    pub(super) parts: Vec<f64>,
}

impl Bars {
    pub(super) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| anyhow!("cannot draw {}: {error}", self.title))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        // Groups have a gap of one bar between them.
        let width = bars().count() + self.groups.len();
        let most = bars().map(|bar| bar.parts.iter().sum::<f64>()).fold(1e-9, f64::max) * 1.15;
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, FONT)
            .margin(12)
            .y_label_area_size(56)
            .x_label_area_size(24)
            .build_cartesian_2d(-0.5..width as f64, 0.0..most)?;
        chart.configure_mesh().disable_x_mesh().disable_x_axis().label_style(FONT).draw()?;
        let mut x = 0.0;
        for BarGroup { name, bars } in &self.groups {
            let label = Text::new(name.clone(), (x, -most * 0.015), FONT);
            chart.draw_series([label])?;
            for bar in bars {
                chart.draw_series(bar.rectangles(x))?;
                x += 1.0;
            }
            x += 1.0;
        }
        for (i, (name, colour)) in self.legend.iter().zip(COLOURS).enumerate() {
            let (x, y) = (80 + 170 * i as i32, 34);
            area.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], colour.filled()))?;
            area.draw(&Text::new(*name, (x + 18, y), FONT))?;
        }
        area.present()?;
        Ok(())
    }
}

impl Bar {
    fn rectangles(&self, x: f64) -> Vec<Rectangle<(f64, f64)>> {
        let colour = COLOURS[self.colour % COLOURS.len()];
        let (mut from, mut shade) = (0.0, 1.0);
        let rectangle = |&part: &f64| {
            let style = colour.mix(shade).filled();
            let drawn = Rectangle::new([(x + 0.08, from), (x + 0.92, from + part)], style);
            from += part;
            shade *= 0.55;
            drawn
        };
        self.parts.iter().map(rectangle).collect()
    }
}
