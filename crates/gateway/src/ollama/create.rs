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
    names::{self, OllamaName},
};
use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    declare::{Declaration as _, Raw, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    limits::CHAT_MESSAGES_MAX,
    models::load::admin,
    progress::line,
    request::FILLED,
};

fields! {
    /// Body of `POST /api/create`.
    pub(crate) struct OllamaCreateRequest<'a> {
        ..name: OllamaName<'a>,
        /// Stored model that the new one is made of, if it is not made of files.
        from?: String = FILLED,
        /// Digests of files in the store, as in /api/blobs, by their names within the model.
        files?: Field<'a> = Raw("object"),
        /// System prompt of conversations that begin without one; that of the other model if absent.
        system?: String,
        /// Default options, beside those of the other model.
        parameters?: Fields<'a> = Read("object", Field::object),
        /// Messages that come before every conversation.
        messages?: String = Read("object[]", messages),
        /// License, as a text or several.
        license?: String = Read("string | string[]", license),
        /// Whether progress is sent; true if absent.
        stream?: bool,
        /// Chat template in place of that in the model's files: in Jinja, or in Go's language, which is translated.
        template?: String,
        /// Adapters, which are refused: they are loaded beside a model.
        #[expect(dead_code, reason = "only checked")]
        adapters?: () = Read("any", no_adapters),
        /// Type to quantise to, which is refused.
        #[expect(dead_code, reason = "only checked")]
        quantize?: () = Read("\"\"", no_quantization),
        /// Older name of quantize.
        #[expect(dead_code, reason = "only checked")]
        quantization?: () = Read("\"\"", no_quantization),
        /// Modelfile, which is refused.
        #[expect(dead_code, reason = "only checked")]
        modelfile?: () = Read("\"\"", no_modelfile),
        /// Path of a Modelfile, which is refused.
        #[expect(dead_code, reason = "only checked")]
        path?: () = Read("\"\"", no_modelfile),
    }
}

fn no_adapters(field: Field) -> Result<(), ApiError> {
    let instead = "adapters are loaded beside a model: `hanzo-engine adapter load`, and requests name them as model:adapter";
    refuse(field, instead)
}

fn no_quantization(field: Field) -> Result<(), ApiError> {
    refuse(field, "`hanzo-engine quantize` writes a file of fewer bits")
}

fn no_modelfile(field: Field) -> Result<(), ApiError> {
    refuse(field, "send what it says as from, system, template, parameters, messages and license")
}

/// Refuses a field that this build cannot honour, unless it is empty.
fn refuse(field: Field, instead: &str) -> Result<(), ApiError> {
    if says_nothing(field) {
        return Ok(());
    }
    Err(ApiError::unsupported(&field.path(), format!("not supported by this build; {instead}")))
}

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
    let given = OllamaCreateRequest::read(&mut fields)?;
    fields.finish()?;
    let name = names::given(&given.name.get()?).to_owned();
    let files = given.files.filter(|field| !says_nothing(*field)).map(files).transpose()?;
    let (model, files) = match (given.from, files) {
        (Some(from), None) => (from, HashMap::new()),
        (None, Some(files)) => (String::new(), files),
        (Some(_), Some(_)) => {
            return Err(ApiError::unsupported("files", "not beside from: a model is made of one of the two"));
        }
        (None, None) => return Err(ApiError::field("from", "required: a stored model; or files of blobs")),
    };
    let template = given.template.filter(|text| !text.is_empty());
    let params_json = given.parameters.map(|fields| fields.object().to_text());
    let (system, license, messages_json) = (given.system, given.license, given.messages);
    let streamed = given.stream.unwrap_or(true);
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
