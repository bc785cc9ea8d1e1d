//! Scoring of a prompt: log probabilities of its tokens. Rows are scored as their chunk is computed, and the scores
//! of a chunk are sent with it, so memory does not grow with the prompt.

use std::ops::Range;

use hanzo_engine_ops::{SampleSpec, SampleSpecs};

/// Progress of scoring for one completion.
#[derive(Clone, Copy, Debug)]
pub struct ScoringProgress {
    top: u32,    // alternatives for each token
    last: usize, // last token of the prompt: its row scores nothing
    done: usize, // rows already scored, from the first on
}

impl ScoringProgress {
    /// Starts scoring a prompt of `prompt_tokens` tokens.
    pub fn new(top: u8, prompt_tokens: usize) -> ScoringProgress {
        ScoringProgress { top: top.into(), last: prompt_tokens - 1, done: 0 }
    }

    /// Rows before this one need no logits.
    pub fn done(&self) -> usize {
        if self.done == self.last { usize::MAX } else { self.done }
    }

    /// Rows of this range that are to be scored.
    pub fn of(&self, rows: &Range<usize>) -> Range<usize> {
        let first = rows.start.max(self.done);
        first..rows.end.min(self.last).max(first)
    }

    /// Number of the `rows` rows from `first` on that one step may compute if at most `logits` of them may have
    /// logits.
    pub fn rows_within(&self, first: usize, rows: usize, logits: usize) -> usize {
        let scored = self.of(&(first..first + rows));
        if scored.len() <= logits { rows } else { scored.start + logits - first }
    }

    /// Adds the scoring of rows whose next tokens are `next`.
    pub fn ask(&self, next: &[u32], specs: &mut SampleSpecs) {
        let (logprobs, end) = (Some(self.top), specs.adjustments.len() as u32);
        let spec = |&token| SampleSpec {
            given: Some(token),
            logprobs,
            adjustments: end..end,
            ..SampleSpec::default()
        };
        specs.rows.extend(next.iter().map(spec));
    }

    /// Counts `rows` more rows as scored.
    pub fn take(&mut self, rows: usize) {
        self.done += rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_but_the_last_is_scored_once() {
        let mut scoring = ScoringProgress::new(0, 100);
        assert_eq!(scoring.rows_within(0, 100, 16), 16);
        assert_eq!(scoring.of(&(0..16)), 0..16);
        scoring.take(16);
        // After losing its blocks it starts again: earlier rows need no logits.
        assert_eq!(scoring.rows_within(0, 64, 16), 32);
        assert_eq!((scoring.of(&(0..32)), scoring.done()), (16..32, 16));
        scoring.take(16);
        assert_eq!(scoring.rows_within(32, 4, 16), 4);
        scoring.take(66);
        assert_eq!(scoring.rows_within(98, 2, 16), 2);
        assert_eq!(scoring.rows_within(98, 2, 0), 0);
        assert_eq!(scoring.of(&(98..100)), 98..99);
        scoring.take(1);
        assert_eq!((scoring.rows_within(99, 1, 0), scoring.of(&(99..100)).len()), (1, 0));
        assert_eq!((scoring.of(&(0..10)).len(), scoring.of(&(100..101)).len()), (0, 0));
        assert_eq!(ScoringProgress::new(3, 1).of(&(0..1)).len(), 0);
    }
}
