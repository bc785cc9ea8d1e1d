//! Inspection of a model's files, even if the model cannot be run. Reports everything readable, and the problems
//! with their reasons. Reads headers and text files, no weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::error::LoadError;
use crate::gguf::{self, Metadata};
use crate::limits::MODEL_PARTS_MAX;
use crate::load::{ModelInfo, TextFiles, generation, huggingface, weights};
use crate::mapped::ModelBytes;
use crate::opened::{Network, OpenedModel};
use crate::safetensors;
use crate::spec::{Config, TransformerSpec};
use crate::tensor::StoredTensor;
use crate::text::TextModel;
use crate::tokenizer::Tokenizer;
use crate::whisper::WhisperSpec;

/// Result of an inspection, as far as the model could be read.
#[derive(Debug)]
pub struct Inspection {
    /// Facts for people and programs.
    pub facts: Facts,
    /// The model, if it can be opened.
    pub opened: Option<OpenedModel>,
    /// The model's text side, if it can be loaded.
    pub text: Option<TextModel>,
}

/// Facts from the files.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// `gguf`, `safetensors`, `pytorch`, `ggml` or `ctranslate2`; empty if the format is unknown.
    pub format: &'static str,
    /// Name of the model in its files.
    pub name: Option<String>,
    /// Model family.
    pub architecture: Option<String>,
    /// Files with weights.
    pub files: Vec<PathBuf>,
    /// Total size of those files.
    pub size_bytes: u64,
    /// Number of parameters in all tensors.
    pub parameters: u64,
    /// Shape of the network.
    pub network: Option<Shape>,
    /// Tensors by type, the type with the most bytes first.
    pub tensors: Vec<OfType>,
    /// Tokenizer.
    pub tokenizer: Option<TokenizerFacts>,
    /// Chat template.
    pub template: Option<TemplateFacts>,
    /// Settings of `generation_config.json` that this build ignores, because requests have no such default.
    pub generation_not_read: Vec<String>,
    /// Inputs besides text that the model was made for and this build does not support: `images`, `audio`.
    pub inputs_not_read: &'static [&'static str],
    /// Parts that cannot be read or run, and why.
    pub problems: Vec<String>,
}

/// Tensors of one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfType {
    /// Type, such as `Q4_K` or `BF16`.
    pub dtype: String,
    /// Number of tensors.
    pub tensors: u64,
    /// Number of parameters in them.
    pub parameters: u64,
    /// Bytes in the files.
    pub bytes: u64,
}

/// Summary of a network. Fields are `None` if the files do not state them, or this build does not know their key.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Shape {
    /// `decoder`, `encoder` or `transcriber`; `None` if this build cannot run it.
    pub kind: Option<&'static str>,
    /// Number of layers.
    pub layers: Option<u64>,
    /// Elements of a hidden state.
    pub hidden: Option<u64>,
    /// Query heads per layer.
    pub heads: Option<u64>,
    /// Key and value heads per layer.
    pub kv_heads: Option<u64>,
    /// Elements of a head.
    pub head_dim: Option<u64>,
    /// Size of the vocabulary.
    pub vocab: Option<u64>,
    /// Maximum tokens of a context or input.
    pub context_tokens_max: Option<u64>,
    /// Attention windows, and the number of layers with each. Layers with full attention are not listed.
    pub windows: Vec<Window>,
    /// Experts.
    pub experts: Option<Experts>,
    /// Rotary embeddings.
    pub ropes: Vec<Rope>,
}

/// Layers with the same sliding window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Size of the window in tokens.
    pub tokens: u64,
    /// Number of layers, if known.
    pub layers: Option<u64>,
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Experts {
    /// Experts per layer.
    pub count: u64,
    /// Experts used for each token.
    pub used: Option<u64>,
    /// Number of layers with experts, if known.
    pub layers: Option<u64>,
}

/// Rotary embedding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// The base of its frequencies.
    pub base: f32,
    /// Rotated elements of a head, if known.
    pub dim: Option<u64>,
    /// Scaling to a longer context: `none`, `yarn (factor 4.0, …)`.
    pub scaling: String,
}

/// Summary of a tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenizerFacts {
    /// Kind, such as `gpt2`, `llama` or `BPE`.
    pub model: Option<String>,
    /// Pre-tokenizer, by its name in GGUF files.
    pub pre: Option<String>,
    /// Number of tokens; `None` if the tokenizer cannot be used.
    pub tokens: Option<u64>,
    /// Number of control tokens.
    pub control_tokens: Option<u64>,
    /// Token that starts a text.
    pub bos: Option<Token>,
    /// Tokens that end a text or a turn.
    pub eos: Vec<Token>,
}

/// Token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Token {
    /// ID.
    pub id: u32,
    /// Text.
    pub text: String,
}

/// Summary of a chat template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TemplateFacts {
    /// Length of its source.
    pub bytes: u64,
    /// Format of the model's tool calls.
    pub tool_format: Option<&'static str>,
    /// The template itself lists the tools.
    pub offers_tools: bool,
    /// Marks at the start and end of a reasoning section.
    pub reasoning: Option<[String; 2]>,
}

/// Inspects a GGUF file, all parts of a split one, or a directory.
pub fn inspect(path: &Path) -> Inspection {
    let mut facts = Facts::default();
    let opened = OpenedModel::open(path);
    let text_files = match () {
        () if path.is_dir() => look_at_directory(path, &mut facts),
        () if crate::whisper::ggml_file(path).is_some() => {
            look_at_ggml(path, &mut facts);
            None
        }
        () => look_at_gguf(path, &mut facts),
    };
    facts.size_bytes = facts.files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    finish(facts, opened, text_files)
}

/// Inspects a GGUF file built into the program.
pub fn inspect_static(name: &str, gguf: &'static [u8]) -> Inspection {
    let mut facts = Facts { format: "gguf", size_bytes: gguf.len() as u64, ..Facts::default() };
    match gguf::census(name, gguf) {
        Ok((metadata, stored)) => {
            count(&stored, &mut facts);
            of_metadata(&metadata, &mut facts);
        }
        Err(error) => facts.problems.push(error.to_string()),
    }
    finish(facts, OpenedModel::from_static(name, gguf), None)
}

fn finish(
    mut facts: Facts,
    opened: Result<OpenedModel, LoadError>,
    text_files: Option<Result<TextFiles, LoadError>>,
) -> Inspection {
    let opened = match opened {
        Ok(opened) => {
            facts.format = opened.info().format;
            facts.inputs_not_read = opened.info().not_read;
            facts.name = Some(opened.info().name.clone());
            facts.architecture = Some(opened.info().architecture.clone());
            facts.network = match &opened.network {
                Network::Decoder(files) => Some(shape("decoder", &files.spec)),
                Network::Encoder(files) => Some(shape("encoder", &files.spec)),
                Network::Whisper(files) => Some(whisper_shape(&files.spec)),
                // A transformer is the smallest part of a voice.
                Network::Voice(_) => None,
            };
            Some(opened)
        }
        Err(error) => {
            // The reason why the model cannot be opened comes before other problems.
            facts.problems.insert(0, error.to_string());
            None
        }
    };
    let text = match (&opened, text_files) {
        (Some(opened), _) => Some((opened.text_files().clone(), opened.text_model())),
        (None, Some(Ok(files))) => {
            let made = TextModel::new(&files, &info_of(&facts), [0, 0], 0);
            Some((files, made))
        }
        (None, Some(Err(error))) => {
            facts.problems.push(error.to_string());
            None
        }
        (None, None) => None,
    };
    let text = text.and_then(|(files, made)| {
        let tokenizer = match &made {
            Ok(text) => Ok(text.tokenizer.clone()),
            Err(_) => Tokenizer::load(&files).map(Into::into),
        };
        facts.tokenizer = Some(tokenizer_facts(&files, tokenizer.as_deref().ok()));
        facts.template =
            files.chat_template.as_ref().map(|source| template_facts(source, made.as_ref().ok()));
        made.map_err(|error| facts.problems.push(error.to_string())).ok()
    });
    facts.problems.dedup();
    Inspection { facts, opened, text }
}

/// Shape of a Whisper model: of its decoder, whose context counts tokens of text.
fn whisper_shape(spec: &WhisperSpec) -> Shape {
    let heads = spec.decoder.heads as u64;
    Shape {
        kind: Some("transcriber"),
        layers: Some((spec.encoder.layers + spec.decoder.layers) as u64),
        hidden: Some(spec.hidden as u64),
        heads: Some(heads),
        kv_heads: Some(heads),
        head_dim: Some((spec.hidden as u64) / heads),
        vocab: Some(spec.vocab as u64),
        context_tokens_max: Some(spec.tokens as u64),
        ..Shape::default()
    }
}

/// Summary of a model that cannot be opened.
fn info_of(facts: &Facts) -> ModelInfo {
    ModelInfo {
        name: facts.name.clone().unwrap_or_default(),
        format: facts.format,
        architecture: facts.architecture.clone().unwrap_or_default(),
        quantization: String::new(),
        parameters: facts.parameters,
        size_bytes: facts.size_bytes,
        context_tokens_max: 0,
        license: None,
        not_read: &[],
        files: facts.files.clone(),
    }
}

/// Inspects a whisper.cpp file. Its tensors are read while it is opened.
fn look_at_ggml(path: &Path, facts: &mut Facts) {
    facts.format = "ggml";
    facts.files = vec![path.to_owned()];
    if let Ok(stored) = crate::whisper::census(path) {
        count(&stored, facts);
    }
}

fn look_at_gguf(path: &Path, facts: &mut Facts) -> Option<Result<TextFiles, LoadError>> {
    let read = |path: &Path| {
        let bytes =
            ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        gguf::census(&path.display().to_string(), &bytes)
    };
    let (mut metadata, mut stored) = match read(path) {
        Ok(read) => read,
        // Opening the model failed for the same reason, which is already reported.
        Err(_) => return None,
    };
    facts.format = "gguf";
    facts.files = gguf::part_files(path, &metadata).unwrap_or_else(|_| vec![path.to_owned()]);
    for (index, file) in facts.files.iter().enumerate().filter(|(_, file)| *file != path) {
        match read(file) {
            Ok((other, more)) => {
                stored.extend(more);
                // The first part holds the model's keys.
                if index == 0 {
                    metadata = other;
                }
            }
            Err(error) => facts.problems.push(error.to_string()),
        }
    }
    count(&stored, facts);
    of_metadata(&metadata, facts);
    Some(crate::load::gguf::text_files(&metadata.into()))
}

fn look_at_directory(directory: &Path, facts: &mut Facts) -> Option<Result<TextFiles, LoadError>> {
    facts.name = Some(huggingface::name_of(directory));
    let is_weights = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "safetensors");
    facts.files = listed_of(directory, MODEL_PARTS_MAX).into_iter().filter(is_weights).collect();
    let mut stored = Vec::new();
    if facts.files.is_empty() {
        if let Ok(weights) = weights::open(directory) {
            facts.format = weights.format;
            stored.extend(weights.tensors.iter().map(|tensor| StoredTensor {
                dtype: tensor.dtype.to_string(),
                elements: tensor.elements() as u64,
                bytes: tensor.bytes.len() as u64,
            }));
            facts.files = weights.files;
        } else if let Some(file) = crate::whisper::converted(directory) {
            facts.format = "ctranslate2";
            facts.files = vec![file];
        } else if let Some(file) = crate::whisper::ggml_file(directory) {
            look_at_ggml(&file, facts);
        }
    } else {
        facts.format = "safetensors";
        for file in &facts.files {
            match safetensors::census(file) {
                Ok(more) => stored.extend(more),
                Err(error) => facts.problems.push(error.to_string()),
            }
        }
    }
    count(&stored, facts);
    let config = huggingface::read_config(directory, "config.json").ok()??;
    of_config(&config, facts);
    let generation = huggingface::read_config(directory, "generation_config.json").ok().flatten();
    facts.generation_not_read = generation.as_ref().map(generation::not_read).unwrap_or_default();
    Some(huggingface::text_files(directory, &config, generation.as_ref(), None))
}

/// Files of a directory in order of name; at most `files_max`.
fn listed_of(directory: &Path, files_max: usize) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.take(files_max).map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn count(stored: &[StoredTensor], facts: &mut Facts) {
    let mut types: BTreeMap<&str, OfType> = BTreeMap::new();
    for tensor in stored {
        let of_type = types.entry(&tensor.dtype).or_insert_with(|| OfType {
            dtype: tensor.dtype.clone(),
            tensors: 0,
            parameters: 0,
            bytes: 0,
        });
        of_type.tensors += 1;
        of_type.parameters = of_type.parameters.saturating_add(tensor.elements);
        of_type.bytes = of_type.bytes.saturating_add(tensor.bytes);
    }
    facts.tensors = types.into_values().collect();
    facts.tensors.sort_by_key(|of_type| std::cmp::Reverse(of_type.bytes));
    facts.parameters = facts.tensors.iter().fold(0, |all, of_type| all.saturating_add(of_type.parameters));
}

/// Facts from GGUF keys that are common to all families.
fn of_metadata(metadata: &Metadata, facts: &mut Facts) {
    let text = |key: &str| metadata.string(key).ok().flatten().map(str::to_owned);
    facts.name = text("general.name");
    facts.architecture = text("general.architecture");
    let Some(family) = &facts.architecture else { return };
    let number = |key: &str| {
        let found = metadata.u32(&format!("{family}.{key}")).ok().flatten();
        found.map(u64::from).filter(|&number| number > 0)
    };
    let base = metadata.f32(&format!("{family}.rope.freq_base")).ok().flatten();
    let scaling = text(&format!("{family}.rope.scaling.type")).unwrap_or_else(|| "none".into());
    facts.network = Some(Shape {
        kind: None,
        layers: number("block_count"),
        hidden: number("embedding_length"),
        heads: number("attention.head_count"),
        kv_heads: number("attention.head_count_kv"),
        head_dim: number("attention.key_length"),
        vocab: number("vocab_size"),
        context_tokens_max: number("context_length"),
        windows: number("attention.sliding_window")
            .map(|tokens| Window { tokens, layers: None })
            .into_iter()
            .collect(),
        experts: number("expert_count").map(|count| Experts {
            count,
            used: number("expert_used_count"),
            layers: None,
        }),
        ropes: base
            .map(|base| Rope { base, dim: number("rope.dimension_count"), scaling })
            .into_iter()
            .collect(),
    });
}

/// Facts from `config.json` keys that are common to all families.
fn of_config(config: &Config, facts: &mut Facts) {
    facts.architecture = config.string("model_type").ok().flatten().map(str::to_owned);
    // Multimodal models keep the text model's settings apart.
    let text = config.object("text_config").ok().flatten();
    let number = |keys: &[&str]| {
        let found = |key: &&str| {
            let own = text.as_ref().and_then(|text| text.get(key));
            own.or_else(|| config.get(key)).and_then(Value::as_u64).filter(|&number| number > 0)
        };
        keys.iter().find_map(found)
    };
    let base = config.f32("rope_theta").ok().flatten();
    let scaling = ["rope_scaling", "rope_parameters"].into_iter().find_map(|key| {
        let scaling = config.get(key)?;
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type"))?;
        Some(kind.as_str()?.to_owned())
    });
    facts.network = Some(Shape {
        kind: None,
        layers: number(&["num_hidden_layers", "n_layer", "num_layers"]),
        hidden: number(&["hidden_size", "n_embd", "d_model"]),
        heads: number(&["num_attention_heads", "n_head", "num_heads"]),
        kv_heads: number(&["num_key_value_heads", "multi_query_group_num"]),
        head_dim: number(&["head_dim"]),
        vocab: number(&["vocab_size"]),
        context_tokens_max: number(&["max_position_embeddings", "n_positions", "seq_length"]),
        windows: number(&["sliding_window"])
            .map(|tokens| Window { tokens, layers: None })
            .into_iter()
            .collect(),
        experts: number(&["num_experts", "n_routed_experts", "num_local_experts"]).map(|count| Experts {
            count,
            used: number(&["num_experts_per_tok", "moe_top_k"]),
            layers: None,
        }),
        ropes: base
            .map(|base| Rope { base, dim: None, scaling: scaling.unwrap_or_else(|| "none".into()) })
            .into_iter()
            .collect(),
    });
}

/// Shape of a network that this build runs.
fn shape(kind: &'static str, spec: &TransformerSpec) -> Shape {
    let heads = spec.heads();
    let mut windows: BTreeMap<u64, u64> = BTreeMap::new();
    for tokens in spec.layers.iter().filter_map(|layer| layer.attention.window()) {
        *windows.entry(u64::from(tokens)).or_default() += 1;
    }
    let mut experts = spec.layers.iter().filter_map(|layer| layer.mlp.experts());
    Shape {
        kind: Some(kind),
        layers: Some(spec.layers.len() as u64),
        hidden: Some(spec.hidden as u64),
        heads: Some(heads.heads as u64),
        kv_heads: Some(heads.kv_heads as u64),
        head_dim: Some(heads.head_dim as u64),
        vocab: Some(spec.vocab as u64),
        context_tokens_max: Some(u64::from(spec.context_tokens_max)),
        windows: windows
            .into_iter()
            .map(|(tokens, layers)| Window { tokens, layers: Some(layers) })
            .collect(),
        experts: experts.next().map(|first| Experts {
            count: first.count as u64,
            used: Some(first.used as u64),
            layers: Some(1 + experts.count() as u64),
        }),
        ropes: spec
            .ropes
            .iter()
            .map(|rope| Rope {
                base: rope.base,
                dim: Some(rope.dim as u64),
                scaling: match &rope.long {
                    Some(long) => format!("longrope (original_context {})", long.original_context),
                    None => words(&format!("{:?}", rope.scaling)),
                },
            })
            .collect(),
    }
}

/// Rewrites debug output such as `Yarn { factor: 4.0 }` for people: `yarn (factor 4.0)`.
fn words(debug: &str) -> String {
    let words = debug.to_lowercase().replace(" { ", " (").replace(" }", ")").replace(": ", " ");
    // A linear factor of 1 means no scaling.
    if words == "linear (factor 1.0)" { "none".into() } else { words }
}

fn tokenizer_facts(files: &TextFiles, tokenizer: Option<&Tokenizer>) -> TokenizerFacts {
    let (model, pre) = files.tokenizer.kind();
    let token = |id: u32| {
        let bytes = tokenizer.map_or(&[][..], |tokenizer| tokenizer.token_bytes(id));
        Token { id, text: String::from_utf8_lossy(bytes).into_owned() }
    };
    let control = |tokenizer: &Tokenizer| {
        (0..tokenizer.vocab_size() as u32).filter(|&id| tokenizer.is_special(id)).count() as u64
    };
    TokenizerFacts {
        model,
        pre,
        tokens: tokenizer.map(|tokenizer| tokenizer.vocab_size() as u64),
        control_tokens: tokenizer.map(control),
        bos: files.bos.map(token),
        eos: files.eos.iter().copied().map(token).collect(),
    }
}

fn template_facts(source: &str, text: Option<&TextModel>) -> TemplateFacts {
    let reasoning = text.and_then(|text| text.reasoning.as_ref());
    TemplateFacts {
        bytes: source.len() as u64,
        tool_format: text.and_then(|text| text.tool_format).map(|format| format.name()),
        offers_tools: text.is_some_and(TextModel::offers_tools),
        reasoning: reasoning.map(|markers| [markers.open.clone(), markers.close.clone()]),
    }
}
