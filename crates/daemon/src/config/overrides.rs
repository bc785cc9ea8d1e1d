//! Overrides of a model's files. Their conversion to the wire's message, which also checks them, is in
//! `convert/override_config.rs`.

use std::path::PathBuf;

use hanzo_engine_process::{
    settings,
    settings::{ModelCommand, text},
};

settings! {
    /// Overrides of the values in a model's files. Unset values stay as in the files.
    pub struct OverrideConfig("models.overrides.") {
        /// Path of a chat template file, in Jinja.
        chat_template: Option<PathBuf> = None => load("FILE", "Chat template, a Jinja file")
            .example("/etc/hanzo-engine/template.jinja");
        /// Path of the tokenizer: a directory, one of its files, or a GGUF file.
        tokenizer: Option<PathBuf> = None
            => flag::<ModelCommand>("PATH", "Tokenizer: a directory, one of its files such as tokenizer.json, or a \
                                             GGUF file", text).example("/var/lib/hanzo-engine/tokenizer");
        /// Path of a vision projector (mmproj) for a GGUF model, or `none`; unset: the projector in the model's file,
        /// or a matching file beside it.
        mmproj: Option<PathBuf> = None
            => flag::<ModelCommand>("FILE", "Vision projector (mmproj) of a GGUF model, a file, or none for text \
                                             only; a matching file beside the model is found automatically", text)
            .example("/var/lib/hanzo-engine/mmproj.gguf");
        /// Metadata overrides, each as `KEY=TYPE:VALUE` with the type `int`, `float`, `bool` or `str`.
        override_kv: Vec<String> = Vec::new()
            => load("KEY=TYPE:VALUE", "Metadata value, of type int, float, bool or str, for a key of GGUF metadata \
                                       or of config.json; repeatable").example(["general.name=str:Mine"]);
        /// Scaling of the rotary embedding: `none`, `linear` or `yarn`.
        rope_scaling: Option<String> = None
            => load("HOW", "Scaling of the rotary embedding for a longer context: none, linear or yarn")
            .example("yarn");
        /// Factor by which the context is extended.
        rope_scale: Option<f32> = None => load("N", "Factor by which the context grows").example(4.0);
        /// Base of the rotary embedding's frequencies.
        rope_freq_base: Option<f32> = None => load("BASE", "Base frequency of the rotary embedding")
            .example(1000000.0);
        /// Original context length in tokens, before scaling.
        yarn_orig_ctx: Option<u32> = None => load("TOKENS", "YaRN: original context length in tokens").example(32768);
        /// YaRN's attention factor, applied to cosine and sine.
        yarn_attn_factor: Option<f32> = None => load("FACTOR", "YaRN: factor on cosine and sine").example(1.0);
        /// YaRN's `beta_fast`: frequencies with more rotations than this are unchanged.
        yarn_beta_fast: Option<f32> = None => load("TURNS", "YaRN: rotations above which frequencies are unchanged")
            .example(32.0);
        /// YaRN's `beta_slow`: frequencies with fewer rotations than this are divided by the factor.
        yarn_beta_slow: Option<f32> = None => load("TURNS", "YaRN: rotations below which frequencies are divided")
            .example(1.0);
        /// Quantisation of matrices while loading: a number of bits, or the name of a type.
        isq: Option<String> = None
            => load("TYPE", "Quantise matrices while loading: 2, 3, 4, 5, 6 or 8 bits, or a type such as Q4_K, Q8_0, \
                             IQ4_XS, MXFP4, FP8, AFQ4 or HQQ4").example("q4_k");
        /// Path of a file of rules (TOML or YAML) that give other types to some matrices.
        topology: Option<PathBuf> = None
            => load("FILE", "Rules for the types of single layers and tensors, a TOML or YAML file")
            .example("/etc/hanzo-engine/topology.toml");
        /// Path of an importance matrix, as `imatrix` or llama-imatrix writes it, that weights the quantisation errors
        /// of columns.
        imatrix: Option<PathBuf> = None
            => flag::<ModelCommand>("FILE", "Importance matrix from `imatrix` or llama-imatrix: weighs quantisation \
                                             errors by column, for --isq or --topology", text)
            .example("/var/lib/hanzo-engine/imatrix.gguf");
    }
}
