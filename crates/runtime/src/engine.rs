//! Engine: jobs in, events out, one step at a time. `step` is the whole system.
//!
//! An engine belongs to one thread and has no clock: its caller decides when to step, and measures the time.

mod adapters;
mod draft_model;
mod encoder;
mod kept;
mod memories;
mod pictures;
mod sizes;

use std::{mem, sync::Arc};

use hanzo_engine_constraints::wait_for_mask;
use hanzo_engine_ops as ops;
use hanzo_engine_ops::{AnyBackend, KernelError, KvSpec, KvType, SampledToken, StepLimits, Ticket};
use serde::{Deserialize, Serialize};

pub use crate::report::{EngineMemory, EngineStats, StepReport};
use crate::{
    decoder::Decoder,
    embedding::Embedder,
    error::StepError,
    job::{EmbedJob, Event, Job, JobId},
    kv::{BlockPool, Memory},
    limits::{MASK_WAIT, PICTURES_REMEMBERED},
    media::MediaSpan,
    model_files::ModelFiles,
    output::Hidden,
    scheduler::{Scheduler, SchedulerConfig, StepResults},
    spec::TransformerSpec,
    speculation::Speculation,
    step::{Part, Step, Yields},
    text::TextModel,
    vision::Towers,
};
use adapters::ResidentAdapter;
pub use draft_model::{DraftModel, DraftWork, check_vocabulary};
pub use encoder::{EncoderConfig, EncoderEngine};
use kept::BlockStoreClient;
use memories::Memories;
use pictures::{Pictures, Ready, Work};

/// Size of an engine. All bounds are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// Blocks of 16 tokens in the KV cache; each belongs to a group of layers ([`crate::kv`]).
    pub kv_blocks: usize,
    /// Storage type of keys and values; [`hanzo_engine_ops::KvSpec::check`] tells whether a model's heads
    /// support it.
    #[serde(with = "crate::wire::kv_type")]
    pub kv_type: KvType,
    /// Back the KV cache with physical memory when the engine is created
    /// ([`hanzo_engine_ops::KvSpec::resident`]).
    pub kv_resident: bool,
    /// Maximum rows of a step: prompt tokens and decoding sequences together.
    pub step_tokens_max: usize,
    /// Maximum prompt tokens of a step that also decodes; fewer once such steps have been measured to take too
    /// long.
    pub prefill_tokens_beside_decodes: usize,
    /// Maximum running sequences; at most `step_tokens_max`.
    pub sequences_max: usize,
    /// Maximum tokens of a sequence, prompt and completion; `kv_blocks` must hold [`crate::kv::KvRoom::blocks_of`]
    /// this many.
    pub context_tokens_max: usize,
    /// Share cached blocks between sequences with the same prefix.
    pub prefix_cache: bool,
    /// Source of draft tokens.
    pub speculation: Speculation,
}

/// Whether a part of a step samples a token from each of its rows: then it decodes, possibly with draft tokens.
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

    /// Shape of a model's KV cache.
    pub fn kv_spec(&self, spec: &TransformerSpec) -> KvSpec {
        let of_model = spec.kv_spec(self.kv_blocks, self.kv_type, self.sequences_max);
        KvSpec { resident: self.kv_resident, ..of_model }
    }

    /// Adapts the configuration to a model. Layers with a recurrent state cannot share prefixes or take back draft
    /// tokens, because a state stands for a sequence's end only. Tokens that must be computed in one step always
    /// have room beside decoding sequences.
    pub fn within(self, spec: &TransformerSpec) -> Self {
        let together = spec.together.min(self.step_tokens_max);
        let prefill_tokens_beside_decodes = self.prefill_tokens_beside_decodes.max(together);
        let config = Self { prefill_tokens_beside_decodes, ..self };
        match spec.keeps_states() {
            true => Self { prefix_cache: false, speculation: Speculation::Off, ..config },
            false => config,
        }
    }

    /// Bounds of the largest step.
    fn step_limits(&self, spec: &TransformerSpec) -> StepLimits {
        let limits = spec.step_limits(self.step_tokens_max, self.sequences_max, self.context_tokens_max);
        let logit_rows = if limits.logit_rows == 0 { 0 } else { self.scheduler(spec).logit_rows() };
        let context = limits.context.max(PICTURES_REMEMBERED * spec.picture_rows);
        StepLimits { logit_rows, context, ..limits }
    }
}

/// Engine: one model on one device.
pub struct Engine {
    backend: AnyBackend,
    decoder: Decoder,
    kv: ops::Kv,
    text: Arc<TextModel>,
    embedder: Arc<Embedder>,
    pool: BlockPool,
    scheduler: Scheduler,
    step: Step,             // step that is being prepared
    flight: Option<Flight>, // step that the device computes while the next is prepared
    drawn: Vec<Option<SampledToken>>,
    room: Vec<f32>,   // logits for sampling on the host: (logit rows, vocab)
    hidden: Vec<f32>, // hidden states of one input in a step
    adapters: Vec<Option<ResidentAdapter>>, // by slot
    steps: u64,
    see_ns: u64,   // of the last step, for media
    media_ns: u64, // of all steps
    draft_model: Option<DraftModel>,
    pictures: Option<Pictures>,     // the tower and the jobs that wait for it
    memories: Option<Memories>,     // cross-attention cache, if layers read one
    step_rows: usize,               // at most
    kept: Option<BlockStoreClient>, // store of blocks evicted from the cache
    waited: Option<CollectedStep>,  // the last step that the last call waited for
}

/// Submitted step.
struct Flight {
    ticket: Ticket,
    parts: Vec<Part>,
    drafting: DraftWork,
}

/// Step whose results were collected.
#[derive(Clone, Copy)]
struct CollectedStep {
    rows: usize,
    prompt_rows: usize, // those of sequences that do not decode
    sequences: usize,
    drafting: DraftWork,
}

impl Engine {
    /// Memory that [`Engine::new`] and the weights take.
    pub fn memory(backend: &AnyBackend, files: &ModelFiles, config: &EngineConfig) -> EngineMemory {
        let plan = Decoder::plan(backend, files);
        let limits = config.step_limits(&files.spec);
        let room = limits.logit_rows * files.spec.vocab * size_of::<f32>();
        EngineMemory {
            weights_bytes: plan.weights_bytes,
            kv_bytes: backend.kv_bytes(&config.kv_spec(&files.spec)) as u64
                + memories::kv_spec(&files.spec, config).map_or(0, |spec| backend.kv_bytes(&spec) as u64),
            scratch_bytes: plan.scratch_bytes(backend, &limits) + room as u64,
        }
    }

    /// Allocates the KV cache and all scratch. Nothing of the kind is allocated later.
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
            room: vec![0.0; limits.logit_rows * text.vocab],
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

    /// Adds a draft model. It must have the same vocabulary ([`check_vocabulary`]).
    pub fn with_draft_model(mut self, model: DraftModel) -> Self {
        self.scheduler.expect_drafts(model.parameters() as f64 / self.text.info.parameters.max(1) as f64);
        Engine { draft_model: Some(model), ..self }
    }

    /// Adds a tower for media, whose rows are as wide as the model's.
    pub fn with_tower(self, tower: Box<dyn Towers>) -> Self {
        Engine { pictures: Some(Pictures::new(tower)), ..self }
    }

    /// Runs one step: each running sequence advances by a token or by a chunk of its prompt. Does nothing if there
    /// is no work. If the device runs asynchronously, the events are those of the previous step. After an error the
    /// engine cannot be used any longer.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        self.step_by(|| 0, events)
    }

    /// Runs a step like [`Engine::step`], with the caller's clock in nanoseconds. The clock has two uses: the
    /// report states how long scheduling took, and pieces of pictures are sized by their measured times
    /// ([`Engine::took`]).
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
        if self.awaits_masks() {
            wait_for_mask(MASK_WAIT);
        }
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
        if self.backend.facts().lookahead == 0 {
            self.settle(events)?;
        }
        Ok(report)
    }

    /// Advances waiting media by one piece. A job whose media are complete enters the scheduler.
    fn see(&mut self) -> Result<(), KernelError> {
        let alone = self.flight.is_none() && !self.scheduler.has_work();
        if self.remember(alone)? {
            return Ok(());
        }
        let Some(pictures) = &mut self.pictures else { return Ok(()) };
        let decoding = self.scheduler.decoding();
        // Draft tokens take a part of the step too.
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

    /// Asks the draft model for draft tokens.
    fn draft(&mut self) -> Result<DraftWork, KernelError> {
        let Some(model) = &mut self.draft_model else { return Ok(DraftWork::Idle) };
        model.keep(|order| self.scheduler.runs(order));
        let (mut asked, least) = self.scheduler.ask_drafts();
        model.draft(&mut asked, least)
    }

    /// Submits the prepared step to the device.
    fn launch(&mut self, drafting: DraftWork) -> Result<Flight, KernelError> {
        let rows = self.step.draws.rows.len() * self.text.vocab;
        let room = &mut self.room[..rows];
        let ticket = self.decoder.submit(&mut self.backend, &mut self.step, &mut self.kv, room)?;
        self.scheduler.assume(&mut self.pool);
        self.steps += 1;
        Ok(Flight { ticket, parts: mem::take(&mut self.step.parts), drafting })
    }

    /// Waits for the step in flight, if any, and collects its results.
    fn settle(&mut self, events: &mut Vec<Event>) -> Result<(), KernelError> {
        let Some(Flight { ticket, parts, drafting }) = self.flight.take() else { return Ok(()) };
        self.backend.wait(ticket, &mut self.drawn)?;
        let rows = parts.iter().map(|part| part.rows).sum();
        let prompt_rows = parts.iter().filter(|part| !decodes(part)).map(|part| part.rows).sum();
        self.waited = Some(CollectedStep { rows, prompt_rows, sequences: parts.len(), drafting });
        let (backend, decoder) = (&self.backend, &self.decoder);
        let mut hidden = Hidden {
            embedder: &self.embedder,
            read: &mut |first, out| decoder.read_hidden(backend, first, out),
            rows: &mut self.hidden,
        };
        let settled = StepResults { parts: &parts, drawn: &mut self.drawn, hidden: &mut hidden };
        self.scheduler.settle(settled, &self.text, &mut self.pool, events)?;
        self.step.parts = parts;
        Ok(())
    }

    /// Records the time of the last call of [`Engine::step`]. The cost of rows decides the number of draft tokens,
    /// and how many prompt rows go beside decoding sequences. It decides nothing else.
    pub fn took(&mut self, seconds: f32) {
        let seen_s = self.see_ns as f32 / 1e9;
        if let Some(pictures) = &mut self.pictures {
            pictures.took(seen_s);
        }
        let seconds = seconds - seen_s;
        let Some(CollectedStep { rows, prompt_rows, sequences, drafting }) = self.waited else { return };
        if self.unseen() > 0 && self.see_ns == 0 {
            return; // a piece of a picture may have run beside it, unmeasured
        }
        match drafting {
            DraftWork::Idle if prompt_rows > 0 => {
                self.scheduler.took_with_prompts(prompt_rows, rows - prompt_rows, seconds);
            }
            _ if prompt_rows > 0 => {}
            DraftWork::Idle => self.scheduler.took(rows, (rows > sequences).then_some(false), seconds),
            DraftWork::Drafted => self.scheduler.took(rows, Some(true), seconds),
            // The draft model computed prompts: the time says nothing about the step's rows.
            DraftWork::Prepared => {}
        }
    }

    /// Queues a job. The caller has called [`Job::validate`].
    ///
    /// # Panics
    /// If media rows are not of the model's width, or pictures have no tower.
    pub fn submit(&mut self, job: impl Into<Arc<Job>>) {
        let job = job.into();
        match Pictures::concerns(job.media.iter()) {
            false if job.media.iter().any(MediaSpan::is_remembered) => {
                self.admit_seen(Ready { work: Work::Answer(job), paused: false });
            }
            false => self.enter(&job, None),
            true => self.wait_to_see(Work::Answer(job)),
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

    fn enter(&mut self, job: &Arc<Job>, memory: Option<&Memory>) {
        self.check_rows(job.media.iter());
        self.scheduler.submit(job, &self.text, memory);
        self.fetch_prefix(job);
    }

    /// Queues the inputs of an embedding job. They come from [`Embedder`], and each fits the context.
    ///
    /// # Panics
    /// As for [`Engine::submit`].
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

    /// Cancels a job in any state and frees its blocks. No further event names it.
    pub fn cancel(&mut self, job: JobId) {
        if let Some(pictures) = &mut self.pictures {
            pictures.cancel(job);
        }
        self.memories.iter_mut().for_each(|memories| memories.cancel(job));
        self.scheduler.cancel(job, &mut self.pool);
        self.forget_fetch(job);
    }

    /// Pauses or resumes a job. A paused job keeps its place, and its blocks while no other sequence needs them.
    pub fn set_paused(&mut self, job: JobId, paused: bool) {
        if let Some(pictures) = &mut self.pictures {
            pictures.set_paused(job, paused);
        }
        self.memories.iter_mut().for_each(|memories| memories.set_paused(job, paused));
        self.scheduler.hold(job, paused);
    }

    /// Whether a step would compute something or collect the step in flight.
    pub fn has_work(&self) -> bool {
        let sees = self.unseen() > 0 && !self.memories.as_ref().is_some_and(Memories::waits_for_room);
        self.flight.is_some() || sees || self.scheduler.has_work() || self.scheduler.awaits_masks()
    }

    /// Whether a step has nothing to do but to wait for masks that are computed in the background.
    pub fn awaits_masks(&self) -> bool {
        let idle = self.flight.is_none() && self.unseen() == 0 && !self.scheduler.has_work();
        idle && self.scheduler.awaits_masks()
    }

    /// Number of jobs that wait for their media.
    fn unseen(&self) -> usize {
        self.pictures.as_ref().map_or(0, Pictures::count) + self.memories.as_ref().map_or(0, Memories::count)
    }

    /// Whether there is no job at all.
    pub fn is_idle(&self) -> bool {
        self.flight.is_none() && self.unseen() == 0 && self.scheduler.counts() == (0, 0)
    }

    /// Current gauges and counters.
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
            fetched_blocks: self.kept.as_ref().map_or(0, BlockStoreClient::fetched),
            steps: self.steps,
        }
    }

    /// Checks the consistency of the KV cache's books. For tests: it looks at every block.
    ///
    /// # Panics
    /// If they are inconsistent.
    pub fn check(&self) {
        self.scheduler.check(&self.pool);
        self.draft_model.iter().for_each(DraftModel::check);
        self.memories.iter().for_each(Memories::check);
    }

    /// The backend of its steps.
    pub fn backend(&self) -> &AnyBackend {
        &self.backend
    }

    /// The model's tokenizer, template and general information.
    pub fn text(&self) -> &Arc<TextModel> {
        &self.text
    }
}

#[cfg(test)]
mod tests;
