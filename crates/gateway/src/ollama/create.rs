//! `POST /api/create`: creates a model from a stored one or from uploaded files (`blobs`), with its own system
//! prompt, template, options, messages and license. The admin scope is needed.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_proto::v1;
use serde_json::json;

use super::{
    blobs,
    error::{OllamaError, of_model},
    names,
};
use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    error::ApiError,
    fields::{Field, Fields},
    limits::CHAT_MESSAGES_MAX,
    models::load::admin,
    progress::line,
    request::filled,
};

/// Fields that this build cannot honour, and what to use instead.
const REFUSED: [(&str, &str); 5] = [
    (
        "adapters",
        "adapters are loaded beside a model: `hanzo-engine adapter load`, and requests name them as model:adapter",
    ),
    ("quantize", "`hanzo-engine quantize` writes a file of fewer bits"),
    ("quantization", "`hanzo-engine quantize` writes a file of fewer bits"),
    ("modelfile", "send what it says as from, system, template, parameters, messages and license"),
    ("path", "send what the Modelfile says as from, system, template, parameters, messages and license"),
];

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, OllamaError> {
    admin(&app, &asker, "to make models")?;
    let received = body::read(&app, incoming).await?;
    let ((mut request, streamed), _room) = received.into(|fields, _| read(fields)).await?;
    let from = std::mem::take(&mut request.model);
    let mut engine = app.engine(&asker);
    if request.files.is_empty() {
        request.model = names::known(&app, &asker, from.clone()).await?;
        // A missing base model is reported as Ollama does.
        engine.show(request.model.clone()).await.map_err(|status| of_model(status.into(), &from))?;
    }
    let name = request.name.clone();
    let made = engine.derive(request).await;
    made.map_err(|status| of_model(ApiError::from(status).renamed(|field| Some(called(field))), &from))?;
    // A loaded model of that name is the old one. It is unloaded, so that the next request loads the new one.
    if let Some(before) = names::loaded(&app, &asker, &name).await? {
        engine.unload(v1::UnloadRequest { model: before.name, force: false }, None).await?;
    }
    if !streamed {
        return Ok(Json(json!({"status": "success"})).into_response());
    }
    let lines = ["using existing layers", "writing manifest", "success"]
        .map(|status| line(&json!({"status": status})));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from(lines.concat())).into_response())
}

/// Reads what to create, and whether to stream progress.
fn read(mut fields: Fields) -> Result<(v1::DeriveRequest, bool), ApiError> {
    let name = names::given(&names::model(&mut fields)?).to_owned();
    for (refused, instead) in REFUSED {
        if let Some(field) = fields.take(refused)
            && !says_nothing(field)
        {
            return Err(ApiError::unsupported(refused, format!("not supported by this build; {instead}")));
        }
    }
    let files = fields.take("files").filter(|field| !says_nothing(*field)).map(files).transpose()?;
    let from = fields.take("from").map(filled).transpose()?;
    let (model, files) = match (from, files) {
        (Some(from), None) => (from, HashMap::new()),
        (None, Some(files)) => (String::new(), files),
        (Some(_), Some(_)) => {
            return Err(ApiError::unsupported("files", "not beside from: a model is made of one of the two"));
        }
        (None, None) => return Err(ApiError::field("from", "required: a stored model; or files of blobs")),
    };
    let template = fields.take("template").map(Field::string).transpose()?.filter(|text| !text.is_empty());
    let system = fields.take("system").map(Field::string).transpose()?;
    let license = fields.take("license").map(license).transpose()?;
    let params = fields.take("parameters").map(|field| Ok::<_, ApiError>(field.object()?.object().to_text()));
    let messages_json = fields.take("messages").map(messages).transpose()?;
    let streamed = fields.take("stream").map(Field::boolean).transpose()?.unwrap_or(true);
    fields.finish()?;
    let params_json = params.transpose()?;
    let request =
        v1::DeriveRequest { model, name, system, params_json, messages_json, license, template, files };
    Ok((request, streamed))
}

/// Client's name of an engine's field.
fn called(field: &str) -> String {
    let (field, rest) = field.split_once('.').map_or((field, ""), |(field, rest)| (field, rest));
    let word = match field {
        "name" => "model",
        "model" => "from",
        "params_json" => "parameters",
        "messages_json" => "messages",
        other => other,
    };
    if rest.is_empty() { word.to_owned() } else { format!("{word}.{rest}") }
}

/// Reads file names with the digests of their blobs.
fn files(field: Field) -> Result<HashMap<String, String>, ApiError> {
    let mut files = HashMap::new();
    for (name, value) in field.object()?.object().members().into_iter().flatten() {
        let digest = value.as_str().and_then(|digest| blobs::sha256(&digest).map(str::to_owned));
        let Some(digest) = digest else {
            let expected = "expected the digest of a blob, sha256: and 64 hexadecimal digits";
            return Err(ApiError::field(&format!("files.{name}"), expected));
        };
        files.insert(name.into_owned(), digest);
    }
    Ok(files)
}

/// Whether a text, list or object is empty.
fn says_nothing(field: Field) -> bool {
    let value = field.value();
    value.as_str().is_some_and(|text| text.is_empty())
        || value.elements().is_some_and(|mut all| all.next().is_none())
        || value.members().is_some_and(|mut all| all.next().is_none())
}

/// Reads a text or a list of texts.
fn license(field: Field) -> Result<String, ApiError> {
    let Some(list) = field.as_list() else { return field.string() };
    let texts =
        list.up_to(CHAT_MESSAGES_MAX, "texts", field)?.map(Field::string).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join("\n\n"))
}

/// Reads text messages, as JSON.
fn messages(field: Field) -> Result<String, ApiError> {
    let mut all = Vec::new();
    for one in field.list_up_to(CHAT_MESSAGES_MAX, "messages")? {
        let mut message = one.object()?;
        let role = message.require("role")?.word(&["system", "user", "assistant"])?;
        let content = message.require("content")?.string()?;
        for other in ["images", "tool_calls", "thinking", "tool_name"] {
            if let Some(field) = message.take(other)
                && !says_nothing(field)
            {
                return Err(ApiError::unsupported(
                    &field.path(),
                    "not supported by this build; only text is",
                ));
            }
        }
        message.finish()?;
        all.push(json!({"role": role, "content": content}));
    }
    Ok(serde_json::Value::Array(all).to_string())
}
