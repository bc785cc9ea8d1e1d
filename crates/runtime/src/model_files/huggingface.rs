//! [`ModelFiles`] from a Hugging Face directory: its settings, its text files, its weights, and its towers for pictures or
//! sound.

use std::path::Path;

use serde_json::Value;

use super::ModelFiles;
use crate::audio::{self, AudioFiles};
use crate::encoder;
use crate::error::LoadError;
use crate::load::huggingface::{name_of, read_config};
use crate::load::weights::{self, Weights};
use crate::load::{Found, ModelInfo, check_tokens, quantised, size_bytes};
use crate::override_record::OverrideRecord;
use crate::overrides::Overrides;
use crate::spec::{self, Config, Multimodal, Names, Part, TransformerSpec};
use crate::tensor::Tensor;
use crate::vision::{self, TowerFiles};

impl ModelFiles {
    /// Opens a directory with overrides for its settings, and records which of them were read.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key, tensor or file in it.
    pub(crate) fn from_directory(
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
        let mut spec = spec::from_config(&config, encoder::encoders())?;
        multimodal.iter().for_each(|multimodal| multimodal.cross(&mut spec));
        let generation_config = read_config(directory, "generation_config.json")?;
        let mut text = overrides.text_files(directory, &config, generation_config.as_ref())?;
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
        if vision::knows(multimodal.model_type()) {
            media.tower = TowerFiles::open(directory, config, beside, spec)?;
        } else if audio::knows(multimodal.model_type()) {
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
