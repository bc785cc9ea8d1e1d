//! Context shift: how a sequence goes on when it fills its context. The first tokens are kept, and the older half
//! of the rest is dropped. The remaining tokens are computed again as an ordinary sequence, with new positions. Its
//! keys and values contain nothing of the dropped tokens. So the result is exact for every kind of attention and
//! position embedding. The cost is a prefill of half a context for each half context generated.

use std::ops::Range;

use hanzo_engine_ops::BLOCK_TOKENS;
use serde::{Deserialize, Serialize};

use crate::error::RequestError;

/// Setting that lets a completion continue beyond its context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextShift {
    /// Tokens at the start that are never dropped.
    pub keep_tokens: usize,
}

impl ContextShift {
    /// Maximum tokens to keep at the start: three quarters of the context. The rest must be large enough to be
    /// worth computing again.
    pub fn keep_tokens_most(context_tokens_max: usize) -> usize {
        context_tokens_max / 4 * 3
    }

    /// Checks the setting against a context length.
    ///
    /// # Errors
    /// If too little would be left to drop.
    pub fn check(self, context_tokens_max: usize) -> Result<(), RequestError> {
        let most = Self::keep_tokens_most(context_tokens_max);
        if self.keep_tokens > most {
            let reason = format!(
                "must be at most {most}, three quarters of the context of {context_tokens_max} tokens, so that there is something to drop; it is {}",
                self.keep_tokens
            );
            return Err(RequestError::invalid("keep_tokens", reason));
        }
        if context_tokens_max < 2 * BLOCK_TOKENS {
            let reason = format!("needs a context of {} tokens at least", 2 * BLOCK_TOKENS);
            return Err(RequestError::invalid("context_shift", reason));
        }
        Ok(())
    }

    /// Tokens to drop from a text of `tokens` tokens so that at least one more fits; empty if there is room
    /// already. The result does not depend on whether the text grew token by token or came whole.
    pub fn dropped(self, tokens: usize, context_tokens_max: usize) -> Range<usize> {
        let keep = self.keep_tokens.min(context_tokens_max.saturating_sub(1));
        let half = ((context_tokens_max - keep) / 2).max(1);
        let over = (tokens + 1).saturating_sub(context_tokens_max);
        if over == 0 {
            return tokens..tokens;
        }
        keep..keep + over.div_ceil(half) * half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_comes_whole_loses_what_it_loses_token_by_token() {
        for (context, keep_tokens) in [(64, 0), (64, 5), (65, 48), (100, 75), (33, 1)] {
            let shift = ContextShift { keep_tokens };
            shift.check(context).unwrap();
            let mut grown: Vec<usize> = Vec::new();
            for token in 0..1000 {
                grown.push(token);
                if grown.len() == context {
                    grown.drain(shift.dropped(context, context));
                }
                let mut whole: Vec<usize> = (0..=token).collect();
                whole.drain(shift.dropped(whole.len(), context));
                assert_eq!(grown, whole, "{token} of {context}");
                assert!(grown.len() < context && grown.len() >= keep_tokens.min(token + 1));
                assert!(grown.iter().take(keep_tokens).enumerate().all(|(at, &token)| at == token));
                assert_eq!(grown.last(), Some(&token));
            }
        }
    }

    #[test]
    fn what_leaves_nothing_to_drop_is_refused() {
        let error = ContextShift { keep_tokens: 49 }.check(64).unwrap_err().to_string();
        assert!(error.contains("keep_tokens") && error.contains("48"), "{error}");
        assert!(ContextShift::default().check(31).unwrap_err().to_string().contains("context_shift"));
    }
}
