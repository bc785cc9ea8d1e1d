//! A completion, or an input of an embedding job, in progress: its tokens, how many of them are cached and in which
//! blocks, and its place in the queue. [`crate::output`] turns logits and hidden states into results. Waiting
//! sequences cost almost nothing: the completions of a job share its prompt until they write to it.

mod blocks;
mod drafts;
mod length;
mod settle;

use std::{mem, ops::Range, sync::Arc};

use hanzo_engine_ops::{BLOCK_TOKENS, KernelError, RowSource};

use crate::{
    embedding::Embedder,
    fair::{Arrival, Order},
    job::{EmbedJob, Event, EventKind, Job, JobId},
    kv::{BlockHash, BlockPool, BlockTables, Memory},
    media::{self, MediaSpan, SequenceRows},
    output::{EmbeddingOutput, Generation, Hidden, HiddenRows, Purpose},
    speculation::Speculation,
    step::{GivenRows, Part, Step, Yields},
    text::TextModel,
};

use blocks::{full_block_hashes, root};
use length::RopeLength;

/// Tokens that a sequence starts with, and the identity of their blocks.
struct SequencePrompt {
    tokens: Arc<Vec<u32>>,
    media: Arc<[MediaSpan]>,
    /// Parent of the first block.
    root: BlockHash,
    /// Hashes of the full blocks.
    hashes: Arc<Vec<BlockHash>>,
    rope: RopeLength,
}

/// Completion or input of a job.
pub struct Sequence {
    /// Job of the sequence.
    pub job: JobId,
    /// Index of the completion or input in the job.
    pub choice: u32,
    /// Place in the queue.
    pub order: Order,
    /// Paused: the client reads too slowly. It keeps everything and does not run.
    pub held: bool,
    /// Waits for blocks from the block store; it enters when they are cached.
    pub fetching: bool,
    /// Its rows in the current batch; 0 if it is not part of it.
    pub scheduled: usize,
    /// Its blocks in the cross-attention cache.
    pub memory: Option<Memory>,
    /// Whether it has ended; then it holds no blocks.
    pub ended: bool,
    tokens: Arc<Vec<u32>>, // prompt and generated tokens; shared until the first is generated
    prompt_tokens: usize,
    media: Arc<[MediaSpan]>,   // of the prompt
    assumed: usize,            // tokens after `tokens` that are sampled in steps not collected yet
    draw: u32,                 // index of its row among its step's logit rows, for the last of them
    draft: Vec<u32>,           // draft tokens after those, in the step being prepared or in flight
    proposed: Vec<u32>,        // draft tokens by a model after `tokens`, for the next step to be prepared
    logits: usize,             // rows with logits in the step being prepared
    waits: bool, // the step in flight drafts or scores for it, and must be collected before the next
    computed: usize, // tokens whose keys and values are cached, or will be before the next step
    behind: Vec<Range<usize>>, // runs of cached blocks that it has not reached yet, the next one last
    tables: BlockTables,
    root: BlockHash, // parent of the first of `hashes`, before the rotary frequencies are mixed in
    rope: RopeLength,
    hashes: Arc<Vec<BlockHash>>, // of every full block of `tokens`; shared in the same way
    published: usize,            // number of `hashes` whose blocks can be found
    started: bool,
    turn: Turn,
    purpose: Purpose,
}

/// Context for collecting a completion's step.
#[derive(Clone, Copy)]
pub struct Within<'a> {
    /// The model.
    pub text: &'a TextModel,
    /// Maximum tokens of prompt and completion.
    pub context_tokens_max: usize,
}

/// Outcome of a step for a completion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Tokens that were sampled and taken.
    pub tokens: usize,
    /// Draft tokens.
    pub drafted: usize,
    /// Draft tokens that were accepted.
    pub accepted: usize,
    /// Whether the completion ended.
    pub ends: bool,
    /// Whether it dropped tokens (context shift), and released its blocks.
    pub shifted: bool,
    /// Whether its rotary frequencies changed, so that it released its blocks.
    pub lengthened: bool,
}

/// Start of its current turn.
#[derive(Clone, Copy, Default)]
struct Turn {
    began: usize,      // tokens at the start
    recomputed: usize, // tokens that had to be computed again
}

impl Sequence {
    /// Creates the completions of a job.
    pub fn of_job<'a>(
        job: &'a Arc<Job>,
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
            // Completions of a prompt stay together: they share its computation.
            let order = arrival.next(0);
            let (tokens, hashes) = (tokens.clone(), hashes.clone());
            let prompt = SequencePrompt { tokens, media: job.media.clone(), root, hashes, rope };
            Sequence::new(job.id, choice, order, prompt, Purpose::Generate(generation))
        })
    }

    /// Creates the inputs of an embedding job.
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
            let order = arrival.next(tokens.len());
            let prompt = SequencePrompt { tokens, media: input.media.clone(), root, hashes, rope };
            let output = EmbeddingOutput::new(embedder, job.output, input);
            Sequence::new(job.id, choice, order, prompt, Purpose::Read(output))
        })
    }

    fn new(job: JobId, choice: u32, order: Order, prompt: SequencePrompt, purpose: Purpose) -> Sequence {
        let SequencePrompt { tokens, media, root, hashes, rope } = prompt;
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

    /// Request that it answers; an input of an embedding job has none.
    fn request(&self) -> Option<&Job> {
        match &self.purpose {
            Purpose::Generate(generation) => Some(generation.job()),
            Purpose::Read(_) => None,
        }
    }

    /// Whether the mask of its next token is being computed in the background.
    pub fn awaits_mask(&self) -> bool {
        matches!(&self.purpose, Purpose::Generate(generation) if generation.awaits_mask())
    }

    /// Whether it may have a row in the next step: it is not paused, and needs nothing else first.
    pub fn may_run(&self) -> bool {
        let waits_for_mask = self.remaining() == 1 && self.awaits_mask();
        !self.held && !self.fetching && !waits_for_mask
    }

    /// Tokens that must be computed before the next one can be sampled; at least 1.
    pub fn remaining(&self) -> usize {
        self.len() - self.computed
    }

    /// Number of tokens, known or not.
    fn len(&self) -> usize {
        self.tokens.len() + self.assumed
    }

    /// Whether a token of it is sampled in a step that is not collected yet.
    pub fn is_unsettled(&self) -> bool {
        self.assumed > 0
    }

    /// Whether the step in flight must be collected before the next can be prepared.
    pub fn needs_last_token(&self) -> bool {
        self.waits
            || self.assumed > 0
                && matches!(&self.purpose, Purpose::Generate(generation) if generation.reads_history())
    }

    /// Whether its job's prompt is scored, by the first completion.
    pub fn prompt_is_scored(&self) -> bool {
        matches!(&self.purpose, Purpose::Generate(generation) if generation.prompt_is_scored())
    }

    /// Whether it is scoring its prompt now.
    pub fn scores(&self) -> bool {
        matches!(&self.purpose, Purpose::Generate(generation) if generation.skippable_rows() < usize::MAX)
    }

    /// Schedules as many of its prompt rows as fit into the step's remaining rows and rows with logits (for known
    /// tokens); both are counted down. Returns false if not a single row has a block.
    pub fn schedule_prompt(&mut self, rows: &mut usize, logits: &mut usize, pool: &mut BlockPool) -> bool {
        // Cached blocks are not computed. The last row waits for the mask of the token after it.
        let until_found = self.behind.last().map(|run| run.start * BLOCK_TOKENS - self.computed);
        let remaining = self.remaining() - usize::from(self.awaits_mask());
        let wanted = remaining.min(*rows).min(until_found.unwrap_or(usize::MAX));
        let wanted = media::whole_rows(&self.media, self.computed, wanted);
        let room = self.grow(wanted, pool);
        let mut scheduled = media::whole_rows(&self.media, self.computed, room);
        if scheduled == 0 {
            // Rows that must be computed together wait for the next step.
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

    /// Whether the next, still unknown token is certainly not followed by a row: the sequence ends, or changes its
    /// rotary frequencies.
    pub fn will_end(&self, context_tokens_max: usize) -> bool {
        let Purpose::Generate(generation) = &self.purpose else { return false };
        self.assumed > 0
            && (self.len() >= self.rope.end(context_tokens_max) || generation.is_full(self.assumed))
    }

    /// Whether the next step samples a token from a single row.
    pub fn decodes(&self) -> bool {
        self.remaining() == 1 && self.generates()
    }

    /// Whether it is a completion.
    pub fn generates(&self) -> bool {
        matches!(self.purpose, Purpose::Generate(_))
    }

    /// Number of tokens whose keys and values are cached.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Whether it has run before.
    pub fn has_begun(&self) -> bool {
        self.started
    }

    /// Whether it is the first of its job and has not run yet.
    pub fn is_newcomer(&self) -> bool {
        self.choice == 0 && !self.started
    }

    /// Tokens generated since it entered.
    pub fn drawn_in_turn(&self) -> usize {
        self.len() - self.turn.began
    }

    /// Whether it has generated the tokens of its turn, and made up for recomputation.
    pub fn turn_is_over(&self, turn_tokens: usize) -> bool {
        self.decodes() && self.drawn_in_turn() >= turn_tokens.max(self.turn.recomputed)
    }

    /// Checks that cached tokens have blocks, and that no block can be found before it is computed.
    ///
    /// # Panics
    /// If it is inconsistent.
    pub fn check(&self, pool: &BlockPool) {
        self.tables.check(pool, self.computed);
        assert!(self.published * BLOCK_TOKENS <= self.computed, "a block can be found that is not computed");
        let is_ahead = |run: &Range<usize>| run.start * BLOCK_TOKENS > self.computed;
        assert!(self.behind.iter().all(is_ahead), "what was found is computed");
    }

    /// Slot of its adapter.
    pub fn adapter_slot(&self) -> Option<u32> {
        self.request()?.adapter.as_ref().map(|adapter| adapter.slot)
    }

    /// Its block tables.
    pub fn tables(&self) -> &BlockTables {
        &self.tables
    }

    /// Adds its rows to the step, and the sampling of its next token if they are all that remain.
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
                // Rows for the cross-attention cache follow the row of its token.
                let (elements, width) = match span.is_remembered() {
                    true => (0..span.own_width(), span.own_width()),
                    false => (span.elements(&within), span.width()),
                };
                step.given.push(GivenRows { row, values, elements, width });
            }
        }
        let own = SequenceRows { first, tokens: &positions };
        media::place(&self.media, own, &mut step.batch);
        media::see(&self.media, own, &mut step.batch);
        if let Some(memory) = &self.memory {
            let Step { batch, seeing, .. } = step;
            media::remember(&self.media, own, memory, batch, seeing);
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

    /// Takes blocks for all its tokens, or for as many as windows hold, and shares cached ones. The caller has
    /// checked that there are enough. Returns the cached prompt tokens, counted only when it enters for the first
    /// time.
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
                // A single event is enough for a job of thousands.
                Purpose::Read(_) if self.choice > 0 => return cached,
                Purpose::Read(_) => {}
            }
            self.emit(events, EventKind::Started { cached_tokens });
            return cached;
        }
        0
    }

    /// Releases blocks that its next rows do not attend to, and takes blocks for up to `rows` of them. Returns the
    /// number of rows that have room; it is smaller if no block is free.
    pub fn grow(&mut self, rows: usize, pool: &mut BlockPool) -> usize {
        let tokens = self.len();
        self.tables.grow(pool, self.computed..self.computed + rows, tokens, 0)
    }

    /// Releases all blocks. When it runs again, everything that is no longer cached is computed again.
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

    /// Assumes that its submitted rows succeed: from the next step on they count as cached, and if none remain
    /// there is one more, unknown token. Rows of draft tokens count only after they are accepted. `first` is the
    /// index of its first row with logits in the step; returns the number of such rows.
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

    /// Reads the hidden states of its rows in the step. Returns whether they were its last rows.
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
        if let Some(kind) = reading.read(&self.tokens, before, ends, &mut rows)? {
            self.emit(events, kind);
        }
        Ok(ends)
    }

    /// Makes its full blocks findable whose tokens are all known and computed.
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
