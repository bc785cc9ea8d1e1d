//! `POST /embed`, `/embed_all` and `/embed_sparse`: a vector, the vectors of all tokens, or the weights of the
//! vocabulary for each of the `inputs`.

use std::sync::Arc;

use axum::{Extension, body::Body, extract::State, http::HeaderMap, response::Response};
use hanzo_engine_proto::v1::{self, Capability, EmbedOutput};

use crate::{
    app::App,
    body,
    error::ApiError,
    fields::Fields,
    openai::{convert, embeddings::field_name},
    request_id::RequestId,
    select::select,
    tei::{TeiError, no_parameters},
    vectors::{answer as http, calls::Asker, json::Shape, request},
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
    let model = convert::model(&mut fields)?;
    let model = select(&app, model, &[capability]).await?.model;
    answer(&app, &id, model, fields, shape).await
}

/// Embeds what a body without its `model` says.
pub(super) async fn answer(
    app: &App,
    id: &RequestId,
    model: String,
    mut fields: Fields,
    shape: Shape,
) -> Result<Response, TeiError> {
    let inputs = request::inputs(fields.require("inputs")?, app.config.embedding_inputs_max)?;
    let base = request::options(&mut fields)?;
    no_parameters(&mut fields)?;
    fields.finish()?;
    let pooled = matches!(shape, Shape::OpenAi { .. } | Shape::Vectors);
    let refused = [("dimensions", base.dimensions > 0), ("normalize", base.normalize.is_some())];
    if let Some((name, _)) = refused.iter().find(|(_, given)| !pooled && *given) {
        return Err(ApiError::field(name, "only of /embed: nothing is pooled here").into());
    }
    let output = match shape {
        Shape::OpenAi { .. } | Shape::Vectors => EmbedOutput::Pooled,
        Shape::TokenVectors => EmbedOutput::Tokens,
        Shape::SparseVectors => EmbedOutput::Sparse,
    };
    let base = v1::EmbedRequest {
        model,
        output: output.into(),
        // TEI's default, also of models whose files say nothing.
        normalize: if pooled { Some(base.normalize.unwrap_or(true)) } else { None },
        ..base
    };
    let single = inputs.single;
    let name = move |field: &str| field_name(field, "inputs", single);
    let calls = Asker::new(app, id).embed(base, inputs.inputs, name);
    Ok(http::respond(app, calls, shape).await?)
}
