//! Figures in the text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use super::figures::{LatencyFigures, ServerFigures};
use super::table::{METRICS, Metric, MetricSource};

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl ServerFigures {
    /// Returns all metrics. Metrics of the graph and of shards are absent before these exist.
    pub(crate) fn prometheus(&self) -> String {
        let mut text = String::with_capacity(64 << 10);
        for metric in METRICS {
            self.write(metric, &mut text).expect("a string takes any text");
        }
        text
    }

    fn write(&self, Metric { name, help, source }: &Metric, text: &mut String) -> std::fmt::Result {
        writeln!(text, "# HELP {name} {help}")?;
        writeln!(text, "# TYPE {name} {}", source.type_name())?;
        let label = source.label();
        match source {
            MetricSource::Gauge(figure) | MetricSource::Counter(figure) => {
                writeln!(text, "{name} {}", figure(self))?;
            }
            MetricSource::ShardGauge(figure) | MetricSource::ShardCounter(figure) => {
                for (shard, figures) in self.shards.iter().enumerate() {
                    writeln!(text, "{name}{{{label}=\"{shard}\"}} {}", figure(figures))?;
                }
            }
            MetricSource::LabelledGauge(_, figures) | MetricSource::LabelledCounter(_, figures) => {
                for (value, figure) in figures(self) {
                    writeln!(text, "{name}{{{label}=\"{value}\"}} {figure}")?;
                }
            }
            MetricSource::KindHistogram => {
                for (kind, figures) in &self.kinds {
                    let label = format!("{label}=\"{kind}\"");
                    self.write_histogram(name, &label, &figures.latency, text)?;
                }
            }
            MetricSource::Histogram(figures) => {
                self.write_histogram(name, "", figures(self), text)?;
            }
        }
        Ok(())
    }

    /// Writes every fourth bound, which are an octave apart: fine enough for alarms, at a quarter
    /// of the series.
    fn write_histogram(
        &self,
        name: &str,
        label: &str,
        latency: &LatencyFigures,
        text: &mut String,
    ) -> std::fmt::Result {
        let (mut below, comma) = (0, if label.is_empty() { "" } else { "," });
        for (bucket, (n, bound)) in latency.buckets.iter().zip(&self.latency_bounds).enumerate() {
            below += n;
            // The last bucket also counts latencies beyond its bound.
            if bucket % 4 == 3 && bucket + 1 < latency.buckets.len() {
                writeln!(text, "{name}_bucket{{{label}{comma}le=\"{bound}\"}} {below}")?;
            }
        }
        writeln!(text, "{name}_bucket{{{label}{comma}le=\"+Inf\"}} {below}")?;
        let label = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
        writeln!(text, "{name}_sum{label} {}", latency.sum_seconds)?;
        writeln!(text, "{name}_count{label} {below}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::Observed;
    use super::*;
    use crate::config::ServerConfig;

    #[test]
    fn a_server_that_has_not_opened_its_graph_has_metrics_of_its_process() {
        let text = ServerFigures::read(&Observed::new(&ServerConfig::new("."))).prometheus();
        assert!(text.contains("\nlodestore_ready 0\n"), "{text}");
        assert!(text.contains("\nprocess_open_fds "), "{text}");
        assert!(!text.contains("shard=\""), "{text}");
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_the_count() {
        let latency = LatencyFigures { buckets: vec![1, 0, 0, 2, 0, 0, 0, 4], sum_seconds: 2.5 };
        let latency_bounds = (1..=8).map(f64::from).collect();
        let figures = ServerFigures { latency_bounds, ..ServerFigures::default() };
        let mut text = String::new();
        figures.write_histogram("x", "kind=\"push\"", &latency, &mut text).unwrap();
        let expected = "x_bucket{kind=\"push\",le=\"4\"} 3\nx_bucket{kind=\"push\",le=\"+Inf\"} 7\n\
                        x_sum{kind=\"push\"} 2.5\nx_count{kind=\"push\"} 7\n";
        assert_eq!(text, expected);
        text.clear();
        figures.write_histogram("x", "", &latency, &mut text).unwrap();
        let expected = "x_bucket{le=\"4\"} 3\nx_bucket{le=\"+Inf\"} 7\nx_sum 2.5\nx_count 7\n";
        assert_eq!(text, expected);
    }
}
