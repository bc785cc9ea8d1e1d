//! Which frequencies of a rotary embedding turn a sequence, where texts that are longer than the original context have their own
//! (LongRoPE). One choice holds for all keys of a sequence: when it grows beyond the original context, all are computed anew.

use std::sync::Arc;

use super::{Sequence, full_block_hashes};
use crate::{
    kv::{BlockHash, BlockPool},
    output::Purpose,
};

/// The frequencies that turn a sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum RopeLength {
    /// The only ones.
    #[default]
    Any,
    /// Those of texts within the original context.
    Short {
        /// Tokens of the original context.
        original: usize,
    },
    /// Those of longer texts.
    Long {
        /// Tokens of the original context.
        original: usize,
    },
}

impl RopeLength {
    /// The choice for a text of so many tokens.
    pub(super) fn of(original: Option<usize>, tokens: usize) -> RopeLength {
        match original {
            None => RopeLength::Any,
            Some(original) if tokens > original => RopeLength::Long { original },
            Some(original) => RopeLength::Short { original },
        }
    }

    /// Chooses anew for a text of so many tokens; says whether that changes the frequencies.
    pub(super) fn take(&mut self, tokens: usize) -> bool {
        let (RopeLength::Short { original } | RopeLength::Long { original }) = *self else { return false };
        let before = matches!(self, RopeLength::Long { .. });
        *self = RopeLength::of(Some(original), tokens);
        before != matches!(self, RopeLength::Long { .. })
    }

    /// Tokens that end what is computed with these frequencies: no row follows so many.
    pub(super) fn end(&self, context_tokens_max: usize) -> usize {
        match self {
            RopeLength::Short { original } => context_tokens_max.min(original + 1),
            RopeLength::Any | RopeLength::Long { .. } => context_tokens_max,
        }
    }

    /// The name before the first block: keys that are turned by other frequencies are other keys.
    pub(super) fn root(&self, root: BlockHash) -> BlockHash {
        match self {
            RopeLength::Any => root,
            RopeLength::Short { .. } => root.salted(b"short rope"),
            RopeLength::Long { .. } => root.salted(b"long rope"),
        }
    }
}

impl Sequence {
    /// Whether the frequencies for long texts turn it.
    pub fn is_long(&self) -> bool {
        matches!(self.rope, RopeLength::Long { .. })
    }

    /// Takes the frequencies for long texts where it has grown beyond the original context, and gives all blocks back: their
    /// keys are computed again. Says whether it did.
    pub(super) fn lengthen(&mut self, pool: &mut BlockPool) -> bool {
        if !self.rope.take(self.tokens.len()) {
            return false;
        }
        debug_assert_eq!(self.assumed, 0, "no row follows the last token of a short text");
        self.leave(pool);
        self.name_blocks();
        true
    }

    /// Drops tokens where they fill the context, and gives all blocks back: what is left enters anew. Says whether it did.
    pub(super) fn shift_context(&mut self, context_tokens_max: usize, pool: &mut BlockPool) -> bool {
        let Some(shift) = self.shift.filter(|_| self.tokens.len() >= context_tokens_max) else {
            return false;
        };
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

    /// Names the full blocks of its tokens.
    fn name_blocks(&mut self) {
        let root = self.rope.root(self.root);
        self.hashes = Arc::new(full_block_hashes(&self.tokens, &self.media, root));
    }
}
