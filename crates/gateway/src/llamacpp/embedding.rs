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
    error::ApiError,
    fields::Fields,
    names::SentFields,
    request::{either, model},
    select::select,
    unsupported,
    vectors::{
        calls::Caller,
        inputs::{Inputs, field_name, inputs, options},
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

/// Reads the inputs, the options, and the client's name of the input field. Vectors have length 1 unless
/// `embd_normalize` says otherwise.
fn read(
    mut fields: Fields<'_>,
    config: &Config,
) -> Result<(v1::EmbedRequest, Inputs, &'static str), ApiError> {
    let model = model(&mut fields)?;
    let called = if fields.gives("content") { "content" } else { "input" };
    let field = either(&mut fields, "content", "input")?;
    let field = field.ok_or_else(|| ApiError::field("content", "required"))?;
    let inputs = inputs(field, config.embedding_inputs_max)?;
    let options = options(&mut fields)?;
    unsupported::embedding(&mut fields)?;
    fields.finish()?;
    let normalize = Some(options.normalize.unwrap_or(true));
    let output = EmbedOutput::Pooled.into();
    Ok((v1::EmbedRequest { model, output, normalize, ..options }, inputs, called))
}
