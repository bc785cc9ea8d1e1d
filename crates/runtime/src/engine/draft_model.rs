//! Speculative decoding with a draft model: a smaller model continues each completion greedily. It has its own
//! backend and KV cache, and each of its steps adds one token to all completions. Its cache of a completion is kept
//! from draft to draft as far as the draft tokens were accepted. Its prompts use the prefix cache like the
//! target's. It may fall behind: it computes a prompt in parts, one part per step. It drafts nothing for a
//! completion without a free block, or whose drafts are rejected too often.
//!
//! The chance that a draft token is accepted is estimated from the draft model's probability for it: acceptance is
//! counted for each class of probabilities. A completion whose drafts were all rejected is skipped, for twice as
//! many steps each time, and in the end for good.

use std::collections::BTreeMap;

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, BLOCK_TOKENS, KernelError, RowSource, SampleSpec, SampledToken, StepLimits,
};

use super::{EngineConfig, EngineMemory};
use crate::{
    decoder::Decoder,
    error::LoadError,
    fair::Order,
    kv::{BlockHash, BlockPool, BlockTables},
    limits::{DRAFT_CALLS_SKIPPED, DRAFT_FAILURES_MAX},
    model_files::ModelFiles,
    spec::TransformerSpec,
    speculation::DraftRequest,
    step::Step,
    tokenizer::Tokenizer,
};

/// Lower bounds of the classes of the draft model's probabilities.
const CLASSES: [f32; 6] = [0.0, 0.3, 0.5, 0.7, 0.9, 0.97];
/// Initial acceptance rate of each class.
const RIGHT_EXPECTED: [f32; CLASSES.len()] = [0.15, 0.35, 0.5, 0.7, 0.85, 0.95];
/// Weight of the newest token in an acceptance rate: in a completion's own rate and in the common one.
const RATE_STEP: f32 = 0.1;
const COMMON_RATE_STEP: f32 = 0.01;

/// Model that drafts for another one with the same vocabulary.
pub struct DraftModel {
    backend: AnyBackend,
    decoder: Decoder,
    kv: ops::Kv,
    pool: BlockPool,
    step: Step,
    drawn: Vec<Option<SampledToken>>,
    room: Vec<f32>,
    size: EngineConfig,
    parameters: u64,
    vocab: usize,                // tokens that both models have rows for
    rates: [f32; CLASSES.len()], // acceptance rates over all completions
    drafted: BTreeMap<Order, DraftState>,
    skipped: usize, // consecutive calls in which no draft token could have been worth its row
    begun: Vec<BlockHash>, // first blocks of the prompts that this step starts
}

/// Work done by a call of [`DraftModel::draft`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftWork {
    /// No computation.
    Idle,
    /// Computed prompts only: there is no draft token.
    Prepared,
    /// Drafted at least one token.
    Drafted,
}

/// State of a completion.
struct DraftState {
    tables: BlockTables,
    computed: usize,         // tokens in the cache; draft tokens after them may be cached too
    published: usize,        // blocks that the index can find
    said: Vec<(u32, usize)>, // draft tokens after those, with their classes; all but the last are cached
    given: usize,            // draft tokens given to the target
    rates: [f32; CLASSES.len()],
    failures: u32, // consecutive drafts that were rejected entirely
    pause: u32,    // drafts to skip
}

/// Part of a call for one completion.
struct Round {
    asked: usize,
    rows: usize, // of its own tokens
    most: usize, // tokens to draft; 0: its prompt is not computed yet
    chance: f32, // that the draft so far is accepted
}

impl DraftModel {
    /// Configuration of the draft model beside an engine for `target` with this configuration, so that it can hold
    /// the same sequences.
    fn size(spec: &TransformerSpec, target: &TransformerSpec, config: &EngineConfig) -> EngineConfig {
        // A whole multiple, so that memory grows evenly with each block.
        let times = spec.kv_groups().count().div_ceil(target.kv_groups().count());
        // Beyond the original context its keys would have to be computed again: it only drafts within it.
        let context = spec.long_after().unwrap_or(usize::MAX).min(spec.context_tokens_max as usize);
        EngineConfig {
            kv_blocks: config.kv_blocks * times,
            context_tokens_max: config.context_tokens_max.min(context),
            ..*config
        }
    }

    fn limits(spec: &TransformerSpec, size: &EngineConfig) -> StepLimits {
        spec.step_limits(size.step_tokens_max, size.sequences_max, size.context_tokens_max)
    }

    /// Memory it takes beside an engine for `target` with this configuration.
    pub fn memory(
        backend: &AnyBackend,
        files: &ModelFiles,
        target: &TransformerSpec,
        config: &EngineConfig,
    ) -> EngineMemory {
        let size = Self::size(&files.spec, target, config);
        let (plan, limits) = (Decoder::plan(backend, files), Self::limits(&files.spec, &size));
        let room = limits.logit_rows * files.spec.vocab * size_of::<f32>();
        EngineMemory {
            weights_bytes: plan.weights_bytes,
            kv_bytes: backend.kv_bytes(&size.kv_spec(&files.spec)) as u64,
            scratch_bytes: plan.scratch_bytes(backend, &limits) + room as u64,
        }
    }

    /// Allocates its KV cache and all scratch, for an engine for `target` with this configuration. `backend` is its
    /// own; `parameters` counts the decoder's parameters.
    ///
    /// # Errors
    /// The backend's, if it cannot give the memory.
    pub fn new(
        mut backend: AnyBackend,
        mut decoder: Decoder,
        parameters: u64,
        target: &TransformerSpec,
        config: &EngineConfig,
    ) -> Result<Self, KernelError> {
        let size = Self::size(decoder.spec(), target, config);
        let limits = Self::limits(decoder.spec(), &size);
        decoder.prepare(&mut backend, &limits)?;
        let spec = decoder.spec();
        Ok(DraftModel {
            kv: backend.kv(&size.kv_spec(spec))?,
            pool: BlockPool::of_groups(size.kv_blocks, size.prefix_cache, spec.kv_room(size.step_tokens_max)),
            step: Step::of_windows(spec.kv_groups().windows),
            drawn: Vec::new(),
            vocab: spec.vocab.min(target.vocab),
            room: vec![0.0; limits.logit_rows * spec.vocab],
            size,
            rates: RIGHT_EXPECTED,
            drafted: BTreeMap::new(),
            skipped: 0,
            begun: Vec::new(),
            parameters,
            backend,
            decoder,
        })
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// Forgets completions that no longer run.
    pub fn keep(&mut self, runs: impl Fn(Order) -> bool) {
        let pool = &mut self.pool;
        self.drafted.retain(|&order, drafted| {
            let runs = runs(order);
            if !runs {
                drafted.tables.leave(pool);
            }
            runs
        });
    }

    /// Drafts for these completions. Each draft token has a chance of at least `least` to be accepted.
    ///
    /// # Errors
    /// The device's: the draft model cannot be used any longer.
    pub fn draft(&mut self, asked: &mut [DraftRequest<'_>], least: f32) -> Result<DraftWork, KernelError> {
        if self.rates.iter().all(|&right| right < least) {
            self.skipped += 1;
            if !self.skipped.is_multiple_of(DRAFT_CALLS_SKIPPED) {
                return Ok(DraftWork::Idle);
            }
        }
        let mut rows = self.size.prefill_tokens_beside_decodes.max(self.size.sequences_max);
        rows = rows.min(self.size.step_tokens_max);
        self.begun.clear();
        let most = self.size.sequences_max;
        let rounds = asked.iter().enumerate().take(most);
        let mut rounds: Vec<Round> =
            rounds.filter_map(|(index, asked)| self.begin(index, asked, &mut rows)).collect();
        if rounds.is_empty() {
            return Ok(DraftWork::Idle);
        }
        self.step.clear();
        for round in &rounds {
            let asked = &asked[round.asked];
            let drafted =
                self.drafted.get_mut(&asked.order).expect("a round is of one that it has begun with");
            let end = drafted.computed + round.rows;
            write(&mut self.step, &asked.tokens[drafted.computed..end], end, &drafted.tables, round.most > 0);
            drafted.computed = end;
            drafted.publish(asked.hashes, &mut self.pool);
        }
        rounds.retain(|round| round.most > 0);
        loop {
            self.compute()?;
            let Self { drawn, drafted, vocab, .. } = self;
            let mut drawn = drawn.drain(..);
            rounds.retain_mut(|round| {
                let asked = &mut asked[round.asked];
                let drafted =
                    drafted.get_mut(&asked.order).expect("a round is of one that it has begun with");
                let sampled = drawn.next().flatten().filter(|sampled| (sampled.token as usize) < *vocab);
                sampled.is_some_and(|sampled| round.take(&sampled, drafted, asked.draft, least))
            });
            drop(drawn);
            if rounds.is_empty() {
                break;
            }
            self.step.clear();
            for DraftRequest { order, tokens, draft, .. } in rounds.iter().map(|round| &asked[round.asked]) {
                let (end, last) = (tokens.len() + draft.len(), &draft[draft.len() - 1..]);
                write(&mut self.step, last, end, &self.drafted[order].tables, true);
            }
        }
        let nothing = asked.iter().all(|asked| asked.draft.is_empty());
        Ok(if nothing { DraftWork::Prepared } else { DraftWork::Drafted })
    }

    /// Plans the work for a completion within the rows left; `None` if nothing is drafted for it.
    fn begin(&mut self, index: usize, asked: &DraftRequest<'_>, rows_left: &mut usize) -> Option<Round> {
        let DraftRequest { order, tokens, hashes, most, .. } = *asked;
        let vocab = self.vocab;
        // The last draft token is not computed.
        let most = most.min(self.size.context_tokens_max.saturating_sub(tokens.len()));
        let usable = most > 0 && *rows_left > 0;
        let hashes = &hashes[..hashes.len().min((tokens.len() - 1) / BLOCK_TOKENS)];
        let fresh = !self.drafted.contains_key(&order);
        if fresh {
            let unknown = tokens.iter().any(|&token| token as usize >= vocab);
            let needed = BlockTables::needed(&self.pool, hashes, tokens.len());
            // If another completion computes the same prompt, the next step finds it in the cache.
            let (found, _) = self.pool.find_prefix(hashes);
            let waits = self.pool.shares() && hashes.get(found).is_some_and(|next| self.begun.contains(next));
            if !usable || unknown || waits || needed > self.pool.free() {
                return None;
            }
            self.begun.extend(hashes.get(found));
            let mut tables = BlockTables::default();
            let shared = tables.enter(&mut self.pool, hashes, tokens.len(), false).prefix;
            self.drafted.insert(order, DraftState::new(tables, shared, self.rates));
        }
        let drafted = self.drafted.get_mut(&order).expect("it was put there where it was not");
        drafted.settle(tokens, &mut self.rates);
        if drafted.failures >= DRAFT_FAILURES_MAX {
            // Its drafts are rejected too often: it is dropped.
            drafted.tables.leave(&mut self.pool);
            drafted.computed = 0;
            return None;
        }
        if drafted.pause > 0 {
            drafted.pause -= 1;
            return None;
        }
        let missing = &tokens[drafted.computed..];
        if !usable || missing.iter().any(|&token| token as usize >= vocab) {
            return None;
        }
        let rows = missing.len().min(*rows_left);
        let ends = rows == missing.len();
        let most = if ends { most.min(self.size.step_tokens_max - rows + 1) } else { 0 };
        let ahead = rows + most.saturating_sub(1);
        let first = drafted.computed;
        let room =
            drafted.tables.grow(&mut self.pool, first..first + ahead, tokens.len().max(first + ahead), 0);
        if room < rows {
            // It waits until others have left, and starts again.
            let mut drafted = self.drafted.remove(&order).expect("it was there just now");
            drafted.tables.leave(&mut self.pool);
            return None;
        }
        *rows_left -= rows;
        let most = most.min(room - rows + 1);
        Some(Round { asked: index, rows, most, chance: 1.0 })
    }

    fn compute(&mut self) -> Result<(), KernelError> {
        let rows = self.step.draws.rows.len() * self.decoder.spec().vocab;
        let room = &mut self.room[..rows];
        let ticket = self.decoder.submit(&mut self.backend, &mut self.step, &mut self.kv, room)?;
        self.backend.wait(ticket, &mut self.drawn)
    }

    /// Checks the consistency of its KV cache's books. For tests.
    ///
    /// # Panics
    /// If they are inconsistent.
    pub fn check(&self) {
        self.pool.check(self.drafted.values().map(|drafted| &drafted.tables));
        self.drafted.values().for_each(|drafted| drafted.tables.check(&self.pool, drafted.computed));
    }
}

impl DraftState {
    fn new(tables: BlockTables, shared: usize, rates: [f32; CLASSES.len()]) -> DraftState {
        DraftState {
            tables,
            computed: shared * BLOCK_TOKENS,
            published: shared,
            said: Vec::new(),
            given: 0,
            rates,
            failures: 0,
            pause: 0,
        }
    }

    /// Compares the draft with the actual tokens, and keeps the cache as far as they agree. At least the last
    /// actual token is computed again, to predict the next.
    fn settle(&mut self, tokens: &[u32], common: &mut [f32; CLASSES.len()]) {
        let came = tokens.get(self.computed..).unwrap_or_default();
        if !self.said.is_empty() && !came.is_empty() {
            let mut right = 0;
            for (&(said, class), &token) in self.said.iter().zip(came) {
                let is_right = f32::from(u8::from(said == token));
                self.rates[class] += (is_right - self.rates[class]) * RATE_STEP;
                common[class] += (is_right - common[class]) * COMMON_RATE_STEP;
                if said != token {
                    break;
                }
                right += 1;
            }
            self.failures = if right.min(self.given) > 0 { 0 } else { self.failures + 1 };
            self.pause = (1 << self.failures.saturating_sub(1).min(DRAFT_FAILURES_MAX)) - 1;
            // The last draft token is not cached.
            self.computed += right.min(self.said.len() - 1);
        }
        self.computed = self.computed.min(tokens.len() - 1);
        self.said.clear();
    }

    fn publish(&mut self, hashes: &[BlockHash], pool: &mut BlockPool) {
        while self.published < (self.computed / BLOCK_TOKENS).min(hashes.len()) {
            self.tables.publish(pool, self.published, hashes[self.published]);
            self.published += 1;
        }
    }
}

impl Round {
    /// Adds the draft model's next token; returns whether to continue.
    fn take(
        &mut self,
        sampled: &SampledToken,
        of: &mut DraftState,
        draft: &mut Vec<u32>,
        least: f32,
    ) -> bool {
        let probability = sampled.logprob.as_ref().map_or(0.0, |logprob| logprob.logprob.exp());
        let class = CLASSES.iter().rposition(|&bound| probability >= bound).unwrap_or(0);
        if draft.is_empty() {
            of.given = 0;
        }
        of.said.push((sampled.token, class));
        self.chance *= of.rates[class];
        if self.chance < least {
            return false;
        }
        draft.push(sampled.token);
        of.given = draft.len();
        draft.len() < self.most
    }
}

/// Adds rows of a sequence to the step: its first `end` tokens end with them. With `draws`, the most likely token
/// after the last row is sampled.
fn write(step: &mut Step, tokens: &[u32], end: usize, tables: &BlockTables, draws: bool) {
    step.batch.sources.extend(tokens.iter().copied().map(RowSource::Token));
    if draws {
        step.batch.logit_rows.push(step.batch.rows() as u32 - 1);
        step.draws.rows.push(SampleSpec { logprobs: Some(0), ..SampleSpec::default() });
    }
    step.batch.push_sequence(tokens.len(), end, |group, index| tables.block(group, index));
}

/// Refuses a draft model whose tokens differ from the target's. Rows of either network beyond the tokenizer's
/// vocabulary are ignored.
///
/// # Errors
/// [`LoadError::Unsupported`] naming the first token that differs.
pub fn check_vocabulary(draft: &ModelFiles, own: &Tokenizer) -> Result<(), LoadError> {
    let theirs = Tokenizer::load(&draft.text)?;
    let refuse = |value: String, reason: String| {
        let file = draft.info.name.clone();
        Err(LoadError::Unsupported { file, key: "draft_model".to_owned(), value, reason })
    };
    let count = own.vocab_size();
    if theirs.vocab_size() != count {
        let value = format!("{} tokens", theirs.vocab_size());
        return refuse(value, format!("a draft model has its model's vocabulary, which is {count} tokens"));
    }
    let written = |tokenizer: &Tokenizer, id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    let differs = |&id: &u32| {
        theirs.token_bytes(id) != own.token_bytes(id) || theirs.is_special(id) != own.is_special(id)
    };
    match (0..count as u32).find(differs) {
        None => Ok(()),
        Some(id) => refuse(
            format!("token {id}, {:?}", written(&theirs, id)),
            format!("a draft model has its model's vocabulary, where that is {:?}", written(own, id)),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_was_drafted_that_is_kept_which_came() {
        // Ten tokens are computed, and two of the three draft tokens after them.
        let settled = |came: &[u32], failures: u32| {
            let mut drafted = DraftState::new(BlockTables::default(), 0, RIGHT_EXPECTED);
            (drafted.computed, drafted.given, drafted.failures) = (10, 3, failures);
            drafted.said = vec![(5, 0), (6, 0), (7, 0)];
            let tokens: Vec<u32> = (100..110).chain(came.iter().copied()).collect();
            let mut common = RIGHT_EXPECTED;
            drafted.settle(&tokens, &mut common);
            assert!(drafted.said.is_empty());
            (drafted.computed, drafted.failures, drafted.pause)
        };
        assert_eq!(settled(&[5, 6, 7, 8], 3), (12, 0, 0), "the third is in no cache");
        assert_eq!(settled(&[5, 6, 9], 3), (12, 0, 0));
        assert_eq!(settled(&[5, 9], 0), (11, 0, 0));
        assert_eq!(settled(&[9], 0), (10, 1, 0));
        assert_eq!(settled(&[9], 3), (10, 4, 7), "it is left alone for longer each time");
        assert_eq!(settled(&[], 2), (9, 2, 0), "the last is computed again for what follows it");
    }
}
