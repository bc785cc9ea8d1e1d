//! Files of text-to-speech models: network kind, settings, tensors and voices. `crates/voice` computes with them.
//! Three forms are known: Kokoro's folder as its makers publish it (`config.json`, one `.pth`, `voices/`), a VITS
//! of transformers (`config.json`, `vocab.json`, safetensors; MMS-TTS), and Piper's pair of `NAME.onnx` and
//! `NAME.onnx.json`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::chat::ChatOpening;
use crate::error::LoadError;
use crate::limits::{VOICE_FILE_BYTES_MAX, VOICES_MAX};
use crate::load::weights::{self, Weights};
use crate::load::{ModelInfo, TextFile, TextFiles, TokenizerSource, huggingface, size_bytes};
use crate::tensor::Tensor;
use crate::{onnx, pytorch, regular};

/// Maximum phonemes or letters of a piece for a VITS, which has no limit itself.
const LETTERS_MAX: usize = 512;

/// Kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoiceKind {
    /// github.com/hexgrad/kokoro.
    Kokoro,
    /// transformers' `VitsModel`.
    Vits,
    /// github.com/OHF-Voice/piper1-gpl: a VITS with the tensor names of its original code.
    Piper,
}

/// Text-to-speech model, opened.
#[derive(Debug)]
pub struct VoiceFiles {
    /// General information about the model.
    pub info: ModelInfo,
    /// Phonemes or letters as a tokenizer.
    pub text: TextFiles,
    /// Kind of network.
    pub kind: VoiceKind,
    /// Settings, as stored in the file.
    pub config: Value,
    /// Name of the settings file, for errors.
    pub config_file: String,
    /// Weights, under the file's names.
    pub tensors: Vec<Tensor>,
    /// Vectors of its voices, ordered by name; empty if the network holds its own.
    pub voices: Vec<(String, Tensor)>,
    /// Symbols (phonemes or letters) and their numbers.
    pub vocab: Vec<(String, u32)>,
}

impl VoiceFiles {
    /// Opens a folder, or Piper's file; `None` if it is no text-to-speech model.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key, tensor or file in it.
    pub(crate) fn open(path: &Path) -> Result<Option<VoiceFiles>, LoadError> {
        if !path.is_dir() {
            let is_onnx = path.extension().is_some_and(|extension| extension == "onnx");
            return if is_onnx { piper(path, path).map(Some) } else { Ok(None) };
        }
        let config_path = path.join("config.json");
        if !config_path.exists() {
            return match &files_of(path, &["onnx"])?[..] {
                [model] if settings_of(model).exists() => piper(path, model).map(Some),
                _ => Ok(None),
            };
        }
        let settings = TextFile::Settings.read_object(&config_path)?;
        let config = Value::Object(settings);
        match () {
            () if config.get("istftnet").is_some() && config.get("plbert").is_some() => {
                kokoro(path, &config_path, config).map(Some)
            }
            () if config["model_type"] == "vits" => vits(path, &config_path, config).map(Some),
            () => Ok(None),
        }
    }
}

/// Path of the settings file of Piper's model.
fn settings_of(model: &Path) -> PathBuf {
    let mut name = model.as_os_str().to_owned();
    name.push(".json");
    PathBuf::from(name)
}

/// Files of a folder with one of these extensions, by name.
fn files_of(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::Io { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| extensions.contains(&extension)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn corrupt(file: &Path, what: &str, reason: impl Into<String>) -> LoadError {
    LoadError::Corrupt { file: file.display().to_string(), what: what.to_owned(), reason: reason.into() }
}

fn missing(file: &Path, what: &str, hint: &str) -> LoadError {
    LoadError::Missing { file: file.display().to_string(), what: what.to_owned(), hint: hint.to_owned() }
}

/// Reads symbols and their numbers.
fn vocabulary(file: &Path, what: &str, found: Option<&Value>) -> Result<Vec<(String, u32)>, LoadError> {
    let entries = found.and_then(Value::as_object).filter(|entries| !entries.is_empty());
    let wrong = || corrupt(file, what, "expected symbols and their numbers, below 65536");
    let entry = |(symbol, id): (&String, &Value)| {
        // Piper has a list with a single number for each symbol.
        let id = id.as_array().filter(|ids| ids.len() == 1).map_or(id, |ids| &ids[0]);
        let id = id.as_u64().filter(|&id| id < 1 << 16).ok_or_else(wrong)?;
        Ok((symbol.clone(), id as u32))
    };
    entries.ok_or_else(wrong)?.iter().map(entry).collect()
}

/// Text files with a tokenizer of single characters.
fn text_files(file: &Path, vocab: &[(String, u32)]) -> TextFiles {
    const UNKNOWN: &str = "<unk>";
    let mut symbols: Map<String, Value> =
        vocab.iter().map(|(text, id)| (text.clone(), (*id).into())).collect();
    let next = vocab.iter().map(|(_, id)| id + 1).max().unwrap_or(0);
    symbols.entry(UNKNOWN).or_insert(next.into());
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?s)."}, "behavior": "Isolated", "invert": false},
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordPiece", "vocab": symbols, "unk_token": UNKNOWN},
    });
    TextFiles {
        file: file.display().to_string(),
        tokenizer: TokenizerSource::HuggingFace {
            tokenizer_json: tokenizer.to_string().into_bytes(),
            tokenizer_config: None,
        },
        chat_template: None,
        bos: None,
        eos: Vec::new(),
        generation: Default::default(),
        opening: ChatOpening::default(),
    }
}

fn info(
    name: String,
    format: &'static str,
    architecture: &str,
    tensors: &[Tensor],
    tokens_max: usize,
    files: Vec<PathBuf>,
) -> Result<ModelInfo, LoadError> {
    let mut types: Vec<_> = tensors.iter().map(|tensor| tensor.dtype.to_string()).collect();
    types.sort();
    let most = types.chunk_by(|a, b| a == b).max_by_key(|chunk| chunk.len());
    Ok(ModelInfo {
        name,
        format,
        architecture: architecture.to_owned(),
        quantization: most.map_or_else(String::new, |chunk| chunk[0].clone()),
        parameters: tensors.iter().map(|tensor| tensor.elements() as u64).sum(),
        size_bytes: size_bytes(&files)?,
        context_tokens_max: tokens_max as u32,
        license: None,
        not_read: &[],
        files,
    })
}

fn kokoro(folder: &Path, config_file: &Path, config: Value) -> Result<VoiceFiles, LoadError> {
    let weights = files_of(folder, &["pth"])?;
    let [weights] = &weights[..] else {
        let hint = format!("; it has {}, and one is wanted, such as kokoro-v1_0.pth", weights.len());
        return Err(missing(folder, "a .pth file of weights", &hint));
    };
    let mut tensors = pytorch::open(weights)?;
    for tensor in &mut tensors {
        // Weights trained on several devices have `module` in each name.
        if let Some((module, rest)) = tensor.name.split_once(".module.") {
            tensor.name = format!("{module}.{rest}");
        }
    }
    let tokens_max = config.pointer("/plbert/max_position_embeddings").and_then(Value::as_u64).unwrap_or(0);
    let style = config.get("style_dim").and_then(Value::as_u64).unwrap_or(0) as usize;
    let mut files = vec![weights.clone()];
    let mut voices = Vec::new();
    let folder_of_voices = folder.join("voices");
    let found =
        if folder_of_voices.is_dir() { files_of(&folder_of_voices, &["pt", "bin"])? } else { Vec::new() };
    if found.is_empty() {
        let hint = "; Kokoro's are .pt files of PyTorch, or .bin files of 510 × 256 numbers";
        return Err(missing(folder, "voices/", hint));
    }
    if found.len() > VOICES_MAX {
        return Err(corrupt(
            &folder_of_voices,
            "voices",
            format!("{} of them; at most {VOICES_MAX}", found.len()),
        ));
    }
    for path in found {
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        voices.push((name, voice(&path, 2 * style)?));
        files.push(path);
    }
    let vocab = vocabulary(config_file, "vocab", config.get("vocab"))?;
    let name = huggingface::name_of(folder);
    Ok(VoiceFiles {
        info: info(name, "pytorch", "kokoro", &tensors, tokens_max as usize, files)?,
        text: text_files(config_file, &vocab),
        kind: VoiceKind::Kokoro,
        config,
        config_file: config_file.display().to_string(),
        tensors,
        voices,
        vocab,
    })
}

/// Reads a voice: `(lengths, 2 * style)`.
fn voice(path: &Path, width: usize) -> Result<Tensor, LoadError> {
    let wrong = |reason: String| corrupt(path, "voice", reason);
    let mut tensor = if path.extension().is_some_and(|extension| extension == "bin") {
        let bytes = regular::read(path, VOICE_FILE_BYTES_MAX)
            .map_err(|source| LoadError::Io { path: path.to_owned(), source })?
            .ok_or_else(|| wrong(format!("longer than {VOICE_FILE_BYTES_MAX} bytes")))?;
        let shape = vec![bytes.len() / 4];
        if bytes.len() % 4 != 0 {
            return Err(wrong("its length is not that of whole numbers".to_owned()));
        }
        let (file, name) = (path.display().to_string().into(), pytorch::ALONE.to_owned());
        Tensor { file, name, dtype: hanzo_engine_ops::DType::F32, shape, bytes: bytes.into() }
    } else {
        let mut tensors = pytorch::open(path)?;
        if tensors.len() != 1 {
            return Err(wrong(format!("{} tensors; a voice is one", tensors.len())));
        }
        tensors.remove(0)
    };
    let all = tensor.elements();
    if all == 0 || width == 0 || all % width != 0 || all as u64 * 4 > VOICE_FILE_BYTES_MAX {
        return Err(wrong(format!("{all} numbers; rows of {width} are wanted")));
    }
    tensor.shape = vec![all / width, width];
    Ok(tensor)
}

fn vits(folder: &Path, config_file: &Path, mut config: Value) -> Result<VoiceFiles, LoadError> {
    let Weights { tensors, files, format } = weights::open(folder)?;
    let path = folder.join("vocab.json");
    if !path.exists() {
        return Err(missing(folder, "vocab.json", "; it says which letters the model knows"));
    }
    let vocab = vocabulary(&path, "vocab", Some(&Value::Object(TextFile::Settings.read_object(&path)?)))?;
    let path = folder.join("tokenizer_config.json");
    if path.exists() {
        config["tokenizer"] = Value::Object(TextFile::Settings.read_object(&path)?);
    }
    let name = huggingface::name_of(folder);
    Ok(VoiceFiles {
        info: info(name, format, "vits", &tensors, LETTERS_MAX, files)?,
        text: text_files(config_file, &vocab),
        kind: VoiceKind::Vits,
        config,
        config_file: config_file.display().to_string(),
        tensors,
        voices: Vec::new(),
        vocab,
    })
}

fn piper(path: &Path, model: &Path) -> Result<VoiceFiles, LoadError> {
    let config_file = settings_of(model);
    if !config_file.exists() {
        return Err(missing(
            model,
            &config_file.display().to_string(),
            "; Piper keeps a voice's settings there",
        ));
    }
    let config = Value::Object(TextFile::Settings.read_object(&config_file)?);
    let vocab = vocabulary(&config_file, "phoneme_id_map", config.get("phoneme_id_map"))?;
    let tensors = onnx::open(model)?;
    let stem = model.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = if path.is_dir() { huggingface::name_of(path) } else { stem };
    Ok(VoiceFiles {
        info: info(name, "onnx", "piper", &tensors, LETTERS_MAX, vec![model.to_owned()])?,
        text: text_files(&config_file, &vocab),
        kind: VoiceKind::Piper,
        config,
        config_file: config_file.display().to_string(),
        tensors,
        voices: Vec::new(),
        vocab,
    })
}
