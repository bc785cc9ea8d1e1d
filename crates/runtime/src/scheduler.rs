//! Scheduler: chooses the sequences of the next step. Continuous batching: in every step, each running sequence
//! gets one row (decode) or a chunk of its prompt (prefill), within one budget of rows. Sequences join and leave
//! between steps.
//!
//! Order: decodes first, so that no prompt stalls them; then started prompts; then new ones, by priority and the
//! fair queue ([`crate::fair`]). A sequence enters with blocks for all its tokens. In layers with a window it takes
//! as many as they hold at once, and reuses them. So as a rule only decodes can run out of blocks. (So can prompts
//! whose shared blocks leave the window.) Then the last sequence in the queue releases its blocks and computes them
//! again later (recompute preemption). If not all sequences fit, [`turns`] decides which one gives way.

mod turns;

use std::{collections::BTreeMap, sync::Arc};

use hanzo_engine_ops::{KernelError, SampledToken};

use crate::{
    embedding::Embedder,
    fair::{FairLine, NewJob, Order, tokens_of},
    job::{EmbedJob, Event, Job, JobId},
    kv::{BlockHash, BlockPool, Memory},
    limits::EXTRA_LOGIT_ROWS,
    output::Hidden,
    pace::Pace,
    report::StepReport,
    sequence::{Outcome, Sequence, Within},
    speculation::{DraftOdds, DraftRequest, Rates, RowCost, Speculation},
    step::{Part, Step, Yields},
    text::TextModel,
};

/// Bounds of a step. All are at least 1; `sequences_max` is at most `rows_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Maximum rows of a step.
    pub rows_max: usize,
    /// Maximum prompt rows of a step that also decodes. This bounds the time between two tokens.
    pub prefill_rows_beside_decodes: usize,
    /// Maximum prompt rows that must be computed in the same step; at most `prefill_rows_beside_decodes`.
    pub rows_together: usize,
    /// Maximum running sequences.
    pub sequences_max: usize,
    /// Maximum tokens of a sequence, prompt and completion; the pool must have enough blocks for one.
    pub context_tokens_max: usize,
    /// Source of draft tokens.
    pub speculation: Speculation,
    /// Length in tokens after which LongRoPE's frequencies for long texts apply, for models that have them.
    pub long_after: Option<usize>,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Prompt tokens received, cached or not.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hit_tokens: u64,
    /// Number of preemptions: a sequence released its blocks before its end.
    pub preemptions: u64,
    /// Draft tokens that were computed.
    pub draft_tokens: u64,
    /// Draft tokens that were accepted.
    pub accepted_draft_tokens: u64,
    /// Number of context shifts.
    pub context_shifts: u64,
}

impl Counters {
    fn count(&mut self, outcome: Outcome) {
        self.generated_tokens += outcome.tokens as u64;
        self.draft_tokens += outcome.drafted as u64;
        self.accepted_draft_tokens += outcome.accepted as u64;
        self.context_shifts += u64::from(outcome.shifted);
    }
}

impl SchedulerConfig {
    /// Maximum rows with logits in a step.
    pub fn logit_rows(&self) -> usize {
        self.sequences_max + EXTRA_LOGIT_ROWS
    }

    /// Rows with logits left over after one for each sequence.
    fn extra_logit_rows(&self, sequences: usize) -> usize {
        self.logit_rows() - sequences.min(self.sequences_max)
    }
}

/// Waiting and running sequences.
pub struct Scheduler {
    config: SchedulerConfig,
    line: FairLine,
    waiting: BTreeMap<Order, Sequence>,
    running: Vec<Sequence>, // in queue order at the start of a step
    displaced: usize,       // waiting sequences that have run before
    counters: Counters,
    row_cost: RowCost,
    model_cost: RowCost, // cost of rows drafted by a model, its own time included
    pace: Pace,
    rates: Rates, // acceptance rates of drafts, learned from finished completions
}

impl Scheduler {
    /// Creates an empty scheduler.
    pub fn new(config: SchedulerConfig) -> Scheduler {
        assert!(config.sequences_max >= 1 && config.sequences_max <= config.rows_max);
        assert!(config.prefill_rows_beside_decodes >= 1 && config.context_tokens_max >= 1);
        let running = Vec::with_capacity(config.sequences_max);
        Scheduler {
            config,
            line: FairLine::default(),
            waiting: BTreeMap::new(),
            running,
            displaced: 0,
            counters: Counters::default(),
            row_cost: RowCost::default(),
            model_cost: RowCost::default(),
            pace: Pace::default(),
            rates: Rates::default(),
        }
    }

    /// Queues a job's completions, with its blocks in the cross-attention cache.
    pub fn submit(&mut self, job: &Arc<Job>, text: &TextModel, memory: Option<&Memory>) {
        let tokens = tokens_of(job.prompt.len(), job.stop.max_tokens, job.choices);
        let arrival = NewJob { job: job.id, priority: job.priority, client: job.client, tokens };
        let arrival = self.line.arrive(arrival);
        let SchedulerConfig { speculation, long_after, .. } = self.config;
        for mut sequence in Sequence::of_job(job, text, arrival, speculation, long_after) {
            self.counters.prompt_tokens += job.prompt.len() as u64;
            sequence.memory = memory.cloned();
            self.wait(sequence);
        }
    }

    /// Queues a job's inputs.
    pub fn submit_inputs(&mut self, job: &EmbedJob, embedder: &Embedder) {
        let arrival = self.line.arrive(job.arriving());
        for sequence in Sequence::of_inputs(job, embedder, arrival, self.config.long_after) {
            self.counters.prompt_tokens += sequence.remaining() as u64;
            self.wait(sequence);
        }
    }

    fn wait(&mut self, sequence: Sequence) {
        self.line.wait(sequence.job);
        self.displaced += usize::from(sequence.has_begun());
        self.waiting.insert(sequence.order, sequence);
    }

    /// Removes a job and frees its blocks.
    pub fn cancel(&mut self, job: JobId, pool: &mut BlockPool) {
        let (line, displaced) = (&mut self.line, &mut self.displaced);
        self.waiting.retain(|_, sequence| {
            let keep = sequence.job != job;
            if !keep {
                line.leave(job);
                *displaced -= usize::from(sequence.has_begun());
            }
            keep
        });
        self.running.retain_mut(|sequence| {
            let keep = sequence.job != job;
            if !keep {
                line.stop(job);
                sequence.leave(pool);
            }
            keep
        });
    }

    /// Pauses or resumes a job's sequences; they keep everything.
    pub fn hold(&mut self, job: JobId, held: bool) {
        for sequence in self.waiting.values_mut().chain(&mut self.running) {
            if sequence.job == job {
                sequence.held = held;
            }
        }
    }

    /// Hashes of the blocks that a waiting job would share, and whether it can use blocks behind missing ones.
    pub fn shareable(&self, job: JobId) -> Option<(&[BlockHash], bool)> {
        let sequence = self.waiting.values().find(|sequence| sequence.job == job)?;
        Some((sequence.shareable(), sequence.goes_on_behind()))
    }

    /// Marks whether a job's sequences wait for blocks from the block store.
    pub fn set_fetching(&mut self, job: JobId, fetching: bool) {
        for sequence in self.waiting.values_mut().filter(|sequence| sequence.job == job) {
            sequence.fetching = fetching;
        }
    }

    /// Whether the next step would have a row.
    pub fn has_work(&self) -> bool {
        self.waiting.values().chain(&self.running).any(Sequence::may_run)
    }

    /// Whether a sequence waits for a mask that is computed in the background.
    pub fn awaits_masks(&self) -> bool {
        let awaits = |sequence: &Sequence| !sequence.held && sequence.awaits_mask();
        self.waiting.values().chain(&self.running).any(awaits)
    }

    /// Number of running and of waiting sequences.
    pub fn counts(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    /// Records the time of a step of `rows` rows that only decoded. Times decide what chance a draft token needs.
    /// Steps with lookup drafts and with model drafts have different costs; steps without drafts count for both.
    pub fn took(&mut self, rows: usize, by_model: Option<bool>, seconds: f32) {
        if by_model != Some(true) {
            self.row_cost.learn(rows, seconds);
        }
        if by_model != Some(false) {
            self.model_cost.learn(rows, seconds);
        }
    }

    /// Expected time of a step in which `rows` rows decode, if known.
    pub fn seconds_of(&self, rows: usize) -> Option<f64> {
        if rows > 0 { self.row_cost.seconds(rows) } else { Some(0.0) }
    }

    /// Number of sequences that decode, or would if they were not paused.
    pub fn decoding(&self) -> usize {
        self.running.iter().filter(|sequence| !sequence.held && sequence.decodes()).count()
    }

    /// Records the time of a step with `prompt_rows` prompt rows and `others` decoding rows.
    pub fn took_with_prompts(&mut self, prompt_rows: usize, others: usize, seconds: f32) {
        if let Some(others_s) = self.seconds_of(others) {
            self.pace.took(prompt_rows, others_s, seconds);
        }
    }

    /// Announces a draft model whose steps take this share of the target's.
    pub fn expect_drafts(&mut self, share: f64) {
        self.model_cost = RowCost::of_drafting(share);
    }

    /// Whether the sequence runs.
    pub fn runs(&self, order: Order) -> bool {
        self.running.iter().any(|sequence| sequence.order == order)
    }

    /// Completions for which the draft model may draft, because lookup found nothing, and the minimum chance of a
    /// draft token.
    pub fn ask_drafts(&mut self) -> (Vec<DraftRequest<'_>>, f32) {
        let SchedulerConfig { rows_max, context_tokens_max, speculation, .. } = self.config;
        let decodes = self.decoding();
        let (least, by_model) = (self.row_cost.least_chance(decodes), self.model_cost.least_chance(decodes));
        let scores = self.running.iter().any(Sequence::scores);
        if speculation == Speculation::Off || decodes == 0 || decodes >= rows_max || scores || by_model >= 1.0
        {
            return (Vec::new(), by_model);
        }
        let most = (EXTRA_LOGIT_ROWS.min(rows_max - decodes) / decodes).max(1);
        let odds = DraftOdds { least, rates: &self.rates };
        let ask = |sequence| Sequence::ask_draft(sequence, most, odds, context_tokens_max);
        (self.running.iter_mut().filter_map(ask).take(EXTRA_LOGIT_ROWS).collect(), by_model)
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Checks that exactly the running sequences hold the held blocks.
    ///
    /// # Panics
    /// If the books are inconsistent.
    pub fn check(&self, pool: &BlockPool) {
        pool.check(self.running.iter().map(Sequence::tables));
        assert!(
            self.waiting.values().all(|sequence| sequence.tables().is_empty()),
            "one that waits holds blocks"
        );
        let begun = self.waiting.values().filter(|sequence| sequence.has_begun()).count();
        assert_eq!(begun, self.displaced, "sequences that wait and have begun");
        self.running.iter().for_each(|sequence| sequence.check(pool));
    }

    /// Whether the sampling of some next token depends on a token that is not known yet. Then the last step must be
    /// collected first.
    pub fn needs_last_tokens(&self) -> bool {
        self.running.iter().any(Sequence::needs_last_token)
    }

    /// Fills `step` with the next step's work; it stays empty if there is none.
    pub fn schedule(&mut self, pool: &mut BlockPool, step: &mut Step, events: &mut Vec<Event>) -> StepReport {
        self.running.sort_unstable_by_key(|sequence| sequence.order);
        let mut logits = self.config.extra_logit_rows(self.running.len() + self.waiting.len());
        let decodes = self.schedule_decodes(pool);
        let drafts = self.schedule_drafts(decodes, logits, pool);
        logits -= drafts;
        let mut rows = self.config.rows_max - decodes - drafts;
        if decodes > 0 {
            let SchedulerConfig { prefill_rows_beside_decodes: most, rows_together, .. } = self.config;
            let wait = self.running.len() + self.waiting.len() - decodes;
            let paced = self.pace.rows(self.row_cost.seconds(decodes), decodes, wait, most);
            rows = rows.min(paced.max(rows_together));
        }
        self.schedule_prefills(&mut rows, &mut logits, pool);
        self.admit(rows, logits, pool, events);
        self.write(step)
    }

    fn schedule_decodes(&mut self, pool: &mut BlockPool) -> usize {
        let mut rows = 0;
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &mut self.running[at];
            // A row after a token that certainly ends it would have no room.
            if sequence.may_run() && sequence.decodes() && !sequence.will_end(self.config.context_tokens_max)
            {
                if sequence.grow(1, pool) == 0 {
                    at = self.preempt_for(at, pool);
                    continue; // the same sequence again, unless it was itself the last in line
                }
                sequence.scheduled = 1;
                rows += 1;
            }
            at += 1;
        }
        rows
    }

    /// Preempts another sequence, a paused one first. Returns the new index of the sequence at `at`; if that one
    /// was preempted, the index of the next.
    fn preempt_for(&mut self, at: usize, pool: &mut BlockPool) -> usize {
        let held = self.running.iter().rposition(|sequence| !sequence.may_run());
        let victim = held.unwrap_or_else(|| self.last_to_stay(pool));
        self.preempt(victim, pool);
        if victim < at { at - 1 } else { at }
    }

    /// Schedules rows of draft tokens beside decodes. Prompts being scored have precedence.
    fn schedule_drafts(&mut self, decodes: usize, logits: usize, pool: &mut BlockPool) -> usize {
        let SchedulerConfig { rows_max, context_tokens_max, speculation, .. } = self.config;
        if speculation == Speculation::Off || self.running.iter().any(Sequence::scores) {
            return 0;
        }
        let (most, reserve) = (logits.min(rows_max - decodes), self.running.len() * pool.groups());
        let odds = DraftOdds { least: self.row_cost.least_chance(decodes), rates: &self.rates };
        let mut drafts = 0;
        for sequence in self.running.iter_mut().filter(|sequence| sequence.scheduled == 1) {
            drafts += sequence.draft(most - drafts, odds, context_tokens_max, reserve, pool);
        }
        drafts
    }

    fn schedule_prefills(&mut self, rows: &mut usize, logits: &mut usize, pool: &mut BlockPool) {
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &mut self.running[at];
            if sequence.may_run() && !sequence.decodes() && !sequence.schedule_prompt(rows, logits, pool) {
                at = self.preempt_for(at, pool);
                continue; // the same sequence again, unless it was itself the last in line
            }
            at += 1;
        }
    }

    fn admit(&mut self, mut rows: usize, mut logits: usize, pool: &mut BlockPool, events: &mut Vec<Event>) {
        while rows > 0 {
            let Some(order) = self.next_to_enter(pool) else { return };
            let mut sequence = self.waiting.remove(&order).expect("next_to_enter just saw it");
            self.displaced -= usize::from(sequence.has_begun());
            self.counters.prefix_hit_tokens += sequence.enter(pool, events) as u64;
            self.line.begin(order, sequence.uncomputed());
            self.line.leave(sequence.job);
            self.line.run(sequence.job);
            sequence.schedule_prompt(&mut rows, &mut logits, pool);
            self.running.push(sequence);
        }
    }

    /// Next sequence that enters and fits: the first in the queue, or one that may overtake it.
    fn next_to_enter(&mut self, pool: &mut BlockPool) -> Option<Order> {
        let (&first, _) = self.waiting.iter().find(|(_, sequence)| self.wants_to_enter(sequence, pool))?;
        while !self.fits(&first, pool) {
            if !self.preempt_held(pool) {
                return self.displace(first, pool);
            }
        }
        Some(first)
    }

    fn wants_to_enter(&self, sequence: &Sequence, pool: &BlockPool) -> bool {
        !(!sequence.may_run()
            || sequence.is_unsettled()
            || pool.shares() && self.prompt_is_being_computed(sequence, pool)
            || self.prompt_is_being_scored(sequence))
    }

    /// Whether its job's prompt is still being scored. All scores come before the events of any completion.
    fn prompt_is_being_scored(&self, sequence: &Sequence) -> bool {
        let first = |other: &Sequence| other.job == sequence.job && other.choice == 0;
        sequence.choice > 0
            && sequence.prompt_is_scored()
            && self.running.iter().chain(self.waiting.values()).any(|other| first(other) && other.scores())
    }

    /// Whether a sequence fits. A spare block per running sequence and layer group is reserved, so that a new
    /// sequence does not cause a preemption at once. A sequence alone always fits, because the context is bounded.
    fn fits(&self, order: &Order, pool: &BlockPool) -> bool {
        let reserve = self.running.len() * pool.groups();
        self.running.is_empty()
            || (self.running.len() < self.config.sequences_max
                && self.waiting[order].blocks_needed(pool) + reserve <= pool.free())
    }

    /// Preempts a sequence that cannot run now, so that a client that does not read, or a slow constraint, cannot
    /// block others.
    fn preempt_held(&mut self, pool: &mut BlockPool) -> bool {
        let held = self.running.iter().rposition(|sequence| !sequence.may_run());
        if let Some(at) = held {
            self.preempt(at, pool);
        }
        held.is_some()
    }

    fn preempt(&mut self, at: usize, pool: &mut BlockPool) {
        self.counters.preemptions += 1;
        self.put_back(at, pool);
    }

    fn put_back(&mut self, at: usize, pool: &mut BlockPool) {
        let mut sequence = self.running.remove(at);
        sequence.leave(pool);
        self.line.stop(sequence.job);
        self.wait(sequence);
    }

    /// Whether another completion of the same job is computing the shared prompt: it is computed once, and then
    /// found in the cache.
    fn prompt_is_being_computed(&self, sequence: &Sequence, pool: &BlockPool) -> bool {
        sequence.choice > 0
            && self
                .running
                .iter()
                .any(|other| other.job == sequence.job && other.is_computing_for(sequence, pool))
    }

    fn write(&mut self, step: &mut Step) -> StepReport {
        step.clear();
        let mut report = StepReport::default();
        for sequence in self.running.iter_mut().filter(|sequence| sequence.scheduled > 0) {
            match sequence.decodes() {
                true => report.decode_tokens += 1,
                false => report.prefill_tokens += sequence.scheduled,
            }
            report.sequences += 1;
            let (rows, computed) = (sequence.scheduled, sequence.computed());
            sequence.write(step);
            let batch = &mut step.batch;
            let adapter = sequence.adapter_slot();
            if adapter.is_some() || !batch.adapters.is_empty() {
                // Sequences before the first one with an adapter have none.
                batch.adapters.resize(batch.sequences.len(), None);
                batch.adapters.push(adapter);
            }
            let long = sequence.is_long();
            if long || !batch.types.is_empty() {
                batch.types.resize(batch.rows() - rows, 0);
                batch.types.resize(batch.rows(), u32::from(long));
            }
            let tables = sequence.tables();
            batch.states.extend(tables.state());
            batch.push_sequence(rows, computed + rows, |group, index| tables.block(group, index));
        }
        if !step.seeing.is_empty() {
            step.seeing.resize(step.batch.rows(), false);
        }
        report
    }

    /// Assumes that the submitted step succeeds. Its rows count as cached for the next step, and each sampled
    /// completion has one more token, not known yet.
    pub fn assume(&mut self, pool: &mut BlockPool) {
        let mut draws = 0;
        for sequence in self.running.iter_mut().filter(|sequence| sequence.scheduled > 0) {
            draws += sequence.assume(draws, pool);
        }
    }

    /// Collects a step's results. Completions take their sampled tokens, inputs their hidden states, and ended
    /// sequences are removed. Results for sequences that are gone are dropped.
    ///
    /// # Errors
    /// Those of reading the hidden states.
    pub fn settle(
        &mut self,
        settled: StepResults<'_, '_>,
        text: &TextModel,
        pool: &mut BlockPool,
        events: &mut Vec<Event>,
    ) -> Result<(), KernelError> {
        let StepResults { parts, drawn, hidden } = settled;
        let within = Within { text, context_tokens_max: self.config.context_tokens_max };
        let (mut drawn, mut at, mut failed) = (drawn.drain(..), 0, Ok(()));
        let (mut ended, mut shifted) = (false, false);
        for part in parts.iter().filter(|part| part.yields != Yields::Nothing) {
            let mut own = drawn.by_ref().take(part.yields.logits());
            // Sequences are mostly in the same order as in the batch.
            let (before, from) = self.running.split_at(at);
            let is_it = |sequence: &Sequence| sequence.order == part.order;
            let ahead = from.iter().position(is_it).map(|index| at + index);
            if let Some(index) = ahead.or_else(|| before.iter().position(is_it)) {
                at = index + 1;
                let sequence = &mut self.running[index];
                let ends = match part.yields {
                    Yields::Tokens { scores, ends, .. } => {
                        let outcome = sequence.settle(scores, ends, &mut own, within, pool, events);
                        self.counters.count(outcome);
                        shifted |= outcome.shifted || outcome.lengthened;
                        outcome.ends
                    }
                    _ => sequence.read(part, hidden, events).unwrap_or_else(|error| {
                        failed = Err(error);
                        true
                    }),
                };
                if ends {
                    sequence.rates().into_iter().for_each(|rates| self.rates.learn(rates));
                    sequence.leave(pool);
                    sequence.ended = true;
                    self.line.stop(sequence.job);
                    ended = true;
                }
            } else if let Yields::Tokens { scores, ends, .. } = part.yields
                && let Some(sequence) = self.waiting.get_mut(&part.order)
            {
                // It has been preempted since.
                let outcome = sequence.settle(scores, ends, &mut own, within, pool, events);
                self.counters.count(outcome);
                if outcome.ends {
                    self.line.leave(sequence.job);
                    self.displaced -= 1;
                    self.waiting.remove(&part.order);
                }
            }
            own.for_each(drop);
        }
        if ended {
            self.running.retain(|sequence| !sequence.ended);
        }
        // A sequence with a context shift, or with new rotary frequencies, holds no blocks. It enters again in its
        // turn and is computed again.
        while shifted && let Some(at) = self.running.iter().position(|s| s.tables().is_empty()) {
            self.put_back(at, pool);
        }
        failed
    }
}

/// Results of a step.
pub struct StepResults<'a, 'h> {
    /// Sequences of its rows.
    pub parts: &'a [Part],
    /// Sampled tokens, in order.
    pub drawn: &'a mut Vec<Option<SampledToken>>,
    /// Hidden states of its rows.
    pub hidden: &'a mut Hidden<'h>,
}

#[cfg(test)]
mod tests;
