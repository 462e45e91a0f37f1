//! Curves of a figure, as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (960, 480);
const LEGEND_WIDTH: u32 = 220;
const FONT: (&str, u32) = ("sans-serif", 13);
/// Colours that are distinct also without red and green.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0xd6, 0x27, 0x28),
];

/// A figure of curves over one pair of axes, which begin at 0.
pub(super) struct Curves<'a> {
    pub(super) title: &'a str,
    /// Quantities on the axes.
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// Whether x is drawn by its logarithm; all of it is above 0 then.
    pub(super) is_log: bool,
    pub(super) curves: Vec<Curve>,
}

/// A curve with a dot for each point, by rising x.
pub(super) struct Curve {
    pub(super) label: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Adds a point to the curve of this label, which is made where there is none.
pub(super) fn add_point(curves: &mut Vec<Curve>, label: String, point: (f64, f64)) {
    match curves.iter_mut().find(|curve| curve.label == label) {
        Some(curve) => curve.points.push(point),
        None => curves.push(Curve { label, points: vec![point] }),
    }
}

impl Curves<'_> {
    pub(super) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| anyhow!("cannot draw {}: {error}", self.title))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter().copied());
        let at = |x: f64| if self.is_log { x.log2() } else { x };
        let first = points().map(|(x, _)| at(x)).fold(f64::INFINITY, f64::min);
        let first = if self.is_log && first.is_finite() { first } else { 0.0 };
        let last = points().map(|(x, _)| at(x)).fold(first + 1e-9, f64::max);
        let most = points().map(|(_, y)| y).fold(1e-9, f64::max) * 1.08;
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, FONT)
            .margin(12)
            .margin_right(LEGEND_WIDTH)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(first..last, 0.0..most)?;
        let x_label = |x: &f64| number(if self.is_log { x.exp2() } else { *x });
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&x_label)
            .y_label_formatter(&|y| number(*y))
            .label_style(FONT)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (i, Curve { label, points }) in self.curves.iter().enumerate() {
            let style = COLOURS[i % COLOURS.len()].stroke_width(2);
            let points: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (at(x), y)).collect();
            let dots = points.iter().map(|&point| Circle::new(point, 3, style.filled()));
            chart.draw_series(dots)?;
            chart.draw_series(LineSeries::new(points, style))?;
            let (x, y) = ((SIZE.0 - LEGEND_WIDTH) as i32 + 8, 40 + 18 * i as i32);
            area.draw(&PathElement::new([(x, y), (x + 18, y)], style))?;
            area.draw(&Text::new(label.clone(), (x + 26, y - 6), FONT))?;
        }
        area.present()?;
        Ok(())
    }
}

/// Formats a number shortly, with as many digits as distinguish neighbours on an axis.
fn number(x: f64) -> String {
    match x.abs() {
        size if size >= 1e6 => format!("{:.1}M", x / 1e6),
        size if size >= 1e4 => format!("{:.0}k", x / 1e3),
        size if size >= 10.0 || x == x.round() => format!("{x:.0}"),
        _ => format!("{x:.2}"),
    }
}
