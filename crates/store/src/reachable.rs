//! Whether the places that models come from answer, and what time it is there.

use crate::http::Http;
use crate::settings::Settings;
use crate::{PullError, unix_time::now_unix_ms};
use reqwest::header::DATE;
use std::time::{Duration, UNIX_EPOCH};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What came of asking one of them.
#[derive(Clone, Debug)]
pub struct Reachable {
    /// Such as `https://huggingface.co/`.
    pub url: String,
    /// It answered, and its clock is so many seconds ahead of this machine's, where it says the time; or why it did not.
    pub answer: Result<Option<i64>, String>,
}

/// Asks the hub and Ollama's registry for nothing in particular.
///
/// # Errors
/// [`PullError::Internal`] where no HTTP client can be made.
pub async fn reachable(settings: &Settings) -> Result<Vec<Reachable>, PullError> {
    let http = Http::new(&Settings { stall: settings.stall.min(PATIENCE), ..settings.clone() })?;
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
