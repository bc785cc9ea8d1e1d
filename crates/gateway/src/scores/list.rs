//! Common parts of answers to lists of texts: vLLM's list, and the usage.

use serde::Serialize;

use crate::{
    request_id::{random_id, unix_seconds},
    vectors::calls::Spent,
};

/// Answer to a list of texts in vLLM's format.
#[derive(Debug, Serialize)]
pub(crate) struct List<T> {
    id: String,
    object: &'static str,
    created: u64, // Unix seconds
    model: String,
    data: Vec<T>,
    usage: Usage,
}

impl<T> List<T> {
    /// Answer whose id starts with `prefix`.
    pub(crate) fn new(prefix: &str, spent: Spent, data: Vec<T>) -> List<T> {
        List {
            id: format!("{prefix}-{}", random_id()),
            object: "list",
            created: unix_seconds(),
            usage: Usage::from(&spent),
            model: spent.model,
            data,
        }
    }
}

/// Tokens read by a request's calls.
#[derive(Debug, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl From<&Spent> for Usage {
    fn from(spent: &Spent) -> Usage {
        Usage { prompt_tokens: spent.prompt_tokens, total_tokens: spent.prompt_tokens }
    }
}
