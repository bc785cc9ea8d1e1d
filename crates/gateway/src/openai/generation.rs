//! Generation of one HTTP request: the engine's event streams, merged, validated and counted.

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use hanzo_engine_proto::v1::{self, FinishReason, infer_event};
use tokio::time::Instant;
use tonic::Status;

use crate::{
    app::App,
    asker::Asker,
    engine::Engine,
    error::ApiError,
    limits::EARLY_EVENTS_MAX,
    openai::{
        lines::{LineLimits, Lines},
        plan::RequestPlan,
        turns::{ServerCall, Turns},
        usage_count::UsageCount,
    },
    until::Until,
};

/// Event of the choice at an index.
#[derive(Debug)]
pub(crate) enum Event {
    /// Load progress of the model, if requested.
    Loading(v1::Loading),
    /// The engine has begun a prompt, whose choices begin at `index`. Most formats do not show it.
    Started { index: u32, started: Box<v1::Started> },
    /// Log probabilities of prompt tokens. The first token, which has none, comes before all others. The
    /// prompt's choices begin at `index`.
    Scored { index: u32, scored: v1::PromptLogprobs },
    /// Text, reasoning or log probabilities.
    Delta { index: u32, delta: v1::Delta },
    /// Begin or end of an MCP tool call, which the answer waits for.
    Server(Box<ServerCall>),
    /// End of a choice. The reason is STOP (possibly with a stop string), LENGTH or TOOL_CALLS.
    Finished {
        index: u32,
        reason: FinishReason,
        stop_string: String,
        timings: Option<v1::Timings>,
        /// Tokens of the choice; 0 if the engine has not reported them.
        tokens: u32,
    },
}

/// Message about a prompt.
enum PromptMessage {
    /// The engine has accepted the prompt.
    Accepted,
    Event(infer_event::Event),
}

type Events = Pin<Box<dyn Stream<Item = Result<(u32, PromptMessage), ApiError>> + Send>>;

/// Events of all prompts of a request. Dropping it cancels the running work in the engine.
pub(crate) struct Generation {
    events: Option<Events>, // None: ended or failed
    early: VecDeque<(u32, infer_event::Event)>,
    choices: u32,
    pub(super) finished: Vec<bool>, // indexed by prompt and choice
    /// Model that answers; empty until a prompt has started.
    pub(crate) model: String,
    pub(crate) used: UsageCount,
    until: Until,
    limits: Option<LineLimits>,
    lines: Vec<Lines>,         // by index
    cut: Option<u32>,          // choice that a limit has just ended
    cuts: Vec<bool>,           // by index: ended by a limit
    turns: Option<Box<Turns>>, // of an answer that may call MCP tools
    hears_loads: bool,
    engine: Engine,
}

impl Generation {
    /// Starts the plan's requests, and waits until the engine has accepted as many as may run at the same time.
    pub(crate) async fn start(
        app: &App,
        asker: &Asker,
        mut plan: RequestPlan,
    ) -> Result<Generation, ApiError> {
        app.media_hosts.fetch(&mut plan.requests, app.config.body_bytes_max).await?;
        let until = plan.until.unwrap_or_else(|| app.until());
        let deadline = until.deadline;
        let engine = app.engine(asker);
        if plan.requests.len() > 1 {
            engine.check_all(&plan.requests)?;
        }
        let mut turns = None;
        if let (Some(offered), [request]) = (plan.offered, &plan.requests[..]) {
            turns = Some(Box::new(Turns::new(offered, request.clone())));
        }
        let hears_loads = plan.requests.iter().any(|request| request.load_progress);
        let of_turns = engine.clone();
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
            used: UsageCount::new(prompts, plan.choices),
            until,
            limits: plan.line_limits,
            lines: vec![Lines::default(); prompts * plan.choices as usize],
            cut: None,
            cuts: vec![false; prompts * plan.choices as usize],
            turns,
            hears_loads,
            engine: of_turns,
        };
        // If one prompt has many events before another is accepted, the answer begins.
        while waiting > 0 && generation.early.len() < EARLY_EVENTS_MAX {
            match generation.seen().await? {
                Some((_, PromptMessage::Accepted)) => waiting -= 1,
                Some((prompt, PromptMessage::Event(event))) => generation.early.push_back((prompt, event)),
                None => return Err(ApiError::internal("the engine accepted nothing and refused nothing")),
            }
        }
        Ok(generation)
    }

    /// Next event; `None`: every choice has finished. After an error there are no more events, and the engine
    /// has been told to stop. Cancel-safe: no event is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Option<Result<Event, ApiError>> {
        loop {
            let Some(turns) = &mut self.turns else { return self.next_of_engine().await };
            if let Some(event) = turns.told.pop_front() {
                return Some(Ok(event));
            }
            if let Some(running) = &mut turns.running {
                let outcomes = self.until.run(async { Ok::<_, ApiError>(running.await) }).await;
                match outcomes {
                    Ok(outcomes) => self.next_turn(outcomes),
                    Err(error) => {
                        (self.turns, self.events) = (None, None);
                        return Some(Err(error));
                    }
                }
                continue;
            }
            let event = self.next_of_engine().await;
            let Some(turns) = &mut self.turns else { return event };
            match event {
                Some(Ok(Event::Delta { index, mut delta })) => {
                    if turns.see(&mut delta) {
                        return Some(Ok(Event::Delta { index, delta }));
                    }
                }
                Some(Ok(Event::Finished { reason, .. })) if turns.begin(reason) => {}
                Some(Ok(Event::Started { .. })) if !turns.is_first() => {}
                event => return event,
            }
        }
    }

    /// Continues the generation with the results of the tool calls, or ends the answer.
    fn next_turn(&mut self, outcomes: Vec<hanzo_engine_mcp::Outcome>) {
        let generated = self.used.completion_tokens();
        let Some(turns) = &mut self.turns else { return };
        let Some(request) = turns.next(outcomes, generated) else {
            let (reason, stop_string) = (FinishReason::Length, String::new());
            turns.told.push_back(Event::Finished { index: 0, reason, stop_string, timings: None, tokens: 0 });
            self.events = None;
            return;
        };
        self.finished = vec![false];
        self.used.next_turn();
        let events = run(self.engine.clone(), 0, request, self.until.deadline);
        self.events = Some(Box::pin(events.map_err(ApiError::from)));
    }

    /// Next event of the engine's streams.
    async fn next_of_engine(&mut self) -> Option<Result<Event, ApiError>> {
        if let Some(index) = self.cut.take() {
            self.finished[index as usize] = true;
            if self.finished.iter().all(|finished| *finished) {
                self.events = None;
                self.early.clear();
            }
            let (reason, stop_string) = (FinishReason::Length, String::new());
            return Some(Ok(Event::Finished { index, reason, stop_string, timings: None, tokens: 0 }));
        }
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
                Some((prompt, PromptMessage::Event(event))) => return Ok(Some((prompt, event))),
                Some((_, PromptMessage::Accepted)) => {}
                None => return Ok(None),
            }
        }
    }

    async fn seen(&mut self) -> Result<Option<(u32, PromptMessage)>, ApiError> {
        let Some(events) = &mut self.events else { return Ok(None) };
        let seen = self.until.run(async { events.next().await.transpose() }).await;
        if !matches!(seen, Ok(Some(_))) {
            self.events = None;
        }
        seen
    }

    /// Validates an event against the contract and counts it. `None`: nothing to show.
    fn checked(&mut self, prompt: u32, event: infer_event::Event) -> Result<Option<Event>, ApiError> {
        match event {
            infer_event::Event::Started(started) => {
                self.used.started(prompt, &started);
                if self.model.is_empty() {
                    self.model.clone_from(&started.model);
                }
                Ok(Some(Event::Started { index: prompt * self.choices, started: Box::new(started) }))
            }
            infer_event::Event::Loading(loading) if self.hears_loads => Ok(Some(Event::Loading(loading))),
            event if self.model.is_empty() => {
                Err(ApiError::internal(&format!("the engine began with {event:?}")))
            }
            infer_event::Event::Delta(delta) if self.is_cut(prompt, delta.choice) => Ok(None),
            infer_event::Event::Delta(mut delta) => {
                let index = self.running(prompt, delta.choice)?;
                let at = index as usize;
                if let Some(limits) = &self.limits
                    && self.lines[at].end(limits, &mut delta.text, Instant::now())
                {
                    (self.cut, self.cuts[at]) = (Some(index), true);
                }
                self.used.delta(index, &delta);
                Ok(Some(Event::Delta { index, delta }))
            }
            infer_event::Event::PromptLogprobs(scored) => {
                Ok(Some(Event::Scored { index: prompt * self.choices, scored }))
            }
            infer_event::Event::Loading(_) => {
                Err(ApiError::internal("the engine told how a load goes, which was not asked for"))
            }
            infer_event::Event::Finished(finished) if self.is_cut(prompt, finished.choice) => Ok(None),
            infer_event::Event::Finished(finished) => {
                let index = self.running(prompt, finished.choice)?;
                match finished.reason() {
                    // The status that ends the stream has the reason.
                    FinishReason::Error => return Ok(None),
                    FinishReason::Unspecified => {
                        return Err(ApiError::internal("the engine finished a choice without a reason"));
                    }
                    FinishReason::Stop | FinishReason::Length | FinishReason::ToolCalls => {}
                }
                self.finished[index as usize] = true;
                self.used.finished(prompt, index, &finished);
                let (reason, stop_string) = (finished.reason(), finished.stop_string);
                let tokens = finished.usage.map_or(0, |usage| usage.completion_tokens);
                Ok(Some(Event::Finished { index, reason, stop_string, timings: finished.timings, tokens }))
            }
        }
    }

    /// Whether a limit has ended the choice, although the engine still sends its events.
    fn is_cut(&self, prompt: u32, choice: u32) -> bool {
        choice < self.choices && self.cuts[(prompt * self.choices + choice) as usize]
    }

    /// Index of a choice that may still have events.
    fn running(&self, prompt: u32, choice: u32) -> Result<u32, ApiError> {
        let index = (choice < self.choices).then(|| prompt * self.choices + choice);
        index.filter(|index| !self.finished[*index as usize]).ok_or_else(|| {
            ApiError::internal(&format!("the engine sent an event of choice {choice}, which is not running"))
        })
    }
}

/// Client's name of a field of a prompt's request. With several prompts it includes the prompt's index.
fn prompt_name(name: String, prompt: usize, prompts: usize) -> Option<String> {
    match name.strip_prefix("prompt") {
        Some(rest) if prompts > 1 && (rest.is_empty() || rest.starts_with('[')) => {
            Some(format!("prompt[{prompt}]{rest}"))
        }
        _ => Some(name),
    }
}

/// Messages about one prompt.
fn run(
    mut engine: Engine,
    prompt: u32,
    request: v1::InferRequest,
    deadline: Option<Instant>,
) -> impl Stream<Item = Result<(u32, PromptMessage), Status>> + Send {
    stream::once(async move { engine.infer(request, deadline).await })
        .map_ok(move |events| {
            // An event of a kind unknown to this version is ignored.
            let events = events.try_filter_map(move |event| async move {
                Ok(event.event.map(|event| (prompt, PromptMessage::Event(event))))
            });
            stream::once(async move { Ok((prompt, PromptMessage::Accepted)) }).chain(events)
        })
        .try_flatten()
}
