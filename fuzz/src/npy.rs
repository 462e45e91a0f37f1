//! `.npy` arrays: whatever the bytes, they are refused or are exactly as long as the shape says.

use std::cell::RefCell;

use lodestore_graph::npy::{NpyArray, NpyHeader};
use lodestore_store::source::{DenseSource, TensorSource};

use crate::input_file::Scratch;
use crate::memory::bounded;

thread_local! {
    static FILE: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Parses the header alone, then opens the whole as an array and as a source of rows.
pub fn run(data: &[u8]) {
    let header = bounded(data.len(), || NpyHeader::parse(data));
    FILE.with_borrow_mut(|file| {
        let path = file.with(data);
        let Ok(array) = bounded(data.len(), || NpyArray::open(path)) else { return };
        let header = header.expect("an array has a header");
        let elements: u64 = array.shape().iter().product();
        assert_eq!(array.bytes().len() as u64, elements * array.dtype().size_bytes() as u64);
        assert_eq!(header.data_offset + array.bytes().len(), data.len());
        assert_eq!(array.bytes(), &data[header.data_offset..]);
        if let Ok(source) = DenseSource::open_npy(path) {
            copy_rows(&source, array.bytes());
        }
    });
}

fn copy_rows(source: &DenseSource, bytes: &[u8]) {
    let row_bytes = source.width() as usize * source.dtype().size_bytes();
    let n_rows = source.n_rows();
    if row_bytes == 0 || n_rows == 0 {
        return;
    }
    let last = u32::try_from(n_rows - 1).unwrap_or(u32::MAX);
    let mut rows = vec![0; 2 * row_bytes];
    source.copy_rows(&[last, 0], &mut rows).expect("rows within the array");
    assert_eq!(&rows[..row_bytes], &bytes[last as usize * row_bytes..][..row_bytes]);
    assert_eq!(&rows[row_bytes..], &bytes[..row_bytes]);
    if n_rows <= u64::from(u32::MAX) {
        assert!(source.copy_rows(&[n_rows as u32], &mut rows[..row_bytes]).is_err());
    }
}

/// Returns an `.npy` file.
pub fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let padded =
        format!("{header:<width$}\n", width = (header.len() + 11).next_multiple_of(64) - 11);
    let length = (padded.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00".as_slice(), &length, padded.as_bytes(), data].concat()
}

/// Returns arrays of several types and shapes.
pub fn seeds() -> Vec<Vec<u8>> {
    let arrays =
        [("<f4", "(2, 3)", 24), ("|u1", "(5,)", 5), ("<i8", "(0, 2)", 0), ("<f2", "()", 2)];
    arrays.map(|(descr, shape, n_bytes)| npy(descr, shape, &vec![7; n_bytes])).into()
}
