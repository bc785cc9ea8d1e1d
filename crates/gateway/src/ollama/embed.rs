//! `POST /api/embed`: a vector of length 1 for each text. The older `/api/embeddings` takes one text, and its
//! vector has the length that the model's files specify.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use futures_util::TryStreamExt as _;
use hanzo_engine_proto::v1::{self, EmbedOutput, tokenize_request::Input};
use serde_json::json;

use super::{
    error::{OllamaError, of_model},
    names::{self, OllamaName},
    options::{OllamaOptions, check_context},
};
use crate::{
    app::App,
    asker::Asker,
    bodies::Room,
    body::{self, IncomingBody},
    config::Config,
    declare::{Declaration as _, Integer, Raw, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    names::SentFields,
    request::{at_most, filled, stay},
    vectors::{
        calls::Caller,
        inputs::{field_name, text_input},
        json::VectorFormat,
        response,
    },
};

/// Handler of `POST /api/embed`.
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, OllamaError> {
    let began = Instant::now();
    let (asked, room) = body::read(&app, incoming).await?.into(many).await?;
    Ok(answer(&app, &asker, asked, room, began, "input").await?)
}

/// Handler of `POST /api/embeddings`.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, OllamaError> {
    let began = Instant::now();
    let (asked, room) = body::read(&app, incoming).await?.into(one).await?;
    Ok(answer(&app, &asker, asked, room, began, "prompt").await?)
}

/// Parsed request.
struct OllamaEmbedTask {
    /// Request to the engine; its model has the client's name.
    request: v1::EmbedRequest,
    inputs: Vec<v1::EmbedInput>,
    single: bool,
    num_ctx: Option<u32>,
    sent: SentFields,
}

async fn answer(
    app: &App,
    asker: &Asker,
    asked: OllamaEmbedTask,
    room: Room,
    began: Instant,
    input: &'static str,
) -> Result<Response, ApiError> {
    let called = asked.request.model.clone();
    let answer = answered(app, asker, asked, room, began, input).await;
    answer.map_err(|error| of_model(error, &called))
}

async fn answered(
    app: &App,
    asker: &Asker,
    asked: OllamaEmbedTask,
    room: Room,
    began: Instant,
    input: &'static str,
) -> Result<Response, ApiError> {
    let OllamaEmbedTask { mut request, inputs, single, num_ctx, sent } = asked;
    let called = std::mem::take(&mut request.model);
    request.model = names::known(app, asker, called.clone()).await?;
    check_context(app, asker, &request.model, num_ctx).await?;
    let old = input == "prompt";
    if inputs.is_empty() {
        // Without inputs, the request only loads the model.
        let (until, nothing) = (app.until(), Some(Input::Text(String::new())));
        let (model, keep_alive) = (request.model, request.keep_alive);
        let nothing = v1::TokenizeRequest { model, input: nothing, keep_alive, ..Default::default() };
        until.run(app.engine(asker).awake(nothing, until.deadline)).await?;
        let empty = if old { json!({"embedding": []}) } else { json!({"model": called, "embeddings": []}) };
        return Ok(Json(empty).into_response());
    }
    let name = move |field: &str| field_name(field, input, single, &sent);
    let calls = Caller::new(app, asker, room).embed(request, inputs, name);
    if !old {
        return response::respond(app, calls, VectorFormat::Ollama { model: called, began }).await;
    }
    let answers: Vec<v1::EmbedResponse> = calls.try_collect().await?;
    let packed = answers.into_iter().flat_map(|answer| answer.embeddings).next().unwrap_or_default().packed;
    let numbers = packed.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    let numbers: Vec<f32> = numbers.collect();
    Ok(Json(Embedding { embedding: numbers }).into_response())
}

/// Answer with a single vector.
#[derive(serde::Serialize)]
struct Embedding {
    embedding: Vec<f32>,
}

fields! {
    /// Fields that both of Ollama's routes for embeddings share.
    pub(crate) struct OllamaEmbedFields<'a> {
        ..name: OllamaName<'a>,
        /// Options, of which num_ctx has an effect on embeddings.
        options?: OllamaOptions<'a>,
        /// Time that the model stays; 0 without inputs unloads it.
        keep_alive?: String = Read("string | number", stay),
    }
}

fields! {
    /// Body of `POST /api/embed`.
    pub(crate) struct OllamaEmbedRequest<'a> {
        ..common: OllamaEmbedFields<'a>,
        /// Text, or several. Without any, the model is only loaded.
        input?: Field<'a> = Raw("string | string 1..[]"),
        /// Whether texts that are too long are cut; true if absent.
        truncate?: bool,
        /// Number of dimensions that vectors are cut to; 0 for all.
        dimensions?: u32 = Integer(0..=u32::MAX),
    }
}

fields! {
    /// Body of `POST /api/embeddings`.
    pub(crate) struct OllamaEmbeddingsRequest<'a> {
        ..common: OllamaEmbedFields<'a>,
        /// Text. Without one, the model is only loaded.
        prompt?: String,
    }
}

impl OllamaEmbedFields<'_> {
    fn task(self, sent: SentFields, config: &Config) -> Result<OllamaEmbedTask, ApiError> {
        let num_ctx =
            self.options.map(|options| options.options(config)).transpose()?.and_then(|o| o.num_ctx);
        let request = v1::EmbedRequest {
            model: self.name.get()?,
            packed: true,
            truncate: true,
            output: EmbedOutput::Pooled.into(),
            keep_alive: self.keep_alive,
            ..v1::EmbedRequest::default()
        };
        Ok(OllamaEmbedTask { request, inputs: Vec::new(), single: true, num_ctx, sent })
    }
}

fn many(mut fields: Fields<'_>, config: &Config) -> Result<OllamaEmbedTask, ApiError> {
    let sent = SentFields::of_ollama(&fields);
    let given = OllamaEmbedRequest::read(&mut fields)?;
    fields.finish()?;
    let mut asked = given.common.task(sent, config)?;
    asked.request.normalize = Some(true);
    asked.request.truncate = given.truncate.unwrap_or(true);
    asked.request.dimensions = given.dimensions.unwrap_or(0);
    let Some(field) = given.input else { return Ok(asked) };
    match field.as_list() {
        None => asked.inputs.extend(Some(field.string()?).filter(|text| !text.is_empty()).map(text_input)),
        Some(list) => {
            at_most(field, list.clone().count(), config.embedding_inputs_max)?;
            let text = |field: Field| filled(field).map(text_input);
            (asked.inputs, asked.single) = (list.map(text).collect::<Result<_, _>>()?, false);
        }
    }
    Ok(asked)
}

fn one(mut fields: Fields<'_>, config: &Config) -> Result<OllamaEmbedTask, ApiError> {
    let sent = SentFields::of_ollama(&fields);
    let given = OllamaEmbeddingsRequest::read(&mut fields)?;
    fields.finish()?;
    let mut asked = given.common.task(sent, config)?;
    asked.inputs.extend(given.prompt.filter(|text| !text.is_empty()).map(text_input));
    Ok(asked)
}
