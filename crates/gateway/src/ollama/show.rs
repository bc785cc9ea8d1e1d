//! `POST /api/show`: description of a model.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1::{self, Capability};
use serde_json::{Map, Value, json};

use super::{
    error::{OllamaError, of_model},
    list::details,
    names::{self, OllamaName},
    time::of_unix_ms,
};
use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    declare::{Declaration as _, fields},
    error::ApiError,
    fields::Fields,
    unsupported::OLLAMA_SHOW,
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<Value>, OllamaError> {
    let (called, _room) = body::read(&app, incoming).await?.into(|fields, _| read(fields)).await?;
    let of_model = |error: ApiError| of_model(error, &called);
    let model = names::known(&app, &asker, called.clone()).await?;
    let shown = app.engine(&asker).show(model.clone()).await.map_err(|status| of_model(status.into()))?;
    Ok(Json(answer(&called, &model, shown)))
}

fields! {
    /// Body of `POST /api/show`. Overrides are refused.
    pub(crate) struct OllamaShowRequest<'a> inert [&OLLAMA_SHOW] {
        ..name: OllamaName<'a>,
    }
}

/// Reads the model's name.
fn read(mut fields: Fields) -> Result<String, ApiError> {
    let OllamaShowRequest { name } = OllamaShowRequest::read(&mut fields)?;
    fields.finish()?;
    name.get()
}

fn answer(called: &str, name: &str, shown: v1::ShowResponse) -> Value {
    let mut model = shown.model.clone().unwrap_or_default();
    let status = shown.status.clone().unwrap_or_default();
    let either = |one: &str, other: &str| if one.is_empty() { other.to_owned() } else { one.to_owned() };
    model.architecture = either(&shown.architecture, &status.architecture);
    model.quantization = either(&model.quantization, &status.quantization);
    model.parameters = if shown.parameters > 0 { shown.parameters } else { status.parameters };
    let parameters = parameters(&shown.params_json);
    let template = either(&shown.chat_template, &shown.source_template);
    let mut answer = json!({
        "license": either(&shown.license_text, &shown.license),
        "modelfile": modelfile(called, &shown, &template, &parameters),
        "parameters": parameters.iter().map(|(key, value)| format!("{key:<30} {value}")).collect::<Vec<_>>().join("\n"),
        "template": template,
        "details": details(&model),
        "model_info": info(name, &shown, &model),
        "capabilities": capabilities(&shown),
        "modified_at": of_unix_ms(if model.modified_at_unix_ms > 0 { model.modified_at_unix_ms } else { status.loaded_at_unix_ms }),
    });
    if !shown.system.is_empty() {
        answer["system"] = json!(shown.system);
    }
    answer
}

/// Default parameters of the model, one entry for each value of a list.
fn parameters(params_json: &str) -> Vec<(String, Value)> {
    let params: Map<String, Value> = serde_json::from_str(params_json).unwrap_or_default();
    let each = |(key, value): (String, Value)| match value {
        Value::Array(values) => values.into_iter().map(|value| (key.clone(), value)).collect(),
        value => vec![(key, value)],
    };
    params.into_iter().flat_map(each).collect()
}

/// Modelfile that would create the same model.
fn modelfile(
    called: &str,
    shown: &v1::ShowResponse,
    template: &str,
    parameters: &[(String, Value)],
) -> String {
    let mut file = format!("FROM {called}\n");
    if !template.is_empty() {
        file.push_str(&format!("TEMPLATE \"\"\"{template}\"\"\"\n"));
    }
    if !shown.system.is_empty() {
        file.push_str(&format!("SYSTEM \"\"\"{}\"\"\"\n", shown.system));
    }
    for (key, value) in parameters {
        file.push_str(&format!("PARAMETER {key} {value}\n"));
    }
    file
}

/// `model_info`: the GGUF keys that the engine reports.
fn info(name: &str, shown: &v1::ShowResponse, model: &v1::StoredModel) -> Value {
    let family = if model.architecture.is_empty() { "general" } else { &model.architecture };
    let status = shown.status.as_ref();
    let context = match shown.context_tokens_max {
        0 => status.map_or(0, |status| status.context_tokens_max),
        tokens => tokens,
    };
    let mut info = json!({
        "general.architecture": model.architecture,
        "general.basename": name,
        "general.parameter_count": model.parameters,
    });
    info[format!("{family}.context_length")] = json!(context);
    let embedder = status.and_then(|status| status.embedder.as_ref());
    if let Some(embedder) = embedder.filter(|embedder| embedder.dimensions > 0) {
        info[format!("{family}.embedding_length")] = json!(embedder.dimensions);
    }
    info
}

/// Capabilities in Ollama's terms.
fn capabilities(shown: &v1::ShowResponse) -> Vec<&'static str> {
    let loaded = shown.status.as_ref().filter(|status| !status.capabilities.is_empty());
    let mut words = Vec::new();
    for capability in loaded.map_or(&shown.capabilities, |status| &status.capabilities) {
        let word = match Capability::try_from(*capability).unwrap_or_default() {
            Capability::Chat | Capability::Completion => "completion",
            Capability::Embed => "embedding",
            Capability::Vision => "vision",
            Capability::Audio => "audio",
            Capability::Image => "image",
            Capability::Tools => "tools",
            Capability::Infill => "insert",
            Capability::Reasoning => "thinking",
            Capability::Unspecified
            | Capability::Rerank
            | Capability::Classify
            | Capability::EmbedSparse
            | Capability::Transcribe
            | Capability::Speak => continue,
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words
}
