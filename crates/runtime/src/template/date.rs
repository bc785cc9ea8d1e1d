//! `strftime_now` for chat templates that tell the model the date. The runtime has no clock: the caller passes the
//! time.

use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Formats a time in seconds since 1970, in UTC, by Python's `strftime` directives in the C locale. The error is
/// the unknown directive.
pub(super) fn strftime(format: &str, unix_s: i64) -> Result<String, char> {
    let (days, second) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let hour12 = (hour + 11) % 12 + 1;
    let day_of_year = days - days_from_civil(year, 1, 1) + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // glibc's `-` removes the padding; templates use it for days and hours.
        let mut directive = chars.next().unwrap_or('%');
        let padded = directive != '-';
        if !padded {
            directive = chars.next().ok_or('-')?;
        }
        let mut number = |value: i64, width: usize| {
            let width = if padded { width } else { 0 };
            write!(out, "{value:0width$}").expect("a String can always be written to because it grows");
        };
        match directive {
            'Y' => number(year, 4),
            'y' => number(year.rem_euclid(100), 2),
            'm' => number(month, 2),
            'd' => number(day, 2),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'j' => number(day_of_year, 3),
            'B' => out.push_str(month_name),
            'b' | 'h' => out.push_str(&month_name[..3]),
            'A' => out.push_str(weekday),
            'a' => out.push_str(&weekday[..3]),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'e' => spaced(&mut out, day, padded),
            'k' => spaced(&mut out, hour, padded),
            'l' => spaced(&mut out, hour12, padded),
            'C' => number(year.div_euclid(100), 2),
            'f' => out.push_str("000000"),
            's' => number(unix_s, 0),
            'u' => number((days + 3).rem_euclid(7) + 1, 0),
            'w' => number((days + 4).rem_euclid(7), 0),
            'U' => number((day_of_year + 6 - (days + 4).rem_euclid(7)) / 7, 2),
            'W' => number((day_of_year + 6 - (days + 3).rem_euclid(7)) / 7, 2),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'R' => out.push_str(&strftime("%H:%M", unix_s)?),
            'r' => out.push_str(&strftime("%I:%M:%S %p", unix_s)?),
            'D' | 'x' => out.push_str(&strftime("%m/%d/%y", unix_s)?),
            'X' => out.push_str(&strftime("%H:%M:%S", unix_s)?),
            'c' => out.push_str(&strftime("%a %b %e %H:%M:%S %Y", unix_s)?),
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            'F' => out.push_str(&strftime("%Y-%m-%d", unix_s)?),
            'T' => out.push_str(&strftime("%H:%M:%S", unix_s)?),
            '%' => out.push('%'),
            other => return Err(other),
        }
    }
    Ok(out)
}

/// Number padded to two characters with a space.
fn spaced(out: &mut String, value: i64, padded: bool) {
    if padded && value < 10 {
        out.push(' ');
    }
    out.push_str(&value.to_string());
}

/// Year, month and day of a day counted from 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Inverse of [`civil`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
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
            (1_704_585_599, "%D %x %X %c %u %w", "01/06/24 01/06/24 23:59:59 Sat Jan  6 23:59:59 2024 6 6"),
        ];
        for (time, format, text) in cases {
            assert_eq!(strftime(format, time).as_deref(), Ok(text));
        }
        assert_eq!(strftime("%Q", 0), Err('Q'));
        for days in (-200_000..200_000).step_by(13) {
            let (year, month, day) = civil(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
    }
}
