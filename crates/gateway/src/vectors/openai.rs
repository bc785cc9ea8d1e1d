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
    declare::{Declaration as _, Raw, Read, Words, fields},
    error::ApiError,
    fields::{Field, Fields},
    forward,
    names::SentFields,
    openai::{messages, prompt::TemplateFields},
    request::one_of,
    select::select,
    unsupported::{EMBEDDING, HARMLESS},
    vectors::{
        calls::Caller,
        inputs::{EmbeddingFields, Inputs, conversation, field_name, pictured},
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

fields! {
    /// Body of `POST /v1/embeddings`, with fields of vLLM, Infinity, Jina and Cohere.
    pub(crate) struct EmbeddingsRequest<'a> inert [&EMBEDDING, &HARMLESS] {
        ..embedding: EmbeddingFields<'a>,
        ..template if "messages": TemplateFields<'a>,
        /// Text, its tokens or an image, or several. Texts and images may be mixed.
        input?: Field<'a> = Raw(
            "string 1.. | EmbeddingPart | string 1..[1..] | EmbeddingPart[1..] | integer 0..4294967295[1..] \
             | integer 0..4294967295[1..][1..]"
        ),
        /// vLLM's alternative to input: a conversation, rendered by the model's template.
        messages?: Vec<v1::Message> = Read("ChatMessage[1..] | null", messages::read),
        /// Infinity's setting: whether strings are texts, or images in data URIs or base64.
        modality?: &'static str = Words(["text", "image"]),
        /// Format of the vectors.
        encoding_format?: &'static str = FORMAT,
        /// Second name of encoding_format.
        embedding_type?: &'static str = FORMAT,
    }
}

const FORMAT: Words<2> = Words(["float", "base64"]);

/// Parses a request.
pub(crate) fn request(mut fields: Fields<'_>, config: &Config) -> Result<Embeddings, ApiError> {
    let given = EmbeddingsRequest::read(&mut fields)?;
    fields.finish()?;
    let are_pictures = given.modality == Some("image");
    let inputs = match (given.input, given.messages.zip(given.template)) {
        (Some(input), Some(_)) => {
            return Err(input.error("cannot be combined with messages: send one of them"));
        }
        (Some(input), None) => pictured(input, config.embedding_inputs_max, are_pictures)?,
        (None, Some((messages, template))) => conversation(messages, template)?,
        (None, None) => return Err(ApiError::field("input", "required")),
    };
    let format =
        one_of(("encoding_format", given.encoding_format), ("embedding_type", given.embedding_type))?;
    let request = v1::EmbedRequest { output: EmbedOutput::Pooled.into(), ..given.embedding.options()? };
    Ok(Embeddings { request, inputs, base64: format == Some("base64") })
}
