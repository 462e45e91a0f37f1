//! Sparse rows from an `.npz` archive in compressed sparse row form, as `scipy.sparse.save_npz`
//! writes it; made dense row by row.

use std::path::{Path, PathBuf};

use lodestore_graph::npy::NpyType;

use super::npz_member::{Npz, NpzMember};
use super::{SourceError, TensorSource, tensor_dtype};
use crate::dtype::Dtype;

/// Mapped arrays `indptr`, `indices`, `data` and `shape`.
///
/// Invariant, checked at opening: `indptr` starts with 0, never decreases and ends with the number
/// of elements. Every column is below the width, and no row names a column twice.
#[derive(Debug)]
pub struct NpzCsrSource {
    path: PathBuf,
    indptr: Indices,
    columns: Indices,
    data: NpzMember,
    dtype: Dtype,
    n_rows: u64,
    width: u64,
}

impl NpzCsrSource {
    /// Maps `path` and checks all of its indices; deflated arrays are unpacked to temporary files.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let broken = |reason: String| SourceError::content(path, reason);
        let mut npz = Npz::open(path)?;
        if let Some(format) = npz.small("format.npy", 256) {
            // Of bytes, or of characters of four bytes.
            let letters: Vec<u8> = format.into_iter().filter(|&byte| byte != 0).collect();
            if !letters.ends_with(b"csr") {
                let reason = "the matrix is not in CSR format; convert it with .tocsr()";
                return Err(broken(reason.to_owned()));
            }
        }
        let shape = Indices::of(npz.array("shape.npy")?)
            .filter(|shape| shape.len() == 2)
            .ok_or_else(|| broken("shape.npy must hold two integers".to_owned()))?;
        let indices = |member: NpzMember, name: &str| {
            let found = member.dtype();
            Indices::of(member).ok_or_else(|| {
                broken(format!("{name} must be a list of 32- or 64-bit integers, found {found}"))
            })
        };
        let indptr = indices(npz.array("indptr.npy")?, "indptr.npy")?;
        let columns = indices(npz.array("indices.npy")?, "indices.npy")?;
        let data = npz.array("data.npy")?;
        let dtype = tensor_dtype(path, data.dtype())?;
        let (n_rows, width) = (shape.get(0), shape.get(1));
        let csr = Self { path: path.to_owned(), indptr, columns, data, dtype, n_rows, width };
        csr.check()?;
        Ok(csr)
    }

    /// Establishes the invariant.
    fn check(&self) -> Result<(), SourceError> {
        let broken = |reason: String| SourceError::content(&self.path, reason);
        let (n_pointers, n_columns) = (self.indptr.len(), self.columns.len());
        if n_pointers as u64 != self.n_rows.saturating_add(1) {
            let rows = self.n_rows;
            return Err(broken(format!(
                "{rows} rows need {rows} + 1 pointers, found {n_pointers}"
            )));
        }
        if self.data.shape() != [n_columns as u64] {
            let shape = self.data.shape();
            return Err(broken(format!("{n_columns} columns, but data of shape {shape:?}")));
        }
        if self.indptr.get(0) != 0 {
            return Err(self.csr(0, &format!("the first pointer is {}", self.indptr.get(0))));
        }
        let mut scratch = Vec::new();
        for row in 0..n_pointers - 1 {
            let (start, end) = (self.indptr.get(row), self.indptr.get(row + 1));
            if start > end || end > n_columns as u64 {
                let reason = format!("elements {start} to {end} of {n_columns}");
                return Err(self.csr(row as u64, &reason));
            }
            self.check_row(row as u64, start as usize..end as usize, &mut scratch)?;
        }
        let end = self.indptr.get(n_pointers - 1);
        if end != n_columns as u64 {
            return Err(broken(format!("the rows end at element {end} of {n_columns}")));
        }
        Ok(())
    }

    /// Checks that the columns of one row are in range and distinct.
    fn check_row(
        &self,
        row: u64,
        elements: std::ops::Range<usize>,
        scratch: &mut Vec<u64>,
    ) -> Result<(), SourceError> {
        scratch.clear();
        scratch.extend(elements.map(|element| self.columns.get(element)));
        if let Some(column) = scratch.iter().find(|&&column| column >= self.width) {
            return Err(self.csr(row, &format!("column {column} of {}", self.width)));
        }
        if !scratch.is_sorted() {
            scratch.sort_unstable();
        }
        match scratch.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(self.csr(
                row,
                &format!("column {} comes twice; call .sum_duplicates() before saving", pair[0]),
            )),
            None => Ok(()),
        }
    }

    fn csr(&self, row: u64, reason: &str) -> SourceError {
        SourceError::content(&self.path, format!("row {row}: {reason}"))
    }
}

impl TensorSource for NpzCsrSource {
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
        let size = self.dtype.size_bytes();
        let row_bytes = self.width as usize * size;
        assert_eq!(out.len(), rows.len() * row_bytes, "one place for every row");
        out.fill(0);
        let data = self.data.bytes();
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(row_bytes.max(1))) {
            if u64::from(row) >= self.n_rows {
                let (file, n_rows) = (self.path.clone(), self.n_rows);
                return Err(SourceError::NoRow { file, row, n_rows });
            }
            let row = row as usize;
            for element in self.indptr.get(row) as usize..self.indptr.get(row + 1) as usize {
                let (from, to) = (element * size, self.columns.get(element) as usize * size);
                out[to..to + size].copy_from_slice(&data[from..from + size]);
            }
        }
        Ok(())
    }
}

/// A one-dimensional array of integers; a negative one reads as a number too large to be valid.
#[derive(Debug)]
struct Indices {
    member: NpzMember,
    wide: bool,
}

impl Indices {
    fn of(member: NpzMember) -> Option<Self> {
        let wide = match member.dtype() {
            NpyType::I64 | NpyType::U64 => true,
            NpyType::I32 | NpyType::U32 => false,
            _ => return None,
        };
        (member.shape().len() == 1).then_some(Self { member, wide })
    }

    fn len(&self) -> usize {
        self.member.bytes().len() / if self.wide { 8 } else { 4 }
    }

    /// Returns the integer at `i`, which must be below the length.
    fn get(&self, i: usize) -> u64 {
        let bytes = self.member.bytes();
        match self.wide {
            true => u64::from_le_bytes(bytes.as_chunks::<8>().0[i]),
            false => u32::from_le_bytes(bytes.as_chunks::<4>().0[i]).into(),
        }
    }
}
