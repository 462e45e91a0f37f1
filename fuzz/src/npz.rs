//! Sparse matrices in `.npz` archives: whatever the bytes, they are refused, or every row can be
//! copied.

use std::cell::RefCell;
use std::io::{Cursor, Write};

use arbitrary::{Arbitrary, Unstructured};
use lodestore_store::source::{NpzCsrSource, TensorSource};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::input_file::Scratch;
use crate::memory::bounded;
use crate::npy::npy;

/// Wider rows than this are not copied.
const MAX_ROW_BYTES: u64 = 1 << 16;

thread_local! {
    static FILE: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// An archive whose parts are chosen freely; the zip itself is sound.
#[derive(Arbitrary, Debug)]
struct Parts<'a> {
    format: Option<&'a [u8]>,
    /// `indptr`, `indices`, `data`, `shape`; bit i of `deflated` is for the i-th.
    arrays: [Part<'a>; 4],
    deflated: u8,
}

#[derive(Arbitrary, Debug)]
enum Part<'a> {
    Missing,
    Bytes(&'a [u8]),
    Array { dtype: u8, shape: Option<(u8, u8)>, data: &'a [u8] },
    Integers { wide: bool, data: Vec<u8> },
}

/// Opens an archive. The first byte says whether the rest is an archive or the parts of one.
pub fn run(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    if kind % 2 == 0 {
        return open(rest);
    }
    if let Ok(parts) = Parts::arbitrary(&mut Unstructured::new(rest)) {
        open(&parts.archive());
    }
}

fn open(archive: &[u8]) {
    FILE.with_borrow_mut(|file| {
        let path = file.with(archive);
        let Ok(source) = bounded(archive.len(), || NpzCsrSource::open(path)) else { return };
        let row_bytes = source.width().saturating_mul(source.dtype().size_bytes() as u64);
        let last = source.n_rows().checked_sub(1).and_then(|last| u32::try_from(last).ok());
        if row_bytes <= MAX_ROW_BYTES
            && let Some(last) = last
        {
            let mut rows = vec![0; 2 * row_bytes as usize];
            source.copy_rows(&[last, 0], &mut rows).expect("rows of the matrix");
            let one = &mut rows[..row_bytes as usize];
            assert!(source.copy_rows(&[last + 1], one).is_err() || row_bytes == 0);
        }
    });
}

impl Parts<'_> {
    fn archive(&self) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        let mut add = |name: &str, bytes: &[u8], deflated: bool| {
            let method =
                if deflated { CompressionMethod::Deflated } else { CompressionMethod::Stored };
            let options = SimpleFileOptions::default().compression_method(method);
            zip.start_file(name, options).and_then(|()| Ok(zip.write_all(bytes)?))
        };
        if let Some(format) = self.format {
            add("format.npy", format, false).expect("room in memory");
        }
        let names = ["indptr.npy", "indices.npy", "data.npy", "shape.npy"];
        for (i, (name, part)) in names.iter().zip(&self.arrays).enumerate() {
            if let Some(bytes) = part.bytes() {
                add(name, &bytes, self.deflated >> i & 1 != 0).expect("room in memory");
            }
        }
        zip.finish().expect("room in memory").into_inner()
    }
}

impl Part<'_> {
    fn bytes(&self) -> Option<Vec<u8>> {
        match *self {
            Part::Missing => None,
            Part::Bytes(bytes) => Some(bytes.to_vec()),
            Part::Array { dtype, shape, data } => {
                let dtypes = ["<f4", "|u1", "<f8", "<i8", "<i4", "<f2", "|b1", ">f4"];
                let (descr, size) = (dtypes[usize::from(dtype % 8)], [4, 1, 8, 8, 4, 2, 1, 4]);
                let n = data.len() / size[usize::from(dtype % 8)];
                let shape = shape.map_or(format!("({n},)"), |(a, b)| format!("({a}, {b})"));
                Some(npy(descr, &shape, &data[..n * size[usize::from(dtype % 8)]]))
            }
            Part::Integers { wide, ref data } => {
                let spread = |&byte: &u8| {
                    let bytes = (i64::from(byte) - 2).to_le_bytes();
                    bytes.into_iter().take(if wide { 8 } else { 4 })
                };
                let bytes: Vec<u8> = data.iter().flat_map(spread).collect();
                let descr = if wide { "<i8" } else { "<i4" };
                Some(npy(descr, &format!("({},)", data.len()), &bytes))
            }
        }
    }
}

/// Returns matrices of two rows, stored and deflated.
pub fn seeds() -> Vec<Vec<u8>> {
    let parts = |deflated| Parts {
        format: Some(b"csr"),
        arrays: [
            Part::Integers { wide: false, data: vec![2, 3, 5] },
            Part::Integers { wide: false, data: vec![3, 2, 4] },
            Part::Array { dtype: 0, shape: None, data: b"abcdefghijkl" },
            Part::Integers { wide: true, data: vec![4, 6] },
        ],
        deflated,
    };
    [0, 0xff].map(|deflated| [vec![0], parts(deflated).archive()].concat()).into()
}
