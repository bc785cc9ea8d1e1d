//! `POST /v1/embeddings` (and `/embeddings`, which TEI and Infinity have): OpenAI's embeddings, with what vLLM, Jina
//! and Cohere add to the request.

use std::sync::Arc;

use axum::{Extension, body::Body, extract::State, http::HeaderMap, response::Response};
use hanzo_engine_proto::v1::{self, Capability, EmbedOutput};

use crate::{
    app::App,
    body,
    error::ApiError,
    openai::{convert, unsupported},
    request_id::RequestId,
    select::select,
    vectors::{answer, calls::Asker, json::Shape, request},
};

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut fields = body::read(&app, &headers, body).await?;
    let model = convert::model(&mut fields)?;
    let inputs = request::inputs(fields.require("input")?, app.config.embedding_inputs_max)?;
    let format = request::either(&mut fields, "encoding_format", "embedding_type")?;
    let format = format.map(|field| field.word(&["float", "base64"])).transpose()?;
    let base = request::options(&mut fields)?;
    unsupported::embedding(&mut fields)?;
    fields.finish()?;
    let model = select(&app, model, &[Capability::Embed]).await?.model;
    let base = v1::EmbedRequest { model, output: EmbedOutput::Pooled.into(), ..base };
    let single = inputs.single;
    let name = move |field: &str| field_name(field, "input", single);
    let calls = Asker::new(&app, &id).embed(base, inputs.inputs, name);
    answer::respond(&app, calls, Shape::OpenAi { base64: format == Some("base64") }).await
}

/// A surface's word for a field of `EmbedRequest`, where the inputs are called `input` there, and may be one alone.
pub(crate) fn field_name(engine: &str, input: &str, single: bool) -> String {
    match engine.strip_prefix("inputs") {
        Some(_) if single => input.to_owned(),
        Some(index) => format!("{input}{index}"),
        None if matches!(engine, "text" | "tokens") => input.to_owned(),
        None => engine.to_owned(),
    }
}
