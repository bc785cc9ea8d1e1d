//! MCP tools: their names, and the JSON schemas of their arguments and results, which clients and models read.

use std::sync::{Arc, LazyLock};

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::error::{ApiError, quote};

/// MCP tool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Name {
    Infer,
    Embed,
    Rerank,
    ListModels,
    Pull,
    Load,
    Unload,
}

const NAMES: [Name; 7] =
    [Name::Infer, Name::Embed, Name::Rerank, Name::ListModels, Name::Pull, Name::Load, Name::Unload];

impl Name {
    /// Tool of that name.
    pub(super) fn of(name: &str) -> Option<Name> {
        NAMES.into_iter().find(|tool| tool.as_str() == name)
    }

    /// Name of the tool.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Name::Infer => "hanzo_infer",
            Name::Embed => "hanzo_embed",
            Name::Rerank => "hanzo_rerank",
            Name::ListModels => "hanzo_list_models",
            Name::Pull => "hanzo_pull",
            Name::Load => "hanzo_load",
            Name::Unload => "hanzo_unload",
        }
    }

    /// Whether the tool needs the admin scope.
    fn is_admin(self) -> bool {
        matches!(self, Name::Pull | Name::Load | Name::Unload)
    }
}

/// Arguments of each tool. Others are refused.
pub(super) const INFER_FIELDS: [&str; 18] = [
    "model",
    "prompt",
    "messages",
    "system",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "stop",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "reasoning_effort",
    "chat_template_kwargs",
    "keep_alive",
    "response_schema",
];
/// See [`INFER_FIELDS`].
pub(super) const EMBED_FIELDS: [&str; 7] =
    ["model", "input", "dimensions", "prompt_name", "instruction", "truncate", "keep_alive"];
/// See [`INFER_FIELDS`].
pub(super) const RERANK_FIELDS: [&str; 8] =
    ["model", "query", "documents", "top_n", "return_documents", "instruction", "truncate", "keep_alive"];
/// See [`INFER_FIELDS`].
pub(super) const PULL_FIELDS: [&str; 4] = ["model", "force", "quantization", "revision"];
/// See [`INFER_FIELDS`].
pub(super) const LOAD_FIELDS: [&str; 4] = ["model", "alias", "context_tokens_max", "keep_alive"];
/// See [`INFER_FIELDS`].
pub(super) const UNLOAD_FIELDS: [&str; 2] = ["model", "force"];

/// Refuses arguments that a tool does not know.
pub(super) fn known(arguments: JsonObject, fields: &[&str]) -> Result<JsonObject, ApiError> {
    match arguments.keys().find(|name| !fields.contains(&name.as_str())) {
        Some(name) if name.len() <= 64 => Err(ApiError::field(name, "unknown argument")),
        Some(name) => Err(ApiError::body(format!("unknown argument {}", quote(name)))),
        None => Ok(arguments),
    }
}

/// Tools that a requester may use.
pub(super) fn of(admin: bool) -> Vec<Tool> {
    static TOOLS: LazyLock<Vec<(Name, Tool)>> =
        LazyLock::new(|| NAMES.into_iter().map(|name| (name, tool(name))).collect());
    TOOLS.iter().filter(|(name, _)| admin || !name.is_admin()).map(|(_, tool)| tool.clone()).collect()
}

fn tool(name: Name) -> Tool {
    let (title, description, input, output) = match name {
        Name::Infer => (
            "Ask a model",
            "Writes text with a language model of this server: give a prompt, or messages. Progress notifications carry the \
             text as it is written.",
            infer_input(),
            infer_output(),
        ),
        Name::Embed => (
            "Embed texts",
            "Turns texts into vectors with an embedding model of this server.",
            embed_input(),
            embed_output(),
        ),
        Name::Rerank => (
            "Rerank documents",
            "Orders documents by how well they answer a query, the best first, with a reranking model of this server.",
            rerank_input(),
            rerank_output(),
        ),
        Name::ListModels => (
            "List models",
            "Lists the models of this server: those in memory, the ready ones first, then those that are stored.",
            object(json!({}), &[]),
            object(json!({"models": {"type": "array", "items": model_schema()}}), &["models"]),
        ),
        Name::Pull => (
            "Pull a model",
            "Fetches a model into this server's store, from Hugging Face, Ollama's registry or a URL. Progress notifications \
             count bytes.",
            pull_input(),
            object(
                json!({"model": text("Name in the store."), "size_bytes": count(), "format": text("gguf or safetensors"), "quantization": text("Such as Q8_0.")}),
                &["model"],
            ),
        ),
        Name::Load => (
            "Load a model",
            "Brings a stored model into memory.",
            load_input(),
            object(
                json!({"model": text("Name to ask it by."), "state": text("ready once it answers"), "context_tokens_max": count(), "load_ms": {"type": "integer", "minimum": 0, "description": "0: it was loaded already."}}),
                &["model", "state"],
            ),
        ),
        Name::Unload => (
            "Unload a model",
            "Takes a model out of memory; it stays in the store.",
            unload_input(),
            object(
                json!({"model": text("Its name."), "state": text("Its last state.")}),
                &["model", "state"],
            ),
        ),
    };
    let annotations = ToolAnnotations::from_raw(
        Some(title.to_owned()),
        Some(!name.is_admin()),
        Some(name == Name::Unload),
        Some(!matches!(name, Name::Infer)),
        Some(name == Name::Pull),
    );
    Tool::new(name.as_str(), description, Arc::new(input))
        .with_title(title)
        .with_raw_output_schema(Arc::new(output))
        .with_annotations(annotations)
}

fn object(properties: Value, required: &[&str]) -> JsonObject {
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    let Value::Object(mut schema) = schema else { return JsonObject::new() };
    if required.is_empty() {
        schema.remove("required");
    }
    schema
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn number(low: f64, high: f64, description: &str) -> Value {
    json!({"type": "number", "minimum": low, "maximum": high, "description": description})
}

fn model_name() -> Value {
    text("Name of a model, see hanzo_list_models; may be left out where only one can do it.")
}

fn keep_alive() -> Value {
    json!({"type": ["string", "number"], "description": "How long a model that is loaded for this stays: seconds, or a time such as 5m."})
}

fn infer_input() -> JsonObject {
    let message = json!({
        "type": "object",
        "properties": {"role": {"type": "string", "enum": ["system", "user", "assistant"]}, "content": {"type": "string"}},
        "required": ["role", "content"],
    });
    let properties = json!({
        "model": model_name(),
        "prompt": text("What to ask; or else messages."),
        "messages": {"type": "array", "items": message, "minItems": 1, "description": "A conversation; or else prompt."},
        "system": text("System message, before all others."),
        "temperature": number(0.0, 2.0, "0: always the most likely token."),
        "top_p": number(0.0, 1.0, "Draw from the likeliest tokens that make up this much."),
        "top_k": {"type": "integer", "minimum": -1, "description": "Draw from so many likeliest tokens."},
        "min_p": number(0.0, 1.0, "Draw from tokens at least so likely, in parts of the likeliest."),
        "max_tokens": {"type": "integer", "minimum": 1, "description": "Longest answer."},
        "stop": {"type": ["string", "array"], "items": {"type": "string"}, "description": "Where the answer ends."},
        "seed": {"type": "integer", "description": "The same seed gives the same answer."},
        "frequency_penalty": number(-2.0, 2.0, "Less of what was said often."),
        "presence_penalty": number(-2.0, 2.0, "Less of what was said."),
        "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "description": "Over 1: less of what was said."},
        "reasoning_effort": text("How much a model reasons first, such as none, low, medium, high."),
        "chat_template_kwargs": {"type": "object", "description": "Variables of the model's chat template."},
        "keep_alive": keep_alive(),
        "response_schema": {"type": "object", "description": "A JSON schema that the answer is made to satisfy."},
    });
    object(properties, &[])
}

fn infer_output() -> JsonObject {
    let usage = object(
        json!({"prompt_tokens": count(), "completion_tokens": count(), "total_tokens": count(), "cached_tokens": count(), "reasoning_tokens": count()}),
        &["prompt_tokens", "completion_tokens", "total_tokens"],
    );
    let properties = json!({
        "model": text("The model that answered."),
        "text": text("The answer."),
        "reasoning": text("What the model reasoned first."),
        "finish_reason": {"type": "string", "enum": ["stop", "length", "tool_calls"]},
        "usage": usage,
    });
    object(properties, &["model", "text", "finish_reason", "usage"])
}

fn embed_input() -> JsonObject {
    let properties = json!({
        "model": model_name(),
        "input": {"type": ["string", "array"], "items": {"type": "string"}, "description": "A text, or several."},
        "dimensions": {"type": "integer", "minimum": 1, "description": "Shorter vectors, of a model that was made for that."},
        "prompt_name": text("One of the model's own prompts, such as query."),
        "instruction": text("What the vectors are for, of a model that takes instructions."),
        "truncate": {"type": "boolean", "description": "Cut texts that are too long, instead of refusing them."},
        "keep_alive": keep_alive(),
    });
    object(properties, &["input"])
}

fn embed_output() -> JsonObject {
    let vector = object(
        json!({"index": count(), "embedding": {"type": "array", "items": {"type": "number"}}}),
        &["index", "embedding"],
    );
    let properties = json!({
        "model": text("The model that answered."),
        "embeddings": {"type": "array", "items": vector, "description": "In the order of the texts."},
        "prompt_tokens": count(),
    });
    object(properties, &["model", "embeddings", "prompt_tokens"])
}

fn rerank_input() -> JsonObject {
    let properties = json!({
        "model": model_name(),
        "query": text("What is looked for."),
        "documents": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "top_n": {"type": "integer", "minimum": 0, "description": "Answer so many of the best; 0: all."},
        "return_documents": {"type": "boolean", "description": "Answer the documents' texts too."},
        "instruction": text("What makes a document relevant, of a model that takes instructions."),
        "truncate": {"type": "boolean", "description": "Cut texts that are too long, instead of refusing them."},
        "keep_alive": keep_alive(),
    });
    object(properties, &["query", "documents"])
}

fn rerank_output() -> JsonObject {
    let ranked = object(
        json!({"index": count(), "relevance_score": {"type": "number"}, "document": {"type": "string"}}),
        &["index", "relevance_score"],
    );
    let properties = json!({
        "model": text("The model that answered."),
        "results": {"type": "array", "items": ranked, "description": "The best first; index is the document's place."},
        "prompt_tokens": count(),
    });
    object(properties, &["model", "results", "prompt_tokens"])
}

fn model_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "state": {"type": "string", "description": "ready, loading, queued, draining or failed in memory, stored on disk."},
            "max_model_len": {"type": "integer", "description": "Tokens of prompt and answer together."},
        },
        "required": ["id", "state"],
    })
}

fn pull_input() -> JsonObject {
    let properties = json!({
        "model": text("Such as qwen/qwen3-4b, ollama://llama3.2:3b or a URL."),
        "force": {"type": "boolean", "description": "Fetch again what is here."},
        "quantization": text("Such as Q4_K_M."),
        "revision": text("Branch, tag or commit."),
    });
    object(properties, &["model"])
}

fn load_input() -> JsonObject {
    let properties = json!({
        "model": text("Name of a stored model."),
        "alias": text("Serve it under this name instead."),
        "context_tokens_max": {"type": "integer", "minimum": 1, "description": "Longest prompt and answer together."},
        "keep_alive": keep_alive(),
    });
    object(properties, &["model"])
}

fn unload_input() -> JsonObject {
    let properties = json!({
        "model": text("Name of a loaded model."),
        "force": {"type": "boolean", "description": "End its running requests with an error instead of letting them finish."},
    });
    object(properties, &["model"])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{
        EMBED_FIELDS, INFER_FIELDS, LOAD_FIELDS, NAMES, Name, PULL_FIELDS, RERANK_FIELDS, UNLOAD_FIELDS, of,
    };

    #[test]
    fn schemas_name_just_what_is_read() {
        for tool in of(true) {
            let read: &[&str] = match Name::of(&tool.name).unwrap() {
                Name::Infer => &INFER_FIELDS,
                Name::Embed => &EMBED_FIELDS,
                Name::Rerank => &RERANK_FIELDS,
                Name::ListModels => &[],
                Name::Pull => &PULL_FIELDS,
                Name::Load => &LOAD_FIELDS,
                Name::Unload => &UNLOAD_FIELDS,
            };
            let properties = tool.input_schema["properties"].as_object().unwrap();
            let said: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
            assert_eq!(said, read.iter().copied().collect(), "{}", tool.name);
            assert!(tool.output_schema.is_some());
        }
    }

    #[test]
    fn the_operators_tools_are_the_operators() {
        assert_eq!(of(true).len(), NAMES.len());
        let names: Vec<_> = of(false).into_iter().map(|tool| tool.name).collect();
        assert_eq!(names, ["hanzo_infer", "hanzo_embed", "hanzo_rerank", "hanzo_list_models"]);
    }
}
