//! Who runs in the next step. Continuous batching: every step, each running sequence gets one row (decoding) or
//! a chunk of its prompt (prefilling), within one budget of rows; sequences join and leave between steps.
//!
//! Order: decodes first, so that no prompt stalls them; then prompts already begun; then new ones, by priority
//! and a fair line ([`crate::fair`]). A sequence enters with blocks for all the tokens it has, of layers with a window for those
//! that they hold at once, which it uses again and again; so as a rule only decodes can run out of blocks (and prompts some of
//! whose blocks others hold too when they leave the window). Then the last in line gives its blocks back and computes again
//! later (recompute preemption). Where not everybody
//! fits, [`turns`] says who gives way to whom.

mod turns;

use std::collections::BTreeMap;

use hanzo_engine_kernels::{KernelError, Sampled};
use serde::{Deserialize, Serialize};

use crate::{
    embedding::Embedder,
    engine::Memory,
    fair::{Arriving, FairLine, Order, tokens_of},
    job::{EmbedJob, Event, Job, JobId},
    kv::{BlockHash, BlockPool},
    limits::EXTRA_LOGIT_ROWS,
    output::Hidden,
    pace::Pace,
    sequence::{Outcome, Sequence, Within},
    speculation::{Asked, Rates, RowCost, Speculation},
    step::{Part, Step, Yields},
    text::TextModel,
};

/// Bounds of a step. All at least 1; `sequences_max` is not above `rows_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Rows of a step.
    pub rows_max: usize,
    /// Rows that prompts may take of a step that also decodes: what bounds the time between two tokens.
    pub prefill_rows_beside_decodes: usize,
    /// Rows of a prompt that one step computes or none, at most; not above those.
    pub rows_together: usize,
    /// Sequences that run at once.
    pub sequences_max: usize,
    /// Prompt and completion of one sequence; its blocks fit the pool.
    pub context_tokens_max: usize,
    /// Where drafts come from.
    pub speculation: Speculation,
    /// Tokens after which a text turns by LongRoPE's frequencies for long texts, where the model has such.
    pub long_after: Option<usize>,
}

/// What a step works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReport {
    /// Prompt tokens computed.
    pub prefill_tokens: usize,
    /// Sequences that decoded.
    pub decode_tokens: usize,
    /// Sequences in the batch.
    pub sequences: usize,
    /// What it took to decide on it, in nanoseconds; 0 where nobody measured.
    pub schedule_ns: u64,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Prompt tokens asked for, found in the cache or not.
    pub prompt_tokens: u64,
    /// Tokens drawn.
    pub generated_tokens: u64,
    /// Of the prompt tokens, those found in the cache.
    pub prefix_hit_tokens: u64,
    /// Times a sequence gave its blocks back before it had ended.
    pub preemptions: u64,
    /// Tokens drafted and computed.
    pub draft_tokens: u64,
    /// Of them, those that were drawn.
    pub accepted_draft_tokens: u64,
    /// Times a sequence that filled its context dropped tokens and went on.
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
    /// Rows that may have logits in a step.
    pub fn logit_rows(&self) -> usize {
        self.sequences_max + EXTRA_LOGIT_ROWS
    }

    /// Of them, those that are left beside one for each of so many sequences.
    fn extra_logit_rows(&self, sequences: usize) -> usize {
        self.logit_rows() - sequences.min(self.sequences_max)
    }
}

/// The waiting and the running.
pub struct Scheduler {
    config: SchedulerConfig,
    line: FairLine,
    waiting: BTreeMap<Order, Sequence>,
    running: Vec<Sequence>, // in line order at the start of a step
    displaced: usize,       // of those waiting, those that have begun
    counters: Counters,
    row_cost: RowCost,
    model_cost: RowCost, // of rows that a model drafts, its own time included
    pace: Pace,
    rates: Rates, // of drafts, as completions have found them that have ended
}

impl Scheduler {
    /// Nothing to do yet.
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

    /// Puts a job's completions in line, with what they remember of its pictures.
    pub fn submit(&mut self, job: &Job, text: &TextModel, memory: Option<&Memory>) {
        let tokens = tokens_of(job.prompt.len(), job.stop.max_tokens, job.choices);
        let arrival = Arriving { job: job.id, priority: job.priority, client: job.client, tokens };
        let arrival = self.line.arrive(arrival);
        let SchedulerConfig { speculation, long_after, .. } = self.config;
        for mut sequence in Sequence::of_job(job, text, arrival, speculation, long_after) {
            self.counters.prompt_tokens += job.prompt.len() as u64;
            sequence.memory = memory.cloned();
            self.wait(sequence);
        }
    }

    /// Puts a job's inputs in line.
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

    /// Forgets a job and frees its blocks.
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

    /// Stops or goes on with running a job's sequences, without giving anything up.
    pub fn hold(&mut self, job: JobId, held: bool) {
        for sequence in self.waiting.values_mut().chain(&mut self.running) {
            if sequence.job == job {
                sequence.held = held;
            }
        }
    }

    /// Names of the blocks that a job which waits would share, and whether also behind one that is not there.
    pub fn shareable(&self, job: JobId) -> Option<(&[BlockHash], bool)> {
        let sequence = self.waiting.values().find(|sequence| sequence.job == job)?;
        Some((sequence.shareable(), sequence.goes_on_behind()))
    }

    /// Lets a job's sequences wait for blocks, or wait for them no more.
    pub fn set_fetching(&mut self, job: JobId, fetching: bool) {
        for sequence in self.waiting.values_mut().filter(|sequence| sequence.job == job) {
            sequence.fetching = fetching;
        }
    }

    /// Whether the next step would have a row.
    pub fn has_work(&self) -> bool {
        self.waiting.values().chain(&self.running).any(|sequence| !sequence.held && !sequence.fetching)
    }

    /// Sequences running and waiting.
    pub fn counts(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    /// A step that only decoded, with so many rows, took so long: what a drafted token has to be worth, that of a lookup or, with
    /// the time it takes, of a model. Steps without drafts tell of both.
    pub fn took(&mut self, rows: usize, by_model: Option<bool>, seconds: f32) {
        if by_model != Some(true) {
            self.row_cost.learn(rows, seconds);
        }
        if by_model != Some(false) {
            self.model_cost.learn(rows, seconds);
        }
    }

    /// What a step takes in which so many rows decode, where that is known.
    pub fn seconds_of(&self, rows: usize) -> Option<f64> {
        if rows > 0 { self.row_cost.seconds(rows) } else { Some(0.0) }
    }

    /// Sequences that decode, or would if they were not held.
    pub fn decoding(&self) -> usize {
        self.running.iter().filter(|sequence| !sequence.held && sequence.decodes()).count()
    }

    /// A step took so long that had so many rows of prompts, and others that decoded.
    pub fn took_with_prompts(&mut self, prompt_rows: usize, others: usize, seconds: f32) {
        if let Some(others_s) = self.seconds_of(others) {
            self.pace.took(prompt_rows, others_s, seconds);
        }
    }

    /// A model drafts whose steps take this share of the large one's.
    pub fn expect_drafts(&mut self, share: f64) {
        self.model_cost = RowCost::of_drafting(share);
    }

    /// Whether this sequence runs.
    pub fn runs(&self, order: Order) -> bool {
        self.running.iter().any(|sequence| sequence.order == order)
    }

    /// The completions that a model may draft for, because nothing is found for them in what was said before, and how likely a
    /// drafted token must be.
    pub fn ask_drafts(&mut self) -> (Vec<Asked<'_>>, f32) {
        let SchedulerConfig { rows_max, context_tokens_max, speculation, .. } = self.config;
        let decodes = self.decoding();
        let (least, by_model) = (self.row_cost.least_chance(decodes), self.model_cost.least_chance(decodes));
        let scores = self.running.iter().any(Sequence::scores);
        if speculation == Speculation::Off || decodes == 0 || decodes >= rows_max || scores || by_model >= 1.0
        {
            return (Vec::new(), by_model);
        }
        let most = (EXTRA_LOGIT_ROWS.min(rows_max - decodes) / decodes).max(1);
        let rates = &self.rates;
        let ask = |sequence| Sequence::ask_draft(sequence, most, (least, rates), context_tokens_max);
        (self.running.iter_mut().filter_map(ask).take(EXTRA_LOGIT_ROWS).collect(), by_model)
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Asserts that what runs holds the blocks that are held, and nothing else does.
    ///
    /// # Panics
    /// Where the books do not balance.
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

    /// Whether a token that is not known yet decides how the next is drawn: the step before must be settled first.
    pub fn needs_last_tokens(&self) -> bool {
        self.running.iter().any(Sequence::needs_last_token)
    }

    /// Fills `step` with the next step's work; it stays empty when there is none.
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
            // A row after a token that ends it anyway would have no room.
            if !sequence.held && sequence.decodes() && !sequence.will_end(self.config.context_tokens_max) {
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

    /// Takes the blocks of another, a held one first. Returns where the sequence that was at `at` is
    /// now, or, if it was the one to go, where the next is.
    fn preempt_for(&mut self, at: usize, pool: &mut BlockPool) -> usize {
        let held = self.running.iter().rposition(|sequence| sequence.held);
        let victim = held.unwrap_or_else(|| self.last_to_stay(pool));
        self.preempt(victim, pool);
        if victim < at { at - 1 } else { at }
    }

    /// Rows of drafted tokens, beside those of decodes. A prompt that is scored goes first.
    fn schedule_drafts(&mut self, decodes: usize, logits: usize, pool: &mut BlockPool) -> usize {
        let SchedulerConfig { rows_max, context_tokens_max, speculation, .. } = self.config;
        if speculation == Speculation::Off || self.running.iter().any(Sequence::scores) {
            return 0;
        }
        let (most, reserve) = (logits.min(rows_max - decodes), self.running.len() * pool.groups());
        let least = self.row_cost.least_chance(decodes);
        let mut drafts = 0;
        for sequence in self.running.iter_mut().filter(|sequence| sequence.scheduled == 1) {
            drafts += sequence.draft(most - drafts, (least, &self.rates), context_tokens_max, reserve, pool);
        }
        drafts
    }

    fn schedule_prefills(&mut self, rows: &mut usize, logits: &mut usize, pool: &mut BlockPool) {
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &mut self.running[at];
            if !sequence.held && !sequence.decodes() && !sequence.schedule_prompt(rows, logits, pool) {
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

    /// Who enters next, and there is room for it: the first in line, or else one whose turn it is before that one's.
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
        !(sequence.held
            || sequence.fetching
            || sequence.is_unsettled()
            || pool.shares() && self.prompt_is_being_computed(sequence, pool)
            || self.prompt_is_being_scored(sequence))
    }

    /// Whether something is still to be said of its job's prompt, which comes before what is said of any completion.
    fn prompt_is_being_scored(&self, sequence: &Sequence) -> bool {
        let first = |other: &Sequence| other.job == sequence.job && other.choice == 0;
        sequence.choice > 0
            && sequence.prompt_is_scored()
            && self.running.iter().chain(self.waiting.values()).any(|other| first(other) && other.scores())
    }

    /// One block each and layer group is kept for those that decode, so that entering does not throw another out at once. A
    /// sequence alone always fits: that is what the bound on the context is for.
    fn fits(&self, order: &Order, pool: &BlockPool) -> bool {
        let reserve = self.running.len() * pool.groups();
        self.running.is_empty()
            || (self.running.len() < self.config.sequences_max
                && self.waiting[order].blocks_needed(pool) + reserve <= pool.free())
    }

    /// A client that does not read must not keep others waiting: its sequence gives way.
    fn preempt_held(&mut self, pool: &mut BlockPool) -> bool {
        let held = self.running.iter().rposition(|sequence| sequence.held);
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

    /// Whether another completion of the same job is at the shared prompt: it is computed once, then found.
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
                // Those before the first with one have none.
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

    /// The scheduled step is under way: what it computes is there for the next, and each completion that it draws for has
    /// one token more, which nobody knows yet.
    pub fn assume(&mut self, pool: &mut BlockPool) {
        let mut draws = 0;
        for sequence in self.running.iter_mut().filter(|sequence| sequence.scheduled > 0) {
            draws += sequence.assume(draws, pool);
        }
    }

    /// A step has been waited for: completions take the tokens it drew, inputs their hidden states, and those that
    /// ended are let go of. What it computed for a sequence that is no longer there is thrown away.
    ///
    /// # Errors
    /// Those of reading the hidden states.
    pub fn settle(
        &mut self,
        settled: Settled<'_, '_>,
        text: &TextModel,
        pool: &mut BlockPool,
        events: &mut Vec<Event>,
    ) -> Result<(), KernelError> {
        let Settled { parts, drawn, hidden } = settled;
        let within = Within { text, context_tokens_max: self.config.context_tokens_max };
        let (mut drawn, mut at, mut failed) = (drawn.drain(..), 0, Ok(()));
        let (mut ended, mut shifted) = (false, false);
        for part in parts.iter().filter(|part| part.yields != Yields::Nothing) {
            let mut own = drawn.by_ref().take(part.yields.logits());
            // They mostly stand as they stood in the batch.
            let (before, from) = self.running.split_at(at);
            let is_it = |sequence: &Sequence| sequence.order == part.order;
            let ahead = from.iter().position(is_it).map(|index| at + index);
            if let Some(index) = ahead.or_else(|| before.iter().position(is_it)) {
                at = index + 1;
                let sequence = &mut self.running[index];
                let ends = match part.yields {
                    Yields::Tokens { scores, ends, .. } => {
                        let outcome = sequence.settle((scores, ends), &mut own, within, pool, events);
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
                // It was put back since.
                let outcome = sequence.settle((scores, ends), &mut own, within, pool, events);
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
        // A sequence that has dropped tokens, or turns by other frequencies now, holds no block, and enters in its turn to compute
        // what it has.
        while shifted && let Some(at) = self.running.iter().position(|s| s.tables().is_empty()) {
            self.put_back(at, pool);
        }
        failed
    }
}

/// What came of a step.
pub struct Settled<'a, 'h> {
    /// Whose rows it had.
    pub parts: &'a [Part],
    /// What it drew, in their order.
    pub drawn: &'a mut Vec<Option<Sampled>>,
    /// The hidden states of its rows.
    pub hidden: &'a mut Hidden<'h>,
}

#[cfg(test)]
mod tests;
