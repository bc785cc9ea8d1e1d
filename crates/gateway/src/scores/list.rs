//! What the answers to lists of texts have in common: vLLM's list, and the usage.

use serde::Serialize;

use crate::{
    request_id::{random_id, unix_seconds},
    vectors::calls::Spent,
};

/// vLLM's answer to a list of texts.
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
    /// An answer whose id starts with `prefix`.
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

/// Tokens that a request's calls read.
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
