//! Graph neural networks over arrays: GraphSAGE, GCN and GAT, layer by layer, with their gradients;
//! losses, metrics, optimisers, and files of trained models.
//!
//! This crate knows rows of f32, edges of a [`Block`](lodestore_graph::batch::Block), and the nodes
//! that key dropout. It does not know workers, partitions, or where rows come from. It computes on
//! the CPU. A sum has a fixed order, so results do not depend on the number of threads.
//!
//! ```
//! use std::sync::Arc;
//!
//! use lodestore_graph::{NodeId, batch::Block};
//! use lodestore_models::conv::Input;
//! use lodestore_models::loss::{Loss, Targets};
//! use lodestore_models::matrix::workspace::Workspace;
//! use lodestore_models::model::{Hops, Model, ModelSpec};
//! use lodestore_models::options::{LayerOptions, ModelKind};
//!
//! // Rows of two features become logits of two classes.
//! let spec = ModelSpec {
//!     kind: ModelKind::Gcn,
//!     widths: vec![2, 2],
//!     n_heads: 1,
//!     n_output_heads: 1,
//!     dropout: 0.0,
//!     layer: LayerOptions::default(),
//! };
//! let model = Model::new(&spec, 42);
//! // Node 5 has the neighbours 7 and 9.
//! let block = Block { n_src: 3, n_dst: 1, offsets: vec![0, 2], sources: vec![1, 2] };
//! let blocks = [Arc::new(block)];
//! let nodes = [5, 7, 9].map(NodeId);
//! let hops = Hops { blocks: &blocks, nodes: &nodes, degree: &|_| 2 };
//! let x = [1.0, 0.0, 0.0, 1.0, 0.5, 0.5];
//! let workspace = Workspace::default();
//! let pass = model.forward(hops, Input::Features { x: &x, width: 2 }, 0, &workspace);
//! let loss = Loss::new(pass.logits(), &Targets::Classes(vec![1]));
//! let gradients = model.backward(pass, loss.gradient, &workspace);
//! assert_eq!(gradients.len(), model.parameters().len());
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod adam;
pub mod attention;
pub mod conv;
pub mod layer;
pub mod linear;
pub mod loss;
pub mod matrix;
pub mod metric;
pub mod model;
pub mod model_file;
pub mod norm;
pub mod options;
pub mod parameter;
pub mod random;
