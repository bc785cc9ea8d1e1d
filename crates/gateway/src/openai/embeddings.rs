//! `POST /v1/embeddings` (and `/embeddings`, which TEI and Infinity have): OpenAI's embeddings, with what vLLM, Jina
//! and Cohere add to the request.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::Capability;

use crate::{
    app::App,
    body::{self, Incoming},
    error::ApiError,
    names::Sent,
    openai::convert::{self, embeddings::Embeddings},
    request_id::RequestId,
    select::select,
    vectors::{
        answer,
        calls::Asker,
        convert::{field_name, json::Shape},
    },
};

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    incoming: Incoming,
) -> Result<Response, ApiError> {
    let received = body::read(&app, incoming).await?;
    let ((asked, sent), room) = received.into(Sent::beside(convert::embeddings::request)).await?;
    let Embeddings { mut request, inputs, base64 } = asked;
    request.model = select(&app, request.model, &[Capability::Embed]).await?.model;
    let single = inputs.single;
    let name = move |field: &str| field_name(field, "input", single, &sent);
    let calls = Asker::new(&app, &id, room).embed(request, inputs.inputs, name);
    answer::respond(&app, calls, Shape::OpenAi { base64 }).await
}
