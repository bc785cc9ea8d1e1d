//! `POST /api/chat`.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension, Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_proto::v1::{self, infer_request::Prompt, tokenize_request::Input};
use serde_json::Value;

use super::{
    error::{OllamaError, of_model},
    format::{can_think, format, think},
    messages,
    names::{self, OllamaName},
    options::{OllamaOptions, check_context},
    reply::{AnswerField, Reply},
};
use crate::{
    app::App,
    asker::Asker,
    bodies::Room,
    body::{self, IncomingBody},
    config::Config,
    declare::{Declaration as _, Raw, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    names::SentFields,
    openai::{
        answer::{collect, stream},
        generation::Generation,
        plan::{ALTERNATIVES, RequestPlan, StreamOptions},
        prompt::template_kwargs,
        tools::{self, ToolFields},
    },
    peer::Peer,
    request::stay,
    request_id::RequestId,
    unsupported::OLLAMA,
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, OllamaError> {
    let (peer, id, began) = (incoming.peer(), asker.id.clone(), Instant::now());
    let read = move |fields: Fields<'_>, config: &Config| read(fields, config, &id);
    let (asked, room) = body::read(&app, incoming).await?.into(read).await?;
    Ok(run(&app, &asker, asked, room, peer, AnswerField::Chat, began).await?)
}

/// Parsed request.
#[derive(Debug)]
pub(super) struct ChatRequest {
    /// Plan of the request; its model has the client's name.
    pub(super) plan: RequestPlan,
    /// Whether the request only loads or unloads the model.
    pub(super) nothing: bool,
    pub(super) thinks: bool,
    pub(super) num_ctx: Option<u32>,
    /// Prompt without a template, for models that have none.
    pub(super) bare: Option<String>,
    /// Whether a chat that does not fit loses its oldest messages.
    pub(super) shortened: bool,
}

fields! {
    /// Fields that `/api/chat` and `/api/generate` share: everything but the prompt.
    pub(crate) struct OllamaFields<'a> inert [&OLLAMA] {
        ..name: OllamaName<'a>,
        /// Sampling settings, and limits of the answer.
        options?: OllamaOptions<'a>,
        /// Time that the model stays; 0 without a prompt unloads it.
        keep_alive?: String = Read("string | number", stay),
        /// Whether the answer comes in lines; true if absent.
        stream?: bool,
        /// Format of the answer: JSON, or a schema.
        format?: Option<v1::Constraint> = Read("\"json\" | \"\" | object", format),
        /// Whether and how much the model reasons.
        think?: Field<'a> = Raw("boolean | \"low\" | \"medium\" | \"high\" | \"max\" | \"\""),
        /// Additional variables of the template.
        chat_template_kwargs?: Fields<'a> = Read("object", Field::object),
        /// Whether a prompt that does not fit is cut.
        truncate?: bool,
        /// Whether an answer that fills its context goes on, without the oldest tokens.
        shift?: bool,
        /// Whether the log probability of each token is sent.
        logprobs: bool,
        /// Number of alternatives of each token whose log probability is sent too.
        top_logprobs?: u32 = ALTERNATIVES,
    }
}

fields! {
    /// Body of `POST /api/chat`.
    pub(crate) struct OllamaChatRequest<'a> {
        ..common: OllamaFields<'a>,
        ..tools: ToolFields<'a>,
        /// Messages of the conversation. Without any, the model is only loaded.
        messages?: Vec<v1::Message> = Read("OllamaMessage[]", messages::read),
    }
}

impl OllamaFields<'_> {
    /// Plan with one request without a prompt, and template variables.
    pub(super) fn plan(
        self,
        sent: SentFields,
        config: &Config,
        id: &RequestId,
    ) -> Result<(ChatRequest, String), ApiError> {
        let options = self.options.map(|options| options.options(config)).transpose()?.unwrap_or_default();
        let top_logprobs = self.top_logprobs.unwrap_or(0);
        if top_logprobs > 0 && !self.logprobs {
            return Err(ApiError::field("top_logprobs", "only allowed with logprobs: true"));
        }
        let (thinking, thinks) = think(self.think)?;
        let request = v1::InferRequest {
            model: self.name.get()?,
            sampling: Some(options.sampling),
            stop: Some(options.stop),
            choices: 1,
            logprobs: self.logprobs,
            top_logprobs,
            request_id: id.as_str().to_owned(),
            client: id.client(),
            keep_alive: self.keep_alive,
            context_shift: self.shift,
            keep_tokens: options.keep_tokens,
            constraint: self.format.flatten(),
            reasoning: thinking.bounds(),
            ..v1::InferRequest::default()
        };
        let plan = RequestPlan {
            requests: vec![request],
            choices: 1,
            stream: self.stream.unwrap_or(true),
            // The last line of a stream reports usage.
            streaming: StreamOptions { include_usage: true, ..StreamOptions::default() },
            sent,
            old_calls: false,
            line_limits: None,
            offered: None,
            until: None,
        };
        let (nothing, bare, shortened) = (false, None, false);
        let variables = template_kwargs(self.chat_template_kwargs.as_ref(), &thinking);
        Ok((ChatRequest { plan, nothing, thinks, num_ctx: options.num_ctx, bare, shortened }, variables))
    }
}

fn read(mut fields: Fields, config: &Config, id: &RequestId) -> Result<ChatRequest, ApiError> {
    let sent = SentFields::of_ollama(&fields);
    let given = OllamaChatRequest::read(&mut fields)?;
    fields.finish()?;
    let (messages, tools) = (given.messages.unwrap_or_default(), tools::read(&given.tools)?);
    let truncate = given.common.truncate.unwrap_or(true);
    let (mut asked, template_kwargs_json) = given.common.plan(sent, config, id)?;
    asked.nothing = messages.is_empty();
    asked.shortened = truncate && messages.len() > 1;
    let begun = messages.last().is_some_and(|last| last.role == "assistant" && last.tool_calls.is_empty());
    let request = &mut asked.plan.requests[0];
    request.tool_use = tools.used;
    request.prompt = Some(Prompt::Chat(v1::Chat {
        messages,
        tools_json: tools.json,
        template_kwargs_json,
        // The model continues the assistant's begun message.
        add_generation_prompt: begun.then_some(false),
        continue_final_message: begun,
    }));
    Ok(asked)
}

/// Runs the request and writes the response.
pub(super) async fn run(
    app: &Arc<App>,
    asker: &Asker,
    asked: ChatRequest,
    room: Room,
    peer: Option<Peer>,
    kind: AnswerField,
    began: Instant,
) -> Result<Response, ApiError> {
    let called = asked.plan.requests[0].model.clone();
    let reply = Reply::new(kind, called.clone(), began);
    let answer = answered(app, asker, asked, room, peer, reply).await;
    answer.map_err(|error| of_model(error.renamed(messages::picture), &called))
}

async fn answered(
    app: &Arc<App>,
    asker: &Asker,
    asked: ChatRequest,
    room: Room,
    peer: Option<Peer>,
    mut reply: Reply,
) -> Result<Response, ApiError> {
    let ChatRequest { mut plan, nothing, thinks, num_ctx, bare, shortened } = asked;
    let request = &mut plan.requests[0];
    let called = std::mem::take(&mut request.model);
    request.model = names::known(app, asker, called.clone()).await?;
    if nothing {
        let alive = request.keep_alive.take();
        return Ok(Json(bring(app, asker, &request.model, alive, &reply).await?).into_response());
    }
    let elsewhere = app.cloud.as_ref().is_some_and(|cloud| cloud.always(&request.model).is_some());
    if elsewhere && num_ctx.is_some() {
        let problem = "another server answers for this model, with its own context";
        return Err(ApiError::unsupported("options.num_ctx", problem));
    }
    if thinks && !elsewhere {
        can_think(app, asker, &request.model, &called).await?;
    }
    check_context(app, asker, &request.model, num_ctx).await?;
    let (streamed, streaming) = (plan.stream, plan.streaming);
    let again = (shortened || bare.is_some()).then(|| plan.clone());
    let mut generation = match (Generation::start(app, asker, plan).await, again) {
        // A model without a template continues the plain text.
        (Err(error), Some(mut again)) if error.code() == Some("model_not_capable") && bare.is_some() => {
            again.requests[0].prompt = bare.map(Prompt::Text);
            Generation::start(app, asker, again).await?
        }
        (Err(error), Some(mut again)) if error.code() == Some("context_length_exceeded") && shortened => {
            shorten(app, asker, &mut again.requests[0], error).await?;
            Generation::start(app, asker, again).await?
        }
        (begun, _) => begun?,
    };
    reply.accepted();
    // The engine has the request, so the body's memory is free.
    drop(room);
    if streamed {
        return Ok(stream(app, generation, reply, streaming, peer));
    }
    let (mut choices, _room) = collect(app, &mut generation, &mut reply).await?;
    let whole = choices.pop().unwrap_or_default();
    Ok(Json(reply.whole(whole, &generation.used)).into_response())
}

/// Loads a model, or unloads it if its keep-alive is zero.
async fn bring(
    app: &App,
    asker: &Asker,
    model: &str,
    alive: Option<String>,
    reply: &Reply,
) -> Result<Value, ApiError> {
    let (until, mut engine) = (app.until(), app.engine(asker));
    if alive.as_deref().is_some_and(is_no_time) {
        // A missing model is an error; one that is not loaded is not.
        engine.show(model.to_owned()).await?;
        let request = v1::UnloadRequest { model: model.to_owned(), force: false };
        match until.run(engine.unload(request, until.deadline)).await {
            Err(error) if error.status() != StatusCode::NOT_FOUND => return Err(error),
            _ => {}
        }
        return Ok(reply.of_nothing("unload"));
    }
    let (model, input) = (model.to_owned(), Some(Input::Text(String::new())));
    let nothing = v1::TokenizeRequest { model, input, keep_alive: alive, ..v1::TokenizeRequest::default() };
    until.run(engine.awake(nothing, until.deadline)).await?;
    Ok(reply.of_nothing("load"))
}

/// Whether a keep-alive is zero, such as `0` or `0s`.
fn is_no_time(text: &str) -> bool {
    let digits = || text.chars().filter(char::is_ascii_digit);
    !text.trim_start().starts_with('-') && digits().next().is_some() && digits().all(|digit| digit == '0')
}

/// Drops the oldest messages of a chat, as few as make it fit. System messages and the last message stay.
async fn shorten(
    app: &App,
    asker: &Asker,
    request: &mut v1::InferRequest,
    error: ApiError,
) -> Result<(), ApiError> {
    let Some(Prompt::Chat(chat)) = &mut request.prompt else { return Err(error) };
    let last = chat.messages.len().saturating_sub(1);
    let old: Vec<usize> = (0..last).filter(|i| chat.messages[*i].role != "system").collect();
    let without = |dropped: usize| {
        let gone = &old[..dropped];
        let kept = chat.messages.iter().enumerate().filter(|(i, _)| !gone.contains(i));
        let mut kept: Vec<v1::Message> = kept.map(|(_, message)| message.clone()).collect();
        // A tool result is useless without its call.
        let first = kept.iter().position(|message| message.role != "system").unwrap_or(0);
        while kept.len() > first + 1 && kept[first].role == "tool" {
            kept.remove(first);
        }
        v1::Chat { messages: kept, ..chat.clone() }
    };
    let mut engine = app.engine(asker);
    // Binary search: the smallest sufficient number is at least `low`, and below `high` if any is sufficient.
    let (mut low, mut high) = (1, old.len() + 1);
    let mut shorter = None;
    while low < high {
        let middle = low + (high - low) / 2;
        let chat = without(middle);
        let input = Some(Input::Chat(chat.clone()));
        let (model, client) = (request.model.clone(), request.client.clone());
        let tokens = v1::TokenizeRequest { model, client, input, ..Default::default() };
        let answer = engine.tokenize(tokens).await?;
        // At least one token must remain for the answer.
        if answer.ids.len() < answer.context_tokens_max as usize {
            (high, shorter) = (middle, Some(chat));
        } else {
            low = middle + 1;
        }
    }
    match shorter {
        Some(chat) => request.prompt = Some(Prompt::Chat(chat)),
        None => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_zero_in_any_unit() {
        for (text, none) in [
            ("0", true),
            ("0s", true),
            ("0.0", true),
            ("5m", false),
            ("-1", false),
            ("-0", false),
            ("", false),
        ] {
            assert_eq!(is_no_time(text), none, "{text}");
        }
    }
}
