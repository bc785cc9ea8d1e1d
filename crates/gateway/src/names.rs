//! Client's names of the engine's fields in a request, so that an error names a field that the client has sent.

use crate::{config::Config, error::ApiError, fields::Fields};

/// Engine's fields with their names in client APIs. If a client has sent several, the first is reported.
const NAMES: [(&str, &[&str]); 75] = [
    ("model", &["model", "reference"]),
    ("suffix", &["suffix", "input_suffix"]),
    ("infill", &["input_extra"]),
    ("reasoning", REASONING),
    ("prompt", PROMPT),
    ("chat", PROMPT),
    ("text", PROMPT),
    ("tokens", PROMPT),
    ("input", PROMPT),
    ("messages", &["messages", "input", "prompt"]),
    ("tools", &["tools", "functions"]),
    ("tools_json", &["tools", "functions"]),
    ("tool_use", &["tool_choice", "function_call", "parallel_tool_calls", "tools"]),
    ("named", &["tool_choice", "function_call"]),
    (
        "template_kwargs_json",
        &["chat_template_kwargs", "reasoning_effort", "enable_thinking", "thinking", "reasoning", "think"],
    ),
    ("add_generation_prompt", &["add_generation_prompt", "continue_final_message"]),
    ("continue_final_message", &["continue_final_message"]),
    ("temperature", &["temperature"]),
    ("top_k", &["top_k"]),
    ("top_p", &["top_p"]),
    ("min_p", &["min_p"]),
    ("repetition_penalty", &["repetition_penalty", "repeat_penalty"]),
    ("typical_p", &["typical_p"]),
    ("dynatemp_range", &["dynatemp_range"]),
    ("dynatemp_exponent", &["dynatemp_exponent"]),
    ("top_n_sigma", &["top_n_sigma"]),
    ("xtc_probability", &["xtc_probability"]),
    ("xtc_threshold", &["xtc_threshold"]),
    ("mirostat", &["mirostat"]),
    ("mirostat_tau", &["mirostat_tau"]),
    ("mirostat_eta", &["mirostat_eta"]),
    ("dry_multiplier", &["dry_multiplier"]),
    ("dry_base", &["dry_base"]),
    ("dry_allowed_length", &["dry_allowed_length"]),
    ("dry_penalty_last_n", &["dry_penalty_last_n"]),
    ("dry_sequence_breakers", &["dry_sequence_breakers"]),
    ("repeat_last_n", &["repeat_last_n"]),
    ("frequency_penalty", &["frequency_penalty"]),
    ("presence_penalty", &["presence_penalty"]),
    ("logit_bias", &["logit_bias"]),
    ("seed", &["seed"]),
    ("max_tokens", &["max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict", "num_predict"]),
    ("min_tokens", &["min_tokens"]),
    ("strings", STOP),
    ("stop", STOP),
    ("token_ids", &["stop_token_ids"]),
    ("stop_token_ids", &["stop_token_ids"]),
    ("include_stop_string", &["include_stop_str_in_output"]),
    ("ignore_eos", &["ignore_eos"]),
    ("constraint", CONSTRAINT),
    ("choices", &["n", "n_cmpl"]),
    ("top_logprobs", &["top_logprobs", "n_probs", "logprobs"]),
    ("logprobs", &["logprobs"]),
    ("priority", &["priority"]),
    ("echo", &["echo"]),
    ("keep_alive", &["keep_alive"]),
    ("dimensions", &["dimensions"]),
    ("normalize", &["normalize", "normalized", "embd_normalize", "use_activation"]),
    ("truncate", &["truncate", "truncate_prompt_tokens"]),
    ("truncate_prompt_tokens", &["truncate_prompt_tokens"]),
    ("context_shift", &["context_shift", "shift"]),
    ("keep_tokens", &["n_keep", "num_keep"]),
    ("cache_salt", &["cache_salt"]),
    ("cache_prompt", &["cache_prompt"]),
    ("truncate_side", &["truncation_direction", "truncation_side", "truncate"]),
    ("prompt_name", &["prompt_name", "task"]),
    ("instruction", &["instruction", "task_instruction"]),
    ("raw_scores", &["raw_scores"]),
    ("add_special_tokens", &["add_special_tokens", "add_special"]),
    ("parse_special", &["parse_special"]),
    ("pieces", &["return_token_strs", "with_pieces"]),
    ("ids", &["tokens"]),
    // Set by the gateway.
    ("output", &[]),
    ("request_id", &[]),
    ("client", &[]),
];

const STOP: &[&str] = &["stop", "stop_sequences"];

const CONSTRAINT: &[&str] = &[
    "output_config",
    "text",
    "output_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "grammar",
    "response_format",
    "format",
];

/// Fields about how long a model may reason.
const REASONING: &[&str] = &[
    "reasoning",
    "thinking",
    "thinking_token_budget",
    "thinking_budget",
    "thinking_budget_tokens",
    "reasoning_budget",
    "reasoning_budget_tokens",
    "think",
];

const PROMPT: &[&str] = &["messages", "prompt", "content", "input"];

/// Names of the table that a body contains.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentFields {
    words: Vec<&'static str>,
    options: Vec<&'static str>, // names inside the object `options`
    messages_as_one: bool,      // the client's messages differ from the engine's
}

impl SentFields {
    /// Names in a body that has not been read yet.
    pub(crate) fn of(body: &Fields<'_>) -> SentFields {
        let mut sent = Vec::new();
        for word in NAMES.iter().flat_map(|(_, words)| words.iter().copied()) {
            if body.gives(word) && !sent.contains(&word) {
                sent.push(word);
            }
        }
        SentFields { words: sent, ..SentFields::default() }
    }

    /// Names in a body that has some of them in an object `options`.
    pub(crate) fn of_ollama(body: &Fields<'_>) -> SentFields {
        let mut own = body.clone();
        let options = own.take("options").and_then(|field| field.object().ok());
        let options = options.map(|options| SentFields::of(&options).words).unwrap_or_default();
        SentFields { options, ..SentFields::of(body) }
    }

    /// From now on errors name `messages` as a whole, because the client's messages are not the engine's.
    pub(crate) fn know_messages_as_one(&mut self) {
        self.messages_as_one = true;
    }

    /// Extends `read` to also return the names in the body.
    pub(crate) fn beside<T>(
        read: impl FnOnce(Fields<'_>, &Config) -> Result<T, ApiError>,
    ) -> impl FnOnce(Fields<'_>, &Config) -> Result<(T, SentFields), ApiError> {
        move |fields, config| {
            let sent = SentFields::of(&fields);
            Ok((read(fields, config)?, sent))
        }
    }

    /// Client's name of a field of the engine's request, such as `chat.messages[2].content`. `None`: the client
    /// has sent no such field.
    pub(crate) fn name(&self, engine: &str) -> Option<String> {
        let nested = ["sampling.", "chat.", "stop."].iter().find_map(|outer| engine.strip_prefix(outer));
        let path = nested.unwrap_or(engine);
        let (field, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
        let Some((_, words)) = NAMES.iter().find(|(name, _)| *name == field) else {
            return Some(path.to_owned());
        };
        let Some(word) = words.iter().find(|word| self.words.contains(word)) else {
            let word = words.iter().find(|word| self.options.contains(word))?;
            return Some(format!("options.{word}{rest}"));
        };
        if self.messages_as_one && matches!(*word, "messages" | "input") {
            return Some((*word).to_owned());
        }
        // In OpenAI's format, a tool call's name is one object deeper.
        let rest = match rest.split_once("].tool_calls[").and_then(|(_, call)| call.split_once("].")) {
            Some((_, field @ ("name" | "arguments_json"))) => {
                let http = if field == "name" { "function.name" } else { "function.arguments" };
                format!("{}{http}", rest.strip_suffix(field).unwrap_or(rest))
            }
            _ => rest.to_owned(),
        };
        Some(format!("{word}{rest}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::SentFields;
    use crate::fields::fields_of;

    fn name(body: Value, engine: &str) -> Option<String> {
        SentFields::of(&fields_of(&body, false)).name(engine)
    }

    #[test]
    fn a_field_has_the_name_that_was_sent() {
        for (body, engine, expected) in [
            (json!({"max_tokens": 1}), "max_tokens", Some("max_tokens")),
            (json!({"max_completion_tokens": 1}), "stop.max_tokens", Some("max_completion_tokens")),
            (json!({"n_predict": 1}), "max_tokens", Some("n_predict")),
            (json!({"max_tokens": null, "n": 1}), "max_tokens", None),
            (json!({"n": 2}), "choices", Some("n")),
            (json!({"n_cmpl": 2}), "choices", Some("n_cmpl")),
            (json!({"messages": []}), "prompt", Some("messages")),
            (json!({"messages": []}), "chat.messages[3].role", Some("messages[3].role")),
            (json!({"prompt": ""}), "tokens[7]", Some("prompt[7]")),
            (json!({"prompt": ""}), "prompt", Some("prompt")),
            (json!({"content": ""}), "text", Some("content")),
            (json!({"logprobs": 2}), "top_logprobs", Some("logprobs")),
            (json!({"stop": "x"}), "stop.strings[1]", Some("stop[1]")),
            (json!({"stop": "x"}), "stop", Some("stop")),
            (json!({"stop_token_ids": []}), "stop.token_ids", Some("stop_token_ids")),
            (json!({"reasoning_effort": "low"}), "template_kwargs_json", Some("reasoning_effort")),
            (json!({"temperature": 1}), "sampling.temperature", Some("temperature")),
            (json!({"truncate": "START"}), "truncate_side", Some("truncate")),
            (json!({"use_activation": false}), "normalize", Some("use_activation")),
            (json!({"task": "x"}), "prompt_name", Some("task")),
            (json!({}), "output", None),
            (json!({}), "model", None),
            (json!({}), "not.in[the].table", Some("not.in[the].table")),
            (
                json!({"messages": []}),
                "messages[1].tool_calls[2].name",
                Some("messages[1].tool_calls[2].function.name"),
            ),
        ] {
            assert_eq!(name(body.clone(), engine).as_deref(), expected, "{body} {engine}");
        }
    }
}
