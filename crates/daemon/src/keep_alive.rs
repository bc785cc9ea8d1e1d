//! Idle time after which a model is unloaded, and its notation, which follows Ollama's.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{error::quote, limits::KEEP_ALIVE_MAX};

/// Idle time after which a model is unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// The model stays until it is explicitly unloaded.
    Pinned,
    /// Time after the last request; zero unloads the model when that request ends.
    For(Duration),
}

impl KeepAlive {
    /// Raises the time to `least` if it is shorter.
    pub(crate) fn at_least(self, least: Duration) -> Self {
        match self {
            KeepAlive::Pinned => KeepAlive::Pinned,
            KeepAlive::For(time) => KeepAlive::For(time.max(least)),
        }
    }

    /// Milliseconds as in the wire's message, with -1 for [`KeepAlive::Pinned`].
    pub(crate) fn ms(self) -> i64 {
        match self {
            KeepAlive::Pinned => -1,
            KeepAlive::For(time) => i64::try_from(time.as_millis()).unwrap_or(i64::MAX),
        }
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        KeepAlive::For(Duration::from_secs(300))
    }
}

impl FromStr for KeepAlive {
    type Err = String;

    /// Parses seconds, or numbers with units (`5m`, `1h30m`, `500ms`); negative values mean [`KeepAlive::Pinned`].
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{} is no time; use seconds, a time such as 30s, 5m or 1h30m, 0 for at once, or -1 for good",
                quote(text)
            )
        };
        let (negative, size) = match text.trim().strip_prefix('-') {
            Some(size) => (true, size),
            None => (false, text.trim()),
        };
        let seconds = match number(size) {
            Some(seconds) => seconds,
            None => in_units(size).ok_or_else(wrong)?,
        };
        if negative {
            return Ok(KeepAlive::Pinned);
        }
        if seconds > KEEP_ALIVE_MAX.as_secs_f64() {
            let days = KEEP_ALIVE_MAX.as_secs() / 86_400;
            return Err(format!("{} is over {days} days, which is the most; -1 is for good", quote(text)));
        }
        Ok(KeepAlive::For(Duration::from_secs_f64(seconds)))
    }
}

/// Parses a plain decimal number, without words such as `inf` that Rust accepts too.
fn number(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

/// Parses a sequence of numbers with units into seconds.
fn in_units(mut text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 7] =
        [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("h", 3_600.0), ("m", 60.0), ("s", 1.0)];
    let mut seconds = 0.0;
    if text.is_empty() {
        return None;
    }
    while !text.is_empty() {
        let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (size, rest) = text.split_at(split);
        let (unit, scale) = UNITS.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        seconds += number(size)? * scale;
        text = &rest[unit.len()..];
    }
    Some(seconds)
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepAlive::Pinned => write!(out, "-1"),
            KeepAlive::For(time) => write!(out, "{}ms", time.as_millis()),
        }
    }
}

impl Serialize for KeepAlive {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct KeepAliveVisitor;
        impl de::Visitor<'_> for KeepAliveVisitor {
            type Value = KeepAlive;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "seconds, or a time such as \"5m\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<KeepAlive, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<KeepAlive, E> {
                self.visit_str(&seconds.to_string())
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<KeepAlive, E> {
                self.visit_str(&seconds.to_string())
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<KeepAlive, E> {
                self.visit_str(&seconds.to_string())
            }
        }
        from.deserialize_any(KeepAliveVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_ollamas_users_write_them() {
        let millis = |ms| Ok(KeepAlive::For(Duration::from_millis(ms)));
        for (text, read) in [
            ("300", millis(300_000)),
            ("0", millis(0)),
            ("0s", millis(0)),
            ("1.5", millis(1_500)),
            ("5m", millis(300_000)),
            (" 24h ", millis(86_400_000)),
            ("1h30m", millis(5_400_000)),
            ("1.5h", millis(5_400_000)),
            ("500ms", millis(500)),
            ("-1", Ok(KeepAlive::Pinned)),
            ("-1m", Ok(KeepAlive::Pinned)),
        ] {
            assert_eq!(text.parse::<KeepAlive>(), read, "{text}");
        }
        for text in ["", "-", "m", "5 minutes", "5x", "1h30", "inf", "nan", "1e3", "..", "400d", "99999h"] {
            let error = text.parse::<KeepAlive>().unwrap_err();
            assert!(error.contains(&format!("{text:?}")) && error.contains("-1"), "{text}: {error}");
        }
    }

    #[test]
    fn configurations_may_have_numbers_and_read_what_they_write() {
        let read = |json: &str| serde_json::from_str::<KeepAlive>(json);
        assert_eq!(read("-1").unwrap(), KeepAlive::Pinned);
        assert_eq!(read("90").unwrap(), KeepAlive::For(Duration::from_secs(90)));
        assert!(read("true").is_err());
        for keep in [KeepAlive::Pinned, KeepAlive::default()] {
            assert_eq!(read(&serde_json::to_string(&keep).unwrap()).unwrap(), keep);
        }
    }
}
