//! Elements of one type as another: to f32 when rows are read, to any type at import.

mod narrow;
mod widen;

pub(crate) use narrow::{Unfit, narrow};
pub(crate) use widen::gather_as_f32;
