//! Families of text decoders, one file each: the model types of Hugging Face and the architectures of GGUF that a family
//! has, with their settings and the names of their tensors, and the tiny models that tests compare. Readers that
//! several families share are in `settings` for `config.json`, and in `metadata` for GGUF.

mod afmoe;
mod apertus;
mod arcee;
mod baichuan;
mod bailing;
mod bamba;
mod bloom;
mod cohere;
mod cwm;
mod deepseek;
mod dots1;
mod ernie4_5;
mod exaone;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4_moe;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod helium;
mod hunyuan;
mod internlm;
mod jais2;
mod lfm2;
mod llama;
mod llama4;
mod mamba2;
mod minicpm;
mod minimax_m2;
mod mistral;
mod mixtral;
mod mpt;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmoe;
mod opt;
mod orion;
mod phi;
mod phi3;
mod phimoe;
mod qwen;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
mod seed_oss;
mod smollm3;
mod solar_open;
mod stablelm;
mod starcoder2;
mod vaultgemma;
mod xverse;

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_model_files::gguf;
use hanzo_engine_ops::{
    Activation, ExpertGroups, ExpertScoring, HeadShape, QueryScale, RopeKind, StateRule, StateShape,
};
pub(super) use qwen3_moe::VISION_NAMES as QWEN3_VL_MOE_NAMES;
use serde_json::{Map, Value};

use super::base::Base;
use super::mamba::{MAMBA, MAMBA_ALONE, StateSettings};
use super::metadata::{
    self, Architecture, DENSE_KEYS, EXPERT_KEYS, Experts, FACTOR_KEYS, Keys, LATENT_KEYS, LogitScale,
    Positions, STATE_KEYS, Turns, every, hybrid_heads,
};
use super::rope::{is_long, lengthen, query_scale, rope_type, settings_of, yarn_magnitude};
use super::setting::{
    EXPERTS, EXPERTS_SCALE, FFN, HEADS, LATENT_RANK, LOCAL_EXPERTS, QUERY_RANK, ROUTED_EXPERTS,
    SHARED_EXPERTS, Setting, SettingsFile, count, flag,
};
use super::settings::{
    Choice, MixtureLayers, ModelType, Windows, XIELU, after_dense, among, groups, layers_by_type, layers_in,
    learn_positions, norm_heads_apart, or, refuse_steps, refuse_true, refuse_unless, refuse_unless_named,
    rename, rotated_layers, routed, routed_by_sigmoid, set_alibi, set_ffn, set_logits, set_order,
    settle_mamba, shared_of, softmax, sparse_layers, turn_windows_alone, turn_windows_apart, unless_null,
    windows_by_type,
};
use super::{
    Alibi, AttentionSpec, Config, DenseSpec, ExpertNames, ExpertPack, ExpertsSpec, GateUp, GemmaPart,
    HeadSpec, LatentShape, LayerPart, LayerSpec, LogitsSpec, Mask, MlpSpec, Names, NormKind, NormOrder,
    NormSpec, Part, Projection, QkNorm, RopeScaling, RopeSpec, RowFactor, SharedExpert, StateNames,
    StateSpec, StateStack, StreamsSpec, TransformerSpec,
};
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERT_GROUPS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX,
    WIDTH_MAX,
};

/// Family of text decoders.
pub struct Family {
    /// Models that it runs, by the names people know.
    pub title: &'static str,
    /// Model types of `config.json`.
    pub(crate) hugging_face: &'static [ModelType],
    /// Architectures of its GGUF files, that of its first model type first.
    pub(crate) gguf: &'static [Architecture],
    /// Tiny models of it that tests compare.
    pub goldens: &'static [TinyModel],
}

/// Tiny model of `tests/data`.
pub struct TinyModel {
    /// Its folder.
    pub folder: &'static str,
    /// Whether it is there as GGUF besides safetensors.
    pub in_gguf: bool,
}

/// A tiny model as safetensors and as GGUF.
const fn both(folder: &'static str) -> TinyModel {
    TinyModel { folder, in_gguf: true }
}

/// A tiny model as safetensors alone.
const fn alone(folder: &'static str) -> TinyModel {
    TinyModel { folder, in_gguf: false }
}

/// All families.
pub const FAMILIES: &[Family] = &[
    llama::LLAMA,
    mistral::MISTRAL,
    mistral::MINISTRAL3,
    mixtral::MIXTRAL,
    qwen2::QWEN2,
    qwen3::QWEN3,
    qwen3_moe::QWEN3_MOE,
    qwen2_moe::QWEN2_MOE,
    deepseek::DEEPSEEK_V2,
    deepseek::DEEPSEEK_V3,
    gpt_oss::GPT_OSS,
    glm4_moe::GLM4_MOE,
    glm4_moe::GLM4_MOE_LITE,
    dots1::DOTS1,
    olmoe::OLMOE,
    olmoe::FLEX_OLMO,
    granite_moe::GRANITE_MOE,
    ernie4_5::ERNIE4_5_MOE,
    minimax_m2::MINIMAX_M2,
    deepseek::DEEPSEEK,
    bailing::BAILING_MOE,
    bailing::BAILING_MOE_V2,
    exaone::EXAONE_MOE,
    llama4::LLAMA4,
    hunyuan::HUNYUAN_MOE,
    phimoe::PHIMOE,
    cohere::COHERE2_MOE,
    afmoe::AFMOE,
    solar_open::SOLAR_OPEN,
    qwen3_next::QWEN3_NEXT,
    qwen3_next::QWEN3_5,
    qwen3_next::QWEN3_5_MOE,
    granite_hybrid::GRANITE_HYBRID,
    bamba::BAMBA,
    nemotron_h::NEMOTRON_H,
    mamba2::MAMBA2,
    falcon_h1::FALCON_H1,
    lfm2::LFM2,
    lfm2::LFM2_MOE,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
    vaultgemma::VAULT_GEMMA,
    gemma3n::GEMMA3N,
    gemma4::GEMMA4,
    phi3::PHI3,
    olmo2::OLMO2,
    olmo2::OLMO3,
    granite::GRANITE,
    glm::GLM,
    glm::GLM4,
    cohere::COHERE,
    cohere::COHERE2,
    smollm3::SMOLLM3,
    starcoder2::STARCODER2,
    stablelm::STABLELM,
    apertus::APERTUS,
    seed_oss::SEED_OSS,
    ernie4_5::ERNIE4_5,
    exaone::EXAONE4,
    gpt_neox::GPT_NEOX,
    falcon::FALCON,
    gpt2::GPT2,
    gpt2::GPT_BIGCODE,
    opt::OPT,
    bloom::BLOOM,
    mpt::MPT,
    gptj::GPTJ,
    phi::PHI,
    nemotron::NEMOTRON,
    arcee::ARCEE,
    cwm::CWM,
    jais2::JAIS2,
    olmo::OLMO,
    hunyuan::HUNYUAN_DENSE,
    helium::HELIUM,
    internlm::INTERNLM2,
    internlm::INTERNLM3,
    glm::CHATGLM,
    qwen::QWEN,
    baichuan::BAICHUAN,
    orion::ORION,
    xverse::XVERSE,
    exaone::EXAONE,
    minicpm::MINICPM,
    minicpm::MINICPM3,
];

impl Family {
    /// Values of `model_type` in its `config.json` files.
    pub fn model_types(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.hugging_face.iter().map(|of| of.name)
    }

    /// Architectures of its GGUF files.
    pub fn architectures(&self) -> impl Iterator<Item = &'static str> + use<> {
        let other = self.hugging_face.iter().map(|of| of.written_as).find(|name| !name.is_empty());
        self.gguf.iter().map(|of| of.name).chain(other)
    }
}

/// Model types of all families.
pub(super) fn model_types() -> impl Iterator<Item = &'static ModelType> {
    FAMILIES.iter().flat_map(|family| family.hugging_face)
}

/// Architectures of all families.
pub(super) fn architectures() -> impl Iterator<Item = &'static Architecture> {
    FAMILIES.iter().flat_map(|family| family.gguf)
}

/// The model type of this name.
pub(super) fn model_type(name: &str) -> Option<&'static ModelType> {
    model_types().find(|of| of.name == name)
}

/// The architecture of this name.
pub fn architecture(name: &str) -> Option<&'static Architecture> {
    architectures().find(|of| of.name == name)
}

/// The architecture of this name, and the model type whose network its files have.
pub(super) fn written(name: &str) -> Option<(&'static ModelType, &'static Architecture)> {
    let mut all = FAMILIES.iter().flat_map(|family| family.gguf.iter().map(move |of| (family, of)));
    let (family, of) = all.find(|(_, of)| of.name == name)?;
    Some((family.hugging_face.first()?, of))
}

/// Names of the tensors of a model type, or of the first model type of an architecture's family.
pub fn huggingface_names(name: &str) -> &'static Names {
    let of_architecture = || {
        let family = FAMILIES.iter().find(|family| family.gguf.iter().any(|of| of.name == name))?;
        family.hugging_face.first()
    };
    model_type(name).or_else(of_architecture).map_or(&Names::HUGGING_FACE, |of| of.names)
}

/// Names of the tensors in GGUF files of an architecture.
pub fn gguf_names(name: &str) -> &'static Names {
    architecture(name).map_or(&Names::GGUF, |of| of.names)
}

/// Architecture of the GGUF files of a model type; an architecture is its own.
pub fn architecture_of(name: &str) -> &str {
    let has = |family: &&Family| family.model_types().any(|model_type| model_type == name);
    let written = |family: &Family| family.architectures().next();
    match architecture(name) {
        Some(_) => name,
        None => FAMILIES.iter().find(has).and_then(written).unwrap_or(name),
    }
}

/// Whether files of a model type or architecture may have layers after the last that predict several tokens at once.
pub fn predicts_more(name: &str) -> bool {
    model_type(name).is_some_and(|of| of.predicts_more)
        || architecture(name).is_some_and(|of| of.predicts_more)
}

/// Whether GGUF files of an architecture have the rows of queries and keys permuted ([`TransformerSpec::permuted`]).
pub fn is_permuted(name: &str) -> bool {
    architecture(name).is_some_and(|of| of.permuted)
}
