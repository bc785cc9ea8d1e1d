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
