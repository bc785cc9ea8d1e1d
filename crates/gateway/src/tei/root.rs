//! `POST /`: acts as the TEI route that suits the model.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::Capability;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    config::Config,
    fields::Fields,
    request::model,
    select::select,
    tei::{embed, error::TeiError, predict, rerank},
    vectors::json::VectorFormat,
};

/// Ranks if the body has `texts`. Otherwise it embeds, or classifies if that is the model's purpose.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, TeiError> {
    let of_model = |mut fields: Fields<'_>, _: &Config| match fields.has("texts") {
        true => Ok(None),
        false => model(&mut fields).map(Some),
    };
    let (received, model) = body::read(&app, incoming).await?.peek(of_model).await?;
    let Some(model) = model else {
        return rerank::answer(&app, &asker, received).await;
    };
    let selected = select(&app, &asker, model, &[Capability::Embed, Capability::Classify]).await?;
    match selected.capability {
        Capability::Classify => predict::answer(&app, &asker, selected.model, received).await,
        _ => embed::answer(&app, &asker, selected.model, received, VectorFormat::Vectors).await,
    }
}
