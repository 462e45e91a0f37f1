//! numpy arrays: element types, memory for rows, and access to their bytes.

#![allow(unsafe_code, reason = "arrays over rows that a queue has gathered")]

use bytemuck::Pod;
use lodestore_client::gather_queue::GatheredRows;
use lodestore_client::source::TensorInfo;
use lodestore_store::Dtype;
use numpy::ndarray::ArrayView;
use numpy::{
    BorrowError, Element, IxDyn, PyArray1, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn,
    PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods, dtype as descr_of,
};
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::error::Error;

/// Arrays of at least this many bytes are allocated by numpy, which raises `MemoryError`.
const LARGE_BYTES: usize = 1 << 20;

/// Evaluates an expression for numpy's element type of a [`Dtype`]: for bf16 the u16 of its bits.
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

/// Returns numpy's dtype of bf16 if ml_dtypes is installed.
///
/// The first call imports it, where a signal's handler can raise.
fn bfloat16(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyAny>>> {
    static BFLOAT16: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let find = || {
        let module = match py.import("ml_dtypes") {
            Err(error) if error.is_instance_of::<PyImportError>(py) => return Ok(None),
            module => module?,
        };
        let dtype = numpy(py)?.call_method1("dtype", (module.getattr("bfloat16")?,))?;
        Ok::<_, PyErr>(Some(dtype.unbind()))
    };
    Ok(BFLOAT16.get_or_try_init(py, find)?.as_ref().map(|dtype| dtype.bind(py)))
}

/// Returns numpy's dtype of a tensor's elements.
pub(crate) fn descr(py: Python<'_>, dtype: Dtype) -> PyResult<Bound<'_, PyAny>> {
    if dtype == Dtype::BF16
        && let Some(bfloat16) = bfloat16(py)?
    {
        return Ok(bfloat16.clone());
    }
    Ok(with_element!(dtype, T => descr_of::<T>(py).into_any()))
}

/// Parses a dtype of numpy, or its name.
pub(crate) fn named(dtype: &Bound<'_, PyAny>) -> Result<Dtype, Error> {
    let py = dtype.py();
    // numpy accepts this name only after an import of ml_dtypes.
    if dtype.extract::<String>().is_ok_and(|name| name == "bfloat16") {
        return Ok(Dtype::BF16);
    }
    let found = numpy(py)?.call_method1("dtype", (dtype,))?;
    let array = found.cast::<PyArrayDescr>().map_err(PyErr::from)?;
    for dtype in Dtype::ALL {
        if is_of(array, dtype)? {
            return Ok(dtype);
        }
    }
    Err(Error::Dtype(format!("no tensor has elements of type {found}")))
}

/// Returns the dtype of a gather's result: the stored one, or float32 on request.
pub(crate) fn wanted(stored: Dtype, dtype: Option<&Bound<'_, PyAny>>) -> Result<Dtype, Error> {
    let Some(dtype) = dtype else { return Ok(stored) };
    let py = dtype.py();
    let found = numpy(py)?.call_method1("dtype", (dtype,))?;
    let is = |of: Dtype| descr(py, of)?.eq(&found);
    if is(stored)? {
        return Ok(stored);
    }
    if is(Dtype::F32)? {
        return Ok(Dtype::F32);
    }
    let stored = descr(py, stored)?;
    Err(Error::Dtype(format!("rows come as stored, {stored}, or as float32; found {found}")))
}

/// The dtype and shape of an array of rows; rows of width 1 make a one-dimensional array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowLayout {
    pub(crate) dtype: Dtype,
    pub(crate) n_rows: usize,
    pub(crate) width: usize,
}

impl RowLayout {
    /// Returns the layout of `n_rows` rows of a tensor.
    pub(crate) fn new(info: &TensorInfo, n_rows: usize) -> Self {
        Self { dtype: info.dtype, n_rows, width: info.width as usize }
    }

    /// Returns the lengths of the dimensions, and their number.
    fn lengths(self) -> ([usize; 2], usize) {
        ([self.n_rows, self.width], if self.width == 1 { 1 } else { 2 })
    }

    fn dims(self) -> IxDyn {
        let (lengths, n_dims) = self.lengths();
        IxDyn(&lengths[..n_dims])
    }

    fn has_shape_of(self, array: &Bound<'_, PyUntypedArray>) -> bool {
        let (lengths, n_dims) = self.lengths();
        array.shape() == &lengths[..n_dims]
    }

    fn tuple(self, py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        let (lengths, n_dims) = self.lengths();
        PyTuple::new(py, &lengths[..n_dims])
    }

    fn n_bytes(self) -> usize {
        self.n_rows.saturating_mul(self.width).saturating_mul(self.dtype.size_bytes())
    }

    /// Formats the shape as Python does.
    fn shape_text(self) -> String {
        match self.width {
            1 => format!("({},)", self.n_rows),
            width => format!("({}, {width})", self.n_rows),
        }
    }
}

/// Keeps the rows of an array.
#[pyclass(frozen, module = "lodestore._lodestore")]
struct RowOwner(GatheredRows);

/// An array to write rows to.
pub(crate) struct RowArray<'py> {
    /// The array with elements that Rust can write: for bf16 a view of its bits.
    bits: Bound<'py, PyAny>,
    /// The array for the caller.
    array: Bound<'py, PyAny>,
    dtype: Dtype,
}

impl<'py> RowArray<'py> {
    /// Allocates an array.
    pub(crate) fn new(py: Python<'py>, layout: RowLayout) -> Result<Self, Error> {
        let dtype = layout.dtype;
        let bits = if layout.n_bytes() < LARGE_BYTES {
            with_element!(dtype, T => PyArrayDyn::<T>::zeros(py, layout.dims(), false).into_any())
        } else {
            let descr = with_element!(dtype, T => descr_of::<T>(py));
            numpy(py)?.call_method1("empty", (layout.tuple(py)?, descr))?
        };
        Self::from_bits(bits, dtype)
    }

    /// Makes an array of rows in a vector, without a copy.
    pub(crate) fn from_vec<T: Element>(
        py: Python<'py>,
        rows: Vec<T>,
        layout: RowLayout,
    ) -> Result<Self, Error> {
        let rows = PyArray1::from_vec(py, rows);
        Self::from_bits(rows.reshape(layout.dims())?.into_any(), layout.dtype)
    }

    /// Makes an array of gathered rows, without a copy. Their memory is the queue's again once the
    /// array and all views of it are dropped.
    pub(crate) fn from_gathered<T: Element + Pod>(
        py: Python<'py>,
        rows: GatheredRows,
        layout: RowLayout,
    ) -> Result<Self, Error> {
        let owner = Bound::new(py, RowOwner(rows))?;
        let elements: &[T] = owner.get().0.elements();
        let rows = ArrayView::from_shape(layout.dims(), elements);
        let rows = rows.map_err(|error| Error::Shape(error.to_string()))?;
        // SAFETY: The array keeps `owner`, which keeps the rows where they are until it is dropped.
        // `RowOwner` is frozen and private: no reference to the rows is made from here on.
        let array = unsafe { PyArrayDyn::borrow_from_array(&rows, owner.clone().into_any()) };
        Self::from_bits(array.into_any(), layout.dtype)
    }

    fn from_bits(bits: Bound<'py, PyAny>, dtype: Dtype) -> Result<Self, Error> {
        let array = match dtype {
            Dtype::BF16 => bits.call_method1("view", (descr(bits.py(), dtype)?,))?,
            _ => bits.clone(),
        };
        Ok(Self { bits, array, dtype })
    }

    /// Takes the caller's array, whose dtype, shape and layout must match exactly.
    pub(crate) fn from_out(out: &Bound<'py, PyAny>, layout: RowLayout) -> Result<Self, Error> {
        let py = out.py();
        let dtype = layout.dtype;
        let array = out.cast::<PyUntypedArray>().map_err(|_| {
            let found = out.get_type();
            Error::Dtype(format!("`out` must be an array of numpy, found {found}"))
        })?;
        let is_same = is_of(&array.dtype(), dtype)?;
        let bits = if dtype == Dtype::BF16 && (is_same || is_bits(array)) {
            out.call_method1("view", (descr_of::<u16>(py),))?
        } else if is_same {
            out.clone()
        } else {
            let expected = descr(py, dtype)?;
            let found = array.dtype();
            let more = if dtype == Dtype::BF16 { ", or uint16 or int16 for its bits" } else { "" };
            let advice =
                if is_of(&found, Dtype::F32)? { "; or pass dtype=\"float32\"" } else { "" };
            return Err(Error::Dtype(format!(
                "`out` must have the dtype {expected}{more}, found {found}{advice}"
            )));
        };
        if !layout.has_shape_of(array) {
            let expected = layout.shape_text();
            let found = array.shape();
            return Err(Error::Shape(format!(
                "`out` must have the shape {expected}, found {found:?}"
            )));
        }
        if !array.is_c_contiguous() || !array.is_aligned() {
            let words =
                "`out` must be contiguous in C's order; pass a fresh array, or copy into it";
            return Err(Error::Shape(words.to_owned()));
        }
        Ok(Self { bits, array: out.clone(), dtype })
    }

    /// Lends the bytes of the rows to `write`.
    pub(crate) fn write<R>(
        &self,
        write: impl FnOnce(&mut [u8]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        with_element!(self.dtype, T => write_elements::<T, R>(&self.bits, write))
    }

    /// Copies all rows, and returns the array for the caller. Other threads of Python wait: of two
    /// futures with the same array one would find it lent.
    pub(crate) fn filled(self, rows: &[u8]) -> Result<Bound<'py, PyAny>, Error> {
        self.write(|out| {
            out.copy_from_slice(rows);
            Ok(())
        })?;
        Ok(self.array)
    }

    /// Returns the array for the caller.
    pub(crate) fn finish(self) -> Bound<'py, PyAny> {
        self.array
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

/// Lends the bytes of the caller's rows to `read`, after a check of their dtype and shape.
pub(crate) fn read_rows<R>(
    rows: &Bound<'_, PyAny>,
    layout: RowLayout,
    read: impl FnOnce(&[u8]) -> Result<R, Error>,
) -> Result<R, Error> {
    let py = rows.py();
    let dtype = layout.dtype;
    let array = match rows.cast::<PyUntypedArray>() {
        Ok(array) => array.as_any().clone(),
        Err(_) => numpy(py)?.call_method1("asarray", (rows,))?,
    };
    let found = array.cast::<PyUntypedArray>().map_err(PyErr::from)?;
    let is_same = is_of(&found.dtype(), dtype)? || dtype == Dtype::BF16 && is_bits(found);
    if !is_same {
        let expected = descr(py, dtype)?;
        let found = found.dtype();
        let words = format!("rows must have the dtype {expected}, found {found}; convert them");
        return Err(Error::Dtype(words));
    }
    let is_column = layout.width == 1 && found.shape() == [layout.n_rows, 1];
    if !layout.has_shape_of(found) && !is_column {
        let expected = layout.shape_text();
        let found = found.shape();
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

fn is_of(found: &Bound<'_, PyArrayDescr>, dtype: Dtype) -> PyResult<bool> {
    let py = found.py();
    match dtype {
        Dtype::BF16 => bfloat16(py)?.map_or(Ok(false), |bfloat16| found.eq(bfloat16)),
        _ => Ok(found.is_equiv_to(&with_element!(dtype, T => descr_of::<T>(py)))),
    }
}

/// Returns whether the elements are 16-bit integers.
fn is_bits(array: &Bound<'_, PyUntypedArray>) -> bool {
    let dtype = array.dtype();
    matches!((dtype.kind(), dtype.itemsize()), (b'i' | b'u', 2))
}

/// Describes why numpy refuses to lend an array.
pub(crate) fn borrowed(name: &str, error: &BorrowError) -> Error {
    Error::Shape(match error {
        BorrowError::NotWriteable => format!("`{name}` is read-only; pass one that can be written"),
        _ => format!("`{name}` is in use by another call, or overlaps another argument"),
    })
}
