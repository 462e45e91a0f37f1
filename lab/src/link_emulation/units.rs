//! Rates and delays as people write them: `10Gbit`, `100us`.

use std::time::Duration;

/// Reads bits per second, such as `10Gbit`, `1.5Gbit`, `800Mbit` or `64kbit`.
pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    let units = [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
    let rate = with_unit(text, &units).filter(|&rate| rate >= 1.0);
    rate.ok_or_else(|| "expected bits per second from 1, such as 10Gbit or 800Mbit".to_owned())
}

/// Reads a time of at most a minute, such as `100us`, `1.5ms` or `0s`.
pub(crate) fn parse_delay(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let seconds = with_unit(text, &units).filter(|&seconds| seconds <= 60.0);
    let seconds = seconds.ok_or("expected a time up to 60s, such as 100us or 2ms");
    Ok(Duration::from_secs_f64(seconds?))
}

/// Returns a number from 0 with one of `units`, of which none that ends like another is after it.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, factor) =
        units.iter().find_map(|&(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let number: f64 = number.trim_end().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!(parse_rate("10Gbit"), Ok(1e10));
        assert_eq!(parse_rate("1.5 Mbit"), Ok(1.5e6));
        assert_eq!(parse_rate("9bit"), Ok(9.0));
        assert_eq!(parse_delay("100us"), Ok(Duration::from_micros(100)));
        assert_eq!(parse_delay("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "Gbit", "-1Gbit", "nanGbit", "infGbit", "0bit", "10", "10GB"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        for text in ["", "5", "-1ms", "61s", "1h", "nans"] {
            assert!(parse_delay(text).is_err(), "{text}");
        }
    }
}
