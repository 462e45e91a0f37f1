//! The Grafana dashboard next to the metrics: its queries use existing metrics, and every metric
//! has a panel.

use std::collections::BTreeSet;

use serde_json::Value;

use super::table::{METRICS, Metric};

const DASHBOARD: &str = include_str!("../../../deploy/grafana.json");

/// Labels of the scrape, by which the dashboard's variables select servers.
const SCRAPE_LABELS: [&str; 2] = ["job", "instance"];

/// A metric in a query, with its labels in braces.
struct Selector<'a> {
    name: &'a str,
    /// The function that is applied to the metric; empty without one.
    function: &'a str,
    labels: Vec<&'a str>,
}

/// Returns the selectors of a PromQL query, each of which must have braces.
fn selectors(query: &str) -> Vec<Selector<'_>> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let braces: Vec<usize> = query.match_indices('{').map(|(at, _)| at).collect();
    let selector = |at: usize| {
        let before = query[..at].trim_end_matches(is_name);
        let function = before.strip_suffix('(').unwrap_or_default();
        let labels = query[at + 1..].split_once('}').expect("a closing brace").0;
        Selector {
            name: &query[before.len()..at],
            function: &function[function.trim_end_matches(is_name).len()..],
            labels: labels.split(',').filter_map(|label| label.split('=').next()).collect(),
        }
    };
    let found: Vec<Selector<'_>> = braces.into_iter().map(selector).collect();
    let n_named = query.matches("lodestore_").count() + query.matches("process_").count();
    assert_eq!(found.len(), n_named, "a metric without labels in braces: {query}");
    found
}

/// Returns the metric whose series have this name.
fn metric_of(series: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| {
        let suffix = series.strip_prefix(metric.name);
        match metric.source.type_name() {
            "histogram" => matches!(suffix, Some("_bucket" | "_sum" | "_count")),
            _ => suffix == Some(""),
        }
    })
}

/// Checks a query, and returns the names of its metrics.
fn metrics_of(query: &str) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    let mut labels = BTreeSet::from(SCRAPE_LABELS);
    for selector in selectors(query) {
        let Some(metric) = metric_of(selector.name) else {
            panic!("no metric has the series `{}`: {query}", selector.name);
        };
        let is_gauge = metric.source.type_name() == "gauge";
        let is_rate = matches!(selector.function, "rate" | "increase");
        assert_ne!(is_gauge, is_rate, "rates are of counters: `{}` in {query}", metric.name);
        for label in SCRAPE_LABELS {
            assert!(selector.labels.contains(&label), "not by ${label}: {query}");
        }
        let own = [metric.source.label(), "le"];
        for label in selector.labels {
            let is_known = SCRAPE_LABELS.contains(&label) || own.contains(&label);
            assert!(is_known, "`{}` has no label `{label}`: {query}", metric.name);
        }
        labels.extend(own);
        names.insert(metric.name);
    }
    for group in query.split(" by (").skip(1) {
        let group = group.split_once(')').expect("a closing bracket").0;
        for label in group.split(", ") {
            assert!(labels.contains(label), "no metric has the label `{label}`: {query}");
        }
    }
    assert!(!names.is_empty(), "no metric: {query}");
    names
}

/// Returns all queries of these panels, those in rows included.
fn queries(panels: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    for panel in panels.as_array().into_iter().flatten() {
        found.extend(queries(&panel["panels"]));
        let targets = panel["targets"].as_array();
        let is_row = panel["type"] == "row";
        assert_eq!(targets.is_none_or(Vec::is_empty), is_row, "without a query: {panel}");
        for target in targets.into_iter().flatten() {
            for of in [panel, target] {
                assert_eq!(of["datasource"]["uid"], "${datasource}", "{panel}");
            }
            found.push(target["expr"].as_str().unwrap());
        }
    }
    found
}

#[test]
fn every_query_of_the_dashboard_has_metrics_that_exist_and_every_metric_is_shown() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut shown: BTreeSet<&str> =
        queries(&dashboard["panels"]).into_iter().flat_map(metrics_of).collect();
    for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
        shown.extend(metrics_of(annotation["expr"].as_str().unwrap()));
    }
    let unshown: Vec<&str> =
        METRICS.iter().map(|metric| metric.name).filter(|name| !shown.contains(name)).collect();
    assert!(unshown.is_empty(), "deploy/grafana.json shows none of {unshown:?}");
}

#[test]
fn variables_of_the_dashboard_list_the_servers_of_a_metric_that_exists() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<&str> = variables.iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "job", "instance"]);
    for variable in &variables[1..] {
        let query = variable["query"]["query"].as_str().unwrap();
        let metric = query.strip_prefix("label_values(").unwrap().split(['{', ',']).next();
        assert!(metric_of(metric.unwrap()).is_some(), "{query}");
    }
}
