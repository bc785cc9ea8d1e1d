//! [`ModelFiles`] from a Hugging Face directory: `config.json`, `generation_config.json`, `tokenizer.json`,
//! `tokenizer_config.json`, `chat_template.jinja` and weights.

use std::path::Path;

use serde_json::Value;

use super::{
    Found, ModelFiles, ModelInfo, TextFile, TextFiles, TokenizerSource, check_tokens, generation, quantised,
    size_bytes,
    weights::{self, Weights},
    word_pieces,
};
use super::{byte_pairs, sentencepiece};
use crate::audio::AudioFiles;
use crate::chat::ChatOpening;
use crate::error::{LoadError, shorten};
use crate::gguf::Metadata;
use crate::limits::VOCAB_MAX;
use crate::override_record::OverrideRecord;
use crate::overrides::Overrides;
use crate::spec::{self, Config, Multimodal, Names, Part, TransformerSpec};
use crate::tensor::Tensor;
use crate::vision::TowerFiles;

pub(crate) fn open(
    directory: &Path,
    overrides: &Overrides,
) -> Result<(ModelFiles, OverrideRecord), LoadError> {
    let name = directory.display().to_string();
    let Some(mut config) = read_config(directory, "config.json")? else {
        return Err(LoadError::Missing {
            file: name,
            what: "config.json".into(),
            hint: "; a model is a GGUF file, or a directory with config.json, tokenizer.json and weights"
                .into(),
        });
    };
    let whole = config.clone();
    let mut multimodal = Multimodal::take(&mut config)?;
    let quantised = quantised::Settings::take(&mut config, directory)?;
    if let Some(multimodal) = &mut multimodal
        && (quantised.is_some() || !TowerFiles::are_said(directory)?)
    {
        multimodal.pass_by(&mut config);
    }
    let Weights { mut tensors, files, format } = weights::open(directory)?;
    let mut beside = multimodal.as_ref().map(|multimodal| multimodal.leave_text(&mut tensors));
    let (mut tensors, rounded) = match &quantised {
        Some(settings) => quantised::assemble(settings, tensors)?,
        None => (tensors, None),
    };
    if let Some(multimodal) = &multimodal {
        let behind = multimodal.unwrap(&mut tensors, &mut config);
        beside.iter_mut().for_each(|beside| beside.extend(behind.clone()));
    }
    settle_bare_network(&tensors, &mut config);
    let watched = overrides.over_config(&mut config)?;
    let mut spec = spec::from_config(&config)?;
    multimodal.iter().for_each(|multimodal| multimodal.cross(&mut spec));
    let generation_config = read_config(directory, "generation_config.json")?;
    let mut text = text_files(directory, &config, generation_config.as_ref(), overrides)?;
    check_tokens(&name, spec.vocab, &text)?;
    let of_text = || spec::huggingface_names(&spec.architecture);
    let names = multimodal.as_ref().map_or_else(of_text, Multimodal::names);
    let mut found = Found::new(&name, names.of_spec(&spec), tensors)?;
    found.settle_head(&mut spec)?;
    let tensors = found.resolve(&spec)?;
    check_left_out(found, &spec, names)?;
    let media = match (&multimodal, beside) {
        (Some(found), Some(beside)) if quantised.is_none() => {
            MediaTowers::open(directory, &whole, found, beside, &spec)?
        }
        _ => MediaTowers::default(),
    };
    if let Some(tower) = &media.tower {
        tower.spec.fit(&mut spec);
    }
    if let Some(ear) = &media.ear {
        text.chat_template = text.chat_template.or_else(|| ear.spec.template().map(str::to_owned));
    }
    let info = ModelInfo {
        name: name_of(directory),
        format,
        architecture: spec.architecture.clone(),
        quantization: rounded.unwrap_or_else(|| tensors.dominant_type()),
        parameters: tensors.parameters() + media.parameters(),
        size_bytes: size_bytes(&files)?,
        context_tokens_max: spec.context_tokens_max,
        license: None,
        not_read: multimodal.filter(|_| media.are_missing()).map_or(&[], |found| found.not_read()),
        files,
    };
    let MediaTowers { tower, ear } = media;
    Ok((ModelFiles { info, spec, text, tensors, tower, ear, score: None }, watched))
}

/// Checks that the tensors left over are those that the network does not run.
fn check_left_out(found: Found<'_>, spec: &TransformerSpec, names: &Names) -> Result<(), LoadError> {
    // Layers after the last that predict several tokens at once are not run.
    let more = format!("layers.{}.", spec.layers.len());
    let mut harmless: Vec<&str> = Vec::new();
    if spec::predicts_more(&spec.architecture) {
        harmless.extend([&more, "mtp"]);
    }
    let not_read = spec.shared_names(names);
    harmless.extend(not_read.iter().map(String::as_str));
    found.left_out(&spec.architecture, &harmless)?;
    Ok(())
}

/// Tower for pictures or sound beside a text model.
#[derive(Default)]
struct MediaTowers {
    tower: Option<TowerFiles>,
    ear: Option<AudioFiles>,
}

impl MediaTowers {
    /// Opens the tower from `config`, the whole model's settings, and the tensors `beside` the text model's.
    fn open(
        directory: &Path,
        config: &Config,
        multimodal: &Multimodal,
        beside: Vec<Tensor>,
        spec: &TransformerSpec,
    ) -> Result<MediaTowers, LoadError> {
        let mut media = MediaTowers::default();
        if multimodal.sees() {
            media.tower = TowerFiles::open(directory, config, beside, spec)?;
        } else if multimodal.hears() {
            media.ear = AudioFiles::open(directory, config, beside, spec)?;
        }
        Ok(media)
    }

    fn are_missing(&self) -> bool {
        self.tower.is_none() && self.ear.is_none()
    }

    fn parameters(&self) -> u64 {
        self.tower.as_ref().map_or(0, TowerFiles::parameters)
            + self.ear.as_ref().map_or(0, AudioFiles::parameters)
    }
}

/// Name of a model in a directory.
pub(crate) fn name_of(directory: &Path) -> String {
    let path = directory.canonicalize().ok();
    let name = path.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| directory.display().to_string())
}

/// Adapts the settings to a network without a head. Embedders are saved without the generating part: their tensors'
/// names lack its prefix, and there is no head whatever the configuration says.
fn settle_bare_network(tensors: &[Tensor], config: &mut Config) {
    let bare = Names::HUGGING_FACE.of("", Part::TokenEmbedding.weight());
    if tensors.iter().all(|tensor| tensor.name != bare) {
        return;
    }
    config.set("tie_word_embeddings", true.into());
    // `LlamaModel` is the inner part of `LlamaForCausalLM`.
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
    overrides: &Overrides,
) -> Result<TextFiles, LoadError> {
    let tokenizer_config = tokenizer_config(directory)?;
    let mut text = TextFiles {
        file: directory.display().to_string(),
        chat_template: chat_template(directory, tokenizer_config.as_ref())?,
        tokenizer: match &overrides.tokenizer {
            Some(_) => TokenizerSource::none(),
            None => tokenizer_in(directory, tokenizer_config)?,
        },
        bos: config.whole("bos_token_id", VOCAB_MAX)?.map(|token| token as u32),
        eos: end_tokens(config, generation_config)?,
        generation: generation_config.map(generation::defaults).transpose()?.unwrap_or_default(),
        opening: ChatOpening::default(),
    };
    overrides.over_text(&mut text)?;
    Ok(text)
}

/// Settings of a directory's tokenizer.
pub(crate) fn tokenizer_config(directory: &Path) -> Result<Option<Value>, LoadError> {
    let path = directory.join("tokenizer_config.json");
    let kind = match directory.join("tokenizer.json").exists() {
        true => TextFile::TokenizerSettings,
        false => TextFile::TokenizerSettingsAndTokens,
    };
    match path.exists() {
        true => Ok(Some(Value::Object(kind.read_object(&path)?))),
        false => Ok(None),
    }
}

/// Files of tokenizers without a `tokenizer.json`; the first existing one is read.
const TOKENIZER_FILES: &[&str] = &[
    "tekken.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tiktoken.model",
    "qwen.tiktoken",
    "spiece.model",
];

/// Tokenizer of a directory.
fn tokenizer_in(directory: &Path, tokenizer_config: Option<Value>) -> Result<TokenizerSource, LoadError> {
    let file = |name: &str| Some(directory.join(name)).filter(|path| path.exists());
    if let Some(path) = file("tokenizer.json") {
        let tokenizer_json = TextFile::Tokenizer.read(&path)?;
        return Ok(TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config });
    }
    if let Some(path) = TOKENIZER_FILES.iter().find_map(|name| file(name)) {
        return tokenizer_file(&path, tokenizer_config.as_ref());
    }
    if let (Some(vocab), Some(merges)) = (file("vocab.json"), file("merges.txt")) {
        let (vocab, merges) = (TextFile::Tokenizer.read(&vocab)?, TextFile::Tokenizer.read_text(&merges)?);
        let metadata = with_settings(directory, directory, tokenizer_config.as_ref(), |settings| {
            byte_pairs::of_gpt2(settings, &vocab, &merges)
        })?;
        return Ok(TokenizerSource::Gguf(metadata.into()));
    }
    let Some(words) = file("vocab.txt") else {
        return Err(LoadError::Missing {
            file: directory.display().to_string(),
            what: "tokenizer.json".into(),
            hint: format!(
                "; without it {}, vocab.json with merges.txt, or BERT's vocab.txt can be read",
                TOKENIZER_FILES.join(", ")
            ),
        });
    };
    let vocab = TextFile::Vocabulary.read(&words)?;
    let file = directory.display().to_string();
    let tokenizer_json = word_pieces::tokenizer_json(&file, &vocab, tokenizer_config.as_ref())?;
    Ok(TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config })
}

/// Makes metadata from the files next to a tokenizer's file.
fn with_settings(
    file: &Path,
    directory: &Path,
    config: Option<&Value>,
    make: impl FnOnce(&byte_pairs::Settings<'_>) -> Result<Metadata, LoadError>,
) -> Result<Metadata, LoadError> {
    let more_path = directory.join("added_tokens.json");
    let more = match more_path.exists() {
        true => Some(Value::Object(TextFile::Settings.read_object(&more_path)?)),
        false => None,
    };
    let model = read_config(directory, "config.json")?;
    let family = model.as_ref().and_then(|model| model.get("model_type")?.as_str());
    make(&byte_pairs::Settings { file: &file.display().to_string(), config, family, more: more.as_ref() })
}

/// Tokenizer of a file that is not a `tokenizer.json`.
fn tokenizer_file(path: &Path, config: Option<&Value>) -> Result<TokenizerSource, LoadError> {
    let bytes = TextFile::Tokenizer.read(path)?;
    let directory = path.parent().unwrap_or(path);
    let metadata = with_settings(path, directory, config, |settings| {
        if path.extension().is_some_and(|extension| extension == "json") {
            byte_pairs::of_tekken(settings, &bytes)
        } else if byte_pairs::is_tiktoken(&bytes) {
            byte_pairs::of_tiktoken(settings, &bytes)
        } else {
            sentencepiece::metadata(settings.file, &bytes, config, settings.more)
        }
    })?;
    Ok(TokenizerSource::Gguf(metadata.into()))
}

/// Tokenizer of a directory, or of one of its files.
pub(crate) fn tokenizer_at(path: &Path) -> Result<TokenizerSource, LoadError> {
    let directory = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let settings = tokenizer_config(directory)?;
    match name {
        _ if path.is_dir() => tokenizer_in(path, settings),
        // Such a file may have any name with this ending.
        _ if name.ends_with(".json") && !name.starts_with("tekken") => Ok(TokenizerSource::HuggingFace {
            tokenizer_json: TextFile::Tokenizer.read(path)?,
            tokenizer_config: settings,
        }),
        _ => tokenizer_file(path, settings.as_ref()),
    }
}

fn chat_template(directory: &Path, tokenizer_config: Option<&Value>) -> Result<Option<String>, LoadError> {
    let path = directory.join("chat_template.jinja");
    if path.exists() {
        return Ok(Some(TextFile::Template.read_text(&path)?));
    }
    match tokenizer_config.and_then(|config| config.get("chat_template")) {
        None | Some(Value::Null) => of_processor(directory),
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

/// Chat template of a processor of texts and images, if it is in a separate file.
fn of_processor(directory: &Path) -> Result<Option<String>, LoadError> {
    let Some(settings) = read_config(directory, "chat_template.json")? else { return Ok(None) };
    Ok(settings.string("chat_template")?.map(str::to_owned))
}

/// End tokens of both configurations: chat models add theirs to the second.
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
