//! Dense rows, packed one after the other in a file or in a part of one.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lodestore_graph::npy::{NpyArray, NpyType};
use safetensors::SafeTensors;

use super::npz_member::NpzMember;
use super::{SourceError, TensorSource, listed, tensor_dtype};
use crate::dtype::Dtype;
use crate::map::FileMap;

/// The start of a `.npy` file, which is never meant to be imported with its header.
const NPY_MAGIC: &[u8] = b"\x93NUMPY";

/// Bytes before the header of a `.safetensors` file: its length.
const LENGTH_BYTES: usize = 8;

/// Mapped rows of a `.npy` file, an array in an `.npz` archive, a tensor in a `.safetensors` file,
/// or a file of rows alone. Arrays have shape (nodes,) or (nodes, width).
#[derive(Debug)]
pub struct DenseSource {
    path: PathBuf,
    rows: Packed,
    dtype: Dtype,
    n_rows: u64,
    width: u64,
}

/// The bytes of all rows.
#[derive(Debug)]
enum Packed {
    Array(NpyArray),
    Member(NpzMember),
    Part(FileMap, Range<usize>),
}

impl DenseSource {
    /// Maps the `.npy` file `path` and checks type and shape.
    pub fn open_npy(path: &Path) -> Result<Self, SourceError> {
        let array = NpyArray::open(path)?;
        let dtype = tensor_dtype(path, array.dtype())?;
        let (n_rows, width) = rows_and_width(path, array.shape())?;
        Ok(Self { path: path.to_owned(), rows: Packed::Array(array), dtype, n_rows, width })
    }

    /// Checks type and shape of `member`, an array of the archive at `path`.
    pub(super) fn from_npz(path: &Path, member: NpzMember) -> Result<Self, SourceError> {
        let dtype = tensor_dtype(path, member.dtype())?;
        let (n_rows, width) = rows_and_width(path, member.shape())?;
        Ok(Self { path: path.to_owned(), rows: Packed::Member(member), dtype, n_rows, width })
    }

    /// Maps the `.safetensors` file `path` and checks its header; without a name it must have one
    /// tensor.
    pub(super) fn open_safetensors(path: &Path, name: Option<&str>) -> Result<Self, SourceError> {
        let broken = |reason: String| SourceError::content(path, reason);
        let map = map(path)?;
        let (header_bytes, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|error| broken(format!("not a readable .safetensors file: {error}")))?;
        let mut names = metadata.offset_keys();
        names.sort();
        let known = || listed("tensors", "FILE.safetensors:NAME", &names);
        let name = match (name, &names[..]) {
            (Some(name), _) => name,
            (None, [only]) => only,
            (None, _) => return Err(broken(known())),
        };
        let info = metadata.info(name);
        let info = info.ok_or_else(|| broken(format!("no tensor `{name}`; {}", known())))?;
        let dtype = dtype_of(info.dtype).ok_or_else(|| {
            let found = format!("{:?}", info.dtype);
            SourceError::Dtype { file: path.to_owned(), found }
        })?;
        let shape: Vec<u64> = info.shape.iter().map(|&n| n as u64).collect();
        let (n_rows, width) = rows_and_width(path, &shape)?;
        // The header's check made them the bytes of the shape, within the file.
        let (first, end) = info.data_offsets;
        let start = LENGTH_BYTES + header_bytes;
        let rows = Packed::Part(map, start + first..start + end);
        Ok(Self { path: path.to_owned(), rows, dtype, n_rows, width })
    }

    /// Maps a file of packed little-endian rows without a header; fails unless it holds whole rows
    /// of `width` elements.
    pub fn open_raw(path: &Path, dtype: Dtype, width: u32) -> Result<Self, SourceError> {
        let (file, map) = (path.to_owned(), map(path)?);
        if map.starts_with(NPY_MAGIC) {
            let reason =
                "this is a .npy file, which names its type and width; give it without them";
            return Err(SourceError::content(path, reason));
        }
        let (width, found_bytes) = (u64::from(width), map.len() as u64);
        let row_bytes = width * dtype.size_bytes() as u64;
        if row_bytes == 0 || !found_bytes.is_multiple_of(row_bytes) {
            let reason = format!(
                "rows of {row_bytes} bytes do not fill {found_bytes} bytes; check type and width"
            );
            return Err(SourceError::Content { file, reason });
        }
        let (n_rows, all) = (found_bytes / row_bytes, 0..map.len());
        Ok(Self { path: file, rows: Packed::Part(map, all), dtype, n_rows, width })
    }

    fn bytes(&self) -> &[u8] {
        match &self.rows {
            Packed::Array(array) => array.bytes(),
            Packed::Member(member) => member.bytes(),
            Packed::Part(map, rows) => &map[rows.clone()],
        }
    }
}

impl TensorSource for DenseSource {
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

    fn is_bool(&self) -> bool {
        match &self.rows {
            Packed::Array(array) => array.dtype() == NpyType::Bool,
            Packed::Member(member) => member.dtype() == NpyType::Bool,
            Packed::Part(..) => false,
        }
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        let (bytes, row_bytes) = (self.bytes(), self.width as usize * self.dtype.size_bytes());
        assert_eq!(out.len(), rows.len() * row_bytes, "one place for every row");
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(row_bytes.max(1))) {
            let start = row as usize * row_bytes;
            let found = bytes.get(start..start + row_bytes).ok_or_else(|| {
                let (file, n_rows) = (self.path.clone(), self.n_rows);
                SourceError::NoRow { file, row, n_rows }
            })?;
            out.copy_from_slice(found);
        }
        Ok(())
    }
}

fn map(path: &Path) -> Result<FileMap, SourceError> {
    let file = File::open(path).map_err(SourceError::io(path, "open"))?;
    FileMap::of(&file).map_err(SourceError::io(path, "map"))
}

/// Returns the rows of an array, and the elements of each.
fn rows_and_width(path: &Path, shape: &[u64]) -> Result<(u64, u64), SourceError> {
    match *shape {
        [n_rows] => Ok((n_rows, 1)),
        [n_rows, width] => Ok((n_rows, width)),
        _ => Err(SourceError::Shape { file: path.to_owned(), found: shape.to_vec() }),
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
