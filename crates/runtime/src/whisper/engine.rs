//! Engine of Whisper models: sounds in, transcripts out, one step at a time. A step takes a window a piece further
//! through the encoder, if one is waiting. Otherwise it takes all encoded windows, of any sound, one token further
//! through the decoder. Decoding is batched because a token for eight windows takes little longer than for one.
//! Clients take turns for the next window, so that a short sound does not wait for the end of a long one.

use std::collections::BTreeMap;

use hanzo_engine_ops::{AnyBackend, KernelError};
use serde::{Deserialize, Serialize};

use super::files::WhisperFiles;
use super::hearing::{Phase, SoundProgress};
use super::network::{SlotTokens, Whisper};
use super::rules;
use super::vocabulary::{DecodingOptions, Vocabulary};
use super::words::AlignmentShape;
use crate::error::{LoadError, StepError};
use crate::job::{ClientId, Event, EventKind, JobId};
use crate::mel::MelBank;
use crate::network::WeightType;
use crate::report::{EngineMemory, EngineStats, StepReport};
use crate::transcript::Transcript;

/// Products of a piece of a window, in millions: some 15 ms on two cores, for which another model's token may have
/// to wait.
const PIECE_MILLIONS: usize = if cfg!(test) { 1 } else { 1_000 };
/// Number of heads for word timestamps if the model's files name none.
const HEADS_DEFAULT: usize = 10;

/// Size of a Whisper model's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhisperConfig {
    /// Windows decoded at once; at least 1.
    pub windows: usize,
}

/// Sound to be transcribed.
#[derive(Clone, Debug)]
pub struct TranscribeJob {
    /// ID of the job.
    pub id: JobId,
    /// Options, in tokens.
    pub asked: DecodingOptions,
    /// Priority; lower runs earlier.
    pub priority: i32,
    /// Client that sent the job. `None`: the job counts as its own client.
    pub client: Option<ClientId>,
}

/// Queued sound.
struct QueuedSound {
    hearing: SoundProgress,
    priority: i32,
    client: Option<ClientId>,
    turns: u64, // windows that its client had had at its last turn
}

/// Engine: one Whisper model on one device.
pub struct WhisperEngine {
    model: Whisper,
    vocabulary: std::sync::Arc<Vocabulary>,
    bank: MelBank,
    heads: Vec<(usize, usize)>,
    sounds: BTreeMap<JobId, QueuedSound>,
    free: Vec<usize>,
    at_hand: Option<JobId>, // sound whose window is in the encoder
    logits: Vec<f32>,
    prompt_tokens: u64,
    completion_tokens: u64,
    steps: u64,
}

impl WhisperEngine {
    /// Memory that [`WhisperEngine::load`] takes.
    pub fn memory(
        backend: &AnyBackend,
        files: &WhisperFiles,
        weight_type: WeightType,
        config: &WhisperConfig,
    ) -> EngineMemory {
        let memory = Whisper::memory(backend, files, weight_type, config.windows);
        let (spec, shape) = (&files.spec, files.spec.heads(files.spec.decoder));
        // Logits of a step, a window's frames for each slot and one more, and the keys for word timestamps.
        let logits = 2 * config.windows * spec.vocab;
        let frames = (config.windows + 1) * 2 * (spec.frames() + 100) * spec.mels;
        let keys = config.windows * heads_of(files).len() * spec.rows * shape.head_dim;
        let host = (logits + frames + keys) * size_of::<f32>();
        EngineMemory { scratch_bytes: memory.scratch_bytes + host as u64, ..memory }
    }

    /// Reads and packs all weights, and allocates all buffers.
    ///
    /// # Errors
    /// `Kernel` if the backend cannot pack a type or give the memory.
    pub fn load(
        backend: AnyBackend,
        files: &WhisperFiles,
        vocabulary: std::sync::Arc<Vocabulary>,
        weight_type: WeightType,
        config: WhisperConfig,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, LoadError> {
        Ok(WhisperEngine {
            model: Whisper::load(backend, files, weight_type, config.windows, progress)?,
            vocabulary,
            bank: MelBank::new(files.spec.mels),
            heads: heads_of(files),
            sounds: BTreeMap::new(),
            free: (0..config.windows).rev().collect(),
            at_hand: None,
            logits: Vec::new(),
            prompt_tokens: 0,
            completion_tokens: 0,
            steps: 0,
        })
    }

    /// Queues a sound; its samples come by [`WhisperEngine::push`].
    pub fn submit(&mut self, job: TranscribeJob) {
        let TranscribeJob { id, asked, priority, client } = job;
        // A later client starts level with the others.
        let least = self.sounds.values().map(|sound| sound.turns).min().unwrap_or(0);
        let own = self.sounds.values().filter(|sound| client.is_some() && sound.client == client);
        let turns = own.map(|sound| sound.turns).max().unwrap_or(least);
        let hearing = SoundProgress::new(asked, self.bank.bands());
        self.sounds.insert(id, QueuedSound { hearing, priority, client, turns });
    }

    /// Number of samples that a sound can use now.
    pub fn wants(&self, job: JobId) -> usize {
        let frames = self.model.spec.frames();
        self.sounds.get(&job).map_or(0, |sound| sound.hearing.wants(&self.bank, frames))
    }

    /// Adds samples to a sound; `None` ends it.
    pub fn push(&mut self, job: JobId, samples: Option<&[f32]>) {
        if let Some(sound) = self.sounds.get_mut(&job) {
            sound.hearing.push(&self.bank, samples);
        }
    }

    /// Cancels a sound. No further event names it.
    pub fn cancel(&mut self, job: JobId) {
        let Some(sound) = self.sounds.remove(&job) else { return };
        // The next window discards its part in the encoder.
        self.at_hand = self.at_hand.filter(|&other| other != job);
        self.free.extend(sound.hearing.slot());
    }

    /// Pauses or resumes a sound: while paused, none of its windows starts.
    pub fn set_paused(&mut self, job: JobId, paused: bool) {
        if let Some(sound) = self.sounds.get_mut(&job) {
            sound.hearing.paused = paused;
        }
    }

    /// Whether a step would compute something.
    pub fn has_work(&self) -> bool {
        let spec = &self.model.spec;
        let ready = |sound: &QueuedSound| sound.hearing.is_ready(spec.mels, spec.frames());
        self.sounds.values().any(|sound| sound.hearing.slot().is_some() || ready(sound))
    }

    /// Current gauges and counters.
    pub fn stats(&self) -> EngineStats {
        let running = self.sounds.values().filter(|sound| sound.hearing.slot().is_some()).count();
        EngineStats {
            waiting: self.sounds.len() - running,
            running,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.completion_tokens,
            steps: self.steps,
            ..EngineStats::default()
        }
    }

    /// Runs one step. Does nothing if there is no work. After an error the engine cannot be used any longer.
    ///
    /// # Errors
    /// The backend's.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        let listened = self.listen(events)?;
        let (prefill, decode, sequences) = match listened && self.gathers() {
            true => (0, 0, 0),
            false => self.write(events)?,
        };
        self.finish(events);
        self.steps += 1;
        Ok(StepReport {
            prefill_tokens: prefill,
            decode_tokens: decode,
            sequences: sequences + usize::from(listened),
            ..StepReport::default()
        })
    }

    /// Sound whose window is next: of the highest priority, and among those the one whose client had the fewest.
    fn next(&self) -> Option<JobId> {
        let spec = &self.model.spec;
        let ready = self.sounds.iter().filter(|(_, sound)| sound.hearing.is_ready(spec.mels, spec.frames()));
        let ready = ready.filter(|(_, sound)| !sound.hearing.is_over(spec.mels, spec.frames()));
        ready.min_by_key(|(id, sound)| (sound.priority, sound.turns, **id)).map(|(id, _)| *id)
    }

    /// Whether encoded windows wait for another one, so that they are decoded together: one is being encoded, or is
    /// ready and has a slot. Slots are few, so no window waits long; and none waits for one of lower priority.
    fn gathers(&self) -> bool {
        let coming = self.at_hand.or_else(|| self.free.last().and_then(|_| self.next()));
        let Some(coming) = coming.and_then(|job| self.sounds.get(&job)) else { return false };
        let heard = self.sounds.values().filter(|sound| sound.hearing.slot().is_some());
        heard.map(|sound| sound.priority).min().is_none_or(|first| coming.priority <= first)
    }

    /// Advances the window in the encoder, or the next one.
    fn listen(&mut self, events: &mut Vec<Event>) -> Result<bool, KernelError> {
        let Some(job) = self.at_hand.or_else(|| self.begin()) else { return Ok(false) };
        let Some(followed) = self.model.listen(PIECE_MILLIONS)? else { return Ok(true) };
        self.at_hand = None;
        let Some(sound) = self.sounds.get_mut(&job) else { return Ok(true) };
        let hearing = &mut sound.hearing;
        hearing.followed = followed;
        let Phase::Heard { slot } = hearing.phase else { return Ok(true) };
        if self.vocabulary.multilingual && hearing.language.is_none() {
            hearing.phase = Phase::Language { slot };
        } else {
            let mut told = Vec::new();
            hearing.start(&self.vocabulary, 1.0, &mut told);
            hearing.attempt(&self.vocabulary, slot, 0);
            tell(job, told, events);
        }
        Ok(true)
    }

    /// Starts the next window, if there is one and a free slot.
    fn begin(&mut self) -> Option<JobId> {
        let (mels, frames) = (self.model.spec.mels, self.model.spec.frames());
        let (&slot, job) = (self.free.last()?, self.next()?);
        let sound = self.sounds.get_mut(&job)?;
        let window = sound.hearing.begin_window(mels, frames)?;
        self.free.pop();
        sound.hearing.phase = Phase::Heard { slot };
        let heads: &[(usize, usize)] = if sound.hearing.asked.words { &self.heads } else { &[] };
        let (client, turns) = (sound.client, sound.turns + 1);
        self.model.hear(slot, window, heads);
        for (&id, other) in &mut self.sounds {
            if id == job || client.is_some() && other.client == client {
                other.turns = turns;
            }
        }
        self.at_hand = Some(job);
        Some(job)
    }

    /// Ends the sounds that have nothing left to transcribe.
    fn finish(&mut self, events: &mut Vec<Event>) {
        let (mels, frames) = (self.model.spec.mels, self.model.spec.frames());
        let vocabulary = &self.vocabulary;
        self.sounds.retain(|&id, sound| {
            let over = sound.hearing.is_over(mels, frames);
            if over {
                let mut told = Vec::new();
                sound.hearing.finish(vocabulary, &mut told);
                tell(id, told, events);
            }
            !over
        });
    }

    /// Decodes one token for all encoded windows.
    fn write(&mut self, events: &mut Vec<Event>) -> Result<(usize, usize, usize), KernelError> {
        self.find_words(events)?;
        let (mut jobs, mut writings) = (Vec::new(), Vec::new());
        for (&id, sound) in &self.sounds {
            let writing = match &sound.hearing.phase {
                Phase::Language { slot } => SlotTokens {
                    slot: *slot,
                    before: 0,
                    tokens: vec![self.vocabulary.start],
                    wanted: vec![0],
                },
                Phase::Drawn { slot, attempt, .. } => match attempt.drawn.last() {
                    None => {
                        let tokens = attempt.prompt.clone();
                        let (start, last) = (attempt.start as u32, tokens.len() as u32 - 1);
                        let wanted = if start == last { vec![last] } else { vec![start, last] };
                        SlotTokens { slot: *slot, before: 0, tokens, wanted }
                    }
                    Some(last) => {
                        let before = attempt.prompt.len() + attempt.drawn.len() - 1;
                        SlotTokens { slot: *slot, before, tokens: vec![last.token], wanted: vec![0] }
                    }
                },
                _ => continue,
            };
            let rows: usize = writings.iter().map(|writing: &SlotTokens| writing.tokens.len()).sum();
            // A window that does not fit beside the others comes with the next step.
            if rows + writing.tokens.len() > self.model.rows_written() {
                continue;
            }
            jobs.push(id);
            writings.push(writing);
        }
        if jobs.is_empty() {
            return Ok((0, 0, 0));
        }
        let mut logits = std::mem::take(&mut self.logits);
        self.model.write(&writings, &[], &mut logits)?;
        let vocab = self.model.spec.vocab;
        let mut rows = logits.chunks_exact_mut(vocab);
        let (mut prefill, mut decode) = (0, 0);
        for (&id, writing) in jobs.iter().zip(&writings) {
            let tokens = writing.tokens.len();
            if writing.before == 0 {
                prefill += tokens
            } else {
                decode += tokens
            }
            let own: Vec<&mut [f32]> = rows.by_ref().take(writing.wanted.len()).collect();
            self.drawn(id, own, events);
        }
        self.prompt_tokens += prefill as u64;
        self.completion_tokens += decode as u64;
        self.logits = logits;
        Ok((prefill, decode, jobs.len()))
    }

    /// Takes the logits of a sound's rows.
    fn drawn(&mut self, id: JobId, mut rows: Vec<&mut [f32]>, events: &mut Vec<Event>) {
        let Some(sound) = self.sounds.get_mut(&id) else { return };
        let (hearing, vocabulary) = (&mut sound.hearing, &*self.vocabulary);
        let mut told = Vec::new();
        let mut failed = false;
        let slot = hearing.slot();
        match &mut hearing.phase {
            Phase::Language { slot } => match rules::language(vocabulary, rows[0]) {
                Some((language, probability)) => {
                    let slot = *slot;
                    hearing.language = Some(language);
                    hearing.start(vocabulary, probability, &mut told);
                    hearing.attempt(vocabulary, slot, 0);
                }
                None => failed = true,
            },
            Phase::Drawn { attempt, .. } => {
                if attempt.drawn.is_empty() {
                    attempt.hear(vocabulary, rows[0]);
                }
                let last = rows.last_mut().expect("the last row is always wanted");
                match attempt.draw(vocabulary, last) {
                    Some(true) => {}
                    Some(false) => hearing.judge(vocabulary, &mut told),
                    None => failed = true,
                }
            }
            _ => {}
        }
        if hearing.slot().is_none() {
            self.free.extend(slot);
        }
        if failed {
            self.cancel(id);
            events.push(Event { job: id, choice: 0, kind: EventKind::Failed });
        }
        tell(id, told, events);
    }

    /// Computes word timestamps for finished texts.
    fn find_words(&mut self, events: &mut Vec<Event>) -> Result<(), KernelError> {
        let shape = self.model.spec.heads(self.model.spec.decoder);
        let (heads, head_dim) = (self.heads.len(), shape.head_dim);
        let shape = AlignmentShape { heads, head_dim, rows: self.model.spec.rows };
        for (&id, sound) in &mut self.sounds {
            let hearing = &mut sound.hearing;
            let Phase::Words { slot, tried } = &hearing.phase else { continue };
            let (slot, (tokens, before)) = (*slot, hearing.words_step(&self.vocabulary, tried));
            let writing = SlotTokens { slot, before: 0, tokens, wanted: Vec::new() };
            let queries = self.model.write(&[writing], &self.heads, &mut Vec::new())?;
            let mut told = Vec::new();
            hearing.find_words(&self.vocabulary, &queries, before, shape, &mut told);
            self.free.push(slot);
            tell(id, told, events);
        }
        Ok(())
    }
}

fn tell(job: JobId, told: Vec<Transcript>, events: &mut Vec<Event>) {
    let event = |told| Event { job, choice: 0, kind: EventKind::Heard(Box::new(told)) };
    events.extend(told.into_iter().map(event));
}

/// Heads for word timestamps.
fn heads_of(files: &WhisperFiles) -> Vec<(usize, usize)> {
    files.guidance.alignment_heads.clone().unwrap_or_else(|| {
        let decoder = files.spec.decoder;
        let all =
            (0..decoder.layers).rev().flat_map(|layer| (0..decoder.heads).map(move |head| (layer, head)));
        all.take(HEADS_DEFAULT).collect()
    })
}
