//! Output of a completion, from logits to text: sampling of its tokens, the events for the client, and its end.

use std::{collections::VecDeque, mem, sync::Arc};

use hanzo_engine_formats::End;
use hanzo_engine_ops::{SampleSpecs, SampledToken};

use super::{
    budget::ReasoningBudget,
    constraint::{Constraint, Effect, MaskWork},
    scoring::ScoringProgress,
    text::{Chunk, OutputText},
};
use crate::{
    job::{CallDelta, EventKind, FinishReason, Job, TextLogprob, TokenLogprob, Usage},
    limits::DRAFT_TOKENS_MAX,
    sampler::Sampler,
    speculation::{DraftOdds, Lookup, Rates, Speculation},
    text::TextModel,
    tokenizer::Tokenizer,
};

/// Output side of a completion. The sampler is created with the first token.
pub struct Generation {
    terms: Arc<Terms>,
    seed: u64,
    sampler: Option<Sampler>,    // created at the first token
    before: Option<Sampler>,     // copy from before the draft tokens of the last step, if there were any
    lookup: Option<Box<Lookup>>, // created at the first draft
    scoring: Option<ScoringProgress>,
    constraint: Option<Constraint>,
    output: OutputText,
    budget: Option<ReasoningBudget>, // until the section is closed
    usage: Usage,
    unsent: Vec<u32>,                         // tokens whose text is held back
    waiting_logprobs: VecDeque<TokenLogprob>, // of tokens whose part in the text is not certain yet
}

/// Job and what follows from it, shared by its completions.
struct Terms {
    job: Arc<Job>,
    ends: Vec<u32>,  // tokens that end a completion
    never: Vec<u32>, // tokens that are never sampled: the model's end tokens, if they are ignored
    later: Vec<u32>, // `ends` and `never`
    tokenizer: Arc<Tokenizer>,
    vocab: usize,
    speculation: Speculation,
}

impl Generation {
    /// Creates the completions of a job, in order.
    pub fn of_job<'a>(
        job: &'a Arc<Job>,
        text: &'a TextModel,
        speculation: Speculation,
    ) -> impl Iterator<Item = Generation> + 'a {
        let own_ends = if job.stop.ignore_eos { &[] } else { text.eos.as_slice() };
        let ends: Vec<u32> = own_ends.iter().chain(&job.stop.token_ids).copied().collect();
        let never: &[u32] = if job.stop.ignore_eos { &text.eos } else { &[] };
        let never: Vec<u32> = never.iter().copied().filter(|token| !ends.contains(token)).collect();
        let terms = Arc::new(Terms {
            job: job.clone(),
            later: ends.iter().chain(&never).copied().collect(),
            ends,
            never,
            tokenizer: text.tokenizer.clone(),
            vocab: text.vocab,
            speculation,
        });
        let markers = text.reasoning.as_ref().filter(|_| job.split_reasoning);
        let open = markers
            .filter(|_| !job.reasoning_is_over)
            .and_then(|markers| text.tokenizer.token_id(&markers.open));
        let in_reasoning = markers.is_some() && job.starts_in_reasoning;
        let scoring = job.prompt_logprobs.map(|top| ScoringProgress::new(top, job.prompt.len()));
        (0..job.choices).map(move |choice| {
            let constraint = job.constraint.as_ref();
            let mut generation = Generation {
                terms: terms.clone(),
                seed: job.sampling.seed.wrapping_add(choice.into()),
                sampler: None,
                before: None,
                lookup: None,
                scoring: scoring.filter(|_| choice == 0),
                constraint: constraint
                    .map(|grammar| Constraint::new(grammar, in_reasoning, open, &terms.ends, terms.vocab)),
                output: OutputText::of_job(text, job),
                budget: ReasoningBudget::of_job(job, text),
                usage: Usage { prompt_tokens: job.prompt.len() as u32, ..Usage::default() },
                unsent: Vec::new(),
                waiting_logprobs: VecDeque::new(),
            };
            generation.bound_reasoning();
            generation
        })
    }

    /// Job that it answers.
    pub fn job(&self) -> &Job {
        &self.terms.job
    }

    /// Starts, with `cached_tokens` of its prompt found in the prefix cache.
    pub fn start(&mut self, cached_tokens: u32) {
        self.usage.cached_tokens = cached_tokens;
        self.constraint.iter_mut().for_each(Constraint::prepare);
    }

    /// Whether sampling or drafting of its next token depends on the one before.
    pub fn reads_history(&self) -> bool {
        self.constraint.is_some()
            || self.budget.is_some()
            || self.speculates()
            || Sampler::reads_history(&self.terms.job.sampling)
    }

    /// Whether tokens are drafted for it. Not while its reasoning is bounded, or with mirostat, where each token's
    /// probability affects the next.
    fn speculates(&self) -> bool {
        self.terms.speculation == Speculation::Ngram
            && self.budget.is_none()
            && self.terms.job.sampling.mirostat.is_none()
    }

    /// Whether its job's prompt is scored, by the first completion.
    pub fn prompt_is_scored(&self) -> bool {
        self.terms.job.prompt_logprobs.is_some()
    }

    /// Scoring of its prompt.
    pub fn scoring(&mut self) -> Option<&mut ScoringProgress> {
        self.scoring.as_mut()
    }

    /// Rows before this one need not be computed if they are cached.
    pub fn skippable_rows(&self) -> usize {
        self.scoring.as_ref().map_or(usize::MAX, ScoringProgress::done)
    }

    /// Whether it samples any token.
    pub fn draws(&self) -> bool {
        self.terms.job.stop.max_tokens > 0
    }

    /// Drafts at most `most` tokens to follow `tokens`, which are all known, each as likely to be
    /// accepted as the odds demand.
    pub fn draft(
        &mut self,
        tokens: &[u32],
        most: usize,
        DraftOdds { least, rates }: DraftOdds<'_>,
        draft: &mut Vec<u32>,
    ) {
        let most = self.drafts_most(most);
        if most == 0 {
            return;
        }
        let job = &self.terms.job;
        let new = || {
            let tokens_max = job.prompt.len() + job.stop.max_tokens as usize;
            Box::new(Lookup::new(job.prediction.clone(), job.prompt.len(), tokens_max, rates))
        };
        self.lookup.get_or_insert_with(new).draft(tokens, most, least, draft);
        self.cut_draft(draft);
    }

    /// Restarts prompt lookup after a context shift, with `tokens` tokens at new places.
    pub fn forget_places(&mut self, tokens: usize) {
        let Some(lookup) = self.lookup.take() else { return };
        let job = &self.terms.job;
        let most = tokens + job.stop.max_tokens as usize;
        self.lookup = Some(Box::new(Lookup::new(job.prediction.clone(), tokens, most, lookup.rates())));
    }

    /// Cuts a draft down to what its constraint allows.
    pub fn cut_draft(&self, draft: &mut Vec<u32>) {
        if let Some(constraint) = self.constraint.as_ref().filter(|_| !draft.is_empty()) {
            constraint.cut(draft);
        }
    }

    /// Whether the mask of its next token is being computed in the background.
    pub fn awaits_mask(&self) -> bool {
        self.constraint.as_ref().is_some_and(Constraint::is_pending)
    }

    /// Whether a token may be taken that was sampled after `after` others of the same step.
    pub fn covers(&self, after: usize) -> bool {
        self.constraint.as_ref().is_none_or(|constraint| constraint.covers(after))
    }

    /// Maximum number of draft tokens for it, at most `most`.
    pub fn drafts_most(&self, most: usize) -> usize {
        let left = self.terms.job.stop.max_tokens.saturating_sub(self.usage.completion_tokens + 1) as usize;
        if self.speculates() { most.min(left).min(DRAFT_TOKENS_MAX) } else { 0 }
    }

    /// Acceptance rates of its drafts.
    pub fn rates(&self) -> Option<&Rates> {
        self.lookup.as_ref().map(|lookup| lookup.rates())
    }

    /// Final event of a job that scores its prompt and generates nothing.
    pub fn finish_scored(&self) -> EventKind {
        EventKind::Finished { reason: FinishReason::Length, stop_string: None, usage: self.usage }
    }

    /// Counts draft tokens that a step has computed.
    pub fn count_drafted(&mut self, tokens: usize) {
        self.usage.draft_tokens += tokens as u32;
    }

    /// Counts an accepted draft token.
    pub fn count_accepted(&mut self) {
        self.usage.accepted_draft_tokens += 1;
    }

    /// Closes a reasoning section that is full, and drops the bound of one that is closed.
    fn bound_reasoning(&mut self) {
        let Some(budget) = &mut self.budget else { return };
        if self.output.in_reasoning() {
            budget.reached(self.usage.reasoning_tokens);
        }
        if !self.output.may_reason() && budget.forced().is_none() {
            self.budget = None;
        }
    }

    /// Whether it is certainly full with its tokens and `assumed` unknown ones.
    pub fn is_full(&self, assumed: usize) -> bool {
        self.usage.completion_tokens as usize + assumed >= self.terms.job.stop.max_tokens as usize
    }

    /// Adds the sampling of its next token, after `assumed` unknown tokens, and of the tokens after each draft
    /// token. Adds the computation of masks if it is constrained.
    pub fn ask(
        &mut self,
        prompt: &[u32],
        assumed: usize,
        draft: &[u32],
        specs: &mut SampleSpecs,
        masks: &mut Vec<MaskWork>,
    ) {
        let drawn = self.usage.completion_tokens as usize + assumed;
        let early = (self.terms.job.stop.min_tokens as usize).saturating_sub(drawn); // rows
        // An answer that has not started does not satisfy its constraint.
        let reasons = self.constraint.as_ref().is_some_and(Constraint::in_reasoning);
        let masked = self.constraint.as_mut().filter(|_| !reasons);
        let terms = &self.terms;
        let new = || Sampler::new(&terms.job.sampling, self.seed, terms.vocab, prompt, &terms.tokenizer);
        let sampler = self.sampler.get_or_insert_with(new);
        if let Some(token) = self.budget.as_ref().and_then(ReasoningBudget::forced) {
            return sampler.force(token, specs);
        }
        self.before = if draft.is_empty() { None } else { Some(sampler.clone()) };
        for ahead in 0..=draft.len() {
            // With a mask, the mask decides when the answer may end.
            let banned: &[u32] = match masked {
                Some(_) => &[],
                None if ahead < early || reasons => &self.terms.later,
                None => &self.terms.never,
            };
            sampler.ask(banned, specs);
            draft.get(ahead).iter().for_each(|&&token| sampler.remember(token));
        }
        if let Some(constraint) = masked {
            let work = constraint.ask(early, draft, masks.last());
            let first = specs.rows.len() - 1 - draft.len();
            for (ahead, spec) in specs.rows[first..].iter_mut().enumerate() {
                spec.mask = Some(work.mask(ahead));
            }
            specs.mask_words = self.terms.vocab.div_ceil(32);
            masks.push(work);
        } else if let Some(constraint) = &mut self.constraint {
            constraint.ask_nothing();
        }
    }

    /// Rolls back the sampler if the last step had draft tokens: how many of them are accepted is not known yet.
    /// Returns whether it did.
    pub fn rewind(&mut self) -> bool {
        self.constraint.iter_mut().for_each(Constraint::rewind);
        let before = self.before.take();
        let rewinds = before.is_some();
        self.sampler = before.or(self.sampler.take());
        rewinds
    }

    /// Replays the sampling of a token after [`Generation::rewind`]: that token is taken next.
    pub fn pass(&mut self) {
        self.sampler.iter_mut().for_each(Sampler::pass);
    }

    /// Takes a sampled token; `full` if the context is full. Returns a delta and the end, if there are any.
    pub fn take(
        &mut self,
        sampled: SampledToken,
        text: &TextModel,
        full: bool,
    ) -> (Option<EventKind>, Option<EventKind>) {
        self.sampler.iter_mut().for_each(|sampler| sampler.learn(&sampled));
        let SampledToken { token, logprob, .. } = sampled;
        self.unsent.push(token);
        self.usage.completion_tokens += 1;

        let ends = self.terms.ends.contains(&token);
        self.waiting_logprobs.extend(logprob.filter(|_| !ends));
        let reasons = self.output.in_reasoning();
        let mut chunk = if ends { Chunk::default() } else { self.output.push(text, token) };
        let left = (reasons && !self.output.in_reasoning()).then_some(chunk.text.as_str());
        let taken = match &mut self.constraint {
            Some(constraint) if !ends => constraint.take(token, left),
            _ => Effect::Open,
        };
        if let Effect::Stuck(reason) = taken {
            return (None, Some(EventKind::ConstraintFailed { reason }));
        }
        self.usage.reasoning_tokens += u32::from(self.output.in_reasoning());
        if self.budget.as_mut().is_some_and(ReasoningBudget::advance) {
            self.budget = None;
        }
        self.bound_reasoning();

        let over = taken == Effect::Complete || self.output.has_all_calls();
        let reason = if ends || chunk.stop.is_some() || over {
            Some(FinishReason::Stop)
        } else if self.usage.completion_tokens >= self.terms.job.stop.max_tokens || full {
            Some(FinishReason::Length)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.finish_text(text, reason, &mut chunk);
        }
        let logprobs = self.settled_logprobs(text);
        // The first token is reported at once, even if its text is held back: it marks the end of the prefill.
        let says = reason.is_some()
            || self.usage.completion_tokens == 1
            || !logprobs.is_empty()
            || !chunk.is_empty();
        let shown = self.unsent.len() - usize::from(ends);
        let shown = shown - self.output.absent_tokens(text, &self.unsent[..shown]);
        let waiting = if reason.is_some() { self.unsent.len() } else { shown };
        let delta = says.then(|| {
            let unsent = self.unsent.split_off(waiting);
            EventKind::Delta {
                text: chunk.text,
                reasoning: chunk.reasoning,
                calls: chunk.calls,
                tokens: mem::replace(&mut self.unsent, unsent),
                logprobs,
            }
        });
        let finished = reason.map(|reason| self.finished(reason, chunk.stop));
        (delta, finished)
    }
}

impl Generation {
    /// Adds the text that was held back, because the completion ends.
    fn finish_text(&mut self, text: &TextModel, reason: FinishReason, chunk: &mut Chunk) {
        if chunk.stop.is_some() {
            return;
        }
        let end = if reason == FinishReason::Length { End::Cut } else { End::Own };
        let held_back = self.output.finish(text, end);
        chunk.text.push_str(&held_back.text);
        chunk.reasoning.push_str(&held_back.reasoning);
        CallDelta::append(&mut chunk.calls, held_back.calls);
        chunk.stop = held_back.stop;
    }

    /// Final event.
    fn finished(&self, reason: FinishReason, stop: Option<String>) -> EventKind {
        let reason = match reason {
            _ if stop.is_some() => FinishReason::Stop,
            FinishReason::Stop if self.output.has_calls() => FinishReason::ToolCalls,
            reason => reason,
        };
        EventKind::Finished { reason, stop_string: stop, usage: self.usage }
    }

    /// Log probabilities of tokens whose part in the text has become certain and is not empty.
    fn settled_logprobs(&mut self, text: &TextModel) -> Vec<TextLogprob> {
        let mut logprobs = Vec::new();
        for shown in self.output.take_settled() {
            let Some(logprob) = self.waiting_logprobs.pop_front().filter(|_| !shown.is_empty()) else {
                continue;
            };
            let own = text.tokenizer.token_bytes(logprob.token);
            // A cut character is shown as U+FFFD; the token's own bytes say more.
            let replaced = std::str::from_utf8(own).is_err() && shown == "\u{fffd}".as_bytes();
            let whole = own == shown || replaced;
            logprobs.push(TextLogprob { logprob, part: (!whole).then_some(shown) });
        }
        logprobs
    }

    /// Events for when no token could be sampled: held-back text and its tokens, if there are any, and the end.
    pub fn undrawn(&mut self, text: &TextModel) -> (Option<EventKind>, EventKind) {
        match self.constraint.as_ref().map_or(Effect::Open, Constraint::undrawn) {
            Effect::Open => (None, EventKind::Failed),
            Effect::Stuck(reason) => (None, EventKind::ConstraintFailed { reason }),
            Effect::Complete => {
                let mut chunk = Chunk::default();
                self.finish_text(text, FinishReason::Stop, &mut chunk);
                let logprobs = self.settled_logprobs(text);
                let (says, stop) = (!chunk.is_empty() || !self.unsent.is_empty(), chunk.stop.take());
                let delta = says.then(|| EventKind::Delta {
                    text: chunk.text,
                    reasoning: chunk.reasoning,
                    calls: chunk.calls,
                    tokens: mem::take(&mut self.unsent),
                    logprobs,
                });
                (delta, self.finished(FinishReason::Stop, stop))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        job::{CallReading, JobId, StopConditions, Tool, ToolFormat},
        sampler::SamplingParams,
        text::tests::{demo, demo_with},
    };

    /// Text, reasoning and usage of a completion if the model generates the tokens of `said`.
    fn run(job: &Job, said: &str) -> (String, String, Usage) {
        run_as(&demo(), job, said)
    }

    fn run_as(text: &TextModel, job: &Job, said: &str) -> (String, String, Usage) {
        let (mut answer, mut reasoned, mut used) = (String::new(), String::new(), Usage::default());
        for event in events_of(text, job, said) {
            match event {
                EventKind::Delta { text, reasoning, .. } => {
                    answer.push_str(&text);
                    reasoned.push_str(&reasoning);
                }
                EventKind::Finished { usage, .. } => used = usage,
                other => panic!("{other:?}"),
            }
        }
        (reasoned, answer, used)
    }

    fn events_of(text: &TextModel, job: &Job, said: &str) -> Vec<EventKind> {
        let mut said = text.tokenizer.encode(said, false).expect("tokens").into_iter();
        let mut generation =
            Generation::of_job(&job.into(), text, Speculation::Off).next().expect("one completion");
        let mut events = Vec::new();
        loop {
            let mut specs = SampleSpecs::default();
            generation.ask(&[1], 0, &[], &mut specs, &mut Vec::new());
            // The model's own token has the largest logit.
            let mut logits = vec![0.0; text.vocab];
            logits[said.as_slice().first().copied().unwrap_or(text.eos[0]) as usize] = 50.0;
            let (mut draws, mut drawn) = (hanzo_engine_ops::Draws::default(), Vec::new());
            draws.draw(&specs, &mut logits);
            let ticket = draws.submit();
            draws.wait(ticket, &mut drawn);
            let sampled = drawn.pop().flatten().expect("a token");
            if specs.adjustments.is_empty() {
                said.next();
            }
            let (delta, finished) = generation.take(sampled, text, false);
            let over = finished.is_some();
            events.extend(delta.into_iter().chain(finished));
            if over {
                return events;
            }
        }
    }

    #[test]
    fn log_probabilities_are_of_the_answers_text_and_calls_are_told_once() {
        let text = demo();
        let tool = |name: &str| Tool { name: name.into(), parameters: serde_json::json!({}), strict: false };
        let call =
            "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"a \\\"b\\\"\"}}\n</tool_call>";
        let said =
            format!("<think>\nHm, so 42.\n</think>\n\nThe answer 😀 is 42. <b> Look:\n\n{call}\n\nDone 😀.");
        let most = text.tokenizer.encode(&said, false).expect("tokens").len() as u32 + 1;
        for (tools, stop) in [(true, None), (false, None), (true, Some("wer")), (true, Some("42. <"))] {
            for max_tokens in 1..=most {
                let strings = stop.iter().map(|&stop: &&str| stop.to_owned()).collect();
                let job = Job {
                    prompt: [1].into(),
                    sampling: SamplingParams { logprobs: Some(1), ..SamplingParams::default() },
                    stop: StopConditions { max_tokens, strings, ..StopConditions::default() },
                    split_reasoning: true,
                    calls: tools.then(|| CallReading {
                        format: ToolFormat::Hermes,
                        tools: [tool("look")].into(),
                        required: false,
                        parallel: true,
                    }),
                    ..Job::default()
                };
                let (mut answer, mut shown, mut arguments) = (String::new(), Vec::new(), String::new());
                for event in events_of(&text, &job, &said) {
                    let EventKind::Delta { text: more, calls, logprobs, .. } = event else { continue };
                    answer.push_str(&more);
                    arguments.extend(calls.into_iter().map(|call| call.arguments));
                    for TextLogprob { logprob, part } in logprobs {
                        let own = || text.tokenizer.token_bytes(logprob.token).to_vec();
                        shown.extend(part.unwrap_or_else(own));
                    }
                }
                assert_eq!(String::from_utf8_lossy(&shown), answer, "{tools} {stop:?} {max_tokens}");
                // Whitespace around a call is not checked here.
                let whole = "The answer 😀 is 42. <b> Look:Done 😀.";
                let told = answer.trim_end_matches('\u{fffd}').replace('\n', "");
                assert!(!tools || whole.starts_with(&told), "{answer:?}");
                assert!(r#"{"at": "a \"b\""}"#.starts_with(&arguments), "{arguments}");
            }
        }
    }

    #[test]
    fn a_reasoning_section_that_is_full_is_closed_and_the_answer_goes_on() {
        let thought = "one two three four five six seven eight nine ten";
        let stop = StopConditions { max_tokens: 200, ..StopConditions::default() };
        let of = |reasoning_tokens_max, starts_in_reasoning| Job {
            prompt: [1].into(),
            stop: stop.clone(),
            starts_in_reasoning,
            split_reasoning: true,
            reasoning_tokens_max,
            ..Job::default()
        };
        let whole = format!("{thought}\n</think>\n\nForty-two.");
        let (reasoned, answer, usage) = run(&of(None, true), &whole);
        assert_eq!((reasoned.as_str(), answer.as_str()), (thought, "Forty-two."));
        let own = usage.reasoning_tokens;
        // Bounds that are not reached change nothing.
        assert_eq!(run(&of(Some(own + 5), true), &whole).0, thought);
        assert_eq!(run(&of(Some(own + 5), true), &whole).2, usage);
        for tokens_max in 0..own {
            let (reasoned, answer, usage) = run(&of(Some(tokens_max), true), thought);
            assert!(thought.starts_with(&reasoned) && reasoned.len() < thought.len(), "{reasoned}");
            // The model continues with the answer.
            assert!(thought.ends_with(&answer) && reasoned.len() + answer.len() == thought.len(), "{answer}");
            assert_eq!(usage.reasoning_tokens, tokens_max);
            let opened = run(&of(Some(tokens_max), false), &format!("<think>\n{thought}"));
            assert!(!opened.1.is_empty() && thought.ends_with(&opened.1), "{opened:?}");
            assert!(opened.2.reasoning_tokens <= tokens_max.max(1), "{opened:?}");
        }
        // The bound only counts the section: an answer without reasoning may be of any length.
        let (reasoned, answer, _) = run(&of(Some(0), false), thought);
        assert_eq!((reasoned.as_str(), answer.as_str()), ("", thought));
        // Without splitting there is no section.
        let unsplit = Job { split_reasoning: false, ..of(Some(0), false) };
        assert_eq!(run(&unsplit, "<think>x</think>y").1, "<think>x</think>y");
    }

    #[test]
    fn a_message_of_reasoning_that_is_full_is_ended_and_the_next_begun() {
        let text = demo_with("<|start|>{{ tools }}<|channel|>analysis<|message|>");
        let job = Job {
            prompt: [1].into(),
            stop: StopConditions { max_tokens: 200, ..StopConditions::default() },
            split_reasoning: true,
            ..Job::default()
        };
        let said = "<|channel|>analysis<|message|>one two three four five six seven eight nine ten";
        assert!(run_as(&text, &job, said).0.ends_with("ten"));
        // The opening mark is no single token here, and its end counts.
        for tokens_max in 3..8 {
            let bound = Job { reasoning_tokens_max: Some(tokens_max), ..job.clone() };
            let (reasoned, answer, usage) = run_as(&text, &bound, said);
            assert!(!reasoned.is_empty() && said.contains(&reasoned), "{reasoned}");
            assert!(!answer.is_empty() && said.ends_with(&answer), "{answer}");
            assert!(usage.reasoning_tokens >= tokens_max, "{usage:?}");
        }
    }

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
        let completions: Vec<Generation> =
            Generation::of_job(&Arc::new(job), &demo(), Speculation::Ngram).collect();
        assert_eq!(completions.len(), 3);
        for completion in &completions {
            assert!(Arc::ptr_eq(&completion.terms, &completions[0].terms));
            assert!(completion.sampler.is_none());
        }
    }
}
