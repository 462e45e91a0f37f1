//! Decompression of gzip files.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// The plain bytes of members of gzip, one after the other. Zeros after a member are padding, as
/// tapes and some programs write it.
pub struct Gunzip<R> {
    /// `None` after the last one.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Gunzip<R> {
    /// Returns the plain bytes of what `reader` reads.
    pub fn new(reader: R) -> Self {
        Self { member: Some(GzDecoder::new(reader)) }
    }
}

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.member else { return Ok(0) };
            let n_read = member.read(bytes)?;
            if n_read > 0 || bytes.is_empty() {
                return Ok(n_read);
            }
            skip_zeros(member.get_mut())?;
            let is_last = member.get_mut().fill_buf()?.is_empty();
            let ended = self.member.take().filter(|_| !is_last);
            self.member = ended.map(|member| GzDecoder::new(member.into_inner()));
        }
    }
}

fn skip_zeros(reader: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = reader.fill_buf()?;
        let n_zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        let is_done = bytes.is_empty() || n_zeros < bytes.len();
        reader.consume(n_zeros);
        if is_done {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn unpacked(bytes: &[u8]) -> io::Result<String> {
        let mut text = String::new();
        // Pieces of three bytes, so that padding and headers are cut.
        let reader = io::BufReader::with_capacity(3, bytes);
        Gunzip::new(reader).read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn members_follow_each_other_and_zeros_between_and_after_them_are_skipped() {
        let all = [packed("a"), vec![0; 5], packed(""), packed("bc"), vec![0; 512]].concat();
        assert_eq!(unpacked(&all).unwrap(), "abc");
        assert_eq!(unpacked(&packed("x")).unwrap(), "x");
    }

    #[test]
    fn other_bytes_after_a_member_and_a_cut_one_are_errors() {
        assert!(unpacked(&[packed("a"), b"b".to_vec()].concat()).is_err());
        assert!(unpacked(&[packed("a"), vec![0; 3], b"\x1f".to_vec()].concat()).is_err());
        let whole = packed("some text");
        assert!(unpacked(&whole[..whole.len() - 1]).is_err());
    }
}
