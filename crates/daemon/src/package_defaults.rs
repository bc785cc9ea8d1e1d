//! Defaults from a model's package. Ollama's packages have texts beside the weights: sampling options, stop
//! strings, the context length, a system prompt and first messages. They become the loaded model's defaults. They
//! override those of the weights' file, since the packager knew that file; a request's own values override both.
//!
//! The template of such a package is in Go's template language. The file's own template is used first; the
//! package's is translated if the file has none. The template of a model that was created here is Jinja (translated
//! if it was given in Go's language), and overrides the file's.

use hanzo_engine_runtime::{
    OpenedModel, SamplingParams,
    chat::{ChatOpening, Message},
    limits::{STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX},
    load::GenerationDefaults,
    sampler::Mirostat,
    template::{ChatTemplate, go},
};
use hanzo_engine_store::SideTexts;
use serde_json::{Map, Value};

use crate::error::Error;

/// Maximum number of messages before every conversation.
const MESSAGES_MAX: usize = 64;

/// Ollama options that concern running a model and do not affect its output.
const OF_THE_RUNNER: &[&str] = &[
    "num_batch",
    "num_gpu",
    "num_keep",
    "num_thread",
    "main_gpu",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "numa",
    "f16_kv",
];

/// Applies the package's texts to a model as its defaults. Invalid parts are skipped and named in the log.
pub(crate) fn apply(texts: &SideTexts, opened: &mut OpenedModel) {
    let mut left_out = Vec::new();
    if let Some(params) = &texts.params {
        match serde_json::from_str(params) {
            Ok(Value::Object(params)) => {
                let generation = &mut opened.text_files_mut().generation;
                options(&params, generation, &mut left_out);
                opened.context_tokens_default = context(&params, &mut left_out);
            }
            _ => left_out.push("params".to_owned()),
        }
    }
    let messages = texts.messages.as_deref().map_or(Some(Vec::new()), messages).unwrap_or_else(|| {
        left_out.push("messages".to_owned());
        Vec::new()
    });
    let system = texts.system.clone().filter(|system| !system.trim().is_empty());
    opened.text_files_mut().opening = ChatOpening { system, messages };
    let has_own = opened.text_files().chat_template.is_some();
    match &texts.template {
        Some(template) if is_jinja(template) => {
            opened.text_files_mut().chat_template = Some(template.clone());
        }
        Some(template) if !has_own && go::is_go(template) => match go::to_jinja(template) {
            Ok(jinja) => opened.text_files_mut().chat_template = Some(jinja),
            Err(error) => left_out.push(format!("template ({error})")),
        },
        _ => {}
    }
    if !left_out.is_empty() {
        let model = &opened.info().name;
        tracing::warn!(model, left_out = left_out.join(", "), "options of the package are not applied");
    }
}

/// Texts of a model derived from another: the base's texts, with the requested changes.
///
/// # Errors
/// Names the field that could not be applied when the model is loaded.
pub(crate) fn changed(base: SideTexts, asked: Changes) -> Result<SideTexts, Error> {
    let Changes { system, params, messages: before, license, template } = asked;
    let mut texts = base;
    let template =
        template.map(|text| if text.trim().is_empty() { Ok(text) } else { jinja(text) }).transpose()?;
    if let Some(params) = params {
        let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
        let Some(own) = read(&params) else {
            return Err(Error::field("params_json", "must be a JSON object"));
        };
        let mut left_out = Vec::new();
        options(&own, &mut GenerationDefaults::default(), &mut left_out);
        context(&own, &mut left_out);
        if let Some(name) = left_out.first() {
            let reason =
                format!("{name}: not an option that can be applied, or not a value that it can have");
            return Err(Error::field("params_json", reason));
        }
        let mut all = texts.params.as_deref().and_then(read).unwrap_or_default();
        all.extend(own);
        texts.params = (!all.is_empty()).then(|| Value::Object(all).to_string());
    }
    if let Some(text) = before.filter(|text| !text.is_empty()) {
        if messages(&text).is_none() {
            let reason = format!(
                "must be a JSON list of at most {MESSAGES_MAX} objects with a role (system, user or assistant) and content"
            );
            return Err(Error::field("messages_json", reason));
        }
        texts.messages = Some(text);
    }
    let texts_asked =
        [(&mut texts.system, system), (&mut texts.license, license), (&mut texts.template, template)];
    for (slot, text) in texts_asked {
        if let Some(text) = text {
            *slot = Some(text).filter(|text| !text.trim().is_empty());
        }
    }
    Ok(texts)
}

/// Changes to a model's texts.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) system: Option<String>,
    pub(crate) params: Option<String>,
    pub(crate) messages: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) template: Option<String>,
}

/// Converts a template to Jinja: unchanged, or translated from Go's language.
fn jinja(text: String) -> Result<String, Error> {
    if !is_jinja(&text) && !go::is_go(&text) {
        let reason = "has neither {% … %}, as Jinja, nor {{ … }}, as Go's language; left out, the one in the model's files is used";
        return Err(Error::field("template", reason));
    }
    let text = if is_jinja(&text) {
        text
    } else {
        // A template that cannot be translated is an error: a guess would prompt the model differently from its
        // maker.
        let translated = go::to_jinja(&text);
        translated.map_err(|error| {
            Error::field("template", format!("as one in Go's language, because it has no {{% … %}}: {error}"))
        })?
    };
    let read = ChatTemplate::new(&text, "", "", "template");
    read.map_err(|error| Error::field("template", error.to_string()))?;
    Ok(text)
}

/// Whether a template is Jinja; Go's language has no such syntax.
fn is_jinja(template: &str) -> bool {
    template.contains("{%")
}

/// Applies the options of `params`. Names of unknown or invalid options are added to `left_out`.
fn options(params: &Map<String, Value>, defaults: &mut GenerationDefaults, left_out: &mut Vec<String>) {
    for (name, value) in params {
        let mut taken = defaults.clone();
        let number = || value.as_f64().map(|number| number as f32);
        let known = match name.as_str() {
            "temperature" => set(&mut taken.temperature, number()),
            "top_k" => set(&mut taken.top_k, whole(value)),
            "top_p" => set(&mut taken.top_p, number()),
            "min_p" => set(&mut taken.min_p, number()),
            "repeat_penalty" => set(&mut taken.repetition_penalty, number()),
            "frequency_penalty" => set(&mut taken.frequency_penalty, number()),
            "presence_penalty" => set(&mut taken.presence_penalty, number()),
            "typical_p" => set(&mut taken.typical_p, number()),
            "repeat_last_n" => set(&mut taken.repeat_last_n, last_n(value)),
            "mirostat" => set(&mut taken.mirostat, whole(value).filter(|version| matches!(version, 0 | 2))),
            "mirostat_tau" => set(&mut taken.mirostat_tau, number()),
            "mirostat_eta" => set(&mut taken.mirostat_eta, number()),
            // Negative values mean no seed and no limit, which are the defaults here.
            "seed" if value.as_i64().is_some_and(|seed| seed < 0) => true,
            "num_predict" if value.as_i64().is_some_and(|tokens| tokens < 0) => true,
            "seed" => set(&mut taken.seed, value.as_u64()),
            "num_predict" => set(&mut taken.max_new_tokens, whole(value).filter(|tokens| *tokens > 0)),
            "stop" => match stops(value) {
                Some(stop) => {
                    taken.stop = stop;
                    true
                }
                None => false,
            },
            "num_ctx" => true,
            other => OF_THE_RUNNER.contains(&other),
        };
        if known && are_in_range(&taken) {
            *defaults = taken;
        } else {
            left_out.push(name.clone());
        }
    }
}

fn set<T>(slot: &mut Option<T>, value: Option<T>) -> bool {
    let known = value.is_some();
    if known {
        *slot = value;
    }
    known
}

fn whole(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

/// Parses a number of tokens, or -1 for all.
fn last_n(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|tokens| i32::try_from(tokens).ok()).filter(|tokens| *tokens >= -1)
}

/// Parses one or several stop strings, with the limits of a request.
fn stops(value: &Value) -> Option<Vec<String>> {
    let texts = match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(texts) => {
            texts.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()?
        }
        _ => return None,
    };
    let fits = |text: &String| (1..=STOP_STRING_BYTES_MAX).contains(&text.len());
    (texts.len() <= STOP_STRINGS_MAX && texts.iter().all(fits)).then_some(texts)
}

/// Whether a request with these values would be accepted. A bad default must not make every request fail.
fn are_in_range(defaults: &GenerationDefaults) -> bool {
    let neutral = SamplingParams::default();
    let params = SamplingParams {
        temperature: defaults.temperature.unwrap_or(neutral.temperature),
        top_p: defaults.top_p.unwrap_or(neutral.top_p),
        min_p: defaults.min_p.unwrap_or(neutral.min_p),
        repetition_penalty: defaults.repetition_penalty.unwrap_or(neutral.repetition_penalty),
        frequency_penalty: defaults.frequency_penalty.unwrap_or(neutral.frequency_penalty),
        presence_penalty: defaults.presence_penalty.unwrap_or(neutral.presence_penalty),
        typical_p: defaults.typical_p.unwrap_or(neutral.typical_p),
        mirostat: Some(Mirostat {
            tau: defaults.mirostat_tau.unwrap_or(Mirostat::default().tau),
            eta: defaults.mirostat_eta.unwrap_or(Mirostat::default().eta),
        }),
        ..neutral
    };
    // No token id is used, so the vocabulary's size does not matter.
    params.validate(1).is_ok()
}

fn context(params: &Map<String, Value>, left_out: &mut Vec<String>) -> Option<u32> {
    let value = params.get("num_ctx")?;
    let tokens = whole(value).filter(|tokens| *tokens > 0);
    if tokens.is_none() {
        left_out.push("num_ctx".to_owned());
    }
    tokens
}

/// Parses a list of `{"role", "content"}`; `None` for anything else.
fn messages(text: &str) -> Option<Vec<Message>> {
    let list: Vec<Map<String, Value>> = serde_json::from_str(text).ok()?;
    if list.len() > MESSAGES_MAX {
        return None;
    }
    let message = |message: &Map<String, Value>| {
        let text = |key: &str| message.get(key).and_then(Value::as_str).map(str::to_owned);
        let role = text("role").filter(|role| matches!(role.as_str(), "system" | "user" | "assistant"))?;
        Some(Message { role, content: text("content")?, ..Message::default() })
    };
    list.iter().map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ModelSource;

    fn taken(params: &str) -> (GenerationDefaults, Option<u32>) {
        let mut opened = ModelSource::Demo.open().unwrap();
        // The weights' file has lower priority.
        opened.text_files_mut().generation =
            GenerationDefaults { top_k: Some(3), top_p: Some(0.5), ..Default::default() };
        apply(&SideTexts { params: Some(params.to_owned()), ..Default::default() }, &mut opened);
        (opened.text_files().generation.clone(), opened.context_tokens_default)
    }

    #[test]
    fn options_in_other_words_are_defaults() {
        let (taken, context) = taken(
            r#"{"temperature":0.7,"top_k":9,"repeat_penalty":1.1,"num_predict":64,"stop":["x","User:"],"min_p":0.05,
                "seed":42,"presence_penalty":0.5,"frequency_penalty":-0.5,"num_ctx":4096,"num_gpu":1,
                "typical_p":0.75,"repeat_last_n":-1,"mirostat":2,"mirostat_tau":4,"mirostat_eta":0.5}"#,
        );
        let expected = GenerationDefaults {
            do_sample: None,
            temperature: Some(0.7),
            top_k: Some(9),
            top_p: Some(0.5),
            min_p: Some(0.05),
            repetition_penalty: Some(1.1),
            frequency_penalty: Some(-0.5),
            presence_penalty: Some(0.5),
            repeat_last_n: Some(-1),
            typical_p: Some(0.75),
            mirostat: Some(2),
            mirostat_tau: Some(4.0),
            mirostat_eta: Some(0.5),
            seed: Some(42),
            max_new_tokens: Some(64),
            stop: vec!["x".into(), "User:".into()],
            ..Default::default()
        };
        assert_eq!((taken, context), (expected, Some(4096)));
    }

    #[test]
    fn what_no_request_could_ask_for_is_left_out() {
        let long = format!("{:?}", "x".repeat(STOP_STRING_BYTES_MAX + 1));
        let many = format!("{:?}", vec!["x"; STOP_STRINGS_MAX + 1]);
        let values = [
            ("temperature", "[-1, 2.5, \"hot\", null, 1e300]".to_owned()),
            ("top_p", "[0, 1.5, -0.1]".to_owned()),
            ("top_k", "[-1, 1.5, 5000000000]".to_owned()),
            ("repeat_penalty", "[0, -1]".to_owned()),
            ("num_predict", "[-1, -2, 0, 1.5]".to_owned()),
            ("seed", "[-1, 0.5]".to_owned()),
            ("num_ctx", "[0, -1, 5000000000, \"x\"]".to_owned()),
            ("stop", format!("[[\"\"], [1], {{}}, 7, [{long}], {many}]")),
            ("mirostat", "[1, 3, -1, \"2\"]".to_owned()),
            ("mirostat_tau", "[-1, 101]".to_owned()),
            ("mirostat_eta", "[-1, 1.5]".to_owned()),
            ("typical_p", "[0, 1.5]".to_owned()),
            ("repeat_last_n", "[-2, 1.5, 5000000000]".to_owned()),
            ("tfs_z", "[0.5]".to_owned()),
        ];
        let before = taken("{}");
        assert_eq!(before.0.top_k, Some(3));
        for (name, values) in values {
            let values: Vec<Value> = serde_json::from_str(&values).unwrap();
            for value in values {
                assert_eq!(taken(&format!("{{\"{name}\":{value}}}")), before, "{name} {value}");
            }
        }
        for broken in ["", "[]", "7", "{\"stop\":"] {
            assert_eq!(taken(broken), before, "{broken:?}");
        }
        assert_eq!(taken("{\"stop\":\"one\"}").0.stop, ["one"]);
    }

    #[test]
    fn a_template_in_gos_language_becomes_jinja() {
        let made = |template: &str| {
            let asked = Changes { template: Some(template.to_owned()), ..Changes::default() };
            changed(SideTexts::default(), asked)
                .map(|texts| texts.template)
                .map_err(|error| error.to_string())
        };
        let go = "{{ if .System }}{{ .System }}\n{{ end }}{{ .Prompt }}<a>";
        let jinja = made(go).unwrap().unwrap();
        assert!(jinja.contains("{%") && jinja.contains("'<a>'"), "{jinja}");
        assert_eq!(made("{% if x %}{% endif %}").unwrap().as_deref(), Some("{% if x %}{% endif %}"));
        assert_eq!(made(" \n"), Ok(None));
        for (wrong, said) in [
            ("plain", "has neither"),
            ("{{ .Nothing }}", ".Nothing: no field of a conversation"),
            ("a\n{{ template \"x\" }}", "line 2: template: templates that use others"),
            ("{% if %}", "syntax error"),
        ] {
            let error = made(wrong).unwrap_err();
            assert!(error.starts_with("template: ") && error.contains(said), "{error}");
        }
        // A package's template is used only if the file has none.
        let applied = |own: Option<&str>, template: &str| {
            let mut opened = ModelSource::Demo.open().unwrap();
            opened.text_files_mut().chat_template = own.map(str::to_owned);
            apply(&SideTexts { template: Some(template.to_owned()), ..Default::default() }, &mut opened);
            opened.text_files().chat_template.clone()
        };
        assert_eq!(applied(Some("own"), go).as_deref(), Some("own"));
        assert_eq!(applied(Some("own"), &jinja).as_deref(), Some(jinja.as_str()));
        assert_eq!(applied(None, go).as_deref(), Some(jinja.as_str()));
        assert_eq!(applied(None, "{{ .Nothing }}"), None);
        assert_eq!(applied(None, "plain"), None);
    }

    #[test]
    fn a_system_prompt_and_first_messages() {
        let mut opened = ModelSource::Demo.open().unwrap();
        let list = r#"[{"role":"user","content":"1"},{"role":"assistant","content":"2"}]"#;
        let texts = |system: &str, messages: &str| SideTexts {
            system: Some(system.to_owned()),
            messages: Some(messages.to_owned()),
            ..Default::default()
        };
        apply(&texts("Be kind.", list), &mut opened);
        let opening = &opened.text_files().opening;
        assert_eq!((opening.system.as_deref(), opening.messages.len()), (Some("Be kind."), 2));
        assert_eq!(
            (opening.messages[1].role.as_str(), opening.messages[1].content.as_str()),
            ("assistant", "2")
        );
        for broken in [r#"[{"role":"tool","content":"1"}]"#, r#"[{"role":"user"}]"#, "{}", "no"] {
            apply(&texts(" \n", broken), &mut opened);
            let opening = &opened.text_files().opening;
            assert_eq!((&opening.system, opening.messages.len()), (&None, 0), "{broken}");
        }
    }
}
