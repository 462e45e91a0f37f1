//! Arrays of numpy: types of elements, memory for rows, and the bytes of both.

use bytemuck::Pod;
use lodestore_client::TensorInfo;
use lodestore_store::Dtype;
use numpy::{
    BorrowError, Element, IxDyn, PyArray1, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn,
    PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods, dtype as descr_of,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PySlice, PyTuple};

use crate::error::Error;

/// Arrays of at least this many bytes are made by numpy itself, whose `MemoryError` is one.
const LARGE_BYTES: usize = 1 << 20;

/// Evaluates an expression for the type that numpy has for elements of a [`Dtype`]; bf16 goes as
/// the u16 of its bits.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            lodestore_store::Dtype::F32 => {
                type $T = f32;
                $body
            }
            lodestore_store::Dtype::F16 => {
                type $T = half::f16;
                $body
            }
            lodestore_store::Dtype::BF16 => {
                type $T = u16;
                $body
            }
            lodestore_store::Dtype::F64 => {
                type $T = f64;
                $body
            }
            lodestore_store::Dtype::U8 => {
                type $T = u8;
                $body
            }
            lodestore_store::Dtype::I8 => {
                type $T = i8;
                $body
            }
            lodestore_store::Dtype::I16 => {
                type $T = i16;
                $body
            }
            lodestore_store::Dtype::I32 => {
                type $T = i32;
                $body
            }
            lodestore_store::Dtype::I64 => {
                type $T = i64;
                $body
            }
        }
    };
}
pub(crate) use with_element;

/// Returns the module numpy.
pub(crate) fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static NUMPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let module = || Ok::<_, PyErr>(py.import("numpy")?.into_any().unbind());
    Ok(NUMPY.get_or_try_init(py, module)?.bind(py))
}

/// Returns numpy's type of bf16, where ml_dtypes is installed.
fn bfloat16(py: Python<'_>) -> Option<&Bound<'_, PyAny>> {
    static BFLOAT16: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let find = || {
        let dtype = py.import("ml_dtypes").and_then(|module| module.getattr("bfloat16"));
        dtype.and_then(|dtype| numpy(py)?.call_method1("dtype", (dtype,))).ok().map(Bound::unbind)
    };
    BFLOAT16.get_or_init(py, find).as_ref().map(|dtype| dtype.bind(py))
}

/// Returns numpy's type for elements of `dtype`.
pub(crate) fn descr(py: Python<'_>, dtype: Dtype) -> Bound<'_, PyAny> {
    if dtype == Dtype::BF16
        && let Some(bfloat16) = bfloat16(py)
    {
        return bfloat16.clone();
    }
    with_element!(dtype, T => descr_of::<T>(py).into_any())
}

/// Returns the type that `dtype` names.
pub(crate) fn named(dtype: &Bound<'_, PyAny>) -> Result<Dtype, Error> {
    let py = dtype.py();
    // numpy knows this name only once ml_dtypes is imported.
    if dtype.extract::<String>().is_ok_and(|name| name == "bfloat16") {
        return Ok(Dtype::BF16);
    }
    let found = numpy(py)?.call_method1("dtype", (dtype,))?;
    let array = found.cast::<PyArrayDescr>().map_err(PyErr::from)?;
    let known = Dtype::ALL.into_iter().find(|&dtype| is_of(array, dtype));
    known.ok_or_else(|| Error::Dtype(format!("no tensor has elements of type {found}")))
}

/// Returns which type `dtype` names, out of that of a tensor and float32.
pub(crate) fn wanted(stored: Dtype, dtype: Option<&Bound<'_, PyAny>>) -> Result<Dtype, Error> {
    let Some(dtype) = dtype else { return Ok(stored) };
    let py = dtype.py();
    let found = numpy(py)?.call_method1("dtype", (dtype,))?;
    let is = |of: Dtype| descr(py, of).eq(&found);
    if is(stored)? {
        return Ok(stored);
    }
    if is(Dtype::F32)? {
        return Ok(Dtype::F32);
    }
    let stored = descr(py, stored);
    Err(Error::Dtype(format!("rows come as stored, {stored}, or as float32; found {found}")))
}

/// The number of rows and the elements of each: a row of one element is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowShape {
    pub(crate) n_rows: usize,
    pub(crate) width: usize,
}

impl RowShape {
    /// Returns the shape of `n_rows` rows of a tensor.
    pub(crate) fn of(info: &TensorInfo, n_rows: usize) -> Self {
        Self { n_rows, width: info.width as usize }
    }

    /// Returns the lengths of the dimensions, and how many there are.
    fn lengths(self) -> ([usize; 2], usize) {
        ([self.n_rows, self.width], if self.width == 1 { 1 } else { 2 })
    }

    fn dims(self) -> IxDyn {
        let (lengths, n_dims) = self.lengths();
        IxDyn(&lengths[..n_dims])
    }

    fn is_that_of(self, array: &Bound<'_, PyUntypedArray>) -> bool {
        let (lengths, n_dims) = self.lengths();
        array.shape() == &lengths[..n_dims]
    }

    fn tuple(self, py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        let (lengths, n_dims) = self.lengths();
        PyTuple::new(py, &lengths[..n_dims])
    }

    fn n_bytes(self, dtype: Dtype) -> usize {
        self.n_rows.saturating_mul(self.width).saturating_mul(dtype.size_bytes())
    }

    /// Returns the shape in Python's words.
    fn words(self) -> String {
        match self.width {
            1 => format!("({},)", self.n_rows),
            width => format!("({}, {width})", self.n_rows),
        }
    }
}

/// An array that rows are written to, and the one that the caller sees: they differ for bf16.
pub(crate) struct RowArray<'py> {
    bits: Bound<'py, PyAny>,
    seen: Bound<'py, PyAny>,
    dtype: Dtype,
}

impl<'py> RowArray<'py> {
    /// Creates memory for rows.
    pub(crate) fn new(py: Python<'py>, dtype: Dtype, shape: RowShape) -> Result<Self, Error> {
        let bits = if shape.n_bytes(dtype) < LARGE_BYTES {
            with_element!(dtype, T => PyArrayDyn::<T>::zeros(py, shape.dims(), false).into_any())
        } else {
            let of = with_element!(dtype, T => descr_of::<T>(py));
            numpy(py)?.call_method1("empty", (shape.tuple(py)?, of))?
        };
        Self::of_bits(bits, dtype)
    }

    /// Takes rows over that are in memory already.
    pub(crate) fn of_vec<T: Element>(
        py: Python<'py>,
        rows: Vec<T>,
        (dtype, shape): (Dtype, RowShape),
    ) -> Result<Self, Error> {
        let rows = PyArray1::from_vec(py, rows);
        Self::of_bits(rows.reshape(shape.dims())?.into_any(), dtype)
    }

    /// Takes over rows that lie in the first `n_bytes` of memory in words.
    pub(crate) fn of_words<T: Element>(
        py: Python<'py>,
        words: Vec<u64>,
        n_bytes: usize,
        (dtype, shape): (Dtype, RowShape),
    ) -> Result<Self, Error> {
        let bytes = PyArray1::from_vec(py, words).call_method1("view", (descr_of::<u8>(py),))?;
        let rows = bytes.get_item(PySlice::new(py, 0, n_bytes as isize, 1))?;
        let rows = rows.call_method1("view", (descr_of::<T>(py),))?;
        Self::of_bits(rows.call_method1("reshape", (shape.tuple(py)?,))?, dtype)
    }

    fn of_bits(bits: Bound<'py, PyAny>, dtype: Dtype) -> Result<Self, Error> {
        let seen = match (dtype, bfloat16(bits.py())) {
            (Dtype::BF16, Some(bfloat16)) => bits.call_method1("view", (bfloat16,))?,
            _ => bits.clone(),
        };
        Ok(Self { bits, seen, dtype })
    }

    /// Takes the caller's array, which must be exactly as the rows are.
    pub(crate) fn of_out(
        out: &Bound<'py, PyAny>,
        dtype: Dtype,
        shape: RowShape,
    ) -> Result<Self, Error> {
        let py = out.py();
        let array = out.cast::<PyUntypedArray>().map_err(|_| {
            let found = out.get_type();
            Error::Dtype(format!("`out` must be an array of numpy, found {found}"))
        })?;
        let is_same = is_of(&array.dtype(), dtype);
        let bits = if dtype == Dtype::BF16 && (is_same || is_bits(array)) {
            out.call_method1("view", (descr_of::<u16>(py),))?
        } else if is_same {
            out.clone()
        } else {
            let (expected, found) = (descr(py, dtype), array.dtype());
            let more = if dtype == Dtype::BF16 { ", or uint16 or int16 for its bits" } else { "" };
            let advice = if is_of(&found, Dtype::F32) { "; or pass dtype=\"float32\"" } else { "" };
            return Err(Error::Dtype(format!(
                "`out` must have the dtype {expected}{more}, found {found}{advice}"
            )));
        };
        if !shape.is_that_of(array) {
            let (expected, found) = (shape.words(), array.shape());
            return Err(Error::Shape(format!(
                "`out` must have the shape {expected}, found {found:?}"
            )));
        }
        if !array.is_c_contiguous() || !array.is_aligned() {
            let words =
                "`out` must be contiguous in C's order; pass a fresh array, or copy into it";
            return Err(Error::Shape(words.to_owned()));
        }
        Ok(Self { bits, seen: out.clone(), dtype })
    }

    /// Lends the bytes of the rows to `write`.
    pub(crate) fn write<R>(
        &self,
        write: impl FnOnce(&mut [u8]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        with_element!(self.dtype, T => write_elements::<T, R>(&self.bits, write))
    }

    /// Returns what the caller gets.
    pub(crate) fn finish(self) -> Bound<'py, PyAny> {
        self.seen
    }
}

fn write_elements<T: Element + Pod, R>(
    array: &Bound<'_, PyAny>,
    write: impl FnOnce(&mut [u8]) -> Result<R, Error>,
) -> Result<R, Error> {
    let array = array.cast::<PyArrayDyn<T>>().map_err(PyErr::from)?;
    let mut array = array.try_readwrite().map_err(|error| borrowed("out", &error))?;
    let elements = array.as_slice_mut().map_err(|error| Error::Shape(error.to_string()))?;
    write(bytemuck::cast_slice_mut(elements))
}

/// Lends the bytes of rows that the caller has to `read`: exactly `shape`, of the tensor's type.
pub(crate) fn read_rows<R>(
    rows: &Bound<'_, PyAny>,
    (dtype, shape): (Dtype, RowShape),
    read: impl FnOnce(&[u8]) -> Result<R, Error>,
) -> Result<R, Error> {
    let py = rows.py();
    let array = match rows.cast::<PyUntypedArray>() {
        Ok(array) => array.as_any().clone(),
        Err(_) => numpy(py)?.call_method1("asarray", (rows,))?,
    };
    let found = array.cast::<PyUntypedArray>().map_err(PyErr::from)?;
    let is_same = is_of(&found.dtype(), dtype) || dtype == Dtype::BF16 && is_bits(found);
    if !is_same {
        let (expected, found) = (descr(py, dtype), found.dtype());
        let words = format!("rows must have the dtype {expected}, found {found}; convert them");
        return Err(Error::Dtype(words));
    }
    let is_column = shape.width == 1 && found.shape() == [shape.n_rows, 1];
    if !shape.is_that_of(found) && !is_column {
        let (expected, found) = (shape.words(), found.shape());
        return Err(Error::Shape(format!("rows must have the shape {expected}, found {found:?}")));
    }
    let array = numpy(py)?.call_method1("ascontiguousarray", (&array,))?;
    let bits = match dtype {
        Dtype::BF16 => array.call_method1("view", (descr_of::<u16>(py),))?,
        _ => array,
    };
    with_element!(dtype, T => read_elements::<T, R>(&bits, read))
}

fn read_elements<T: Element + Pod, R>(
    array: &Bound<'_, PyAny>,
    read: impl FnOnce(&[u8]) -> Result<R, Error>,
) -> Result<R, Error> {
    let array = array.cast::<PyArrayDyn<T>>().map_err(PyErr::from)?;
    let array = array.try_readonly().map_err(|error| borrowed("rows", &error))?;
    let elements = array.as_slice().map_err(|error| Error::Shape(error.to_string()))?;
    read(bytemuck::cast_slice(elements))
}

fn is_of(found: &Bound<'_, PyArrayDescr>, dtype: Dtype) -> bool {
    let py = found.py();
    match dtype {
        Dtype::BF16 => bfloat16(py).is_some_and(|it| found.eq(it).unwrap_or(false)),
        _ => found.is_equiv_to(&with_element!(dtype, T => descr_of::<T>(py))),
    }
}

/// Whether elements are 16 bits of an integer.
fn is_bits(array: &Bound<'_, PyUntypedArray>) -> bool {
    let dtype = array.dtype();
    matches!((dtype.kind(), dtype.itemsize()), (b'i' | b'u', 2))
}

/// Returns why an array cannot be used now.
pub(crate) fn borrowed(name: &str, error: &BorrowError) -> Error {
    Error::Shape(match error {
        BorrowError::NotWriteable => format!("`{name}` is read-only; pass one that can be written"),
        _ => format!("`{name}` is in use by another call, or overlaps another argument"),
    })
}
