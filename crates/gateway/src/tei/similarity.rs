//! `POST /similarity`: the cosine of each sentence with a source sentence.

use std::sync::Arc;

use axum::{Extension, Json, body::Body, extract::State, http::HeaderMap};
use hanzo_engine_proto::v1::{self, Capability};

use crate::{
    app::App,
    body,
    openai::convert,
    request_id::RequestId,
    scores::score,
    select::select,
    tei::TeiError,
    vectors::{calls::Asker, request},
};

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Vec<f32>>, TeiError> {
    let mut fields = body::read(&app, &headers, body).await?;
    let model = convert::model(&mut fields)?;
    let mut inputs = fields.require("inputs")?.object()?;
    let source = request::filled(inputs.require("source_sentence")?)?;
    let sentences = request::elements(inputs.require("sentences")?, app.config.embedding_inputs_max)?;
    let sentences: Vec<String> = sentences.into_iter().map(request::filled).collect::<Result<_, _>>()?;
    inputs.finish()?;
    let mut base = v1::EmbedRequest::default();
    if let Some(parameters) = fields.take("parameters") {
        let mut parameters = parameters.object()?;
        let truncation = request::truncation(&mut parameters)?;
        base.truncate = truncation.truncate;
        base.truncate_side = truncation.side.into();
        let prompt_name = parameters.take("prompt_name").map(request::filled).transpose()?;
        base.prompt_name = prompt_name.unwrap_or_default();
        parameters.finish()?;
    }
    fields.finish()?;
    base.model = select(&app, model, &[Capability::Embed]).await?.model;
    let mut texts = vec![source];
    texts.extend(sentences);
    let firsts: Vec<bool> = (0..texts.len()).map(|i| i == 0).collect();
    let name = |field: &str| match field.strip_prefix("inputs[").and_then(|rest| rest.strip_suffix(']')) {
        Some("0") => "inputs.source_sentence".to_owned(),
        Some(index) => {
            let sentence = index.parse::<usize>().ok().and_then(|i| i.checked_sub(1));
            sentence.map_or_else(|| field.to_owned(), |i| format!("inputs.sentences[{i}]"))
        }
        None => field.to_owned(),
    };
    Ok(Json(score::cosines(&Asker::new(&app, &id), base, texts, &firsts, name).await?.0))
}
