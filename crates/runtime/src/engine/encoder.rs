//! Engine of encoders: inputs in, vectors and scores out, one step at a time. It resembles [`super::Engine`], but
//! each input is computed whole in one step, so there is no KV cache.
//!
//! A step takes inputs in the order of the fair queue until its rows are full. Rows are packed without padding, so
//! inputs need not be sorted by length. For a model with one space for texts and pictures, one picture at a time
//! goes through the tower, a layer beside each step of texts.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use hanzo_engine_ops::{AnyBackend, Batch, KernelError, RowSource, SequenceSpan};
use serde::{Deserialize, Serialize};

use super::{EngineMemory, EngineStats, StepReport, pictures::RowCache};
use crate::{
    embedding::{EmbedInput, EmbedResult, Embedder, Output, Readout, Rows},
    encoder::{Encoder, EncoderFiles, WeightType},
    error::StepError,
    fair::{FairLine, Order},
    job::{EmbedJob, Event, EventKind, JobId},
    vision::{Piece, Tower, Towers},
};

/// Rows whose logits over the vocabulary are on the host at once.
const VOCABULARY_ROWS: usize = 64;

/// Size of an encoder's engine. All bounds are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderConfig {
    /// Rows at which a step is full; a step with a single input may have as many as that input.
    pub step_tokens: usize,
    /// Maximum inputs of a step.
    pub sequences_max: usize,
    /// Maximum tokens of an input.
    pub input_tokens_max: usize,
}

impl EncoderConfig {
    /// Rows of the largest step.
    fn rows_max(&self) -> usize {
        self.step_tokens.max(self.input_tokens_max)
    }
}

/// Engine: one encoder on one device.
pub struct EncoderEngine {
    backend: AnyBackend,
    encoder: Encoder,
    embedder: Arc<Embedder>,
    config: EncoderConfig,
    line: FairLine,
    waiting: BTreeMap<Order, QueuedInput>,
    held: HashSet<JobId>,
    batch: Batch,
    step: Vec<QueuedInput>, // inputs of the batch, in its order
    rows: Vec<f32>,         // hidden states, or logits over the vocabulary
    seeing: Option<PictureEncoder>,
    prompt_tokens: u64,
    steps: u64,
}

/// Tower for pictures, and the picture that is being computed.
struct PictureEncoder {
    tower: Box<dyn Towers>,
    on_its_way: Option<OnItsWay>,
    kept: RowCache,
    seen: u64,     // pictures that went through the tower
    found: u64,    // pictures whose vectors were kept
    tokens: u64,   // of all pictures
    media_ns: u64, // time of the tower
}

struct OnItsWay {
    waiting: QueuedInput,
    begun: bool,
}

/// Input that waits for its batch.
struct QueuedInput {
    job: JobId,
    choice: u32,
    input: EmbedInput,
    output: Output,
}

impl QueuedInput {
    fn is_picture(&self) -> bool {
        !self.input.media.is_empty()
    }

    /// Event for a result; `None` stands for a result that is not a number.
    fn event(&self, computed: Option<EmbedResult>) -> Event {
        let kind = computed.map_or(EventKind::Failed, EventKind::Computed);
        Event { job: self.job, choice: self.choice, kind }
    }

    fn readout(&self, embedder: &Embedder) -> Readout {
        Readout::new(embedder, self.output, &self.input.tokens, self.input.prompt_tokens)
    }
}

impl EncoderEngine {
    /// Memory that [`EncoderEngine::new`], the weights in this type, and the tower take.
    pub fn memory(
        backend: &AnyBackend,
        files: &EncoderFiles,
        weight_type: WeightType,
        config: &EncoderConfig,
    ) -> EngineMemory {
        let plan = Encoder::plan(backend, files, weight_type);
        let EncoderConfig { sequences_max, input_tokens_max, .. } = *config;
        let limits = files.spec.step_limits(config.rows_max(), sequences_max, input_tokens_max);
        let vocabulary =
            if files.spec.head.masked_lm().is_some() { VOCABULARY_ROWS * files.spec.vocab } else { 0 };
        let rows = (config.rows_max() * files.spec.hidden).max(vocabulary) * size_of::<f32>();
        let own = EngineMemory {
            weights_bytes: plan.weights_bytes,
            kv_bytes: 0,
            scratch_bytes: plan.scratch_bytes(backend, &limits) + rows as u64,
        };
        let seeing = files.tower.as_ref().map(|tower| Tower::memory(backend, tower, input_tokens_max));
        own + seeing.unwrap_or_default()
    }

    /// Allocates all scratch. Nothing of the kind is allocated later.
    ///
    /// # Errors
    /// The backend's, if it cannot give the memory.
    pub fn new(
        mut backend: AnyBackend,
        mut encoder: Encoder,
        embedder: Arc<Embedder>,
        config: EncoderConfig,
    ) -> Result<Self, KernelError> {
        let EncoderConfig { sequences_max, input_tokens_max, .. } = config;
        let limits = encoder.spec().step_limits(config.rows_max(), sequences_max, input_tokens_max);
        encoder.prepare(&mut backend, &limits)?;
        Ok(EncoderEngine {
            backend,
            encoder,
            config,
            line: FairLine::default(),
            waiting: BTreeMap::new(),
            held: HashSet::new(),
            batch: Batch::default(),
            step: Vec::with_capacity(sequences_max),
            rows: Vec::new(),
            seeing: None,
            prompt_tokens: 0,
            steps: 0,
            embedder,
        })
    }

    /// Adds a tower that computes vectors of pictures.
    #[must_use]
    pub fn with_tower(mut self, tower: Box<dyn Towers>) -> Self {
        let kept = RowCache::new(tower.kept_bytes());
        self.seeing =
            Some(PictureEncoder { tower, on_its_way: None, kept, seen: 0, found: 0, tokens: 0, media_ns: 0 });
        self
    }

    /// Runs one step with as many inputs as fit. Does nothing if there is no work. After an error the engine cannot
    /// be used any longer.
    ///
    /// # Errors
    /// The backend's.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        self.step_by(|| 0, events)
    }

    /// Runs a step like [`EncoderEngine::step`], with the caller's clock in nanoseconds, which measures the time of
    /// pictures.
    ///
    /// # Errors
    /// The backend's.
    pub fn step_by(
        &mut self,
        clock: impl Fn() -> u64,
        events: &mut Vec<Event>,
    ) -> Result<StepReport, StepError> {
        let mut report = self.schedule(events);
        if report.sequences > 0 {
            self.encoder.forward(&mut self.backend, &self.batch)?;
            self.commit(events)?;
        }
        let began = clock();
        if let Some(seeing) = &mut self.seeing
            && let Some(tokens) = seeing.step(report.sequences == 0, &self.embedder, events)?
        {
            seeing.media_ns += clock().saturating_sub(began);
            seeing.tokens += tokens as u64;
            report.sequences += 1;
            report.prefill_tokens += tokens;
        }
        self.steps += u64::from(report.sequences > 0);
        Ok(report)
    }

    /// Queues the inputs of a job. They come from [`Embedder`].
    pub fn submit_inputs(&mut self, job: &EmbedJob) {
        let mut arrival = self.line.arrive(job.arriving());
        for (input, choice) in job.inputs.iter().zip(0..) {
            self.prompt_tokens += input.tokens.len() as u64;
            self.line.wait(job.id);
            let waiting = QueuedInput { job: job.id, choice, input: input.clone(), output: job.output };
            self.waiting.insert(arrival.next(input.tokens.len()), waiting);
        }
    }

    /// Cancels a job. No further event names it.
    pub fn cancel(&mut self, job: JobId) {
        let line = &mut self.line;
        self.waiting.retain(|_, waiting| {
            let keep = waiting.job != job;
            if !keep {
                line.leave(job);
            }
            keep
        });
        if let Some(seeing) = &mut self.seeing {
            seeing.on_its_way.take_if(|on_its_way| on_its_way.waiting.job == job);
        }
        self.held.remove(&job);
    }

    /// Pauses or resumes a job.
    pub fn set_paused(&mut self, job: JobId, paused: bool) {
        if paused {
            self.held.insert(job)
        } else {
            self.held.remove(&job)
        };
    }

    /// Whether a step would compute something.
    pub fn has_work(&self) -> bool {
        self.seeing.as_ref().is_some_and(|seeing| seeing.on_its_way.is_some())
            || self.waiting.values().any(|waiting| !self.held.contains(&waiting.job))
    }

    /// Current gauges and counters.
    pub fn stats(&self) -> EngineStats {
        let seeing = |count: fn(&PictureEncoder) -> u64| self.seeing.as_ref().map_or(0, count);
        EngineStats {
            waiting: self.waiting.len(),
            prompt_tokens: self.prompt_tokens,
            steps: self.steps,
            frames_seen: seeing(|seeing| seeing.seen),
            frames_kept: seeing(|seeing| seeing.found),
            media_tokens: seeing(|seeing| seeing.tokens),
            media_ns: seeing(|seeing| seeing.media_ns),
            ..EngineStats::default()
        }
    }

    /// Fills the batch with the first inputs in the queue.
    fn schedule(&mut self, events: &mut Vec<Event>) -> StepReport {
        self.batch.clear();
        self.step.clear();
        while self.step.len() < self.config.sequences_max {
            let (held, seeing) = (&self.held, self.seeing.as_ref());
            let waits = seeing.is_some_and(|seeing| seeing.on_its_way.is_some());
            let next = self
                .waiting
                .iter()
                .find(|(_, waiting)| !(held.contains(&waiting.job) || waits && waiting.is_picture()));
            let Some((&order, waiting)) = next else { break };
            let (tokens, is_picture) = (waiting.input.tokens.len(), waiting.is_picture());
            if !is_picture && self.batch.rows() > 0 && self.batch.rows() + tokens > self.config.step_tokens {
                break;
            }
            let waiting = self.waiting.remove(&order).expect("it was just seen");
            self.line.begin(order, tokens);
            self.line.leave(waiting.job);
            if waiting.choice == 0 {
                let kind = EventKind::Started { cached_tokens: 0 };
                events.push(Event { job: waiting.job, choice: 0, kind });
            }
            if is_picture {
                match &mut self.seeing {
                    Some(seeing) => seeing.on_its_way = Some(OnItsWay { waiting, begun: false }),
                    None => events.push(waiting.event(None)),
                }
                continue;
            }
            put(&mut self.batch, &waiting.input, self.encoder.spec().type_vocab > 0);
            self.step.push(waiting);
        }
        let (prefill_tokens, sequences) = (self.batch.rows(), self.step.len());
        StepReport { prefill_tokens, sequences, ..StepReport::default() }
    }

    /// Reads the results of the step.
    fn commit(&mut self, events: &mut Vec<Event>) -> Result<(), KernelError> {
        let Self { backend, encoder, embedder, batch, rows, .. } = self;
        let readouts: Vec<Readout> = self.step.iter().map(|waiting| waiting.readout(embedder)).collect();
        let (hidden, vocab) = (embedder.hidden, embedder.vocab);
        let wants_all = |readout: &Readout| readout.rows() == Rows::All && !readout.wants_vocabulary();
        // One copy of all rows is faster than many copies of a few.
        let all = readouts.iter().any(wants_all);
        if all {
            rows.resize(batch.rows() * hidden, 0.0);
            encoder.read_rows(backend, 0, rows)?;
        }
        let mut vocabulary_wanted = false;
        for ((waiting, mut readout), span) in self.step.iter().zip(readouts).zip(&batch.sequences) {
            if readout.wants_vocabulary() {
                vocabulary_wanted = true;
                continue;
            }
            let (first, count) = (span.row_first as usize, span.rows as usize);
            let wanted = match readout.rows() {
                Rows::All => first..first + count,
                Rows::First => first..first + 1,
                Rows::Last => first + count - 1..first + count,
            };
            if all {
                readout.push(&rows[wanted.start * hidden..wanted.end * hidden], embedder);
            } else {
                rows.resize(hidden, 0.0);
                encoder.read_rows(backend, wanted.start, rows)?;
                readout.push(rows, embedder);
            }
            finish(waiting, readout, embedder, events);
        }
        if vocabulary_wanted {
            for (index, waiting) in self.step.iter().enumerate() {
                let mut readout = waiting.readout(embedder);
                if !readout.wants_vocabulary() {
                    continue;
                }
                let SequenceSpan { row_first, rows: count, .. } = batch.sequences[index];
                let mut row = row_first;
                while row < row_first + count {
                    let end = (row_first + count).min(row + VOCABULARY_ROWS as u32);
                    batch.logit_rows.clear();
                    batch.logit_rows.extend(row..end);
                    rows.resize((end - row) as usize * vocab, 0.0);
                    encoder.vocabulary_logits(backend, batch, rows)?;
                    readout.push(rows, embedder);
                    row = end;
                }
                finish(waiting, readout, embedder, events);
            }
        }
        Ok(())
    }
}

fn finish(waiting: &QueuedInput, readout: Readout, embedder: &Embedder, events: &mut Vec<Event>) {
    events.push(waiting.event(readout.finish(embedder)));
}

impl PictureEncoder {
    /// Computes one piece of a picture: a layer beside texts, or the whole picture otherwise. Returns the tokens
    /// that this completed; `None` if there is nothing to do.
    fn step(
        &mut self,
        alone: bool,
        embedder: &Embedder,
        events: &mut Vec<Event>,
    ) -> Result<Option<usize>, KernelError> {
        let Some(OnItsWay { waiting, begun }) = &mut self.on_its_way else { return Ok(None) };
        let span = &waiting.input.media[0];
        let kept = if *begun { None } else { self.kept.get(&span.digest) };
        let vector = match kept {
            Some(vector) => {
                self.found += 1;
                vector
            }
            None => {
                if !*begun {
                    self.tower.begin(span)?;
                    *begun = true;
                }
                let layers = if alone { self.tower.layers() } else { 1 };
                let Some(vector) = self.tower.advance(Piece::Layers(layers))? else { return Ok(Some(0)) };
                self.seen += 1;
                let vector: Arc<[f32]> = vector.into();
                self.kept.put(span.digest, vector.clone());
                vector
            }
        };
        events.push(waiting.event(embedder.of_picture(vector.to_vec(), waiting.output)));
        let tokens = waiting.input.tokens.len();
        self.on_its_way = None;
        Ok(Some(tokens))
    }
}

/// Adds an input's rows to a batch. A network without token types gets type 0 for all, even if its tokenizer, made
/// for another network, says otherwise.
fn put(batch: &mut Batch, input: &EmbedInput, knows_types: bool) {
    let (first, rows) = (batch.rows() as u32, input.tokens.len() as u32);
    batch.sequences.push(SequenceSpan { row_first: first, rows, context: rows, table_first: 0 });
    batch.sources.extend(input.tokens.iter().copied().map(RowSource::Token));
    batch.positions.extend(0..rows);
    if input.types.is_empty() || !knows_types {
        batch.types.resize(batch.rows(), 0);
    } else {
        batch.types.extend_from_slice(&input.types);
    }
}
