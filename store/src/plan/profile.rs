//! Cost of a device's requests and bytes.

use crate::limits::PAGE_BYTES;

/// Rates of a device under many concurrent requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskProfile {
    /// Random page reads per second with a deep queue.
    pub iops: f64,
    /// Sequential bytes per second.
    pub bandwidth_bytes_per_s: f64,
}

impl Default for DiskProfile {
    /// Returns a common NVMe disk behind virtio; reading through gaps of up to 16 KiB pays.
    fn default() -> Self {
        Self { iops: 90_000.0, bandwidth_bytes_per_s: 1.8e9 }
    }
}

impl DiskProfile {
    /// Returns whether some device could be so: 1 to 10⁹ requests and 1 kB to 1 PB per second.
    #[must_use]
    pub fn is_sensible(&self) -> bool {
        (1.0..=1e9).contains(&self.iops) && (1e3..=1e15).contains(&self.bandwidth_bytes_per_s)
    }

    /// Returns the seconds that a request of `n_bytes` costs the device.
    #[must_use]
    pub fn request_seconds(&self, n_bytes: u64) -> f64 {
        1.0 / self.iops + n_bytes as f64 / self.bandwidth_bytes_per_s
    }

    /// Returns the most pages worth reading through: gap bytes / bandwidth < 1 / IOPS.
    ///
    /// 0 for a profile without sense (zero, negative or not a number).
    #[must_use]
    pub fn max_gap_pages(&self) -> u64 {
        let pages = self.bandwidth_bytes_per_s / self.iops / PAGE_BYTES as f64;
        if !(self.iops > 0.0 && pages > 0.0) {
            return 0;
        }
        // Strictly below: a gap that costs exactly one request is not joined. Saturating cast.
        (pages.ceil() - 1.0).max(0.0) as u64
    }
}
