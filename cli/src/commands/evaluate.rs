//! `lode evaluate`: what a saved model does on a graph.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use lodestore_client::ClientConfig;
use lodestore_store::{Graph, OpenOptions};
use lodestore_trainer::infer::{Evaluation, evaluate_saved};
use lodestore_trainer::report::RowsFrom;
use lodestore_trainer::{TrainGraph, WorkerSources};

use crate::commands::train::rows_of;
use crate::console::Console;
use crate::human;
use crate::security_args::SecurityArgs;

/// Measure a saved model on the validation and test nodes of a graph, with all their neighbours.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode train --graph my-graph --epochs 20 --save-model model.safetensors
  lode evaluate my-graph --model model.safetensors")]
pub(crate) struct EvaluateArgs {
    /// Folder of the graph: its topology, and rows unless servers are named.
    graph: PathBuf,
    /// The model, as `lode train --save-model` writes it.
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Address of a server for all rows; repeat for several.
    #[arg(long, value_name = "ADDR")]
    connect: Vec<String>,
    #[command(flatten)]
    security: SecurityArgs,
}

impl EvaluateArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        if self.connect.is_empty() {
            self.security.refuse_without_servers(&[])?;
        }
        let graph = Graph::open(&self.graph)?;
        console.stage("topology");
        let topology = graph.open_topology()?;
        let (mut rows_from, mut config) = (RowsFrom::Embedded, ClientConfig::default());
        if !self.connect.is_empty() {
            (rows_from, config.security) = (RowsFrom::Servers, self.security.read()?);
            config.etcd = self.security.etcd.read()?;
        }
        let rows = rows_of(&graph, &self.connect, config, &OpenOptions::default())?;
        let sources = WorkerSources::new(Arc::clone(&rows), rows);
        let (book, uuid) = (graph.book(), *graph.uuid().as_bytes());
        let on = TrainGraph { topology: &topology, book, uuid, rows_from };
        console.stage("evaluation");
        let found = evaluate_saved(&self.model, &on, &sources)?;
        console.report(&found, text)
    }
}

fn text(found: &Evaluation) -> String {
    let (parameters, model) = (human::count(found.parameters), found.model);
    let metric = found.metric;
    let [validation, test] = [found.validation_accuracy, found.test_accuracy].map(human::accuracy);
    format!(
        "{model} of {parameters} parameters: {metric} {test} on test nodes, {validation} on validation \
         nodes"
    )
}
