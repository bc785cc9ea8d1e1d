//! Collection of a sequence's results of a step: log probabilities of its prompt, the sampled token, and the draft
//! tokens that follow it.

use std::{mem, sync::Arc};

use hanzo_engine_ops::{BLOCK_TOKENS, SampledToken};

use super::{Outcome, Sequence, Within, blocks::add_hashes};
use crate::{
    job::{Event, EventKind},
    kv::BlockPool,
    output::Purpose,
};

impl Sequence {
    /// Collects its logits of a step: first `scores` log probabilities of its prompt, then the sampled token and as
    /// many accepted draft tokens as follow. Logits that are not numbers end it.
    pub fn settle(
        &mut self,
        scores: usize,
        ends: bool,
        drawn: &mut dyn Iterator<Item = Option<SampledToken>>,
        within: Within<'_>,
        pool: &mut BlockPool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let outcome = Outcome { drafted: self.draft.len(), ..Outcome::default() };
        self.waits = false;
        if !self.score(scores, drawn, events) {
            return self.fail(outcome, events);
        }
        let Purpose::Generate(generation) = &mut self.purpose else { return outcome };
        if !generation.draws() {
            if ends {
                let finished = generation.finish_scored();
                self.emit(events, finished);
            }
            return Outcome { ends, ..outcome };
        }
        if ends { self.settle_drawn(outcome, drawn, within, pool, events) } else { outcome }
    }

    /// Collects the sampled token and as many accepted draft tokens as follow.
    fn settle_drawn(
        &mut self,
        mut outcome: Outcome,
        drawn: &mut dyn Iterator<Item = Option<SampledToken>>,
        within: Within<'_>,
        pool: &mut BlockPool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        debug_assert!(self.assumed > 0, "a token that no step drew");
        self.assumed -= 1;
        let draft = mem::take(&mut self.draft);
        let Purpose::Generate(generation) = &mut self.purpose else { return outcome };
        generation.count_drafted(draft.len());
        let drafts = generation.rewind();
        let (mut said, mut finished) = (None::<EventKind>, None);
        for at in 0..=draft.len() {
            let Purpose::Generate(generation) = &mut self.purpose else { break };
            let Some(sampled) = drawn.next().flatten() else {
                let (delta, end) = generation.undrawn(within.text);
                said.into_iter().chain(delta).chain([end]).for_each(|kind| self.emit(events, kind));
                return Outcome { ends: true, ..outcome };
            };
            outcome.tokens += 1;
            if drafts {
                generation.pass();
            }
            let accepted = draft.get(at) == Some(&sampled.token);
            if accepted {
                generation.count_accepted();
                outcome.accepted += 1;
            }
            let (delta, end) = self.take(sampled, within);
            match (&mut said, delta) {
                (Some(said), Some(delta)) => said.append(delta),
                (said, delta) => *said = said.take().or(delta),
            }
            finished = end;
            // The row after it counts only if it was sampled under the right mask.
            let accepted = accepted && self.covers(at + 1);
            // A sequence that released its blocks has nothing in the cache.
            if accepted && !self.tables.is_empty() {
                self.computed += 1;
            }
            if !accepted || finished.is_some() {
                break;
            }
        }
        outcome.ends = finished.is_some();
        for kind in [said, finished].into_iter().flatten() {
            self.emit(events, kind);
        }
        self.draft = draft;
        self.draft.clear();
        self.publish(pool);
        if outcome.ends { outcome } else { self.fit_context(outcome, within.context_tokens_max, pool) }
    }

    /// Drops tokens if they fill the context, and switches to the frequencies for long texts if it has become one.
    fn fit_context(&mut self, outcome: Outcome, context_tokens_max: usize, pool: &mut BlockPool) -> Outcome {
        let shifted = self.shift_context(context_tokens_max, pool);
        let lengthened = self.lengthen(pool);
        Outcome { shifted, lengthened, ..outcome }
    }

    /// Adds a sampled token to the completion. Returns its text, and the end if it is the last.
    fn take(&mut self, sampled: SampledToken, within: Within<'_>) -> (Option<EventKind>, Option<EventKind>) {
        Arc::make_mut(&mut self.tokens).push(sampled.token);
        if self.tokens.len().is_multiple_of(BLOCK_TOKENS) {
            let root = self.rope.root(self.root);
            add_hashes(&self.tokens, &self.media, root, Arc::make_mut(&mut self.hashes));
        }
        let shifts = self.request().is_some_and(|job| job.context_shift.is_some());
        let full = !shifts && self.tokens.len() >= within.context_tokens_max;
        match &mut self.purpose {
            Purpose::Generate(generation) => generation.take(sampled, within.text, full),
            Purpose::Read(_) => (None, None),
        }
    }

    /// Whether the given row after the first was sampled under the right mask.
    fn covers(&self, row: usize) -> bool {
        matches!(&self.purpose, Purpose::Generate(generation) if generation.covers(row))
    }

    /// Takes log probabilities of prompt tokens; returns false if logits were not numbers.
    fn score(
        &mut self,
        scores: usize,
        drawn: &mut dyn Iterator<Item = Option<SampledToken>>,
        events: &mut Vec<Event>,
    ) -> bool {
        if scores == 0 {
            return true;
        }
        let scored = drawn.take(scores).map(|sampled| sampled?.logprob).collect::<Option<Vec<_>>>();
        let (Some(scored), Purpose::Generate(generation)) = (scored, &mut self.purpose) else { return false };
        generation.scoring().into_iter().for_each(|scoring| scoring.take(scored.len()));
        self.emit(events, EventKind::Scored(scored));
        true
    }

    fn fail(&mut self, outcome: Outcome, events: &mut Vec<Event>) -> Outcome {
        self.emit(events, EventKind::Failed);
        Outcome { ends: true, ..outcome }
    }
}
