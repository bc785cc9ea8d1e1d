//! One completion on its way: its tokens, how many of them are in the cache and in which blocks, and what
//! turns its logits into text. What waits costs next to nothing: the completions of a job share its prompt until
//! they write to it, and what sampling needs is made with the first token.

use std::{mem, sync::Arc};

use hanzo_engine_kernels::BLOCK_TOKENS;

use crate::{
    job::{Event, EventKind, FinishReason, Job, JobId, StopConditions, TokenLogprob, Usage},
    kv::{BlockHash, BlockPool},
    output::{Chunk, OutputText},
    sampler::{NotFinite, Sampler, SamplingParams},
    text::TextModel,
};

/// Where a sequence stands in line: priority, then arrival, then choice. Smaller runs earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    priority: i32,
    arrival: u64,
    choice: u32,
}

/// One completion of a job.
pub struct Sequence {
    /// The job it belongs to.
    pub job: JobId,
    /// Which of the job's completions.
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
    stop: Arc<StopConditions>,
    ends: Arc<[u32]>, // tokens that end it
    sampling: Arc<SamplingParams>,
    seed: u64,
    sampler: Option<Sampler>, // from the first token on
    output: OutputText,
    usage: Usage,
    started: bool,
    unsent: Vec<u32>, // tokens whose text is held back
    unsent_logprobs: Vec<TokenLogprob>,
}

impl Sequence {
    /// The completions of a job.
    pub fn of_job<'a>(
        job: &'a Job,
        text: &'a TextModel,
        arrival: u64,
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
            order: Order { priority: job.priority, arrival, choice },
            held: false,
            scheduled: 0,
            tokens: tokens.clone(),
            prompt_tokens: job.prompt.len(),
            computed: 0,
            blocks: Vec::new(),
            hashes: hashes.clone(),
            published: 0,
            sampling: sampling.clone(),
            seed: job.sampling.seed.wrapping_add(choice.into()),
            sampler: None,
            output: OutputText::new(text, &job.stop, job.starts_in_reasoning, job.split_reasoning),
            stop: stop.clone(),
            ends: ends.clone(),
            usage: Usage { prompt_tokens: job.prompt.len() as u32, ..Usage::default() },
            started: false,
            unsent: Vec::new(),
            unsent_logprobs: Vec::new(),
        })
    }

    /// Tokens that must still go through the model before the next one can be drawn; at least 1.
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether the next step draws a token from one row.
    pub fn decodes(&self) -> bool {
        self.remaining() == 1
    }

    /// Whether it is still computing blocks of the prompt that others with the same prompt could share.
    pub fn computes_shareable(&self) -> bool {
        self.computed < (self.prompt_tokens - 1) / BLOCK_TOKENS * BLOCK_TOKENS
    }

    /// Tokens whose keys and values are in the cache.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Its block table.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The tokens of the rows it has in the batch being run.
    pub fn scheduled_tokens(&self) -> &[u32] {
        &self.tokens[self.computed..self.computed + self.scheduled]
    }

    /// Blocks of the prompt that could be shared: never the last token's, whose logits are needed.
    fn shareable(&self) -> &[BlockHash] {
        &self.hashes[..(self.tokens.len() - 1) / BLOCK_TOKENS]
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
        if !self.started {
            self.started = true;
            self.usage.cached_tokens = self.computed as u32;
            self.emit(events, EventKind::Started { cached_tokens: self.computed as u32 });
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
        self.computed += mem::take(&mut self.scheduled);
        while self.published < self.computed / BLOCK_TOKENS {
            pool.publish(self.blocks[self.published], self.hashes[self.published]);
            self.published += 1;
        }
        let Some(logits) = logits else { return false };
        let Ok(token) = self.draw(logits) else {
            self.emit(events, EventKind::Failed);
            return true;
        };
        self.take_token(token, text, context_tokens_max, events)
    }

    fn draw(&mut self, logits: &mut [f32]) -> Result<u32, NotFinite> {
        let early = self.usage.completion_tokens < self.stop.min_tokens;
        let banned: &[u32] = if early { &self.ends } else { &[] };
        let sampler = self.sampler.get_or_insert_with(|| {
            Sampler::new(&self.sampling, self.seed, logits.len(), &self.tokens[..self.prompt_tokens])
        });
        let sampled = sampler.sample(logits, banned)?;
        self.unsent_logprobs.extend(sampled.logprob);
        Ok(sampled.token)
    }

    fn take_token(
        &mut self,
        token: u32,
        text: &TextModel,
        context_tokens_max: usize,
        events: &mut Vec<Event>,
    ) -> bool {
        Arc::make_mut(&mut self.tokens).push(token);
        if self.tokens.len().is_multiple_of(BLOCK_TOKENS) {
            hash_full_blocks(&self.tokens, Arc::make_mut(&mut self.hashes));
        }
        self.unsent.push(token);
        self.usage.completion_tokens += 1;

        let ends = self.ends.contains(&token);
        let mut chunk = if ends { Chunk::default() } else { self.output.push(text, token) };
        self.usage.reasoning_tokens += u32::from(self.output.in_reasoning());

        let reason = if ends || chunk.stop.is_some() {
            Some(FinishReason::Stop)
        } else if self.usage.completion_tokens >= self.stop.max_tokens
            || self.tokens.len() >= context_tokens_max
        {
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
        if reason.is_some() || !chunk.text.is_empty() || !chunk.reasoning.is_empty() {
            let (tokens, logprobs) = (mem::take(&mut self.unsent), mem::take(&mut self.unsent_logprobs));
            let kind = EventKind::Delta { text: chunk.text, reasoning: chunk.reasoning, tokens, logprobs };
            self.emit(events, kind);
        }
        if let Some(reason) = reason {
            let reason = if chunk.stop.is_some() { FinishReason::Stop } else { reason };
            self.emit(events, EventKind::Finished { reason, stop_string: chunk.stop, usage: self.usage });
        }
        reason.is_some()
    }

    fn emit(&self, events: &mut Vec<Event>, kind: EventKind) {
        events.push(Event { job: self.job, choice: self.choice, kind });
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
    use crate::text::tests::demo;

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
        let mut sequences: Vec<Sequence> = Sequence::of_job(&job, &text, 1).collect();
        assert_eq!(sequences[0].hashes.len(), 62);
        for other in &sequences[1..] {
            assert!(Arc::ptr_eq(&sequences[0].tokens, &other.tokens));
            assert!(Arc::ptr_eq(&sequences[0].hashes, &other.hashes));
            assert!(Arc::ptr_eq(&sequences[0].sampling, &other.sampling));
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
