//! `strftime_now` for chat templates that tell the model the date. The runtime has no clock: the caller passes the
//! time.

use std::fmt::Write;

use jiff::{Timestamp, tz::Offset};

/// Years after which the Gregorian calendar repeats, weekdays included, and their length in seconds.
const CYCLE_YEARS: i64 = 400;
const CYCLE_S: i64 = 146_097 * 86_400;

const GROWS: &str = "a String can always be written to because it grows";

/// Formats a time in seconds since 1970, in UTC, by Python's `strftime` directives in the C locale. The error is
/// the unknown directive.
pub(super) fn strftime(format: &str, unix_s: i64) -> Result<String, char> {
    // `jiff` ends with the year 9999. The first cycle after 1970 has the same dates in other years.
    let second = Timestamp::from_second(unix_s.rem_euclid(CYCLE_S)).expect("it is before the year 2370");
    let date = Offset::UTC.to_datetime(second);
    let year = i64::from(date.year()) + CYCLE_YEARS * unix_s.div_euclid(CYCLE_S);
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        // glibc's `-` removes the padding; templates use it for days and hours.
        let flags = usize::from(rest[1..].starts_with('-'));
        let Some(directive) = rest[1 + flags..].chars().next() else {
            // A percent sign at the end stands for itself.
            return if flags == 0 { Ok(out + "%") } else { Err('-') };
        };
        let (written, behind) = rest.split_at(1 + flags + directive.len_utf8());
        rest = behind;
        let mut number = |value: i64, width: usize| {
            let width = if flags == 0 { width } else { 0 };
            write!(out, "{value:0width$}").expect(GROWS);
        };
        match directive {
            // `jiff` has no two-digit years before 1969 or after 2068, and does not pad centuries.
            'Y' => number(year, 4),
            'y' => number(year.rem_euclid(100), 2),
            'C' => number(year.div_euclid(100), 2),
            's' => number(unix_s, 0),
            'f' => out.push_str("000000"),
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            'm' | 'd' | 'H' | 'I' | 'M' | 'S' | 'j' | 'B' | 'b' | 'h' | 'A' | 'a' | 'p' | 'e' | 'k' | 'l'
            | 'u' | 'w' | 'U' | 'W' => write!(out, "{}", date.strftime(written)).expect(GROWS),
            'R' => out.push_str(&strftime("%H:%M", unix_s)?),
            'r' => out.push_str(&strftime("%I:%M:%S %p", unix_s)?),
            'D' | 'x' => out.push_str(&strftime("%m/%d/%y", unix_s)?),
            'T' | 'X' => out.push_str(&strftime("%H:%M:%S", unix_s)?),
            'c' => out.push_str(&strftime("%a %b %e %H:%M:%S %Y", unix_s)?),
            'F' => out.push_str(&strftime("%Y-%m-%d", unix_s)?),
            other => return Err(other),
        }
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_pythons() {
        // datetime.fromtimestamp(t, UTC).strftime(...)
        let cases = [
            (0, "%A %d %B %Y %H:%M:%S %j", "Thursday 01 January 1970 00:00:00 001"),
            (1_722_000_000, "%d %b %Y", "26 Jul 2024"),
            (1_709_210_096, "%Y-%m-%d %I:%M %p %a %y", "2024-02-29 12:34 PM Thu 24"),
            (951_782_400, "%-d/%-m/%Y %F %T%%", "29/2/2000 2000-02-29 00:00:00%"),
            (-1, "%Y-%m-%d %H:%M:%S", "1969-12-31 23:59:59"),
            (4_102_444_799, "%Y %j", "2099 365"),
            (
                1_709_210_096,
                "%e|%-e|%k|%l|%C|%f|%s|%u|%w|%U|%W",
                "29|29|12|12|20|000000|1709210096|4|4|08|09",
            ),
            (1_704_067_200, "%e %k %u %w %U %W%n%t%R %r", " 1  0 1 1 00 01\n\t00:00 12:00:00 AM"),
            (1_709_210_096, "%-B %-a %-p %-u %-H%-M%-S %-j %-U", "February Thu PM 4 123456 60 8"),
            (253_402_300_800, "%F %y %C %a %s", "10000-01-01 00 100 Sat 253402300800"),
            (-62_167_219_201, "%-Y-%m-%d %y %a", "-1-12-31 99 Fri"),
            (0, "100 %", "100 %"),
            (1_704_585_599, "%D %x %X %c %u %w", "01/06/24 01/06/24 23:59:59 Sat Jan  6 23:59:59 2024 6 6"),
        ];
        for (time, format, text) in cases {
            assert_eq!(strftime(format, time).as_deref(), Ok(text));
        }
        assert_eq!(strftime("%Q", 0), Err('Q'));
        assert_eq!(strftime("%-", 0), Err('-'));
    }
}
