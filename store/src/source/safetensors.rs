//! Dense rows from a tensor of a `.safetensors` file.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use super::{SourceError, TensorSource, copy_packed, listed};
use crate::dtype::Dtype;
use crate::map::FileMap;

/// Bytes before the header: its length.
const LENGTH_BYTES: usize = 8;

/// A mapped tensor of shape (nodes,) or (nodes, width).
#[derive(Debug)]
pub struct SafetensorsSource {
    path: PathBuf,
    map: FileMap,
    /// Place of the tensor's rows in the file.
    rows: Range<usize>,
    dtype: Dtype,
    n_rows: u64,
    width: u64,
}

impl SafetensorsSource {
    /// Maps `path` and checks its header; without a name the file must have one tensor.
    pub fn open(path: &Path, name: Option<&str>) -> Result<Self, SourceError> {
        let io = |action| move |source| SourceError::Io { file: path.to_owned(), action, source };
        let broken = |reason| SourceError::Archive { file: path.to_owned(), reason };
        let file = File::open(path).map_err(io("open"))?;
        let map = FileMap::of(&file).map_err(io("map"))?;
        let (header_bytes, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|error| broken(format!("not a readable .safetensors file: {error}")))?;
        let mut names = metadata.offset_keys();
        names.sort();
        let name = match (name, &names[..]) {
            (Some(name), _) => name,
            (None, [only]) => only,
            (None, _) => return Err(broken(listed("tensors", "FILE.safetensors:NAME", &names))),
        };
        let Some(info) = metadata.info(name) else {
            let known = listed("tensors", "FILE.safetensors:NAME", &names);
            return Err(broken(format!("no tensor `{name}`; {known}")));
        };
        let Some(dtype) = dtype_of(info.dtype) else {
            let found = format!("{:?}", info.dtype);
            return Err(SourceError::Dtype { file: path.to_owned(), found });
        };
        let (n_rows, width) = match info.shape[..] {
            [n_rows] => (n_rows as u64, 1),
            [n_rows, width] => (n_rows as u64, width as u64),
            _ => {
                let found = info.shape.iter().map(|&n| n as u64).collect();
                return Err(SourceError::Shape { file: path.to_owned(), found });
            }
        };
        // The header's check made them the bytes of the shape, within the file.
        let (first, end) = info.data_offsets;
        let start = LENGTH_BYTES + header_bytes;
        let rows = start + first..start + end;
        Ok(Self { path: path.to_owned(), map, rows, dtype, n_rows, width })
    }
}

fn dtype_of(dtype: safetensors::Dtype) -> Option<Dtype> {
    Some(match dtype {
        safetensors::Dtype::F32 => Dtype::F32,
        safetensors::Dtype::F16 => Dtype::F16,
        safetensors::Dtype::BF16 => Dtype::BF16,
        safetensors::Dtype::F64 => Dtype::F64,
        safetensors::Dtype::U8 | safetensors::Dtype::BOOL => Dtype::U8,
        safetensors::Dtype::I8 => Dtype::I8,
        safetensors::Dtype::I16 => Dtype::I16,
        safetensors::Dtype::I32 => Dtype::I32,
        safetensors::Dtype::I64 => Dtype::I64,
        _ => return None,
    })
}

impl TensorSource for SafetensorsSource {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn width(&self) -> u64 {
        self.width
    }

    fn n_rows(&self) -> u64 {
        self.n_rows
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        copy_packed(self, &self.map[self.rows.clone()], rows, out)
    }
}
