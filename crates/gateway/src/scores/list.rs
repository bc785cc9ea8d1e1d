//! Common parts of answers to lists of texts: vLLM's list, and the usage.

use serde::Serialize;

use crate::{
    request_id::{random_id, unix_seconds},
    vectors::calls::TokensRead,
};

/// Answer to a list of texts in vLLM's format.
#[derive(Debug, Serialize)]
pub(crate) struct ScoreList<T> {
    id: String,
    object: &'static str,
    created: u64, // Unix seconds
    model: String,
    data: Vec<T>,
    usage: ScoreUsage,
}

impl<T> ScoreList<T> {
    /// Answer whose id starts with `prefix`.
    pub(crate) fn new(prefix: &str, spent: TokensRead, data: Vec<T>) -> ScoreList<T> {
        ScoreList {
            id: format!("{prefix}-{}", random_id()),
            object: "list",
            created: unix_seconds(),
            usage: ScoreUsage::from(&spent),
            model: spent.model,
            data,
        }
    }
}

/// Tokens read by a request's calls.
#[derive(Debug, Serialize)]
pub(crate) struct ScoreUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl From<&TokensRead> for ScoreUsage {
    fn from(spent: &TokensRead) -> ScoreUsage {
        ScoreUsage { prompt_tokens: spent.prompt_tokens, total_tokens: spent.prompt_tokens }
    }
}
