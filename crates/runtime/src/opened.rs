//! An opened model of any kind, and the settings of its files for embedding.

mod reranker;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use reranker::{is_reranker, yes_no_classifier};

use crate::audio::{AudioFiles, SoundPreprocessor};
use crate::embedding::{self, Embedder, EmbeddingSpec, Padding, PairPrompt, Pooling, Task};
use crate::encoder::{self, EncoderFiles};
use crate::error::LoadError;
use crate::head::Head;
use crate::importance::Importance;
use crate::load::{self, ModelInfo, TextFiles, TokenizerSource, huggingface};
use crate::mapped::ModelBytes;
use crate::model_files::ModelFiles;
use crate::network::isq_types;
use crate::override_record::OverrideRecord;
use crate::overrides::{Mmproj, Overrides};
use crate::text::TextModel;
use crate::tokenizer::Tokenizer;
use crate::vision::{Sight, TowerFiles};
use crate::voice::VoiceFiles;
use crate::whisper::WhisperFiles;

/// Opened model.
#[derive(Debug)]
pub struct OpenedModel {
    /// Network.
    pub network: Network,
    /// Settings for embedding.
    pub embedding: EmbeddingSpec,
    /// Default context length in tokens; `None`: all that the model was made for.
    pub context_tokens_default: Option<u32>,
    /// Records which overridden settings were read.
    watched: OverrideRecord,
}

/// Files of a network.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one for each load
pub enum Network {
    /// Decoder: generates, and embeds.
    Decoder(ModelFiles),
    /// Encoder: embeds, reranks, classifies.
    Encoder(EncoderFiles),
    /// Transcribes speech.
    Whisper(WhisperFiles),
    /// Speaks text.
    Voice(VoiceFiles),
}

impl OpenedModel {
    /// Opens a GGUF file (of a split model, any of its files), or a directory with `config.json`, `tokenizer.json` and
    /// weights.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key, tensor or file in it.
    pub fn open(path: &Path) -> Result<OpenedModel, LoadError> {
        Self::open_with(path, &Overrides::default())
    }

    /// Opens a model as [`OpenedModel::open`] does, with overrides for settings of its files.
    ///
    /// # Errors
    /// As for [`OpenedModel::open`].
    pub fn open_with(path: &Path, overrides: &Overrides) -> Result<OpenedModel, LoadError> {
        let mut opened = Self::open_stored(path, overrides)?;
        if let Mmproj::File(tower) = &overrides.mmproj
            && (path.is_dir() || opened.decoder().is_none())
        {
            return Err(LoadError::Unsupported {
                file: path.display().to_string(),
                key: "mmproj".into(),
                value: tower.display().to_string(),
                reason: "it goes with the GGUF file of a model that generates; a folder says itself what sees for it".into(),
            });
        }
        opened.quantise(overrides)?;
        Ok(opened)
    }

    fn open_stored(path: &Path, overrides: &Overrides) -> Result<OpenedModel, LoadError> {
        if let Some(files) = VoiceFiles::open(path)? {
            let watched = overrides.over_voice(&files.config_file)?;
            let embedding = EmbeddingSpec::plain(Pooling::Mean, false);
            let network = Network::Voice(files);
            return Ok(OpenedModel { network, embedding, context_tokens_default: None, watched });
        }
        if let Some((files, watched)) = WhisperFiles::open(path, overrides)? {
            return Ok(OpenedModel {
                network: Network::Whisper(files),
                embedding: EmbeddingSpec::plain(Pooling::Mean, false),
                context_tokens_default: None,
                watched,
            });
        }
        if !path.is_dir() {
            let (stem, gguf, files) = ModelFiles::open_gguf(path)?;
            return Self::of_gguf(&stem, gguf, files, overrides);
        }
        let folder = embedding::network_folder(path)?;
        match huggingface::read_config(&folder, "config.json")? {
            Some(mut config) if encoder::is_encoder(&config)? => {
                let watched = overrides.over_config(&mut config)?;
                let mut files = EncoderFiles::from_directory_with(&folder, &config, overrides)?;
                if folder != path {
                    files.info.name = huggingface::name_of(path);
                }
                let stated = match files.embedding.take() {
                    Some(own) => Some(own),
                    None => embedding::read(path, files.spec.hidden)?,
                };
                let embedding = stated.unwrap_or_else(|| EmbeddingSpec::plain(Pooling::Mean, false));
                Ok(OpenedModel {
                    network: Network::Encoder(files),
                    embedding,
                    context_tokens_default: None,
                    watched,
                })
            }
            _ => {
                let (files, watched) = ModelFiles::from_directory(path, overrides)?;
                let stated = embedding::read(path, files.spec.hidden)?;
                let embedding = stated.unwrap_or_else(|| EmbeddingSpec::plain(Pooling::Last, true));
                let embedding = embedding::asking(embedding, files.seeing(), &files.info.name);
                Ok(OpenedModel {
                    network: Network::Decoder(files),
                    embedding,
                    context_tokens_default: None,
                    watched,
                })
            }
        }
    }

    /// Opens a GGUF file built into the program.
    ///
    /// # Errors
    /// As for [`OpenedModel::open`].
    pub fn from_static(name: &str, gguf: &'static [u8]) -> Result<OpenedModel, LoadError> {
        Self::from_static_with(name, gguf, &Overrides::default())
    }

    /// Opens a GGUF file built into the program, with overrides for its settings.
    ///
    /// # Errors
    /// As for [`OpenedModel::open`].
    pub fn from_static_with(
        name: &str,
        gguf: &'static [u8],
        overrides: &Overrides,
    ) -> Result<OpenedModel, LoadError> {
        let gguf = crate::gguf::Gguf::parse(name, &ModelBytes::from_static(gguf))?;
        let mut opened = Self::of_gguf(name, gguf, Vec::new(), overrides)?;
        opened.quantise(overrides)?;
        Ok(opened)
    }

    fn of_gguf(
        name: &str,
        mut gguf: crate::gguf::Gguf,
        files: Vec<PathBuf>,
        overrides: &Overrides,
    ) -> Result<OpenedModel, LoadError> {
        let watched = overrides.over_gguf(&mut gguf)?;
        let metadata = gguf.metadata.clone();
        let (network, stated, plain) = if encoder::is_encoder_gguf(&metadata)? {
            let files = EncoderFiles::from_gguf(name, gguf, files)?;
            let stated = embedding::of_gguf(&metadata, &files.spec.architecture)?;
            (Network::Encoder(files), stated, Pooling::Mean)
        } else {
            let files = ModelFiles::from_gguf(name, gguf, files, &overrides.mmproj)?;
            let stated = embedding::of_gguf(&metadata, &files.spec.architecture)?;
            (Network::Decoder(files), stated, Pooling::Last)
        };
        let mut embedding = stated.unwrap_or_else(|| EmbeddingSpec::plain(plain, true));
        if let Network::Decoder(files) = &network {
            embedding = embedding::asking(embedding, files.seeing(), name);
        }
        let mut opened = OpenedModel { network, embedding, context_tokens_default: None, watched };
        overrides.over_text(opened.text_files_mut())?;
        let vocab = match &opened.network {
            Network::Decoder(files) => files.spec.vocab,
            Network::Encoder(files) => files.spec.vocab,
            Network::Whisper(files) => files.spec.vocab,
            Network::Voice(_) => unreachable!("a GGUF file is a decoder or an encoder"),
        };
        load::check_tokens(name, vocab, opened.text_files())?;
        Ok(opened)
    }

    /// Marks the matrices to be packed with fewer bits than stored.
    fn quantise(&mut self, overrides: &Overrides) -> Result<(), LoadError> {
        let name = match (overrides.isq, overrides.topology.is_empty()) {
            (None, true) => return Ok(()),
            (Some(isq), true) => isq.to_string(),
            (Some(isq), false) => format!("{isq} and a topology"),
            (None, false) => "a topology".to_owned(),
        };
        let importance = overrides.imatrix.as_deref().map(Importance::open).transpose()?;
        let (spec, tensors, mut tower, info) = match &mut self.network {
            Network::Decoder(files) => {
                let seeing = files.tower.as_mut().map(TowerFiles::layers_mut);
                let tower = seeing.or(files.ear.as_mut().map(AudioFiles::layers_mut));
                (&files.spec, &mut files.tensors, tower, &mut files.info)
            }
            Network::Encoder(files) => {
                let tower = files.tower.as_mut().map(TowerFiles::layers_mut);
                (&files.spec, &mut files.tensors, tower, &mut files.info)
            }
            Network::Whisper(_) if let Some(importance) = importance => {
                return Err(LoadError::Unsupported {
                    file: importance.file().to_owned(),
                    key: "imatrix".to_owned(),
                    value: "a model that writes down speech".to_owned(),
                    reason: "an importance matrix is of models that read texts".to_owned(),
                });
            }
            Network::Whisper(files) => {
                files.quantise(overrides.isq, &overrides.topology)?;
                if files.packed_summary().is_some() {
                    files.info.quantization = format!("{name} (of {})", files.info.quantization);
                }
                return Ok(());
            }
            Network::Voice(files) => {
                return Err(LoadError::Unsupported {
                    file: files.config_file.clone(),
                    key: "quantisation at load".to_owned(),
                    value: name,
                    reason: "models that speak are run as they are stored".to_owned(),
                });
            }
        };
        let beside = tower.as_ref().map(|(spec, tensors)| (*spec, &**tensors));
        let [types, of_tower] = isq_types(spec, tensors, beside, overrides.isq, &overrides.topology)?;
        if !types.is_empty() {
            info.quantization = format!("{name} (of {})", info.quantization);
        }
        tensors.pack_as(types);
        if let Some((_, tower)) = &mut tower {
            tower.pack_as(of_tower);
        }
        importance.map_or(Ok(()), |importance| tensors.weigh(Arc::new(importance), spec))
    }

    /// Summary of the types that matrices are quantised to at packing, with counts; `None` if none is quantised.
    pub fn quantised(&self) -> Option<String> {
        let (own, tower, ear) = match &self.network {
            Network::Decoder(files) => (files.tensors.packed_summary(), &files.tower, &files.ear),
            Network::Encoder(files) => (files.tensors.packed_summary(), &files.tower, &None),
            Network::Whisper(files) => (files.packed_summary(), &None, &None),
            Network::Voice(_) => (None, &None, &None),
        };
        let seeing = tower.as_ref().and_then(TowerFiles::packed_summary);
        let seeing = seeing.map(|summary| format!("what sees: {summary}"));
        let hearing = ear.as_ref().and_then(AudioFiles::packed_summary);
        let hearing = hearing.map(|summary| format!("what hears: {summary}"));
        let all: Vec<String> = own.into_iter().chain(seeing).chain(hearing).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Checks that every overridden setting was read. This is known once the text side is loaded.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] naming the first unread setting.
    pub fn check_overrides(&self) -> Result<(), LoadError> {
        self.watched.check()
    }

    /// The decoder's files, if it is a decoder.
    pub fn decoder(&self) -> Option<&ModelFiles> {
        if let Network::Decoder(files) = &self.network { Some(files) } else { None }
    }

    /// The decoder's files, if it is a decoder.
    pub fn into_decoder(self) -> Option<ModelFiles> {
        if let Network::Decoder(files) = self.network { Some(files) } else { None }
    }

    /// The files, if the model transcribes speech.
    pub fn whisper(&self) -> Option<&WhisperFiles> {
        if let Network::Whisper(files) = &self.network { Some(files) } else { None }
    }

    #[cfg(test)]
    pub(crate) fn tensors(&self) -> &load::Tensors {
        match &self.network {
            Network::Decoder(files) => &files.tensors,
            Network::Encoder(files) => &files.tensors,
            Network::Whisper(_) | Network::Voice(_) => panic!("its tensors have names of their own"),
        }
    }

    /// General information about the model.
    pub fn info(&self) -> &ModelInfo {
        match &self.network {
            Network::Decoder(files) => &files.info,
            Network::Encoder(files) => &files.info,
            Network::Whisper(files) => &files.info,
            Network::Voice(files) => &files.info,
        }
    }

    /// Text files of the model.
    pub fn text_files(&self) -> &TextFiles {
        match &self.network {
            Network::Decoder(files) => &files.text,
            Network::Encoder(files) => &files.text,
            Network::Whisper(files) => &files.text,
            Network::Voice(files) => &files.text,
        }
    }

    /// Text files of the model, to be completed by the caller.
    pub fn text_files_mut(&mut self) -> &mut TextFiles {
        match &mut self.network {
            Network::Decoder(files) => &mut files.text,
            Network::Encoder(files) => &mut files.text,
            Network::Whisper(files) => &mut files.text,
            Network::Voice(files) => &mut files.text,
        }
    }

    /// Whether it generates text: a decoder that was not trained as an embedder or a reranker.
    pub fn generates(&self) -> bool {
        matches!(&self.network, Network::Decoder(files) if !self.embedding.stated && !is_reranker(files))
    }

    /// Whether it speaks text.
    pub fn speaks(&self) -> bool {
        matches!(self.network, Network::Voice(_))
    }

    /// Tasks besides generating.
    pub fn tasks(&self) -> Vec<Task> {
        match &self.network {
            Network::Decoder(files) if is_reranker(files) => vec![Task::Rerank],
            Network::Decoder(_) => vec![Task::Embed],
            Network::Voice(_) => Vec::new(),
            Network::Encoder(files) => match &files.head {
                Some(Head::Classifier(classifier)) if classifier.labels.len() == 1 => {
                    vec![Task::Rerank, Task::Classify]
                }
                Some(Head::Classifier(_)) => vec![Task::Classify],
                Some(Head::MaskedLm) => vec![Task::Embed, Task::EmbedSparse],
                None if self.embedding.lexical.is_some() => vec![Task::Embed, Task::EmbedSparse],
                None => vec![Task::Embed],
            },
            Network::Whisper(_) => Vec::new(),
        }
    }

    /// Maximum tokens of an input or context, as far as the files say.
    pub fn tokens_max(&self) -> usize {
        match &self.network {
            Network::Decoder(files) => {
                let context = files.spec.context_tokens_max as usize;
                self.embedding.tokens_max.unwrap_or(context).min(context)
            }
            Network::Encoder(files) => {
                let stated = self.embedding.tokens_max.or_else(|| tokenizer_length(&files.text));
                stated.unwrap_or(usize::MAX).min(files.spec.context_tokens_max as usize)
            }
            Network::Whisper(files) => files.spec.tokens,
            Network::Voice(files) => files.info.context_tokens_max as usize,
        }
    }

    /// Loads the text side.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key.
    pub fn text_model(&self) -> Result<TextModel, LoadError> {
        let (sizes, context) = match &self.network {
            Network::Decoder(ModelFiles { spec, .. }) | Network::Encoder(EncoderFiles { spec, .. }) => {
                ([spec.vocab, spec.hidden], spec.context_tokens_max)
            }
            Network::Whisper(WhisperFiles { spec, .. }) => ([spec.vocab, spec.hidden], spec.tokens as u32),
            Network::Voice(files) => {
                let vocab = files.vocab.iter().map(|(_, id)| *id as usize + 2).max().unwrap_or(1);
                ([vocab, 1], files.info.context_tokens_max)
            }
        };
        let mut text = TextModel::new(self.text_files(), self.info(), sizes, context)?;
        if let Network::Decoder(ModelFiles { tower: Some(tower), .. })
        | Network::Encoder(EncoderFiles { tower: Some(tower), .. }) = &self.network
        {
            text.sight = Some(Sight::new(tower, &text.tokenizer, &self.text_files().file)?);
        }
        if let Network::Decoder(ModelFiles { ear: Some(ear), .. }) = &self.network {
            text.hearing = Some(SoundPreprocessor::new(ear, &text.tokenizer, &self.text_files().file)?);
        }
        // Qwen3's embedders end every input with the end-of-text token; their older GGUF files do not say so.
        if let Network::Decoder(files) = &self.network
            && self.embedding.stated
            && files.spec.architecture == "qwen3"
            && matches!(files.text.tokenizer, TokenizerSource::Gguf(_))
            && !is_reranker(files)
        {
            let tokenizer = Arc::get_mut(&mut text.tokenizer);
            tokenizer.expect("it was made a moment ago, and nobody else has it").end_with("<|endoftext|>");
        }
        Ok(text)
    }

    /// Creates the embedding, reranking and classifying side, for inputs of at most `tokens_max` tokens.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key; `Unsupported` if so few tokens leave no room for any text.
    pub fn embedder(&self, tokenizer: &Tokenizer, tokens_max: usize) -> Result<Embedder, LoadError> {
        let embedder = self.embedder_of(tokenizer, tokens_max.min(self.tokens_max()))?;
        let (prefix, suffix) = tokenizer.special_around();
        let tokens_min = match &embedder.pair {
            Some(PairPrompt::YesNo(prompt)) => {
                prompt.tokens_min(tokenizer).map_err(|error| LoadError::Corrupt {
                    file: self.text_files().file.clone(),
                    what: "tokenizer".into(),
                    reason: error.to_string(),
                })?
            }
            // It may be used for texts alone, without special tokens around them, or not for embedding at all.
            _ if self.generates() || self.speaks() => 1,
            _ => prefix + suffix + 1,
        };
        if embedder.tokens_max < tokens_min {
            return Err(LoadError::Unsupported {
                file: self.text_files().file.clone(),
                key: "context_tokens_max".into(),
                value: embedder.tokens_max.to_string(),
                reason: format!(
                    "what this model puts around its inputs needs {tokens_min} tokens with the shortest of them"
                ),
            });
        }
        Ok(embedder)
    }

    fn embedder_of(&self, tokenizer: &Tokenizer, tokens_max: usize) -> Result<Embedder, LoadError> {
        let (mut spec, tasks) = (self.embedding.clone(), self.tasks());
        match &self.network {
            Network::Decoder(files) => {
                let (mut classifier, mut pair) = (None, None);
                if is_reranker(files) {
                    classifier = Some(yes_no_classifier(files, tokenizer)?);
                    pair = Some(embedding::yes_no(tokenizer, &files.text.file)?);
                } else if spec.stated && files.spec.architecture == "qwen3" {
                    spec.add_query_prompt();
                }
                let (hidden, vocab) = (files.spec.hidden, files.spec.vocab);
                Ok(Embedder { tasks, spec, hidden, vocab, tokens_max, classifier, pair })
            }
            Network::Voice(files) => Ok(Embedder {
                tasks,
                spec,
                hidden: 1,
                vocab: files.vocab.len(),
                tokens_max: tokens_max.max(1),
                classifier: None,
                pair: None,
            }),
            Network::Encoder(files) => Ok(Embedder {
                tasks,
                spec: with_padding(with_special(spec, tokenizer, files.spec.vocab), tokenizer, &files.text)?,
                hidden: files.spec.hidden,
                vocab: files.spec.vocab,
                tokens_max,
                classifier: match &files.head {
                    Some(Head::Classifier(classifier)) => Some(classifier.clone()),
                    Some(Head::MaskedLm) | None => None,
                },
                pair: joined(tokenizer, files.spec.type_vocab),
            }),
            // Whisper embeds nothing.
            Network::Whisper(files) => Ok(Embedder {
                tasks,
                spec,
                hidden: files.spec.hidden,
                vocab: files.spec.vocab,
                tokens_max,
                classifier: None,
                pair: None,
            }),
        }
    }
}

/// Pair format of a tokenizer, for a network with `types` token types. A network without token types ignores them.
fn joined(tokenizer: &Tokenizer, types: usize) -> Option<PairPrompt> {
    let most = tokenizer.pair_type_max()?;
    let fits = types == 0 || (most as usize) < types;
    Some(if fits { PairPrompt::Joined } else { PairPrompt::Unfit { of_type: most, types } })
}

/// Tells the layer of lexical token weights which tokens have no weight.
fn with_special(mut spec: EmbeddingSpec, tokenizer: &Tokenizer, vocab: usize) -> EmbeddingSpec {
    if let Some(lexical) = &mut spec.lexical {
        let mask = tokenizer.token_id("<mask>");
        let special = |&token: &u32| tokenizer.is_special(token) && Some(token) != mask;
        lexical.special = (0..vocab as u32).filter(special).collect();
    }
    spec
}

/// Looks up the padding token for texts shorter than the network's input.
fn with_padding(
    mut spec: EmbeddingSpec,
    tokenizer: &Tokenizer,
    text: &TextFiles,
) -> Result<EmbeddingSpec, LoadError> {
    if let Some(Padding { name: Some(name), token, .. }) = &mut spec.padding {
        *token = tokenizer.token_id(name).ok_or_else(|| LoadError::Missing {
            file: text.file.clone(),
            what: format!("token {name:?}"),
            hint: "; pad_token of tokenizer_config.json says that it stands behind every text".into(),
        })?;
    }
    Ok(spec)
}

/// `model_max_length` of `tokenizer_config.json`; enormous values stand for no limit.
fn tokenizer_length(text: &TextFiles) -> Option<usize> {
    let TokenizerSource::HuggingFace { tokenizer_config: Some(config), .. } = &text.tokenizer else {
        return None;
    };
    let length = config.get("model_max_length").and_then(Value::as_u64)?;
    usize::try_from(length).ok().filter(|&length| length > 0 && length < 1 << 24)
}
