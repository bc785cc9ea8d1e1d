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
    messages, names,
    options::{self, check_context},
    reply::{AnswerField, Reply},
};
use crate::{
    app::App,
    asker::Asker,
    bodies::Room,
    body::{self, IncomingBody},
    config::Config,
    declare::Declared as _,
    error::ApiError,
    fields::{Field, Fields},
    limits::CHAT_LOGPROBS_MAX,
    names::SentFields,
    openai::{
        answer::{collect, stream},
        generation::Generation,
        plan::{RequestPlan, StreamOptions},
        prompt::template_kwargs,
        tools::{self, ToolFields},
    },
    peer::Peer,
    request::keep_alive,
    request_id::RequestId,
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

/// Parses the fields that `/api/chat` and `/api/generate` share: everything but the prompt.
pub(super) fn common(fields: &mut Fields, config: &Config, id: &RequestId) -> Result<ChatRequest, ApiError> {
    let sent = SentFields::of_ollama(fields);
    let model = names::model(fields)?;
    let stream = fields.take("stream").map(Field::boolean).transpose()?.unwrap_or(true);
    let options = options::read(fields, config)?;
    let constraint = format(fields)?;
    let logprobs = fields.flag("logprobs")?;
    let top = fields.take("top_logprobs").map(|f| f.integer(0..=CHAT_LOGPROBS_MAX)).transpose()?.unwrap_or(0);
    if top > 0 && !logprobs {
        return Err(ApiError::field("top_logprobs", "only allowed with logprobs: true"));
    }
    let request = v1::InferRequest {
        model,
        sampling: Some(options.sampling),
        stop: Some(options.stop),
        choices: 1,
        logprobs,
        top_logprobs: top,
        request_id: id.as_str().to_owned(),
        client: id.client(),
        keep_alive: keep_alive(fields)?,
        context_shift: fields.take("shift").map(Field::boolean).transpose()?,
        keep_tokens: options.keep_tokens,
        constraint,
        ..v1::InferRequest::default()
    };
    if fields.flag("_debug_render_only")? {
        return Err(ApiError::unsupported(
            "_debug_render_only",
            "not supported by this build; use /apply-template",
        ));
    }
    let plan = RequestPlan {
        requests: vec![request],
        choices: 1,
        stream,
        // The last line of a stream reports usage.
        streaming: StreamOptions { include_usage: true, ..StreamOptions::default() },
        sent,
        old_calls: false,
        line_limits: None,
        offered: None,
        until: None,
    };
    let (nothing, thinks, bare, shortened) = (false, false, None, false);
    Ok(ChatRequest { plan, nothing, thinks, num_ctx: options.num_ctx, bare, shortened })
}

fn read(mut fields: Fields, config: &Config, id: &RequestId) -> Result<ChatRequest, ApiError> {
    let mut asked = common(&mut fields, config, id)?;
    let messages = messages::read(&mut fields)?;
    let tools = tools::read(&ToolFields::read(&mut fields)?)?;
    let (thinking, thinks) = think(&mut fields)?;
    let kwargs = fields.take("chat_template_kwargs").map(Field::object).transpose()?;
    (asked.thinks, asked.nothing) = (thinks, messages.is_empty());
    let truncate = fields.take("truncate").map(Field::boolean).transpose()?.unwrap_or(true);
    asked.shortened = truncate && messages.len() > 1;
    let begun = messages.last().is_some_and(|last| last.role == "assistant" && last.tool_calls.is_empty());
    let request = &mut asked.plan.requests[0];
    request.reasoning = thinking.bounds();
    request.tool_use = tools.used;
    request.prompt = Some(Prompt::Chat(v1::Chat {
        messages,
        tools_json: tools.json,
        template_kwargs_json: template_kwargs(kwargs.as_ref(), &thinking),
        // The model continues the assistant's begun message.
        add_generation_prompt: begun.then_some(false),
        continue_final_message: begun,
    }));
    fields.finish()?;
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
