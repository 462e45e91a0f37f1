//! Figures as people read them.

use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};

/// Formats `1234567` as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats bytes in units of 1000, with three digits or so.
pub fn bytes(n: u64) -> String {
    bytes_f64(n as f64)
}

/// Does as [`bytes`], for averages.
pub fn bytes_f64(n: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.into_iter().find(|(unit, _)| n >= *unit) {
        Some((unit, name)) => format!("{} {name}", three_digits(n / unit)),
        None => format!("{n:.0} B"),
    }
}

/// Formats seconds in the unit that fits.
pub fn seconds(s: f64) -> String {
    match s {
        s if s >= 120.0 => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), (s % 60.0).floor()),
        s if s >= 1.0 => format!("{} s", three_digits(s)),
        s if s >= 1e-3 => format!("{} ms", three_digits(s * 1e3)),
        s => format!("{} us", three_digits(s * 1e6)),
    }
}

/// Returns how long ago a moment was, given in seconds since 1970 UTC.
pub fn ago(unix_s: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match now.saturating_sub(unix_s) {
        s if s >= 2 * 86_400 => format!("{} days ago", count(s / 86_400)),
        s if s >= 2 * 3600 => format!("{} hours ago", s / 3600),
        s if s >= 120 => format!("{} minutes ago", s / 60),
        _ => "just now".to_owned(),
    }
}

/// Formats a fraction as a percentage.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// Formats an accuracy, or a dash.
pub fn accuracy(fraction: Option<f64>) -> String {
    fraction.map_or_else(|| "-".to_owned(), |f| format!("{f:.4}"))
}

/// Formats a count with its noun: `1 server`, `2 servers`.
pub fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Formats items one after the other.
pub fn joined<T: Display>(items: impl IntoIterator<Item = T>, between: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(between)
}

fn three_digits(x: f64) -> String {
    match x {
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1, "part"), "1 part");
        assert_eq!(counted(2, "part"), "2 parts");
    }

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!([12, 1_500, 102_400_000].map(bytes), ["12 B", "1.50 kB", "102 MB"]);
        assert_eq!(
            [0.0005, 0.0123, 12.34, 125.9].map(seconds),
            ["500 us", "12.3 ms", "12.3 s", "2 min 05 s"]
        );
        assert_eq!(percent(0.1234), "12.3 %");
    }
}
