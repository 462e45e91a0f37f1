//! A trained model as a file that other tools read too: safetensors, with what it takes to use the
//! parameters in its metadata.

use std::{
    collections::{HashMap, HashSet},
    error::Error as StdError,
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    str::FromStr,
};

use lodestore_graph::{OutputFile, OutputPlace};
use safetensors::{Dtype, SafeTensorError, SafeTensors, tensor::TensorView};
use thiserror::Error;

use crate::model::{MAX_LAYERS, Model, ModelSpec};
use crate::options::{LayerOptions, Metric, ModelKind, Norm};

/// A larger file is no model of this crate.
const MAX_FILE_BYTES: u64 = 1 << 32;

/// Entries of metadata that earlier releases wrote and this one lacks.
const REMOVED: [(&str, &str); 3] =
    [("aggregation", "max"), ("aggregation", "sum"), ("norm", "batch")];

/// What it takes to use the parameters of a model, as its file says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    /// Kind of the layers.
    pub kind: ModelKind,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of hidden rows.
    pub hidden: usize,
    /// Attention heads of all layers but the last.
    pub n_heads: usize,
    /// Attention heads of the last layer.
    pub n_output_heads: usize,
    /// Normalisation and residuals of layers.
    pub layer: LayerOptions,
    /// Whether each feature row is divided by the sum of its absolute values.
    pub normalize: bool,
    /// Metric by which the parameters were chosen.
    pub metric: Metric,
    /// Name of the tensor of features.
    pub feature_tensor: String,
    /// Name of the tensor of labels.
    pub label_tensor: String,
    /// Name of the tensor of splits.
    pub split_tensor: String,
}

/// Reason why a model's file could not be written or used.
#[derive(Debug, Error)]
#[error("model {}: {fault}", path.display())]
pub struct SavedModelError {
    path: PathBuf,
    fault: Box<ModelFault>,
}

/// The fault of a model's file.
#[derive(Debug, Error)]
enum ModelFault {
    #[error("cannot {action} it: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error("it is no file of tensors that is whole: {0}")]
    Format(#[from] SafeTensorError),
    #[error("`{name}` must be {expected}, found {found}")]
    Unfit { name: String, expected: String, found: String },
    #[error(
        "it has the {name} `{found}`, which this release lacks; use it with the release that wrote it, or \
         train the model again"
    )]
    Removed { name: &'static str, found: &'static str },
    #[error("in its metadata, {0}")]
    Settings(Box<dyn StdError + Send + Sync>),
}

impl ModelSettings {
    /// Returns the shape of the model for features of `width`, without dropout.
    #[must_use]
    pub fn spec(&self, width: usize, n_classes: usize) -> ModelSpec {
        let mut widths = vec![self.hidden; self.n_layers + 1];
        widths[0] = width;
        widths[self.n_layers] = n_classes;
        ModelSpec {
            kind: self.kind,
            widths,
            n_heads: self.n_heads,
            n_output_heads: self.n_output_heads,
            dropout: 0.0,
            layer: self.layer,
        }
    }
}

/// Fails unless a model can be written to `path`. A file is made beside it, and taken away again.
pub fn check_place(path: &Path) -> Result<(), SavedModelError> {
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

/// Writes the parameters `values`, one flat list each, of a model of `settings` and `spec` to
/// `path`.
pub fn save(
    path: &Path,
    settings: &ModelSettings,
    spec: &ModelSpec,
    values: &[Vec<f32>],
) -> Result<(), SavedModelError> {
    let failed = |fault| SavedModelError { path: path.to_owned(), fault: Box::new(fault) };
    let views = spec.shapes().into_iter().zip(values).map(|((name, shape), values)| {
        Ok((name, TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values))?))
    });
    let views = views.collect::<Result<Vec<_>, SafeTensorError>>();
    let bytes = views.and_then(|views| safetensors::serialize(views, Some(metadata(settings))));
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
pub struct ModelFile<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
    settings: ModelSettings,
}

impl<'a> ModelFile<'a> {
    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// It cannot be read, is no safetensors file, or lacks settings.
    pub fn read(path: &'a Path) -> Result<Self, SavedModelError> {
        let failed = |fault| SavedModelError { path: path.to_owned(), fault: Box::new(fault) };
        let bytes =
            read(path).map_err(|source| failed(ModelFault::Io { action: "read", source }))?;
        SafeTensors::deserialize(&bytes).map_err(|error| failed(error.into()))?;
        let header = SafeTensors::read_metadata(&bytes).map_err(|error| failed(error.into()))?;
        let none = HashMap::new();
        let metadata = header.1.metadata().as_ref().unwrap_or(&none);
        let settings = settings_of(metadata).map_err(failed)?;
        Ok(Self { path, bytes, settings })
    }

    /// Returns the settings that the file says. They may be those of no model: the caller validates
    /// them before it makes one.
    #[must_use]
    pub fn settings(&self) -> &ModelSettings {
        &self.settings
    }

    /// Returns the error of settings that are refused.
    pub fn refused(&self, error: impl Into<Box<dyn StdError + Send + Sync>>) -> SavedModelError {
        self.failed(ModelFault::Settings(error.into()))
    }

    /// Fails unless the file has the parameters of a model of `spec`, before memory is taken for
    /// one.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), SavedModelError> {
        let (tensors, mut known) = (self.tensors()?, HashSet::new());
        for (name, shape) in spec.shapes() {
            let found = tensors.tensor(&name).map_err(|error| self.failed(error.into()))?;
            if found.dtype() != Dtype::F32 || found.shape() != shape {
                let expected = format!("F32 of shape {shape:?}, as the graph asks for");
                let found = format!("{:?} of shape {:?}", found.dtype(), found.shape());
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
    pub fn digest(&self) -> blake3::Hash {
        blake3::hash(&self.bytes)
    }

    /// Returns the classes of the last layer.
    pub fn n_classes(&self) -> Result<usize, SavedModelError> {
        let name = format!("layers.{}.bias", self.settings.n_layers - 1);
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
    pub fn fill(&self, model: &Model, spec: &ModelSpec) -> Result<u64, SavedModelError> {
        let tensors = self.tensors()?;
        let mut n_parameters = 0;
        for ((name, _), parameter) in spec.shapes().into_iter().zip(model.parameters()) {
            let found = tensors.tensor(&name).map_err(|error| self.failed(error.into()))?;
            let values = found.data().as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
            let values: Vec<f32> = values.collect();
            n_parameters += values.len() as u64;
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

/// Returns the settings as a file has them.
fn metadata(settings: &ModelSettings) -> HashMap<String, String> {
    let LayerOptions { norm, residual } = settings.layer;
    let options = [
        ("norm", norm.to_string(), norm != Norm::None),
        ("residual", residual.to_string(), residual),
    ];
    let unusual = options.into_iter().filter(|(.., is_unusual)| *is_unusual);
    let options = unusual.map(|(name, value, _)| (name, value));
    let entries = [
        ("model", settings.kind.to_string()),
        ("layers", settings.n_layers.to_string()),
        ("hidden", settings.hidden.to_string()),
        ("heads", settings.n_heads.to_string()),
        ("output_heads", settings.n_output_heads.to_string()),
        ("normalize", settings.normalize.to_string()),
        ("metric", settings.metric.to_string()),
        ("feature_tensor", settings.feature_tensor.clone()),
        ("label_tensor", settings.label_tensor.clone()),
        ("split_tensor", settings.split_tensor.clone()),
    ];
    entries.into_iter().chain(options).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the settings of [`metadata`].
fn settings_of(metadata: &HashMap<String, String>) -> Result<ModelSettings, ModelFault> {
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
    for (name, removed) in REMOVED {
        if metadata.get(name).is_some_and(|found| found == removed) {
            return Err(ModelFault::Removed { name, found: removed });
        }
    }
    if let Some(found) = metadata.get("aggregation").filter(|found| *found != "mean") {
        return Err(ModelFault::Unfit {
            name: "aggregation".to_owned(),
            expected: "mean in the file's metadata".to_owned(),
            found: found.clone(),
        });
    }
    let number = |name| entry::<usize>(metadata, name, "a number", None);
    let text = |name| entry::<String>(metadata, name, "a name", None);
    let n_layers = number("layers")?;
    if !(1..=MAX_LAYERS).contains(&n_layers) {
        let (expected, found) = (format!("1 to {MAX_LAYERS}"), n_layers.to_string());
        return Err(ModelFault::Unfit { name: "layers".to_owned(), expected, found });
    }
    Ok(ModelSettings {
        metric: entry(metadata, "metric", "accuracy, f1-micro or roc-auc", Some(Metric::Accuracy))?,
        layer: LayerOptions {
            norm: entry(metadata, "norm", "none or layer", Some(Norm::None))?,
            residual: entry(metadata, "residual", "true or false", Some(false))?,
        },
        kind: entry(metadata, "model", "sage, gcn or gat", None)?,
        n_layers,
        hidden: number("hidden")?,
        n_heads: number("heads")?,
        n_output_heads: number("output_heads")?,
        normalize: entry(metadata, "normalize", "true or false", None)?,
        feature_tensor: text("feature_tensor")?,
        label_tensor: text("label_tensor")?,
        split_tensor: text("split_tensor")?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn usual() -> ModelSettings {
        ModelSettings {
            kind: ModelKind::Sage,
            n_layers: 2,
            hidden: 16,
            n_heads: 8,
            n_output_heads: 1,
            layer: LayerOptions::default(),
            normalize: false,
            metric: Metric::Accuracy,
            feature_tensor: "feat".to_owned(),
            label_tensor: "label".to_owned(),
            split_tensor: "split".to_owned(),
        }
    }

    #[test]
    fn settings_survive_a_file_and_unknown_ones_are_named() {
        let usual = ModelSettings {
            kind: ModelKind::Gat,
            n_layers: 3,
            hidden: 48,
            n_heads: 6,
            n_output_heads: 2,
            normalize: true,
            metric: Metric::RocAuc,
            ..usual()
        };
        for (norm, residual) in [(Norm::None, true), (Norm::Layer, false), (Norm::Layer, true)] {
            let layer = LayerOptions { norm, residual };
            let usual = ModelSettings { layer, ..usual.clone() };
            let found = settings_of(&metadata(&usual)).unwrap();
            assert_eq!(found, usual);
        }
        // A file without any options is one of before there were any.
        let found = settings_of(&metadata(&usual)).unwrap();
        assert_eq!(found, usual);
        assert_eq!(metadata(&usual).len(), 10);
        let message = |name: &str, value: &str| {
            let mut entries = metadata(&usual);
            entries.insert(name.to_owned(), value.to_owned());
            settings_of(&entries).unwrap_err().to_string()
        };
        assert!(message("model", "mlp").contains("must be sage, gcn or gat"));
        assert!(message("layers", "65").contains("must be 1 to 64, found 65"));
        assert!(message("layers", "0").contains("1 to 64"));
        assert!(message("heads", "-1").contains("a number"));
        assert!(message("norm", "instance").contains("must be none or layer"));
        assert!(message("aggregation", "median").contains("must be mean"));
        let mut with_mean = metadata(&usual);
        with_mean.insert("aggregation".to_owned(), "mean".to_owned());
        assert_eq!(settings_of(&with_mean).unwrap(), usual);
        for (name, removed) in REMOVED {
            let refused = message(name, removed);
            let expected = format!("the {name} `{removed}`, which this release lacks; use it with");
            assert!(refused.contains(&expected), "{refused}");
        }
        assert!(settings_of(&HashMap::new()).unwrap_err().to_string().contains("found nothing"));
    }

    #[test]
    fn files_beside_the_model_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("model"), dir.path().join("model.partial"));
        fs::write(&other, "another's").unwrap();
        check_place(&path).unwrap();
        let usual = usual();
        let spec = usual.spec(10, 4);
        let model = Model::new(&spec, 1);
        let values: Vec<Vec<f32>> =
            model.parameters().iter().map(|parameter| parameter.read().to_vec()).collect();
        save(&path, &usual, &spec, &values).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"another's");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing half-made is left");
        ModelFile::read(&path).unwrap();
    }

    #[test]
    fn parameters_that_the_settings_lack_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        let layer = LayerOptions { norm: Norm::Layer, ..LayerOptions::default() };
        let usual = ModelSettings { layer, ..usual() };
        let spec = usual.spec(10, 4);
        let model = Model::new(&spec, 1);
        let values: Vec<Vec<f32>> =
            model.parameters().iter().map(|parameter| parameter.read().to_vec()).collect();
        let opened = |settings: &ModelSettings| {
            save(&path, settings, &spec, &values).unwrap();
            let file = ModelFile::read(&path)?;
            file.check(&file.settings().spec(10, file.n_classes()?))
        };
        opened(&usual).unwrap();
        let without = ModelSettings { layer: LayerOptions::default(), ..usual.clone() };
        let refused = opened(&without).unwrap_err().to_string();
        assert!(refused.contains("must be absent by the file's settings, found it"), "{refused}");
    }
}
