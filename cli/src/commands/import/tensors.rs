//! The tensors of an import, and how each is to be stored.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use lodestore_store::{
    CodecChoice, ConvertedSource, Dtype, RawSource, SourceError, TensorSource, open_source,
};

use crate::usage::UsageError;

/// A tensor's name, its file, and how to store its rows.
#[derive(Clone, Debug)]
pub(crate) struct ImportTensor {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) codec: CodecChoice,
    /// Type of the stored elements, if not that of the file.
    pub(crate) dtype: Option<Dtype>,
    /// What the rows of a file without a header are.
    pub(crate) raw: Option<RawRows>,
}

/// Type and width of packed rows, as `f32x128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawRows {
    dtype: Dtype,
    width: u32,
}

/// `NAME=VALUE` of a flag.
#[derive(Clone, Debug)]
pub(super) struct Named<T> {
    name: String,
    value: T,
}

/// `VALUE` of a flag for all tensors, or `NAME=VALUE` for one.
#[derive(Clone, Debug)]
pub(super) struct MaybeNamed<T> {
    name: Option<String>,
    value: T,
}

impl FromStr for RawRows {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (dtype, width) = text.split_once('x').ok_or("expected DTYPExWIDTH, such as f32x128")?;
        let dtype = dtype.parse::<Dtype>().map_err(|error| error.to_string())?;
        let width = width.parse().ok().filter(|&width| width > 0);
        let width = width.ok_or("expected a width of 1 or more after the `x`, such as f32x128")?;
        Ok(Self { dtype, width })
    }
}

impl<T: FromStr<Err: Display>> FromStr for Named<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                let value = value.parse().map_err(|error: T::Err| error.to_string())?;
                Ok(Self { name: name.to_owned(), value })
            }
            _ => Err("expected NAME=VALUE, with the tensor's name before the `=`".to_owned()),
        }
    }
}

impl<T: FromStr<Err: Display>> FromStr for MaybeNamed<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('=') {
            let Named { name, value } = text.parse()?;
            return Ok(Self { name: Some(name), value });
        }
        let value = text.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Self { name: None, value })
    }
}

/// Brings the flags about tensors together; a name that is there twice, or that no `--tensor` has,
/// is refused.
pub(super) fn tensors(
    files: Vec<Named<PathBuf>>,
    codecs: &[MaybeNamed<CodecChoice>],
    dtypes: &[Named<Dtype>],
    raws: &[Named<RawRows>],
) -> Result<Vec<ImportTensor>, UsageError> {
    let mut tensors: Vec<ImportTensor> = Vec::with_capacity(files.len());
    for Named { name, value: file } in files {
        if tensors.iter().any(|other| other.name == name) {
            return Err(UsageError::new(format!("--tensor {name} is given twice")));
        }
        tensors.push(ImportTensor::new(&name, file));
    }
    for codec in codecs {
        for tensor in named("--codec", &mut tensors, codec.name.as_deref())? {
            tensor.codec = codec.value;
        }
    }
    for dtype in dtypes {
        for tensor in named("--dtype", &mut tensors, Some(&dtype.name))? {
            tensor.dtype = Some(dtype.value);
        }
    }
    for raw in raws {
        for tensor in named("--raw", &mut tensors, Some(&raw.name))? {
            tensor.raw = Some(raw.value);
        }
    }
    Ok(tensors)
}

/// The tensor of this name, or all without one.
fn named<'a>(
    flag: &str,
    tensors: &'a mut [ImportTensor],
    name: Option<&str>,
) -> Result<impl Iterator<Item = &'a mut ImportTensor>, UsageError> {
    if let Some(name) = name
        && !tensors.iter().any(|tensor| tensor.name == name)
    {
        return Err(UsageError::new(format!("{flag} {name}=…: there is no --tensor {name}=FILE")));
    }
    let name = name.map(str::to_owned);
    Ok(tensors.iter_mut().filter(move |tensor| name.as_ref().is_none_or(|n| *n == tensor.name)))
}

impl ImportTensor {
    /// Stored as it is in the file, compressed if that pays.
    pub(crate) fn new(name: &str, file: PathBuf) -> Self {
        Self { name: name.to_owned(), file, codec: CodecChoice::Auto, dtype: None, raw: None }
    }

    /// Opens the file, with elements as they are to be stored.
    pub(super) fn open(&self) -> Result<Box<dyn TensorSource>, SourceError> {
        let source: Box<dyn TensorSource> = match self.raw {
            Some(RawRows { dtype, width }) => Box::new(RawSource::open(&self.file, dtype, width)?),
            None => open_source(&self.file)?,
        };
        Ok(match self.dtype {
            Some(dtype) if dtype != source.dtype() => Box::new(ConvertedSource::new(source, dtype)),
            _ => source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<T: FromStr<Err: std::fmt::Debug>>(flags: &[&str]) -> Vec<T> {
        flags.iter().map(|flag| flag.parse().unwrap()).collect()
    }

    #[test]
    fn settings_reach_the_tensors_they_name() {
        let files = parse(&["feat=a.npy", "label=b.npy"]);
        let codecs = parse(&["raw", "feat=zstd"]);
        let tensors = tensors(files, &codecs, &parse(&["feat=bf16"]), &[]).unwrap();
        let settings: Vec<_> = tensors.iter().map(|t| (t.codec, t.dtype)).collect();
        assert_eq!(settings, [(CodecChoice::Zstd, Some(Dtype::BF16)), (CodecChoice::Raw, None)]);
    }

    #[test]
    fn names_that_no_tensor_has_are_refused() {
        let files = || parse(&["feat=a.npy"]);
        let codec = tensors(files(), &parse(&["label=zstd"]), &[], &[]).unwrap_err();
        assert!(codec.to_string().contains("label"), "{codec}");
        assert!(tensors(files(), &[], &parse(&["label=f16"]), &[]).is_err());
        assert!(tensors(files(), &[], &[], &parse(&["label=f16x3"])).is_err());
        assert!(tensors(parse(&["a=1", "a=2"]), &[], &[], &[]).is_err());
        for text in ["f32", "f32x", "f32x0", "x3", "f31x3", "f32x-1", "f32x99999999999"] {
            assert!(text.parse::<RawRows>().is_err(), "{text}");
        }
        assert!("feat=f17".parse::<Named<Dtype>>().is_err());
        assert!("=f16".parse::<Named<Dtype>>().is_err());
    }
}
