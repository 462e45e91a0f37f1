//! Shape and file of a run's model.

use std::path::Path;

use lodestore_graph::sampler::Fanout;
use lodestore_models::model::{MAX_PARAMETERS, ModelSpec};
use lodestore_models::model_file::{ModelFile, ModelSettings, SavedModelError};

use crate::config::TrainConfig;
use crate::error::{TrainError, check};

/// Returns the shape of a run's model for features of `width`.
pub(crate) fn spec_of(config: &TrainConfig, width: usize, n_classes: usize) -> ModelSpec {
    let spec = settings_of(config).spec(width, n_classes);
    ModelSpec { dropout: config.dropout, ..spec }
}

/// Returns the number of parameters of a run's model for features of `width`.
#[must_use]
pub fn parameter_count(config: &TrainConfig, width: usize, n_classes: usize) -> u64 {
    spec_of(config, width, n_classes).n_parameters()
}

/// Fails for a model of more than [`MAX_PARAMETERS`].
pub(crate) fn check_size(spec: &ModelSpec) -> Result<(), TrainError> {
    let found = spec.n_parameters();
    let expected = format!(
        "of at most {MAX_PARAMETERS} parameters (width of hidden rows, heads, number of layers)"
    );
    check(found <= MAX_PARAMETERS, "model", &expected, found)
}

/// Returns what the file of a run's model says.
pub(crate) fn settings_of(config: &TrainConfig) -> ModelSettings {
    ModelSettings {
        kind: config.model,
        n_layers: config.fanouts.len(),
        hidden: config.hidden,
        n_heads: config.n_heads,
        n_output_heads: config.n_output_heads,
        layer: config.layer,
        normalize: config.normalize,
        metric: config.metric,
        feature_tensor: config.feature_tensor.clone(),
        label_tensor: config.label_tensor.clone(),
        split_tensor: config.split_tensor.clone(),
    }
}

/// Reads a model's file, and returns it with the settings of a run of its model. Settings that the
/// file lacks have their defaults: they do not matter once a model is trained.
///
/// Fails for invalid settings.
pub(crate) fn open(path: &Path) -> Result<(ModelFile<'_>, TrainConfig), SavedModelError> {
    let file = ModelFile::read(path)?;
    let settings = file.settings().clone();
    let config = TrainConfig {
        model: settings.kind,
        fanouts: vec![Fanout::All; settings.n_layers],
        hidden: settings.hidden,
        n_heads: settings.n_heads,
        n_output_heads: settings.n_output_heads,
        layer: settings.layer,
        normalize: settings.normalize,
        metric: settings.metric,
        feature_tensor: settings.feature_tensor,
        label_tensor: settings.label_tensor,
        split_tensor: settings.split_tensor,
        workers: 1,
        ..TrainConfig::default()
    };
    config.validate().map_err(|error| file.refused(error))?;
    Ok((file, config))
}

#[cfg(test)]
mod tests {
    use lodestore_models::model::Model;
    use lodestore_models::model_file::save;
    use lodestore_models::options::ModelKind;

    use super::*;

    #[test]
    fn forged_settings_are_refused_before_they_take_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        let usual = TrainConfig { model: ModelKind::Gat, hidden: 16, ..TrainConfig::default() };
        let spec = spec_of(&usual, 10, 4);
        let model = Model::new(&spec, 1);
        let values: Vec<Vec<f32>> =
            model.parameters().iter().map(|parameter| parameter.read().to_vec()).collect();
        let opened = |change: fn(&mut TrainConfig)| {
            let mut forged = usual.clone();
            change(&mut forged);
            save(&path, &settings_of(&forged), &spec, &values).unwrap();
            let (file, config) = open(&path)?;
            file.check(&spec_of(&config, 10, file.n_classes()?))
        };
        opened(|_| ()).unwrap();
        let message = |change| opened(change).unwrap_err().to_string();
        let heads = message(|c| c.n_heads = 0);
        assert!(heads.contains("setting `n_heads` must be at least 1, found 0"), "{heads}");
        assert!(message(|c| c.n_output_heads = 0).contains("`n_output_heads` must be at least 1"));
        assert!(message(|c| c.hidden = 0).contains("`hidden` must be at least 1"));
        assert!(message(|c| c.hidden = 20).contains("`hidden` must be a multiple of 8 heads"));
        let large = message(|c| c.hidden = 1 << 20);
        assert!(large.contains("`layers.0.weight` must be F32 of shape [10, 1048576]"), "{large}");
        assert!(message(|c| c.hidden = usize::MAX - 7).contains("layers.0.weight"));
        let heads = message(|c| c.n_output_heads = usize::MAX);
        assert!(
            heads.contains("weight` must be F32 of shape [16, 18446744073709551615]"),
            "{heads}"
        );
        assert!(message(|c| c.model = ModelKind::Sage).contains("shape [20, 16]"));
        let layers = message(|c| c.fanouts = vec![Fanout::All; 64]);
        assert!(layers.contains("layers.63.bias"), "{layers}");
    }
}
