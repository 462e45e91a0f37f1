//! A trained model as a file that other tools read too: safetensors, with what it takes to use the
//! parameters in its metadata.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, Read, Write},
    path::Path,
    str::FromStr,
};

use lodestore_graph::sampler::Fanout;
use lodestore_graph::{OutputFile, OutputPlace};
use safetensors::{Dtype, SafeTensorError, SafeTensors, tensor::TensorView};

use crate::config::{MAX_LAYERS, TrainConfig};
use crate::error::{ModelFault, SavedModelError};
use crate::model::{Model, ModelSpec};
use crate::norm::NormLayer;
use crate::options::{Aggregation, LayerOptions, Metric, Norm};

/// A larger file is no model of this crate.
const MAX_FILE_BYTES: u64 = 1 << 32;

/// Fails unless a model can be written to `path`. A file is made beside it, and taken away again.
pub(crate) fn check_place(path: &Path) -> Result<(), SavedModelError> {
    // A pipe may have no reader before the end of training.
    let checked = match OutputPlace::of(path) {
        Ok(OutputPlace::File(_)) => OutputFile::create(path).map(drop),
        Ok(OutputPlace::Stream(_)) => Ok(()),
        Err(source) => Err(source),
    };
    checked.map_err(|source| {
        let fault = Box::new(ModelFault::Io { action: "write", source });
        SavedModelError { path: path.to_owned(), fault }
    })
}

/// Writes the parameters `values`, one flat list each, of a model of `config` and `spec` to `path`.
pub(crate) fn save(
    path: &Path,
    config: &TrainConfig,
    spec: &ModelSpec,
    values: &[Vec<f32>],
) -> Result<(), SavedModelError> {
    let failed = |fault| SavedModelError { path: path.to_owned(), fault: Box::new(fault) };
    let views = spec.shapes().into_iter().zip(values).map(|((name, shape), values)| {
        Ok((name, TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values))?))
    });
    let views = views.collect::<Result<Vec<_>, SafeTensorError>>();
    let bytes = views.and_then(|views| safetensors::serialize(views, Some(metadata(config))));
    let bytes = bytes.map_err(|error| failed(error.into()))?;
    let write = || -> io::Result<()> {
        let mut file = OutputFile::create(path)?;
        file.write_all(&bytes)?;
        file.sync()?;
        file.commit()
    };
    write().map_err(|source| failed(ModelFault::Io { action: "write", source }))
}

/// A model's file, with settings that have been read from it.
pub(crate) struct ModelFile<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
    pub(crate) config: TrainConfig,
}

impl<'a> ModelFile<'a> {
    /// Reads the file at `path`. Fails for settings that no run has.
    pub(crate) fn read(path: &'a Path) -> Result<Self, SavedModelError> {
        let failed = |fault| SavedModelError { path: path.to_owned(), fault: Box::new(fault) };
        let bytes =
            read(path).map_err(|source| failed(ModelFault::Io { action: "read", source }))?;
        SafeTensors::deserialize(&bytes).map_err(|error| failed(error.into()))?;
        let header = SafeTensors::read_metadata(&bytes).map_err(|error| failed(error.into()))?;
        let none = HashMap::new();
        let config = config(header.1.metadata().as_ref().unwrap_or(&none)).map_err(failed)?;
        config.validate().map_err(|error| failed(ModelFault::Settings(Box::new(error))))?;
        Ok(Self { path, bytes, config })
    }

    /// Fails unless the file has the parameters of a model of `spec`, before memory is taken for
    /// one.
    pub(crate) fn check(&self, spec: &ModelSpec) -> Result<(), SavedModelError> {
        let (tensors, mut known) = (self.tensors()?, HashSet::new());
        for (name, shape) in spec.shapes() {
            let found = tensors.tensor(&name).map_err(|error| self.failed(error.into()))?;
            if found.dtype() != Dtype::F32 || found.shape() != shape {
                let expected = format!("F32 of shape {shape:?}, as the graph asks for");
                let found = format!("{:?} of shape {:?}", found.dtype(), found.shape());
                return Err(self.failed(ModelFault::Unfit { name, expected, found }));
            }
            let values = found.data().as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
            let is_variance = name.ends_with(NormLayer::VARIANCE);
            if let Some(bad) =
                values.into_iter().find(|&it| is_variance && (it.is_nan() || it < 0.0))
            {
                let (expected, found) = ("variances of 0 or more".to_owned(), bad.to_string());
                return Err(self.failed(ModelFault::Unfit { name, expected, found }));
            }
            known.insert(name);
        }
        // A parameter of a layer that the settings do not have would be left out.
        let is_unknown = |name: &&str| name.starts_with("layers.") && !known.contains(*name);
        if let Some(name) = tensors.names().into_iter().find(is_unknown) {
            let (name, expected) = (name.to_owned(), "absent by the file's settings".to_owned());
            return Err(self.failed(ModelFault::Unfit { name, expected, found: "it".to_owned() }));
        }
        Ok(())
    }

    /// Returns the digest of the file's bytes.
    pub(crate) fn digest(&self) -> blake3::Hash {
        blake3::hash(&self.bytes)
    }

    /// Returns the classes of the last layer.
    pub(crate) fn n_classes(&self) -> Result<usize, SavedModelError> {
        let name = format!("layers.{}.bias", self.config.fanouts.len() - 1);
        let bias = self.tensors()?.tensor(&name).map_err(|error| self.failed(error.into()))?;
        match bias.shape() {
            &[n_classes] if n_classes > 0 => Ok(n_classes),
            found => {
                let (expected, found) = ("a vector".to_owned(), format!("shape {found:?}"));
                Err(self.failed(ModelFault::Unfit { name, expected, found }))
            }
        }
    }

    /// Sets the parameters of `model`, of the `spec` that has been checked, to those of the file.
    /// Returns how many elements they have.
    pub(crate) fn fill(&self, model: &Model, spec: &ModelSpec) -> Result<u64, SavedModelError> {
        let tensors = self.tensors()?;
        let mut n_parameters = 0;
        let are_statistics = model.are_statistics();
        for (((name, _), parameter), is_statistic) in
            spec.shapes().into_iter().zip(model.parameters()).zip(are_statistics)
        {
            let found = tensors.tensor(&name).map_err(|error| self.failed(error.into()))?;
            let values = found.data().as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
            let values: Vec<f32> = values.collect();
            n_parameters += if is_statistic { 0 } else { values.len() as u64 };
            parameter.set(&values);
        }
        Ok(n_parameters)
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, SavedModelError> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| self.failed(error.into()))
    }

    fn failed(&self, fault: ModelFault) -> SavedModelError {
        SavedModelError { path: self.path.to_owned(), fault: Box::new(fault) }
    }
}

/// Returns all bytes of a file that is not too large.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let n_bytes = file.metadata()?.len();
    if n_bytes > MAX_FILE_BYTES {
        let what = format!("{n_bytes} bytes, a model has {MAX_FILE_BYTES} at most");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    let mut bytes = Vec::new();
    file.take(n_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns what it takes to use the parameters of a run of `config`.
fn metadata(config: &TrainConfig) -> HashMap<String, String> {
    let LayerOptions { aggregation, norm, residual } = config.layer;
    let options = [
        ("aggregation", aggregation.to_string(), aggregation != Aggregation::Mean),
        ("norm", norm.to_string(), norm != Norm::None),
        ("residual", residual.to_string(), residual),
    ];
    let unusual = options.into_iter().filter(|(.., is_unusual)| *is_unusual);
    let options = unusual.map(|(name, value, _)| (name, value));
    let entries = [
        ("model", config.model.to_string()),
        ("layers", config.fanouts.len().to_string()),
        ("hidden", config.hidden.to_string()),
        ("heads", config.n_heads.to_string()),
        ("output_heads", config.n_output_heads.to_string()),
        ("normalize", config.normalize.to_string()),
        ("metric", config.metric.to_string()),
        ("feature_tensor", config.feature_tensor.clone()),
        ("label_tensor", config.label_tensor.clone()),
        ("split_tensor", config.split_tensor.clone()),
    ];
    entries.into_iter().chain(options).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the settings of [`metadata`]; all others as usual, since they do not matter once
/// trained.
fn config(metadata: &HashMap<String, String>) -> Result<TrainConfig, ModelFault> {
    /// Returns an entry; files from before a choice lack it, and have the `usual` one.
    fn entry<T: FromStr>(
        metadata: &HashMap<String, String>,
        name: &str,
        expected: &str,
        usual: Option<T>,
    ) -> Result<T, ModelFault> {
        let found = match (metadata.get(name), usual) {
            (Some(found), _) => found,
            (None, Some(usual)) => return Ok(usual),
            (None, None) => "nothing",
        };
        let unfit = |_| ModelFault::Unfit {
            name: name.to_owned(),
            expected: format!("{expected} in the file's metadata"),
            found: found.to_owned(),
        };
        found.parse().map_err(unfit)
    }
    let number = |name| entry::<usize>(metadata, name, "a number", None);
    let text = |name| entry::<String>(metadata, name, "a name", None);
    let n_layers = number("layers")?;
    if !(1..=MAX_LAYERS).contains(&n_layers) {
        let (expected, found) = (format!("1 to {MAX_LAYERS}"), n_layers.to_string());
        return Err(ModelFault::Unfit { name: "layers".to_owned(), expected, found });
    }
    Ok(TrainConfig {
        metric: entry(metadata, "metric", "accuracy, f1-micro or roc-auc", Some(Metric::Accuracy))?,
        layer: LayerOptions {
            aggregation: entry(
                metadata,
                "aggregation",
                "mean, max or sum",
                Some(Aggregation::Mean),
            )?,
            norm: entry(metadata, "norm", "none, batch or layer", Some(Norm::None))?,
            residual: entry(metadata, "residual", "true or false", Some(false))?,
        },
        model: entry(metadata, "model", "sage, gcn or gat", None)?,
        fanouts: vec![Fanout::All; n_layers],
        hidden: number("hidden")?,
        n_heads: number("heads")?,
        n_output_heads: number("output_heads")?,
        normalize: entry(metadata, "normalize", "true or false", None)?,
        feature_tensor: text("feature_tensor")?,
        label_tensor: text("label_tensor")?,
        split_tensor: text("split_tensor")?,
        workers: 1,
        ..TrainConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::options::ModelKind;

    #[test]
    fn settings_survive_a_file_and_unknown_ones_are_named() {
        let usual = TrainConfig {
            model: ModelKind::Gat,
            hidden: 48,
            n_heads: 6,
            n_output_heads: 2,
            normalize: true,
            metric: Metric::RocAuc,
            fanouts: vec![Fanout::All; 3],
            ..TrainConfig::default()
        };
        for aggregation in [Aggregation::Mean, Aggregation::Max, Aggregation::Sum] {
            for (norm, residual) in [(Norm::None, true), (Norm::Batch, false), (Norm::Layer, true)]
            {
                let layer = LayerOptions { aggregation, norm, residual };
                let usual = TrainConfig { layer, ..usual.clone() };
                let found = config(&metadata(&usual)).unwrap();
                assert_eq!(format!("{found:?}"), format!("{usual:?}"));
            }
        }
        // A file without any options is one of before there were any.
        let found = config(&metadata(&usual)).unwrap();
        assert_eq!(format!("{found:?}"), format!("{usual:?}"));
        assert_eq!(metadata(&usual).len(), 10);
        let message = |name: &str, value: &str| {
            let mut entries = metadata(&usual);
            entries.insert(name.to_owned(), value.to_owned());
            config(&entries).unwrap_err().to_string()
        };
        assert!(message("model", "mlp").contains("must be sage, gcn or gat"));
        assert!(message("layers", "65").contains("must be 1 to 64, found 65"));
        assert!(message("layers", "0").contains("1 to 64"));
        assert!(message("heads", "-1").contains("a number"));
        assert!(message("norm", "instance").contains("must be none, batch or layer"));
        assert!(config(&HashMap::new()).unwrap_err().to_string().contains("found nothing"));
    }

    #[test]
    fn forged_settings_are_refused_before_they_take_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        let usual = TrainConfig { model: ModelKind::Gat, hidden: 16, ..TrainConfig::default() };
        let spec = ModelSpec::new(&usual, 10, 4);
        let model = Model::new(&spec, 1);
        let values: Vec<Vec<f32>> =
            model.parameters().iter().map(|parameter| parameter.read().to_vec()).collect();
        let opened = |change: fn(&mut TrainConfig)| {
            let mut forged = usual.clone();
            change(&mut forged);
            save(&path, &forged, &spec, &values).unwrap();
            let file = ModelFile::read(&path)?;
            file.check(&ModelSpec::new(&file.config, 10, file.n_classes()?))
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

    #[test]
    fn files_beside_the_model_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("model"), dir.path().join("model.partial"));
        fs::write(&other, "another's").unwrap();
        check_place(&path).unwrap();
        let usual = TrainConfig::default();
        let spec = ModelSpec::new(&usual, 10, 4);
        let model = Model::new(&spec, 1);
        let values: Vec<Vec<f32>> =
            model.parameters().iter().map(|parameter| parameter.read().to_vec()).collect();
        save(&path, &usual, &spec, &values).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"another's");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing half-made is left");
        ModelFile::read(&path).unwrap();
    }

    #[test]
    fn statistics_and_layers_that_no_run_leaves_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        let layer = LayerOptions { norm: Norm::Batch, ..LayerOptions::default() };
        let usual = TrainConfig { layer, model: ModelKind::Sage, ..TrainConfig::default() };
        let spec = ModelSpec::new(&usual, 10, 4);
        let model = Model::new(&spec, 1);
        let values: Vec<Vec<f32>> =
            model.parameters().iter().map(|parameter| parameter.read().to_vec()).collect();
        let opened = |config: &TrainConfig, variance: f32| {
            let mut values = values.clone();
            let mut names = spec.shapes().into_iter().map(|(name, _)| name);
            let at = names.position(|name| name.ends_with(NormLayer::VARIANCE));
            values[at.unwrap()][3] = variance;
            save(&path, config, &spec, &values).unwrap();
            let file = ModelFile::read(&path)?;
            file.check(&ModelSpec::new(&file.config, 10, file.n_classes()?))
        };
        opened(&usual, 0.0).unwrap();
        for variance in [-1e-6, f32::NAN, f32::NEG_INFINITY] {
            let refused = opened(&usual, variance).unwrap_err().to_string();
            assert!(refused.contains("norm_variance` must be variances of 0 or more"), "{refused}");
        }
        let without = TrainConfig { layer: LayerOptions::default(), ..usual.clone() };
        let refused = opened(&without, 1.0).unwrap_err().to_string();
        assert!(refused.contains("must be absent by the file's settings, found it"), "{refused}");
    }
}
