//! Speech calls to the engine: transcription of a streamed file, and speech synthesis.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future::Either, stream};
use hanzo_engine_access::{Need, Refusal, TranscriptSpend};
use hanzo_engine_proto::v1::{
    self, TranscribeConfig, TranscribeEvent, TranscribeRequest, speak_event, transcribe_event::Event,
    transcribe_request::Part,
};
use tokio::{
    sync::{Mutex, Notify, mpsc},
    time::Instant,
};
use tonic::{Response, Status, Streaming};

use super::{Engine, Link, of_the_gateway};
use crate::{
    carrier::DaemonClient,
    fleet::Route,
    limits::SOUND_MESSAGE_BYTES,
    record::Record,
    silence::{events_while_alive, while_alive},
};

/// File on its way to an engine. If that engine refuses the request, another one can get it: bytes are sent
/// only after one has accepted.
#[derive(Clone)]
struct FileUpload {
    config: TranscribeConfig,
    bytes: Arc<Mutex<mpsc::Receiver<Bytes>>>,
}

/// Signal that an engine has accepted a request. The engine sends it before it reads the file.
#[derive(Clone, Default)]
struct AcceptSignal(Arc<(AtomicBool, Notify)>);

impl AcceptSignal {
    fn say(&self) {
        self.0.0.store(true, SeqCst);
        self.0.1.notify_one();
    }

    async fn heard(&self) {
        while !self.0.0.load(SeqCst) {
            self.0.1.notified().await;
        }
    }
}

impl FileUpload {
    /// Messages of a request.
    fn messages(self, accepted: AcceptSignal) -> impl Stream<Item = TranscribeRequest> + Send + 'static {
        let config = TranscribeRequest { part: Some(Part::Config(self.config)) };
        let bytes = self.bytes;
        let data = stream::once(async move {
            accepted.heard().await;
            bytes.lock_owned().await
        });
        let data = data.flat_map(|bytes| {
            stream::unfold((bytes, Bytes::new()), |(mut bytes, mut piece)| async move {
                while piece.is_empty() {
                    // If the requester has gone, the answer is dropped together with this stream, and only then
                    // is the call reset.
                    piece = bytes.recv().await?;
                }
                let now = piece.split_to(piece.len().min(SOUND_MESSAGE_BYTES));
                let message = TranscribeRequest { part: Some(Part::Data(now)) };
                Some((message, (bytes, piece)))
            })
        });
        stream::iter([config]).chain(data)
    }
}

impl Engine {
    /// Transcribes an audio file that arrives through `bytes`; the end of the channel is the end of the file.
    /// Dropping the future or the stream cancels the call.
    pub(crate) async fn transcribe(
        &mut self,
        mut config: TranscribeConfig,
        bytes: mpsc::Receiver<Bytes>,
        deadline: Option<Instant>,
    ) -> Result<impl Stream<Item = Result<TranscribeEvent, Status>> + Send + use<>, Status> {
        self.use_here(&config.model)?;
        config.priority = self.pass.priority(config.priority);
        let mut spend = TranscriptSpend::reserve(&self.pass).map_err(|refusal| self.refused(refusal))?;
        let (model, head) = (config.model.clone(), self.head(deadline));
        let file = FileUpload { config, bytes: Arc::new(Mutex::new(bytes)) };
        let call = move |mut client: DaemonClient, file: FileUpload| {
            let head = head.clone();
            async move {
                let accepted = AcceptSignal::default();
                let answer = client.speech.transcribe(head.over(file.messages(accepted.clone()))).await;
                if answer.is_ok() {
                    accepted.say();
                }
                answer
            }
        };
        self.held(&model, file, call, move |event: &TranscribeEvent, record: &Record| {
            match &event.event {
                Some(Event::Started(started)) => record.answered(&started.model, 0),
                Some(Event::Finished(finished)) => {
                    record.generated(finished.prompt_tokens, finished.completion_tokens);
                }
                _ => {}
            }
            spend.see(event)
        })
        .await
    }

    /// Synthesizes speech. Dropping the future or the stream cancels the call.
    pub(crate) async fn speak(
        &mut self,
        mut request: v1::SpeakRequest,
        deadline: Option<Instant>,
    ) -> Result<impl Stream<Item = Result<v1::SpeakEvent, Status>> + Send + use<>, Status> {
        self.use_here(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let mut reservation = self.reserve(Need::speak(&request))?;
        let mut charged = 0;
        let (model, head) = (request.model.clone(), self.head(deadline));
        let call = move |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { client.speech.speak(head.over(request)).await }
        };
        self.held(&model, request, call, move |event: &v1::SpeakEvent, record: &Record| {
            let finished = match &event.event {
                Some(speak_event::Event::Started(started)) => {
                    record.answered(&started.model, 0);
                    None
                }
                Some(speak_event::Event::Finished(finished)) => Some(finished.input_tokens),
                _ => None,
            };
            // Charged as audio arrives, so a client that disconnects has paid for what was produced.
            let said = event.spoken_tokens.max(finished.unwrap_or_default());
            let more = said.saturating_sub(charged);
            charged += more;
            reservation.charge(more);
            record.generated(more, 0);
            if finished.is_some() {
                reservation.release();
            }
            Ok(())
        })
        .await
    }

    /// Streamed answer of the engine or of a daemon that has the model; the daemon counts as busy meanwhile.
    /// `seen` gets every event and may end the answer.
    async fn held<R, T, C, F, S>(
        &self,
        model: &str,
        request: R,
        call: C,
        mut seen: S,
    ) -> Result<impl Stream<Item = Result<T, Status>> + Send + use<R, T, C, F, S>, Status>
    where
        R: Clone,
        C: Fn(DaemonClient, R) -> F,
        S: FnMut(&T, &Record) -> Result<(), Refusal> + Send,
        T: Send + 'static,
        F: Future<Output = Result<Response<Streaming<T>>, Status>>,
    {
        let events = match &self.link {
            Link::One(client) => {
                let answer = while_alive(client, call(client.clone(), request)).await;
                Either::Left(events_while_alive(client.clone(), self.said(answer)?))
            }
            Link::Fleet(fleet) => {
                let asked = fleet.ask_held(Route::to(model), request, call).await;
                let (lease, answer) = asked.map_err(|status| of_the_gateway(self.is_remote(), status))?;
                let events = events_while_alive(lease.client().clone(), answer.into_inner());
                // The lease lasts as long as the answer.
                Either::Right(events.inspect_err(move |status| lease.failed(status)))
            }
        };
        let (remote, record) = (self.is_remote(), self.record.clone());
        let failed = record.clone();
        Ok(events
            .map_err(move |status| of_the_gateway(remote, status))
            .scan(false, move |over, event| {
                let event = event.and_then(|event| match seen(&event, &record) {
                    Ok(()) => Ok(event),
                    Err(refusal) => Err(refusal.into()),
                });
                let ended = std::mem::replace(over, event.is_err());
                std::future::ready((!ended).then_some(event))
            })
            .inspect_err(move |status| failed.failed(status)))
    }

    /// Voices of a model.
    pub(crate) async fn voices(
        &self,
        model: String,
        deadline: Option<Instant>,
    ) -> Result<v1::VoicesResponse, Status> {
        self.use_here(&model)?;
        let head = self.head(deadline);
        let call = |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { client.speech.voices(head.over(request)).await }
        };
        let request = v1::VoicesRequest { model: model.clone() };
        self.said(self.link.ask(&model, request, call).await)
    }
}
