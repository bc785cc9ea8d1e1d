//! The routes of text-embeddings-inference, in its shapes: `/embed`, `/embed_all`, `/embed_sparse`, `/rerank`,
//! `/predict`, `/similarity`, `/info`, and `/`, which is the one of them that the model is for.
//!
//! Its clients name no model: it is the only loaded one that can do it. A `model` is taken too. Statuses are those of
//! all other routes; the body of an error is TEI's.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use hanzo_engine_proto::v1::Capability;
use serde_json::json;

use crate::{
    Config,
    app::App,
    body::{self, Incoming},
    error::{self, ApiError},
    fields::Fields,
    openai::convert::model,
    request_id::RequestId,
    select::select,
    vectors::convert::json::Shape,
};

mod convert;
pub(crate) mod embed;
pub(crate) mod info;
pub(crate) mod predict;
pub(crate) mod rerank;
pub(crate) mod similarity;

/// An error as `{"error", "error_type"}`.
#[derive(Debug)]
pub(crate) struct TeiError(ApiError);

impl From<ApiError> for TeiError {
    fn from(error: ApiError) -> TeiError {
        TeiError(error)
    }
}

impl IntoResponse for TeiError {
    fn into_response(self) -> Response {
        let TeiError(error) = self;
        let error_type = match error.status().as_u16() {
            400 if error.code() == Some(error::EMPTY) => "Empty",
            429 => "Overloaded",
            503 => "Unhealthy",
            400..=499 => "Validation",
            _ => "Backend",
        };
        error.respond(json!({"error": error.message(), "error_type": error_type}))
    }
}

/// `POST /`: ranks where there are `texts`, else embeds, or classifies where that is what the model is for.
pub(crate) async fn root(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    incoming: Incoming,
) -> Result<Response, TeiError> {
    let of_model = |mut fields: Fields<'_>, _: &Config| match fields.has("texts") {
        true => Ok(None),
        false => model(&mut fields).map(Some),
    };
    let (received, model) = body::read(&app, incoming).await?.peek(of_model).await?;
    let Some(model) = model else {
        return rerank::answer(&app, &id, received).await;
    };
    let selected = select(&app, model, &[Capability::Embed, Capability::Classify]).await?;
    match selected.capability {
        Capability::Classify => predict::answer(&app, &id, selected.model, received).await,
        _ => embed::answer(&app, &id, selected.model, received, Shape::Vectors).await,
    }
}
