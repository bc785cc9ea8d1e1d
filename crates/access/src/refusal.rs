//! Reasons to refuse a request, as text for every protocol and as a gRPC status.

use std::time::Duration;

use tonic::{Code, Status, metadata::MetadataMap};

/// Reason to refuse a request. No message repeats a key.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The request has no key.
    #[error(
        "this server wants a key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`; `hanzo-engine keys create` makes one"
    )]
    Missing,
    /// No accepted key matches.
    #[error("the key that was sent is not one of this server's; it may have been revoked")]
    Wrong,
    /// The address has sent too many wrong keys.
    #[error("too many wrong keys came from this address; try again in {} s", secs(retry_after))]
    Guessing {
        /// Time until the next try.
        retry_after: Duration,
    },
    /// The key's requests of this minute are used up.
    #[error("rate limit: this key has {limit} requests per minute; try again in {} s", secs(retry_after))]
    Requests {
        /// Limit a minute.
        limit: u32,
        /// Time until the next request.
        retry_after: Duration,
    },
    /// The key's tokens of this minute are used up.
    #[error("rate limit: this key has {limit} tokens per minute; try again in {} s", secs(retry_after))]
    Tokens {
        /// Limit a minute.
        limit: u32,
        /// Time until there are enough tokens.
        retry_after: Duration,
    },
    /// The request may take more tokens than the key has in a minute.
    #[error("{}: {}", fault.field(), fault.advice(*limit, *prompt, *completion))]
    TooManyTokens {
        /// Limit a minute.
        limit: u32,
        /// Tokens of the prompt, as far as they are known.
        prompt: u64,
        /// Maximum tokens of all answers together.
        completion: u64,
        /// Part of the request that is too large.
        fault: TokensFault,
    },
    /// The key file cannot be read, so its keys are refused.
    #[error(
        "this server's file of keys cannot be read, so its keys are refused until it can; the server's log and /ready say why"
    )]
    KeysUnreadable,
    /// The key has reached its limit of running requests.
    #[error("rate limit: {limit} requests of this key may run at once, and do; try again when one has ended")]
    Running {
        /// Maximum requests at once.
        limit: u32,
    },
    /// The request needs the admin scope.
    #[error(
        "this key may not do that: {what} needs one with the admin scope (`hanzo-engine keys create --admin`)"
    )]
    Admin {
        /// Name of the request.
        what: String,
    },
    /// The key may not use the model.
    #[error("model: this key may not use {name:?}; it may use {}", allowed.join(", "))]
    Model {
        /// Name of the model in the request.
        name: String,
        /// Patterns of the models that the key may use.
        allowed: Vec<String>,
    },
    /// The request names no model, and the key is limited to certain models.
    #[error("model: this key may use {}: name one of them", allowed.join(", "))]
    NoModel {
        /// Patterns of the models that the key may use.
        allowed: Vec<String>,
    },
}

/// Part of a request that takes more tokens than its key has in a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokensFault {
    /// Prompt alone.
    Prompt,
    /// Prompt and the requested tokens.
    Completion,
}

impl TokensFault {
    fn field(self) -> &'static str {
        match self {
            TokensFault::Prompt => "prompt",
            TokensFault::Completion => "max_tokens",
        }
    }

    fn advice(self, limit: u32, prompt: u64, completion: u64) -> String {
        let start = format!("this key has {limit} tokens per minute, and the request may take");
        let other = "or use a key with a higher limit";
        match self {
            TokensFault::Prompt => {
                format!("{start} {prompt} for its prompt alone; send at most {limit} tokens, {other}")
            }
            TokensFault::Completion => {
                let most = u64::from(limit).saturating_sub(prompt);
                format!(
                    "{start} {} ({prompt} for the prompt, {completion} for the answers); ask for at most {most} tokens in all answers together, {other}",
                    prompt.saturating_add(completion)
                )
            }
        }
    }
}

fn secs(time: &Duration) -> u64 {
    time.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}

impl Refusal {
    /// Machine-readable code of the refusal; also its label in metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::Missing => "missing_api_key",
            Refusal::Wrong => "invalid_api_key",
            Refusal::Guessing { .. } => "too_many_wrong_keys",
            Refusal::Requests { .. } => "requests_per_minute",
            Refusal::Tokens { .. } => "tokens_per_minute",
            Refusal::TooManyTokens { .. } => "request_over_tokens_per_minute",
            Refusal::KeysUnreadable => "keys_unreadable",
            Refusal::Running { .. } => "concurrency",
            Refusal::Admin { .. } => "insufficient_permissions",
            Refusal::Model { .. } | Refusal::NoModel { .. } => "model_not_allowed",
        }
    }

    /// Every [`Refusal::code`].
    pub const CODES: [&'static str; 10] = [
        "missing_api_key",
        "invalid_api_key",
        "too_many_wrong_keys",
        "requests_per_minute",
        "tokens_per_minute",
        "request_over_tokens_per_minute",
        "keys_unreadable",
        "concurrency",
        "insufficient_permissions",
        "model_not_allowed",
    ];

    /// Time after which the client should try again, where that helps.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Refusal::Guessing { retry_after }
            | Refusal::Requests { retry_after, .. }
            | Refusal::Tokens { retry_after, .. } => Some(*retry_after),
            Refusal::Running { .. } | Refusal::KeysUnreadable => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let code = match refusal {
            Refusal::Missing | Refusal::Wrong => Code::Unauthenticated,
            Refusal::Guessing { .. }
            | Refusal::Requests { .. }
            | Refusal::Tokens { .. }
            | Refusal::Running { .. } => Code::ResourceExhausted,
            Refusal::TooManyTokens { .. } => Code::InvalidArgument,
            Refusal::KeysUnreadable => Code::Unavailable,
            Refusal::Admin { .. } | Refusal::Model { .. } | Refusal::NoModel { .. } => Code::PermissionDenied,
        };
        let mut metadata = MetadataMap::new();
        if let Ok(word) = refusal.code().parse() {
            metadata.insert("error-code", word);
        }
        if let Some(Ok(ms)) = refusal.retry_after().map(|time| time.as_millis().to_string().parse()) {
            metadata.insert("retry-after-ms", ms);
        }
        Status::with_metadata(code, refusal.to_string(), metadata)
    }
}
