//! Flags about the tensors of an import.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use lodestore_import::{RowLayout, TensorFile};
use lodestore_store::Dtype;
use lodestore_store::codec::CodecChoice;

use crate::usage::UsageError;

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

/// Adds the flags about tensors to those of a dataset; a name that is there twice, or that no
/// tensor has, is refused.
pub(super) fn tensors(
    of_dataset: Vec<TensorFile>,
    files: Vec<Named<PathBuf>>,
    codecs: &[MaybeNamed<CodecChoice>],
    dtypes: &[Named<Dtype>],
    raws: &[Named<RowLayout>],
) -> Result<Vec<TensorFile>, UsageError> {
    let mut tensors = of_dataset;
    for Named { name, value: file } in files {
        if tensors.iter().any(|other| other.name == name) {
            return Err(UsageError::new(format!("tensor {name} is given twice")));
        }
        tensors.push(TensorFile::new(&name, file));
    }
    refuse_repeats("--codec", codecs.iter().map(|codec| codec.name.as_deref()))?;
    refuse_repeats("--dtype", dtypes.iter().map(|dtype| Some(&*dtype.name)))?;
    refuse_repeats("--raw", raws.iter().map(|raw| Some(&*raw.name)))?;
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

/// Fails where `flag` is given twice for one tensor, or twice for all.
fn refuse_repeats<'a>(
    flag: &str,
    names: impl Iterator<Item = Option<&'a str>>,
) -> Result<(), UsageError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            let whose = name.map_or("all tensors".to_owned(), |name| format!("tensor {name}"));
            return Err(UsageError::new(format!("{flag} is given twice for {whose}")));
        }
    }
    Ok(())
}

/// Returns the tensor of this name, or all without one.
fn named<'a>(
    flag: &str,
    tensors: &'a mut [TensorFile],
    name: Option<&str>,
) -> Result<impl Iterator<Item = &'a mut TensorFile>, UsageError> {
    if let Some(name) = name
        && !tensors.iter().any(|tensor| tensor.name == name)
    {
        return Err(UsageError::new(format!("{flag} {name}=…: there is no --tensor {name}=FILE")));
    }
    let name = name.map(str::to_owned);
    Ok(tensors.iter_mut().filter(move |tensor| name.as_ref().is_none_or(|n| *n == tensor.name)))
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
        let tensors = tensors(Vec::new(), files, &codecs, &parse(&["feat=bf16"]), &[]).unwrap();
        let settings: Vec<_> = tensors.iter().map(|t| (t.codec, t.dtype)).collect();
        assert_eq!(settings, [(CodecChoice::Zstd, Some(Dtype::BF16)), (CodecChoice::Raw, None)]);
    }

    #[test]
    fn names_that_no_tensor_has_are_refused() {
        let files = || parse(&["feat=a.npy"]);
        let codec = tensors(Vec::new(), files(), &parse(&["label=zstd"]), &[], &[]).unwrap_err();
        assert!(codec.to_string().contains("label"), "{codec}");
        assert!(tensors(Vec::new(), files(), &[], &parse(&["label=f16"]), &[]).is_err());
        assert!(tensors(Vec::new(), files(), &[], &[], &parse(&["label=f16x3"])).is_err());
        assert!(tensors(Vec::new(), parse(&["a=1", "a=2"]), &[], &[], &[]).is_err());
        for (codecs, dtypes, raws) in [
            (&["raw", "zstd"][..], &[][..], &[][..]),
            (&["a=raw", "a=zstd"], &[], &[]),
            (&[], &["a=f32", "a=f64"], &[]),
            (&[], &[], &["a=f32x3", "a=f32x4"]),
        ] {
            let files = parse(&["a=1"]);
            let found = tensors(Vec::new(), files, &parse(codecs), &parse(dtypes), &parse(raws));
            let error = found.unwrap_err();
            assert!(error.to_string().contains("twice"), "{error}");
        }
        assert!("feat=f17".parse::<Named<Dtype>>().is_err());
        assert!("=f16".parse::<Named<Dtype>>().is_err());
    }
}
