//! Images and sound in a prompt: rows that take the place of tokens' embeddings. What makes the rows stands before the
//! engine; here is where they stand in the prompt, and by what name prompts share their blocks.

use std::{ops::Range, sync::Arc};

use hanzo_engine_kernels::BLOCK_TOKENS;
use serde::{Deserialize, Serialize};

use crate::error::RequestError;

/// Tokens of a prompt whose embeddings are given. The tokens themselves are placeholders: a template's, for instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MediaSpan {
    /// First of the tokens.
    pub first: usize,
    /// How many they are; at least 1.
    pub tokens: usize,
    /// Names what the rows were made of, and how: a cryptographic digest, because equal names share blocks of the cache.
    pub digest: [u8; 32],
    /// `(tokens, hidden)`, as the network's first layer takes them; empty where they are still to be made of `pixels`.
    pub rows: Arc<[f32]>,
    /// A frame that the model's tower makes the rows of; empty where they are there.
    pub pixels: Arc<[u8]>,
}

impl MediaSpan {
    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.rows.len() / self.tokens
    }

    /// Its rows are still to be made.
    pub fn is_to_be_seen(&self) -> bool {
        !self.pixels.is_empty()
    }

    fn range(&self) -> Range<usize> {
        self.first..self.first + self.tokens
    }

    /// Those of the span's tokens that lie in a range of the prompt's.
    pub fn within(&self, tokens: &Range<usize>) -> Range<usize> {
        let own = self.range();
        let start = own.start.max(tokens.start);
        start..own.end.min(tokens.end).max(start)
    }

    /// Rows of the span, for a range of the prompt's tokens within it.
    pub fn elements(&self, tokens: &Range<usize>) -> Range<usize> {
        let width = self.width();
        (tokens.start - self.first) * width..(tokens.end - self.first) * width
    }
}

/// Whether spans fit a prompt of so many tokens, on a model with rows of so many numbers, whose tower makes so many rows of a
/// frame of so many bytes.
///
/// # Errors
/// [`RequestError::Invalid`] that says which does not, and why.
pub fn check(
    spans: &[MediaSpan],
    prompt_tokens: usize,
    hidden: usize,
    frame: Option<(usize, usize)>,
) -> Result<(), RequestError> {
    let mut end = 0;
    for (index, span) in spans.iter().enumerate() {
        let refuse = |reason: &str| Err(RequestError::invalid("media", format!("span {index} {reason}")));
        if span.tokens == 0 || span.first.checked_add(span.tokens).is_none_or(|end| end > prompt_tokens) {
            return refuse("is empty or reaches beyond the prompt");
        }
        if span.first < end {
            return refuse("begins before the end of the one before");
        }
        if span.is_to_be_seen() && span.rows.is_empty() {
            if frame != Some((span.tokens, span.pixels.len())) {
                return refuse("is no frame of this model's tower");
            }
            end = span.first + span.tokens;
            continue;
        }
        if span.rows.is_empty() || !span.rows.len().is_multiple_of(span.tokens) {
            return refuse("has no whole row for each of its tokens");
        }
        if span.width() != hidden {
            return refuse(&format!("is in rows of {} numbers, and the model's have {hidden}", span.width()));
        }
        end = span.first + span.tokens;
    }
    Ok(())
}

/// What a block's name depends on besides its tokens: the media in it, and which part of them.
pub fn salt_of_block(spans: &[MediaSpan], block: usize) -> Vec<u8> {
    let tokens = block * BLOCK_TOKENS..(block + 1) * BLOCK_TOKENS;
    let mut salt = Vec::new();
    for span in spans {
        let within = span.within(&tokens);
        if !within.is_empty() {
            salt.extend([within.start - tokens.start, within.len()].map(|n| n as u8));
            salt.extend(((within.start - span.first) as u64).to_le_bytes());
            salt.extend(span.digest);
        }
    }
    salt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: usize, tokens: usize, digest: u8) -> MediaSpan {
        MediaSpan {
            first,
            tokens,
            digest: [digest; 32],
            rows: vec![0.0; 4 * tokens].into(),
            pixels: Arc::default(),
        }
    }

    #[test]
    fn spans_lie_in_the_prompt_one_after_the_other() {
        assert_eq!(check(&[], 1, 4, None), Ok(()));
        assert_eq!(check(&[span(0, 3, 1), span(3, 2, 1)], 5, 4, None), Ok(()));
        for (spans, prompt_tokens) in [
            (vec![span(0, 3, 1), span(2, 2, 1)], 5),
            (vec![span(3, 3, 1)], 5),
            (vec![span(usize::MAX, 1, 1)], 5),
            (vec![MediaSpan { tokens: 0, ..span(1, 1, 1) }], 5),
            (vec![MediaSpan { tokens: 3, ..span(1, 2, 1) }], 5),
            (vec![MediaSpan { rows: Vec::new().into(), ..span(1, 2, 1) }], 5),
            (vec![MediaSpan { rows: vec![0.0; 16].into(), ..span(1, 2, 1) }], 5),
        ] {
            assert!(check(&spans, prompt_tokens, 4, None).is_err(), "{spans:?}");
        }
    }

    #[test]
    fn frames_are_those_of_the_model_s_tower() {
        let frame = |tokens, bytes| {
            let span =
                MediaSpan { rows: Arc::default(), pixels: vec![0; bytes].into(), ..span(1, tokens, 1) };
            [span]
        };
        assert_eq!(check(&frame(2, 12), 5, 4, Some((2, 12))), Ok(()));
        assert!(check(&frame(2, 11), 5, 4, Some((2, 12))).is_err());
        assert!(check(&frame(3, 12), 5, 4, Some((2, 12))).is_err());
        assert!(check(&frame(2, 12), 5, 4, None).is_err(), "it has none");
        assert!(check(&frame(2, 12), 2, 4, Some((2, 12))).is_err(), "beyond the prompt");
    }

    #[test]
    fn a_block_s_salt_is_of_its_part_of_the_media() {
        let spans = [span(10, 30, 7)];
        assert!(salt_of_block(&spans, 3).is_empty());
        let salts: Vec<Vec<u8>> = (0..3).map(|block| salt_of_block(&spans, block)).collect();
        assert!(salts[0] != salts[1] && salts[1] != salts[2] && salts.iter().all(|salt| !salt.is_empty()));
        assert_ne!(salt_of_block(&[span(10, 30, 8)], 1), salts[1]);
        assert_ne!(salt_of_block(&[span(11, 30, 7)], 1), salts[1], "another part of the same media");
    }
}
