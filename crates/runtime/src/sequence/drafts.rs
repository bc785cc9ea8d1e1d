//! What may follow a completion's last token: what was said before tells, or a model is asked.

use super::Sequence;
use crate::{
    kv::BlockPool,
    output::Purpose,
    speculation::{Asked, Rates},
};

impl Sequence {
    /// What a model is asked to draft after its last token, at most so many, where what was said before tells nothing of it.
    /// Rows that are no tokens' it could not read.
    pub fn ask_draft(
        &mut self,
        most: usize,
        (least, rates): (f32, &Rates),
        context_tokens_max: usize,
    ) -> Option<Asked<'_>> {
        self.proposed.clear();
        let most = most.min(self.rope.end(context_tokens_max).saturating_sub(self.len() + 1));
        if self.held || !self.decodes() || self.assumed > 0 || !self.media.is_empty() {
            return None;
        }
        let Purpose::Generate(generation) = &mut self.purpose else { return None };
        let most = generation.drafts_most(most);
        generation.draft(&self.tokens, most, (least, rates), &mut self.proposed);
        let looked_up = !self.proposed.is_empty();
        self.proposed.clear();
        let (order, tokens, hashes) = (self.order, &self.tokens[..], &self.hashes[..]);
        let draft = &mut self.proposed;
        (most > 0 && !looked_up).then_some(Asked { order, tokens, hashes, most, draft })
    }

    /// Drafts tokens after its last: those that a model has proposed, or at most so many that were said before, each right with a
    /// chance of at least `least` as far as completions before it tell. Says how many rows they add. They take free blocks
    /// alone, and leave `reserve` of those.
    pub fn draft(
        &mut self,
        most: usize,
        (least, rates): (f32, &Rates),
        context_tokens_max: usize,
        reserve: usize,
        pool: &mut BlockPool,
    ) -> usize {
        debug_assert!(self.draft.is_empty() && self.scheduled == 1, "a draft goes with the row of a decode");
        // The last that is accepted is followed by one that is drawn.
        let most = most.min(self.rope.end(context_tokens_max).saturating_sub(self.len() + 1));
        if self.assumed == 0
            && let Purpose::Generate(generation) = &mut self.purpose
        {
            match self.proposed.is_empty() {
                true => generation.draft(&self.tokens, most, (least, rates), &mut self.draft),
                false => {
                    self.draft.extend(self.proposed.drain(..).take(most));
                    generation.cut_draft(&mut self.draft);
                }
            }
        }
        let (rows, tokens) = (1 + self.draft.len(), self.len() + self.draft.len());
        let room = self.tables.grow(pool, self.computed..self.computed + rows, tokens, reserve);
        self.draft.truncate(room - 1);
        self.scheduled += self.draft.len();
        self.draft.len()
    }

    /// How often drafts of it would have been right.
    pub fn rates(&self) -> Option<&Rates> {
        match &self.purpose {
            Purpose::Generate(generation) => generation.rates(),
            Purpose::Read(_) => None,
        }
    }
}
