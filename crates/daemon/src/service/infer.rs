//! The call Infer: from a request to a job in a worker's queue, and from the job's events to the response stream.
//! Each request is counted once and logged in one line, however it ends.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use futures_util::{
    Stream, StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use hanzo_engine_proto::v1;
use prost::Message as _;
use tokio::sync::watch;
use tonic::{Request, Status};
use tower::{service_fn, util::BoxCloneSyncService};

use super::{
    Core, answer_by, deadline,
    envelope::over_limit,
    record::{CallKind, RequestLog},
    within,
};
use crate::{
    chosen_model::ChosenModel,
    convert::{
        job,
        reply::{self, EventContext},
        request,
    },
    drain::Active,
    error::Error,
    frame_room::FrameReservation,
    limits::EVENTS_MAX,
    on_demand::{AwaitedLoad, Demand},
    prompt_builder::Build,
    registry::{Capability, InUse},
    ticket::{JobEvents, ticket},
    unix_time::now_unix_ms,
    worker::{NotGiven, WorkItem},
};

/// Response stream of one request; dropping it cancels the job.
pub(crate) struct InferStream {
    record: RequestLog, // dropped first, so that a request is counted before the blocks of its cancelled job are free
    answer: QueuedAnswer,
}

/// Answer of a request in its worker's queue, and what the request holds until it ends.
struct QueuedAnswer {
    events: JobEvents,
    context: EventContext,
    echo: Option<String>,
    ready: VecDeque<v1::InferEvent>,
    unfinished: u32, // choices
    _active: Active,
    _frames: FrameReservation,
    _served: InUse,
}

/// Call Infer without an encoding.
pub(crate) type LocalInfer = BoxCloneSyncService<
    Request<v1::InferRequest>,
    BoxStream<'static, Result<v1::InferEvent, Status>>,
    Status,
>;

/// Creates the call for a front end in this process, which has applied the key's limits: the message and its events are
/// handed over as they are. Messages of more than `message_bytes_max` encoded bytes are refused, as over a connection.
/// The codec's bound on memory is not needed, because the message is in memory already; its counts are checked like any
/// other's.
pub(crate) fn local_infer(core: &Arc<Core>, message_bytes_max: usize) -> LocalInfer {
    let core = core.clone();
    BoxCloneSyncService::new(service_fn(move |request: Request<v1::InferRequest>| {
        let core = core.clone();
        async move {
            if request.get_ref().encoded_len() > message_bytes_max {
                return Err(over_limit(message_bytes_max));
            }
            Ok(infer(&core, request).await?.boxed())
        }
    }))
}

/// Handles a request. With `load_progress` the stream begins while the model loads, otherwise once the job is
/// queued.
pub(crate) async fn infer(core: &Arc<Core>, request: Request<v1::InferRequest>) -> Result<Answer, Error> {
    if !request.get_ref().load_progress {
        return Ok(Answer::Queued(Box::new(queued(core, request, None).await?)));
    }
    let (told, hears) = watch::channel(None);
    let core = core.clone();
    let queued = async move { queued(&core, request, Some(&told)).await };
    Ok(Answer::Waits { queued: Box::pin(queued), news: Box::pin(stream::unfold(hears, news)) })
}

/// Next progress message, and the receiver for the ones after it.
async fn news(
    mut hears: watch::Receiver<Option<AwaitedLoad>>,
) -> Option<(AwaitedLoad, watch::Receiver<Option<AwaitedLoad>>)> {
    loop {
        hears.changed().await.ok()?;
        let coming = hears.borrow_and_update().clone();
        if let Some(coming) = coming {
            return Some((coming, hears));
        }
    }
}

/// Response of a request whose model may still be loading.
pub(crate) enum Answer {
    Waits {
        queued: BoxFuture<'static, Result<InferStream, Error>>,
        news: BoxStream<'static, AwaitedLoad>,
    },
    Queued(Box<InferStream>),
    /// Failed before it was queued; the error is taken once it has been sent.
    Refused(Option<Error>),
}

impl Answer {
    fn ended(end: Result<InferStream, Error>) -> Self {
        match end {
            Ok(stream) => Self::Queued(Box::new(stream)),
            Err(error) => Self::Refused(Some(error)),
        }
    }
}

impl Stream for Answer {
    type Item = Result<v1::InferEvent, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            match this {
                Answer::Queued(stream) => return Pin::new(&mut **stream).poll_next(context),
                Answer::Refused(error) => {
                    return Poll::Ready(error.take().map(|error| Err(error.into())));
                }
                Answer::Waits { queued, news } => {
                    let ended = queued.as_mut().poll(context);
                    // Progress that was sent before the end is delivered first.
                    if let Poll::Ready(Some(coming)) = news.as_mut().poll_next(context) {
                        if let Poll::Ready(ended) = ended {
                            *this = Answer::ended(ended);
                        }
                        return Poll::Ready(Some(Ok(reply::loading(coming))));
                    }
                    // No progress will follow, so the wait is over.
                    *this = Answer::ended(ready!(ended));
                }
            }
        }
    }
}

/// Queues a request and returns its response stream.
async fn queued(
    core: &Arc<Core>,
    request: Request<v1::InferRequest>,
    told: Option<&watch::Sender<Option<AwaitedLoad>>>,
) -> Result<InferStream, Error> {
    let arrived = Instant::now();
    let request_id = request::request_id(&request.get_ref().request_id);
    let chat = matches!(request.get_ref().prompt, Some(v1::infer_request::Prompt::Chat(_)));
    let mut record = RequestLog::new(CallKind::Infer { chat }, core, request_id, arrived, request.metadata());
    match begin(core, request, arrived, told, &mut record).await {
        Ok(answer) => Ok(InferStream { record, answer }),
        Err(error) => {
            record.end(Some(&error));
            Err(error)
        }
    }
}

async fn begin(
    core: &Arc<Core>,
    request: Request<v1::InferRequest>,
    arrived: Instant,
    told: Option<&watch::Sender<Option<AwaitedLoad>>>,
    record: &mut RequestLog,
) -> Result<QueuedAnswer, Error> {
    let active = core.drain.enter()?;
    let deadline = deadline(&request, arrived)?;
    let client = core.clients.of(&request, &request.get_ref().client)?;
    let wire = request.into_inner();
    let wanted = match &wire.prompt {
        Some(v1::infer_request::Prompt::Chat(_)) => Capability::Chat,
        _ => Capability::Generate,
    };
    let keep_alive = request::keep_alive(wire.keep_alive.as_deref())?;
    let demand = Demand { by: answer_by(deadline), keep_alive, told };
    let asked_at_unix_ms = now_unix_ms();
    let chosen = core.models.chosen(&wire.model, &wire.adapter, wanted, demand).await?;
    let answers = chosen.name();
    let ChosenModel { served, adapter } = chosen;
    let waited = served.loaded_at_unix_ms >= asked_at_unix_ms;
    let load = if waited { arrived.elapsed() } else { Duration::ZERO };
    record.model = Some((served.name.clone(), served.metrics.clone()));
    record.load = load;
    let choices_max = served.must_generate()?.sequences_max;
    let choices = job::choices(&wire)?;
    // Choices of one request never wait for each other; all run at once.
    if choices as usize > choices_max {
        let reason = format!(
            "must be at most {choices_max}, which is what this model runs at once (engine.sequences_max), not {choices}"
        );
        return Err(Error::field("choices", reason));
    }
    let place = served.enter()?;
    let (of, by) = (served.clone(), answer_by(deadline));
    let asked = Build { what: "building the prompt", client, by, is_large: job::is_large(&wire) };
    let build = move |interrupted: &dyn Fn() -> bool| job::build(wire, client, &of, interrupted);
    let work = served.prompts.run(asked, build);
    let mut built = within(by, work).await?;
    let frames = served.hold_frames(built.job.media.iter())?;
    built.job.adapter = adapter.map(|adapter| adapter.handle);
    let context = EventContext::new(record.request_id.clone(), answers, &served, &built.job, load);
    record.prompt_tokens = context.prompt_tokens();
    record.asks(&built.job);
    let waker = served.worker.waker().clone();
    let (ticket, events) = ticket(built.job, place, arrived, deadline, EVENTS_MAX, waker);
    match served.worker.give(WorkItem::Run(ticket), Instant::now()) {
        Ok(()) => {}
        Err(NotGiven::Full) => return Err(served.queue_full()),
        Err(NotGiven::Left) => {
            // The worker ended after the check above. Report what the model is doing now.
            let gone = Error::Stopped { what: "the model's worker ended" };
            return Err(core.models.registry.serving(&served.name, wanted).err().unwrap_or(gone));
        }
    }
    record.queued = true;
    Ok(QueuedAnswer {
        events,
        context,
        echo: built.echo,
        ready: VecDeque::new(),
        unfinished: choices,
        _active: active,
        _frames: frames,
        _served: served,
    })
}

impl Stream for InferStream {
    type Item = Result<v1::InferEvent, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let InferStream { record, answer } = self.get_mut();
        if let Some(event) = answer.ready.pop_front() {
            return Poll::Ready(Some(Ok(event)));
        }
        if record.ended {
            return Poll::Ready(None);
        }
        match ready!(answer.events.poll_next(context)) {
            Ok(event) => {
                record.completion_tokens += event.completion_tokens();
                if let Some(cached_tokens) = event.begins() {
                    record.begun.get_or_insert_with(Instant::now);
                    record.cached_tokens = record.cached_tokens.max(cached_tokens);
                }
                if let Some(reason) = event.finish_reason() {
                    answer.unfinished -= 1;
                    record.reason = reason;
                }
                if let Some(times) = event.timings {
                    record.took(times);
                }
                if answer.unfinished == 0 {
                    // Now, because a client that has its last event may disconnect before it reads the stream's
                    // end.
                    record.end(None);
                }
                if let Some(prompt) = answer.echo.as_ref().filter(|_| event.begins().is_some()) {
                    answer.ready.push_back(reply::echo(event.choice, prompt));
                }
                if event.begins().is_some() && event.choice == 0 {
                    answer.ready.extend(reply::first_of_prompt(&answer.context));
                }
                Poll::Ready(Some(Ok(reply::event(event, &answer.context))))
            }
            Err(end) => {
                let error = reply::job_end(end);
                record.end(error.as_ref());
                Poll::Ready(error.map(|error| Err(error.into())))
            }
        }
    }
}
