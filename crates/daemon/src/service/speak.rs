//! The calls Speak and Voices. A text is prepared off the reactor and waits in its model's queue like any request.
//! Its sound is encoded in the requested format segment by segment. Each request is counted once and logged in one
//! line, however it ends.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{Stream, stream};
use hanzo_engine_access::Reservation;
use hanzo_engine_proto::v1::{self, speak_event::Event, speak_request};
use hanzo_engine_runtime::RequestError;
use hanzo_engine_sound::{Encoder, SoundFormat};
use hanzo_engine_voice::{Ask, FieldRefusal, Input, Script, SpeechJob, VoiceInfo};
use tonic::{Request, Status};

use super::{
    Core, answer_by, deadline,
    record::{CallKind, RequestLog},
    within,
};
use crate::{
    convert::{reply::job_end, request},
    drain::Active,
    error::Error,
    limits::{SPEECH_MESSAGE_BYTES, SPEECH_SPEED},
    on_demand::Demand,
    prompt_builder::Build,
    registry::{Capability, InUse},
    ticket::{JobEnd, SpokenPieces, speak_ticket},
    worker::{NotGiven, WorkItem},
};

/// Lists the voices of a model.
pub(super) async fn voices(
    core: &Arc<Core>,
    request: Request<v1::VoicesRequest>,
) -> Result<v1::VoicesResponse, Error> {
    let _active = core.drain.enter()?;
    let by = answer_by(deadline(&request, Instant::now())?);
    let demand = Demand { by, ..Demand::default() };
    let served = core.models.serving(&request.into_inner().model, Capability::Speak, demand).await?;
    let voice = |voice: VoiceInfo| v1::Voice {
        name: voice.name,
        language: voice.language,
        gender: voice.gender.to_owned(),
        aliases: voice.aliases.into_iter().map(str::to_owned).collect(),
    };
    let voices = served.must_speak()?.voices().into_iter().map(voice).collect();
    Ok(v1::VoicesResponse { voices, model: served.name.clone() })
}

/// Begins speech synthesis and returns the sound as a stream.
pub(super) async fn speak(
    core: &Arc<Core>,
    request: Request<v1::SpeakRequest>,
    reservation: Reservation,
) -> Result<impl Stream<Item = Result<v1::SpeakEvent, Status>> + Send + use<>, Error> {
    let arrived = Instant::now();
    let id = request::request_id(&request.get_ref().request_id);
    let mut record = RequestLog::new(CallKind::Speak, core, id, arrived, request.metadata());
    match begin(core, request, arrived, &mut record).await {
        Ok(synthesis) => Ok(events(SpeechStream {
            record,
            synthesis,
            reservation,
            said: 0,
            ready: VecDeque::new(),
            over: false,
        })),
        Err(error) => {
            record.end(Some(&error));
            Err(error)
        }
    }
}

/// Synthesis in progress.
struct Synthesis {
    pieces: SpokenPieces,
    encoder: Option<Encoder>, // `None` once the file is complete
    format: SoundFormat,
    sample_rate: u32, // of the model
    samples: u64,
    phonemes: u32,
    unknown_words: Vec<String>,
    first: Option<Duration>, // from arrival to the first sound
    arrived: Instant,
    served: InUse,
    _active: Active,
}

async fn begin(
    core: &Arc<Core>,
    request: Request<v1::SpeakRequest>,
    arrived: Instant,
    record: &mut RequestLog,
) -> Result<Synthesis, Error> {
    let active = core.drain.enter()?;
    let deadline = deadline(&request, arrived)?;
    let by = answer_by(deadline);
    let client = core.clients.of(&request, &request.get_ref().client)?;
    let wire = request.into_inner();
    let format = format_of(wire.format());
    let speed = wire.speed.unwrap_or(1.0);
    if !SPEECH_SPEED.contains(&speed) {
        let reason = format!("must be {} to {}, not {speed}", SPEECH_SPEED.start(), SPEECH_SPEED.end());
        return Err(Error::field("speed", reason));
    }
    let input = match wire.input {
        Some(speak_request::Input::Text(text)) => Input::Text(text),
        Some(speak_request::Input::Phonemes(phonemes)) => Input::Phonemes(phonemes),
        None => return Err(Error::field("input", "a text or phonemes are wanted")),
    };
    let demand = Demand { by, keep_alive: request::keep_alive(wire.keep_alive.as_deref())?, told: None };
    let served = core.models.serving(&wire.model, Capability::Speak, demand).await?;
    record.model = Some((served.name.clone(), served.metrics.clone()));
    let script: Arc<Script> = served.must_speak()?.clone();
    if !wire.instructions.is_empty() {
        return Err(Error::field("instructions", "this model takes none; leave it out"));
    }
    let sample_rate = script.sample_rate();
    let encoder =
        Encoder::new(format, sample_rate).map_err(|error| Error::field("format", error.to_string()))?;
    let place = served.enter()?;
    let ask = Ask { input, voice: wire.voice, language: wire.language };
    let asked = Build { what: "finding a text's phonemes", client, by, is_large: false };
    let work = served.prompts.run(asked, move |interrupted| {
        script.speech(&ask, interrupted).map_err(|FieldRefusal { field, reason }| match interrupted() {
            true => RequestError::Interrupted.into(),
            false => Error::field(field, reason),
        })
    });
    let mut speech = within(by, work).await?;
    let (phonemes, unknown_words) = (speech.phonemes, std::mem::take(&mut speech.unknown_words));
    record.prompt_tokens = phonemes;
    let (id, seed) = (served.next_job(), wire.seed.unwrap_or(0));
    let job = SpeechJob { id, speech, speed, seed, priority: wire.priority, client };
    let waker = served.worker.waker().clone();
    let (ticket, pieces) = speak_ticket(job, place, arrived, deadline, waker);
    served.worker.give(WorkItem::Speak(ticket), Instant::now()).map_err(|why| match why {
        NotGiven::Full => served.queue_full(),
        NotGiven::Left => Error::Stopped { what: "the model's worker ended" },
    })?;
    record.queued = true;
    Ok(Synthesis {
        pieces,
        encoder: Some(encoder),
        format,
        sample_rate,
        samples: 0,
        phonemes,
        unknown_words,
        first: None,
        arrived,
        served,
        _active: active,
    })
}

fn format_of(format: v1::SoundFormat) -> SoundFormat {
    match format {
        v1::SoundFormat::Unspecified | v1::SoundFormat::Wav => SoundFormat::Wav,
        v1::SoundFormat::Pcm => SoundFormat::Pcm,
        v1::SoundFormat::Mp3 => SoundFormat::Mp3,
        v1::SoundFormat::Flac => SoundFormat::Flac,
        v1::SoundFormat::Opus => SoundFormat::Opus,
    }
}

/// Response stream of one request; dropping it cancels the model's work.
struct SpeechStream {
    record: RequestLog, // dropped first
    synthesis: Synthesis,
    reservation: Reservation,
    said: u32, // phonemes that were charged
    ready: VecDeque<Event>,
    over: bool,
}

fn events(mut live: SpeechStream) -> impl Stream<Item = Result<v1::SpeakEvent, Status>> + Send {
    let SpeechStream { record, synthesis, ready, .. } = &mut live;
    ready.push_back(Event::Started(v1::SpeakStarted {
        request_id: record.request_id.clone(),
        model: synthesis.served.name.clone(),
        sample_rate: synthesis.format.sample_rate(synthesis.sample_rate),
        mime_type: synthesis.format.mime_type().to_owned(),
    }));
    stream::unfold(live, |mut live| async {
        while live.ready.is_empty() {
            if live.over {
                return None;
            }
            if let Err(error) = live.advance().await {
                live.over = true;
                live.record.end(Some(&error));
                return Some((Err(error.into()), live));
            }
        }
        let event = live.ready.pop_front()?;
        Some((Ok(v1::SpeakEvent { event: Some(event), spoken_tokens: live.said }), live))
    })
}

impl SpeechStream {
    /// Handles the next segment, or the end.
    async fn advance(&mut self) -> Result<(), Error> {
        let Synthesis { pieces, encoder, .. } = &mut self.synthesis;
        let said = poll_fn(|context| pieces.poll_next(context)).await;
        let lost = || Error::Stopped { what: "the sound's file ended" };
        let mut file = encoder.take().ok_or_else(lost)?;
        match said {
            Ok(piece) => {
                self.charge(piece.phonemes);
                self.synthesis.samples += piece.samples.len() as u64;
                self.synthesis.first.get_or_insert(piece.elapsed);
                // Some formats take a while to encode, so this does not run on the reactor.
                let work = tokio::task::spawn_blocking(move || {
                    let bytes = file.push(&piece.samples);
                    (file, bytes)
                });
                let (file, bytes) = work.await.map_err(|_| lost())?;
                self.synthesis.encoder = Some(file);
                self.send(bytes);
            }
            Err(JobEnd::Done) => {
                let bytes = tokio::task::spawn_blocking(move || file.finish()).await.map_err(|_| lost())?;
                self.send(bytes);
                self.finish();
            }
            Err(end) => return job_end(end).map_or(Ok(()), Err),
        }
        Ok(())
    }

    fn send(&mut self, bytes: Vec<u8>) {
        let mut bytes = Bytes::from(bytes);
        while !bytes.is_empty() {
            let message = bytes.split_to(bytes.len().min(SPEECH_MESSAGE_BYTES));
            self.ready.push_back(Event::Data(message));
        }
    }

    /// Charges the phonemes synthesised so far, also if the client disconnects.
    fn charge(&mut self, said: u32) {
        self.reservation.charge(said.saturating_sub(self.said));
        self.said = self.said.max(said);
    }

    fn finish(&mut self) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let synthesis = &mut self.synthesis;
        self.ready.push_back(Event::Finished(v1::SpeakFinished {
            duration_s: synthesis.samples as f64 / f64::from(synthesis.sample_rate),
            input_tokens: synthesis.phonemes,
            unknown_words: std::mem::take(&mut synthesis.unknown_words),
            first_sound_ms: synthesis.first.map_or(0.0, ms),
            total_ms: ms(synthesis.arrived.elapsed()),
        }));
        let phonemes = synthesis.phonemes;
        self.charge(phonemes);
        self.reservation.release();
        self.record.end(None);
        self.over = true;
    }
}
