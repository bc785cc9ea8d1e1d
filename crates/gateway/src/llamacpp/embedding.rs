//! `POST /embedding`: embeddings of texts, each in its own list, because llama.cpp may return a vector for each
//! token of an input.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::{self, Capability, EmbedOutput};

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    config::Config,
    declare::{Declaration as _, Raw, fields},
    error::ApiError,
    fields::{Field, Fields},
    names::SentFields,
    request::one_of,
    select::select,
    unsupported::{EMBEDDING, HARMLESS},
    vectors::{
        calls::Caller,
        inputs::{EmbeddingFields, INPUTS, Inputs, field_name, inputs},
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
    let received = body::read(&app, incoming).await?;
    let (((mut request, inputs, called), sent), room) = received.into(SentFields::beside(read)).await?;
    request.model = select(&app, &asker, request.model, &[Capability::Embed]).await?.model;
    let single = inputs.single;
    let name = move |field: &str| field_name(field, called, single, &sent);
    let calls = Caller::new(&app, &asker, room).embed(request, inputs.inputs, name);
    response::respond(&app, calls, VectorFormat::LlamaCpp).await
}

fields! {
    /// Body of `POST /embedding`.
    pub(crate) struct LlamaEmbeddingRequest<'a> inert [&EMBEDDING, &HARMLESS] {
        ..embedding: EmbeddingFields<'a>,
        /// Text or its tokens, or several.
        content?: Field<'a> = Raw(INPUTS),
        /// Second name of content.
        input?: Field<'a> = Raw(INPUTS),
    }
}

/// Reads the inputs, the options, and the client's name of the input field. Vectors have length 1 unless
/// `embd_normalize` says otherwise.
fn read(
    mut fields: Fields<'_>,
    config: &Config,
) -> Result<(v1::EmbedRequest, Inputs, &'static str), ApiError> {
    let given = LlamaEmbeddingRequest::read(&mut fields)?;
    fields.finish()?;
    let called = if given.content.is_some() { "content" } else { "input" };
    let field = one_of(("content", given.content), ("input", given.input))?;
    let field = field.ok_or_else(|| ApiError::field("content", "required"))?;
    let inputs = inputs(field, config.embedding_inputs_max)?;
    let options = given.embedding.options()?;
    let normalize = Some(options.normalize.unwrap_or(true));
    Ok((v1::EmbedRequest { output: EmbedOutput::Pooled.into(), normalize, ..options }, inputs, called))
}
