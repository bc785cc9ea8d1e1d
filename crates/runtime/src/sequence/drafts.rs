//! Drafts for a completion, by prompt lookup or by a draft model.

use super::Sequence;
use crate::{
    kv::BlockPool,
    output::Purpose,
    speculation::{DraftOdds, DraftRequest, Rates},
};

impl Sequence {
    /// Request to a draft model for at most `most` tokens after its last one; `None` if prompt lookup finds some.
    /// The draft model cannot read rows without tokens, such as media.
    pub fn ask_draft(
        &mut self,
        most: usize,
        odds: DraftOdds<'_>,
        context_tokens_max: usize,
    ) -> Option<DraftRequest<'_>> {
        self.proposed.clear();
        let most = most.min(self.rope.end(context_tokens_max).saturating_sub(self.len() + 1));
        if !self.may_run() || !self.decodes() || self.assumed > 0 || !self.media.is_empty() {
            return None;
        }
        let Purpose::Generate(generation) = &mut self.purpose else { return None };
        let most = generation.drafts_most(most);
        generation.draft(&self.tokens, most, odds, &mut self.proposed);
        let looked_up = !self.proposed.is_empty();
        self.proposed.clear();
        let (order, tokens, hashes) = (self.order, &self.tokens[..], &self.hashes[..]);
        let draft = &mut self.proposed;
        (most > 0 && !looked_up).then_some(DraftRequest { order, tokens, hashes, most, draft })
    }

    /// Drafts tokens after its last one: those that the draft model proposed, or at most `most` from prompt lookup,
    /// each as likely to be accepted as `odds` demand. Returns the number of added rows. They only take free blocks, and
    /// leave `reserve` of those.
    pub fn draft(
        &mut self,
        most: usize,
        odds: DraftOdds<'_>,
        context_tokens_max: usize,
        reserve: usize,
        pool: &mut BlockPool,
    ) -> usize {
        debug_assert!(self.draft.is_empty() && self.scheduled == 1, "a draft goes with the row of a decode");
        // The last accepted token is followed by a sampled one.
        let most = most.min(self.rope.end(context_tokens_max).saturating_sub(self.len() + 1));
        if self.assumed == 0
            && let Purpose::Generate(generation) = &mut self.purpose
        {
            match self.proposed.is_empty() {
                true => generation.draft(&self.tokens, most, odds, &mut self.draft),
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

    /// Acceptance rates of its drafts.
    pub fn rates(&self) -> Option<&Rates> {
        match &self.purpose {
            Purpose::Generate(generation) => generation.rates(),
            Purpose::Read(_) => None,
        }
    }
}
