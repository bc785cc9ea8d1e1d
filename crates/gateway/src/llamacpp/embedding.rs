//! `POST /embedding`: vectors of texts, each in a list of its own, because there an input may have a vector for each token.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::{self, Capability, EmbedOutput};

use crate::{
    app::App,
    asker::Asker,
    body::{self, Incoming},
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
    let received = body::read(&app, incoming).await?;
    let (((mut request, inputs, called), sent), room) = received.into(SentFields::beside(read)).await?;
    request.model = select(&app, &asker, request.model, &[Capability::Embed]).await?.model;
    let single = inputs.single;
    let name = move |field: &str| field_name(field, called, single, &sent);
    let calls = Caller::new(&app, &asker, room).embed(request, inputs.inputs, name);
    response::respond(&app, calls, Shape::LlamaCpp).await
}

/// What to embed, how, and which word the client has for it. Vectors have length 1 unless `embd_normalize` says otherwise.
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
