//! `POST /v1/embeddings` (and `/embeddings`, as TEI and Infinity call it): OpenAI's embeddings, with fields of
//! vLLM, Jina and Cohere, images as Jina and Infinity send them, and conversations as vLLM does.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::{self, Capability, EmbedOutput};

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody, ReceivedBody},
    config::Config,
    error::ApiError,
    fields::Fields,
    forward,
    names::SentFields,
    request::{either, model},
    select::select,
    unsupported,
    vectors::{
        calls::Caller,
        inputs::{Inputs, conversation, field_name, options, pictured},
        json::VectorFormat,
        response,
    },
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    let peer = incoming.peer();
    let received = body::read(&app, incoming).await?;
    let here = |received| run(&app, &asker, received);
    forward::or_there(&app, &asker, peer, "embeddings", received, here).await
}

async fn run(app: &App, asker: &Asker, received: ReceivedBody) -> Result<Response, ApiError> {
    let ((asked, sent), room) = received.into(SentFields::beside(request)).await?;
    let Embeddings { mut request, mut inputs, base64 } = asked;
    request.model = select(app, asker, request.model, &[Capability::Embed]).await?.model;
    app.media_hosts.fetch_inputs(&mut inputs.inputs, app.config.body_bytes_max).await?;
    let single = inputs.single;
    let name = move |field: &str| field_name(field, "input", single, &sent);
    let calls = Caller::new(app, asker, room).embed(request, inputs.inputs, name);
    response::respond(app, calls, VectorFormat::OpenAi { base64 }).await
}

/// Parsed request.
#[derive(Debug)]
pub(crate) struct Embeddings {
    /// Without inputs and id; the model is empty if none is named.
    request: v1::EmbedRequest,
    inputs: Inputs,
    /// Whether vectors are written as base64 of little-endian f32.
    base64: bool,
}

/// Parses a request, with the fields that vLLM, Infinity, Jina and Cohere add to OpenAI's.
pub(crate) fn request(mut fields: Fields<'_>, config: &Config) -> Result<Embeddings, ApiError> {
    let model = model(&mut fields)?;
    // Field of Infinity.
    let modality = fields.take("modality").map(|field| field.word(&["text", "image"])).transpose()?;
    let are_pictures = modality == Some("image");
    let inputs = match (fields.take("input"), fields.gives("messages")) {
        (Some(input), true) => return Err(input.error("cannot be combined with messages: send one of them")),
        (Some(input), false) => pictured(input, config.embedding_inputs_max, are_pictures)?,
        // Field of vLLM: one conversation, rendered by the model's template.
        (None, true) => conversation(&mut fields)?,
        (None, false) => return Err(ApiError::field("input", "required")),
    };
    let format = either(&mut fields, "encoding_format", "embedding_type")?;
    let format = format.map(|field| field.word(&["float", "base64"])).transpose()?;
    let options = options(&mut fields)?;
    unsupported::embedding(&mut fields)?;
    fields.finish()?;
    let request = v1::EmbedRequest { model, output: EmbedOutput::Pooled.into(), ..options };
    Ok(Embeddings { request, inputs, base64: format == Some("base64") })
}
