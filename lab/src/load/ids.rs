//! Which rows a load asks for.

use std::sync::Arc;

use anyhow::{Result, bail};
use lodestore_cache::Trace;
use lodestore_client::load::{IdBatches, IdDraw};
use lodestore_graph::NodeId;

use lode_cli::traces::{TraceArgs, TraceChoice};
use lode_cli::usage::UsageError;

/// A checked choice.
pub(super) struct IdChoice {
    draw: IdDraw,
    trace: Option<TraceChoice>,
}

/// Parses a choice that needs no file.
pub(super) fn parse_draw(text: &str) -> Result<IdDraw, String> {
    let expected = || format!("expected uniform, zipf:S or sequential, found `{text}`");
    match text.split_once(':') {
        None if text == "uniform" => Ok(IdDraw::Uniform),
        None if text == "sequential" => Ok(IdDraw::Sequential),
        Some(("zipf", exponent)) => match exponent.parse() {
            Ok(exponent) => Ok(IdDraw::Zipf { exponent }),
            Err(_) => Err(expected()),
        },
        _ => Err(expected()),
    }
}

impl IdChoice {
    pub(super) fn new(draw: IdDraw, trace: TraceArgs) -> Result<Self, UsageError> {
        let trace = if trace.is_given() { Some(trace.check()?) } else { None };
        Ok(Self { draw, trace })
    }

    /// Returns the word for it in reports.
    pub(super) fn name(&self) -> String {
        match (&self.trace, &self.draw) {
            (Some(trace), _) => trace.name(),
            (None, IdDraw::Uniform) => "uniform".to_owned(),
            (None, IdDraw::Zipf { exponent }) => format!("zipf:{exponent}"),
            (None, IdDraw::Sequential) => "sequential".to_owned(),
            (None, IdDraw::Trace(_)) => "trace".to_owned(),
        }
    }

    /// Returns the part without a file; for a trace it is incomplete until that is read.
    pub(super) fn draw(&self) -> IdDraw {
        self.draw.clone()
    }

    /// Reads the trace, if it is one; its ids must be nodes of the graph.
    pub(super) fn load(&self, n_nodes: u32) -> Result<IdDraw> {
        let Some(choice) = &self.trace else { return Ok(self.draw()) };
        let loaded = choice.load()?;
        let batches = batches(&loaded.trace, n_nodes, &loaded.name)?;
        Ok(IdDraw::Trace(Arc::new(batches)))
    }
}

/// Returns the batches that are not empty.
fn batches(trace: &Trace, n_nodes: u32, name: &str) -> Result<IdBatches> {
    let ids = trace.ids().iter().map(|&id| match trace.given(id) {
        id if id < n_nodes => Ok(NodeId(id)),
        id => bail!("{name}: id {id} is no node: the graph has nodes 0 to below {n_nodes}"),
    });
    let ids = ids.collect::<Result<Vec<_>>>()?;
    let mut bounds = trace.bounds().to_vec();
    bounds.dedup();
    if ids.is_empty() {
        bail!("{name}: the trace asks for nothing");
    }
    Ok(IdBatches { ids, bounds })
}

#[cfg(test)]
mod tests {
    use lodestore_cache::trace::TraceBuilder;

    use super::*;

    #[test]
    fn kinds_are_read_and_nonsense_is_named() {
        assert_eq!(parse_draw("uniform"), Ok(IdDraw::Uniform));
        assert_eq!(parse_draw("zipf:1.1"), Ok(IdDraw::Zipf { exponent: 1.1 }));
        assert_eq!(parse_draw("sequential"), Ok(IdDraw::Sequential));
        for text in ["", "zipf", "zipf:x", "uniform:2", "random"] {
            let error = parse_draw(text).unwrap_err();
            assert!(error.contains("zipf:S") && error.contains(text), "{error}");
        }
    }

    #[test]
    fn empty_batches_are_left_out_and_strangers_refused() {
        let mut trace = TraceBuilder::default();
        for batch in [&[][..], &[3, 9], &[], &[1]] {
            trace.push_batch(batch).unwrap();
        }
        let trace = trace.finish(None);
        let found = batches(&trace, 10, "t").unwrap();
        assert_eq!(found, IdBatches { ids: [3, 9, 1].map(NodeId).into(), bounds: vec![0, 2, 3] });
        let error = batches(&trace, 9, "t").unwrap_err().to_string();
        assert!(error.contains("id 9") && error.contains("below 9"), "{error}");
        assert!(batches(&TraceBuilder::default().finish(None), 9, "t").is_err());
    }
}
