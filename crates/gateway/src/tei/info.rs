//! `GET /info`: the model and the limits; null for values that this server does not have.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1::Capability;
use serde_json::Value;

use crate::{
    app::App,
    asker::Asker,
    select::sole,
    tei::{error::TeiError, words},
};

/// Handler of the route. It describes the model that an embedding request without a name would use, else a
/// reranking one, else a classifying one.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
) -> Result<Json<Value>, TeiError> {
    const KINDS: [Capability; 4] =
        [Capability::Embed, Capability::Rerank, Capability::Classify, Capability::EmbedSparse];
    let stats = sole(&app, &asker, &KINDS).await?;
    Ok(Json(words::info(stats, &KINDS, app.config.embedding_inputs_max)))
}
