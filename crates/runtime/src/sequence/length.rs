//! Rotary frequencies of a sequence, for models with other frequencies for texts longer than the original context
//! (LongRoPE). All keys of a sequence use the same frequencies: when it grows beyond the original context, all keys
//! are computed again.

use std::sync::Arc;

use super::{Sequence, full_block_hashes};
use crate::{
    kv::{BlockHash, BlockPool},
    output::Purpose,
};

/// Rotary frequencies of a sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum RopeLength {
    /// The model has only one set.
    #[default]
    Any,
    /// Frequencies for texts within the original context.
    Short {
        /// Length of the original context in tokens.
        original: usize,
    },
    /// Frequencies for longer texts.
    Long {
        /// Length of the original context in tokens.
        original: usize,
    },
}

impl RopeLength {
    /// Frequencies for a text of `tokens` tokens.
    pub(super) fn of(original: Option<usize>, tokens: usize) -> RopeLength {
        match original {
            None => RopeLength::Any,
            Some(original) if tokens > original => RopeLength::Long { original },
            Some(original) => RopeLength::Short { original },
        }
    }

    /// Updates the choice for a text of `tokens` tokens. Returns whether it changed.
    pub(super) fn take(&mut self, tokens: usize) -> bool {
        let (RopeLength::Short { original } | RopeLength::Long { original }) = *self else { return false };
        let before = matches!(self, RopeLength::Long { .. });
        *self = RopeLength::of(Some(original), tokens);
        before != matches!(self, RopeLength::Long { .. })
    }

    /// Maximum tokens with these frequencies: no row follows that many.
    pub(super) fn end(&self, context_tokens_max: usize) -> usize {
        match self {
            RopeLength::Short { original } => context_tokens_max.min(original + 1),
            RopeLength::Any | RopeLength::Long { .. } => context_tokens_max,
        }
    }

    /// Parent of the first block: keys with different frequencies must not be shared.
    pub(super) fn root(&self, root: BlockHash) -> BlockHash {
        match self {
            RopeLength::Any => root,
            RopeLength::Short { .. } => root.salted(b"short rope"),
            RopeLength::Long { .. } => root.salted(b"long rope"),
        }
    }
}

impl Sequence {
    /// Whether it uses the frequencies for long texts.
    pub fn is_long(&self) -> bool {
        matches!(self.rope, RopeLength::Long { .. })
    }

    /// Switches to the frequencies for long texts if it has grown beyond the original context. Then it releases all
    /// blocks, because its keys must be computed again. Returns whether it did.
    pub(super) fn lengthen(&mut self, pool: &mut BlockPool) -> bool {
        if !self.rope.take(self.tokens.len()) {
            return false;
        }
        debug_assert_eq!(self.assumed, 0, "no row follows the last token of a short text");
        self.leave(pool);
        self.name_blocks();
        true
    }

    /// Drops tokens if they fill the context (context shift), and releases all blocks: the rest enters anew.
    /// Returns whether it did.
    pub(super) fn shift_context(&mut self, context_tokens_max: usize, pool: &mut BlockPool) -> bool {
        let shift = self.request().and_then(|job| job.context_shift);
        let Some(shift) = shift.filter(|_| self.tokens.len() >= context_tokens_max) else { return false };
        debug_assert_eq!(self.assumed, 0, "no row follows the token that fills a context");
        self.leave(pool);
        let dropped = shift.dropped(self.tokens.len(), context_tokens_max);
        Arc::make_mut(&mut self.tokens).drain(dropped);
        self.prompt_tokens = self.prompt_tokens.min(self.tokens.len());
        self.rope.take(self.tokens.len());
        self.name_blocks();
        if let Purpose::Generate(generation) = &mut self.purpose {
            generation.forget_places(self.tokens.len());
        }
        true
    }

    /// Computes the hashes of its full blocks.
    fn name_blocks(&mut self) {
        let root = self.rope.root(self.root);
        self.hashes = Arc::new(full_block_hashes(&self.tokens, &self.media, root));
    }
}
