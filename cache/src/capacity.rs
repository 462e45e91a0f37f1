//! How many rows free memory has room for (CaPGNN, section 4.2, Algorithm 1).

/// What the device of one partition has.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRoom<'a> {
    /// Bytes that are free: [`crate::Device::free_bytes`].
    pub free_bytes: u64,
    /// Bytes of these to be left to others.
    pub reserve_bytes: u64,
    /// Its halo nodes H_i, or the top k of them by overlap ratio; each once.
    pub halo: &'a [u32],
}

/// What the host has, for all partitions of a machine.
#[derive(Clone, Copy, Debug)]
pub struct HostRoom {
    /// Bytes that are free: what the system has available and its control groups allow.
    pub free_bytes: u64,
    /// Bytes of these to be left to others.
    pub reserve_bytes: u64,
}

/// Rows of each tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Of each device, in the order given.
    pub device_rows: Vec<u32>,
    /// Of the host tier that they share.
    pub host_rows: u32,
}

/// Algorithm 1: each device's tier takes its halo nodes as far as free memory has room for a row
/// of every layer of each, and the host's tier likewise for all halo nodes together.
///
/// `layer_row_bytes` are the bytes of a row of each layer that is cached: Σ of them is the paper's
/// Σ f_dim\[k\] × 4 for f32. Units are bytes throughout. Bookkeeping is not in the paper's formula;
/// give it as another layer.
#[must_use]
pub fn capacities(
    devices: &[DeviceRoom<'_>],
    host: HostRoom,
    layer_row_bytes: &[u64],
) -> Capacities {
    let rows = |free, reserve, wanted| rows_within(free, reserve, layer_row_bytes, wanted);
    let device_rows = devices
        .iter()
        .map(|device| rows(device.free_bytes, device.reserve_bytes, device.halo.len()))
        .collect();
    let mut halo = devices.iter().flat_map(|device| device.halo).copied().collect::<Vec<u32>>();
    halo.sort_unstable();
    halo.dedup();
    Capacities { device_rows, host_rows: rows(host.free_bytes, host.reserve_bytes, halo.len()) }
}

/// min(⌊(free − reserve) / Σ layer row bytes⌋, wanted); none when the reserve is more than what is
/// free, and all that are wanted when rows have no bytes.
#[must_use]
pub fn rows_within(
    free_bytes: u64,
    reserve_bytes: u64,
    layer_row_bytes: &[u64],
    wanted_rows: usize,
) -> u32 {
    let row_bytes = layer_row_bytes.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    let room = free_bytes.saturating_sub(reserve_bytes).checked_div(row_bytes);
    let wanted = u32::try_from(wanted_rows).unwrap_or(u32::MAX);
    room.map_or(wanted, |rows| u32::try_from(rows).map_or(wanted, |rows| rows.min(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn memory_or_the_halo_is_the_limit() {
        let halos = [(0..1000).collect::<Vec<u32>>(), (500..5_000_000).collect()];
        let room = |free_bytes, halo| DeviceRoom { free_bytes, reserve_bytes: GIB, halo };
        let devices = [room(24 * GIB, &halos[0][..]), room(2 * GIB, &halos[1])];
        // Reddit's features and two layers of 256, in f32.
        let layers = [602 * 4, 256 * 4, 256 * 4];
        let host = HostRoom { free_bytes: 64 * GIB, reserve_bytes: 4 * GIB };
        let rows = capacities(&devices, host, &layers);
        assert_eq!(rows.device_rows, [1000, (GIB / 4456) as u32]);
        assert_eq!(rows.host_rows, 5_000_000, "shared halo nodes count once");
        let poor = HostRoom { free_bytes: 5 * GIB, reserve_bytes: 4 * GIB };
        assert_eq!(capacities(&devices, poor, &layers).host_rows, (GIB / 4456) as u32);
        assert_eq!(
            capacities(&[], host, &layers),
            Capacities { device_rows: vec![], host_rows: 0 }
        );
    }

    #[test]
    fn limits_do_not_overflow() {
        assert_eq!(rows_within(5, 6, &[1], 9), 0, "the reserve comes first");
        assert_eq!(rows_within(5, 0, &[], 9), 9);
        assert_eq!(rows_within(u64::MAX, 0, &[1], usize::MAX), u32::MAX);
        assert_eq!(rows_within(u64::MAX, 0, &[u64::MAX, u64::MAX], 9), 1);
    }
}
