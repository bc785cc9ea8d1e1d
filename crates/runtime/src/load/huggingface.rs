//! [`ModelFiles`] from a Hugging Face directory: `config.json`, `generation_config.json`, `tokenizer.json`,
//! `tokenizer_config.json`, `chat_template.jinja` and weights.

use std::path::Path;

use serde_json::Value;

use super::{
    Found, GenerationDefaults, ModelFiles, ModelInfo, TextFile, TextFiles, TokenizerSource, check_tokens,
    quantised, size_bytes,
    weights::{self, Weights},
    word_pieces,
};
use crate::chat::Opening;
use crate::error::{LoadError, shorten};
use crate::limits::VOCAB_MAX;
use crate::spec::{self, Config, Names, Part};

pub(super) fn open(directory: &Path) -> Result<ModelFiles, LoadError> {
    let name = directory.display().to_string();
    let Some(mut config) = read_config(directory, "config.json")? else {
        return Err(LoadError::Missing {
            file: name,
            what: "config.json".into(),
            hint: "; a model is a GGUF file, or a directory with config.json, tokenizer.json and weights"
                .into(),
        });
    };
    let quantised = quantised::Settings::take(&mut config, directory)?;
    let Weights { tensors, files, format } = weights::open(directory)?;
    let (tensors, rounded) = match &quantised {
        Some(settings) => quantised::assemble(settings, tensors)?,
        None => (tensors, None),
    };
    let bare = Names::HUGGING_FACE.of("", Part::TokenEmbedding.weight());
    if tensors.iter().any(|tensor| tensor.name == bare) {
        of_bare_network(&mut config);
    }
    let spec = spec::from_config(&config)?;
    let generation_config = read_config(directory, "generation_config.json")?;
    let text = text_files(directory, &config, generation_config.as_ref())?;
    check_tokens(&name, spec.vocab, &text)?;
    let mut found = Found::new(&name, Names::of_model_type(&spec.architecture), tensors)?;
    let tensors = found.resolve(&spec)?;
    found.left_out(&spec.architecture, &[])?;
    let info = ModelInfo {
        name: name_of(directory),
        format,
        architecture: spec.architecture.clone(),
        quantization: rounded.unwrap_or_else(|| tensors.dominant_type()),
        parameters: tensors.parameters(),
        size_bytes: size_bytes(&files)?,
        context_tokens_max: spec.context_tokens_max,
        license: None,
        files,
    };
    Ok(ModelFiles { info, spec, text, tensors, score: None })
}

/// What a model in a directory is called.
pub(crate) fn name_of(directory: &Path) -> String {
    let path = directory.canonicalize().ok();
    let name = path.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| directory.display().to_string())
}

/// Embedders are saved without the part that generates: the names of their tensors lack the prefix of those that have it,
/// and the head is not there whatever the configuration says.
fn of_bare_network(config: &mut Config) {
    config.set("tie_word_embeddings", true.into());
    // `LlamaModel` is what `LlamaForCausalLM` has inside.
    let classes = config.get("architectures").and_then(Value::as_array).cloned().unwrap_or_default();
    let whole = |class: &Value| match class.as_str().and_then(|class| class.strip_suffix("Model")) {
        Some(family) => Value::String(format!("{family}ForCausalLM")),
        None => class.clone(),
    };
    config.set("architectures", classes.iter().map(whole).collect());
}

pub(crate) fn read_config(directory: &Path, name: &str) -> Result<Option<Config>, LoadError> {
    let path = directory.join(name);
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(Config::new(path.display().to_string(), TextFile::Settings.read_object(&path)?)))
}

pub(crate) fn text_files(
    directory: &Path,
    config: &Config,
    generation_config: Option<&Config>,
) -> Result<TextFiles, LoadError> {
    let (whole, words) = (directory.join("tokenizer.json"), directory.join("vocab.txt"));
    if !whole.exists() && !words.exists() {
        return Err(LoadError::Missing {
            file: directory.display().to_string(),
            what: "tokenizer.json".into(),
            hint: "; of other tokenizer files only BERT's vocab.txt can be read".into(),
        });
    }
    let config_path = directory.join("tokenizer_config.json");
    let tokenizer_config = if config_path.exists() {
        Some(Value::Object(TextFile::TokenizerSettings.read_object(&config_path)?))
    } else {
        None
    };
    let tokenizer_json = if whole.exists() {
        TextFile::Tokenizer.read(&whole)?
    } else {
        let vocab = TextFile::Vocabulary.read(&words)?;
        word_pieces::tokenizer_json(&directory.display().to_string(), &vocab, tokenizer_config.as_ref())?
    };
    Ok(TextFiles {
        file: directory.display().to_string(),
        chat_template: chat_template(directory, tokenizer_config.as_ref())?,
        tokenizer: TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config },
        bos: config.whole("bos_token_id", VOCAB_MAX)?.map(|token| token as u32),
        eos: end_tokens(config, generation_config)?,
        generation: generation_config.map(generation).transpose()?.unwrap_or_default(),
        opening: Opening::default(),
    })
}

fn chat_template(directory: &Path, tokenizer_config: Option<&Value>) -> Result<Option<String>, LoadError> {
    let path = directory.join("chat_template.jinja");
    if path.exists() {
        return Ok(Some(TextFile::Template.read_text(&path)?));
    }
    match tokenizer_config.and_then(|config| config.get("chat_template")) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        Some(Value::Array(named)) => Ok(named
            .iter()
            .find(|entry| entry.get("name").is_some_and(|name| name == "default"))
            .and_then(|entry| entry.get("template")?.as_str())
            .map(str::to_owned)),
        Some(other) => Err(LoadError::Corrupt {
            file: directory.join("tokenizer_config.json").display().to_string(),
            what: "key chat_template".into(),
            reason: format!(
                "expected a string or a list of named templates, found {}",
                shorten(other.to_string())
            ),
        }),
    }
}

/// The end tokens of both configurations: chat models add theirs to the second.
fn end_tokens(config: &Config, generation_config: Option<&Config>) -> Result<Vec<u32>, LoadError> {
    const KEY: &str = "eos_token_id";
    let mut tokens = Vec::new();
    for config in [Some(config), generation_config].into_iter().flatten() {
        let values = match config.get(KEY) {
            None => continue,
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        for value in values {
            let token = value.as_u64().and_then(|token| u32::try_from(token).ok());
            tokens.push(token.ok_or_else(|| {
                config.corrupt(KEY, format!("{} is not a token", shorten(value.to_string())))
            })?);
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

fn generation(config: &Config) -> Result<GenerationDefaults, LoadError> {
    let whole = |key| Ok::<_, LoadError>(config.whole(key, u32::MAX as usize)?.map(|number| number as u32));
    Ok(GenerationDefaults {
        do_sample: config.bool("do_sample")?,
        temperature: config.f32("temperature")?,
        top_k: whole("top_k")?,
        top_p: config.f32("top_p")?,
        min_p: config.f32("min_p")?,
        typical_p: config.f32("typical_p")?,
        repetition_penalty: config.f32("repetition_penalty")?,
        max_new_tokens: whole("max_new_tokens")?,
        ..GenerationDefaults::default()
    })
}
