use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use lodestore_graph::npy::NpyType;
use proptest::prelude::*;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::*;
use crate::fixture::npy;

#[test]
fn raw_rows_are_as_described() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.bin");
    fs::write(&path, (0..24).collect::<Vec<u8>>()).unwrap();
    let source = DenseSource::open_raw(&path, Dtype::I16, 4).unwrap();
    assert_eq!((source.n_rows(), source.width(), source.dtype()), (3, 4, Dtype::I16));
    let mut rows = [0; 16];
    source.copy_rows(&[2, 0], &mut rows).unwrap();
    assert_eq!(rows, [16, 17, 18, 19, 20, 21, 22, 23, 0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(matches!(source.copy_rows(&[3], &mut rows[..8]), Err(SourceError::NoRow { .. })));
    for (dtype, width) in [(Dtype::F32, 4), (Dtype::U8, 5), (Dtype::F32, 0), (Dtype::F64, u32::MAX)]
    {
        let error = DenseSource::open_raw(&path, dtype, width).unwrap_err().to_string();
        assert!(error.contains("do not fill 24 bytes"), "{error}");
    }
    fs::write(&path, b"\x93NUMPY00").unwrap();
    let not_raw = DenseSource::open_raw(&path, Dtype::U8, 8).unwrap_err().to_string();
    assert!(not_raw.contains("this is a .npy file"), "{not_raw}");
    fs::write(&path, []).unwrap();
    assert_eq!(DenseSource::open_raw(&path, Dtype::F32, 4).unwrap().n_rows(), 0);
    let unknown = open_source(&path).err().unwrap().to_string();
    assert!(unknown.contains("rows.bin: unknown kind of file"), "{unknown}");
}

/// The arrays of a CSR matrix of `f32`, easily spoilt.
#[derive(Clone, Debug)]
struct Csr {
    shape: [i64; 2],
    indptr: Vec<i64>,
    columns: Vec<i32>,
    data: Vec<f32>,
}

impl Csr {
    /// Returns a matrix of 3 x 4: [0 0 -0.5 0] [] [1 0 2 3], the last row out of order.
    fn small() -> Self {
        Self {
            shape: [3, 4],
            indptr: vec![0, 1, 1, 4],
            columns: vec![2, 3, 0, 2],
            data: vec![-0.5, 3.0, 1.0, 2.0],
        }
    }

    fn write(&self, dir: &Path, method: CompressionMethod) -> PathBuf {
        let le = |values: &[i64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let columns: Vec<u8> = self.columns.iter().flat_map(|v| v.to_le_bytes()).collect();
        let data: Vec<u8> = self.data.iter().flat_map(|v| v.to_le_bytes()).collect();
        let arrays = [
            ("indptr", NpyType::I64, self.indptr.len(), le(&self.indptr)),
            ("indices", NpyType::I32, self.columns.len(), columns),
            ("data", NpyType::F32, self.data.len(), data),
            ("shape", NpyType::I64, 2, le(&self.shape)),
        ];
        let path = dir.join("matrix.npz");
        let mut archive = ZipWriter::new(File::create(&path).unwrap());
        for (name, dtype, length, bytes) in arrays {
            let array = npy(dir.join(format!("{name}.npy")), dtype, &[length as u64], &bytes);
            let options = SimpleFileOptions::default().compression_method(method);
            archive.start_file(format!("{name}.npy"), options).unwrap();
            archive.write_all(&fs::read(array).unwrap()).unwrap();
        }
        archive.finish().unwrap();
        path
    }

    fn open(&self) -> Result<NpzCsrSource, SourceError> {
        let dir = tempfile::tempdir().unwrap();
        NpzCsrSource::open(&self.write(dir.path(), CompressionMethod::Stored))
    }
}

fn rows_of(source: &dyn TensorSource, rows: &[u32]) -> Vec<u8> {
    let row_bytes = source.width() as usize * source.dtype().size_bytes();
    let mut out = vec![0xaa; rows.len() * row_bytes];
    source.copy_rows(rows, &mut out).unwrap();
    out
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn sparse_rows_become_dense_whether_stored_or_deflated() {
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let dir = tempfile::tempdir().unwrap();
        let source = open_source(&Csr::small().write(dir.path(), method)).unwrap();
        assert_eq!((source.n_rows(), source.width(), source.dtype()), (3, 4, Dtype::F32));
        let expected = [[1.0, 0.0, 2.0, 3.0], [0.0; 4], [0.0, 0.0, -0.5, 0.0], [0.0; 4]];
        assert_eq!(rows_of(&*source, &[2, 1, 0, 1]), bytes(expected.as_flattened()));
        let refused = source.copy_rows(&[3], &mut [0; 16]).unwrap_err();
        assert!(matches!(refused, SourceError::NoRow { row: 3, n_rows: 3, .. }));
    }
}

#[test]
fn values_are_copied_bit_for_bit() {
    let values = [-0.0, f32::from_bits(0x7fc0_1234), f32::MIN_POSITIVE / 2.0, f32::INFINITY];
    let csr =
        Csr { shape: [1, 4], indptr: vec![0, 4], columns: vec![0, 1, 2, 3], data: values.to_vec() };
    assert_eq!(rows_of(&csr.open().unwrap(), &[0]), bytes(&values));
}

#[test]
fn elements_are_converted_or_refused_by_row_and_column() {
    let converted = |to| ConvertedSource::new(Box::new(Csr::small().open().unwrap()), to);
    let halves = converted(Dtype::BF16);
    assert_eq!((halves.dtype(), halves.width(), halves.n_rows()), (Dtype::BF16, 4, 3));
    // The upper half of each f32; all of these need no more.
    let mut expected = Vec::new();
    for value in [1.0f32, 0.0, 2.0, 3.0, 0.0, 0.0, -0.5, 0.0] {
        expected.extend_from_slice(&value.to_le_bytes()[2..]);
    }
    assert_eq!(rows_of(&halves, &[2, 0]), expected);
    let integers = converted(Dtype::U8);
    assert_eq!(rows_of(&integers, &[2, 1, 2]), [1, 0, 2, 3, 0, 0, 0, 0, 1, 0, 2, 3]);
    let error = integers.copy_rows(&[1, 2, 0], &mut [0; 12]).unwrap_err();
    let place = matches!(error, SourceError::Unfit { row: 0, column: 2, dtype: Dtype::U8, .. });
    assert!(place && error.to_string().contains("-0.5"), "{error}");
    let no_row = integers.copy_rows(&[3], &mut [0; 4]).unwrap_err();
    assert!(matches!(no_row, SourceError::NoRow { row: 3, .. }), "{no_row}");
}

#[test]
fn csr_arrays_that_contradict_each_other_are_refused() {
    type Spoil = fn(&mut Csr);
    let cases: [(&str, Spoil); 13] = [
        ("pointers", |csr| csr.shape[0] = 4),
        ("pointers", |csr| csr.shape[0] = -1),
        ("pointers", |csr| csr.indptr.push(4)),
        ("pointers", |csr| csr.indptr.clear()),
        ("first pointer", |csr| csr.indptr[0] = 1),
        ("elements", |csr| csr.indptr[1] = 2),
        ("elements", |csr| csr.indptr[3] = 5),
        ("elements", |csr| csr.indptr[1] = -1),
        ("rows end", |csr| csr.indptr[3] = 3),
        ("column 4", |csr| csr.columns[1] = 4),
        ("column", |csr| csr.columns[1] = -1),
        ("twice", |csr| csr.columns[1] = 0),
        ("data of shape", |csr| csr.data.truncate(3)),
    ];
    for (message, spoil) in cases {
        let mut csr = Csr::small();
        spoil(&mut csr);
        let error = csr.open().unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("matrix.npz"), "{message}: {error}");
    }
}

#[test]
fn a_width_without_bounds_is_refused_before_a_row_is_made() {
    let csr = Csr { shape: [3, i64::MAX], ..Csr::small() };
    let source = csr.open().unwrap();
    let refused = check_source("feat", &source, 3).unwrap_err();
    assert!(refused.to_string().contains("columns are more than a row can have"), "{refused}");
    let csr = Csr { shape: [3, 1 << 30], ..Csr::small() };
    let refused = check_source("feat", &csr.open().unwrap(), 3).unwrap_err();
    assert!(matches!(refused, SourceError::Spec { .. }), "{refused}");
}

#[test]
fn an_archive_cut_anywhere_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let path = Csr::small().write(dir.path(), method);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for length in (0..file.metadata().unwrap().len()).rev() {
            file.set_len(length).unwrap();
            assert!(NpzCsrSource::open(&path).is_err(), "length {length}");
        }
    }
}

#[test]
fn a_flipped_bit_in_an_array_is_found_by_the_archives_checksum() {
    let dir = tempfile::tempdir().unwrap();
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let path = Csr::small().write(dir.path(), method);
        let whole = fs::read(&path).unwrap();
        let good = rows_of(&NpzCsrSource::open(&path).unwrap(), &[0, 1, 2]);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let (offset, byte) = ((bit / 8) as u64, whole[bit / 8]);
            file.write_all_at(&[byte ^ (1 << (bit % 8))], offset).unwrap();
            // Flips in dates and the like do no harm; no flip changes rows.
            if let Ok(source) = NpzCsrSource::open(&path) {
                assert_eq!(rows_of(&source, &[0, 1, 2]), good, "bit {bit}");
            }
            file.write_all_at(&[byte], offset).unwrap();
        }
    }
}

#[test]
fn other_archives_are_refused_by_what_they_lack() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.npz");
    let mut archive = ZipWriter::new(File::create(&path).unwrap());
    archive.start_file("arr_0.npy", SimpleFileOptions::default()).unwrap();
    archive.finish().unwrap();
    let error = NpzCsrSource::open(&path).unwrap_err().to_string();
    assert!(error.contains("shape.npy") && error.contains("arr_0.npy"), "{error}");
    let unknown = open_source(&dir.path().join("x.csv")).err().unwrap().to_string();
    assert!(unknown.contains("x.csv: unknown kind of file"), "{unknown}");
}

#[test]
fn dense_arrays_of_one_and_two_dimensions() {
    let dir = tempfile::tempdir().unwrap();
    let labels = npy(dir.path().join("l.npy"), NpyType::I64, &[3], &[7; 24]);
    let labels = open_source(&labels).unwrap();
    assert_eq!((labels.n_rows(), labels.width(), labels.dtype()), (3, 1, Dtype::I64));
    let cube = npy(dir.path().join("c.npy"), NpyType::U8, &[1, 2, 3], &[0; 6]);
    assert!(matches!(DenseSource::open_npy(&cube), Err(SourceError::Shape { .. })));
    let wide = npy(dir.path().join("w.npy"), NpyType::U32, &[2], &[0; 8]);
    let refused = DenseSource::open_npy(&wide).unwrap_err();
    assert!(matches!(refused, SourceError::Dtype { .. }), "{refused}");
    let empty = npy(dir.path().join("e.npy"), NpyType::F32, &[5, 0], &[]);
    let refused = check_source("feat", &DenseSource::open_npy(&empty).unwrap(), 5).unwrap_err();
    assert!(refused.to_string().contains("width 0"), "{refused}");
    let short = DenseSource::open_npy(&dir.path().join("l.npy")).unwrap();
    let refused = check_source("label", &short, 4).unwrap_err();
    assert!(matches!(refused, SourceError::RowCount { expected: 4, found: 3, .. }), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sparse_and_dense_agree(
        dense in prop::collection::vec(prop::collection::vec(
            prop_oneof![4 => Just(0.0f32), 1 => -9.0f32..9.0], 7), 1..20),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let mut csr = Csr {
            shape: [dense.len() as i64, 7], indptr: vec![0], columns: vec![], data: vec![],
        };
        for row in &dense {
            for (column, &value) in (0..).zip(row).filter(|&(_, &value)| value != 0.0) {
                csr.columns.push(column);
                csr.data.push(value);
            }
            csr.indptr.push(csr.columns.len() as i64);
        }
        let rows: Vec<u32> = picks.iter().map(|pick| pick.index(dense.len()) as u32).collect();
        let expected: Vec<f32> = rows.iter().flat_map(|&row| dense[row as usize].clone()).collect();
        prop_assert_eq!(rows_of(&csr.open().unwrap(), &rows), bytes(&expected));
    }
}

#[test]
fn dense_arrays_of_archives_are_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.npz");
    let write = |arrays: &[(&str, Vec<u8>)]| {
        let mut archive = ZipWriter::new(File::create(&path).unwrap());
        for (name, bytes) in arrays {
            archive.start_file(*name, SimpleFileOptions::default()).unwrap();
            archive.write_all(bytes).unwrap();
        }
        archive.finish().unwrap();
    };
    let rows: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let array = |shape: &[u64]| {
        fs::read(npy(dir.path().join("array"), NpyType::F32, shape, &rows)).unwrap()
    };
    let feat = array(&[2, 2]);
    write(&[("feat.npy", feat.clone())]);
    let named = dir.path().join("data.npz:feat");
    for file in [&path, &named] {
        let source = open_source(file).unwrap();
        assert_eq!((source.n_rows(), source.width(), source.dtype()), (2, 2, Dtype::F32));
        let mut row = [0; 8];
        source.copy_rows(&[1], &mut row).unwrap();
        assert_eq!(row[..], rows[8..]);
    }
    write(&[("feat.npy", feat), ("cube.npy", array(&[1, 2, 2]))]);
    let error = |file: &Path| open_source(file).err().unwrap().to_string();
    let several = error(&path);
    assert!(several.contains("2 arrays: cube, feat; name one as FILE.npz:NAME"), "{several}");
    assert!(error(&dir.path().join("data.npz:cube")).contains("[1, 2, 2]"));
    assert!(error(&dir.path().join("data.npz:none")).contains("missing"));
    assert!(error(&dir.path().join("none.npz:feat")).contains("cannot open"));
}

#[test]
fn archives_of_other_programs_are_read_or_named() {
    let dir = tempfile::tempdir().unwrap();
    let format = |text: &[u8]| {
        let path = Csr::small().write(dir.path(), CompressionMethod::Stored);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut archive = ZipWriter::new_append(file).unwrap();
        archive.start_file("format.npy", SimpleFileOptions::default()).unwrap();
        archive.write_all(text).unwrap();
        archive.finish().unwrap();
        open_source(&path).map(|source| source.n_rows()).map_err(|error| error.to_string())
    };
    // As `numpy.savez(format="csr")` writes it, in characters of four bytes.
    assert_eq!(format(b"\x93NUMPY'<U3'c\0\0\0s\0\0\0r\0\0\0"), Ok(3));
    assert_eq!(format(b"\x93NUMPY'|S3'csr"), Ok(3));
    assert!(format(b"\x93NUMPY'|S3'csc").unwrap_err().contains(".tocsr()"));

    let write = |name: &str, arrays: &[&str]| {
        let path = dir.path().join(name);
        let array = npy(dir.path().join("array"), NpyType::U8, &[2], &[5, 6]);
        let mut archive = ZipWriter::new(File::create(&path).unwrap());
        for array_name in arrays {
            let member = format!("{array_name}.npy");
            archive.start_file(member, SimpleFileOptions::default()).unwrap();
            archive.write_all(&fs::read(&array).unwrap()).unwrap();
        }
        archive.finish().unwrap();
        path
    };
    let coo = write("coo.npz", &["col", "data", "format", "row", "shape"]);
    assert!(open_source(&coo).err().unwrap().to_string().contains(".tocsr()"));
    write("TF.NPZ", &["bias:0", "dense/kernel:0"]);
    let named = dir.path().join("TF.NPZ:dense/kernel:0");
    assert_eq!(open_source(&named).unwrap().n_rows(), 2);
}

#[test]
fn a_pipe_is_no_file_of_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.npy");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = open_source(&path).err().unwrap().to_string();
    assert!(error.contains("a pipe or a device"), "{error}");
}

#[test]
fn tensors_of_safetensors_are_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let write = |header: &str, data: &[u8]| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        fs::write(&path, bytes).unwrap();
    };
    let data: Vec<u8> = (0..14).collect();
    write(
        r#"{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"b":{"dtype":"U8","shape":[2],"data_offsets":[12,14]}}"#,
        &data,
    );
    let a = open_source(&dir.path().join("x.safetensors:a")).unwrap();
    assert_eq!((a.n_rows(), a.width(), a.dtype()), (2, 3, Dtype::BF16));
    let mut row = [0; 6];
    a.copy_rows(&[1], &mut row).unwrap();
    assert_eq!(row, [6, 7, 8, 9, 10, 11]);
    assert!(matches!(a.copy_rows(&[2], &mut row), Err(SourceError::NoRow { .. })));
    let b = open_source(&dir.path().join("x.safetensors:b")).unwrap();
    let mut row = [0];
    b.copy_rows(&[0], &mut row).unwrap();
    assert_eq!((row, b.width()), ([12], 1));
    let error = |file: &str| open_source(&dir.path().join(file)).err().unwrap().to_string();
    assert!(error("x.safetensors").contains("2 tensors: a, b; name one"));
    assert!(error("x.safetensors:c").contains("no tensor `c`"));
    write(r#"{"a":{"dtype":"F32","shape":[9,9],"data_offsets":[0,12]}}"#, &data);
    assert!(error("x.safetensors").contains("not a readable .safetensors file"));
    write(r#"{"a":{"dtype":"U64","shape":[1],"data_offsets":[0,8]}}"#, &data[..8]);
    assert!(error("x.safetensors").contains("U64"));
    fs::write(&path, [255; 8]).unwrap();
    assert!(error("x.safetensors").contains("not a readable"));
}
