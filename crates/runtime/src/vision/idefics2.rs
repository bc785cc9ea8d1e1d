//! Idefics2: SigLIP's layers over frames of any size, then a gated MLP and a perceiver, whose latents are the rows
//! of every frame.

use hanzo_engine_ops::{Activation, HeadShape};
use serde_json::Map;

use super::spec::{Family, LearnedPositions, PerceiverSpec, Reads, TowerSpec};
use super::vit;
use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, PATCHES_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::Config;

/// Maximum latents of a frame.
const LATENTS_MAX: usize = 1024;

fn part(config: &Config, key: &str) -> Result<Config, LoadError> {
    Ok(config.object(key)?.unwrap_or_else(|| Config::new(config.file.clone(), Map::new())))
}

fn activation(config: &Config) -> Result<Activation, LoadError> {
    match config.string("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::GeluErf),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
        other => {
            let reason = "silu, gelu and gelu_pytorch_tanh are known";
            Err(config.unsupported("hidden_act", other, reason))
        }
    }
}

/// Describes the tower. `config` is the whole model's; the text model's rows have `text_hidden` elements.
pub(super) fn spec(config: &Config, text_hidden: usize) -> Result<TowerSpec, LoadError> {
    let [vision, perceiver, text] =
        ["vision_config", "perceiver_config", "text_config"].map(|key| part(config, key));
    let (vision, perceiver, text) = (vision?, perceiver?, text?);
    let vit = vit::read(&vision, &vit::IDEFICS2)?;
    let whole = |key: &str, max, usual| Ok::<_, LoadError>(perceiver.count(key, max)?.unwrap_or(usual));
    let heads = whole("resampler_n_heads", HEADS_MAX, 16)?;
    let kv_heads = whole("num_key_value_heads", HEADS_MAX, 4)?;
    if !heads.is_multiple_of(kv_heads) {
        let reason = format!("{heads} heads are not a multiple of {kv_heads} of keys and values");
        return Err(perceiver.corrupt("num_key_value_heads", reason));
    }
    if text_hidden > WIDTH_MAX / 8 {
        return Err(perceiver.corrupt("hidden_size", format!("{text_hidden} elements are too many")));
    }
    // If its width differs from the text model's, the library sets it to that, and takes the text model's epsilon.
    let own = perceiver.count("hidden_size", WIDTH_MAX)?.unwrap_or(4096) == text_hidden;
    let eps = if own { perceiver.positive("rms_norm_eps")? } else { text.positive("rms_norm_eps")? };
    let (patch, side) = (vit.patch, vit.image / vit.patch);
    if side == 0 {
        return Err(vision.corrupt("image_size", format!("{} pixels are no patch of {patch}", vit.image)));
    }
    let tower = TowerSpec {
        patch,
        patch_bias: true,
        learned: Some(LearnedPositions { side, between: false }),
        reads: Reads { normed: true, ..Reads::default() },
        perceiver: Some(PerceiverSpec {
            latents: whole("resampler_n_latents", LATENTS_MAX, 64)?,
            depth: whole("resampler_depth", LAYERS_MAX, 3)?,
            heads: HeadShape { heads, kv_heads, head_dim: whole("resampler_head_dim", HEAD_DIM_MAX, 96)? },
            inner: text.count("intermediate_size", WIDTH_MAX / 2)?.unwrap_or(14_336),
            inner_activation: activation(&text)?,
            activation: activation(&perceiver)?,
            eps: eps.unwrap_or(1e-6),
        }),
        patches_max: PATCHES_MAX,
        image_token: config.whole("image_token_id", VOCAB_MAX)?.unwrap_or(32_001) as u32,
        ..TowerSpec::bare(Family::Idefics2, vit.layers, text_hidden)
    };
    tower.checked(&vision)
}
