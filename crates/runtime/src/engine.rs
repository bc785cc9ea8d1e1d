//! The engine: jobs in, events out, one step at a time. `step` is the whole system.
//!
//! It belongs to one thread and knows no clock: its caller decides when to step, and measures.

mod adapters;
mod draft_model;
mod encoder;
mod kept;
mod memories;
mod pictures;
mod sizes;

use std::{mem, sync::Arc};

use hanzo_engine_kernels::{
    AnyBackend, Backend, KernelError, KvSpec, KvType, Sampled, StepLimits, Ticket, ops,
};
use serde::{Deserialize, Serialize};

pub use crate::scheduler::StepReport;
use crate::{
    decoder::Decoder,
    embedding::Embedder,
    error::StepError,
    job::{EmbedJob, Event, Job, JobId},
    kv::BlockPool,
    limits::PICTURES_REMEMBERED,
    load::ModelFiles,
    media::MediaSpan,
    output::Hidden,
    scheduler::{Scheduler, SchedulerConfig, Settled},
    spec::TransformerSpec,
    speculation::Speculation,
    step::{Part, Step, Yields},
    text::TextModel,
    vision::Towers,
};
use adapters::Held;
pub use draft_model::{DraftModel, Drafting, check_vocabulary};
pub use encoder::{EncoderConfig, EncoderEngine};
use kept::Kept;
use memories::Memories;
pub use memories::Memory;
use pictures::{Pictures, Ready, Work};

/// How large an engine is made. All bounds are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// Blocks of 16 tokens in the KV cache, each of one group of layers ([`crate::kv`]).
    pub kv_blocks: usize,
    /// How keys and values are stored; [`hanzo_engine_kernels::KvSpec::check`] says whether a model's heads allow it.
    #[serde(with = "crate::wire::kv_type")]
    pub kv_type: KvType,
    /// The cache's memory is all in place when the engine is made ([`hanzo_engine_kernels::KvSpec::resident`]).
    pub kv_resident: bool,
    /// Rows of a step: prompt tokens and decoding sequences together.
    pub step_tokens_max: usize,
    /// Of them, prompt tokens beside sequences that decode: at most, where steps have not been seen to take too long then.
    pub prefill_tokens_beside_decodes: usize,
    /// Sequences that run at once; not above `step_tokens_max`.
    pub sequences_max: usize,
    /// Prompt and completion of one sequence; [`crate::kv::KvRoom::blocks_of`] so many fits `kv_blocks`.
    pub context_tokens_max: usize,
    /// Share the cache between sequences that begin alike.
    pub prefix_cache: bool,
    /// Where drafts come from.
    pub speculation: Speculation,
}

/// Whether a part of a step draws a token from each of its rows: it decodes, and may have drafted.
fn decodes(part: &Part) -> bool {
    matches!(part.yields, Yields::Tokens { scores: 0, draws, .. } if draws == part.rows)
}

impl EngineConfig {
    fn scheduler(&self, spec: &TransformerSpec) -> SchedulerConfig {
        SchedulerConfig {
            rows_max: self.step_tokens_max,
            prefill_rows_beside_decodes: self.prefill_tokens_beside_decodes,
            rows_together: spec.together.min(self.step_tokens_max),
            sequences_max: self.sequences_max,
            context_tokens_max: self.context_tokens_max,
            speculation: self.speculation,
            long_after: spec.long_after(),
        }
    }

    /// The cache of a model.
    pub fn kv_spec(&self, spec: &TransformerSpec) -> KvSpec {
        let of_model = spec.kv_spec(self.kv_blocks, self.kv_type, self.sequences_max);
        KvSpec { resident: self.kv_resident, ..of_model }
    }

    /// What of it a model allows: a state of a sequence stands for its end alone and cannot be taken back, so that where
    /// layers keep one no prefix is shared and nothing is drafted. What is computed in one step has its place beside decodes.
    pub fn within(self, spec: &TransformerSpec) -> Self {
        let together = spec.together.min(self.step_tokens_max);
        let prefill_tokens_beside_decodes = self.prefill_tokens_beside_decodes.max(together);
        let config = Self { prefill_tokens_beside_decodes, ..self };
        match spec.keeps_states() {
            true => Self { prefix_cache: false, speculation: Speculation::Off, ..config },
            false => config,
        }
    }

    /// The largest step.
    fn step_limits(&self, spec: &TransformerSpec) -> StepLimits {
        let limits = spec.step_limits(self.step_tokens_max, self.sequences_max, self.context_tokens_max);
        let logit_rows = if limits.logit_rows == 0 { 0 } else { self.scheduler(spec).logit_rows() };
        let context = limits.context.max(PICTURES_REMEMBERED * spec.picture_rows);
        StepLimits { logit_rows, context, ..limits }
    }
}

/// What an engine takes, to the byte, before it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineMemory {
    /// Packed weights.
    pub weights_bytes: u64,
    /// The KV cache.
    pub kv_bytes: u64,
    /// Activations, logits, and the backend's scratch.
    pub scratch_bytes: u64,
}

impl std::ops::Add for EngineMemory {
    type Output = EngineMemory;

    /// That of two engines.
    fn add(self, other: EngineMemory) -> EngineMemory {
        EngineMemory {
            weights_bytes: self.weights_bytes + other.weights_bytes,
            kv_bytes: self.kv_bytes + other.kv_bytes,
            scratch_bytes: self.scratch_bytes + other.scratch_bytes,
        }
    }
}

impl EngineMemory {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.scratch_bytes
    }
}

/// An engine's gauges and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// KV blocks.
    pub blocks_total: usize,
    /// Held by sequences.
    pub blocks_used: usize,
    /// Held by nobody, kept for reuse.
    pub blocks_cached: usize,
    /// Sequences running.
    pub running: usize,
    /// Sequences waiting.
    pub waiting: usize,
    /// Prompt tokens asked for.
    pub prompt_tokens: u64,
    /// Tokens drawn.
    pub generated_tokens: u64,
    /// Prompt tokens found in the cache.
    pub prefix_hit_tokens: u64,
    /// Times a sequence was put back.
    pub preemptions: u64,
    /// Steps run.
    pub steps: u64,
    /// Tokens drafted and computed in the hope that they would be drawn.
    pub draft_tokens: u64,
    /// Of them, those that were.
    pub accepted_draft_tokens: u64,
    /// Times a sequence that filled its context dropped tokens and went on.
    pub context_shifts: u64,
    /// Frames of pictures that went through the tower; those whose rows were kept did not.
    pub frames_seen: u64,
    /// Frames whose rows were kept.
    pub frames_kept: u64,
    /// Tokens of prompts, or inputs that became vectors, that stand for media.
    pub media_tokens: u64,
    /// What towers took, in nanoseconds, where somebody measured.
    pub media_ns: u64,
    /// KV blocks that were kept elsewhere and came back.
    pub fetched_blocks: u64,
}

/// One model on one device.
pub struct Engine {
    backend: AnyBackend,
    decoder: Decoder,
    kv: ops::Kv,
    text: Arc<TextModel>,
    embedder: Arc<Embedder>,
    pool: BlockPool,
    scheduler: Scheduler,
    step: Step,             // the one being made
    flight: Option<Flight>, // the one before, where the device computes it while the next is made
    drawn: Vec<Option<Sampled>>,
    room: Vec<f32>,              // where the host draws: (logit rows, vocab)
    hidden: Vec<f32>,            // hidden states of one input, as many rows as it has in a step
    adapters: Vec<Option<Held>>, // by slot
    steps: u64,
    see_ns: u64,   // of the last step, for what was seen
    media_ns: u64, // of all steps
    draft_model: Option<DraftModel>,
    pictures: Option<Pictures>, // what sees, and who waits for it
    memories: Option<Memories>, // what is remembered of pictures, where layers read that
    step_rows: usize,           // at most
    kept: Option<Kept>,         // where blocks are that have left the cache
    waited: Option<Waited>,     // the last step that the last call waited for
}

/// A step that was submitted.
struct Flight {
    ticket: Ticket,
    parts: Vec<Part>,
    drafting: Drafting,
}

/// A step that was waited for.
#[derive(Clone, Copy)]
struct Waited {
    rows: usize,
    prompt_rows: usize, // of them, those of sequences that do not decode
    sequences: usize,
    drafting: Drafting,
}

impl Engine {
    /// What [`Engine::new`] and the weights it is given take.
    pub fn memory(backend: &AnyBackend, files: &ModelFiles, config: &EngineConfig) -> EngineMemory {
        let plan = Decoder::plan(backend, files);
        let limits = config.step_limits(&files.spec);
        let room = backend.sample_room(limits.logit_rows, files.spec.vocab) * size_of::<f32>();
        EngineMemory {
            weights_bytes: plan.weights_bytes,
            kv_bytes: backend.kv_bytes(&config.kv_spec(&files.spec)) as u64
                + memories::kv_spec(&files.spec, config).map_or(0, |spec| backend.kv_bytes(&spec) as u64),
            scratch_bytes: plan.scratch_bytes(backend, &limits) + room as u64,
        }
    }

    /// Makes the KV cache and all scratch. Nothing of the kind is made later.
    pub fn new(
        mut backend: AnyBackend,
        mut decoder: Decoder,
        text: Arc<TextModel>,
        embedder: Arc<Embedder>,
        config: EngineConfig,
    ) -> Result<Self, KernelError> {
        let config = config.within(decoder.spec());
        let room = decoder.spec().kv_room(config.step_tokens_max);
        assert!(
            room.blocks_of(config.context_tokens_max) <= config.kv_blocks,
            "one sequence of {} tokens must fit {} blocks, or it would wait for ever",
            config.context_tokens_max,
            config.kv_blocks
        );
        let limits = config.step_limits(decoder.spec());
        decoder.prepare(&mut backend, &limits)?;
        let remembers = memories::kv_spec(decoder.spec(), &config);
        if let Some(remembers) = &remembers {
            decoder.make_memories(&backend, remembers)?;
        }
        Ok(Engine {
            memories: remembers.as_ref().map(Memories::new),
            step_rows: config.step_tokens_max,
            kv: backend.kv(&config.kv_spec(decoder.spec()))?,
            pool: BlockPool::of_groups(config.kv_blocks, config.prefix_cache, room)
                .with_states(decoder.spec().states_of(config.sequences_max)),
            scheduler: Scheduler::new(config.scheduler(decoder.spec())),
            step: Step::of_windows(decoder.spec().kv_groups().windows),
            flight: None,
            drawn: Vec::new(),
            room: vec![0.0; backend.sample_room(limits.logit_rows, text.vocab)],
            hidden: Vec::new(),
            adapters: Vec::new(),
            steps: 0,
            see_ns: 0,
            media_ns: 0,
            draft_model: None,
            pictures: None,
            kept: None,
            waited: None,
            backend,
            decoder,
            text,
            embedder,
        })
    }

    /// Has this model draft for it, whose vocabulary is its own ([`check_vocabulary`]).
    pub fn with_draft_model(mut self, model: DraftModel) -> Self {
        self.scheduler.expect_drafts(model.parameters() as f64 / self.text.info.parameters.max(1) as f64);
        Engine { draft_model: Some(model), ..self }
    }

    /// Has this tower see for it, whose rows are as wide as its own.
    pub fn with_tower(self, tower: Box<dyn Towers>) -> Self {
        Engine { pictures: Some(Pictures::new(tower)), ..self }
    }

    /// One step: everything that runs gets one token further, or one chunk of its prompt. Does nothing when there
    /// is nothing to do. Where the device computes on its own, the events are those of the step before. After an error the
    /// engine is of no further use.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        self.step_by(|| 0, events)
    }

    /// As [`Engine::step`], by its caller's clock, in nanoseconds: the report says what it took to decide on the step, and what is seen
    /// beside others is cut into pieces by how long they take ([`Engine::took`]). Nothing else is done by it.
    pub fn step_by(
        &mut self,
        clock: impl Fn() -> u64,
        events: &mut Vec<Event>,
    ) -> Result<StepReport, StepError> {
        self.waited = None;
        let reads =
            |flight: &Flight| flight.parts.iter().any(|part| matches!(part.yields, Yields::Hidden { .. }));
        if self.flight.as_ref().is_some_and(reads) || self.scheduler.needs_last_tokens() {
            self.settle(events)?;
        }
        self.take_fetched()?;
        let drafting = self.draft()?;
        let began = clock();
        let mut report = self.scheduler.schedule(&mut self.pool, &mut self.step, events);
        if report.sequences > 0 {
            report.schedule_ns = clock().saturating_sub(began);
        }
        self.save_evicted();
        self.see_ns = 0;
        if self.unseen() > 0 {
            let began = clock();
            self.see()?;
            self.see_ns = clock().saturating_sub(began);
            self.media_ns += self.see_ns;
        }
        let flight = if report.sequences > 0 { Some(self.launch(drafting)?) } else { None };
        self.settle(events)?;
        self.flight = flight;
        if self.backend.lookahead() == 0 {
            self.settle(events)?;
        }
        Ok(report)
    }

    /// Goes a piece further with what jobs are to see; one that has seen all enters.
    fn see(&mut self) -> Result<(), KernelError> {
        let alone = self.flight.is_none() && !self.scheduler.has_work();
        if self.remember(alone)? {
            return Ok(());
        }
        let Some(pictures) = &mut self.pictures else { return Ok(()) };
        let decoding = self.scheduler.decoding();
        // What is drafted takes its part of the step too.
        let rows: usize = self.step.parts.iter().filter(|part| decodes(part)).map(|part| part.rows).sum();
        let beside = (decoding > 0).then(|| {
            let [plain_s, drafted_s] =
                [decoding, rows.max(decoding)].map(|rows| self.scheduler.seconds_of(rows));
            plain_s.zip(drafted_s)
        });
        if let Some(ready) = pictures.step(beside)? {
            self.admit_seen(ready);
        }
        Ok(())
    }

    /// Has the draft model say what may come next.
    fn draft(&mut self) -> Result<Drafting, KernelError> {
        let Some(model) = &mut self.draft_model else { return Ok(Drafting::Idle) };
        model.keep(|order| self.scheduler.runs(order));
        let (mut asked, least) = self.scheduler.ask_drafts();
        model.draft(&mut asked, least)
    }

    /// Hands the step that was made to the device.
    fn launch(&mut self, drafting: Drafting) -> Result<Flight, KernelError> {
        let rows = self.backend.sample_room(self.step.draws.rows.len(), self.text.vocab);
        let room = &mut self.room[..rows];
        let ticket = self.decoder.submit(&mut self.backend, &mut self.step, &mut self.kv, room)?;
        self.scheduler.assume(&mut self.pool);
        self.steps += 1;
        Ok(Flight { ticket, parts: mem::take(&mut self.step.parts), drafting })
    }

    /// Waits for the step under way, if there is one, and takes what came of it.
    fn settle(&mut self, events: &mut Vec<Event>) -> Result<(), KernelError> {
        let Some(Flight { ticket, parts, drafting }) = self.flight.take() else { return Ok(()) };
        self.backend.wait(ticket, &mut self.drawn)?;
        let rows = parts.iter().map(|part| part.rows).sum();
        let prompt_rows = parts.iter().filter(|part| !decodes(part)).map(|part| part.rows).sum();
        self.waited = Some(Waited { rows, prompt_rows, sequences: parts.len(), drafting });
        let (backend, decoder) = (&self.backend, &self.decoder);
        let mut hidden = Hidden {
            embedder: &self.embedder,
            read: &mut |first, out| decoder.read_hidden(backend, first, out),
            rows: &mut self.hidden,
        };
        let settled = Settled { parts: &parts, drawn: &mut self.drawn, hidden: &mut hidden };
        self.scheduler.settle(settled, &self.text, &mut self.pool, events)?;
        self.step.parts = parts;
        Ok(())
    }

    /// Hears how long the last call of [`Engine::step`] took: what rows cost decides how many tokens are drafted and how much of
    /// a prompt goes beside what decodes, and no more.
    pub fn took(&mut self, seconds: f32) {
        let seen_s = self.see_ns as f32 / 1e9;
        if let Some(pictures) = &mut self.pictures {
            pictures.took(seen_s);
        }
        let seconds = seconds - seen_s;
        let Some(Waited { rows, prompt_rows, sequences, drafting }) = self.waited else { return };
        if self.unseen() > 0 && self.see_ns == 0 {
            return; // a piece of a picture may have been seen beside it, and nobody measured
        }
        match drafting {
            Drafting::Idle if prompt_rows > 0 => {
                self.scheduler.took_with_prompts(prompt_rows, rows - prompt_rows, seconds);
            }
            _ if prompt_rows > 0 => {}
            Drafting::Idle => self.scheduler.took(rows, (rows > sequences).then_some(false), seconds),
            Drafting::Drafted => self.scheduler.took(rows, Some(true), seconds),
            // What was computed has nothing to do with its rows.
            Drafting::Prepared => {}
        }
    }

    /// Takes a job in line. [`Job::validate`] has passed.
    ///
    /// # Panics
    /// Where rows of media are not of the model's width, or there is no tower for pictures.
    pub fn submit(&mut self, job: &Job) {
        match Pictures::concerns(job.media.iter()) {
            false if job.media.iter().any(MediaSpan::is_remembered) => {
                self.admit_seen(Ready { work: Work::Answer(Box::new(job.clone())), paused: false });
            }
            false => self.enter(job, None),
            true => self.wait_to_see(Work::Answer(Box::new(job.clone()))),
        }
    }

    fn wait_to_see(&mut self, work: Work) {
        self.pictures.as_mut().expect("a job has frames only where its text side has a tower's").submit(work);
    }

    fn check_rows<'a>(&self, mut media: impl Iterator<Item = &'a MediaSpan>) {
        let &TransformerSpec { hidden, deep_layers, picture_rows, .. } = self.decoder.spec();
        let widths = [hidden, hidden * (1 + deep_layers + picture_rows)];
        assert!(media.all(|span| widths.contains(&span.width())), "media in rows of {widths:?}");
    }

    fn enter(&mut self, job: &Job, memory: Option<&Memory>) {
        self.check_rows(job.media.iter());
        self.scheduler.submit(job, &self.text, memory);
        self.fetch_prefix(job);
    }

    /// Takes the inputs of an embedding job in line. They have come from [`Embedder`], and each fits the context.
    ///
    /// # Panics
    /// As [`Engine::submit`].
    pub fn submit_inputs(&mut self, job: &EmbedJob) {
        match Pictures::concerns(job.inputs.iter().flat_map(|input| &input.media[..])) {
            false => self.enter_inputs(job),
            true => self.wait_to_see(Work::Embed(job.clone())),
        }
    }

    fn enter_inputs(&mut self, job: &EmbedJob) {
        self.check_rows(job.inputs.iter().flat_map(|input| &input.media[..]));
        self.scheduler.submit_inputs(job, &self.embedder);
    }

    /// Forgets a job, whatever state it is in, and frees its blocks. No further event names it.
    pub fn cancel(&mut self, job: JobId) {
        if let Some(pictures) = &mut self.pictures {
            pictures.cancel(job);
        }
        self.memories.iter_mut().for_each(|memories| memories.cancel(job));
        self.scheduler.cancel(job, &mut self.pool);
        self.forget_fetch(job);
    }

    /// Runs nothing of a job until it is set back, and keeps its place and, while others don't need them, its blocks.
    pub fn set_paused(&mut self, job: JobId, paused: bool) {
        if let Some(pictures) = &mut self.pictures {
            pictures.set_paused(job, paused);
        }
        self.memories.iter_mut().for_each(|memories| memories.set_paused(job, paused));
        self.scheduler.hold(job, paused);
    }

    /// Whether a step would run something, or settle what is under way.
    pub fn has_work(&self) -> bool {
        let sees = self.unseen() > 0 && !self.memories.as_ref().is_some_and(Memories::waits_for_room);
        self.flight.is_some() || sees || self.scheduler.has_work()
    }

    /// Jobs that wait for what they see.
    fn unseen(&self) -> usize {
        self.pictures.as_ref().map_or(0, Pictures::count) + self.memories.as_ref().map_or(0, Memories::count)
    }

    /// Whether there is no job at all.
    pub fn is_idle(&self) -> bool {
        self.flight.is_none() && self.unseen() == 0 && self.scheduler.counts() == (0, 0)
    }

    /// Gauges and counters, now.
    pub fn stats(&self) -> EngineStats {
        let (running, waiting) = self.scheduler.counts();
        let counters = self.scheduler.counters();
        let media = self.pictures.as_ref().map(Pictures::counts).unwrap_or_default();
        EngineStats {
            blocks_total: self.pool.total(),
            blocks_used: self.pool.used(),
            blocks_cached: self.pool.cached(),
            running,
            waiting: waiting + self.unseen(),
            frames_seen: media.seen,
            frames_kept: media.filled.saturating_sub(media.seen),
            media_tokens: media.tokens,
            media_ns: self.media_ns,
            prompt_tokens: counters.prompt_tokens,
            generated_tokens: counters.generated_tokens,
            prefix_hit_tokens: counters.prefix_hit_tokens,
            preemptions: counters.preemptions,
            draft_tokens: counters.draft_tokens,
            accepted_draft_tokens: counters.accepted_draft_tokens,
            context_shifts: counters.context_shifts,
            fetched_blocks: self.kept.as_ref().map_or(0, Kept::fetched),
            steps: self.steps,
        }
    }

    /// Asserts that the books of the KV cache balance. For tests: it looks at every block.
    ///
    /// # Panics
    /// Where they do not.
    pub fn check(&self) {
        self.scheduler.check(&self.pool);
        self.draft_model.iter().for_each(DraftModel::check);
        self.memories.iter().for_each(Memories::check);
    }

    /// What its steps run on.
    pub fn backend(&self) -> &AnyBackend {
        &self.backend
    }

    /// The model's tokenizer, template and facts.
    pub fn text(&self) -> &Arc<TextModel> {
        &self.text
    }
}

#[cfg(test)]
mod tests;
