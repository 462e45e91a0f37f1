// Unless explicitly stated otherwise all files in this repository are licensed
// under the MIT/Apache-2.0 License, at your convenience
//
// This product includes software developed at Datadog (https://www.datadoghq.com/). Copyright 2020 Datadog, Inc.
//
use crate::io::{BufferedFile, DmaFile};
use std::os::unix::io::{AsRawFd, RawFd};

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::io::BufferedFile {}
    impl Sealed for crate::io::DmaFile {}
}

/// A file whose contents can be sent straight to a socket, without the bytes
/// passing through this process.
///
/// Implemented for [`BufferedFile`] and [`DmaFile`]. It is sealed: the two
/// methods below are an internal contract with
/// [`TcpStream::send_file`](crate::net::TcpStream::send_file), not an
/// extension point.
pub trait SpliceSource: sealed::Sealed {
    /// The descriptor to splice from.
    fn splice_fd(&self) -> RawFd;

    /// The alignment a splice offset must satisfy.
    ///
    /// `1` for a page-cache file, which accepts any offset. A file opened
    /// `O_DIRECT` requires its offset to be a multiple of the device's
    /// logical block size, and splicing from a misaligned offset fails with
    /// `EINVAL`.
    fn splice_offset_alignment(&self) -> u64;
}

impl SpliceSource for BufferedFile {
    fn splice_fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    fn splice_offset_alignment(&self) -> u64 {
        1
    }
}

impl SpliceSource for DmaFile {
    fn splice_fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    fn splice_offset_alignment(&self) -> u64 {
        self.alignment()
    }
}
