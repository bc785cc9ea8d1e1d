//! `POST /embed`, `/embed_all` and `/embed_sparse`: a vector, the vectors of all tokens, or the weights of the
//! vocabulary for each of the `inputs`.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::{self, Capability};

use crate::{
    Config,
    app::App,
    body::{self, Incoming, Received},
    fields::Fields,
    names::Sent,
    openai::convert::model,
    request_id::RequestId,
    select::select,
    tei::{TeiError, convert},
    vectors::{
        answer as http,
        calls::Asker,
        convert::{field_name, json::Shape},
    },
};

/// One vector for each input.
pub(crate) async fn embed(
    app: State<Arc<App>>,
    id: Extension<RequestId>,
    incoming: Incoming,
) -> Result<Response, TeiError> {
    handle(app, id, incoming, Capability::Embed, Shape::Vectors).await
}

/// One vector for each token.
pub(crate) async fn embed_all(
    app: State<Arc<App>>,
    id: Extension<RequestId>,
    incoming: Incoming,
) -> Result<Response, TeiError> {
    handle(app, id, incoming, Capability::Embed, Shape::TokenVectors).await
}

/// The weights that are not 0.
pub(crate) async fn embed_sparse(
    app: State<Arc<App>>,
    id: Extension<RequestId>,
    incoming: Incoming,
) -> Result<Response, TeiError> {
    handle(app, id, incoming, Capability::EmbedSparse, Shape::SparseVectors).await
}

async fn handle(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    incoming: Incoming,
    capability: Capability,
    shape: Shape,
) -> Result<Response, TeiError> {
    let (received, model) =
        body::read(&app, incoming).await?.peek(|mut fields, _| model(&mut fields)).await?;
    let model = select(&app, model, &[capability]).await?.model;
    answer(&app, &id, model, received, shape).await
}

/// Embeds what a body says with that model.
pub(super) async fn answer(
    app: &App,
    id: &RequestId,
    model: String,
    received: Received,
    shape: Shape,
) -> Result<Response, TeiError> {
    let read = move |fields: Fields<'_>, config: &Config| convert::embedding(fields, config, shape);
    let (((request, inputs), sent), room) = received.into(Sent::beside(read)).await?;
    let request = v1::EmbedRequest { model, ..request };
    let single = inputs.single;
    let name = move |field: &str| field_name(field, "inputs", single, &sent);
    let calls = Asker::new(app, id, room).embed(request, inputs.inputs, name);
    Ok(http::respond(app, calls, shape).await?)
}
