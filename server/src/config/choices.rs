//! Configuration values that are written as text: TLS files, preloads, volatile tensors.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use lodestore_schema::limits::ROW_BYTES_MAX;
use lodestore_store::{Dtype, TensorSpec};
use thiserror::Error;

/// PEM files of a TLS server.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain of the server.
    pub cert: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Authorities that sign client certificates; `None` accepts clients without a certificate.
    pub client_ca: Option<PathBuf>,
}

/// Which tensors are preloaded after a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreloadChoice {
    /// Every tensor that fits its tier as a whole.
    Whole,
    /// Every tensor that fits its tier as a whole, or that has saved hot rows.
    Auto,
    /// No tensor.
    Nothing,
    /// The tensor of this name: as a whole if it fits its tier, else its saved hot rows, else as
    /// many rows as fit.
    Tensor(String),
}

impl FromStr for PreloadChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "auto" => Self::Auto,
            "none" => Self::Nothing,
            name => Self::Tensor(name.to_owned()),
        })
    }
}

/// A volatile tensor that a server declares when it starts, over the partitions that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolatileChoice {
    /// Name, element type and width.
    pub spec: TensorSpec,
    /// Rows per claim, counted from the start of each partition; 0 for one claim per partition.
    pub range_rows: u32,
}

/// Text that does not describe a volatile tensor.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "`{found}` is not a volatile tensor: {reason}; write NAME:WIDTHxDTYPE, or \
     NAME:WIDTHxDTYPE/ROWS for ROWS that are claimed together, such as h1:256xf32"
)]
pub struct BadVolatileChoice {
    /// The text.
    pub found: String,
    /// What is wrong with the text.
    pub reason: String,
}

impl FromStr for VolatileChoice {
    type Err = BadVolatileChoice;

    fn from_str(text: &str) -> Result<Self, BadVolatileChoice> {
        let bad = |reason: String| BadVolatileChoice { found: text.to_owned(), reason };
        let parts = text.split_once(':').and_then(|(name, rest)| {
            let (width, rest) = rest.split_once('x')?;
            Some((name, width, rest))
        });
        let (name, width, rest) = parts.ok_or_else(|| bad("no `:` or no `x`".into()))?;
        let (dtype, range_rows) = match rest.split_once('/') {
            Some((dtype, rows)) => (dtype, rows.parse().ok().filter(|&rows: &u32| rows > 0)),
            None => (rest, Some(0)),
        };
        let range_rows = range_rows.ok_or_else(|| bad("ROWS are a number above 0".into()))?;
        let width = width.parse().map_err(|_| bad(format!("`{width}` is no width")))?;
        let dtype: Dtype = dtype.parse().map_err(|error| bad(format!("{error}")))?;
        let spec = TensorSpec::new(name, dtype, width).map_err(|error| bad(error.to_string()))?;
        if spec.row_bytes() > ROW_BYTES_MAX {
            let n_bytes = spec.row_bytes();
            return Err(bad(format!("rows of {n_bytes} bytes, the limit is {ROW_BYTES_MAX}")));
        }
        Ok(Self { spec, range_rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volatile_choices_parse_and_errors_name_the_fault() {
        let read = |text: &str| text.parse::<VolatileChoice>();
        let h1 = read("h1:256xf32").unwrap();
        assert_eq!((h1.spec.row_bytes(), h1.range_rows), (1024, 0));
        let h2 = read("h-2:3xbf16/4096").unwrap();
        assert_eq!((h2.spec.name.as_str(), h2.spec.row_bytes(), h2.range_rows), ("h-2", 6, 4096));
        for (text, told) in [
            ("h1", "no `:`"),
            ("h1:256", "no `x`"),
            ("h1:x f32", "no width"),
            ("h1:-1xf32", "no width"),
            ("h1:0xf32", "width 0"),
            ("h1:2xf31", "unknown dtype"),
            ("a/b:2xf32", "tensor name"),
            ("h1:2xf32/0", "above 0"),
            ("h1:2xf32/x", "above 0"),
            ("h1:262145xf32", "1048580 bytes"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains("NAME:WIDTHxDTYPE"), "{text}: {error}");
        }
    }
}
