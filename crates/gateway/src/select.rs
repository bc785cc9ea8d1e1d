//! Choice of the loaded model for embedding and scoring requests that name none.

use hanzo_engine_proto::v1::{Capability, ModelState, ModelStats, ModelStatus};
use tonic::Status;

use crate::{app::App, asker::Asker, error::ApiError};

/// Model to ask, and the capability to use.
#[derive(Debug)]
pub(crate) struct ModelChoice {
    pub(crate) model: String,
    /// First of the wanted capabilities that the model has.
    pub(crate) capability: Capability,
}

/// Selects the model of that name. Without a name, it selects the only one with a `wanted` capability, or among
/// several the only one that does not also generate text. Earlier entries of `wanted` are preferred.
///
/// # Errors
/// 400 if none or several of the loaded models qualify, 404 if none is loaded, 503 while the only one is being
/// loaded.
pub(crate) async fn select(
    app: &App,
    asker: &Asker,
    model: String,
    wanted: &[Capability],
) -> Result<ModelChoice, ApiError> {
    let can = |status: &ModelStatus| wanted.iter().copied().find(|c| has(status, *c));
    let first = wanted.first().copied().unwrap_or(Capability::Unspecified);
    if model.is_empty() {
        let stats = sole(app, asker, wanted).await?.status.unwrap_or_default();
        return Ok(ModelChoice { capability: can(&stats).unwrap_or(first), model: stats.name });
    }
    let capability = match wanted {
        [_, _, ..] => {
            let shown = app.engine(asker).show(model.clone()).await?;
            // A model that is not loaded is judged by its files.
            let files_can = || wanted.iter().copied().find(|c| shown.capabilities().any(|own| own == *c));
            shown.status.as_ref().and_then(can).or_else(files_can)
        }
        _ => None,
    };
    // If it has none of the capabilities, the engine's refusal says what it can do.
    Ok(ModelChoice { model, capability: capability.unwrap_or(first) })
}

/// Only loaded model with the first of the `wanted` capabilities that any model has.
pub(crate) async fn sole(app: &App, asker: &Asker, wanted: &[Capability]) -> Result<ModelStats, ApiError> {
    let mut models = app.engine(asker).stats().await?.models;
    let status = |stats: &ModelStats| stats.status.clone().unwrap_or_default();
    models.retain(|m| {
        !matches!(status(m).state(), ModelState::Unspecified | ModelState::Unloaded | ModelState::Failed)
    });
    // A model that is not ready is chosen only if there is no other; the engine then answers with a 503.
    let ready = |m: &ModelStats| status(m).state() == ModelState::Ready;
    for ready_only in [true, false] {
        for capability in wanted {
            let able = |m: &&ModelStats| (!ready_only || ready(m)) && has(&status(m), *capability);
            let able: Vec<&ModelStats> = models.iter().filter(able).collect();
            // Among several, one that does not generate text is dedicated to the task.
            let made_for_it: Vec<_> = able.iter().copied().filter(|m| !writes(&status(m))).collect();
            let able = if made_for_it.len() == 1 { made_for_it } else { able };
            match able[..] {
                [] => {}
                [model] => return Ok(model.clone()),
                _ => {
                    let names: Vec<String> = able.iter().map(|m| status(m).name).collect();
                    let problem = format!(
                        "several loaded models can {}: {}; name one",
                        word(*capability),
                        names.join(", ")
                    );
                    return Err(ApiError::field("model", problem));
                }
            }
        }
    }
    if let Some(loading) =
        models.iter().find(|m| matches!(status(m).state(), ModelState::Loading | ModelState::Queued))
    {
        return Err(Status::unavailable(format!("model {} is being loaded", status(loading).name)).into());
    }
    if models.is_empty() {
        return Err(Status::not_found("model: none is loaded").into());
    }
    let wanted: Vec<_> = wanted.iter().copied().map(word).collect();
    let loaded: Vec<_> = models.iter().map(|m| described(&status(m))).collect();
    let problem =
        format!("model: none that can {} is loaded; loaded: {}", wanted.join(" or "), loaded.join(", "));
    Err(Status::failed_precondition(problem).into())
}

fn writes(status: &ModelStatus) -> bool {
    has(status, Capability::Chat) || has(status, Capability::Completion)
}

fn has(status: &ModelStatus, capability: Capability) -> bool {
    status.capabilities().any(|c| c == capability)
}

fn described(status: &ModelStatus) -> String {
    let can: Vec<_> = status.capabilities().map(word).collect();
    format!("{} ({})", status.name, can.join(", "))
}

/// Description of a capability for messages.
fn word(capability: Capability) -> &'static str {
    match capability {
        Capability::Unspecified => "do something else",
        Capability::Chat => "chat",
        Capability::Completion => "complete text",
        Capability::Embed => "embed",
        Capability::Rerank => "rerank",
        Capability::Vision => "see images",
        Capability::Audio => "hear",
        Capability::Image => "make images",
        Capability::Classify => "classify",
        Capability::EmbedSparse => "embed sparsely",
        Capability::Tools => "call tools",
        Capability::Infill => "fill in the middle",
        Capability::Reasoning => "reason",
        Capability::Transcribe => "transcribe",
        Capability::Speak => "speak",
    }
}
