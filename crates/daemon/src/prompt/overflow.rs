//! Handling of prompts and completions that exceed the context.

use hanzo_engine_runtime::{ContextShift, RequestError, limits::KEPT_TOKENS_DEFAULT, tokenizer::CutSide};

use crate::{
    error::Error,
    limits::{OVERFLOW_CONTEXTS_MAX, OVERFLOW_TOKENS_MIN},
};

/// Requested handling.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overflow {
    pub(crate) truncate: Option<Truncate>,
    /// Whether to shift the context; `None` follows the engine's setting.
    pub(crate) shift: Option<bool>,
    pub(crate) keep: Option<Keep>,
}

/// Truncation of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Truncate {
    /// Number of tokens to keep; `None` leaves room for the completion.
    pub(crate) tokens: Option<usize>,
    pub(crate) side: CutSide,
}

/// Tokens that a context shift never drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Prompt,
    Tokens(usize),
}

impl Overflow {
    /// Whether the completion continues beyond the context.
    pub(crate) fn shifts(&self, default: bool) -> bool {
        self.shift.unwrap_or(default)
    }

    /// Maximum number of tokens of a prompt before truncation, which bounds the work of the tokenizer.
    pub(crate) fn tokens_most(&self, shifts: bool, context_tokens_max: usize) -> usize {
        match self.truncate.is_some() || shifts {
            true => context_tokens_max.saturating_mul(OVERFLOW_CONTEXTS_MAX).max(OVERFLOW_TOKENS_MIN),
            false => context_tokens_max,
        }
    }

    /// Truncates a prompt as requested. `is_gap` means a fill-in-the-middle prompt; `wanted` is the completion's
    /// maximum length. Returns the context shift, if there is one, and whether the prompt was truncated.
    ///
    /// # Errors
    /// If the prompt is a fill-in-the-middle one, which cannot be truncated.
    pub(crate) fn cut(
        &self,
        tokens: &mut Vec<u32>,
        is_gap: bool,
        shifts: bool,
        context_tokens_max: usize,
        wanted: Option<u32>,
    ) -> Result<(Option<ContextShift>, bool), Error> {
        let before = tokens.len();
        if let Some(Truncate { tokens: most, side }) = self.truncate {
            if is_gap {
                let reason = "must be unset where a gap is filled in: what is around it belongs together";
                return Err(Error::field("truncate_prompt_tokens", reason));
            }
            let half = (context_tokens_max / 2).max(1);
            let most = most.unwrap_or_else(|| {
                let wanted = wanted.map_or(half, |wanted| (wanted as usize).clamp(1, half));
                context_tokens_max - wanted.min(context_tokens_max - 1)
            });
            match side {
                CutSide::Left => drop(tokens.drain(..tokens.len().saturating_sub(most))),
                CutSide::Right => tokens.truncate(most),
            }
        }
        if !shifts {
            return Ok((None, tokens.len() < before));
        }
        let keep_tokens = match self.keep {
            Some(Keep::Prompt) => tokens.len(),
            Some(Keep::Tokens(tokens)) => tokens,
            None => KEPT_TOKENS_DEFAULT.min(ContextShift::keep_tokens_most(context_tokens_max)),
        };
        let shift = ContextShift { keep_tokens };
        shift.check(context_tokens_max)?;
        // A prompt that is only scored may fill the whole context.
        if !is_gap && tokens.len() + usize::from(wanted != Some(0)) > context_tokens_max {
            tokens.drain(shift.dropped(tokens.len(), context_tokens_max));
        }
        Ok((Some(shift), tokens.len() < before))
    }
}

/// Requested limits of a completion's length in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionLimits {
    pub(crate) max_tokens: Option<u32>,
    /// Additional limit.
    pub(crate) tokens_max: Option<u32>,
}

impl CompletionLimits {
    /// Tokens that a completion of at least `min_tokens` tokens may have after a prompt of `prompt_tokens` tokens.
    ///
    /// # Errors
    /// [`RequestError::ContextLength`], as for [`room`].
    pub(crate) fn room(
        self,
        min_tokens: u32,
        prompt_tokens: usize,
        context_tokens_max: usize,
        shifts: bool,
    ) -> Result<u32, RequestError> {
        match self.max_tokens {
            // A prompt that is only scored may fill the context.
            Some(0) => Ok(context_tokens_max.saturating_sub(prompt_tokens).min(u32::MAX as usize) as u32),
            // With context shift the completion has the requested length, or else that of a context.
            max_tokens if shifts => {
                room(prompt_tokens, context_tokens_max, None, 0)?;
                Ok(max_tokens.unwrap_or((context_tokens_max as u32).max(min_tokens)))
            }
            max_tokens => room(prompt_tokens, context_tokens_max, max_tokens, min_tokens),
        }
    }

    /// Maximum number of tokens of a completion that has room for `room`. `own` is the model's default limit.
    pub(crate) fn of_completion(self, min_tokens: u32, own: Option<u32>, room: u32) -> u32 {
        let max_tokens = match (self.max_tokens, own) {
            (Some(asked), _) => asked.min(room),
            // `min_tokens` above the model's default limit raises it.
            (None, Some(own)) => own.max(min_tokens).clamp(1, room),
            (None, None) => room,
        };
        self.tokens_max.map_or(max_tokens, |most| max_tokens.min(most))
    }
}

/// Number of tokens that the context leaves for the completion; at least 1.
///
/// # Errors
/// [`RequestError::ContextLength`] if the prompt leaves no room, or less than the completion's minimum.
fn room(
    prompt_tokens: usize,
    context_tokens_max: usize,
    max_tokens: Option<u32>,
    min_tokens: u32,
) -> Result<u32, RequestError> {
    let too_long = |completion_tokens| {
        Err(RequestError::ContextLength { prompt_tokens, completion_tokens, context_tokens_max })
    };
    let room = u32::try_from(context_tokens_max.saturating_sub(prompt_tokens)).unwrap_or(u32::MAX);
    if room == 0 {
        return too_long(0);
    }
    // `min_tokens` above `max_tokens` is an error reported elsewhere.
    if min_tokens > room && max_tokens.is_none_or(|max_tokens| min_tokens <= max_tokens) {
        return too_long(min_tokens as usize);
    }
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(
        overflow: &Overflow,
        tokens: u32,
        context: usize,
        wanted: Option<u32>,
    ) -> (Vec<u32>, Option<ContextShift>) {
        let mut prompt: Vec<u32> = (0..tokens).collect();
        let shifts = overflow.shifts(false);
        let (shift, cut) = overflow.cut(&mut prompt, false, shifts, context, wanted).unwrap();
        assert_eq!(cut, prompt.len() < tokens as usize);
        (prompt, shift)
    }

    #[test]
    fn a_prompt_keeps_as_many_tokens_as_were_asked_for() {
        let of = |tokens, side| Overflow { truncate: Some(Truncate { tokens, side }), ..Overflow::default() };
        let last = of(Some(3), CutSide::Left);
        assert_eq!(cut(&last, 10, 64, None).0, [7, 8, 9]);
        assert_eq!(cut(&last, 2, 64, None).0, [0, 1]);
        assert_eq!(cut(&of(Some(3), CutSide::Right), 10, 64, None).0, [0, 1, 2]);
        // As many tokens as leave room for the completion.
        let fits = of(None, CutSide::Left);
        for (wanted, kept) in [(Some(10), 54), (Some(1), 63), (Some(500), 32), (None, 32)] {
            assert_eq!(cut(&fits, 100, 64, wanted).0.len(), kept, "{wanted:?}");
        }
        assert_eq!(cut(&fits, 54, 64, Some(10)).0.len(), 54);
        assert_eq!((fits.tokens_most(false, 64), Overflow::default().tokens_most(false, 64)), (65_536, 64));
        let mut gap = vec![0; 100];
        let refused = fits.cut(&mut gap, true, false, 64, None).unwrap_err().to_string();
        assert!(refused.starts_with("truncate_prompt_tokens"), "{refused}");
    }

    #[test]
    fn a_prompt_that_is_shifted_keeps_its_first_and_last_tokens() {
        let of = |keep| Overflow { shift: Some(true), keep, ..Overflow::default() };
        let (tokens, shift) = cut(&of(Some(Keep::Tokens(10))), 64, 64, None);
        assert_eq!((tokens.len(), &tokens[8..12]), (64 - 27, &[8, 9, 37, 38][..]));
        assert_eq!(shift, Some(ContextShift { keep_tokens: 10 }));
        assert_eq!(cut(&of(None), 63, 64, None).0.len(), 63);
        assert_eq!(cut(&of(None), 300, 64, None).0[..5], [0, 1, 2, 3, 244]);
        assert_eq!(cut(&of(None), 64, 64, Some(0)).0.len(), 64);
        let all = of(Some(Keep::Prompt));
        assert_eq!(cut(&all, 40, 64, None).1, Some(ContextShift { keep_tokens: 40 }));
        let refused = all.cut(&mut vec![0; 60], false, true, 64, None).unwrap_err().to_string();
        assert!(refused.starts_with("keep_tokens"), "{refused}");
    }

    #[test]
    fn the_context_is_the_limit_and_says_so() {
        assert_eq!((room(10, 64, None, 0), room(63, 64, Some(5), 0)), (Ok(54), Ok(1)));
        for (prompt, max_tokens) in [(64, None), (100, Some(5))] {
            let error = room(prompt, 64, max_tokens, 0).unwrap_err().to_string();
            assert!(error.contains("maximum context length is 64 tokens"), "{error}");
            assert!(error.contains(&format!("resulted in {prompt} tokens")), "{error}");
            assert!(!error.contains("completion") && !error.contains("max_tokens"), "{error}");
        }
        let error = room(60, 64, None, 10).unwrap_err().to_string();
        assert!(
            error.contains("you requested 70 tokens (60 in the messages, 10 in the completion)"),
            "{error}"
        );
        assert_eq!(room(60, 64, Some(5), 10), Ok(4), "min_tokens above max_tokens is refused by name");
    }
}
