//! The commands that repeat a quickstart step by step.

use std::path::Path;

use lodestore_trainer::Strategy;

use super::{QuickstartConfig, SERVED};

/// Port of the first server; the others follow.
const FIRST_PORT: usize = 7171;

/// Returns the commands to paste into a shell to do the same in a fresh folder.
pub(super) fn commands(config: &QuickstartConfig) -> String {
    let mut lines = vec!["cd \"$(mktemp -d)\"".to_owned()];
    lines.extend(path());
    lines.push(generate(config));
    lines.push(import(config));
    let mut connect = String::new();
    for (parts, port) in SERVED.iter().zip(FIRST_PORT..) {
        let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        let parts = parts.join(",");
        lines.push(format!(
            "lode serve graph --parts {parts} --listen 127.0.0.1:{port} --shards 1 &"
        ));
        connect.push_str(&format!(" --connect 127.0.0.1:{port}"));
    }
    lines.push("sleep 1".to_owned());
    for strategy in [Strategy::Ondemand, Strategy::Rapid] {
        lines.push(train(config, strategy, &connect));
    }
    lines.push("kill %1 %2; wait".to_owned());
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Lets the shell find this program, unless it did.
fn path() -> Option<String> {
    let typed = std::env::args_os().next()?;
    if typed == "lode" {
        return None;
    }
    let program = std::env::current_exe().ok()?;
    Some(format!("PATH='{}':$PATH", program.parent()?.display()))
}

fn generate(config: &QuickstartConfig) -> String {
    let (recipe, dim) = (&config.generate.recipe, config.generate.dim);
    format!(
        "lode generate --nodes {} --degree {} --dim {dim} --classes {} --seed {} --out raw",
        recipe.n_nodes, recipe.mean_degree, recipe.n_classes, recipe.seed,
    )
}

fn import(config: &QuickstartConfig) -> String {
    let import = &config.import;
    let mut line = "lode import --edges raw/edges.npy --undirected".to_owned();
    for tensor in &import.tensors {
        let file = tensor.file.file_name().map_or(tensor.file.as_path(), Path::new);
        line.push_str(&format!(" \\\n      --tensor {}=raw/{}", tensor.name, file.display()));
    }
    let (n_parts, partitioner) = (import.partition.n_parts, &import.partition.algorithm);
    format!("{line} \\\n      --parts {n_parts} --partitioner {partitioner} --out graph")
}

fn train(config: &QuickstartConfig, strategy: Strategy, connect: &str) -> String {
    let train = &config.train;
    let hot = match strategy {
        Strategy::Ondemand | Strategy::Massive | Strategy::Hop | Strategy::Sdt | Strategy::Full => {
            String::new()
        }
        Strategy::Rapid => format!(" --hot {}", train.n_hot),
    };
    format!(
        "lode train --graph graph{connect} \\\n      --strategy {strategy} --workers {} \
         --epochs {} --batch {} --evaluate-every {} --seed {}{hot}",
        train.workers, train.epochs, train.batch_size, train.evaluate_every, train.seed,
    )
}
