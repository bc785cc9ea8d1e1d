//! Engine of text-to-speech models. Input is a text cut into pieces, output is samples, one piece a step. Of
//! the waiting jobs the next is the one whose client has had the fewest pieces. So every client's first sound
//! comes soon, and no client waits for another's long text.

use std::collections::BTreeMap;

use hanzo_engine_runtime::{
    ClientId, EngineStats, Event, EventKind, FinishReason, JobId, StepError, StepReport, Usage,
};

use crate::error::SpeakError;
use crate::noise::Noise;
use crate::script::Speech;
use crate::speaker::Speaker;

/// Speech request.
pub struct SpeechJob {
    /// Id of the job.
    pub id: JobId,
    /// Text, cut into pieces.
    pub speech: Speech,
    /// Speed relative to the model's own.
    pub speed: f32,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Priority; lower runs earlier.
    pub priority: i32,
    /// Client, if known.
    pub client: Option<ClientId>,
}

/// Engine of one text-to-speech model.
pub struct VoiceEngine {
    speaker: Speaker,
    jobs: BTreeMap<JobId, RunningSpeech>,
    phonemes: u64,
    steps: u64,
}

struct RunningSpeech {
    job: SpeechJob,
    noise: Noise,
    done: usize, // pieces done
    turns: u64,  // its client's number of turns
    paused: bool,
}

impl VoiceEngine {
    /// Creates an engine without jobs.
    pub fn new(speaker: Speaker) -> VoiceEngine {
        VoiceEngine { speaker, jobs: BTreeMap::new(), phonemes: 0, steps: 0 }
    }

    /// Adds a job.
    pub fn submit(&mut self, job: SpeechJob) {
        let noise = Noise::new(job.seed);
        // A new client starts level with the one that has had the fewest turns.
        let least = self.jobs.values().map(|other| other.turns).min().unwrap_or(0);
        let own = self.jobs.values().filter(|other| job.client.is_some() && other.job.client == job.client);
        let turns = own.map(|other| other.turns).max().unwrap_or(least);
        self.jobs.insert(job.id, RunningSpeech { job, noise, done: 0, turns, paused: false });
    }

    /// Removes a job.
    pub fn cancel(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// Pauses or resumes a job.
    pub fn set_paused(&mut self, job: JobId, paused: bool) {
        if let Some(running) = self.jobs.get_mut(&job) {
            running.paused = paused;
        }
    }

    /// Returns true if there is a job to work on.
    pub fn has_work(&self) -> bool {
        self.jobs.values().any(|running| !running.paused)
    }

    /// Synthesises one piece.
    ///
    /// # Errors
    /// Errors of the device. The engine is unusable afterwards.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        let Some(id) = self.next() else { return Ok(StepReport::default()) };
        let Some(running) = self.jobs.get_mut(&id) else { return Ok(StepReport::default()) };
        let mut tell = |kind| events.push(Event { job: id, choice: 0, kind });
        if running.done == 0 {
            tell(EventKind::Started { cached_tokens: 0 });
        }
        let mut over = true;
        if let Some(piece) = running.job.speech.pieces.get(running.done) {
            self.phonemes += piece.tokens.len() as u64;
            running.done += 1;
            over = running.done == running.job.speech.pieces.len();
            match self.speaker.say(piece, running.job.speed, &mut running.noise) {
                Ok(samples) => tell(EventKind::Said(samples)),
                Err(SpeakError::Kernel(error)) => return Err(error.into()),
                Err(error) => {
                    tell(match error {
                        SpeakError::TooLong { .. } => EventKind::Unsayable { reason: error.to_string() },
                        SpeakError::NotANumber | SpeakError::Kernel(_) => EventKind::Failed,
                    });
                    self.jobs.remove(&id);
                    return Ok(self.stepped());
                }
            }
        }
        if over {
            let prompt_tokens = running.job.speech.phonemes;
            let usage = Usage { prompt_tokens, ..Usage::default() };
            tell(EventKind::Finished { reason: FinishReason::Stop, stop_string: None, usage });
            self.jobs.remove(&id);
        }
        Ok(self.stepped())
    }

    fn stepped(&mut self) -> StepReport {
        self.steps += 1;
        StepReport { sequences: 1, ..StepReport::default() }
    }

    /// Chooses the next job: the highest priority first, then the client with the fewest turns. Counts the turn
    /// for all jobs of that client.
    fn next(&mut self) -> Option<JobId> {
        let waiting = self.jobs.iter().filter(|(_, running)| !running.paused);
        let next = waiting.min_by_key(|(id, running)| (running.job.priority, running.turns, **id));
        let (next, client, turns) = next.map(|(id, running)| (*id, running.job.client, running.turns + 1))?;
        for (id, other) in &mut self.jobs {
            if *id == next || client.is_some() && other.job.client == client {
                other.turns = turns;
            }
        }
        Some(next)
    }

    /// Counters and gauges.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            waiting: self.jobs.values().filter(|running| running.done == 0).count(),
            prompt_tokens: self.phonemes,
            steps: self.steps,
            ..EngineStats::default()
        }
    }
}
