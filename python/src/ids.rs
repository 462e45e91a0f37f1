//! Node ids from Python: arrays of four integer types, tensors of torch, lists.

use lodestore_graph::NodeId;
use numpy::{
    Element, PyArray1, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arrays::{borrowed, numpy};
use crate::error::Error;

/// An integer that may be an id.
trait Id: Element + Copy {
    /// Returns the id as unsigned bits; a negative id exceeds every node.
    fn bits(self) -> u64;
    /// Returns the number itself.
    fn number(self) -> i128;
}

macro_rules! id {
    ($($id:ty => $via:ty),*) => {$(
        impl Id for $id {
            fn bits(self) -> u64 {
                <$via>::from(self) as u64
            }
            fn number(self) -> i128 {
                self.into()
            }
        }
    )*};
}

id!(i64 => i64, i32 => i64, u32 => u64, u64 => u64);

/// An id that is out of range, and its position.
struct BadId(i128, usize);

/// Ids, or the first that is out of range.
type IdResult = Result<Vec<NodeId>, BadId>;

/// Returns the ids, all of which are nodes of a graph of `n_nodes`.
pub(crate) fn node_ids(ids: &Bound<'_, PyAny>, n_nodes: u32) -> Result<Vec<NodeId>, Error> {
    let read = read(ids, n_nodes)?;
    read.map_err(|BadId(id, position)| Error::Id { id, position, n_nodes })
}

/// Returns ids of imported files, all of which are below `n_nodes`.
pub(crate) fn external_ids(ids: &Bound<'_, PyAny>, n_nodes: u32) -> Result<Vec<NodeId>, Error> {
    let read = read(ids, n_nodes)?;
    read.map_err(|BadId(id, position)| Error::External { id, position })
}

fn read(ids: &Bound<'_, PyAny>, below: u32) -> Result<IdResult, Error> {
    if let Some(read) = of_array(ids, below)? {
        return Ok(read);
    }
    let array = match ids.cast::<PyUntypedArray>() {
        // An array of another byte order or without alignment: numpy copies it.
        Ok(array) => {
            check_kind(array)?;
            let native = numpy(ids.py())?.getattr("int64")?;
            ids.call_method1("astype", (native,))?
        }
        Err(_) => as_array(ids)?,
    };
    match of_array(&array, below)? {
        Some(read) => Ok(read),
        None => Err(wrong_type(&array)),
    }
}

/// Converts a list, a tensor or another object by numpy; an empty list becomes an array of int64.
fn as_array<'py>(ids: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>, Error> {
    let py = ids.py();
    let numpy = numpy(py)?;
    if let Ok(list) = ids.cast::<PyList>()
        && list.is_empty()
    {
        return Ok(PyArray1::<i64>::zeros(py, [0], false).into_any());
    }
    let array = numpy.call_method1("asarray", (ids,))?;
    let found = array.cast::<PyUntypedArray>().map_err(PyErr::from)?;
    check_kind(found)?;
    Ok(array)
}

/// Fails for elements of another type than ids have.
fn check_kind(array: &Bound<'_, PyUntypedArray>) -> Result<(), Error> {
    let dtype = array.dtype();
    match (dtype.kind(), dtype.itemsize()) {
        (b'i' | b'u', 4 | 8) => Ok(()),
        _ => Err(wrong_type(array.as_any())),
    }
}

fn wrong_type(array: &Bound<'_, PyAny>) -> Error {
    let Ok(array) = array.cast::<PyUntypedArray>() else {
        return Error::Dtype(format!("ids must be integers, found {}", type_of(array)));
    };
    let dtype = array.dtype();
    if array.ndim() != 1 && dtype.kind() != b'b' {
        let shape = array.shape();
        return Error::Shape(format!("ids must have one dimension, found the shape {shape:?}"));
    }
    if dtype.kind() == b'b' {
        let words = "ids must be integers, found a mask of bool; pass np.flatnonzero(mask)";
        return Error::Dtype(words.to_owned());
    }
    Error::Dtype(format!("ids must be int64, int32, uint32 or uint64, found {dtype}"))
}

fn type_of(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

/// Returns the ids of a one-dimensional array of one of the four types; `None` for anything else.
fn of_array(ids: &Bound<'_, PyAny>, below: u32) -> Result<Option<IdResult>, Error> {
    if let Ok(ids) = ids.cast::<PyArray1<i64>>() {
        return of_typed(ids, below);
    }
    if let Ok(ids) = ids.cast::<PyArray1<i32>>() {
        return of_typed(ids, below);
    }
    if let Ok(ids) = ids.cast::<PyArray1<u32>>() {
        return of_typed(ids, below);
    }
    if let Ok(ids) = ids.cast::<PyArray1<u64>>() {
        return of_typed(ids, below);
    }
    Ok(None)
}

fn of_typed<T: Id>(ids: &Bound<'_, PyArray1<T>>, below: u32) -> Result<Option<IdResult>, Error> {
    if !ids.is_aligned() {
        return Ok(None);
    }
    let ids = ids.try_readonly().map_err(|error| borrowed("ids", &error))?;
    Ok(Some(match ids.as_slice() {
        Ok(ids) => narrow(ids.iter().copied(), below),
        Err(_) => narrow(ids.as_array().iter().copied(), below),
    }))
}

/// Returns ids of 32 bits, or the first that is not below `below`. The loop has no branch.
fn narrow<T: Id>(ids: impl ExactSizeIterator<Item = T> + Clone, below: u32) -> IdResult {
    let mut is_refused = false;
    let narrowed = ids.clone().map(|id| {
        is_refused |= id.bits() >= u64::from(below);
        NodeId(id.bits() as u32)
    });
    let narrowed: Vec<NodeId> = narrowed.collect();
    if !is_refused {
        return Ok(narrowed);
    }
    let first = ids.enumerate().find(|(_, id)| id.bits() >= u64::from(below));
    Err(first.map_or(BadId(0, 0), |(position, id)| BadId(id.number(), position)))
}
