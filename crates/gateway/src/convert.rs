//! From the engine's answers to JSON, for the routes that are not OpenAI's generations: models, health, tokens.
//! (`openai::convert` does the same for those.)

use bytes::Bytes;
use hanzo_engine_proto::v1::{self, ModelState, tokenize_request::Input};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    error::ApiError,
    fields::{Field, Fields},
    limits::CHAT_TOOLS_MAX,
    openai::{
        convert,
        models::{Model, RouterStatus},
    },
    vectors::convert::either,
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
    let failed = status.state() == ModelState::Failed;
    let value = match status.state() {
        ModelState::Ready | ModelState::Draining => "loaded",
        ModelState::Loading => "loading",
        ModelState::Unspecified | ModelState::Unloaded | ModelState::Failed => "unloaded",
    };
    Model {
        object: "model",
        created: status.loaded_at_unix_ms / 1000,
        owned_by: owner(&status.name),
        state: state_word(status.state()),
        status: RouterStatus { value, failed },
        error: failed.then_some(status.error),
        max_model_len: (status.context_tokens_max > 0).then_some(status.context_tokens_max),
        id: status.name,
    }
}

fn model_of_store(model: v1::StoredModel) -> Model {
    Model {
        object: "model",
        created: model.modified_at_unix_ms / 1000,
        owned_by: owner(&model.name),
        // One that is loaded under another name answers to its own too.
        state: if model.loaded { "ready" } else { "stored" },
        status: RouterStatus { value: if model.loaded { "loaded" } else { "unloaded" }, failed: false },
        error: None,
        max_model_len: None,
        id: model.name,
    }
}

fn owner(name: &str) -> String {
    name.split_once('/').map_or("hanzo", |(owner, _)| owner).to_owned()
}

/// The f64 that is written with the digits of an f32: `Value` knows f64 alone.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
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
        ModelState::Loading => model["load_progress"] = json!(decimal(status.load_progress)),
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

/// How `/tokenize` shows tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Shown {
    Ids,
    /// vLLM's: a list of the tokens' texts beside the ids.
    Strings,
    /// llama.cpp's: each id with its text.
    Pieces,
}

/// The request of `/tokenize`, and how it is to be answered: `prompt`, or `messages` with the fields of a chat's
/// prompt, as vLLM has them; or `content`, as llama.cpp has it.
pub(crate) fn tokenize_request(mut fields: Fields) -> Result<(v1::TokenizeRequest, Shown), ApiError> {
    let model = convert::model(&mut fields)?;
    let content = fields.take("content");
    // Each server's own default.
    let default = content.is_some().then_some(false);
    let (input, add_special_tokens, parse_special) = match (fields.take("prompt"), content) {
        (Some(_), Some(content)) => {
            return Err(content.error("means the same as prompt; send one of them"));
        }
        (None, None) => {
            let tools_json = tools(&mut fields)?;
            let chat = convert::chat_prompt(&mut fields)?;
            if let Some(field) = fields.take("add_special_tokens")
                && field.boolean()?
            {
                let problem = "not supported with messages: the template says which special tokens there are";
                return Err(ApiError::unsupported("add_special_tokens", problem));
            }
            (Input::Chat(v1::Chat { tools_json, ..chat }), None, None)
        }
        (Some(text), None) | (None, Some(text)) => {
            let add = either(&mut fields, "add_special_tokens", "add_special")?;
            let add = add.map(|field| field.boolean()).transpose()?.or(default);
            let parse = fields.take("parse_special").map(|field| field.boolean()).transpose()?;
            (Input::Text(text.string()?), add, parse)
        }
    };
    let shown = match (fields.flag("return_token_strs")?, fields.flag("with_pieces")?) {
        (true, true) => {
            let problem = "cannot be combined with return_token_strs: tokens are shown in one way";
            return Err(ApiError::field("with_pieces", problem));
        }
        (true, false) => Shown::Strings,
        (false, true) => Shown::Pieces,
        (false, false) => Shown::Ids,
    };
    fields.finish()?;
    let pieces = shown != Shown::Ids;
    let input = Some(input);
    let request = v1::TokenizeRequest { model, input, add_special_tokens, parse_special, pieces };
    Ok((request, shown))
}

/// The tools that a template is shown, each as it came.
fn tools(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let Some(field) = fields.take("tools") else { return Ok(Vec::new()) };
    let tool = |field: Field| match field.value().is_object() {
        true => Ok(field.value().to_text()),
        false => Err(field.error("expected an object")),
    };
    let mut list = field.list()?;
    let tools = list.by_ref().take(CHAT_TOOLS_MAX).map(tool).collect::<Result<_, _>>()?;
    match list.next() {
        Some(_) => Err(field.error(format!("has more than {CHAT_TOOLS_MAX} tools"))),
        None => Ok(tools),
    }
}

/// The answer of `/tokenize`. Written as it is: a JSON value of each id would take up eighteen times the id.
#[derive(Debug, Serialize)]
pub(crate) struct Tokenized {
    tokens: Tokens,
    count: usize,
    max_model_len: u32,
    prompt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Tokens {
    Ids(Vec<u32>),
    Pieces(Vec<Token>),
}

#[derive(Debug, Serialize)]
struct Token {
    id: u32,
    piece: Piece,
}

/// A token's text, or its bytes where it is only a part of a character.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

impl Shown {
    /// The answer of `/tokenize`.
    pub(crate) fn answer(self, answer: v1::TokenizeResponse) -> Tokenized {
        let v1::TokenizeResponse { ids, text, context_tokens_max, pieces } = answer;
        let strings = || pieces.iter().map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
        Tokenized {
            count: ids.len(),
            max_model_len: context_tokens_max,
            prompt: text,
            token_strs: (self == Shown::Strings).then(strings),
            tokens: match self {
                Shown::Ids | Shown::Strings => Tokens::Ids(ids),
                Shown::Pieces => {
                    let token = |(id, piece)| Token { id, piece: Piece::of(piece) };
                    Tokens::Pieces(ids.into_iter().zip(&pieces).map(token).collect())
                }
            },
        }
    }
}

impl Piece {
    fn of(piece: &Bytes) -> Piece {
        match std::str::from_utf8(piece) {
            Ok(text) => Piece::Text(text.to_owned()),
            Err(_) => Piece::Bytes(piece.to_vec()),
        }
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
