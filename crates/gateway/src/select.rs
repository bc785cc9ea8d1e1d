//! Which loaded model a request for vectors or scores is for, where it may leave that open.

use hanzo_engine_proto::v1::{Capability, ModelState, ModelStats, ModelStatus};
use tonic::Status;

use crate::{app::App, asker::Asker, error::ApiError};

/// The model to ask, and what to ask it for.
#[derive(Debug)]
pub(crate) struct Selected {
    pub(crate) model: String,
    /// The first of what is wanted that the model can do.
    pub(crate) capability: Capability,
}

/// The model of that name; of those that can do what is `wanted` the only one where the name is empty, or the only one
/// that does nothing but such things. The earlier in `wanted`, the rather.
///
/// # Errors
/// 400 where none or several of the loaded models can do it, 404 where none is loaded, 503 while the only one is
/// being loaded.
pub(crate) async fn select(
    app: &App,
    asker: &Asker,
    model: String,
    wanted: &[Capability],
) -> Result<Selected, ApiError> {
    let can = |status: &ModelStatus| wanted.iter().copied().find(|c| has(status, *c));
    let first = wanted.first().copied().unwrap_or(Capability::Unspecified);
    if model.is_empty() {
        let stats = sole(app, asker, wanted).await?.status.unwrap_or_default();
        return Ok(Selected { capability: can(&stats).unwrap_or(first), model: stats.name });
    }
    let capability = match wanted {
        [_, _, ..] => {
            let shown = app.engine(asker).show(model.clone()).await?;
            // One that is not loaded is loaded for what its files can.
            let files_can = || wanted.iter().copied().find(|c| shown.capabilities().any(|own| own == *c));
            shown.status.as_ref().and_then(can).or_else(files_can)
        }
        _ => None,
    };
    // The engine's refusal of a model that can do nothing of it says what it can.
    Ok(Selected { model, capability: capability.unwrap_or(first) })
}

/// The only loaded model that can do the first of what is `wanted` that any can.
pub(crate) async fn sole(app: &App, asker: &Asker, wanted: &[Capability]) -> Result<ModelStats, ApiError> {
    let mut models = app.engine(asker).stats().await?.models;
    let status = |stats: &ModelStats| stats.status.clone().unwrap_or_default();
    models.retain(|m| {
        !matches!(status(m).state(), ModelState::Unspecified | ModelState::Unloaded | ModelState::Failed)
    });
    // One that is not ready yet, or no more, is asked where no other can: the engine says so, with a 503.
    let ready = |m: &ModelStats| status(m).state() == ModelState::Ready;
    for ready_only in [true, false] {
        for capability in wanted {
            let able = |m: &&ModelStats| (!ready_only || ready(m)) && has(&status(m), *capability);
            let able: Vec<&ModelStats> = models.iter().filter(able).collect();
            // Where several can, one that does not also write text is made for it.
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

/// What a model can do, as a message says it.
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
