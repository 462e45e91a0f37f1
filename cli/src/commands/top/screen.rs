//! Figures of a server as a screen of text.

use lodestore_client::Address;
use lodestore_server::metrics::{KindFigures, ServerFigures, ShardFigures};

use crate::human;
use crate::table::Table;

/// Returns the screen, with events since `before`, or since the server started.
pub(super) fn screen(
    address: &Address,
    now: &ServerFigures,
    before: Option<&ServerFigures>,
) -> String {
    // A server that was started again has nothing in common with the one before.
    let before = before.filter(|then| {
        then.started_unix_seconds == now.started_unix_seconds
            && then.shards.len() == now.shards.len()
    });
    let span = now.uptime_seconds - before.map_or(0.0, |then| then.uptime_seconds);
    let over = match before {
        Some(_) => format!("over the last {}", human::seconds(span)),
        None => "since it started".to_owned(),
    };
    let mut text = format!(
        "{address}: {}, up {}, partitions {}; rates and latencies {over}\n\n",
        if now.ready { "ready".to_owned() } else { escaped(&now.phase) },
        human::seconds(now.uptime_seconds),
        human::joined(&now.parts, ", "),
    );
    text += &format!("{}\n\n{}\n\n", shards(now, before, span), kinds(now, before, span));
    text += &foot(now);
    text
}

/// Returns a text of the server on one line. Whatever answers at the address, it neither steers the
/// terminal nor adds lines of its own. Paths keep their letters.
fn escaped(text: &str) -> String {
    text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

fn shards(now: &ServerFigures, before: Option<&ServerFigures>, span: f64) -> Table {
    let mut table = Table::new([
        "shard",
        "busy",
        "requests/s",
        "rows/s",
        "sent/s",
        "queued",
        "in flight",
        "tier hits",
        "tier",
        "reads/s",
        "read/s",
        "reading",
        "connections",
        "failed",
    ]);
    let zero = ShardFigures::default();
    for (number, shard) in now.shards.iter().enumerate() {
        let then = before.map_or(&zero, |before| &before.shards[number]);
        let rate = |figure: fn(&ShardFigures) -> u64| {
            figure(shard).saturating_sub(figure(then)) as f64 / span.max(1e-9)
        };
        let (hits, misses) = (rate(|s| s.tier_hits), rate(|s| s.tier_misses));
        let hit_rate = if hits + misses > 0.0 {
            human::percent(hits / (hits + misses))
        } else {
            "-".to_owned()
        };
        table.row([
            number.to_string(),
            human::percent((shard.busy_seconds - then.busy_seconds) / span.max(1e-9)),
            human::count(rate(|s| s.requests) as u64),
            human::count(rate(|s| s.rows) as u64),
            human::bytes_f64(rate(|s| s.bytes)),
            human::count(shard.in_progress),
            human::bytes(shard.in_flight_bytes),
            hit_rate,
            human::bytes(shard.tier_used_bytes),
            human::count(rate(|s| s.disk_reads) as u64),
            human::bytes_f64(rate(|s| s.disk_read_bytes)),
            human::count(shard.disk_reads_in_flight),
            human::count(shard.connections),
            human::count(shard.failures.saturating_sub(then.failures)),
        ]);
    }
    table
}

fn kinds(now: &ServerFigures, before: Option<&ServerFigures>, span: f64) -> Table {
    let mut table = Table::new(["request", "per second", "queued", "p50", "p90", "p99", "p99.9"]);
    let none = KindFigures::default();
    for (name, kind) in &now.kinds {
        let then = before.and_then(|before| before.kinds.get(name)).unwrap_or(&none);
        let latency = kind.latency.since(&then.latency);
        let at = |quantile| {
            let found = latency.quantile(quantile, &now.latency_bounds);
            found.map_or_else(|| "-".to_owned(), human::seconds)
        };
        let rate = kind.begun.saturating_sub(then.begun) as f64 / span.max(1e-9);
        let row = [
            escaped(name).replace('_', " "),
            human::count(rate as u64),
            human::count(kind.in_progress),
        ];
        table.row(row.into_iter().chain([0.5, 0.9, 0.99, 0.999].map(at)));
    }
    table
}

fn foot(now: &ServerFigures) -> String {
    let updates = &now.updates;
    let failures: Vec<String> = now
        .failures
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(code, &n)| format!("{} {}", human::count(n), escaped(code)))
        .collect();
    let mut text = format!(
        "  version {}, {}; rows of deltas: {}; not committed: {}\n",
        updates.version,
        if updates.writable { "takes updates" } else { "takes no updates" },
        human::count(updates.committed_rows),
        human::count(updates.pending_rows),
    );
    if !updates.compaction_failure.is_empty() {
        text += &format!(
            "  the last compaction has failed: {}\n",
            escaped(&updates.compaction_failure)
        );
    }
    let failures = if failures.is_empty() { "none".to_owned() } else { failures.join(", ") };
    let process = &now.process;
    text + &format!(
        "  failures since it started: {failures}\n  {} in memory, {} of {} files open, {} of \
         processor time",
        human::bytes(process.resident_bytes),
        human::count(process.open_fds),
        human::count(process.max_fds),
        human::seconds(process.cpu_seconds),
    )
}

#[cfg(test)]
mod tests {
    use lodestore_server::metrics::LatencyFigures;

    use super::*;

    fn figures(uptime_seconds: f64, rows: u64, fast: u64) -> ServerFigures {
        let shard = ShardFigures { rows, busy_seconds: uptime_seconds / 2.0, ..Default::default() };
        let latency = LatencyFigures { buckets: vec![fast, 10], sum_seconds: 0.0 };
        let kind = KindFigures { begun: fast + 10, in_progress: 0, latency };
        ServerFigures {
            ready: true,
            uptime_seconds,
            shards: vec![shard],
            kinds: [("sync_pull".to_owned(), kind)].into(),
            latency_bounds: vec![0.001, 0.5],
            ..Default::default()
        }
    }

    fn look(now: &ServerFigures, before: Option<&ServerFigures>) -> String {
        screen(&"127.0.0.1:9171".parse().unwrap(), now, before)
    }

    #[test]
    fn rates_are_those_since_the_look_before() {
        let (before, now) = (figures(10.0, 1000, 5), figures(12.0, 5000, 105));
        let first = look(&before, None);
        assert!(first.contains("since it started") && first.contains(" 100 "), "{first}");
        assert!(first.contains("500 ms"), "two thirds were slow: {first}");
        let second = look(&now, Some(&before));
        assert!(second.contains("over the last 2.00 s") && second.contains("2,000"), "{second}");
        assert!(second.contains("50.0 %"), "busy: {second}");
        assert!(!second.contains("500 ms"), "none was slow since: {second}");
    }

    #[test]
    fn no_answer_steers_the_terminal() {
        let mut now = figures(1.0, 50, 5);
        now.phase = "\x1b[2J".to_owned();
        now.ready = false;
        now.updates.compaction_failure = "\x1b]0;title\x07\u{202e}it's\nnext".to_owned();
        now.failures = [("\r\nroot#".to_owned(), 1)].into();
        let kind = now.kinds.remove("sync_pull").unwrap();
        now.kinds.insert("sync\n\u{9b}2J".to_owned(), kind);
        let plain = look(&figures(1.0, 50, 5), None);
        let text = look(&now, None);
        assert!(
            text.contains("[2J") && text.contains("]0;title") && text.contains("it's"),
            "{text}"
        );
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.contains('\u{202e}'), "{text:?}");
        // One line more: that of the compaction.
        assert_eq!(text.lines().count(), plain.lines().count() + 1, "{text}");
    }

    #[test]
    fn a_server_that_was_restarted_is_not_compared_with_the_one_before() {
        let before = figures(100.0, 1_000_000, 5);
        let now = ServerFigures { started_unix_seconds: 9.0, ..figures(1.0, 50, 5) };
        let text = look(&now, Some(&before));
        assert!(text.contains("since it started") && text.contains(" 50 "), "{text}");
    }
}
