//! Ready model: everything that a request needs, from the tokenizer to the worker's queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use hanzo_engine_runtime::{
    Embedder, EngineConfig, JobId, MediaSpan, Task, TextModel, engine::EngineMemory, spec::TransformerSpec,
    whisper::Vocabulary,
};

use hanzo_engine_voice::Script;

use crate::{
    adapters::{Adapters, BaseModel},
    admission::{Full, QueuePlace},
    constraints::Constraints,
    device::{Device, EngineSize},
    error::Error,
    frame_room::{FrameReservation, FrameRoom},
    limits::FRAME_BYTES_MAX,
    metrics::ModelMetrics,
    prompt_builder::PromptBuilder,
    views::WorkerView,
    worker::WorkerHandle,
};

/// Ready model.
pub(crate) struct ServedModel {
    pub(crate) name: String,
    pub(crate) text: Arc<TextModel>,
    pub(crate) embedder: Arc<Embedder>,
    /// Vocabulary of a transcription model.
    pub(crate) listener: Option<Arc<Vocabulary>>,
    /// Script of a speech model.
    pub(crate) script: Option<Arc<Script>>,
    /// Whether it generates text.
    pub(crate) generates: bool,
    pub(crate) size: EngineSize,
    pub(crate) memory: EngineMemory,
    pub(crate) device: String,
    /// Device that plans its memory.
    pub(crate) planner: Arc<dyn Device>,
    /// Index of the place that it is loaded on.
    pub(crate) place: usize,
    /// Places of other devices that hold some of its layers.
    pub(crate) beside: Vec<usize>,
    pub(crate) worker: WorkerHandle,
    pub(crate) prompts: PromptBuilder,
    pub(crate) constraints: Constraints,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) loaded_at_unix_ms: i64,
    pub(crate) jobs: AtomicU64,
    /// Network of a decoder, which adapters must match.
    pub(crate) spec: Option<Arc<TransformerSpec>>,
    pub(crate) files: BaseModel,
    pub(crate) adapters: Adapters,
    pub(crate) frames: FrameRoom,
}

impl ServedModel {
    /// Takes a place in the queue.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub(crate) fn enter(&self) -> Result<QueuePlace, Error> {
        self.worker.vitals().admission.enter().map_err(|full| self.refused(full))
    }

    /// Error for a full queue.
    pub(crate) fn queue_full(&self) -> Error {
        self.refused(self.worker.vitals().admission.full())
    }

    /// Reserves memory for the pictures of a request.
    ///
    /// # Errors
    /// [`Error::PicturesFull`].
    pub(crate) fn hold_frames<'a>(
        &self,
        media: impl IntoIterator<Item = &'a MediaSpan>,
    ) -> Result<FrameReservation, Error> {
        let bytes = media.into_iter().map(|span| span.pixels.len()).sum();
        self.frames.hold(bytes).ok_or_else(|| Error::PicturesFull {
            model: self.name.clone(),
            bytes_max: FRAME_BYTES_MAX,
            retry_after_ms: self.worker.vitals().admission.full().retry_after_ms,
        })
    }

    fn refused(&self, Full { capacity, retry_after_ms }: Full) -> Error {
        Error::QueueFull { model: self.name.clone(), capacity, retry_after_ms }
    }

    /// # Errors
    /// [`Error::CannotDo`], with what it can do.
    pub(crate) fn must_generate(&self) -> Result<&EngineConfig, Error> {
        match &self.size {
            EngineSize::Decoder(config) if self.generates => Ok(config),
            _ => Err(self.cannot("generate text")),
        }
    }

    /// # Errors
    /// [`Error::CannotDo`], with what it can do.
    pub(crate) fn must_do(&self, task: Task) -> Result<(), Error> {
        if self.embedder.tasks.contains(&task) { Ok(()) } else { Err(self.cannot(task_words(task))) }
    }

    /// # Errors
    /// [`Error::CannotDo`], with what it can do.
    pub(crate) fn must_speak(&self) -> Result<&Arc<Script>, Error> {
        self.script.as_ref().ok_or_else(|| self.cannot("say texts"))
    }

    /// Error for a capability that the model lacks.
    pub(crate) fn cannot(&self, wanted: &'static str) -> Error {
        let generates = self.generates.then_some("generate text");
        let transcribes = self.listener.as_ref().map(|_| TRANSCRIBE);
        let speaks = self.script.is_some().then_some("say texts");
        let can = generates
            .into_iter()
            .chain(transcribes)
            .chain(speaks)
            .chain(self.embedder.tasks.iter().copied().map(task_words))
            .collect();
        Error::CannotDo { model: self.name.clone(), wanted, can }
    }

    /// Current state of the worker.
    pub(crate) fn view(&self) -> WorkerView {
        let (vitals, now) = (self.worker.vitals(), Instant::now());
        WorkerView {
            device: self.device.clone(),
            has_template: self.text.template.is_some(),
            fills_in: self.text.infill.is_some(),
            sees: self.text.sight.is_some(),
            hears: self.text.hearing.is_some(),
            tool_format: self.text.tool_format.map(|format| (format, self.text.offers_tools())),
            reasons: self.text.reasoning_ends.is_some(),
            generates: self.generates,
            transcribes: self.listener.is_some(),
            speaks: self.script.is_some(),
            embedder: self.embedder.clone(),
            text: self.text.clone(),
            sequences_max: self.must_generate().map_or(0, |config| config.sequences_max),
            context_tokens_max: self.size.context_tokens_max(),
            kv_type: match &self.size {
                EngineSize::Decoder(config) => Some(config.kv_type),
                EngineSize::Encoder(_) | EngineSize::Whisper(_) | EngineSize::Voice { .. } => None,
            },
            memory: self.memory,
            vocabulary_bytes: self.text.vocabulary_bytes(),
            constraints_bytes: self.constraints.bytes(),
            adapters: self.adapters.views(),
            loaded_at_unix_ms: self.loaded_at_unix_ms,
            requests_running: vitals.admission.running(),
            requests_waiting: vitals.admission.waiting(),
            queue_capacity: vitals.admission.capacity(),
            batch_size: vitals.batch_size(),
            stats: vitals.stats(),
            tokens_per_s: self.metrics.rate.per_second(now),
            stuck: vitals.is_stuck(now),
            process: vitals.process(),
        }
    }

    /// Id for the next job.
    pub(crate) fn next_job(&self) -> JobId {
        JobId(self.jobs.fetch_add(1, Relaxed))
    }
}

/// Description of transcription in messages.
pub(crate) const TRANSCRIBE: &str = "transcribe speech";

/// Description of a task in messages.
pub(crate) fn task_words(task: Task) -> &'static str {
    match task {
        Task::Embed => "embed texts",
        Task::EmbedSparse => "make sparse embeddings",
        Task::Rerank => "rerank documents",
        Task::Classify => "classify texts",
    }
}
