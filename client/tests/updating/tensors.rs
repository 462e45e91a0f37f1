//! Tensors that are dropped, added and created again while clients know them.

use std::path::PathBuf;
use std::sync::Arc;

use lodestore_client::volatile::{StampWanted, VolatileSource};
use lodestore_store::codec::SegmentCodec;
use lodestore_store::update::drop_tensor;
use lodestore_store::{Dtype, Graph, GraphHandle, OpenMode, OpenOptions, TensorSpec};

use super::*;

const N_NODES: u32 = 600;

/// Adds a tensor of one f32 whose rows are all `value`.
fn add(graph: &Path, name: &str, value: f32) {
    let graph = Graph::open(graph).unwrap();
    let handle = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    let spec = TensorSpec::new(name, Dtype::F32, 1).unwrap();
    let mut tensor = Arc::new(handle).new_tensor(spec, SegmentCodec::Raw).unwrap();
    tensor.write_rows(&value.to_le_bytes().repeat(N_NODES as usize)).unwrap();
    tensor.finish().unwrap();
}

fn drop_one(graph: &Path, name: &str) {
    drop(drop_tensor(Graph::open(graph).unwrap(), name).unwrap());
}

/// A server that restarts on the same socket, and an idle client of it.
struct Idle {
    graph: PathBuf,
    config: ServerConfig,
    server: Option<Server>,
    client: Client,
}

impl Idle {
    fn new(dir: &Path, tensors: &[(&str, f32)], volatile: &str) -> Self {
        let graph = feature_graph(dir, N_NODES, WIDTH, 2);
        testing::edges::add_edges(&graph);
        tensors.iter().for_each(|(name, value)| add(&graph, name, *value));
        let socket = dir.join("socket");
        let mut config = ServerConfig { listen: None, ..config(&graph, 2) };
        config.unix = Some(socket.clone());
        config.volatile = vec![volatile.parse().unwrap()];
        let server = Some(Server::start(&config).unwrap());
        let client = connect(&[format!("unix:{}", socket.display())]);
        Self { graph, config, server, client }
    }

    /// Stops the server, changes its graph or configuration, and starts it again.
    fn restart(&mut self, change: impl FnOnce(&Path, &mut ServerConfig)) {
        self.server.take().unwrap().stop().unwrap();
        change(&self.graph, &mut self.config);
        self.server = Some(Server::start(&self.config).unwrap());
    }

    /// Returns the value that all rows of a tensor share.
    fn value(&self, tensor: &str) -> Result<f32, ClientError> {
        let ids = shuffled_ids(N_NODES, 200);
        let mut out = vec![0xEE; ids.len() * 4];
        self.client.sync_pull(tensor, &ids, &mut out)?;
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(&out);
        assert!(values.iter().all(|value| value.to_bits() == values[0].to_bits()), "{values:?}");
        Ok(values[0])
    }
}

#[test]
fn a_client_that_was_idle_reads_no_rows_of_another_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [("h1", 1.0), ("h2", 2.0), ("h3", 3.0)];
    let mut idle = Idle::new(dir.path(), &tensors, "v:1xf32");
    assert_eq!(idle.value("h1").unwrap(), 1.0);
    // The tensors after the dropped one now have other positions.
    idle.restart(|graph, _| drop_one(graph, "h1"));
    let error = idle.value("h1").unwrap_err();
    assert!(matches!(error, ClientError::TensorGone { is_replaced: false, .. }), "{error}");
    assert_eq!(["h2", "h3"].map(|name| idle.value(name).unwrap()), [2.0, 3.0]);
    let ids = [NodeId(7)];
    idle.client.put_rows("h3", &ids, &33f32.to_le_bytes()).unwrap();
    idle.client.commit().unwrap();
    let mut row = [0; 4];
    idle.client.sync_pull("h3", &ids, &mut row).unwrap();
    assert_eq!(f32::from_le_bytes(row), 33.0);
    assert_eq!(idle.value("h2").unwrap(), 2.0);
    // A tensor created again is another tensor, even at the position of the old one.
    idle.restart(|graph, _| {
        drop_one(graph, "h2");
        add(graph, "h2", 22.0);
    });
    let error = idle.value("h2").unwrap_err();
    assert!(matches!(error, ClientError::TensorGone { is_replaced: true, .. }), "{error}");
    let put = idle.client.put_rows("h2", &ids, &[0; 4]).unwrap_err();
    assert!(matches!(put, ClientError::TensorGone { .. }), "{put}");
    idle.client.sync_pull("h3", &ids, &mut row).unwrap();
    assert_eq!(f32::from_le_bytes(row), 33.0);
}

#[test]
fn a_graph_with_an_added_tensor_is_the_same_graph() {
    let dir = tempfile::tempdir().unwrap();
    let mut idle = Idle::new(dir.path(), &[("h1", 1.0)], "v:1xf32");
    idle.restart(|graph, _| add(graph, "h2", 2.0));
    assert_eq!(idle.value("h1").unwrap(), 1.0);
    let socket = idle.config.unix.clone().unwrap();
    let new = connect(&[format!("unix:{}", socket.display())]);
    assert_eq!(new.tensors().last().unwrap().name, "h2");
}

#[test]
fn a_volatile_tensor_declared_with_another_shape_is_noticed_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut idle = Idle::new(dir.path(), &[], "v:2xf32");
    let pull = |idle: &Idle| {
        let mut out = [0xEE; 8];
        idle.client
            .pull_volatile(
                "v",
                &[NodeId(3)],
                StampWanted { min_stamp: 0, wait: Duration::ZERO },
                &mut out,
            )
            .map(drop)
    };
    pull(&idle).unwrap();
    // Rows of the same size, with other elements.
    idle.restart(|_, config| config.volatile = vec!["v:4xf16".parse().unwrap()]);
    let error = pull(&idle).unwrap_err();
    assert!(matches!(error, ClientError::VolatileChanged { .. }), "{error}");
    assert!(error.to_string().contains("4 x f16"), "{error}");
    let now = idle.client.volatile("v").unwrap();
    assert_eq!((now.tensor.width, now.tensor.dtype), (4, Dtype::F16));
    pull(&idle).unwrap();
    let claimed = idle.client.publisher().claim("v", &[0..N_NODES / 2]).unwrap();
    assert_eq!(claimed, u64::from(N_NODES / 2));
}
