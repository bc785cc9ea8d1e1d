//! The engine of models that speak: texts cut into pieces in, samples out, a piece a step. Of those that wait the one goes next
//! that has had the fewest pieces, so that everyone's first sound comes soon and nobody waits for another's chapter.

use std::collections::BTreeMap;

use hanzo_engine_runtime::{
    EngineStats, Event, EventKind, FinishReason, JobId, StepError, StepReport, Usage,
};

use crate::error::SpeakError;
use crate::noise::Noise;
use crate::script::Speech;
use crate::speaker::Speaker;

/// What is to be said.
pub struct SpeechJob {
    /// Its name.
    pub id: JobId,
    /// Cut into pieces.
    pub speech: Speech,
    /// Times as fast as the model would.
    pub speed: f32,
    /// Of what is drawn.
    pub seed: u64,
    /// Lower runs earlier.
    pub priority: i32,
    /// Where samples go, piece by piece, or why there are no more. It never waits.
    pub sound: Box<dyn FnMut(Result<Vec<f32>, SpeakError>) + Send>,
}

/// One model that speaks.
pub struct VoiceEngine {
    speaker: Speaker,
    jobs: BTreeMap<JobId, Running>,
    phonemes: u64,
    steps: u64,
}

struct Running {
    job: SpeechJob,
    noise: Noise,
    done: usize, // pieces
    paused: bool,
}

impl VoiceEngine {
    /// With nothing to say.
    pub fn new(speaker: Speaker) -> VoiceEngine {
        VoiceEngine { speaker, jobs: BTreeMap::new(), phonemes: 0, steps: 0 }
    }

    /// Takes a job.
    pub fn submit(&mut self, job: SpeechJob) {
        let noise = Noise::new(job.seed);
        self.jobs.insert(job.id, Running { job, noise, done: 0, paused: false });
    }

    /// Forgets a job.
    pub fn cancel(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// Leaves a job alone, or goes on with it.
    pub fn set_paused(&mut self, job: JobId, paused: bool) {
        if let Some(running) = self.jobs.get_mut(&job) {
            running.paused = paused;
        }
    }

    /// Whether there is something to say.
    pub fn has_work(&self) -> bool {
        self.jobs.values().any(|running| !running.paused)
    }

    /// Says one piece.
    ///
    /// # Errors
    /// The device's: the engine is of no further use.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<StepReport, StepError> {
        let waiting = self.jobs.iter_mut().filter(|(_, running)| !running.paused);
        let next = waiting.min_by_key(|(id, running)| (running.job.priority, running.done, id.0));
        let Some((&id, running)) = next else { return Ok(StepReport::default()) };
        let mut tell = |kind| events.push(Event { job: id, choice: 0, kind });
        if running.done == 0 {
            tell(EventKind::Started { cached_tokens: 0 });
        }
        let mut last = true;
        if let Some(piece) = running.job.speech.pieces.get(running.done) {
            self.phonemes += piece.tokens.len() as u64;
            match self.speaker.say(piece, running.job.speed, &mut running.noise) {
                Ok(samples) => (running.job.sound)(Ok(samples)),
                Err(SpeakError::Kernel(error)) => return Err(error.into()),
                Err(error) => {
                    (running.job.sound)(Err(error));
                    running.done = running.job.speech.pieces.len();
                }
            }
            running.done += 1;
            last = running.done >= running.job.speech.pieces.len();
        }
        if last {
            let prompt_tokens = running.job.speech.phonemes;
            let usage = Usage { prompt_tokens, ..Usage::default() };
            tell(EventKind::Finished { reason: FinishReason::Stop, stop_string: None, usage });
            self.jobs.remove(&id);
        }
        self.steps += 1;
        Ok(StepReport { sequences: 1, ..StepReport::default() })
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
