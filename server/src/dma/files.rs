//! Descriptors for direct I/O: one per file, shared by all shards.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use glommio::io::{DmaFile, OwnedDmaFile};
use lodestore_graph::lock::IgnorePoison;
use lodestore_store::update::Layer;

/// Number of entries at which closed files are first removed from the map.
const SWEEP_MIN: usize = 64;

/// Segment files that any shard has open.
///
/// Shards read at explicit offsets, and nothing writes to the file of a layer.
#[derive(Debug)]
pub(crate) struct LayerFiles(Mutex<Known>);

#[derive(Debug)]
struct Known {
    /// By address of the layer. No other layer gets that address while a weak pointer exists.
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
    /// Returns the file of a layer; opens it if no shard has it open. The file is closed with the
    /// last pointer to it.
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

    /// Returns the file that another shard opened meanwhile, else adds `opened`.
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
