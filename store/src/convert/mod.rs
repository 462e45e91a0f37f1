//! Elements of one type as another: to f32 when rows are read, to any type at import.

mod gather;
mod narrow;
mod widen;

pub(crate) use gather::gather_as_f32;
pub(crate) use narrow::{Unfit, narrow};
