//! One completion, or one input of an embedding job, on its way: its tokens, how many of them are in the cache and in
//! which blocks, and what turns its logits into text or its hidden states into a vector. What waits costs next to
//! nothing: the completions of a job share its prompt until they write to it, and what sampling needs is made with the
//! first token.

use std::{mem, sync::Arc};

use hanzo_engine_kernels::{BLOCK_TOKENS, KernelError};

use crate::{
    embedding::{Embedder, Output, Readout, Rows},
    fair::{Arrival, Order},
    job::{EmbedJob, Event, EventKind, FinishReason, Job, JobId, StopConditions, TokenLogprob, Usage},
    kv::{BlockHash, BlockPool},
    output::{Chunk, OutputText},
    sampler::{NotFinite, Sampler, SamplingParams},
    text::TextModel,
};

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
    /// Rows it has in the batch being run; 0 when it is not part of it.
    pub scheduled: usize,
    tokens: Arc<Vec<u32>>, // the prompt, then what was generated; copied when the first is
    prompt_tokens: usize,
    computed: usize,             // of `tokens`, those whose keys and values are in the cache
    blocks: Vec<u32>,            // room for `blocks.len() * 16` tokens
    hashes: Arc<Vec<BlockHash>>, // of every full block of `tokens`; copied as they are
    published: usize,            // of `hashes`, those whose blocks can be found
    started: bool,
    turn: Turn,
    purpose: Purpose,
}

/// Since when it runs.
#[derive(Clone, Copy, Default)]
struct Turn {
    began: usize,      // tokens it had
    recomputed: usize, // of them, those that coming back cost
}

/// What a sequence is computed for.
enum Purpose {
    Generate(Generation),
    Read(Reading),
}

/// A completion's way from logits to text.
struct Generation {
    stop: Arc<StopConditions>,
    ends: Arc<[u32]>, // tokens that end it
    sampling: Arc<SamplingParams>,
    seed: u64,
    sampler: Option<Sampler>, // from the first token on
    output: OutputText,
    usage: Usage,
    unsent: Vec<u32>, // tokens whose text is held back
    unsent_logprobs: Vec<TokenLogprob>,
}

/// An input's way from hidden states to a vector.
struct Reading {
    output: Output,
    first: usize, // rows before it are left out of pooling
    rows: Rows,
    readout: Option<Readout>, // from the first row on
}

impl Sequence {
    /// The completions of a job.
    pub fn of_job<'a>(
        job: &'a Job,
        text: &'a TextModel,
        mut arrival: Arrival,
    ) -> impl Iterator<Item = Sequence> + 'a {
        let stop = Arc::new(job.stop.clone());
        let own_ends = if stop.ignore_eos { &[] } else { text.eos.as_slice() };
        let ends: Arc<[u32]> = own_ends.iter().chain(&stop.token_ids).copied().collect();
        let sampling = Arc::new(job.sampling.clone());
        let tokens = Arc::new(job.prompt.to_vec());
        let mut hashes = Vec::with_capacity(tokens.len() / BLOCK_TOKENS);
        hash_full_blocks(&tokens, &mut hashes);
        let hashes = Arc::new(hashes);
        (0..job.choices).map(move |choice| Sequence {
            job: job.id,
            choice,
            // Completions of one prompt share its computation: they stand together.
            order: arrival.next(0),
            held: false,
            scheduled: 0,
            tokens: tokens.clone(),
            prompt_tokens: job.prompt.len(),
            computed: 0,
            blocks: Vec::new(),
            hashes: hashes.clone(),
            published: 0,
            started: false,
            turn: Turn::default(),
            purpose: Purpose::Generate(Generation {
                sampling: sampling.clone(),
                seed: job.sampling.seed.wrapping_add(choice.into()),
                sampler: None,
                output: OutputText::new(text, &job.stop, job.starts_in_reasoning, job.split_reasoning),
                stop: stop.clone(),
                ends: ends.clone(),
                usage: Usage { prompt_tokens: job.prompt.len() as u32, ..Usage::default() },
                unsent: Vec::new(),
                unsent_logprobs: Vec::new(),
            }),
        })
    }

    /// The inputs of an embedding job.
    pub fn of_inputs<'a>(
        job: &'a EmbedJob,
        embedder: &'a Embedder,
        mut arrival: Arrival,
    ) -> impl Iterator<Item = Sequence> + 'a {
        job.inputs.iter().zip(0..).map(move |(input, choice)| {
            let tokens = Arc::new(input.tokens.to_vec());
            let mut hashes = Vec::with_capacity(tokens.len() / BLOCK_TOKENS);
            hash_full_blocks(&tokens, &mut hashes);
            Sequence {
                job: job.id,
                choice,
                order: arrival.next(tokens.len()),
                held: false,
                scheduled: 0,
                prompt_tokens: tokens.len(),
                tokens,
                computed: 0,
                blocks: Vec::new(),
                hashes: Arc::new(hashes),
                published: 0,
                started: false,
                turn: Turn::default(),
                purpose: Purpose::Read(Reading {
                    output: job.output,
                    first: input.prompt_tokens,
                    rows: Readout::new(embedder, job.output, &input.tokens, input.prompt_tokens).rows(),
                    readout: None,
                }),
            }
        })
    }

    /// Tokens that must still go through the model before the next one can be drawn; at least 1.
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether the next step draws a token from one row.
    pub fn decodes(&self) -> bool {
        self.remaining() == 1 && self.generates()
    }

    /// Whether it is a completion.
    pub fn generates(&self) -> bool {
        matches!(self.purpose, Purpose::Generate(_))
    }

    /// Whether another would find a block in the cache that this one is about to compute: the first of the other's
    /// that is not there yet.
    pub fn is_computing_for(&self, other: &Sequence, pool: &BlockPool) -> bool {
        let (found, _) = pool.find_prefix(other.shareable());
        let next = other.shareable().get(found);
        self.computed / BLOCK_TOKENS <= found && next.is_some() && self.hashes.get(found) == next
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
        self.tokens.len() - self.turn.began
    }

    /// Whether it has drawn what its turn gives it, and made up for what coming back cost.
    pub fn turn_is_over(&self, turn_tokens: usize) -> bool {
        self.decodes() && self.drawn_in_turn() >= turn_tokens.max(self.turn.recomputed)
    }

    /// Blocks of others, or free ones, that it would share.
    pub fn prefix<'a>(&'a self, pool: &'a BlockPool) -> impl Iterator<Item = u32> + 'a {
        pool.prefix(self.shareable())
    }

    /// Asserts that what is in the cache has blocks, and that no block can be found that is not computed.
    ///
    /// # Panics
    /// Where it is not so.
    pub fn check(&self) {
        assert!(
            self.computed <= self.blocks.len() * BLOCK_TOKENS,
            "more is computed than there are blocks for"
        );
        assert!(self.published * BLOCK_TOKENS <= self.computed, "a block can be found that is not computed");
    }

    /// Its block table.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The tokens of the rows it has in the batch being run.
    pub fn scheduled_tokens(&self) -> &[u32] {
        &self.tokens[self.computed..self.computed + self.scheduled]
    }

    /// Blocks of the prompt that could be shared: never the last token's, whose logits are needed, and none where every
    /// row is.
    fn shareable(&self) -> &[BlockHash] {
        match &self.purpose {
            Purpose::Read(Reading { rows: Rows::All | Rows::First, .. }) => &[],
            _ => &self.hashes[..(self.tokens.len() - 1) / BLOCK_TOKENS],
        }
    }

    /// Free blocks that [`Sequence::enter`] would use up.
    pub fn blocks_needed(&self, pool: &BlockPool) -> usize {
        let (shared, of_them_free) = pool.find_prefix(self.shareable());
        self.tokens.len().div_ceil(BLOCK_TOKENS) - shared + of_them_free
    }

    /// Takes blocks for all its tokens, sharing what is there; the caller has checked that they are. Gives the
    /// tokens of the prompt found in the cache, counted the first time it enters.
    pub fn enter(&mut self, pool: &mut BlockPool, events: &mut Vec<Event>) -> usize {
        debug_assert!(self.blocks.is_empty() && self.computed == 0);
        let (shared, _) = pool.find_prefix(self.shareable());
        for hash in &self.hashes[..shared] {
            self.blocks
                .push(pool.share(hash).expect("find_prefix just saw this block and nothing was taken since"));
        }
        while self.blocks.len() < self.tokens.len().div_ceil(BLOCK_TOKENS) {
            self.blocks.push(pool.take().expect("the scheduler admits only what blocks_needed says fits"));
        }
        self.computed = shared * BLOCK_TOKENS;
        self.published = shared;
        self.turn = Turn { began: self.tokens.len(), recomputed: 0 };
        if self.started {
            self.turn.recomputed = self.remaining();
        } else {
            self.started = true;
            let cached_tokens = self.computed as u32;
            match &mut self.purpose {
                Purpose::Generate(generation) => generation.usage.cached_tokens = cached_tokens,
                // One is enough for a job of thousands.
                Purpose::Read(_) if self.choice > 0 => return self.computed,
                Purpose::Read(_) => {}
            }
            self.emit(events, EventKind::Started { cached_tokens });
            return self.computed;
        }
        0
    }

    /// Makes room for the next token; false when no block is free.
    pub fn grow(&mut self, pool: &mut BlockPool) -> bool {
        if self.blocks.len() * BLOCK_TOKENS >= self.tokens.len() {
            return true;
        }
        match pool.take() {
            Some(block) => {
                self.blocks.push(block);
                true
            }
            None => false,
        }
    }

    /// Gives all blocks back. What was computed is computed again when it runs next, unless it is still found.
    pub fn leave(&mut self, pool: &mut BlockPool) {
        pool.release(&mut self.blocks);
        self.computed = 0;
        self.published = 0;
        self.scheduled = 0;
        match &mut self.purpose {
            Purpose::Read(reading) => reading.readout = None,
            Purpose::Generate(generation) => generation.sampler.iter_mut().for_each(Sampler::rest),
        }
    }

    /// The step ran its rows. With `logits` of its last row, draws the next token; says whether that was the end.
    pub fn advance(
        &mut self,
        logits: Option<&mut [f32]>,
        text: &TextModel,
        context_tokens_max: usize,
        pool: &mut BlockPool,
        events: &mut Vec<Event>,
    ) -> bool {
        self.count_computed(pool);
        let (Some(logits), Purpose::Generate(generation)) = (logits, &mut self.purpose) else { return false };
        let Ok(token) = generation.draw(logits, &self.tokens[..self.prompt_tokens]) else {
            self.emit(events, EventKind::Failed);
            return true;
        };
        Arc::make_mut(&mut self.tokens).push(token);
        if self.tokens.len().is_multiple_of(BLOCK_TOKENS) {
            hash_full_blocks(&self.tokens, Arc::make_mut(&mut self.hashes));
        }
        let full = self.tokens.len() >= context_tokens_max;
        let (delta, finished) = generation.take(token, text, full);
        let ended = finished.is_some();
        for kind in [delta, finished].into_iter().flatten() {
            self.emit(events, kind);
        }
        ended
    }

    /// The step ran its rows, whose hidden states `rows` reads, `(n, hidden)` from the first of them on; says whether
    /// they were its last.
    ///
    /// # Errors
    /// Those of `rows`.
    pub fn read(
        &mut self,
        embedder: &Embedder,
        rows: &mut HiddenRows<'_>,
        pool: &mut BlockPool,
        events: &mut Vec<Event>,
    ) -> Result<bool, KernelError> {
        let (before, count) = (self.computed, self.scheduled);
        self.count_computed(pool);
        let ends = self.computed == self.tokens.len();
        let Purpose::Read(reading) = &mut self.purpose else { return Ok(false) };
        let new = || Readout::new(embedder, reading.output, &self.tokens, reading.first);
        let readout = reading.readout.get_or_insert_with(new);
        match reading.rows {
            Rows::All => readout.push(rows.read(0, count)?, embedder),
            Rows::First if before == 0 => readout.push(rows.read(0, 1)?, embedder),
            Rows::Last if ends => readout.push(rows.read(count - 1, 1)?, embedder),
            Rows::First | Rows::Last => {}
        }
        if ends {
            let computed = reading.readout.take().and_then(|readout| readout.finish(embedder));
            self.emit(events, computed.map_or(EventKind::Failed, EventKind::Computed));
        }
        Ok(ends)
    }

    fn count_computed(&mut self, pool: &mut BlockPool) {
        self.computed += mem::take(&mut self.scheduled);
        while self.published < self.computed / BLOCK_TOKENS {
            pool.publish(self.blocks[self.published], self.hashes[self.published]);
            self.published += 1;
        }
    }

    fn emit(&self, events: &mut Vec<Event>, kind: EventKind) {
        events.push(Event { job: self.job, choice: self.choice, kind });
    }
}

impl Generation {
    fn draw(&mut self, logits: &mut [f32], prompt: &[u32]) -> Result<u32, NotFinite> {
        let early = self.usage.completion_tokens < self.stop.min_tokens;
        let banned: &[u32] = if early { &self.ends } else { &[] };
        let sampler =
            self.sampler.get_or_insert_with(|| Sampler::new(&self.sampling, self.seed, logits.len(), prompt));
        let sampled = sampler.sample(logits, banned)?;
        self.unsent_logprobs.extend(sampled.logprob);
        Ok(sampled.token)
    }

    /// Takes a token that was drawn; `full` when the context is. What is to be said of it: a delta, and the end.
    fn take(&mut self, token: u32, text: &TextModel, full: bool) -> (Option<EventKind>, Option<EventKind>) {
        self.unsent.push(token);
        self.usage.completion_tokens += 1;

        let ends = self.ends.contains(&token);
        let mut chunk = if ends { Chunk::default() } else { self.output.push(text, token) };
        self.usage.reasoning_tokens += u32::from(self.output.in_reasoning());

        let reason = if ends || chunk.stop.is_some() {
            Some(FinishReason::Stop)
        } else if self.usage.completion_tokens >= self.stop.max_tokens || full {
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

/// Copies rows of the batch that just ran, from the given one on, to the host.
pub type ReadRows<'a> = dyn FnMut(usize, &mut [f32]) -> Result<(), KernelError> + 'a;

/// Reads the hidden states of a sequence's rows in the step that just ran.
pub struct HiddenRows<'a> {
    /// The sequence's first row in the batch.
    pub first: usize,
    /// Elements of a row.
    pub hidden: usize,
    /// Where they come from.
    pub read: &'a mut ReadRows<'a>,
    /// Room for them.
    pub rows: &'a mut Vec<f32>,
}

impl HiddenRows<'_> {
    fn read(&mut self, first: usize, count: usize) -> Result<&[f32], KernelError> {
        self.rows.resize(count * self.hidden, 0.0);
        (self.read)(self.first + first, self.rows)?;
        Ok(self.rows)
    }
}

/// Adds the names of the full blocks of `tokens` that `hashes` lacks.
fn hash_full_blocks(tokens: &[u32], hashes: &mut Vec<BlockHash>) {
    let (blocks, _) = tokens.as_chunks::<BLOCK_TOKENS>();
    for block in &blocks[hashes.len()..] {
        let parent = hashes.last().copied().unwrap_or_else(|| BlockHash::root(b""));
        hashes.push(BlockHash::chain(parent, block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fair::FairLine, text::tests::demo};

    #[test]
    fn completions_that_wait_share_what_they_were_given() {
        let job = Job {
            id: JobId(1),
            prompt: (0..1000).collect(),
            choices: 3,
            sampling: SamplingParams { repetition_penalty: 1.1, logprobs: Some(1), ..Default::default() },
            stop: StopConditions { max_tokens: 40, ..StopConditions::default() },
            priority: 0,
            starts_in_reasoning: false,
            split_reasoning: false,
        };
        let text = demo();
        let arrival = FairLine::default().arrive(0);
        let mut sequences: Vec<Sequence> = Sequence::of_job(&job, &text, arrival).collect();
        assert_eq!(sequences[0].hashes.len(), 62);
        for other in &sequences[1..] {
            assert!(Arc::ptr_eq(&sequences[0].tokens, &other.tokens));
            assert!(Arc::ptr_eq(&sequences[0].hashes, &other.hashes));
            let (Purpose::Generate(first), Purpose::Generate(other)) =
                (&sequences[0].purpose, &other.purpose)
            else {
                panic!("completions")
            };
            assert!(Arc::ptr_eq(&first.sampling, &other.sampling));
            assert!(other.sampler.is_none());
        }
        // What one draws is its own: neither its tokens nor its names show in the others.
        let (mut pool, mut events) = (BlockPool::new(80, true), Vec::new());
        sequences[0].enter(&mut pool, &mut events);
        for _ in 0..8 {
            sequences[0].scheduled = sequences[0].remaining();
            assert!(sequences[0].grow(&mut pool));
            let mut logits = vec![0.0; text.vocab];
            logits[278] = 9.0;
            sequences[0].advance(Some(&mut logits), &text, 1280, &mut pool, &mut events);
        }
        assert_eq!((sequences[0].tokens.len(), sequences[1].tokens.len()), (1008, 1000));
        assert_eq!((sequences[0].hashes.len(), sequences[1].hashes.len()), (63, 62));
        let tokens: Vec<u32> = (0..1000).chain([278; 8]).collect();
        let mut hashes = Vec::new();
        hash_full_blocks(&tokens, &mut hashes);
        assert_eq!(*sequences[0].hashes, hashes, "names do not depend on how the tokens came");
    }
}
