//! CLIP and SigLIP: an encoder of texts, beside one of pictures (`crate::vision`) whose vectors are of the same space. CLIP's tokens
//! see those before them, and the first that ends a text is its row; SigLIP's see all, and every text is as long as those that it
//! was trained with.

use serde_json::{Map, Value};

use super::{ClassifierPlan, HeadInput, Plan};
use crate::embedding::{EmbeddingSpec, Padding, Pooling};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::{Config, Distance, Names, PositionTable, TransformerSpec};
use crate::tokenizer::hf::token_text;
use crate::vision::vit::{self, Usual};

/// What their classes' names begin with.
pub(super) const CLASSES: [&str; 2] = ["CLIP", "Siglip"];

const NAMES: Names = Names {
    prefix: "text_model.",
    token_embedding: "embeddings.token_embedding",
    embedding_norm: "",
    final_norm: "final_layer_norm",
    ..vit::NAMES
};

/// What is taken for granted where `text_config` does not say it.
const CLIP: Usual = Usual { hidden: 512, heads: 8, ffn: 2048, ..vit::CLIP };

/// What becomes vectors of texts, and where what sees pictures is.
pub(in crate::encoder) struct Vectors {
    /// The matrix behind the row that is read, with `.weight` and, where it has one, `.bias`.
    pub(in crate::encoder) projection: &'static str,
    pub(in crate::encoder) bias: bool,
    /// Elements of a vector.
    pub(in crate::encoder) dimensions: usize,
    /// Without that matrix.
    pub(in crate::encoder) embedding: EmbeddingSpec,
}

/// What the names of tensors begin with that are the picture's side.
pub(in crate::encoder) const SEEING: [&str; 2] = ["vision_model.", "visual_projection."];

fn is_clip(config: &Config) -> Result<Option<bool>, LoadError> {
    Ok(match config.string("model_type")? {
        Some("clip") => Some(true),
        Some("siglip") => Some(false),
        _ => None,
    })
}

/// `text_config`, and what older files say again beside it, which goes before.
fn text_config(config: &Config) -> Result<Config, LoadError> {
    let mut text = match config.object("text_config")? {
        Some(text) => text,
        None => Config::new(config.file.clone(), Map::new()),
    };
    if let Some(again) = config.object("text_config_dict")? {
        for (key, value) in again.settings.iter().filter(|(_, value)| !value.is_null()) {
            text.set(key, value.clone());
        }
    }
    Ok(text)
}

pub(super) fn plan(config: &Config) -> Result<Plan, LoadError> {
    let is_clip = is_clip(config)?.unwrap_or(true);
    let text = text_config(config)?;
    let whole = |key: &str, max, usual| Ok::<_, LoadError>(text.count(key, max)?.unwrap_or(usual));
    let context = whole("max_position_embeddings", CONTEXT_TOKENS_MAX, if is_clip { 77 } else { 64 })?;
    let spec = TransformerSpec {
        architecture: if is_clip { "clip" } else { "siglip" }.to_owned(),
        vocab: whole("vocab_size", VOCAB_MAX, if is_clip { 49_408 } else { 32_000 })?,
        context_tokens_max: context as u32,
        positions: Some(PositionTable { rows: context, offset: 0 }),
        distance: if is_clip { Distance::Behind } else { Distance::None },
        ..vit::read(&text, if is_clip { &CLIP } else { &vit::SIGLIP })?.layers
    };
    Ok(Plan {
        spec: spec.checked(&text.file)?,
        names: NAMES,
        classifier: ClassifierPlan { input: HeadInput::Cls, layers: Vec::new() },
        masked_lm: None,
        heads: &["logit_scale", "logit_bias"],
    })
}

/// Of a model with texts and pictures in one space, whose texts have so many elements before they become vectors; none of any other.
/// `words` is `tokenizer_config.json`.
pub(in crate::encoder) fn vectors(
    config: &Config,
    words: Option<&Value>,
    hidden: usize,
) -> Result<Option<Vectors>, LoadError> {
    let Some(is_clip) = is_clip(config)? else { return Ok(None) };
    let text = text_config(config)?;
    let said = |key: &str| words.and_then(|words| words.get(key));
    let plain = EmbeddingSpec { stated: true, ..EmbeddingSpec::plain(Pooling::Last, true) };
    if is_clip {
        // Files that say 2 are from before the setting was read: a text ends with the token whose number is the highest.
        let vocab = text.count("vocab_size", VOCAB_MAX)?.unwrap_or(49_408);
        let end = match text.whole("eos_token_id", VOCAB_MAX)? {
            Some(2) => vocab - 1,
            Some(end) => end,
            None => 49_407,
        };
        return Ok(Some(Vectors {
            projection: "text_projection",
            bias: false,
            dimensions: config.count("projection_dim", WIDTH_MAX)?.unwrap_or(512),
            embedding: EmbeddingSpec { end: Some(end as u32), ..plain },
        }));
    }
    let tokens = text.count("max_position_embeddings", CONTEXT_TOKENS_MAX)?.unwrap_or(64);
    let padding = Padding {
        tokens,
        name: said("pad_token").and_then(token_text).map(str::to_owned),
        token: text.whole("pad_token_id", VOCAB_MAX)?.unwrap_or(1) as u32,
    };
    let class = said("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    Ok(Some(Vectors {
        projection: "text_model.head",
        bias: true,
        dimensions: text.count("projection_size", WIDTH_MAX)?.unwrap_or(hidden),
        embedding: EmbeddingSpec {
            lowercase: said("do_lower_case").and_then(Value::as_bool).unwrap_or(true),
            words_alone: class.strip_suffix("Fast").unwrap_or(class) == "SiglipTokenizer",
            padding: Some(padding),
            ..plain
        },
    }))
}
