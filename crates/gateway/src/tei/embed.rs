//! `POST /embed`, `/embed_all` and `/embed_sparse`: for each of the `inputs` a vector, the vectors of all
//! tokens, or weights of the vocabulary.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::Capability;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody, ReceivedBody},
    config::Config,
    fields::Fields,
    names::SentFields,
    request::model,
    select::select,
    tei::{error::TeiError, words},
    vectors::{calls::Caller, inputs::field_name, json::VectorFormat, response},
};

/// Returns one vector for each input.
pub(crate) async fn embed(
    app: State<Arc<App>>,
    asker: Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, TeiError> {
    handle(app, asker, incoming, Capability::Embed, VectorFormat::Vectors).await
}

/// Returns one vector for each token.
pub(crate) async fn embed_all(
    app: State<Arc<App>>,
    asker: Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, TeiError> {
    handle(app, asker, incoming, Capability::Embed, VectorFormat::TokenVectors).await
}

/// Returns the non-zero weights of the vocabulary.
pub(crate) async fn embed_sparse(
    app: State<Arc<App>>,
    asker: Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, TeiError> {
    handle(app, asker, incoming, Capability::EmbedSparse, VectorFormat::SparseVectors).await
}

async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
    capability: Capability,
    shape: VectorFormat,
) -> Result<Response, TeiError> {
    let (received, model) =
        body::read(&app, incoming).await?.peek(|mut fields, _| model(&mut fields)).await?;
    let model = select(&app, &asker, model, &[capability]).await?.model;
    answer(&app, &asker, model, received, shape).await
}

/// Embeds the inputs of a body with that model.
pub(super) async fn answer(
    app: &App,
    asker: &Asker,
    model: String,
    received: ReceivedBody,
    shape: VectorFormat,
) -> Result<Response, TeiError> {
    let of = shape.clone();
    let read = move |fields: Fields<'_>, config: &Config| words::embedding(fields, config, &of);
    let (((mut request, inputs), sent), room) = received.into(SentFields::beside(read)).await?;
    request.model = model;
    let single = inputs.single;
    let name = move |field: &str| field_name(field, "inputs", single, &sent);
    let calls = Caller::new(app, asker, room).embed(request, inputs.inputs, name);
    Ok(response::respond(app, calls, shape).await?)
}
