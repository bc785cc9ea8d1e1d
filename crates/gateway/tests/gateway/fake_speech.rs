//! The fake engine's ears and mouth: it says two things of every sound, says every text in two pieces, remembers what it was
//! asked, and counts who is being heard or spoken to.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use hanzo_engine_proto::v1::{
    self, TranscribeConfig, TranscribeEvent, TranscribeRequest,
    speech_server::{Speech, SpeechServer},
    transcribe_event::Event,
    transcribe_request::Part,
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

/// What was asked, and the file.
type Asked = (TranscribeConfig, Vec<u8>);

/// Requests as they came, each with its file.
#[derive(Clone, Default)]
pub(crate) struct Heard {
    pub(crate) whole: Arc<Mutex<Vec<Asked>>>,
    pub(crate) running: Arc<AtomicUsize>,
    /// Texts as they came.
    pub(crate) texts: Arc<Mutex<Vec<v1::SpeakRequest>>>,
}

impl Heard {
    pub(crate) fn service(&self) -> SpeechServer<FakeSpeech> {
        SpeechServer::new(FakeSpeech(self.clone()))
    }
}

pub(crate) struct FakeSpeech(Heard);

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Speech for FakeSpeech {
    type TranscribeStream = Events<TranscribeEvent>;
    type SpeakStream = Events<v1::SpeakEvent>;

    async fn transcribe(
        &self,
        request: Request<Streaming<TranscribeRequest>>,
    ) -> Result<Response<Self::TranscribeStream>, Status> {
        let mut messages = request.into_inner();
        let Some(Part::Config(config)) = messages.message().await?.and_then(|message| message.part) else {
            return Err(Status::invalid_argument("config: must be the first message"));
        };
        if config.model == "nobody" {
            return Err(Status::not_found("model: \"nobody\" is not loaded"));
        }
        let heard = self.0.clone();
        heard.running.fetch_add(1, SeqCst);
        let running = Running(heard.running.clone());
        let (to, events) = mpsc::channel(1);
        tokio::spawn(async move {
            let _running = running;
            let mut file = Vec::new();
            let say = async |event| to.send(Ok(TranscribeEvent { event: Some(event) })).await.is_ok();
            let started = v1::TranscribeStarted {
                model: "owner/hears".to_owned(),
                language: "de".to_owned(),
                ..Default::default()
            };
            say(Event::Started(started)).await;
            loop {
                let message = tokio::select! {
                    message = messages.message() => message,
                    () = to.closed() => return,
                };
                match message {
                    Ok(Some(message)) => match message.part {
                        Some(Part::Data(data)) => file.extend_from_slice(&data),
                        _ => return,
                    },
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
            let refused = match &file[..] {
                [] => Some(Status::invalid_argument("data: is empty; send a sound file")),
                [b'm', b'u', b't', b'e', ..] => Some(Status::invalid_argument("data: has no audio track")),
                _ => None,
            };
            if let Some(status) = refused {
                let _ = to.send(Err(status)).await;
                return;
            }
            for (index, text) in [" Guten Tag.", " Auf Wiedersehen."].into_iter().enumerate() {
                let start_s = 1.5 * index as f64;
                let words = text.split(' ').filter(|word| !word.is_empty()).map(|word| v1::TranscriptWord {
                    word: format!(" {word}"),
                    start_s,
                    end_s: start_s + 0.5,
                    probability: 0.5,
                });
                let segment = v1::TranscriptSegment {
                    index: index as u32,
                    start_s,
                    end_s: start_s + 1.25,
                    text: text.to_owned(),
                    tokens: vec![v1::TranscriptToken {
                        token_id: 7,
                        token: text.as_bytes().to_vec().into(),
                        logprob: -0.5,
                    }],
                    average_logprob: -0.25,
                    compression_ratio: 1.5,
                    no_speech_probability: 0.125,
                    words: if config.word_timestamps { words.collect() } else { Vec::new() },
                    ..Default::default()
                };
                say(Event::Delta(v1::TranscribeDelta { text: text.to_owned() })).await;
                say(Event::Segment(segment)).await;
            }
            heard.whole.lock().unwrap().push((config, file));
            let finished = v1::TranscribeFinished {
                duration_s: 3.0,
                text: "Guten Tag. Auf Wiedersehen.".to_owned(),
                prompt_tokens: 4,
                completion_tokens: 9,
                ..Default::default()
            };
            say(Event::Finished(finished)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(events))))
    }

    async fn speak(&self, request: Request<v1::SpeakRequest>) -> Result<Response<Self::SpeakStream>, Status> {
        use v1::{speak_event::Event, speak_request::Input};
        let request = request.into_inner();
        if !request.instructions.is_empty() {
            return Err(Status::invalid_argument("instructions: this model takes none; leave it out"));
        }
        let text = match &request.input {
            Some(Input::Text(text) | Input::Phonemes(text)) => text.clone(),
            None => String::new(),
        };
        self.0.texts.lock().unwrap().push(request);
        let heard = self.0.clone();
        heard.running.fetch_add(1, SeqCst);
        let running = Running(heard.running.clone());
        let (to, events) = mpsc::channel(1);
        tokio::spawn(async move {
            let _running = running;
            let mut spoken_tokens = 0;
            let mut say = async |event| {
                spoken_tokens += u32::from(matches!(event, Event::Data(_)));
                to.send(Ok(v1::SpeakEvent { event: Some(event), spoken_tokens })).await.is_ok()
            };
            let started = v1::SpeakStarted {
                model: "owner/speaks".to_owned(),
                mime_type: "audio/mpeg".to_owned(),
                sample_rate: 24_000,
                ..Default::default()
            };
            say(Event::Started(started)).await;
            if text == "unsayable" {
                let _ = to.send(Err(Status::invalid_argument("text: a piece is too long"))).await;
                return;
            }
            say(Event::Data(b"one ".to_vec().into())).await;
            match text.as_str() {
                "breaks" => {
                    let _ = to.send(Err(Status::internal("the worker failed"))).await;
                    return;
                }
                "forever" => {
                    while say(Event::Data(b"one ".to_vec().into())).await {}
                    return;
                }
                _ => {}
            }
            say(Event::Data(b"two".to_vec().into())).await;
            let finished = v1::SpeakFinished {
                input_tokens: 5,
                unknown_words: vec!["xyzzy".to_owned()],
                ..Default::default()
            };
            say(Event::Finished(finished)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(events))))
    }

    async fn voices(
        &self,
        request: Request<v1::VoicesRequest>,
    ) -> Result<Response<v1::VoicesResponse>, Status> {
        let voice = |name: &str, gender: &str, alias: &str| v1::Voice {
            name: name.to_owned(),
            language: "en-us".to_owned(),
            gender: gender.to_owned(),
            aliases: vec![alias.to_owned()],
        };
        let voices = vec![voice("af_heart", "female", "marin"), voice("am_echo", "male", "echo")];
        Ok(Response::new(v1::VoicesResponse { voices, model: request.into_inner().model }))
    }
}
