//! Tokens of a request's prompt.

use hanzo_engine_runtime::{MediaSpan, TextModel};

use super::{GenerationRequest, PromptSource, SpecialTokens, encoded, media::PreparedMedia};
use crate::error::Error;

/// Tokens of a prompt, and properties of the response that follow from it.
#[derive(Default)]
pub(super) struct PromptTokens {
    pub(super) tokens: Vec<u32>,
    /// Text of the prompt, if it was given as text.
    pub(super) text: Option<String>,
    pub(super) media: Vec<MediaSpan>,
    pub(super) split_reasoning: bool,
    pub(super) starts_in_reasoning: bool,
    pub(super) reasoning_is_over: bool,
    pub(super) reasoning_tokens_max: Option<u32>,
    /// Stop tokens that fill-in-the-middle adds.
    pub(super) ends: Vec<u32>,
}

/// Tokenizes the prompt. A text may have `tokens_most` tokens, and a part of a gap `context_tokens_max`.
pub(super) fn prompt_tokens(
    request: &mut GenerationRequest,
    text: &TextModel,
    perceived: PreparedMedia,
    may_call: bool,
    tokens_most: usize,
    context_tokens_max: usize,
    interrupted: &dyn Fn() -> bool,
) -> Result<PromptTokens, Error> {
    let reasoning_tokens_max = request.reasoning_tokens_max;
    match std::mem::replace(&mut request.prompt, PromptSource::Tokens(Vec::new())) {
        PromptSource::Chat(mut chat) => {
            if !may_call {
                // Tools that must not be called are not shown to the model.
                chat.tools.clear();
            }
            if reasoning_tokens_max == Some(0) {
                chat.kwargs.entry("enable_thinking").or_insert(false.into());
            }
            let said = text.thinking.apply(&mut chat);
            let prompt = text.prompt_from_chat(&chat, tokens_most, interrupted)?;
            let (tokens, media) = perceived.placed(prompt.tokens, text)?;
            Ok(PromptTokens {
                tokens,
                text: Some(prompt.text),
                media,
                split_reasoning: true,
                starts_in_reasoning: prompt.starts_in_reasoning,
                reasoning_is_over: prompt.reasoning_is_over,
                reasoning_tokens_max: reasoning_tokens_max.or(said),
                ..PromptTokens::default()
            })
        }
        PromptSource::Text { text: prompt, parse_special } => {
            text.tokenizer.check_length("prompt", &prompt, tokens_most, interrupted)?;
            let tokens =
                encoded(text, &prompt, SpecialTokens { add: true, parse: parse_special }, interrupted)?;
            Ok(PromptTokens { tokens, text: Some(prompt), reasoning_tokens_max, ..PromptTokens::default() })
        }
        PromptSource::Tokens(tokens) => {
            Ok(PromptTokens { tokens, reasoning_tokens_max, ..PromptTokens::default() })
        }
        PromptSource::Gap(gap) => {
            let Some(infill) = &text.infill else {
                let reason = "this model has no tokens for filling in the middle of a text";
                return Err(Error::field("suffix", format!("{reason}; leave it out")));
            };
            let said = [&gap.prefix, &gap.suffix, &gap.middle].into_iter();
            for said in said.chain(gap.files.iter().map(|(_, text)| text)) {
                text.tokenizer.check_length("prompt", said, context_tokens_max, interrupted)?;
            }
            let tokens = infill.prompt(&gap, &text.tokenizer)?;
            let ends = infill.ends.clone();
            Ok(PromptTokens { tokens, reasoning_tokens_max, ends, ..PromptTokens::default() })
        }
    }
}
