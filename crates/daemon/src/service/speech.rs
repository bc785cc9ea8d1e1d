//! Speech: texts said and voices told. A text is made ready off the reactor, waits in the model's queue like any request, and
//! its sound is put into the format that was asked for as it comes, piece by piece.

use std::{pin::Pin, sync::Arc, time::Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use hanzo_engine_proto::v1::{self, speak_event::Event, speech_server::Speech};
use hanzo_engine_sound::{Encoder, Format};
use hanzo_engine_voice::{Ask, Input, Refused, Script};
use tonic::{Request, Response, Status};

use super::{Core, Events, answer_by, deadline, record::RequestLog, reply, within};
use crate::{
    convert::{reply::job_end, request, trace::trace_id},
    error::{Error, error_id},
    limits::SPEECH_SPEED,
    on_demand::Demand,
    prompt_builder::BuildKind,
    registry::{Capability, InUse},
    ticket::{Listening, Manner, Spoken, speak_ticket},
    worker::{NotGiven, Work},
};

/// The service.
pub(crate) struct SpeechService(pub(crate) Arc<Core>);

#[tonic::async_trait]
impl Speech for SpeechService {
    type TranscribeStream = Events<v1::TranscribeEvent>;
    type SpeakStream = Events<v1::SpeakEvent>;

    async fn transcribe(
        &self,
        _request: Request<tonic::Streaming<v1::TranscribeRequest>>,
    ) -> Result<Response<Self::TranscribeStream>, Status> {
        Err(Status::unimplemented("this build transcribes nothing"))
    }

    async fn speak(
        &self,
        mut request: Request<v1::SpeakRequest>,
    ) -> Result<Response<Self::SpeakStream>, Status> {
        let pass = super::pass_of(&request);
        pass.use_model(&request.get_ref().model).map_err(|refusal| {
            self.0.models.metrics.refused(&refusal);
            Status::from(refusal)
        })?;
        request.get_mut().priority = pass.priority(request.get_ref().priority);
        let said = speak(&self.0, request).await;
        reply(said.map(|said| {
            let stream = said.inspect(move |event| {
                if let Ok(v1::SpeakEvent { event: Some(Event::Finished(finished)) }) = event {
                    pass.spend(finished.input_tokens);
                }
            });
            Box::pin(stream) as Self::SpeakStream
        }))
    }

    async fn voices(
        &self,
        request: Request<v1::VoicesRequest>,
    ) -> Result<Response<v1::VoicesResponse>, Status> {
        super::pass_of(&request).use_model(&request.get_ref().model).map_err(|refusal| {
            self.0.models.metrics.refused(&refusal);
            Status::from(refusal)
        })?;
        reply(voices(&self.0, request).await)
    }
}

async fn voices(core: &Arc<Core>, request: Request<v1::VoicesRequest>) -> Result<v1::VoicesResponse, Error> {
    let _active = core.drain.enter()?;
    let by = answer_by(deadline(&request, Instant::now())?);
    let demand = Demand { by, keep_alive: None };
    let model = request.into_inner().model;
    let served = core.models.chosen(&model, "", Capability::Speak, demand).await?.served;
    let voice = |voice: hanzo_engine_voice::VoiceInfo| v1::Voice {
        name: voice.name,
        language: voice.language,
        gender: voice.gender.to_owned(),
        aliases: voice.aliases.into_iter().map(str::to_owned).collect(),
    };
    let voices = served.must_speak()?.voices().into_iter().map(voice).collect();
    Ok(v1::VoicesResponse { voices, model: served.name.clone() })
}

type Said = Pin<Box<dyn Stream<Item = Result<v1::SpeakEvent, Status>> + Send>>;

/// Queues a text. The answer is its sound.
async fn speak(core: &Arc<Core>, request: Request<v1::SpeakRequest>) -> Result<Said, Error> {
    let arrived = Instant::now();
    let request_id = request::request_id(&request.get_ref().request_id);
    let mut record = RequestLog::new("speak", core.models.metrics.clone(), request_id, arrived);
    record.trace_id = trace_id(request.metadata());
    match begin(core, request, arrived, &mut record).await {
        Ok(speaking) => Ok(Box::pin(sound(speaking, record, arrived))),
        Err(error) => {
            record.end(Some(&error));
            Err(error)
        }
    }
}

/// A text in its worker's queue.
struct Speaking {
    listening: Listening,
    encoder: Encoder,
    format: Format,
    sample_rate: u32,
    phonemes: u32,
    unknown_words: Vec<String>,
    served: InUse,
    _active: crate::drain::Active,
}

fn refused(Refused { field, reason }: Refused) -> Error {
    Error::field(field, reason)
}

async fn begin(
    core: &Arc<Core>,
    request: Request<v1::SpeakRequest>,
    arrived: Instant,
    record: &mut RequestLog,
) -> Result<Speaking, Error> {
    let active = core.drain.enter()?;
    let deadline = deadline(&request, arrived)?;
    let by = answer_by(deadline);
    let wire = request.into_inner();
    let demand = Demand { by, keep_alive: request::keep_alive(wire.keep_alive.as_deref())? };
    let served = core.models.chosen(&wire.model, "", Capability::Speak, demand).await?.served;
    record.model = Some((served.name.clone(), served.metrics.clone()));
    let script: Arc<Script> = served.must_speak()?.clone();
    let format = format_of(wire.format())?;
    let speed = wire.speed.unwrap_or(1.0);
    if !SPEECH_SPEED.contains(&speed) {
        let reason = format!("must be {} to {}, not {speed}", SPEECH_SPEED.start(), SPEECH_SPEED.end());
        return Err(Error::field("speed", reason));
    }
    if !wire.instructions.is_empty() {
        return Err(Error::field("instructions", "this model takes none; leave it out"));
    }
    let input = match wire.input {
        Some(v1::speak_request::Input::Text(text)) => Input::Text(text),
        Some(v1::speak_request::Input::Phonemes(phonemes)) => Input::Phonemes(phonemes),
        None => return Err(Error::field("input", "a text or phonemes are wanted")),
    };
    let place = served.enter()?;
    let ask = Ask { input, voice: wire.voice, language: wire.language };
    let work = served.prompts.run(BuildKind::Plain("the text"), by, {
        let script = script.clone();
        move |_| script.speech(&ask).map_err(refused)
    });
    let mut speech = within(by, work).await?;
    let (phonemes, unknown_words) = (speech.phonemes, std::mem::take(&mut speech.unknown_words));
    record.prompt_tokens = phonemes;
    let manner = Manner { speed, seed: wire.seed.unwrap_or(0), priority: wire.priority };
    let waker = served.worker.waker().clone();
    let (ticket, listening) =
        speak_ticket((served.next_job(), speech, manner), place, arrived, deadline, waker);
    match served.worker.give(Work::Speak(ticket), Instant::now()) {
        Ok(()) => {}
        Err(NotGiven::Full) => return Err(served.queue_full()),
        Err(NotGiven::Left) => {
            let gone = Error::Stopped { what: "the model's worker ended" };
            return Err(core.models.registry.serving(&served.name, Capability::Speak).err().unwrap_or(gone));
        }
    }
    record.queued = true;
    let sample_rate = script.sample_rate();
    let encoder =
        Encoder::new(format, sample_rate).map_err(|error| Error::field("format", error.to_string()))?;
    Ok(Speaking { listening, encoder, format, sample_rate, phonemes, unknown_words, served, _active: active })
}

fn format_of(format: v1::SoundFormat) -> Result<Format, Error> {
    match format {
        v1::SoundFormat::Unspecified | v1::SoundFormat::Wav => Ok(Format::Wav),
        v1::SoundFormat::Pcm => Ok(Format::Pcm),
        v1::SoundFormat::Mp3 => Ok(Format::Mp3),
        v1::SoundFormat::Flac | v1::SoundFormat::Opus => {
            Err(Error::field("format", "this build makes neither flac nor opus; ask for mp3, wav or pcm"))
        }
    }
}

/// The sound of a text, in its format.
fn sound(
    mut speaking: Speaking,
    mut record: RequestLog,
    arrived: Instant,
) -> impl Stream<Item = Result<v1::SpeakEvent, Status>> + Send {
    let (send, receive) = tokio::sync::mpsc::channel::<Result<v1::SpeakEvent, Status>>(1);
    tokio::spawn(async move {
        let event = |event| Ok(v1::SpeakEvent { event: Some(event) });
        let started = v1::SpeakStarted {
            request_id: record.request_id.clone(),
            model: speaking.served.name.clone(),
            sample_rate: speaking.sample_rate,
            mime_type: speaking.format.mime_type().to_owned(),
        };
        if send.send(event(Event::Started(started))).await.is_err() {
            return;
        }
        let (mut samples, mut first_sound_ms) = (0u64, 0.0);
        let end = loop {
            let said = tokio::select! {
                said = speaking.listening.next() => said,
                // The client has left: what was to be said is dropped with the record.
                () = send.closed() => return,
            };
            match said {
                Some(Spoken::Sound(sound)) => {
                    if samples == 0 {
                        first_sound_ms = arrived.elapsed().as_secs_f64() * 1e3;
                    }
                    samples += sound.len() as u64;
                    let bytes = speaking.encoder.push(&sound);
                    if !bytes.is_empty() && send.send(event(Event::Data(Bytes::from(bytes)))).await.is_err() {
                        return;
                    }
                }
                Some(Spoken::Refused(reason)) => break Some(Error::field("text", reason)),
                Some(Spoken::End(end)) => break job_end(end),
                None => break Some(Error::Worker { error_id: error_id() }),
            }
        };
        if let Some(error) = end {
            record.end(Some(&error));
            let _ = send.send(Err(error.into())).await;
            return;
        }
        record.end(None);
        let rest = speaking.encoder.finish();
        if !rest.is_empty() && send.send(event(Event::Data(Bytes::from(rest)))).await.is_err() {
            return;
        }
        let finished = v1::SpeakFinished {
            duration_s: samples as f64 / f64::from(speaking.sample_rate),
            input_tokens: speaking.phonemes,
            unknown_words: std::mem::take(&mut speaking.unknown_words),
            first_sound_ms,
            total_ms: arrived.elapsed().as_secs_f64() * 1e3,
        };
        let _ = send.send(event(Event::Finished(finished))).await;
    });
    tokio_stream::wrappers::ReceiverStream::new(receive)
}
