//! Sizes in bytes and points in time as people write and read them.

use std::str::FromStr;

/// A number of bytes as it is typed: `500MB`, `8GiB`, `1.5G`, or plain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

/// Suffixes in lower case. A bare letter means the binary unit, as memory is counted.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(split);
        let suffix = suffix.trim().to_ascii_lowercase();
        let unit = UNITS.iter().find(|(name, _)| *name == suffix).map(|(_, unit)| *unit);
        let unit = unit.ok_or_else(|| {
            format!("{suffix:?} is no unit of bytes: use KiB, MiB, GiB, TiB, KB, MB, GB or TB")
        })?;
        let no_number = || "expected a number and a unit, such as 8GiB or 500MB".to_owned();
        let too_large = || "more bytes than there can be".to_owned();
        if number.bytes().all(|byte| byte.is_ascii_digit()) {
            let number: u64 =
                if number.is_empty() { Err(no_number()) } else { number.parse().map_err(|_| too_large()) }?;
            return number.checked_mul(unit).map(Self).ok_or_else(too_large);
        }
        let number: f64 = number.parse().map_err(|_| no_number())?;
        let bytes = (number * unit as f64).round();
        // 2^64 itself is the first f64 that does not fit.
        if bytes < 18_446_744_073_709_551_616.0 { Ok(Self(bytes as u64)) } else { Err(too_large()) }
    }
}

/// `4.3 GB`: decimal units, as disks are sold and files are listed.
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

/// `4.0 B`, `751.6 M`: a number of weights.
pub(crate) fn show_parameters(parameters: u64) -> String {
    match parameters {
        0 => String::new(),
        1_000_000_000.. => format!("{:.1} B", parameters as f64 / 1e9),
        1_000_000.. => format!("{:.1} M", parameters as f64 / 1e6),
        _ => parameters.to_string(),
    }
}

/// `3 days ago`: a time in Unix milliseconds as seen from `now_ms`; empty for 0, which stands for "not known".
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

/// Now, in Unix milliseconds.
pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis().min(i64::MAX as u128) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_typed() {
        let good = [
            ("0", 0),
            ("1024", 1_024),
            ("8GiB", 8 << 30),
            ("8 gib", 8 << 30),
            ("8g", 8 << 30),
            ("500MB", 500_000_000),
            ("1.5KiB", 1_536),
            (".5k", 512),
            ("16TiB", 16 << 40),
        ];
        for (text, bytes) in good {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in [
            "",
            "GiB",
            "-1",
            "8 GG",
            "1.2.3GiB",
            ".",
            "1e9",
            "99999999999999999999",
            "18446744073709551615KB",
            "9e",
            "20000000000.5g",
            "∞",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

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
        assert_eq!(show_parameters(5_771_264), "5.8 M");
        assert_eq!(show_parameters(4_022_468_096), "4.0 B");
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
