//! Files of an opened Whisper model: its shape, its text files, its makers' settings for decoding, and its tensors
//! by transformers' names, whichever library wrote them. Every shape is checked; weights are read when they are
//! packed.

use std::collections::BTreeMap;
use std::path::Path;

use hanzo_engine_ops::DType;
use serde_json::Value;

use super::spec::WhisperSpec;
use super::{ctranslate2, ggml};
use crate::chat::ChatOpening;
use crate::error::LoadError;
use crate::load::{
    ModelInfo, PackedType, TextFiles, TokenizerSource, has_same_numbers,
    huggingface::{name_of, read_config},
    packed_summary, size_bytes,
    weights::{self, Weights},
};
use crate::mapped::ModelBytes;
use crate::network::{Isq, IsqRule, isq_types_by_name};
use crate::override_record::OverrideRecord;
use crate::overrides::Overrides;
use crate::spec::Config;
use crate::tensor::Tensor;

/// Names of the token embedding and of the output head.
const EMBEDDING: &str = "decoder.embed_tokens.weight";
const HEAD: &str = "proj_out.weight";

/// Makers' settings for decoding.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Guidance {
    /// Tokens that are never sampled; `None`: those without speech in every Whisper model.
    pub(crate) suppressed: Option<Vec<u32>>,
    /// Whether it supports other languages than English.
    pub(crate) multilingual: Option<bool>,
    /// Layers and heads of the cross-attention that align with the sound; `None`: those of the last layers.
    pub(crate) alignment_heads: Option<Vec<(usize, usize)>>,
}

/// Whisper model, opened.
#[derive(Debug)]
pub struct WhisperFiles {
    /// General information about the model.
    pub info: ModelInfo,
    /// Shape.
    pub spec: WhisperSpec,
    /// Text files.
    pub text: TextFiles,
    pub(crate) guidance: Guidance,
    tensors: BTreeMap<String, Tensor>,
    /// Types that matrices are quantised to at packing, by the names of `tensors`.
    packed: BTreeMap<String, PackedType>,
}

/// Whether a `config.json` belongs to a Whisper model.
fn is_whisper(config: &Config) -> bool {
    config.get("model_type").and_then(Value::as_str) == Some("whisper")
}

impl WhisperFiles {
    /// Opens a directory with a Whisper model of transformers, CTranslate2 or whisper.cpp, or a whisper.cpp file.
    /// Returns `None` for other models.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key, tensor or file in it.
    pub(crate) fn open(
        directory: &Path,
        overrides: &Overrides,
    ) -> Result<Option<(WhisperFiles, OverrideRecord)>, LoadError> {
        if let Some(file) = super::ggml_file(directory) {
            return Self::from_ggml(&file, overrides).map(Some);
        }
        if !directory.is_dir() {
            return Ok(None);
        }
        let config = read_config(directory, "config.json")?;
        if super::converted(directory).is_some() {
            let name = directory.join("config.json").display().to_string();
            let mut config = config.unwrap_or_else(|| Config::new(name, serde_json::Map::new()));
            return Self::from_ctranslate2(directory, &mut config, overrides).map(Some);
        }
        match config {
            Some(mut config) if is_whisper(&config) => {
                Self::from_directory(directory, &mut config, overrides).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Opens a directory of transformers.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key, tensor or file in it.
    pub(crate) fn from_directory(
        directory: &Path,
        config: &mut Config,
        overrides: &Overrides,
    ) -> Result<(WhisperFiles, OverrideRecord), LoadError> {
        let watched = overrides.over_config(config)?;
        let spec = WhisperSpec::from_config(config)?;
        let generation = read_config(directory, "generation_config.json")?;
        let text = overrides.text_files(directory, config, None)?;
        let guidance = guidance([generation.as_ref(), Some(config)])?;
        let Weights { tensors, files, format } = weights::open(directory)?;
        let by_name = |mut tensor: Tensor| {
            if let Some(own) = tensor.name.strip_prefix("model.") {
                tensor.name = own.to_owned();
            }
            (tensor.name.clone(), tensor)
        };
        let tensors = tensors.into_iter().map(by_name).collect();
        let info = info_of(directory, format, &spec, size_bytes(&files)?, files);
        Ok((Self::checked(info, spec, text, guidance, tensors)?, watched))
    }

    /// Opens a directory of CTranslate2.
    ///
    /// # Errors
    /// As for [`WhisperFiles::from_directory`].
    pub(crate) fn from_ctranslate2(
        directory: &Path,
        config: &mut Config,
        overrides: &Overrides,
    ) -> Result<(WhisperFiles, OverrideRecord), LoadError> {
        let watched = overrides.over_config(config)?;
        let path = directory.join(ctranslate2::FILE);
        let (spec, tensors) = ctranslate2::open(&path)?;
        let text = overrides.text_files(directory, config, None)?;
        let guidance = Guidance {
            suppressed: tokens(config, "suppress_ids")?,
            multilingual: None,
            alignment_heads: alignment_heads(config)?,
        };
        let files = vec![path];
        let info = info_of(directory, "ctranslate2", &spec, size_bytes(&files)?, files);
        Ok((Self::checked(info, spec, text, guidance, tensors)?, watched))
    }

    /// Opens a file of whisper.cpp.
    ///
    /// # Errors
    /// As for [`WhisperFiles::from_directory`].
    fn from_ggml(path: &Path, overrides: &Overrides) -> Result<(WhisperFiles, OverrideRecord), LoadError> {
        let ggml::GgmlFile { spec, tokenizer_json, tensors } = ggml::open(path)?;
        let file = path.display().to_string();
        let watched = overrides.over_config(&mut Config::new(file.clone(), serde_json::Map::new()))?;
        let mut text = TextFiles {
            file,
            tokenizer: TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config: None },
            chat_template: None,
            bos: None,
            eos: Vec::new(),
            generation: Default::default(),
            opening: ChatOpening::default(),
        };
        overrides.over_text(&mut text)?;
        let alignment_heads = ggml::alignment_heads(&spec);
        let guidance = Guidance { suppressed: None, multilingual: None, alignment_heads };
        let files = vec![path.to_owned()];
        let mut info = info_of(path, "ggml", &spec, size_bytes(&files)?, files);
        info.name = path.file_stem().map_or(info.name, |stem| stem.to_string_lossy().into_owned());
        Ok((Self::checked(info, spec, text, guidance, tensors)?, watched))
    }

    fn checked(
        info: ModelInfo,
        spec: WhisperSpec,
        text: TextFiles,
        guidance: Guidance,
        tensors: BTreeMap<String, Tensor>,
    ) -> Result<WhisperFiles, LoadError> {
        let mut files = WhisperFiles { info, spec, text, guidance, tensors, packed: BTreeMap::new() };
        files.check()?;
        let count = files.tensors.values().map(|tensor| tensor.elements() as u64).sum();
        files.info.parameters = count;
        files.info.quantization = files.dominant_type();
        if let Some(heads) = &files.guidance.alignment_heads {
            let decoder = files.spec.decoder;
            if let Some((layer, head)) =
                heads.iter().find(|(layer, head)| *layer >= decoder.layers || *head >= decoder.heads)
            {
                return Err(LoadError::Corrupt {
                    file: files.text.file,
                    what: "key alignment_heads".into(),
                    reason: format!("there is no head {head} of layer {layer}"),
                });
            }
        }
        Ok(files)
    }

    /// Type in which most bytes of the matrices are stored.
    fn dominant_type(&self) -> String {
        let mut bytes_of = BTreeMap::new();
        for tensor in self.tensors.values().filter(|tensor| tensor.shape.len() > 1) {
            *bytes_of.entry(tensor.dtype).or_insert(0u64) += tensor.bytes.len() as u64;
        }
        let dominant = bytes_of.into_iter().max_by_key(|&(_, bytes)| bytes);
        dominant.map_or_else(|| "unknown".to_owned(), |(dtype, _)| dtype.to_string())
    }

    /// Checks that every tensor is there with its shape, and that no unknown tensor is left. Known tensors without
    /// effect are dropped.
    fn check(&mut self) -> Result<(), LoadError> {
        self.settle_head();
        let WhisperSpec { mels, hidden, rows, tokens, vocab, .. } = self.spec;
        let mut want = vec![
            ("encoder.conv1.weight".to_owned(), vec![hidden, mels, 3]),
            ("encoder.conv1.bias".to_owned(), vec![hidden]),
            ("encoder.conv2.weight".to_owned(), vec![hidden, hidden, 3]),
            ("encoder.conv2.bias".to_owned(), vec![hidden]),
            ("encoder.embed_positions.weight".to_owned(), vec![rows, hidden]),
            (EMBEDDING.to_owned(), vec![vocab, hidden]),
            ("decoder.embed_positions.weight".to_owned(), vec![tokens, hidden]),
        ];
        let mut pair = |name: String, outputs: usize, inputs: Option<usize>| {
            let shape = [Some(outputs), inputs].into_iter().flatten().collect();
            want.push((format!("{name}.weight"), shape));
            want.push((format!("{name}.bias"), vec![outputs]));
        };
        for (side, stack) in [("encoder", self.spec.encoder), ("decoder", self.spec.decoder)] {
            pair(format!("{side}.layer_norm"), hidden, None);
            for layer in 0..stack.layers {
                let of = |part: &str| format!("{side}.layers.{layer}.{part}");
                let attentions: &[&str] =
                    if side == "decoder" { &["self_attn", "encoder_attn"] } else { &["self_attn"] };
                for attention in attentions {
                    for part in ["q_proj", "v_proj", "k_proj", "out_proj"] {
                        pair(of(&format!("{attention}.{part}")), hidden, Some(hidden));
                    }
                    pair(of(&format!("{attention}_layer_norm")), hidden, None);
                }
                pair(of("fc1"), stack.ffn, Some(hidden));
                pair(of("fc2"), hidden, Some(stack.ffn));
                pair(of("final_layer_norm"), hidden, None);
            }
        }
        want.extend(self.spec.own_head.then(|| (HEAD.to_owned(), vec![vocab, hidden])));
        let mut rest = std::mem::take(&mut self.tensors);
        for (name, shape) in want {
            let Some(mut tensor) = rest.remove(&name) else {
                // Keys have no bias.
                if name.ends_with("k_proj.bias") {
                    self.tensors.insert(name.clone(), zeros(&self.text.file, name, shape[0]));
                    continue;
                }
                return Err(LoadError::Missing {
                    file: self.text.file.clone(),
                    what: format!("tensor {name}"),
                    hint: String::new(),
                });
            };
            tensor.check_shape(&shape)?;
            // A convolution is a product of neighbouring rows, whose columns are in this order.
            if let [outputs, inputs, taps] = shape[..] {
                tensor.shape = vec![outputs, inputs * taps];
            }
            self.tensors.insert(name, tensor);
        }
        match rest.keys().next() {
            None => Ok(()),
            Some(name) => Err(LoadError::Unsupported {
                file: self.text.file.clone(),
                key: format!("tensor {name}"),
                value: "present".into(),
                reason: "no Whisper model that is known here has it".into(),
            }),
        }
    }

    /// Decides from the stored matrices whether a tied head is its own matrix, as for other families.
    fn settle_head(&mut self) {
        if self.spec.own_head {
            return;
        }
        let Some(mut head) = self.tensors.remove(HEAD) else { return };
        match self.tensors.get(EMBEDDING) {
            None => {
                head.name = EMBEDDING.to_owned();
                self.tensors.insert(EMBEDDING.to_owned(), head);
            }
            Some(embedding) if has_same_numbers(embedding, &head) => {}
            Some(_) => {
                self.tensors.insert(HEAD.to_owned(), head);
                self.spec.own_head = true;
            }
        }
    }

    /// Marks matrices to be packed with fewer bits than stored. Convolutions and position embeddings stay, because
    /// they are small.
    ///
    /// # Errors
    /// `Unsupported` for a rule that matches none of them.
    pub(crate) fn quantise(&mut self, isq: Option<Isq>, rules: &[IsqRule]) -> Result<(), LoadError> {
        let multiplied = super::packing::quantisable(&self.spec).into_iter();
        let matrices = multiplied.map(|(name, layer)| {
            let (tensor, fine) = (self.tensor(&name), layer.is_none());
            (name, tensor, layer, fine)
        });
        let layers = self.spec.encoder.layers.max(self.spec.decoder.layers);
        self.packed = isq_types_by_name(matrices, layers, isq, rules)?;
        Ok(())
    }

    /// Summary of the types that matrices are quantised to, and of those that stay; `None` if none is quantised.
    pub(crate) fn packed_summary(&self) -> Option<String> {
        let matrices = self.tensors.iter().filter(|(_, tensor)| tensor.shape.len() > 1);
        packed_summary(matrices.map(|(name, tensor)| (self.packed.get(name).copied(), tensor.dtype)))
    }

    /// Type that a matrix is quantised to at load, if any.
    pub(super) fn quantised_to(&self, name: &str) -> Option<PackedType> {
        self.packed.get(name).copied()
    }

    /// Tensor by its name; all tensors of the model are there.
    pub(super) fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).expect("every tensor of the spec is there because opening refuses otherwise")
    }
}

fn info_of(
    directory: &Path,
    format: &'static str,
    spec: &WhisperSpec,
    size_bytes: u64,
    files: Vec<std::path::PathBuf>,
) -> ModelInfo {
    ModelInfo {
        name: name_of(directory),
        format,
        architecture: "whisper".to_owned(),
        quantization: String::new(),
        parameters: 0,
        size_bytes,
        context_tokens_max: spec.tokens as u32,
        license: None,
        not_read: &[],
        files,
    }
}

fn zeros(file: &str, name: String, length: usize) -> Tensor {
    let bytes = ModelBytes::from(vec![0; length * size_of::<f32>()]);
    Tensor { file: file.into(), name, dtype: DType::F32, shape: vec![length], bytes }
}

/// Merges the settings of the files; the first file that has a setting counts.
fn guidance(configs: [Option<&Config>; 2]) -> Result<Guidance, LoadError> {
    let mut guidance = Guidance::default();
    for config in configs.into_iter().flatten() {
        if guidance.suppressed.is_none() {
            guidance.suppressed = tokens(config, "suppress_tokens")?;
        }
        if guidance.multilingual.is_none() {
            guidance.multilingual = config.bool("is_multilingual")?;
        }
        if guidance.alignment_heads.is_none() {
            guidance.alignment_heads = alignment_heads(config)?;
        }
    }
    Ok(guidance)
}

fn list<'a>(config: &'a Config, key: &str) -> Result<Option<&'a Vec<Value>>, LoadError> {
    config.typed(key, "a list", Value::as_array)
}

/// Reads a list of tokens; an empty list, or one that contains -1, counts as none.
fn tokens(config: &Config, key: &str) -> Result<Option<Vec<u32>>, LoadError> {
    let Some(values) = list(config, key)? else { return Ok(None) };
    if values.iter().any(|value| value.as_i64() == Some(-1)) {
        return Ok(None);
    }
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    let tokens: Option<Vec<u32>> = values.iter().map(token).collect();
    let tokens = tokens.ok_or_else(|| config.corrupt(key, "expected a list of tokens"))?;
    Ok(Some(tokens).filter(|tokens| !tokens.is_empty()))
}

fn alignment_heads(config: &Config) -> Result<Option<Vec<(usize, usize)>>, LoadError> {
    const KEY: &str = "alignment_heads";
    let Some(values) = list(config, KEY)? else { return Ok(None) };
    let pair = |value: &Value| {
        let [layer, head] = value.as_array()?.as_slice() else { return None };
        Some((usize::try_from(layer.as_u64()?).ok()?, usize::try_from(head.as_u64()?).ok()?))
    };
    let pairs: Option<Vec<_>> = values.iter().map(pair).collect();
    pairs.map(Some).ok_or_else(|| config.corrupt(KEY, "expected a list of pairs of a layer and a head"))
}
