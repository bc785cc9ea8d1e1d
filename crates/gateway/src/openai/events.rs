//! Conversion of the engine's events to OpenAI's format: finish reasons, usage, timings, log probabilities.

use hanzo_engine_proto::v1::{self, FinishReason, TokenLogprob};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::openai::usage_count::UsageCount;

/// JSON value for a log probability of minus infinity, which JSON cannot express. The same as OpenAI's.
const LOGPROB_MIN: f32 = -9999.0;

/// Value of `finish_reason`.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        // `Generation` lets the other two pass only if the contract allows them.
        FinishReason::Stop | FinishReason::Unspecified | FinishReason::Error => "stop",
    }
}

/// Tokens that a request has used.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Usage {
    /// Tokens of the prompt.
    prompt_tokens: u32,
    /// Tokens of the answer.
    completion_tokens: u32,
    /// Tokens of both.
    total_tokens: u32,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

/// Tokens of a prompt, by their kind.
#[derive(Debug, Serialize, JsonSchema)]
struct PromptDetails {
    /// Tokens that the prefix cache had.
    cached_tokens: u32,
}

/// Tokens of an answer, by their kind.
#[derive(Debug, Serialize, JsonSchema)]
struct CompletionDetails {
    /// Tokens of reasoning.
    reasoning_tokens: u32,
    /// Predicted tokens that came.
    accepted_prediction_tokens: u32,
    /// Predicted tokens that did not come.
    rejected_prediction_tokens: u32,
}

/// Usage of all prompts and choices together.
pub(crate) fn usage(used: &UsageCount) -> Usage {
    let (prompt_tokens, completion_tokens) = (used.prompt_tokens(), used.completion_tokens());
    Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens: prompt_tokens.saturating_add(completion_tokens),
        prompt_tokens_details: PromptDetails { cached_tokens: used.cached_tokens() },
        completion_tokens_details: CompletionDetails {
            reasoning_tokens: used.reasoning_tokens,
            accepted_prediction_tokens: used.accepted_draft_tokens,
            rejected_prediction_tokens: used.draft_tokens - used.accepted_draft_tokens,
        },
    }
}

/// Durations of the phases of a choice, an extension.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Timings {
    /// Time in the queue, in milliseconds.
    queue_ms: f64,
    /// Time of reading the prompt, in milliseconds.
    prefill_ms: f64,
    /// Time of decoding, in milliseconds.
    decode_ms: f64,
    /// Tokens of the prompt per second.
    prefill_tokens_per_s: f64,
    /// Tokens after the first, over the time after the first; null if none followed.
    decode_tokens_per_s: Option<f64>,
}

/// Converts the engine's timings.
pub(crate) fn timings(timings: &v1::Timings) -> Timings {
    Timings {
        queue_ms: timings.queue_ms,
        prefill_ms: timings.prefill_ms,
        decode_ms: timings.decode_ms,
        prefill_tokens_per_s: timings.prefill_tokens_per_s,
        decode_tokens_per_s: decode_rate(timings),
    }
}

/// Decoded tokens per second after the first token. None: no token followed.
pub(crate) fn decode_rate(timings: &v1::Timings) -> Option<f64> {
    Some(timings.decode_tokens_per_s).filter(|rate| *rate > 0.0)
}

/// Log probabilities of a chat, for the tokens of its content only; their bytes make up the content.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatLogprob>,
    refusal: (), // null
}

/// Log probability of a token.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprob {
    /// Text of the token. A part of a character is U+FFFD.
    token: String,
    logprob: f32,
    /// UTF-8 of the token.
    bytes: Vec<u8>,
    /// Alternatives, which have none themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<ChatLogprob>>,
}

/// Log probabilities of a chat, one entry for each token.
pub(crate) fn chat_logprobs(tokens: &[TokenLogprob]) -> ChatLogprobs {
    ChatLogprobs { content: token_logprobs(tokens), refusal: () }
}

/// Entries of the tokens.
pub(crate) fn token_logprobs(tokens: &[TokenLogprob]) -> Vec<ChatLogprob> {
    fn entry(token: &TokenLogprob) -> ChatLogprob {
        ChatLogprob {
            token: String::from_utf8_lossy(&token.token).into_owned(),
            logprob: finite(token.logprob),
            bytes: token.token.to_vec(),
            top_logprobs: None,
        }
    }
    let whole = |token: &TokenLogprob| ChatLogprob {
        top_logprobs: Some(token.top.iter().map(entry).collect()),
        ..entry(token)
    };
    tokens.iter().map(whole).collect()
}

/// Object `logprobs` of a completion: four lists of the same length.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>, // null for the very first token
    top_logprobs: Vec<Option<Alternatives>>,
    text_offset: Vec<usize>, // in characters, from the start of the text
}

/// Tokens and their log probabilities as a JSON object in this order. `serde_json::Value` would widen the
/// numbers to f64, and show digits that they do not have.
#[derive(Debug, Default)]
struct Alternatives(Vec<(String, f32)>);

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

/// Number of characters that the tokens of a choice have produced.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct TextOffset {
    chars: usize, // includes a last one that may be incomplete
}

impl TextOffset {
    /// Offset of `token`. It lies within the last character if the token continues one.
    fn advance(&mut self, token: &[u8]) -> usize {
        let begins = |byte: u8| byte & 0xC0 != 0x80;
        let inside = token.first().is_some_and(|byte| !begins(*byte));
        let offset = self.chars - usize::from(inside && self.chars > 0);
        self.chars += token.iter().filter(|byte| begins(**byte)).count();
        offset
    }
}

/// Log probabilities in the completions format: up to `top` alternatives, and the token itself.
pub(crate) fn completion_logprobs(
    tokens: &[TokenLogprob],
    top: u32,
    offset: &mut TextOffset,
) -> CompletionLogprobs {
    let alternatives = |token: &TokenLogprob| {
        let mut list: Vec<(String, f32)> = Vec::with_capacity(top as usize + 1);
        for token in token.top.iter().take(top as usize).chain([token]) {
            let word = token_word(&token.token);
            if list.iter().all(|(other, _)| *other != word) {
                list.push((word, finite(token.logprob)));
            }
        }
        Alternatives(list)
    };
    CompletionLogprobs {
        tokens: tokens.iter().map(|t| token_word(&t.token)).collect(),
        token_logprobs: tokens.iter().map(|t| Some(finite(t.logprob))).collect(),
        top_logprobs: tokens.iter().map(|t| Some(alternatives(t))).collect(),
        text_offset: tokens.iter().map(|t| offset.advance(&t.token)).collect(),
    }
}

impl CompletionLogprobs {
    /// Empty lists.
    pub(crate) fn none() -> CompletionLogprobs {
        CompletionLogprobs {
            tokens: Vec::new(),
            token_logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            text_offset: Vec::new(),
        }
    }

    /// Log probabilities of a prompt, or of its next part. The first token of a prompt has none.
    pub(crate) fn of_prompt(scored: &v1::PromptLogprobs, top: u32, offset: &mut TextOffset) -> Self {
        let mut all = CompletionLogprobs::none();
        if let Some(first) = &scored.first {
            all.tokens.push(token_word(&first.token));
            all.token_logprobs.push(None);
            all.top_logprobs.push(None);
            all.text_offset.push(offset.advance(&first.token));
        }
        all.append(completion_logprobs(&scored.tokens, top, offset));
        all
    }

    /// Appends the entries of the next tokens.
    pub(crate) fn append(&mut self, mut next: CompletionLogprobs) {
        self.tokens.append(&mut next.tokens);
        self.token_logprobs.append(&mut next.token_logprobs);
        self.top_logprobs.append(&mut next.top_logprobs);
        self.text_offset.append(&mut next.text_offset);
    }
}

/// vLLM's `prompt_logprobs`: for each token of the prompt a map from token ids to log probabilities, of the
/// token and its alternatives. The first entry is null.
#[derive(Debug, Default)]
pub(crate) struct PromptLogprobs(pub(crate) Vec<TokenLogprob>);

#[derive(Serialize)]
struct RankedLogprob<'a> {
    logprob: f32,
    rank: Option<usize>, // from 1; unknown for a token that is not among the alternatives
    decoded_token: std::borrow::Cow<'a, str>,
}

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let first = std::iter::once(None);
        serializer.collect_seq(first.chain(self.0.iter().map(|token| Some(RankedToken(token)))))
    }
}

struct RankedToken<'a>(&'a TokenLogprob);

impl Serialize for RankedToken<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let TokenLogprob { token_id, top, .. } = self.0;
        let known = top.iter().any(|other| other.token_id == *token_id);
        let unranked = (!known).then_some((None, self.0)).into_iter();
        let ranked = (1..).zip(top).map(|(rank, token)| (Some(rank), token));
        serializer.collect_map(unranked.chain(ranked).map(|(rank, token)| {
            let decoded_token = String::from_utf8_lossy(&token.token);
            (token.token_id, RankedLogprob { logprob: finite(token.logprob), rank, decoded_token })
        }))
    }
}

/// Token as text. A partial character is written as `bytes:\xe2\x80`, like OpenAI does.
fn token_word(token: &[u8]) -> String {
    match std::str::from_utf8(token) {
        Ok(text) => text.to_owned(),
        Err(_) => token.iter().fold("bytes:".to_owned(), |word, byte| format!("{word}\\x{byte:02x}")),
    }
}

pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOGPROB_MIN }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::TokenLogprob;
    use serde_json::json;

    use super::{TextOffset, chat_logprobs, completion_logprobs};

    fn token(bytes: &'static [u8], logprob: f32, top: Vec<TokenLogprob>) -> TokenLogprob {
        TokenLogprob { token_id: 0, token: bytes.into(), logprob, top }
    }

    #[test]
    fn tokens_that_split_a_character_keep_their_bytes_and_offsets() {
        let tokens = [token(b"a", -0.5, vec![]), token(b"\xc3", -1.0, vec![]), token(b"\xa9b", -1.5, vec![])];
        let mut offset = TextOffset::default();
        let logprobs = serde_json::to_value(completion_logprobs(&tokens, 0, &mut offset)).unwrap();
        let expected = json!({
            "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9\\x62"],
            "token_logprobs": [-0.5, -1.0, -1.5],
            "top_logprobs": [{"a": -0.5}, {"bytes:\\xc3": -1.0}, {"bytes:\\xa9\\x62": -1.5}],
            "text_offset": [0, 1, 1],
        });
        assert_eq!(logprobs, expected);
        // "aéb" is complete, so the next token begins after three characters.
        let next =
            serde_json::to_value(completion_logprobs(&[token(b"c", -1.0, vec![])], 0, &mut offset)).unwrap();
        assert_eq!(next["text_offset"], json!([3]));
    }

    #[test]
    fn alternatives_keep_their_order_and_hold_the_token_itself() {
        let top = vec![token(b"x", -0.25, vec![]), token(b"y", -0.5, vec![])];
        let tokens = [token(b"z", f32::NEG_INFINITY, top)];
        let old =
            serde_json::to_string(&completion_logprobs(&tokens, 2, &mut TextOffset::default())).unwrap();
        assert!(old.contains(r#""top_logprobs":[{"x":-0.25,"y":-0.5,"z":-9999.0}]"#), "{old}");
        // Each number has the digits of an f32, in both places.
        let tokens_of_tenths = [token(b"z", -0.1, vec![token(b"x", -0.7, vec![])])];
        let logprobs = completion_logprobs(&tokens_of_tenths, 1, &mut TextOffset::default());
        let text = serde_json::to_string(&logprobs).unwrap();
        assert!(text.contains(r#""token_logprobs":[-0.1],"top_logprobs":[{"x":-0.7,"z":-0.1}]"#), "{text}");
        let chat = serde_json::to_value(chat_logprobs(&tokens)).unwrap();
        let expected = json!({"refusal": null, "content": [{
            "token": "z", "logprob": -9999.0, "bytes": [122],
            "top_logprobs": [
                {"token": "x", "logprob": -0.25, "bytes": [120]},
                {"token": "y", "logprob": -0.5, "bytes": [121]},
            ],
        }]});
        assert_eq!(chat, expected);
    }
}
