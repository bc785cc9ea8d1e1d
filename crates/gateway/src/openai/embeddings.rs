//! `POST /v1/embeddings` (and `/embeddings`, which TEI and Infinity have): OpenAI's embeddings, with what vLLM, Jina
//! and Cohere add to the request, pictures as Jina and Infinity take them, and conversations as vLLM does.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::{self, Capability, EmbedOutput};

use crate::{
    app::App,
    asker::Asker,
    body::{self, Incoming, Received},
    cloud,
    config::Config,
    error::ApiError,
    fields::Fields,
    names::SentFields,
    request::{either, model},
    select::select,
    unsupported,
    vectors::{
        calls::Caller,
        inputs::{Inputs, conversation, field_name, options, pictured},
        json::Shape,
        response,
    },
};

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: Incoming,
) -> Result<Response, ApiError> {
    let peer = incoming.peer();
    let received = body::read(&app, incoming).await?;
    let here = |received| run(&app, &asker, received);
    cloud::or_there(&app, &asker, peer, "embeddings", received, here).await
}

async fn run(app: &App, asker: &Asker, received: Received) -> Result<Response, ApiError> {
    let ((asked, sent), room) = received.into(SentFields::beside(request)).await?;
    let Embeddings { mut request, mut inputs, base64 } = asked;
    request.model = select(app, asker, request.model, &[Capability::Embed]).await?.model;
    app.media_hosts.fetch_inputs(&mut inputs.inputs, app.config.body_bytes_max).await?;
    let single = inputs.single;
    let name = move |field: &str| field_name(field, "input", single, &sent);
    let calls = Caller::new(app, asker, room).embed(request, inputs.inputs, name);
    response::respond(app, calls, Shape::OpenAi { base64 }).await
}

/// What a body asks for.
#[derive(Debug)]
pub(crate) struct Embeddings {
    /// Without its inputs and its id; the model is empty where none is named.
    request: v1::EmbedRequest,
    inputs: Inputs,
    /// The numbers as base64 of little-endian f32.
    base64: bool,
}

/// Reads a body, with what vLLM, Infinity, Jina and Cohere add to OpenAI's.
pub(crate) fn request(mut fields: Fields<'_>, config: &Config) -> Result<Embeddings, ApiError> {
    let model = model(&mut fields)?;
    // Infinity's.
    let modality = fields.take("modality").map(|field| field.word(&["text", "image"])).transpose()?;
    let are_pictures = modality == Some("image");
    let inputs = match (fields.take("input"), fields.gives("messages")) {
        (Some(input), true) => return Err(input.error("cannot be combined with messages: send one of them")),
        (Some(input), false) => pictured(input, config.embedding_inputs_max, are_pictures)?,
        // vLLM's: one conversation, as the model's template writes it.
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
