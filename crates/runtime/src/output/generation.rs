//! A completion's way from logits to text: how its tokens are drawn, what a client is told of them, and when it ends.

use std::{mem, sync::Arc};

use hanzo_engine_kernels::{SampleSpecs, Sampled};

use super::{
    constraint::{Constraint, MaskWork, Taken},
    text::{Chunk, OutputText},
};
use crate::{
    job::{EventKind, FinishReason, Job, StopConditions, TokenLogprob, Usage},
    sampler::{Sampler, SamplingParams},
    text::TextModel,
};

/// The output side of one completion. What sampling needs is made with the first token.
pub struct Generation {
    terms: Arc<Terms>,
    seed: u64,
    sampler: Option<Sampler>, // from the first token on
    constraint: Option<Constraint>,
    output: OutputText,
    usage: Usage,
    unsent: Vec<u32>, // tokens whose text is held back
    unsent_logprobs: Vec<TokenLogprob>,
}

/// What the completions of a job have in common.
struct Terms {
    sampling: SamplingParams,
    stop: StopConditions,
    ends: Vec<u32>, // tokens that end a completion
    vocab: usize,
}

impl Generation {
    /// Those of a job, in order.
    pub fn of_job<'a>(job: &'a Job, text: &'a TextModel) -> impl Iterator<Item = Generation> + 'a {
        let own_ends = if job.stop.ignore_eos { &[] } else { text.eos.as_slice() };
        let terms = Arc::new(Terms {
            sampling: job.sampling.clone(),
            stop: job.stop.clone(),
            ends: own_ends.iter().chain(&job.stop.token_ids).copied().collect(),
            vocab: text.vocab,
        });
        let markers = text.reasoning.as_ref().filter(|_| job.split_reasoning);
        let open = markers.and_then(|markers| text.tokenizer.token_id(&markers.open));
        let in_reasoning = markers.is_some() && job.starts_in_reasoning;
        (0..job.choices).map(move |choice| Generation {
            terms: terms.clone(),
            seed: job.sampling.seed.wrapping_add(choice.into()),
            sampler: None,
            constraint: job
                .constraint
                .as_ref()
                .map(|grammar| Constraint::new(grammar, in_reasoning, open, &terms.ends)),
            output: OutputText::new(text, &job.stop, job.starts_in_reasoning, job.split_reasoning),
            usage: Usage { prompt_tokens: job.prompt.len() as u32, ..Usage::default() },
            unsent: Vec::new(),
            unsent_logprobs: Vec::new(),
        })
    }

    /// It begins, with so many tokens of its prompt found in the cache.
    pub fn start(&mut self, cached_tokens: u32) {
        self.usage.cached_tokens = cached_tokens;
    }

    /// Whether how its next token is drawn depends on the one before.
    pub fn reads_history(&self) -> bool {
        self.constraint.is_some() || Sampler::reads_history(&self.terms.sampling)
    }

    /// Whether it ends with the tokens it has, of which `assumed` are not known yet, whatever they are.
    pub fn is_full(&self, assumed: usize) -> bool {
        self.usage.completion_tokens as usize + assumed >= self.terms.stop.max_tokens as usize
    }

    /// Adds how its next token is drawn, after `assumed` that are not known yet, and where it is constrained the work of finding
    /// its mask.
    pub fn ask(
        &mut self,
        prompt: &[u32],
        assumed: usize,
        specs: &mut SampleSpecs,
        masks: &mut Vec<MaskWork>,
    ) {
        let drawn = self.usage.completion_tokens as usize + assumed;
        let early = drawn < self.terms.stop.min_tokens as usize;
        // An answer that has not begun has not satisfied its constraint.
        let reasons = self.constraint.as_ref().is_some_and(Constraint::in_reasoning);
        let masked = self.constraint.as_mut().filter(|_| !reasons);
        // Where there is a mask, it is the mask that says when the answer may end.
        let no_end = if masked.is_some() { false } else { early || reasons };
        let banned: &[u32] = if no_end { &self.terms.ends } else { &[] };
        let new = || Sampler::new(&self.terms.sampling, self.seed, self.terms.vocab, prompt);
        self.sampler.get_or_insert_with(new).ask(banned, specs);
        if let (Some(constraint), Some(spec)) = (masked, specs.rows.last_mut()) {
            spec.mask = Some(masks.len() as u32);
            specs.mask_words = self.terms.vocab.div_ceil(32);
            masks.push(constraint.ask(self.terms.vocab, early));
        }
    }

    /// Takes a token that was drawn; `full` when the context is. What is to be said of it: a delta, and the end.
    pub fn take(
        &mut self,
        sampled: Sampled,
        text: &TextModel,
        full: bool,
    ) -> (Option<EventKind>, Option<EventKind>) {
        let Sampled { token, logprob } = sampled;
        self.sampler.iter_mut().for_each(|sampler| sampler.remember(token));
        self.unsent.push(token);
        self.unsent_logprobs.extend(logprob);
        self.usage.completion_tokens += 1;

        let ends = self.terms.ends.contains(&token);
        let reasons = self.output.in_reasoning();
        let mut chunk = if ends { Chunk::default() } else { self.output.push(text, token) };
        let left = (reasons && !self.output.in_reasoning()).then_some(chunk.text.as_str());
        let taken = match &mut self.constraint {
            Some(constraint) if !ends => constraint.take(token, left),
            _ => Taken::Open,
        };
        if let Taken::Stuck(reason) = taken {
            return (None, Some(EventKind::ConstraintFailed { reason }));
        }
        self.usage.reasoning_tokens += u32::from(self.output.in_reasoning());

        let reason = if ends || chunk.stop.is_some() || taken == Taken::Complete {
            Some(FinishReason::Stop)
        } else if self.usage.completion_tokens >= self.terms.stop.max_tokens || full {
            Some(FinishReason::Length)
        } else {
            None
        };
        if reason.is_some() && chunk.stop.is_none() {
            let held_back = self.output.finish(text);
            chunk.text.push_str(&held_back.text);
            chunk.reasoning.push_str(&held_back.reasoning);
            chunk.stop = held_back.stop;
        }
        let says = reason.is_some() || !chunk.text.is_empty() || !chunk.reasoning.is_empty();
        // Log probabilities are of what the client sees: not of the end, and not of what a stop string cut off.
        let shown = self.unsent.len() - usize::from(ends);
        let shown = shown - self.output.absent_tokens(text, &self.unsent[..shown]);
        let waiting = if reason.is_some() { self.unsent.len() } else { shown };
        let delta = says.then(|| {
            let (unsent, logprobs) = (
                self.unsent.split_off(waiting),
                self.unsent_logprobs.split_off(shown.min(self.unsent_logprobs.len())),
            );
            EventKind::Delta {
                text: chunk.text,
                reasoning: chunk.reasoning,
                tokens: mem::replace(&mut self.unsent, unsent),
                logprobs: mem::replace(&mut self.unsent_logprobs, logprobs),
            }
        });
        let finished = reason.map(|reason| {
            let reason = if chunk.stop.is_some() { FinishReason::Stop } else { reason };
            EventKind::Finished { reason, stop_string: chunk.stop, usage: self.usage }
        });
        (delta, finished)
    }
}

impl Generation {
    /// No token could be drawn: what is to be said of that.
    pub fn undrawn(&self) -> EventKind {
        match self.constraint.as_ref().map_or(Taken::Open, Constraint::undrawn) {
            Taken::Open => EventKind::Failed,
            Taken::Stuck(reason) => EventKind::ConstraintFailed { reason },
            Taken::Complete => {
                EventKind::Finished { reason: FinishReason::Stop, stop_string: None, usage: self.usage }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{job::JobId, text::tests::demo};

    #[test]
    fn completions_that_wait_share_their_terms_and_have_no_sampler() {
        let job = Job {
            id: JobId(1),
            prompt: (0..100).collect(),
            choices: 3,
            sampling: SamplingParams { repetition_penalty: 1.1, logprobs: Some(1), ..Default::default() },
            stop: StopConditions { max_tokens: 40, ..StopConditions::default() },
            ..Job::default()
        };
        let completions: Vec<Generation> = Generation::of_job(&job, &demo()).collect();
        assert_eq!(completions.len(), 3);
        for completion in &completions {
            assert!(Arc::ptr_eq(&completion.terms, &completions[0].terms));
            assert!(completion.sampler.is_none());
        }
    }
}
