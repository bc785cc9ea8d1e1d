//! Sizes and times formatted for people.

/// `4.3 GB`: decimal units, as for disks and file lists.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const STEPS: [(u64, &str); 4] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    for (step, unit) in STEPS {
        // 999,950 would print as 1000.0 kB.
        if bytes >= step - step / 2_000 {
            return format!("{:.1} {unit}", bytes as f64 / step as f64);
        }
    }
    format!("{bytes} B")
}

/// `1 file`, `7 files`: a count with a noun whose plural ends in s.
pub(crate) fn show_count(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// `4.0 B`, `751.6 M`: a number of weights.
pub(crate) fn show_parameters(parameters: u64) -> String {
    match parameters {
        0 => String::new(),
        1_000_000_000.. => format!("{:.1} B", parameters as f64 / 1e9),
        1_000_000.. => format!("{:.1} M", parameters as f64 / 1e6),
        _ => parameters.to_string(),
    }
}

/// `3 days ago`: a time in Unix milliseconds relative to `now_ms`. Empty for 0, which means unknown.
pub(crate) fn show_age(at_ms: i64, now_ms: i64) -> String {
    const STEPS: [(i64, &str); 6] = [
        (365 * 86_400, "year"),
        (30 * 86_400, "month"),
        (7 * 86_400, "week"),
        (86_400, "day"),
        (3_600, "hour"),
        (60, "minute"),
    ];
    if at_ms <= 0 {
        return String::new();
    }
    let seconds = now_ms.saturating_sub(at_ms) / 1_000;
    for (step, unit) in STEPS {
        let count = seconds / step;
        if count >= 1 {
            return format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" });
        }
    }
    "just now".to_owned()
}

/// `42 s`, `3 min 05 s`, `2 h 07 min`, `12 days`
pub(crate) fn show_span(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3_600..172_800 => format!("{} h {:02} min", seconds / 3_600, seconds % 3_600 / 60),
        // More digits would not help at such lengths.
        _ => format!("{} days", (seconds / 86_400).min(999)),
    }
}

/// Current time in Unix milliseconds.
pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis().min(i64::MAX as u128) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_shown() {
        let shown = [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (6_280_000, "6.3 MB"),
            (4_280_000_000, "4.3 GB"),
            (999_999, "1.0 MB"),
        ];
        for (bytes, text) in shown {
            assert_eq!(show_bytes(bytes), text);
        }
        assert_eq!([show_count(1, "file"), show_count(0, "file")], ["1 file", "0 files"]);
        assert_eq!(show_parameters(5_771_264), "5.8 M");
        assert_eq!(show_parameters(4_022_468_096), "4.0 B");
    }

    #[test]
    fn spans() {
        let spans = [show_span(0.2), show_span(185.0), show_span(7_650.0), show_span(1e9)];
        assert_eq!(spans, ["1 s", "3 min 05 s", "2 h 07 min", "999 days"]);
    }

    #[test]
    fn ages() {
        let now = 1_700_000_000_000;
        let shown = [
            (0, ""),
            (now + 5, "just now"),
            (now - 59_000, "just now"),
            (now - 60_000, "1 minute ago"),
            (now - 7_200_000, "2 hours ago"),
            (now - 86_400_000 * 400, "1 year ago"),
        ];
        for (at, text) in shown {
            assert_eq!(show_age(at, now), text);
        }
    }
}
