//! One completion, or one input of an embedding job, on its way: its tokens, how many of them are in the cache and in
//! which blocks, and its place in line. What is made of a step's logits or hidden states is [`crate::output`]'s. What
//! waits costs next to nothing: the completions of a job share its prompt until they write to it.

mod drafts;
mod found;
mod length;
mod names;

use std::{mem, ops::Range, sync::Arc};

use hanzo_engine_kernels::{BLOCK_TOKENS, KernelError, RowSource, Sampled};

use crate::{
    adapter::LoadedAdapter,
    embedding::Embedder,
    engine::Memory,
    fair::{Arrival, Order},
    job::{EmbedJob, Event, EventKind, Job, JobId},
    kv::{BlockHash, BlockPool, BlockTables},
    media::{self, MediaSpan},
    output::{Generation, Hidden, HiddenRows, Purpose, Reading},
    overflow::ContextShift,
    speculation::Speculation,
    step::{GivenRows, Part, Step, Yields},
    text::TextModel,
};

use length::RopeLength;
use names::{add_hashes, full_block_hashes, root};

/// Tokens, what stands for some of them, what is before their first block, the hashes of the full ones, and what turns them.
type Prompt = (Arc<Vec<u32>>, Arc<[MediaSpan]>, BlockHash, Arc<Vec<BlockHash>>, RopeLength);

/// One completion or input of a job.
pub struct Sequence {
    /// The job it belongs to.
    pub job: JobId,
    /// Which of the job's completions or inputs.
    pub choice: u32,
    /// Its place in line.
    pub order: Order,
    /// The client reads too slowly: keep everything, run nothing.
    pub held: bool,
    /// Blocks that are kept elsewhere are on their way to the cache: it enters when they are there.
    pub fetching: bool,
    /// Rows it has in the batch being run; 0 when it is not part of it.
    pub scheduled: usize,
    /// Where what it remembers of its pictures lies.
    pub memory: Option<Memory>,
    /// It has ended, and has no blocks any more.
    pub ended: bool,
    tokens: Arc<Vec<u32>>, // the prompt, then what was generated; copied when the first is
    prompt_tokens: usize,
    media: Arc<[MediaSpan]>, // of the prompt
    adapter: Option<Arc<LoadedAdapter>>,
    shift: Option<ContextShift>,
    skips_cache: bool,         // nothing that is cached is of use to it
    assumed: usize,            // tokens after `tokens` that are drawn in steps nobody has waited for yet
    draw: u32,                 // of the last of them in its step
    draft: Vec<u32>,           // tokens after those, which may be drawn in the step that is made or under way
    proposed: Vec<u32>,        // what a model says may follow `tokens`, for the step that is made next
    logits: usize,             // rows with logits in the step that is made
    waits: bool, // the step under way drafts or scores for it, and must be settled before the next
    computed: usize, // tokens whose keys and values are in the cache, or will be before the next step
    behind: Vec<Range<usize>>, // blocks that it found and has not come to yet, the next of them last
    tables: BlockTables,
    root: BlockHash, // what is before the first of `hashes`, whichever frequencies turn it
    rope: RopeLength,
    hashes: Arc<Vec<BlockHash>>, // of every full block of `tokens`; copied as they are
    published: usize,            // of `hashes`, those whose blocks can be found
    started: bool,
    turn: Turn,
    purpose: Purpose,
}

/// What a completion is settled within.
#[derive(Clone, Copy)]
pub struct Within<'a> {
    /// Its model.
    pub text: &'a TextModel,
    /// Prompt and completion.
    pub context_tokens_max: usize,
}

/// What came of a completion in a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Tokens that were drawn and taken.
    pub tokens: usize,
    /// Tokens that were drafted.
    pub drafted: usize,
    /// Of them, those that were drawn.
    pub accepted: usize,
    /// Whether that was the end.
    pub ends: bool,
    /// Whether it has dropped tokens, and its blocks with them.
    pub shifted: bool,
    /// Whether other frequencies turn it from now on, so that it has given its blocks back.
    pub lengthened: bool,
}

/// Since when it runs.
#[derive(Clone, Copy, Default)]
struct Turn {
    began: usize,      // tokens it had
    recomputed: usize, // of them, those that coming back cost
}

impl Sequence {
    /// The completions of a job.
    pub fn of_job<'a>(
        job: &'a Job,
        text: &'a TextModel,
        mut arrival: Arrival,
        speculation: Speculation,
        long_after: Option<usize>,
    ) -> impl Iterator<Item = Sequence> + 'a {
        let tokens = Arc::new(job.prompt.to_vec());
        let root = root(job.adapter.as_deref(), &job.cache_salt, &job.media);
        let rope = RopeLength::of(long_after, tokens.len());
        let hashes = Arc::new(full_block_hashes(&tokens, &job.media, rope.root(root)));
        (0..).zip(Generation::of_job(job, text, speculation)).map(move |(choice, generation)| {
            // Completions of one prompt share its computation: they stand together.
            let place = (job.id, choice, arrival.next(0));
            let prompt = (tokens.clone(), job.media.clone(), root, hashes.clone(), rope);
            Sequence {
                adapter: job.adapter.clone(),
                shift: job.context_shift,
                skips_cache: job.skip_cache,
                ..Sequence::new(place, prompt, Purpose::Generate(generation))
            }
        })
    }

    /// The inputs of an embedding job.
    pub fn of_inputs<'a>(
        job: &'a EmbedJob,
        embedder: &'a Embedder,
        mut arrival: Arrival,
        long_after: Option<usize>,
    ) -> impl Iterator<Item = Sequence> + 'a {
        (0..).zip(&job.inputs).map(move |(choice, input)| {
            let tokens = Arc::new(input.tokens.to_vec());
            let root = root(None, &[], &input.media);
            let rope = RopeLength::of(long_after, tokens.len());
            let hashes = Arc::new(full_block_hashes(&tokens, &input.media, rope.root(root)));
            let place = (job.id, choice, arrival.next(tokens.len()));
            let prompt = (tokens, input.media.clone(), root, hashes, rope);
            Sequence::new(place, prompt, Purpose::Read(Reading::new(embedder, job.output, input)))
        })
    }

    fn new(
        (job, choice, order): (JobId, u32, Order),
        (tokens, media, root, hashes, rope): Prompt,
        purpose: Purpose,
    ) -> Sequence {
        Sequence {
            job,
            choice,
            order,
            held: false,
            fetching: false,
            scheduled: 0,
            memory: None,
            ended: false,
            prompt_tokens: tokens.len(),
            tokens,
            media,
            adapter: None,
            shift: None,
            skips_cache: false,
            assumed: 0,
            draw: 0,
            draft: Vec::new(),
            proposed: Vec::new(),
            logits: 0,
            waits: false,
            computed: 0,
            behind: Vec::new(),
            tables: BlockTables::default(),
            root,
            rope,
            hashes,
            published: 0,
            started: false,
            turn: Turn::default(),
            purpose,
        }
    }

    /// Tokens that must still go through the model before the next one can be drawn; at least 1.
    pub fn remaining(&self) -> usize {
        self.len() - self.computed
    }

    /// Tokens it has, known or not.
    fn len(&self) -> usize {
        self.tokens.len() + self.assumed
    }

    /// Whether a token of it is drawn in a step that nobody has waited for yet.
    pub fn is_unsettled(&self) -> bool {
        self.assumed > 0
    }

    /// Whether what the step under way gives for it must be known before the next is made.
    pub fn needs_last_token(&self) -> bool {
        self.waits
            || self.assumed > 0
                && matches!(&self.purpose, Purpose::Generate(generation) if generation.reads_history())
    }

    /// Whether the prompt of its job is scored, by its first completion.
    pub fn prompt_is_scored(&self) -> bool {
        matches!(&self.purpose, Purpose::Generate(generation) if generation.prompt_is_scored())
    }

    /// Whether its prompt is being scored.
    pub fn scores(&self) -> bool {
        matches!(&self.purpose, Purpose::Generate(generation) if generation.skippable_rows() < usize::MAX)
    }

    /// Schedules as many rows of its prompt as there are left, where so many rows of all, and so many with the logits of known
    /// tokens, may be in the step; both are counted down. False where there is no block for a single one.
    pub fn schedule_prompt(&mut self, rows: &mut usize, logits: &mut usize, pool: &mut BlockPool) -> bool {
        // What it has found is not computed.
        let until_found = self.behind.last().map(|run| run.start * BLOCK_TOKENS - self.computed);
        let wanted = self.remaining().min(*rows).min(until_found.unwrap_or(usize::MAX));
        let wanted = media::whole_rows(&self.media, self.computed, wanted);
        let room = self.grow(wanted, pool);
        let mut scheduled = media::whole_rows(&self.media, self.computed, room);
        if scheduled == 0 {
            // One that is computed as a whole waits for the next step.
            return *rows == 0 || wanted == 0;
        }
        let first = self.computed;
        if let Purpose::Generate(generation) = &mut self.purpose
            && let Some(scoring) = generation.scoring()
        {
            scheduled = scoring.rows_within(first, scheduled, *logits);
            *logits -= scoring.of(&(first..first + scheduled)).len();
        }
        self.scheduled = scheduled;
        *rows -= scheduled;
        true
    }

    /// Whether no row follows a token that is not known yet, whatever that is: it ends, or other frequencies turn it then.
    pub fn will_end(&self, context_tokens_max: usize) -> bool {
        let Purpose::Generate(generation) = &self.purpose else { return false };
        self.assumed > 0
            && (self.len() >= self.rope.end(context_tokens_max) || generation.is_full(self.assumed))
    }

    /// Whether the next step draws a token from one row.
    pub fn decodes(&self) -> bool {
        self.remaining() == 1 && self.generates()
    }

    /// Whether it is a completion.
    pub fn generates(&self) -> bool {
        matches!(self.purpose, Purpose::Generate(_))
    }

    /// Tokens whose keys and values are in the cache.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Whether it has run before.
    pub fn has_begun(&self) -> bool {
        self.started
    }

    /// Whether it is the first of its job to run.
    pub fn is_newcomer(&self) -> bool {
        self.choice == 0 && !self.started
    }

    /// Tokens drawn since it entered.
    pub fn drawn_in_turn(&self) -> usize {
        self.len() - self.turn.began
    }

    /// Whether it has drawn what its turn gives it, and made up for what coming back cost.
    pub fn turn_is_over(&self, turn_tokens: usize) -> bool {
        self.decodes() && self.drawn_in_turn() >= turn_tokens.max(self.turn.recomputed)
    }

    /// Asserts that what is in the cache has blocks, and that no block can be found that is not computed.
    ///
    /// # Panics
    /// Where it is not so.
    pub fn check(&self, pool: &BlockPool) {
        self.tables.check(pool, self.computed);
        assert!(self.published * BLOCK_TOKENS <= self.computed, "a block can be found that is not computed");
        let is_ahead = |run: &Range<usize>| run.start * BLOCK_TOKENS > self.computed;
        assert!(self.behind.iter().all(is_ahead), "what was found is computed");
    }

    /// The slot of the adapter it is computed with.
    pub fn adapter_slot(&self) -> Option<u32> {
        self.adapter.as_ref().map(|adapter| adapter.slot)
    }

    /// Its block tables.
    pub fn tables(&self) -> &BlockTables {
        &self.tables
    }

    /// Adds the rows it has in the batch being made, and how its next token is drawn of the last, if they are all it has.
    pub fn write(&mut self, step: &mut Step) {
        let (first, rows) = (step.batch.rows(), self.scheduled);
        let positions = self.computed..self.computed + rows;
        let known =
            &self.tokens[positions.start.min(self.tokens.len())..positions.end.min(self.tokens.len())];
        step.batch.sources.extend(known.iter().copied().map(RowSource::Token));
        if self.assumed > 0 && positions.end > self.tokens.len() {
            step.batch.sources.push(RowSource::Sampled(self.draw));
        }
        step.batch.sources.extend(self.draft.iter().copied().map(RowSource::Token));
        for span in self.media.iter() {
            let within = span.within(&positions);
            if !within.is_empty() {
                let row = first + within.start - positions.start;
                let sources = &mut step.batch.sources[row..row + within.len()];
                let given =
                    sources.iter_mut().zip(within.clone()).filter(|&(_, token)| !span.is_token(token));
                given.for_each(|(source, _)| *source = RowSource::Embedding);
                let values = span.rows.clone();
                // What is remembered of it stands behind the row of its token.
                let (elements, width) = match span.is_remembered() {
                    true => (0..span.own_width(), span.own_width()),
                    false => (span.elements(&within), span.width()),
                };
                step.given.push(GivenRows { row, values, elements, width });
            }
        }
        media::place(&self.media, (first, &positions), &mut step.batch);
        media::see(&self.media, (first, &positions), &mut step.batch);
        if let Some(memory) = &self.memory {
            let Step { batch, seeing, .. } = step;
            media::remember(&self.media, (first, &positions), memory, (batch, seeing));
        }
        let ends = rows == self.remaining() + self.draft.len();
        let yields = match &mut self.purpose {
            Purpose::Read(_) => Yields::Hidden { before: self.computed, ends },
            Purpose::Generate(generation) => {
                let mut scores = 0;
                if let Some(scoring) = generation.scoring()
                    && let scored = scoring.of(&positions)
                    && !scored.is_empty()
                {
                    scores = scored.len();
                    let row = |position| (first + position - positions.start) as u32;
                    step.batch.logit_rows.extend(scored.clone().map(row));
                    scoring.ask(&self.tokens[scored.start + 1..scored.end + 1], &mut step.draws);
                }
                let draws = if ends && generation.draws() { 1 + self.draft.len() } else { 0 };
                if draws > 0 {
                    step.batch.logit_rows.extend((first + rows - draws..first + rows).map(|row| row as u32));
                    let prompt = &self.tokens[..self.prompt_tokens];
                    generation.ask(prompt, self.assumed, &self.draft, &mut step.draws, &mut step.masks);
                }
                match ends || scores > 0 {
                    true => Yields::Tokens { scores, draws, ends },
                    false => Yields::Nothing,
                }
            }
        };
        self.logits = yields.logits();
        step.parts.push(Part { order: self.order, first, rows, yields });
    }

    /// Free blocks that [`Sequence::enter`] would use up.
    pub fn blocks_needed(&self, pool: &BlockPool) -> usize {
        BlockTables::needed(pool, self.shareable(), self.tokens.len())
    }

    /// Takes blocks for all its tokens, of windows for those that they hold at once, sharing what is there; the caller has
    /// checked that they are. Gives the tokens of the prompt found in the cache, counted the first time it enters.
    pub fn enter(&mut self, pool: &mut BlockPool, events: &mut Vec<Event>) -> usize {
        debug_assert!(self.computed == 0 && self.assumed == 0);
        let mut tables = mem::take(&mut self.tables);
        let found = tables.enter(pool, self.shareable(), self.tokens.len(), self.goes_on_behind());
        self.tables = tables;
        self.computed = found.prefix * BLOCK_TOKENS;
        self.published = found.prefix;
        self.behind = found.behind;
        self.behind.reverse();
        self.turn = Turn { began: self.tokens.len(), recomputed: 0 };
        if self.started {
            self.turn.recomputed = self.uncomputed();
        } else {
            self.started = true;
            let cached = self.computed + self.found_behind();
            let cached_tokens = cached as u32;
            match &mut self.purpose {
                Purpose::Generate(generation) => generation.start(cached_tokens),
                // One is enough for a job of thousands.
                Purpose::Read(_) if self.choice > 0 => return cached,
                Purpose::Read(_) => {}
            }
            self.emit(events, EventKind::Started { cached_tokens });
            return cached;
        }
        0
    }

    /// Gives back the blocks that its next rows do not see, and makes room for up to `rows` of them; gives for how many there
    /// is room, which is fewer where no block is free.
    pub fn grow(&mut self, rows: usize, pool: &mut BlockPool) -> usize {
        let tokens = self.len();
        self.tables.grow(pool, self.computed..self.computed + rows, tokens, 0)
    }

    /// Gives all blocks back. What was computed is computed again when it runs next, unless it is still found.
    pub fn leave(&mut self, pool: &mut BlockPool) {
        self.tables.leave(pool);
        self.behind.clear();
        self.computed = 0;
        self.published = 0;
        self.scheduled = 0;
        self.draft.clear();
        self.proposed.clear();
        self.waits = false;
        if let Purpose::Read(reading) = &mut self.purpose {
            reading.forget();
        }
    }

    /// The step that has its rows is under way: from the next on they are in the cache, and where they are all it has,
    /// there is one token more. Rows of drafted tokens are in the cache once they turn out to be what was drawn. `first` is the
    /// place of the first of its rows with logits among the step's; gives how many those are.
    pub fn assume(&mut self, first: u32, pool: &mut BlockPool) -> u32 {
        self.computed += mem::take(&mut self.scheduled) - self.draft.len();
        self.publish(pool);
        self.pass_found();
        let logits = mem::take(&mut self.logits) as u32;
        let draws = matches!(&self.purpose, Purpose::Generate(generation) if generation.draws());
        let draws = draws && self.computed == self.len();
        if draws {
            self.assumed += 1;
            self.draw = first + logits - 1;
        }
        self.waits = logits > u32::from(draws) || self.computed == self.len();
        logits
    }

    /// Takes what came of its logits in the step that ran, `scores` of known tokens first: log probabilities of its
    /// prompt, then the first of the tokens that are not known yet, and as many after it as were drafted and drawn; nothing
    /// where the logits were not numbers.
    pub fn settle(
        &mut self,
        (scores, ends): (usize, bool),
        drawn: &mut dyn Iterator<Item = Option<Sampled>>,
        within: Within<'_>,
        pool: &mut BlockPool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let mut outcome = Outcome { drafted: self.draft.len(), ..Outcome::default() };
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
        if !ends {
            return outcome;
        }
        debug_assert!(self.assumed > 0, "a token that no step drew");
        self.assumed -= 1;
        let draft = mem::take(&mut self.draft);
        generation.count_drafted(draft.len());
        let drafts = generation.rewind();
        let (mut said, mut finished) = (None::<EventKind>, None);
        for at in 0..=draft.len() {
            let Purpose::Generate(generation) = &mut self.purpose else { break };
            let Some(sampled) = drawn.next().flatten() else {
                let undrawn = generation.undrawn();
                for kind in said.into_iter().chain([undrawn]) {
                    self.emit(events, kind);
                }
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
            Arc::make_mut(&mut self.tokens).push(sampled.token);
            if self.tokens.len().is_multiple_of(BLOCK_TOKENS) {
                let root = self.rope.root(self.root);
                add_hashes(&self.tokens, &self.media, root, Arc::make_mut(&mut self.hashes));
            }
            let full = self.shift.is_none() && self.tokens.len() >= within.context_tokens_max;
            let (delta, end) = generation.take(sampled, within.text, full);
            match (&mut said, delta) {
                (Some(said), Some(delta)) => said.append(delta),
                (said, delta) => *said = said.take().or(delta),
            }
            finished = end;
            // The row after it counts where it was drawn as the constraint would have it.
            let accepted = accepted && generation.covers(at + 1);
            // Nothing is in the cache of one that has given its blocks back.
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
        if !outcome.ends {
            outcome.shifted = self.shift_context(within.context_tokens_max, pool);
            outcome.lengthened = self.lengthen(pool);
        }
        outcome
    }

    /// Takes the log probabilities of tokens of the prompt; false where logits were not numbers.
    fn score(
        &mut self,
        scores: usize,
        drawn: &mut dyn Iterator<Item = Option<Sampled>>,
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

    /// Reads the hidden states of its rows in the step that ran; says whether they were its last.
    ///
    /// # Errors
    /// Those of reading them.
    pub fn read(
        &mut self,
        part: &Part,
        hidden: &mut Hidden<'_>,
        events: &mut Vec<Event>,
    ) -> Result<bool, KernelError> {
        let (Purpose::Read(reading), Yields::Hidden { before, ends }) = (&mut self.purpose, part.yields)
        else {
            return Ok(false);
        };
        let mut rows = HiddenRows { hidden, first: part.first, count: part.rows };
        if let Some(kind) = reading.read(&self.tokens, (before, ends), &mut rows)? {
            self.emit(events, kind);
        }
        Ok(ends)
    }

    /// Makes the full blocks findable whose tokens are all known and computed.
    fn publish(&mut self, pool: &mut BlockPool) {
        while self.published < (self.computed / BLOCK_TOKENS).min(self.hashes.len()) {
            self.tables.publish(pool, self.published, self.hashes[self.published]);
            self.published += 1;
        }
    }

    fn emit(&self, events: &mut Vec<Event>, kind: EventKind) {
        events.push(Event { job: self.job, choice: self.choice, kind });
    }
}

#[cfg(test)]
mod tests;
