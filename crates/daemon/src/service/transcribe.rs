//! The call Transcribe. The client streams a file, a thread decodes it as it arrives, the model takes samples as it
//! can, and its transcript is streamed back, all at the same time. A few pieces may wait between each two of these,
//! so that a slow stage holds the others back. Each request is counted once and logged in one line, however it
//! ends.

#[cfg(test)]
pub(crate) mod stand_in;

use std::{
    collections::VecDeque,
    io::{self, Read},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::{Buf as _, Bytes};
use futures_util::{Stream, stream};
use hanzo_engine_access::TranscriptSpend;
use hanzo_engine_process::tasks;
use hanzo_engine_proto::v1::{self, transcribe_request::Part};
use hanzo_engine_sound::{Gate, Hint, Limits, Sound, SoundError};
use tokio::{
    sync::{mpsc, oneshot},
    task::AbortHandle,
    time::timeout,
};
use tonic::{Request, Status, Streaming};

use super::{
    Core, answer_by, deadline, pass_of,
    record::{CallKind, RequestLog},
};
use crate::{
    convert::{
        request,
        speech::{self, ServiceTimes, SharedMap, Told, TranscriptBuilder},
    },
    drain::Active,
    error::Error,
    limits::{SOUND_MESSAGE_BYTES_MAX, SOUND_MESSAGES_MAX, SOUND_SILENCE_MAX},
    on_demand::Demand,
    registry::{Capability, InUse},
    served::ServedModel,
    transcribe::{CHUNK_SAMPLES_MAX, SOUND_CHUNKS, TranscribeRequest, Transcription},
};

/// Begins a transcription and returns its response stream.
pub(super) async fn transcribe(
    core: &Arc<Core>,
    request: Request<Streaming<v1::TranscribeRequest>>,
    limits: Limits,
) -> Result<impl Stream<Item = Result<v1::TranscribeEvent, Status>> + Send + use<>, Status> {
    let arrived = Instant::now();
    let id = request::request_id("");
    let mut record = RequestLog::new(CallKind::Transcribe, core, id, arrived, request.metadata());
    match begin(core, request, limits, arrived, &mut record).await {
        Ok(begun) => Ok(events(TranscribeStream { record, begun, ready: VecDeque::new(), over: false })),
        Err(TranscribeRefusal::Error(error)) => {
            record.end(Some(&error));
            Err(error.into())
        }
        Err(TranscribeRefusal::Access(refusal)) => {
            let error = Error::field("model", refusal.to_string());
            record.end(Some(&error));
            core.models.metrics.refused(&refusal);
            Err(refusal.into())
        }
    }
}

/// Reason why a transcription was not begun.
enum TranscribeRefusal {
    Error(Error),
    Access(hanzo_engine_access::Refusal),
}

impl From<Error> for TranscribeRefusal {
    fn from(error: Error) -> Self {
        TranscribeRefusal::Error(error)
    }
}

/// Source of a transcript.
enum Hears {
    Model(Transcription),
    #[cfg(test)]
    StandIn(mpsc::Receiver<Told>),
}

impl Hears {
    async fn begin(
        served: &Arc<ServedModel>,
        asked: TranscribeRequest,
        sound: mpsc::Receiver<Vec<f32>>,
    ) -> Result<Hears, Error> {
        #[cfg(test)]
        if served.name == stand_in::NAME {
            return stand_in::transcribe(served, asked, sound).map(Hears::StandIn);
        }
        served.must_transcribe()?;
        served.transcribe(asked, sound).await.map(Hears::Model)
    }

    async fn next(&mut self) -> Option<Told> {
        match self {
            Hears::Model(transcription) => transcription.next().await,
            #[cfg(test)]
            Hears::StandIn(told) => told.recv().await,
        }
    }
}

/// Transcription in progress.
struct ActiveTranscription {
    transcription: Hears,
    builder: TranscriptBuilder,
    /// Result of decoding, once the sound has ended.
    decoded: Option<oneshot::Receiver<Result<SoundLength, Error>>>,
    heard: Option<SoundLength>,
    language: String,
    arrived: Instant,
    first: Option<Instant>,
    by: Option<Instant>,
    spend: TranscriptSpend,
    _upload: Upload,
    _active: Active,
    _served: InUse,
}

/// Length of a decoded sound, and whether the model was given any of it.
#[derive(Clone, Copy)]
struct SoundLength {
    seconds: f64,
    given: bool,
}

/// Task that receives the client's messages; it ends with the request.
struct Upload(AbortHandle);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn begin(
    core: &Arc<Core>,
    request: Request<Streaming<v1::TranscribeRequest>>,
    limits: Limits,
    arrived: Instant,
    record: &mut RequestLog,
) -> Result<ActiveTranscription, TranscribeRefusal> {
    let active = core.drain.enter()?;
    let deadline = deadline(&request, arrived)?;
    let by = answer_by(deadline);
    let pass = pass_of(&request);
    let (metadata, extensions, mut messages) = request.into_parts();
    let config = match super::within(by, next(&mut messages)).await? {
        Some(Part::Config(config)) => config,
        _ => return Err(Error::field("config", "must be the first message").into()),
    };
    record.request_id = request::request_id(&config.request_id);
    pass.use_model(&config.model).map_err(TranscribeRefusal::Access)?;
    let spend = TranscriptSpend::reserve(&pass).map_err(TranscribeRefusal::Access)?;
    let from = Request::from_parts(metadata, extensions, ());
    let client = core.clients.of(&from, &config.client)?;
    let (options, hint) = speech::options(&config)?;
    let demand = Demand { by, keep_alive: request::keep_alive(config.keep_alive.as_deref())?, told: None };
    let served = core.models.serving(&config.model, Capability::Transcribe, demand).await?;
    record.model = Some((served.name.clone(), served.metrics.clone()));
    let language = options.language.clone();
    let priority = pass.priority(config.priority);
    let asked = TranscribeRequest { options, priority, client, arrived, deadline };
    let (samples, sound) = mpsc::channel(SOUND_CHUNKS);
    let transcription = super::within(by, Hears::begin(&served, asked, sound)).await?;
    record.queued = true;

    let (bytes, reader) = mpsc::channel(SOUND_MESSAGES_MAX);
    let upload = Upload(tasks::spawn(upload(messages, bytes)).abort_handle());
    let map = SharedMap::default();
    let (done, decoded) = oneshot::channel();
    let gate = match config.voice_activity.unwrap_or(true) {
        true => core.voice_activity.gate(),
        false => Gate::keeping_pauses(),
    };
    let of_thread = map.clone();
    tokio::task::spawn_blocking(move || {
        let reader = MessageReader { messages: Mutex::new(reader), piece: Bytes::new() };
        // The receiver is gone if the client has disconnected.
        let _ = done.send(decode(reader, &hint, &limits, gate, &samples, &of_thread));
    });
    let builder =
        TranscriptBuilder::new(record.request_id.clone(), served.name.clone(), map, config.logprobs);
    Ok(ActiveTranscription {
        transcription,
        builder,
        decoded: Some(decoded),
        heard: None,
        language,
        arrived,
        first: None,
        by,
        spend,
        _upload: upload,
        _active: active,
        _served: served,
    })
}

/// Next message of the client; `None` at the end of the stream.
async fn next(messages: &mut Streaming<v1::TranscribeRequest>) -> Result<Option<Part>, Error> {
    let silent = || {
        let reason = format!("nothing came for {} seconds; send it at once", SOUND_SILENCE_MAX.as_secs());
        Error::field("data", reason)
    };
    let message = timeout(SOUND_SILENCE_MAX, messages.message()).await.map_err(|_| silent())?;
    let message = message.map_err(|status| match status.code() {
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => {
            let reason = format!("must have at most {SOUND_MESSAGE_BYTES_MAX} bytes in a message");
            Error::field("data", reason)
        }
        _ => Error::Stopped { what: "the file broke off" },
    })?;
    Ok(message.and_then(|message| message.part))
}

/// Forwards the file's bytes as fast as they are decoded.
async fn upload(mut messages: Streaming<v1::TranscribeRequest>, bytes: mpsc::Sender<Result<Bytes, Error>>) {
    loop {
        let piece = match next(&mut messages).await {
            Ok(None) => return,
            Ok(Some(Part::Data(data))) if data.len() > SOUND_MESSAGE_BYTES_MAX => {
                let reason = format!("must have at most {SOUND_MESSAGE_BYTES_MAX} bytes in a message");
                Err(Error::field("data", reason))
            }
            Ok(Some(Part::Data(data))) => Ok(data),
            Ok(Some(Part::Config(_))) => Err(Error::field("config", "must come once, before the data")),
            Err(error) => Err(error),
        };
        let ends = piece.is_err();
        if bytes.send(piece).await.is_err() || ends {
            return;
        }
    }
}

/// Blocking reader of the file's bytes, for the decoder's thread.
struct MessageReader {
    messages: Mutex<mpsc::Receiver<Result<Bytes, Error>>>,
    piece: Bytes,
}

/// Reason why the bytes ended early, wrapped in the decoder's error.
#[derive(Debug)]
struct Broken(Error);

impl std::fmt::Display for Broken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

impl std::error::Error for Broken {}

impl Read for MessageReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let messages = self.messages.get_mut().unwrap_or_else(PoisonError::into_inner);
            match messages.blocking_recv() {
                None => return Ok(0),
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(error)) => return Err(io::Error::other(Broken(error))),
            }
        }
        let read = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..read]);
        Ok(read)
    }
}

/// Decodes the sound and gives the model the parts with speech.
fn decode(
    reader: MessageReader,
    hint: &Hint,
    limits: &Limits,
    mut gate: Gate,
    samples: &mpsc::Sender<Vec<f32>>,
    map: &SharedMap,
) -> Result<SoundLength, Error> {
    let own = |error: SoundError| match error {
        SoundError::Read(error) => match error.downcast::<Broken>() {
            Ok(Broken(error)) => error,
            Err(error) => Error::field("data", error.to_string()),
        },
        error => error.into(),
    };
    let mut sound = Sound::open(reader, hint, limits).map_err(own)?;
    let mut given = false;
    let mut give = |chunk: Vec<f32>| {
        given |= !chunk.is_empty();
        // If the receiver has ended, its last event gives the reason.
        chunk.chunks(CHUNK_SAMPLES_MAX).all(|part| samples.blocking_send(part.to_vec()).is_ok())
    };
    // The time map must cover a sample before the model gets it.
    let follow = |gate: &Gate| map.lock().unwrap_or_else(PoisonError::into_inner).follow(gate.map());
    while let Some(chunk) = sound.next_chunk().map_err(own)? {
        let mut heard = Vec::with_capacity(chunk.len());
        gate.push(&chunk, &mut heard);
        follow(&gate);
        if !give(heard) {
            break;
        }
    }
    let mut heard = Vec::new();
    gate.finish(&mut heard);
    follow(&gate);
    give(heard);
    Ok(SoundLength { seconds: sound.seconds(), given })
}

/// Response stream of one request; dropping it cancels the model's work.
struct TranscribeStream {
    record: RequestLog, // dropped first
    begun: ActiveTranscription,
    ready: VecDeque<v1::TranscribeEvent>,
    over: bool,
}

fn events(live: TranscribeStream) -> impl Stream<Item = Result<v1::TranscribeEvent, Status>> + Send {
    stream::unfold(live, |mut live| async {
        if let Some(event) = live.ready.pop_front() {
            return Some((Ok(event), live));
        }
        if live.over {
            return None;
        }
        let by = live.begun.by;
        let event = match super::within(by, live.next()).await {
            Ok(event) => match live.begun.spend.see(&event) {
                Ok(()) => Ok(event),
                Err(refusal) => {
                    live.over = true;
                    live.record.end(Some(&Error::field("data", refusal.to_string())));
                    Err(refusal.into())
                }
            },
            Err(error) => {
                live.over = true;
                live.record.end(Some(&error));
                Err(error.into())
            }
        };
        Some((event, live))
    })
}

/// Event that came first.
enum NextEvent {
    Decoded(Result<SoundLength, Error>),
    Said(Option<Told>),
}

impl TranscribeStream {
    async fn next(&mut self) -> Result<v1::TranscribeEvent, Error> {
        let mut finished = false;
        loop {
            // If no speech was found, there is no event to wait for.
            if let Some(heard) = self.begun.heard.filter(|heard| finished || !heard.given) {
                return Ok(self.end(heard));
            }
            match self.turn(finished).await {
                NextEvent::Decoded(decoded) => self.begun.heard = Some(decoded?),
                NextEvent::Said(None) => return Err(Error::Stopped { what: "the model's worker ended" }),
                NextEvent::Said(Some(event)) => {
                    self.begun.first.get_or_insert_with(Instant::now);
                    match self.begun.builder.event(event?) {
                        Some(event) => return Ok(event),
                        None => finished = true,
                    }
                }
            }
        }
    }

    async fn turn(&mut self, finished: bool) -> NextEvent {
        let ActiveTranscription { transcription, decoded, .. } = &mut self.begun;
        let ended = async {
            match decoded {
                Some(waits) => waits.await.unwrap_or(Err(Error::Stopped { what: "decoding ended" })),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ended = ended => {
                self.begun.decoded = None;
                NextEvent::Decoded(ended)
            }
            event = transcription.next(), if !finished => NextEvent::Said(event),
        }
    }

    /// Builds the last event, preceded by the first one if the model has sent nothing.
    fn end(&mut self, heard: SoundLength) -> v1::TranscribeEvent {
        let ActiveTranscription { builder, language, arrived, first, spend, .. } = &mut self.begun;
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        let times = ServiceTimes {
            seconds: heard.seconds,
            queue_ms: first.map_or(0.0, |first| ms(first.duration_since(*arrived))),
            total_ms: ms(arrived.elapsed()),
        };
        (self.record.prompt_tokens, self.record.completion_tokens) =
            (builder.prompt_tokens, builder.completion_tokens);
        self.record.begun = *first;
        spend.finish(builder.prompt_tokens.saturating_add(builder.completion_tokens));
        let last = builder.finish(&times);
        self.record.end(None);
        self.over = true;
        if builder.started {
            return last;
        }
        self.ready.push_back(last);
        builder.start(std::mem::take(language), 0.0)
    }
}
