//! Overrides of a model's files. Their conversion to the wire's message, which also checks them, is in
//! `convert/override_config.rs`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Overrides of the values in a model's files. Unset values stay as in the files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OverrideConfig {
    /// Path of a chat template file, in Jinja.
    pub chat_template: Option<PathBuf>,
    /// Path of the tokenizer: a directory, one of its files, or a GGUF file.
    pub tokenizer: Option<PathBuf>,
    /// Path of a vision projector (mmproj) for a GGUF model, or `none`; unset: the projector in the model's file,
    /// or a matching file beside it.
    pub mmproj: Option<PathBuf>,
    /// Metadata overrides, each as `KEY=TYPE:VALUE` with the type `int`, `float`, `bool` or `str`.
    pub override_kv: Vec<String>,
    /// Scaling of the rotary embedding: `none`, `linear` or `yarn`.
    pub rope_scaling: Option<String>,
    /// Factor by which the context is extended.
    pub rope_scale: Option<f32>,
    /// Base of the rotary embedding's frequencies.
    pub rope_freq_base: Option<f32>,
    /// Original context length in tokens, before scaling.
    pub yarn_orig_ctx: Option<u32>,
    /// YaRN's attention factor, applied to cosine and sine.
    pub yarn_attn_factor: Option<f32>,
    /// YaRN's `beta_fast`: frequencies with more rotations than this are unchanged.
    pub yarn_beta_fast: Option<f32>,
    /// YaRN's `beta_slow`: frequencies with fewer rotations than this are divided by the factor.
    pub yarn_beta_slow: Option<f32>,
    /// Quantisation of matrices while loading: a number of bits, or the name of a type.
    pub isq: Option<String>,
    /// Path of a file of rules (TOML or YAML) that give other types to some matrices.
    pub topology: Option<PathBuf>,
    /// Path of an importance matrix, as `imatrix` or llama-imatrix writes it, that weights the quantisation errors
    /// of columns.
    pub imatrix: Option<PathBuf>,
}
