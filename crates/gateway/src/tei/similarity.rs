//! `POST /similarity`: cosine similarity of each sentence with a source sentence.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1::Capability;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    scores::pairs::cosines,
    select::select,
    tei::{error::TeiError, words},
    vectors::calls::Caller,
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<Vec<f32>>, TeiError> {
    let ((mut request, texts), room) = body::read(&app, incoming).await?.into(words::similarity).await?;
    request.model = select(&app, &asker, request.model, &[Capability::Embed]).await?.model;
    let firsts: Vec<bool> = (0..texts.len()).map(|i| i == 0).collect();
    let name = |field: &str| match field.strip_prefix("inputs[").and_then(|rest| rest.strip_suffix(']')) {
        Some("0") => Some("inputs.source_sentence".to_owned()),
        Some(index) => {
            let sentence = index.parse::<usize>().ok().and_then(|i| i.checked_sub(1));
            Some(sentence.map_or_else(|| field.to_owned(), |i| format!("inputs.sentences[{i}]")))
        }
        None => Some(field.to_owned()),
    };
    Ok(Json(cosines(&Caller::new(&app, &asker, room), request, texts, &firsts, name).await?.0))
}
