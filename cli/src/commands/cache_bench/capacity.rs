//! Capacities as people write them.

use std::str::FromStr;

use lodestore_cache::replay::TierSizes;
use lodestore_cache::two_level::Inclusion;

use crate::candidates::rows_of_share;
use crate::flags::parse_size;
use crate::human;

/// A capacity of a cache: `10%`, `5000` (rows) or `64MiB`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Capacity {
    /// Share of the different rows of the trace, in millionths of a percent, at most 10⁸.
    Share(u32),
    Rows(u32),
    Bytes(u64),
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| expected(text))?;
            let in_range = (0.0..=100.0).contains(&percent);
            let share = (percent * 1e6).round() as u32;
            return if in_range { Ok(Self::Share(share)) } else { Err(expected(text)) };
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Rows).map_err(|_| expected(text));
        }
        parse_size(text).map(Self::Bytes).map_err(|_| expected(text))
    }
}

impl Capacity {
    /// Returns the rows of a cache for a trace with `n_distinct` different rows; a share is rounded
    /// up.
    pub(super) fn rows(self, n_distinct: u32, row_bytes: u64) -> u32 {
        match self {
            Self::Share(share) => rows_of_share(f64::from(share) / 1e8, n_distinct),
            Self::Rows(rows) => rows,
            Self::Bytes(bytes) => u32::try_from(bytes / row_bytes).unwrap_or(u32::MAX),
        }
    }
}

impl std::fmt::Display for Capacity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Share(share) => write!(f, "{} %", f64::from(*share) / 1e6),
            Self::Rows(rows) => write!(f, "{} rows", human::count((*rows).into())),
            Self::Bytes(bytes) => f.write_str(&human::bytes(*bytes)),
        }
    }
}

/// Device tiers over the host's: their number, and the batches of each in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Devices {
    pub(super) n_devices: u16,
    pub(super) inclusion: Inclusion,
}

/// One tier, or a device's over the host's: `10%`, or `1%+10%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Capacities {
    device: Option<Capacity>,
    host: Capacity,
}

impl FromStr for Capacities {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, host) = match text.split_once('+') {
            Some((device, host)) => (Some(device.trim().parse()?), host.trim()),
            None => (None, text),
        };
        Ok(Self { device, host: host.parse()? })
    }
}

impl Capacities {
    /// Returns the tiers for a trace with `n_distinct` different rows.
    pub(super) fn sizes(self, n_distinct: u32, row_bytes: u64, devices: Devices) -> TierSizes {
        let host_rows = self.host.rows(n_distinct, row_bytes);
        let Some(device) = self.device else { return TierSizes::One(host_rows) };
        let device_rows = device.rows(n_distinct, row_bytes);
        let Devices { n_devices, inclusion } = devices;
        TierSizes::Two { n_devices, device_rows, host_rows, inclusion }
    }

    /// Returns whether there are two tiers.
    pub(super) fn is_two(self) -> bool {
        self.device.is_some()
    }
}

impl std::fmt::Display for Capacities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.device {
            Some(device) => write!(f, "{device} over {}", self.host),
            None => self.host.fmt(f),
        }
    }
}

fn expected(text: &str) -> String {
    format!("expected a share such as 10%, rows such as 5000 or bytes such as 64MiB, found {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_rows_and_bytes_are_read() {
        let rows = |text: &str| text.parse::<Capacity>().map(|c| c.rows(1001, 400));
        assert_eq!(rows("10%"), Ok(101));
        assert_eq!(rows("0%"), Ok(0));
        assert_eq!(rows("100%"), Ok(1001));
        assert_eq!(rows("0.01%"), Ok(1));
        assert_eq!(rows("5000"), Ok(5000));
        assert_eq!(rows("4kB"), Ok(10));
        assert_eq!(rows("99999GB"), Ok(u32::MAX));
        assert_eq!("12.5%".parse::<Capacity>().unwrap().to_string(), "12.5 %");
    }

    #[test]
    fn one_tier_or_two_are_read() {
        let sizes = |text: &str| {
            let read = text.parse::<Capacities>();
            let devices = Devices { n_devices: 4, inclusion: Inclusion::Exclusive };
            read.map(|read| read.sizes(1000, 400, devices))
        };
        assert_eq!(sizes("10%"), Ok(TierSizes::One(100)));
        let (device_rows, host_rows, inclusion) = (10, 7, Inclusion::Exclusive);
        let two = TierSizes::Two { n_devices: 4, device_rows, host_rows, inclusion };
        assert_eq!(sizes("1% + 7"), Ok(two));
        assert_eq!(two.rows(), 47);
        assert_eq!("1%+4kB".parse::<Capacities>().unwrap().to_string(), "1 % over 4.00 kB");
        for text in ["+", "1%+", "+1%", "1%+1%+1%"] {
            assert!(sizes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "%", "101%", "-1%", "NaN%", "inf%", "-5", "1.5", "4294967296", "1e3"] {
            assert!(text.parse::<Capacity>().is_err(), "{text}");
        }
    }
}
