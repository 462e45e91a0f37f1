//! Descriptors for direct I/O: one for each file, which all shards share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use glommio::io::{DmaFile, OwnedDmaFile};
use lodestore_graph::lock::IgnorePoison;
use lodestore_store::update::Layer;

/// Number of files from which on those that were closed are forgotten.
const SWEEP_MIN: usize = 64;

/// The files of layers that any shard has open.
///
/// Shards read at offsets of their own, and nothing writes to the file of a layer.
#[derive(Debug)]
pub(crate) struct LayerFiles(Mutex<Known>);

#[derive(Debug)]
struct Known {
    /// By address of the layer, which no other layer has while there is a weak pointer to it.
    by_layer: HashMap<usize, OpenFile>,
    sweep_at: usize,
}

#[derive(Debug)]
struct OpenFile {
    _layer: Weak<Layer>,
    file: Weak<OwnedDmaFile>,
}

impl Default for LayerFiles {
    fn default() -> Self {
        Self(Mutex::new(Known { by_layer: HashMap::new(), sweep_at: SWEEP_MIN }))
    }
}

impl LayerFiles {
    /// Returns the file of a layer, opened if no shard has it open. It is closed with the last
    /// pointer to it.
    pub(super) async fn open(&self, layer: &Arc<Layer>) -> glommio::Result<Arc<OwnedDmaFile>, ()> {
        let known = self.0.lock().ignore_poison().find(layer);
        if let Some(known) = known {
            return Ok(known);
        }
        let opened = DmaFile::open(layer.segment().path()).await?;
        Ok(self.0.lock().ignore_poison().find_or_add(layer, Arc::new(opened.into())))
    }
}

impl Known {
    fn find(&self, layer: &Arc<Layer>) -> Option<Arc<OwnedDmaFile>> {
        self.by_layer.get(&address_of(layer))?.file.upgrade()
    }

    /// Returns the file that another shard has opened meanwhile, else adds `opened`.
    fn find_or_add(&mut self, layer: &Arc<Layer>, opened: Arc<OwnedDmaFile>) -> Arc<OwnedDmaFile> {
        if let Some(known) = self.find(layer) {
            return known;
        }
        if self.by_layer.len() >= self.sweep_at {
            self.by_layer.retain(|_, it| it.file.strong_count() > 0);
            self.sweep_at = SWEEP_MIN.max(2 * self.by_layer.len());
        }
        let file = OpenFile { _layer: Arc::downgrade(layer), file: Arc::downgrade(&opened) };
        self.by_layer.insert(address_of(layer), file);
        opened
    }
}

fn address_of(layer: &Arc<Layer>) -> usize {
    Arc::as_ptr(layer).addr()
}
