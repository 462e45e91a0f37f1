//! The form of all objects but chunks: kind and format in front, a BLAKE3 at the end.

use std::borrow::Cow;

/// First bytes of every such object.
const MAGIC: &[u8; 8] = b"LODEBKT\0";
/// Newest format that this release reads.
pub(crate) const FORMAT: u32 = 2;
/// Bytes of the checksum.
const CHECKSUM_BYTES: usize = 32;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The identity of a graph.
    Graph = 1,
    /// A publication.
    Publication = 2,
    /// The place of a publication that was removed.
    Tombstone = 3,
    /// A version that is kept.
    Pin = 4,
    /// The lease of an upload.
    Upload = 5,
    /// Publications that a run of garbage collection is removing.
    Condemned = 6,
    /// The publications of a partition that garbage collection has left.
    Floor = 7,
}

impl Kind {
    /// Returns the format in which an object is written: the first one that has it as it is.
    /// Format 2 has names of chunks with the number of their upload.
    fn format(self) -> u32 {
        match self {
            Self::Graph | Self::Tombstone | Self::Pin => 1,
            Self::Publication | Self::Upload | Self::Condemned | Self::Floor => 2,
        }
    }
}

/// Why bytes are no such object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unsealed {
    /// Only a later release reads it.
    Newer(u32),
    /// Damaged, or something else.
    Wrong(Cow<'static, str>),
}

impl<T: Into<Cow<'static, str>>> From<T> for Unsealed {
    fn from(reason: T) -> Self {
        Self::Wrong(reason.into())
    }
}

/// Returns, little-endian: magic 8 | format u32 | kind u8 | body | BLAKE3 of all that. No later
/// format changes magic, the place of the format, or the checksum.
pub(crate) fn seal(kind: Kind, body: &[u8]) -> Vec<u8> {
    seal_as(kind.format(), kind as u8, body)
}

pub(crate) fn seal_as(format: u32, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&format.to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(body);
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    bytes
}

/// Returns the kind, the format and the body of an object.
pub(crate) fn unseal(bytes: &[u8]) -> Result<(Kind, u32, &[u8]), Unsealed> {
    let Some((sealed, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(
            format!("expected at least {CHECKSUM_BYTES} bytes, found {}", bytes.len()).into()
        );
    };
    let mut fields = Fields(sealed);
    if fields.take::<8>()? != *MAGIC {
        return Err("it does not begin as an object of a graph".into());
    }
    let found = blake3::hash(sealed);
    if found.as_bytes() != checksum {
        let expected = blake3::Hash::from_bytes(*checksum);
        return Err(format!("BLAKE3 expected {expected}, found {found}").into());
    }
    let format = fields.u32()?;
    if format > FORMAT {
        return Err(Unsealed::Newer(format));
    }
    let kind = match fields.take()? {
        [1] => Kind::Graph,
        [2] => Kind::Publication,
        [3] => Kind::Tombstone,
        [4] => Kind::Pin,
        [5] => Kind::Upload,
        [6] => Kind::Condemned,
        [7] => Kind::Floor,
        [other] => return Err(format!("expected an object of kind 1 to 7, found {other}").into()),
    };
    Ok((kind, format, fields.0))
}

/// The rest of a body.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Unsealed> {
        let (&field, rest) = self.0.split_first_chunk().ok_or("it is cut off")?;
        self.0 = rest;
        Ok(field)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Unsealed> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Unsealed> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Unsealed> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn slice(&mut self, n_bytes: usize) -> Result<&'a [u8], Unsealed> {
        let (slice, rest) = self.0.split_at_checked(n_bytes).ok_or("it is cut off")?;
        self.0 = rest;
        Ok(slice)
    }

    /// Fails where bytes are left.
    pub(crate) fn end(self) -> Result<(), Unsealed> {
        match self.0.len() {
            0 => Ok(()),
            n => Err(format!("{n} bytes too many").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_and_every_cut_is_refused() {
        let bytes = seal(Kind::Tombstone, b"body");
        assert_eq!(unseal(&bytes), Ok((Kind::Tombstone, 1, &b"body"[..])));
        for at in 0..bytes.len() {
            assert!(unseal(&bytes[..at]).is_err());
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(matches!(unseal(&changed), Err(Unsealed::Wrong(_))), "byte {at}");
            }
        }
    }

    #[test]
    fn a_newer_format_differs_from_damage() {
        let next = FORMAT + 1;
        assert_eq!(unseal(&seal_as(next, 9, b"news")), Err(Unsealed::Newer(next)));
        assert!(matches!(unseal(&seal_as(1, 9, b"news")), Err(Unsealed::Wrong(_))));
    }
}
