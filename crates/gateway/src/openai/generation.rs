//! One generation: the engine's event streams of one HTTP request, merged, checked and counted. The streamed
//! and the collected answer are both made from it.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use axum::response::Response;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use hanzo_engine_proto::v1::{self, FinishReason, infer_event};
use serde::Serialize;
use tokio::time::Instant;
use tonic::Status;

use crate::{
    answers,
    app::App,
    bodies::Room,
    engine::Engine,
    error::ApiError,
    limits::{EARLY_EVENTS_MAX, LOGPROB_BYTES},
    names::Sent,
    openai::{
        convert::events::{Usage, usage},
        sse::{self, Frames},
        tally::Tally,
    },
    peer::Peer,
    request_id::{random_id, unix_seconds},
    until::Until,
};

/// A checked request: what to ask the engine, and how to answer.
#[derive(Debug)]
pub(crate) struct Plan {
    /// One for each prompt.
    pub(crate) requests: Vec<v1::InferRequest>,
    /// Choices of each prompt. Choice `c` of prompt `p` is answered as index `p * choices + c`.
    pub(crate) choices: u32,
    pub(crate) stream: bool,
    pub(crate) streaming: Streaming,
    /// The fields that the client has sent.
    pub(crate) sent: Sent,
}

/// What a stream shows besides its text.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Streaming {
    /// The last chunk says what was used, the others null.
    pub(crate) include_usage: bool,
    /// Every chunk says what was used so far.
    pub(crate) continuous_usage: bool,
    /// Every event gets a field of random letters, which hides how long its text is from who sees sizes alone.
    pub(crate) obfuscate: bool,
}

impl Streaming {
    /// The `usage` of a chunk before the last: absent where no usage was asked for.
    pub(crate) fn usage_so_far(self, tally: &Tally) -> Option<Option<Usage>> {
        let asked = self.include_usage || self.continuous_usage;
        asked.then(|| self.continuous_usage.then(|| usage(tally)))
    }
}

/// What happened to the choice of that index.
#[derive(Debug)]
pub(crate) enum Event {
    /// The engine has taken a prompt up; nothing of it is to be shown.
    Started,
    /// Text, reasoning or log probabilities came.
    Delta { index: u32, delta: v1::Delta },
    /// The choice is complete; the reason is STOP or LENGTH.
    Finished { index: u32, reason: FinishReason, timings: Option<v1::Timings> },
}

/// One choice of a collected answer.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) logprobs: Vec<v1::TokenLogprob>,
    pub(crate) reason: FinishReason,
}

/// What every chunk of an answer begins with.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64, // Unix seconds
    pub(crate) model: String,
    pub(crate) fingerprint: String,
}

/// An answer's JSON: chat or completion.
pub(crate) trait Shape: Send + 'static {
    /// What the answer's id starts with.
    const ID_PREFIX: &'static str;
    /// A choice of an answer that is not streamed.
    type Choice: Serialize;
    /// The chunks that show an event, which is counted already.
    fn event(&mut self, head: &Head, tally: &Tally, event: Event, frames: &mut Frames);
    /// The last chunk of a stream that asked for usage.
    fn usage(&mut self, head: &Head, tally: &Tally, frames: &mut Frames);
    /// A choice of a request that is not streamed.
    fn choice(&self, index: u32, whole: Whole) -> Self::Choice;
    /// The answer around the choices, with none of them in it.
    fn envelope(&self, head: &Head, tally: &Tally) -> impl Serialize;
}

/// Runs a plan and answers in its shape. A stream begins when the engine has accepted the request, which it then may
/// keep waiting: a refusal has its own HTTP status, and what fails later is an event of the stream.
pub(crate) async fn answer<S: Shape>(
    app: &App,
    plan: Plan,
    room: Room,
    peer: Option<Peer>,
    shape: S,
) -> Result<Response, ApiError> {
    let (stream, streaming) = (plan.stream, plan.streaming);
    let mut generation = Generation::start(app, plan).await?;
    // The engine has what was asked.
    drop(room);
    if stream {
        let keep_alive = Duration::from_secs(app.config.sse_keep_alive_s);
        return Ok(sse::response(generation, shape, streaming, keep_alive, peer));
    }
    let mut choices: Vec<Whole> = Vec::new();
    choices.resize_with(generation.finished.len(), Whole::default);
    let mut room = app.answers.room();
    while let Some(event) = generation.next().await {
        match event? {
            Event::Started => {}
            Event::Delta { index, delta } => {
                room.grow(size(&delta))?;
                let choice = &mut choices[index as usize];
                choice.text.push_str(&delta.text);
                choice.reasoning.push_str(&delta.reasoning);
                choice.logprobs.extend(delta.logprobs);
            }
            Event::Finished { index, reason, .. } => choices[index as usize].reason = reason,
        }
    }
    let head = Head::new(S::ID_PREFIX, std::mem::take(&mut generation.model));
    let envelope = serde_json::to_string(&shape.envelope(&head, &generation.tally));
    let envelope = envelope.map_err(|e| ApiError::internal(&e.to_string()))?;
    Ok(answers::respond(&envelope, choices, move |index, whole| shape.choice(index, whole), room))
}

/// What a piece of a collected answer takes up, about.
fn size(delta: &v1::Delta) -> usize {
    let logprobs: usize = delta.logprobs.iter().map(|token| (1 + token.top.len()) * LOGPROB_BYTES).sum();
    delta.text.len() + delta.reasoning.len() + logprobs
}

impl Head {
    /// Of an answer of that model, whose id begins so.
    pub(crate) fn new(prefix: &str, model: String) -> Head {
        // FNV-1a of what decides the tokens besides the request: the version and the model.
        let seed = concat!("hanzo-engine/", env!("CARGO_PKG_VERSION"), "/");
        let hash = seed.bytes().chain(model.bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Head {
            id: format!("{prefix}-{}", random_id()),
            created: unix_seconds(),
            model,
            fingerprint: format!("fp_{:010x}", hash >> 24),
        }
    }
}

/// What comes of a prompt.
enum Seen {
    /// The engine will run it.
    Accepted,
    Event(infer_event::Event),
}

type Events = Pin<Box<dyn Stream<Item = Result<(u32, Seen), ApiError>> + Send>>;

/// The events of all prompts of a request. Dropping it cancels what still runs in the engine.
pub(crate) struct Generation {
    events: Option<Events>, // None: ended or failed
    early: VecDeque<(u32, infer_event::Event)>,
    choices: u32,
    finished: Vec<bool>, // (prompt, choice)
    /// The model that answers; empty until one has started.
    pub(crate) model: String,
    pub(crate) tally: Tally,
    until: Until,
}

impl Generation {
    /// Starts the plan's requests, and waits until the engine has accepted as many as run at the same time.
    async fn start(app: &App, plan: Plan) -> Result<Generation, ApiError> {
        let until = Until::of(app);
        let deadline = until.deadline;
        let engine = app.engine.clone();
        let (prompts, sent) = (plan.requests.len(), Arc::new(plan.sent));
        let mut waiting = prompts.min(app.config.prompts_running_max);
        let events = stream::iter(plan.requests)
            .enumerate()
            .map(move |(prompt, request)| {
                let sent = sent.clone();
                let name = move |field: &str| prompt_name(sent.name(field)?, prompt, prompts);
                let events = run(engine.clone(), prompt as u32, request, deadline);
                Box::pin(events.map_err(move |status| ApiError::from(status).renamed(&name)))
            })
            .flatten_unordered(app.config.prompts_running_max);
        let mut generation = Generation {
            events: Some(Box::pin(events)),
            early: VecDeque::new(),
            choices: plan.choices,
            finished: vec![false; prompts * plan.choices as usize],
            model: String::new(),
            tally: Tally::new(prompts, plan.choices),
            until,
        };
        // A prompt that says much while another is not accepted is answered.
        while waiting > 0 && generation.early.len() < EARLY_EVENTS_MAX {
            match generation.seen().await? {
                Some((_, Seen::Accepted)) => waiting -= 1,
                Some((prompt, Seen::Event(event))) => generation.early.push_back((prompt, event)),
                None => return Err(ApiError::internal("the engine accepted nothing and refused nothing")),
            }
        }
        Ok(generation)
    }

    /// The next event; `None` once every choice has finished. After an error there is nothing more, and the
    /// engine has been told to stop. May be dropped while it waits: no event is lost.
    pub(crate) async fn next(&mut self) -> Option<Result<Event, ApiError>> {
        while self.events.is_some() || !self.early.is_empty() {
            let event = match self.event().await {
                Ok(Some((prompt, event))) => self.checked(prompt, event),
                Ok(None) if self.finished.iter().all(|finished| *finished) => Ok(None),
                Ok(None) => {
                    Err(ApiError::internal("the engine's stream ended before every choice had finished"))
                }
                Err(error) => Err(error),
            };
            match event {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(error) => {
                    self.events = None;
                    self.early.clear();
                    return Some(Err(error));
                }
            }
        }
        None
    }

    async fn event(&mut self) -> Result<Option<(u32, infer_event::Event)>, ApiError> {
        if let Some(event) = self.early.pop_front() {
            return Ok(Some(event));
        }
        loop {
            match self.seen().await? {
                Some((prompt, Seen::Event(event))) => return Ok(Some((prompt, event))),
                Some((_, Seen::Accepted)) => {}
                None => return Ok(None),
            }
        }
    }

    async fn seen(&mut self) -> Result<Option<(u32, Seen)>, ApiError> {
        let Some(events) = &mut self.events else { return Ok(None) };
        let seen = self.until.run(async { events.next().await.transpose() }).await;
        if !matches!(seen, Ok(Some(_))) {
            self.events = None;
        }
        seen
    }

    /// Checks an event against the contract and counts it. `None`: nothing to show.
    fn checked(&mut self, prompt: u32, event: infer_event::Event) -> Result<Option<Event>, ApiError> {
        match event {
            infer_event::Event::Started(started) => {
                self.tally.started(prompt, &started);
                if self.model.is_empty() {
                    self.model = started.model;
                }
                Ok(Some(Event::Started))
            }
            event if self.model.is_empty() => {
                Err(ApiError::internal(&format!("the engine began with {event:?}")))
            }
            infer_event::Event::Delta(delta) => {
                let index = self.running(prompt, delta.choice)?;
                self.tally.delta(index, &delta);
                Ok(Some(Event::Delta { index, delta }))
            }
            infer_event::Event::Finished(finished) => {
                let index = self.running(prompt, finished.choice)?;
                match finished.reason() {
                    // The status that ends the stream says why.
                    FinishReason::Error => return Ok(None),
                    FinishReason::Unspecified => {
                        return Err(ApiError::internal("the engine finished a choice without a reason"));
                    }
                    FinishReason::Stop | FinishReason::Length => {}
                }
                self.finished[index as usize] = true;
                self.tally.finished(prompt, index, &finished);
                Ok(Some(Event::Finished { index, reason: finished.reason(), timings: finished.timings }))
            }
        }
    }

    /// The index of a choice that may still have events.
    fn running(&self, prompt: u32, choice: u32) -> Result<u32, ApiError> {
        let index = (choice < self.choices).then(|| prompt * self.choices + choice);
        index.filter(|index| !self.finished[*index as usize]).ok_or_else(|| {
            ApiError::internal(&format!("the engine sent an event of choice {choice}, which is not running"))
        })
    }
}

/// The client's name for a field of the request of that prompt: of several, it says which.
fn prompt_name(name: String, prompt: usize, prompts: usize) -> Option<String> {
    match name.strip_prefix("prompt") {
        Some(rest) if prompts > 1 && (rest.is_empty() || rest.starts_with('[')) => {
            Some(format!("prompt[{prompt}]{rest}"))
        }
        _ => Some(name),
    }
}

/// What comes of one prompt.
fn run(
    mut engine: Engine,
    prompt: u32,
    request: v1::InferRequest,
    deadline: Option<Instant>,
) -> impl Stream<Item = Result<(u32, Seen), Status>> + Send {
    stream::once(async move { engine.infer(request, deadline).await })
        .map_ok(move |events| {
            // An event of a kind that this version does not know carries nothing.
            let events = events.try_filter_map(move |event| async move {
                Ok(event.event.map(|event| (prompt, Seen::Event(event))))
            });
            stream::once(async move { Ok((prompt, Seen::Accepted)) }).chain(events)
        })
        .try_flatten()
}
