//! Values of settings that several programs have.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human-readable lines.
    #[default]
    Pretty,
    /// JSON object on each line.
    Json,
}

/// Parses a host: an IP address or `localhost`.
///
/// # Errors
/// If the text is neither an IP address nor `localhost`.
pub fn parse_host(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    let address = text.trim_start_matches('[').trim_end_matches(']');
    address.parse().map_err(|_| format!("{text:?} is neither an IP address nor localhost"))
}

/// Parses a number of bytes: `1073741824`, `512M`, `12GiB`, `1.5 GB`. K, M, G and T are powers of 1,024, `KB`,
/// `MB`, `GB` and `TB` powers of 1,000.
///
/// # Errors
/// A message that says what is wrong.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is no number of bytes, such as 8GiB"))?;
    let unit = unit.trim().to_ascii_lowercase();
    let (power, base) = match unit.as_str() {
        "" | "b" => (0, 1_024_f64),
        "k" | "kib" => (1, 1_024.0),
        "m" | "mib" => (2, 1_024.0),
        "g" | "gib" => (3, 1_024.0),
        "t" | "tib" => (4, 1_024.0),
        "kb" => (1, 1_000.0),
        "mb" => (2, 1_000.0),
        "gb" => (3, 1_000.0),
        "tb" => (4, 1_000.0),
        _ => return Err(format!("{unit:?} is no unit of bytes; use K, M, G, T, KB, MB, GB or TB")),
    };
    let bytes = number * base.powi(power);
    if bytes >= 1.0 && bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(format!("{text:?} is out of range"))
    }
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn bytes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("1024", 1024), ("2K", 2048), ("1.5 GiB", 3 << 29), ("1GB", 1_000_000_000), ("3mb", 3_000_000)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "lots", "1X", "0", "-1", "1e30T", "999999999T"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
