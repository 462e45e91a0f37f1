//! Files that become rows or edges, converted one piece at a time.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use lodestore_graph::npy::{NpyArray, NpyType, NpyWriter};
use lodestore_store::Dtype;
use lodestore_store::source::NpzMember;

use super::text::Lines;
use super::{NO_LABEL, SPLIT_VALUES};
use crate::config::{RowLayout, TensorFile};
use crate::error::{Error, refused};

/// Elements converted at a time.
const CHUNK: usize = 1 << 16;

/// Numbers of an array in a file, of any type.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a> {
    /// File concerned, for messages.
    pub(super) path: &'a Path,
    pub(super) dtype: NpyType,
    pub(super) shape: &'a [u64],
    pub(super) bytes: &'a [u8],
}

impl<'a> Numbers<'a> {
    pub(super) fn of_member(path: &'a Path, member: &'a NpzMember) -> Self {
        let (dtype, shape, bytes) = (member.dtype(), member.shape(), member.bytes());
        Self { path, dtype, shape, bytes }
    }

    pub(super) fn of_array(path: &'a Path, array: &'a NpyArray) -> Self {
        let (dtype, shape, bytes) = (array.dtype(), array.shape(), array.bytes());
        Self { path, dtype, shape, bytes }
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size_bytes()
    }

    /// Returns number `i`, which must be below the length; NaN is [`NO_LABEL`].
    pub(super) fn integer(&self, i: usize) -> Result<i64, Error> {
        let size = self.dtype.size_bytes();
        let bytes = &self.bytes[i * size..][..size];
        let mut wide = [0u8; 8];
        wide[..size].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        let shift = 64 - 8 * size as u32;
        let found = match self.dtype {
            NpyType::I8 | NpyType::I16 | NpyType::I32 | NpyType::I64 => {
                Some((unsigned << shift) as i64 >> shift)
            }
            NpyType::U8 | NpyType::U16 | NpyType::U32 | NpyType::U64 | NpyType::Bool => {
                i64::try_from(unsigned).ok()
            }
            NpyType::F32 => whole(f32::from_bits(unsigned as u32).into()),
            NpyType::F64 => whole(f64::from_bits(unsigned)),
            NpyType::F16 => None,
        };
        found.ok_or_else(|| {
            let dtype = self.dtype;
            refused(
                self.path,
                format!("element {i} ({dtype}) is no integer; integers are expected"),
            )
        })
    }

    /// Writes shape (2, E) as E pairs of 32-bit ids to `out`.
    pub(super) fn write_edges(&self, out: &Path) -> Result<(), Error> {
        let &[2, n_edges] = self.shape else {
            let shape = self.shape;
            return Err(refused(
                self.path,
                format!("edges must be of shape (2, E), found {shape:?}"),
            ));
        };
        let mut file = create(out)?;
        let id = |i: usize| -> Result<u32, Error> {
            let found = self.integer(i)?;
            u32::try_from(found).ok().filter(|&id| id != u32::MAX).ok_or_else(|| {
                let edge = i as u64 % n_edges;
                refused(self.path, format!("edge {edge} names node {found}; ids are 0 to 2^32 - 2"))
            })
        };
        for edge in 0..n_edges as usize {
            let pair = [id(edge)?, id(edge + n_edges as usize)?];
            file.write_all(bytemuck::bytes_of(&pair)).map_err(Error::io(out, "write"))?;
        }
        file.flush().map_err(Error::io(out, "write"))
    }

    /// Writes them as integers of shape (N,) or (N, W) to an `.npy` file. Several of a row that are
    /// all 0 or 1 become u8, as labels of which a node may have several are.
    pub(super) fn write_integers(&self, out: &Path) -> Result<(), Error> {
        if let Some(flags) = flags(self.shape, (0..self.len()).map(|i| self.integer(i)))? {
            return Ok(NpyWriter::write(out, NpyType::U8, self.shape, &flags)?);
        }
        let mut file = NpyWriter::create(out, NpyType::I64, self.shape)?;
        let mut chunk = Vec::with_capacity(CHUNK.min(self.len()));
        for first in (0..self.len()).step_by(CHUNK) {
            chunk.clear();
            for i in first..(first + CHUNK).min(self.len()) {
                chunk.push(self.integer(i)?);
            }
            file.write_all(bytemuck::cast_slice(&chunk))?;
        }
        Ok(file.finish()?)
    }
}

/// Converts text with as many floats on each line, one line for each node, to packed rows in
/// `scratch`.
pub(super) fn text_rows(
    name: &str,
    path: &Path,
    n_nodes: u32,
    scratch: &Path,
) -> Result<TensorFile, Error> {
    let out = scratch.join(format!("{name}.f32"));
    let mut file = create(&out)?;
    let (n_rows, width) = numbers(
        path,
        "number",
        |text| text.parse().ok(),
        |row: &[f32]| file.write_all(bytemuck::cast_slice(row)).map_err(Error::io(&out, "write")),
    )?;
    file.flush().map_err(Error::io(&out, "write"))?;
    if n_rows == 0 {
        return Err(refused(path, "no rows; expected a line of numbers for each node"));
    }
    check_rows(path, n_nodes, n_rows)?;
    let raw = Some(RowLayout { dtype: Dtype::F32, width: width as u32 });
    Ok(TensorFile { raw, ..TensorFile::new(name, out) })
}

/// Converts text with as many integers on each line, one line for each node, to an `.npy` file in
/// `scratch`; `nan` is [`NO_LABEL`]. Several of a line that are all 0 or 1 become u8.
pub(super) fn text_integers(
    name: &str,
    path: &Path,
    n_nodes: u32,
    scratch: &Path,
) -> Result<TensorFile, Error> {
    let mut all = Vec::new();
    let (n_rows, width) = numbers(path, "integer", integer, |row| {
        all.extend_from_slice(row);
        Ok(())
    })?;
    check_rows(path, n_nodes, n_rows)?;
    let out = scratch.join(format!("{name}.npy"));
    let shape = if width == 1 { vec![n_rows] } else { vec![n_rows, width as u64] };
    match flags(&shape, all.iter().copied().map(Ok))? {
        Some(flags) => NpyWriter::write(&out, NpyType::U8, &shape, &flags)?,
        None => NpyWriter::write(&out, NpyType::I64, &shape, bytemuck::cast_slice(&all))?,
    }
    Ok(TensorFile::new(name, out))
}

/// Fails for another number of rows than one for each node.
pub(super) fn check_rows(path: &Path, n_nodes: u32, found: u64) -> Result<(), Error> {
    if found == u64::from(n_nodes) {
        return Ok(());
    }
    Err(refused(path, format!("expected {n_nodes} rows, one for each node, found {found}")))
}

/// Returns numbers of shape (N, W) as flags, where W is more than 1 and all are 0 or 1.
fn flags(
    shape: &[u64],
    numbers: impl Iterator<Item = Result<i64, Error>>,
) -> Result<Option<Vec<u8>>, Error> {
    if shape.get(1).is_none_or(|&width| width <= 1) {
        return Ok(None);
    }
    let flag = |number: i64| u8::try_from(number).ok().filter(|&flag| flag <= 1);
    numbers.map(|number| number.map(flag)).collect()
}

/// Passes the numbers of each line of a text to `take`. Returns the lines, and the numbers of each,
/// which must be as many. `kind` is what `parse` returns, for people.
fn numbers<T>(
    path: &Path,
    kind: &str,
    parse: impl Fn(&str) -> Option<T>,
    mut take: impl FnMut(&[T]) -> Result<(), Error>,
) -> Result<(u64, usize), Error> {
    let (mut lines, mut row, mut n_rows, mut width) = (Lines::open(path)?, Vec::new(), 0, 0);
    while let Some(line) = lines.next()? {
        row.clear();
        let mut parsed = line.split(',').map(|text| parse(text.trim()));
        if parsed.try_for_each(|number| number.map(|number| row.push(number))).is_none() {
            return Err(lines.refused(&format!("has a column that is no {kind}")));
        }
        if n_rows > 0 && width != row.len() {
            let found = row.len();
            return Err(lines.refused(&format!("has {found} columns, the first one {width}")));
        }
        (n_rows, width) = (n_rows + 1, row.len());
        take(&row)?;
    }
    Ok((n_rows, width))
}

/// Parses an integer, written as one or as a float; `nan` is [`NO_LABEL`].
fn integer(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| whole(text.parse().ok()?))
}

/// Returns a float that is an integer as one; NaN is [`NO_LABEL`].
fn whole(value: f64) -> Option<i64> {
    match value {
        value if value.is_nan() => Some(NO_LABEL),
        value if value.fract() == 0.0 && value.abs() < 9e15 => Some(value as i64),
        _ => None,
    }
}

/// The split of each node, filled from lists of nodes.
pub(super) struct Split {
    of_node: Vec<u8>,
}

impl Split {
    /// Returns a split of `n_nodes` nodes in none of its sets.
    pub(super) fn new(n_nodes: u32) -> Self {
        Self { of_node: vec![SPLIT_VALUES[3]; n_nodes as usize] }
    }

    /// Puts node `id` into `set`, an index of [`SPLIT_VALUES`].
    pub(super) fn put(&mut self, id: i64, set: usize) -> Result<(), String> {
        let n_nodes = self.of_node.len();
        let place = usize::try_from(id).ok().and_then(|id| self.of_node.get_mut(id));
        let place = place.ok_or_else(|| format!("names node {id} of {n_nodes}"))?;
        if *place != SPLIT_VALUES[3] && *place != SPLIT_VALUES[set] {
            return Err(format!("names node {id}, which another set has too"));
        }
        *place = SPLIT_VALUES[set];
        Ok(())
    }

    /// Puts the nodes of a text, one on each line, into `set`.
    pub(super) fn put_text(&mut self, path: &Path, set: usize) -> Result<(), Error> {
        let mut lines = Lines::open(path)?;
        loop {
            let Some(line) = lines.next()? else { return Ok(()) };
            let Some(id) = integer(line) else { return Err(lines.refused("is no node id")) };
            self.put(id, set).map_err(|reason| lines.refused(&reason))?;
        }
    }

    /// Writes the split to `scratch`.
    pub(super) fn write(self, scratch: &Path) -> Result<TensorFile, Error> {
        let out = scratch.join("split.npy");
        NpyWriter::write(&out, NpyType::U8, &[self.of_node.len() as u64], &self.of_node)?;
        Ok(TensorFile::new("split", out))
    }
}

fn create(path: &Path) -> Result<BufWriter<File>, Error> {
    let file = File::create(path).map_err(Error::io(path, "create"))?;
    Ok(BufWriter::with_capacity(CHUNK * 4, file))
}
