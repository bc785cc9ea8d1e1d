//! Request fields of OpenAI, llama.cpp's server and vLLM that are known but have no function here. Those that
//! this build cannot honour are refused unless they have a neutral value. Harmless ones are ignored.

use serde_json::{Value, json};

use crate::{error::ApiError, fields::Fields, json::Json};

/// Accepted values of a field without a function.
#[derive(Clone, Copy)]
pub(crate) enum Neutral {
    None,
    EmptyList,
    EmptyObject,
    False,
    True,
    Numbers(&'static [f64]),
    Words(&'static [&'static str]),
    JustText, // the list ["text"]
    /// Any value of this type: the field only qualifies another one that is refused, or something that never
    /// happens here.
    Any(Type),
    /// Value of this type that changes nothing here.
    Ignored(Type),
    /// Value that is shown to the model's template as it is, without a check of its type.
    Passed(Type),
    /// Any value, which changes nothing here.
    Anything,
}

/// JSON type.
#[derive(Clone, Copy)]
pub(crate) enum Type {
    Boolean,
    Number,
    Text,
    Object,
    /// Number or boolean.
    Setting,
}

/// Field name, its accepted values, and an alternative for the others, if there is one.
pub(crate) type Known = (&'static str, Neutral, &'static str);

/// Fields of chats and completions.
pub(crate) const COMMON: [Known; 48] = [
    // vLLM: implementation of constraints.
    ("guided_decoding_backend", Neutral::Any(Type::Text), ""),
    ("guided_whitespace_pattern", Neutral::Any(Type::Text), ""),
    // vLLM: sampling.
    ("use_beam_search", Neutral::False, ""),
    ("length_penalty", Neutral::Numbers(&[1.0]), ""),
    ("watermarking", Neutral::False, ""),
    ("allowed_token_ids", Neutral::None, "logit_bias"),
    ("bad_words", Neutral::EmptyList, "logit_bias"),
    ("repetition_detection", Neutral::None, "repetition_penalty"),
    ("include_reasoning", Neutral::True, ""),
    // vLLM: output. Special tokens are never shown.
    ("skip_special_tokens", Neutral::True, ""),
    ("spaces_between_special_tokens", Neutral::Any(Type::Boolean), ""),
    ("logprob_token_ids", Neutral::None, "logprobs"),
    ("return_tokens_as_token_ids", Neutral::False, ""),
    ("return_token_ids", Neutral::False, "/tokenize"),
    ("return_token_offsets", Neutral::False, ""),
    ("return_mm_kwargs", Neutral::Any(Type::Boolean), ""),
    ("routed_experts_prompt_start", Neutral::Numbers(&[0.0]), ""),
    ("stream_interval", Neutral::Numbers(&[1.0]), ""),
    // vLLM: other fields.
    ("request_id", Neutral::None, "the header x-request-id"),
    ("session_id", Neutral::Any(Type::Text), ""),
    ("kv_transfer_params", Neutral::None, ""),
    ("ec_transfer_params", Neutral::None, ""),
    ("vllm_xargs", Neutral::EmptyObject, ""),
    // llama.cpp: sampling.
    ("min_keep", Neutral::Numbers(&[0.0]), ""),
    ("backend_sampling", Neutral::Any(Type::Boolean), ""),
    // llama.cpp: limits and cache.
    ("t_max_predict_ms", Neutral::Numbers(&[0.0, -1.0]), ""),
    ("n_indent", Neutral::Numbers(&[0.0]), ""),
    // A context shift always discards half.
    ("n_discard", Neutral::Numbers(&[0.0]), ""),
    ("n_cache_reuse", Neutral::Numbers(&[0.0]), ""),
    // Every request can use the prefix cache.
    ("id_slot", Neutral::Any(Type::Number), ""),
    ("lora", Neutral::EmptyList, "an adapter by its name in model, as base:adapter"),
    ("speculative.n_max", Neutral::Any(Type::Number), ""),
    ("speculative.n_min", Neutral::Any(Type::Number), ""),
    ("speculative.p_min", Neutral::Any(Type::Number), ""),
    ("reasoning_format", Neutral::Words(&["auto", "deepseek"]), ""),
    ("reasoning_control", Neutral::False, ""),
    ("parse_tool_calls", Neutral::Any(Type::Boolean), ""),
    // llama.cpp: output.
    ("n_probs", Neutral::Numbers(&[0.0]), "logprobs"),
    ("post_sampling_probs", Neutral::False, "logprobs"),
    ("return_tokens", Neutral::False, "/tokenize"),
    ("timings_per_token", Neutral::False, "the last chunk's timings"),
    ("return_progress", Neutral::False, ""),
    ("response_fields", Neutral::EmptyList, ""),
    ("sse_ping_interval", Neutral::None, "the server's setting sse_keep_alive_s"),
    ("verbose", Neutral::False, ""),
    // Other servers.
    ("keep_alive", Neutral::None, ""),
    ("verbosity", Neutral::Words(&["medium"]), ""),
    ("modalities", Neutral::JustText, ""),
];

pub(crate) const CHAT: [Known; 7] = [
    ("audio", Neutral::None, ""),
    ("web_search_options", Neutral::None, ""),
    // Field of vLLM.
    ("echo", Neutral::False, "continue_final_message"),
    // The template decides which ones there are.
    ("add_special_tokens", Neutral::False, ""),
    ("documents", Neutral::EmptyList, "chat_template_kwargs"),
    ("chat_template", Neutral::None, "chat_template_kwargs"),
    ("return_prompt_text", Neutral::False, "/tokenize"),
];

pub(crate) const COMPLETION: [Known; 7] = [
    // A text has no images.
    ("mm_processor_kwargs", Neutral::EmptyObject, ""),
    ("media_io_kwargs", Neutral::EmptyObject, ""),
    // In a bare text, the place of reasoning is unknown.
    ("thinking_token_budget", Neutral::Numbers(&[-1.0]), "a chat"),
    ("reasoning_budget", Neutral::Numbers(&[-1.0]), "a chat"),
    ("thinking_budget_tokens", Neutral::Numbers(&[-1.0]), "a chat"),
    // Fields of vLLM.
    ("add_special_tokens", Neutral::True, "a prompt of token ids"),
    ("prompt_embeds", Neutral::None, ""),
];

pub(crate) const INFILL: [Known; 1] = [
    // llama.cpp reads it, but has no such limit either.
    ("t_max_prompt_ms", Neutral::Any(Type::Number), ""),
];

/// Fields of Anthropic's messages: about storage, billing and placement at its service.
pub(crate) const ANTHROPIC: [Known; 11] = [
    ("metadata", Neutral::Anything, ""),
    ("cache_control", Neutral::Anything, ""),
    ("betas", Neutral::Anything, ""),
    ("service_tier", Neutral::Anything, ""),
    ("inference_geo", Neutral::Anything, ""),
    ("user_profile_id", Neutral::Anything, ""),
    ("workspace_id", Neutral::Anything, ""),
    ("diagnostics", Neutral::Anything, ""),
    ("speed", Neutral::Words(&["standard"]), ""),
    ("container", Neutral::EmptyList, ""),
    ("mcp_servers", Neutral::EmptyList, ""),
];

/// Fields of a request to load a model: files of the engine's machine.
pub(crate) const MODEL_LOAD: [Known; 1] =
    [("adapters", Neutral::None, "POST /v1/load_lora_adapter when the model is loaded")];

/// Settings of a model that name other files.
pub(crate) const MODEL_FILES: [Known; 3] = [
    ("mmproj", Neutral::None, ELSEWHERE),
    ("tokenizer", Neutral::None, ELSEWHERE),
    ("topology", Neutral::None, ELSEWHERE),
];

const ELSEWHERE: &str = "`hanzo-engine load`, the configuration or gRPC";

/// Fields of a request to load an adapter.
pub(crate) const ADAPTER_PLACE: [Known; 1] =
    [("load_inplace", Neutral::False, "/v1/unload_lora_adapter first")];

/// Fields of a request to unload an adapter: the number that vLLM gives it.
pub(crate) const ADAPTER_NUMBER: [Known; 1] = [("lora_int_id", Neutral::Anything, "")];

/// Fields of a response's prompt.
pub(crate) const RESPONSES: [Known; 9] = [
    ("conversation", Neutral::None, "previous_response_id, or the items themselves"),
    ("prompt", Neutral::None, "instructions and input"),
    ("background", Neutral::False, ""),
    ("background_options", Neutral::None, ""),
    ("context_management", Neutral::EmptyList, "truncation: auto"),
    ("moderation", Neutral::None, ""),
    ("access_programs", Neutral::None, ""),
    ("image", Neutral::None, ""),
    ("personality", Neutral::None, "instructions"),
];

/// Fields of a response that change nothing: Codex's information for its own service.
pub(crate) const RESPONSES_NOTES: [Known; 1] = [("client_metadata", Neutral::Ignored(Type::Object), "")];

/// Fields of a response's `reasoning`.
pub(crate) const RESPONSES_REASONING: [Known; 1] = [("mode", Neutral::Words(&["standard"]), "")];

/// Fields of a response's `text`.
pub(crate) const VERBOSITY: [Known; 1] = [("verbosity", Neutral::Words(&["medium"]), "instructions")];

/// Fields of Ollama's chats and prompts.
pub(crate) const OLLAMA: [Known; 1] = [("_debug_render_only", Neutral::False, "/apply-template")];

/// Options of Ollama's runner about how it uses the machine.
pub(crate) const OLLAMA_RUNNER: [Known; 14] = [
    ("num_batch", Neutral::Ignored(Type::Setting), ""),
    ("num_gpu", Neutral::Ignored(Type::Setting), ""),
    ("main_gpu", Neutral::Ignored(Type::Setting), ""),
    ("num_thread", Neutral::Ignored(Type::Setting), ""),
    ("num_gqa", Neutral::Ignored(Type::Setting), ""),
    ("use_mmap", Neutral::Ignored(Type::Setting), ""),
    ("use_mlock", Neutral::Ignored(Type::Setting), ""),
    ("low_vram", Neutral::Ignored(Type::Setting), ""),
    ("numa", Neutral::Ignored(Type::Setting), ""),
    ("f16_kv", Neutral::Ignored(Type::Setting), ""),
    ("logits_all", Neutral::Ignored(Type::Setting), ""),
    ("vocab_only", Neutral::Ignored(Type::Setting), ""),
    ("embedding_only", Neutral::Ignored(Type::Setting), ""),
    ("draft_num_predict", Neutral::Ignored(Type::Setting), ""),
];

/// Ollama's options for samplers that do not exist here.
pub(crate) const OLLAMA_OPTIONS: [Known; 2] =
    [("tfs_z", Neutral::Numbers(&[1.0]), ""), ("penalize_newline", Neutral::True, "")];

/// Fields of Ollama's downloads.
pub(crate) const OLLAMA_PULL: [Known; 2] =
    [("username", Neutral::Words(&[""]), ""), ("password", Neutral::Words(&[""]), "")];

/// Fields of Ollama's description of a model. `verbose` concerns vocabulary lists, which are always left out.
pub(crate) const OLLAMA_SHOW: [Known; 4] = [
    ("verbose", Neutral::Ignored(Type::Boolean), ""),
    ("system", Neutral::Words(&[""]), ""),
    ("template", Neutral::Words(&[""]), ""),
    ("options", Neutral::EmptyObject, ""),
];

/// Bounds on images, videos or audio that client libraries send.
pub(crate) const MEDIA_BOUNDS: [Known; 18] = [
    ("resized_height", Neutral::None, BOUNDS),
    ("resized_width", Neutral::None, BOUNDS),
    ("total_pixels", Neutral::None, BOUNDS),
    ("nframes", Neutral::None, BOUNDS),
    ("num_frames", Neutral::None, BOUNDS),
    ("min_frames", Neutral::None, BOUNDS),
    ("max_frames", Neutral::None, BOUNDS),
    ("sample_fps", Neutral::None, BOUNDS),
    ("video_start", Neutral::None, BOUNDS),
    ("video_end", Neutral::None, BOUNDS),
    ("min_dynamic_patch", Neutral::None, BOUNDS),
    ("max_dynamic_patch", Neutral::None, BOUNDS),
    ("num_crops", Neutral::None, BOUNDS),
    ("max_crops", Neutral::None, BOUNDS),
    ("max_patches", Neutral::None, BOUNDS),
    ("sampling_rate", Neutral::None, BOUNDS),
    ("audio_start", Neutral::None, BOUNDS),
    ("audio_end", Neutral::None, BOUNDS),
];

const BOUNDS: &str = "min_pixels and max_pixels for pictures, and frames for films";

/// Fields of audio forms.
pub(crate) const TRANSCRIPTION: [Known; 8] = [
    // OpenAI: models that tell speakers apart.
    ("known_speaker_names", Neutral::EmptyList, ""),
    ("known_speaker_references", Neutral::EmptyList, ""),
    // Other servers.
    ("hotwords", Neutral::None, "prompt"),
    ("diarize", Neutral::False, ""),
    ("without_timestamps", Neutral::False, "response_format"),
    ("batch_size", Neutral::None, ""),
    ("to_language", Neutral::None, "/v1/audio/translations"),
    ("max_completion_tokens", Neutral::None, ""),
];

/// Fields of llama.cpp's own completions.
pub(crate) const LLAMA: [Known; 18] = [
    ("t_max_prompt_ms", Neutral::Any(Type::Number), ""),
    ("slot_id", Neutral::Any(Type::Number), ""),
    // Left over from older versions of llama.cpp, which ignores them too.
    ("tfs_z", Neutral::Numbers(&[1.0]), ""),
    ("penalize_nl", Neutral::Any(Type::Boolean), ""),
    ("penalty_prompt", Neutral::EmptyList, ""),
    ("use_penalty_prompt_tokens", Neutral::False, ""),
    ("image_data", Neutral::EmptyList, "/v1/chat/completions"),
    ("system_prompt", Neutral::Words(&[""]), "a prompt that begins with it"),
    ("adaptive_target", Neutral::Numbers(&[-1.0]), ""),
    ("adaptive_decay", Neutral::Any(Type::Number), ""),
    ("grammar_lazy", Neutral::False, ""),
    ("grammar_triggers", Neutral::EmptyList, ""),
    ("preserved_tokens", Neutral::EmptyList, ""),
    ("echo", Neutral::False, "/v1/completions"),
    ("suffix", Neutral::Words(&[""]), "/infill"),
    ("input_prefix", Neutral::Words(&[""]), "/infill"),
    ("input_suffix", Neutral::Words(&[""]), "/infill"),
    ("messages", Neutral::None, "/v1/chat/completions"),
];

/// Fields of llama.cpp's prompt as an object.
pub(crate) const LLAMA_PROMPT: [Known; 1] =
    [("multimodal_data", Neutral::EmptyList, "/v1/chat/completions for pictures")];

/// Alternative for bounds that are not read from the whole request.
const PICTURE_BOUNDS: &str = "min_pixels and max_pixels beside a picture";

pub(crate) const EMBEDDING: [Known; 9] = [
    ("messages", Neutral::None, ""),
    ("late_chunking", Neutral::False, ""),
    // Fields of vLLM.
    ("embed_dtype", Neutral::Words(&["float32"]), ""),
    ("endianness", Neutral::Words(&["little", "native"]), ""),
    ("add_special_tokens", Neutral::True, "token ids"),
    ("request_id", Neutral::None, "the header x-request-id"),
    ("cache_salt", Neutral::None, ""),
    ("mm_processor_kwargs", Neutral::EmptyObject, PICTURE_BOUNDS),
    ("media_io_kwargs", Neutral::EmptyObject, PICTURE_BOUNDS),
];

/// Fields of Cohere's embeddings.
pub(crate) const COHERE: [Known; 1] = [("max_tokens", Neutral::None, "the model's own length (truncate)")];

/// Fields of reranking, scoring and classification.
pub(crate) const SCORES: [Known; 10] = [
    ("max_tokens_per_doc", Neutral::None, ""),
    ("max_tokens_per_query", Neutral::None, ""),
    ("max_chunks_per_doc", Neutral::None, ""),
    ("rank_fields", Neutral::None, ""),
    // Fields of vLLM.
    ("use_activation", Neutral::True, "raw_scores"),
    ("add_special_tokens", Neutral::True, ""),
    ("request_id", Neutral::None, "the header x-request-id"),
    ("cache_salt", Neutral::None, ""),
    ("mm_processor_kwargs", Neutral::EmptyObject, PICTURE_BOUNDS),
    ("media_io_kwargs", Neutral::EmptyObject, PICTURE_BOUNDS),
];

/// Fields beside a schema. An answer always satisfies its schema, so `strict` has no effect.
pub(crate) const SCHEMA_LABELS: [Known; 3] = [
    ("name", Neutral::Ignored(Type::Text), ""),
    ("description", Neutral::Ignored(Type::Text), ""),
    ("strict", Neutral::Ignored(Type::Boolean), ""),
];

/// Choices among vLLM's implementations of constraints. The only one here writes at most one space between JSON
/// tokens.
pub(crate) const STRUCTURED_OUTPUTS: [Known; 2] = [
    ("disable_any_whitespace", Neutral::Ignored(Type::Boolean), ""),
    ("disable_fallback", Neutral::Ignored(Type::Boolean), ""),
];

/// Fields of OpenRouter's `reasoning`. Reasoning is always sent, and never summarised.
pub(crate) const REASONING: [Known; 2] =
    [("exclude", Neutral::False, ""), ("summary", Neutral::Words(&["auto"]), "")];

/// Fields of a function that only the model's template uses.
pub(crate) const FUNCTION_NOTES: [Known; 2] =
    [("description", Neutral::Passed(Type::Text), ""), ("strict", Neutral::Passed(Type::Boolean), "")];

/// Ignored fields of chats, completions, embeddings and scores.
pub(crate) const HARMLESS: [Known; 8] = [
    ("user", Neutral::Ignored(Type::Text), ""),
    ("metadata", Neutral::Ignored(Type::Object), ""),
    ("store", Neutral::Ignored(Type::Boolean), ""),
    ("service_tier", Neutral::Ignored(Type::Text), ""),
    ("safety_identifier", Neutral::Ignored(Type::Text), ""),
    ("prompt_cache_key", Neutral::Ignored(Type::Text), ""),
    ("prompt_cache_retention", Neutral::Ignored(Type::Text), ""),
    ("prompt_cache_options", Neutral::Ignored(Type::Object), ""),
];

/// Fields of tables, each with the schema of its accepted values.
pub(crate) fn schemas(tables: &[&[Known]]) -> impl Iterator<Item = (&'static str, Value)> {
    tables.iter().copied().flatten().map(|(name, neutral, instead)| {
        let mut schema = neutral.schema();
        schema["description"] = match neutral {
            Neutral::Ignored(_) | Neutral::Anything => "Taken, and changes nothing.".into(),
            Neutral::Passed(_) => "Shown to the model's template.".into(),
            _ => neutral.problem(instead).into(),
        };
        (*name, schema)
    })
}

/// Removes the fields of tables from `fields`. A value that is not accepted is an error.
pub(crate) fn refuse(fields: &mut Fields, tables: &[&[Known]]) -> Result<(), ApiError> {
    for (name, neutral, instead) in tables.iter().copied().flatten() {
        let Some(field) = fields.take(name) else { continue };
        match neutral {
            _ if neutral.is(field.value()) => {}
            Neutral::Ignored(expected) => return Err(field.mismatch(expected.word())),
            _ => return Err(ApiError::unsupported(&field.path(), neutral.problem(instead))),
        }
    }
    Ok(())
}

impl Neutral {
    fn is(self, value: Json<'_>) -> bool {
        let word = |value: Json<'_>, word: &str| value.as_str().is_some_and(|text| text == word);
        match self {
            Neutral::None => false,
            Neutral::EmptyList => value.elements().is_some_and(|mut all| all.next().is_none()),
            Neutral::EmptyObject => value.members().is_some_and(|mut all| all.next().is_none()),
            Neutral::False => value.as_bool() == Some(false),
            Neutral::True => value.as_bool() == Some(true),
            Neutral::Numbers(numbers) => value.as_f64().is_some_and(|number| numbers.contains(&number)),
            Neutral::Words(words) => words.iter().any(|one| word(value, one)),
            Neutral::JustText => value.elements().is_some_and(|all| {
                let mut all = all.take(2).map(|value| word(value, "text"));
                all.next() == Some(true) && all.next().is_none()
            }),
            Neutral::Any(kind) | Neutral::Ignored(kind) => kind.is(value),
            Neutral::Passed(_) | Neutral::Anything => true,
        }
    }

    fn schema(self) -> Value {
        match self {
            Neutral::None => json!({"type": "null"}),
            Neutral::EmptyList => json!({"type": "array", "maxItems": 0}),
            Neutral::EmptyObject => json!({"type": "object", "maxProperties": 0}),
            Neutral::False => json!({"enum": [false]}),
            Neutral::True => json!({"enum": [true]}),
            Neutral::Numbers(numbers) => json!({"enum": numbers}),
            Neutral::Words(words) => json!({"enum": words}),
            Neutral::JustText => json!({"enum": [["text"]]}),
            Neutral::Anything => json!({}),
            Neutral::Any(kind) | Neutral::Ignored(kind) | Neutral::Passed(kind) => kind.schema(),
        }
    }

    fn problem(self, instead: &str) -> String {
        let joined = |words: Vec<String>| words.join(" or ");
        let only = match self {
            Neutral::None | Neutral::Anything => String::new(),
            Neutral::EmptyList => "an empty array".to_owned(),
            Neutral::EmptyObject => "an empty object".to_owned(),
            Neutral::False => "false".to_owned(),
            Neutral::True => "true".to_owned(),
            Neutral::Numbers(numbers) => joined(numbers.iter().map(f64::to_string).collect()),
            Neutral::Words(words) => joined(words.iter().map(|word| format!("\"{word}\"")).collect()),
            Neutral::JustText => "[\"text\"]".to_owned(),
            Neutral::Any(kind) | Neutral::Ignored(kind) | Neutral::Passed(kind) => kind.word().to_owned(),
        };
        let mut problem = "not supported by this build".to_owned();
        if !only.is_empty() {
            problem.push_str(&format!("; the only value it accepts is {only}"));
        }
        if !instead.is_empty() {
            problem.push_str(&format!("; use {instead}"));
        }
        problem
    }
}

impl Type {
    fn is(self, value: Json<'_>) -> bool {
        match self {
            Type::Boolean => value.is_boolean(),
            Type::Number => value.is_number(),
            Type::Text => value.is_string(),
            Type::Object => value.is_object(),
            Type::Setting => value.is_number() || value.is_boolean(),
        }
    }

    fn schema(self) -> Value {
        match self {
            Type::Boolean => json!({"type": "boolean"}),
            Type::Number => json!({"type": "number"}),
            Type::Text => json!({"type": "string"}),
            Type::Object => json!({"type": "object"}),
            Type::Setting => json!({"anyOf": [{"type": "number"}, {"type": "boolean"}]}),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Type::Boolean => "a boolean",
            Type::Number => "a number",
            Type::Text => "a string",
            Type::Object => "an object",
            Type::Setting => "a number or a boolean",
        }
    }
}
