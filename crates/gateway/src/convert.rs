//! From the engine's answers to JSON, for the routes that are not OpenAI's generations: models, health, tokens.
//! (`openai::convert` does the same for those.)

use hanzo_engine_proto::v1::{self, ModelState, tokenize_request::Input};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    error::ApiError,
    fields::Fields,
    openai::{convert, models::Model},
};

/// A model's state in JSON.
fn state_word(state: ModelState) -> &'static str {
    match state {
        ModelState::Unspecified => "unknown",
        ModelState::Loading => "loading",
        ModelState::Ready => "ready",
        ModelState::Draining => "draining",
        ModelState::Unloaded => "unloaded",
        ModelState::Failed => "failed",
    }
}

/// The models in memory, the ready ones first, then those that are only stored; by name.
pub(crate) fn models_of(stats: v1::StatsResponse, list: v1::ListResponse) -> Vec<Model> {
    let mut loaded: Vec<Model> =
        stats.models.into_iter().filter_map(|m| m.status).map(model_of_status).collect();
    loaded.sort_by_key(|model| (model.state != "ready", model.id.clone()));
    let mut stored: Vec<Model> = list.models.into_iter().map(model_of_store).collect();
    stored.retain(|model| loaded.iter().all(|other| other.id != model.id));
    stored.sort_by(|a, b| a.id.cmp(&b.id));
    loaded.append(&mut stored);
    loaded
}

/// A model as the engine shows it, under the name it was asked for if it has none.
pub(crate) fn model_of_show(id: String, shown: v1::ShowResponse) -> Model {
    match (shown.status, shown.model) {
        (Some(status), _) => model_of_status(status),
        (None, stored) => {
            let stored = stored.unwrap_or_default();
            let name = if stored.name.is_empty() { id } else { stored.name.clone() };
            model_of_store(v1::StoredModel { name, ..stored })
        }
    }
}

fn model_of_status(status: v1::ModelStatus) -> Model {
    Model {
        object: "model",
        created: status.loaded_at_unix_ms / 1000,
        owned_by: owner(&status.name),
        state: state_word(status.state()),
        max_model_len: (status.context_tokens_max > 0).then_some(status.context_tokens_max),
        id: status.name,
    }
}

fn model_of_store(model: v1::StoredModel) -> Model {
    Model {
        object: "model",
        created: model.modified_at_unix_ms / 1000,
        owned_by: owner(&model.name),
        state: "stored",
        max_model_len: None,
        id: model.name,
    }
}

fn owner(name: &str) -> String {
    name.split_once('/').map_or("hanzo", |(owner, _)| owner).to_owned()
}

/// One model's part of `/health`.
pub(crate) fn model_health(stats: &v1::ModelStats) -> Value {
    let status = stats.status.clone().unwrap_or_default();
    let used = f64::from(stats.kv_blocks_used) / f64::from(stats.kv_blocks_total.max(1));
    let mut model = json!({
        "name": status.name,
        "state": state_word(status.state()),
        "device": status.device,
        "context_tokens_max": status.context_tokens_max,
        "requests_running": status.requests_running,
        "requests_waiting": status.requests_waiting,
        "queue_capacity": stats.queue_capacity,
        "kv": {
            "blocks_total": stats.kv_blocks_total,
            "blocks_used": stats.kv_blocks_used,
            "blocks_cached": stats.kv_blocks_cached,
            "block_tokens": stats.kv_block_tokens,
            "utilization": used,
        },
    });
    match status.state() {
        ModelState::Loading => model["load_progress"] = json!(status.load_progress),
        ModelState::Failed => model["error"] = json!(status.error),
        _ => {}
    }
    model
}

/// The engine's part of `/health`.
pub(crate) fn engine_health(stats: &v1::StatsResponse) -> Value {
    json!({
        "version": stats.version,
        "uptime_ms": stats.uptime_ms,
        "memory_budget_bytes": stats.memory_budget_bytes,
        "memory_used_bytes": stats.memory_used_bytes,
    })
}

/// The request of `/tokenize`: `prompt`, or `messages` with the fields of a chat's prompt.
pub(crate) fn tokenize_request(mut fields: Fields) -> Result<v1::TokenizeRequest, ApiError> {
    let model = convert::model(&mut fields)?;
    let (input, add_special_tokens, parse_special) = match fields.take("prompt") {
        Some(prompt) => {
            let mut flag = |name: &str| fields.take(name).map(|field| field.boolean()).transpose();
            let (add, parse) = (flag("add_special_tokens")?, flag("parse_special")?);
            (Input::Text(prompt.string()?), add, parse)
        }
        None => (Input::Chat(convert::chat_prompt(&mut fields)?), None, None),
    };
    fields.finish()?;
    Ok(v1::TokenizeRequest { model, input: Some(input), add_special_tokens, parse_special })
}

/// The answer of `/tokenize`. Written as it is: a JSON value of each id would take up eighteen times the id.
#[derive(Debug, Serialize)]
pub(crate) struct Tokenized {
    tokens: Vec<u32>,
    count: usize,
    max_model_len: u32,
    prompt: String,
}

/// The answer of `/tokenize`.
pub(crate) fn tokenize_answer(answer: v1::TokenizeResponse) -> Tokenized {
    Tokenized {
        count: answer.ids.len(),
        tokens: answer.ids,
        max_model_len: answer.context_tokens_max,
        prompt: answer.text,
    }
}

/// The request of `/detokenize`: `tokens`, and whether to leave special ones out.
pub(crate) fn detokenize_request(mut fields: Fields) -> Result<v1::DetokenizeRequest, ApiError> {
    let model = convert::model(&mut fields)?;
    let ids = fields.require("tokens")?.token_ids()?;
    let skip_special_tokens = fields.flag("skip_special_tokens")?;
    fields.finish()?;
    Ok(v1::DetokenizeRequest { model, ids, skip_special_tokens })
}

/// The word that `/tokenize` and `/detokenize` have for a field of the engine's requests.
pub(crate) fn tokens_field(engine: &str) -> String {
    match engine {
        "text" | "input" => "prompt",
        "ids" => "tokens",
        word => word,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::{self, ModelState};

    use super::models_of;

    #[test]
    fn ready_models_come_first_and_none_comes_twice() {
        let status = |name: &str, state: ModelState| v1::ModelStats {
            status: Some(v1::ModelStatus {
                name: name.to_owned(),
                state: state.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let stored = |name: &str| v1::StoredModel { name: name.to_owned(), ..Default::default() };
        let stats = v1::StatsResponse {
            models: vec![status("a/loading", ModelState::Loading), status("z/ready", ModelState::Ready)],
            ..Default::default()
        };
        let list = v1::ListResponse { models: vec![stored("q/pulled"), stored("z/ready"), stored("b")] };
        let models: Vec<_> =
            models_of(stats, list).into_iter().map(|m| (m.id, m.state, m.owned_by)).collect();
        let expected = [
            ("z/ready", "ready", "z"),
            ("a/loading", "loading", "a"),
            ("b", "stored", "hanzo"),
            ("q/pulled", "stored", "q"),
        ];
        assert_eq!(models, expected.map(|(id, state, owner)| (id.to_owned(), state, owner.to_owned())));
    }
}
