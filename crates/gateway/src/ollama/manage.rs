//! `POST /api/pull`, `DELETE /api/delete` and `POST /api/copy`, which need the admin scope; and `/api/push`,
//! which is refused.

use std::{collections::HashSet, pin::pin, sync::Arc};

use axum::{
    Extension, Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use futures_util::TryStreamExt as _;
use hanzo_engine_proto::v1::{self, pull_progress::Phase};
use serde_json::{Value, json};

use super::{
    error::{self, OllamaError, of_model},
    names::{self, OllamaName},
};
use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    declare::{Declaration as _, fields},
    error::ApiError,
    fields::Fields,
    models::load::admin,
    progress::{LINES, bounded, line, respond},
    request::FILLED,
    unsupported::OLLAMA_PULL,
};

/// `POST /api/pull`. A name without a scheme is one of Ollama's registry.
pub(crate) async fn pull(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, OllamaError> {
    admin(&app, &asker, "to pull models")?;
    let peer = incoming.peer();
    let ((called, streamed), _room) =
        body::read(&app, incoming).await?.into(|fields, _| read_pull(fields)).await?;
    let aliases = app.engine(&asker).aliases().await?;
    let reference =
        reference(&called, |name| aliases.iter().any(|alias| alias.alias.eq_ignore_ascii_case(name)))?;
    let request = v1::PullRequest { reference, ..v1::PullRequest::default() };
    let until = app.until();
    let progress = until.run(app.engine(&asker).pull(request)).await;
    let named = move |error: ApiError| of_model(error, &called);
    let progress = bounded(progress.map_err(&named)?, until).map_err(named);
    if !streamed {
        pin!(progress).try_fold((), |(), _| async { Ok(()) }).await?;
        return Ok(Json(json!({"status": "success"})).into_response());
    }
    let mut told = DownloadState::default();
    let lines = progress.map_ok(move |step| told.lines(step));
    Ok(respond(&app, peer, LINES, lines, error::body).await?)
}

fields! {
    /// Body of `POST /api/pull`.
    pub(crate) struct OllamaPullRequest<'a> inert [&OLLAMA_PULL] {
        ..name: OllamaName<'a>,
        /// Whether progress is sent; true if absent.
        stream?: bool,
        /// Whether a registry is asked without TLS, which is possible on the loopback only.
        insecure: bool,
    }
}

fields! {
    /// Body of `DELETE /api/delete`.
    pub(crate) struct OllamaDeleteRequest<'a> {
        ..name: OllamaName<'a>,
    }
}

fields! {
    /// Body of `POST /api/copy`.
    pub(crate) struct OllamaCopyRequest {
        /// Name of the model.
        source: String = FILLED,
        /// Other name that it gets.
        destination: String = FILLED,
    }
}

/// Reads the model, and whether to stream progress.
fn read_pull(mut fields: Fields) -> Result<(String, bool), ApiError> {
    let OllamaPullRequest { name, stream, insecure } = OllamaPullRequest::read(&mut fields)?;
    fields.finish()?;
    let model = name.get()?;
    // A registry on the loopback may be used without TLS anyway, and no other.
    if insecure && !is_loopback(&model) {
        let problem = "registries are asked over TLS, except on the loopback";
        return Err(ApiError::unsupported("insecure", problem));
    }
    Ok((model, stream.unwrap_or(true)))
}

fn is_loopback(model: &str) -> bool {
    let host = model.split_once("://").map_or(model, |(_, rest)| rest).split('/').next().unwrap_or_default();
    let name = host.split(':').next().unwrap_or_default();
    name == "localhost" || name.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

/// Engine's reference for an Ollama model name.
fn reference(model: &str, is_alias: impl Fn(&str) -> bool) -> Result<String, ApiError> {
    let lower = model.to_ascii_lowercase();
    if lower.starts_with("file:") || model.starts_with(['/', '.', '~']) {
        let problem = "names a file of the engine's machine; use `hanzo-engine pull` there";
        return Err(ApiError::unsupported("model", problem));
    }
    if model.contains("://") {
        return Ok(model.to_owned());
    }
    for hub in ["hf:", "hf.co/", "huggingface.co/", "www.huggingface.co/"] {
        if lower.starts_with(hub) {
            let rest = &model[hub.len()..];
            return Ok(format!("hf://{}", rest.strip_suffix(":latest").unwrap_or(rest)));
        }
    }
    let bare = names::given(model);
    match is_alias(bare) || is_alias(bare.split(':').next().unwrap_or_default()) {
        true => Ok(bare.to_owned()),
        false => Ok(format!("ollama://{model}")),
    }
}

/// State of a download's progress lines.
#[derive(Default)]
struct DownloadState {
    manifest: bool,
    verifying: bool,
    done: HashSet<String>, // finished files
}

impl DownloadState {
    /// Lines for a progress event.
    fn lines(&mut self, step: v1::PullProgress) -> Vec<u8> {
        let mut lines = Vec::new();
        let mut say = |value: &Value| lines.extend(line(value));
        if !std::mem::replace(&mut self.manifest, true) {
            say(&json!({"status": "pulling manifest"}));
        }
        for file in &step.files {
            let over = file.phase() >= Phase::Verifying
                || file.bytes_done > 0 && file.bytes_done == file.bytes_total;
            let begun = over || file.phase() == Phase::Downloading;
            if !begun || self.done.contains(&file.name) {
                continue;
            }
            if over {
                self.done.insert(file.name.clone());
            }
            // Clients show the first characters of a digest, and use it to tell progress bars apart.
            let digest = if file.digest.is_empty() { &file.name } else { &file.digest };
            let short: String = digest.trim_start_matches("sha256:").chars().take(12).collect();
            let mut told =
                json!({"status": format!("pulling {short}"), "digest": digest, "total": file.bytes_total});
            if file.bytes_done > 0 {
                told["completed"] = json!(file.bytes_done);
            }
            say(&told);
        }
        let verifies = matches!(step.phase(), Phase::Verifying | Phase::Done);
        if verifies && !std::mem::replace(&mut self.verifying, true) {
            say(&json!({"status": "verifying sha256 digest"}));
        }
        if step.stored.is_some() {
            say(&json!({"status": "writing manifest"}));
            say(&json!({"status": "success"}));
        }
        lines
    }
}

/// `DELETE /api/delete`. A loaded model is unloaded too, when its requests have ended. An alias is removed
/// alone.
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<StatusCode, OllamaError> {
    admin(&app, &asker, "to remove models")?;
    let read = |mut fields: Fields<'_>, _: &_| {
        let OllamaDeleteRequest { name } = OllamaDeleteRequest::read(&mut fields)?;
        fields.finish()?;
        name.get()
    };
    let (called, _room) = body::read(&app, incoming).await?.into(read).await?;
    let mut engine = app.engine(&asker);
    let aliases = engine.aliases().await?;
    let bare = names::given(&called);
    let model = match aliases.into_iter().find(|own| !own.builtin && own.alias.eq_ignore_ascii_case(bare)) {
        Some(own) => own.alias,
        None => names::known(&app, &asker, called.clone()).await?,
    };
    let removed = engine.remove(model).await;
    let removed = removed.map_err(|status| of_model(status.into(), &called))?;
    if let (Some(stored), true) = (removed.model, removed.alias_of.is_empty()) {
        unload(&app, &asker, &stored.name).await?;
    }
    Ok(StatusCode::OK)
}

/// Unloads a model of exactly this name, if it is loaded.
async fn unload(app: &App, asker: &Asker, name: &str) -> Result<(), ApiError> {
    let (until, mut engine) = (app.until(), app.engine(asker));
    let stats = engine.stats().await?;
    let mut loaded = stats.models.into_iter().filter_map(|model| model.status).map(|status| status.name);
    let Some(model) = loaded.find(|loaded| loaded.eq_ignore_ascii_case(name)) else { return Ok(()) };
    let request = v1::UnloadRequest { model, force: false };
    match until.run(engine.unload(request, until.deadline)).await {
        // It has been unloaded meanwhile.
        Err(error) if error.status() == StatusCode::NOT_FOUND => Ok(()),
        unloaded => unloaded.map(drop),
    }
}

/// `POST /api/copy`: creates an alias of a model.
pub(crate) async fn copy(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<StatusCode, OllamaError> {
    admin(&app, &asker, "to name models")?;
    let read = |mut fields: Fields<'_>, _: &_| {
        let OllamaCopyRequest { source, destination } = OllamaCopyRequest::read(&mut fields)?;
        fields.finish()?;
        Ok((source, destination))
    };
    let ((source, destination), _room) = body::read(&app, incoming).await?.into(read).await?;
    let model = names::known(&app, &asker, source.clone()).await?;
    let mut engine = app.engine(&asker);
    // For an unknown model, the alias would be one of a reference.
    engine.show(model.clone()).await.map_err(|status| of_model(status.into(), &source))?;
    let copied = engine.copy(model, names::given(&destination).to_owned()).await;
    copied.map_err(|status| {
        of_model(
            ApiError::from(status)
                .renamed(|field| Some(if field == "alias" { "destination" } else { field }.to_owned())),
            &source,
        )
    })?;
    Ok(StatusCode::OK)
}

/// Handler of `POST /api/push`.
pub(crate) async fn push() -> OllamaError {
    let problem = "models are not pushed to registries by this build; `hanzo-engine export` writes a file";
    ApiError::unsupported("push", problem).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_ollamas_registry_unless_they_say_otherwise() {
        let alias = |name: &str| name == "zen-nano";
        for (model, expected) in [
            ("llama3.2:3b", "ollama://llama3.2:3b"),
            ("library/llama3.2", "ollama://library/llama3.2"),
            ("127.0.0.1:5000/library/small:latest", "ollama://127.0.0.1:5000/library/small:latest"),
            ("hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0", "hf://Qwen/Qwen3-0.6B-GGUF:Q8_0"),
            ("HuggingFace.co/a/b:latest", "hf://a/b"),
            ("hf:a/b:Q8_0", "hf://a/b:Q8_0"),
            ("hf://a/b", "hf://a/b"),
            ("zen-nano", "zen-nano"),
            ("zen-nano:latest", "zen-nano"),
            ("zen-nano:Q8_0", "zen-nano:Q8_0"),
        ] {
            assert_eq!(reference(model, alias).unwrap(), expected);
        }
        for path in ["/etc/x.gguf", "./x", "~/x", "FILE:///x"] {
            assert!(reference(path, alias).is_err(), "{path}");
        }
        assert!(
            is_loopback("127.0.0.1:5000/library/x")
                && is_loopback("ollama://localhost/x")
                && !is_loopback("x.org/y")
        );
    }
}
