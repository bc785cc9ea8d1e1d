//! Tokens at the start and end of a text, from the files, and well-known ones that files omit.

use std::sync::Arc;

use hanzo_engine_formats::{ReasoningMarkers, ToolFormat};

use super::ReasoningEnd;
use crate::error::RequestError;
use crate::text_files::{TextFiles, TokenizerSource};
use crate::tokenizer::{Tokenizer, hf};

/// Control tokens that end a turn or a text, in addition to a GGUF file's `eos_token_id`. Files made from base
/// models often only name the end of text.
const END_TOKENS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<｜end▁of▁sentence｜>",
];

/// Texts of the tokens that begin and end a text, for a template's variables; empty if there is none.
pub(super) fn boundary_tokens(text: &TextFiles, tokenizer: &Tokenizer) -> (String, String) {
    let spelled = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    let by_id = |id: Option<u32>| id.map(spelled).unwrap_or_default();
    match &text.tokenizer {
        TokenizerSource::HuggingFace { tokenizer_config: Some(config), .. } => {
            let token = |key: &str, id: Option<u32>| match config.get(key) {
                Some(value) => hf::token_text(value).unwrap_or_default().to_owned(),
                None => by_id(id),
            };
            (token("bos_token", text.bos), token("eos_token", text.eos.first().copied()))
        }
        TokenizerSource::HuggingFace { tokenizer_config: None, .. } => {
            (by_id(text.bos), by_id(text.eos.first().copied()))
        }
        TokenizerSource::Gguf(metadata) => {
            let eos = metadata.u32("tokenizer.ggml.eos_token_id").ok().flatten();
            (by_id(text.bos), by_id(eos))
        }
    }
}

/// End tokens that the files name, and those that they omit.
pub(super) fn end_tokens(
    text: &TextFiles,
    tokenizer: &Tokenizer,
    eos: &str,
    tool_format: Option<ToolFormat>,
) -> Vec<u32> {
    let mut tokens = text.eos.clone();
    tokens.extend(tokenizer.token_id(eos));
    if let TokenizerSource::Gguf(_) = text.tokenizer {
        let forgotten = END_TOKENS.iter().filter_map(|token| tokenizer.token_id(token));
        tokens.extend(forgotten.filter(|&id| tokenizer.is_special(id)));
    }
    // Ends an answer that is a call.
    let after_call = match tool_format {
        Some(ToolFormat::ChatGlm | ToolFormat::Glm) => Some("<|observation|>"),
        Some(ToolFormat::SolarOpen) => Some("<|calls|>"),
        _ => None,
    };
    let after_call = after_call.and_then(|token| tokenizer.token_id(token));
    tokens.extend(after_call.filter(|&id| tokenizer.is_special(id)));
    if tool_format == Some(ToolFormat::Harmony) {
        // An answer consists of several messages: only the last one's end, or a call, ends it.
        tokens.retain(|&id| tokenizer.token_bytes(id) != b"<|end|>");
        tokens.extend(["<|return|>", "<|call|>"].iter().filter_map(|token| tokenizer.token_id(token)));
    }
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// Splits stops into texts and control tokens: a control token's text never appears in a completion.
pub(super) fn stops(texts: &[String], tokenizer: &Tokenizer) -> (Vec<String>, Vec<u32>) {
    let (mut left, mut tokens) = (Vec::new(), Vec::new());
    for text in texts {
        match tokenizer.token_id(text).filter(|&id| tokenizer.is_special(id)) {
            Some(id) => tokens.push(id),
            None => left.push(text.clone()),
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    (left, tokens)
}

/// Tokens that close the model's reasoning, before an answer and before a call.
pub(super) fn reasoning_ends(
    markers: Option<&ReasoningMarkers>,
    format: Option<ToolFormat>,
    tokenizer: &Tokenizer,
) -> Result<Option<[Arc<ReasoningEnd>; 2]>, RequestError> {
    let closing = |call| format.and_then(|format| format.closing(call));
    if let (Some(answer), Some(call)) = (closing(false), closing(true)) {
        let of = |closing| ReasoningEnd::of_message(closing, tokenizer).map(Arc::new);
        return Ok(Some([of(answer)?, of(call)?]));
    }
    let Some(markers) = markers else { return Ok(None) };
    let (before, marker) = markers.closing();
    let end = Arc::new(ReasoningEnd::of_marker(before, marker, tokenizer)?);
    Ok(Some([end.clone(), end]))
}
