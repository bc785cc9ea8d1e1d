//! Connectivity check: whether the sources of models answer, and how far their clocks differ.

use crate::http::Http;
use crate::settings::StoreSettings;
use crate::{PullError, unix_time::now_unix_ms};
use reqwest::header::DATE;
use std::time::{Duration, UNIX_EPOCH};

/// Maximum wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Result of checking one source.
#[derive(Clone, Debug)]
pub struct Reachable {
    /// URL such as `https://huggingface.co/`.
    pub url: String,
    /// Seconds by which the server's clock is ahead of this machine's, if it states the time, or the reason why
    /// there is no answer.
    pub answer: Result<Option<i64>, String>,
}

/// Sends a minimal request to the hub and to Ollama's registry.
///
/// # Errors
/// [`PullError::Internal`] if no HTTP client can be made.
pub async fn reachable(settings: &StoreSettings) -> Result<Vec<Reachable>, PullError> {
    let http = Http::new(&StoreSettings { stall: settings.stall.min(PATIENCE), ..settings.clone() })?;
    let ask = async |url: &reqwest::Url| {
        let answer = http.headers(url).await.map(|headers| {
            let date = headers.get(DATE)?.to_str().ok()?;
            let there = httpdate::parse_http_date(date).ok()?.duration_since(UNIX_EPOCH).ok()?;
            Some(i64::try_from(there.as_secs()).ok()? - now_unix_ms() / 1_000)
        });
        Reachable { url: url.to_string(), answer }
    };
    let (hub, ollama) = tokio::join!(ask(&settings.hub), ask(&settings.ollama));
    Ok(vec![hub, ollama])
}
