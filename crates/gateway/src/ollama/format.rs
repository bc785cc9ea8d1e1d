//! Ollama's `format`, which constrains the answer, and `think`, which controls reasoning.

use hanzo_engine_proto::v1::{self, Capability, constraint::Of};

use super::names;
use crate::{
    app::App,
    asker::Asker,
    error::{ApiError, quote},
    fields::Field,
    openai::thinking::ReasoningSettings,
};

/// Reads `format`: `json` or a schema.
pub(super) fn format(field: Field) -> Result<Option<v1::Constraint>, ApiError> {
    let value = field.value();
    let of = match value.as_str().as_deref() {
        Some("") => return Ok(None),
        Some("json") => Of::JsonObject(true),
        Some(other) => {
            return Err(field.error(format!("expected json or a JSON schema, got {}", quote(other))));
        }
        None if value.is_object() => Of::JsonSchema(value.to_text()),
        None => return Err(field.error("expected json or a JSON schema")),
    };
    Ok(Some(v1::Constraint { of: Some(of) }))
}

/// Reads `think`: a boolean or a level. Also returns whether it asks for reasoning.
pub(super) fn think(field: Option<Field>) -> Result<(ReasoningSettings, bool), ApiError> {
    let mut thinking = ReasoningSettings::default();
    let Some(field) = field else { return Ok((thinking, false)) };
    if let Some(think) = field.value().as_bool() {
        thinking.enable("think", think)?;
        return Ok((thinking, think));
    }
    if field.value().as_str().as_deref() == Some("") {
        return Ok((thinking, false));
    }
    if !field.value().is_string() {
        return Err(field.error("expected a boolean or one of low, medium, high, max"));
    }
    thinking.set_effort("think", field.word(&["low", "medium", "high", "max"])?)?;
    Ok((thinking, true))
}

/// Refuses `think` for a model that cannot reason.
pub(super) async fn can_think(app: &App, asker: &Asker, model: &str, asked: &str) -> Result<(), ApiError> {
    let thinks = match names::loaded(app, asker, model).await? {
        Some(status) => status.capabilities().any(|can| can == Capability::Reasoning),
        None => {
            let shown = app.engine(asker).show(model.to_owned()).await?;
            shown.capabilities().any(|can| can == Capability::Reasoning)
        }
    };
    match thinks {
        true => Ok(()),
        false => Err(ApiError::unsupported("think", format!("{} does not support thinking", quote(asked)))),
    }
}
