//! `POST /embed`, `/embed_all` and `/embed_sparse`: a vector, the vectors of all tokens, or the weights of the
//! vocabulary for each of the `inputs`.

use std::sync::Arc;

use axum::{Extension, body::Body, extract::State, http::HeaderMap, response::Response};
use hanzo_engine_proto::v1::{self, Capability};

use crate::{
    app::App,
    body,
    fields::Fields,
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
    headers: HeaderMap,
    body: Body,
) -> Result<Response, TeiError> {
    handle(app, id, headers, body, Capability::Embed, Shape::Vectors).await
}

/// One vector for each token.
pub(crate) async fn embed_all(
    app: State<Arc<App>>,
    id: Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, TeiError> {
    handle(app, id, headers, body, Capability::Embed, Shape::TokenVectors).await
}

/// The weights that are not 0.
pub(crate) async fn embed_sparse(
    app: State<Arc<App>>,
    id: Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, TeiError> {
    handle(app, id, headers, body, Capability::EmbedSparse, Shape::SparseVectors).await
}

async fn handle(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
    capability: Capability,
    shape: Shape,
) -> Result<Response, TeiError> {
    let mut fields = body::read(&app, &headers, body).await?;
    let model = model(&mut fields)?;
    let model = select(&app, model, &[capability]).await?.model;
    answer(&app, &id, model, fields, shape).await
}

/// Embeds what a body without its `model` says.
pub(super) async fn answer(
    app: &App,
    id: &RequestId,
    model: String,
    fields: Fields,
    shape: Shape,
) -> Result<Response, TeiError> {
    let (request, inputs) = convert::embedding(fields, app.config.embedding_inputs_max, shape)?;
    let request = v1::EmbedRequest { model, ..request };
    let single = inputs.single;
    let name = move |field: &str| field_name(field, "inputs", single);
    let calls = Asker::new(app, id).embed(request, inputs.inputs, name);
    Ok(http::respond(app, calls, shape).await?)
}
