//! Differences between the names of Ollama's converter (github.com/ollama/ollama, `convert`) and llama.cpp's, for
//! each architecture whose files contain towers: keys and tensors of the text model, and of the supported towers.

use std::collections::BTreeMap;

use super::{OllamaKeys, colors, mllama};
use crate::error::LoadError;
use crate::gguf::{Array, Value};
use crate::tensor::Tensor;
use crate::vision::mmproj::Usual;

/// Architecture.
pub(super) struct OllamaFamily {
    pub(super) name: &'static str,
    /// Architecture name in llama.cpp's files.
    pub(super) text: &'static str,
    /// Architecture name of its mixtures of experts, if different.
    pub(super) text_of_experts: Option<&'static str>,
    /// Inputs of its towers.
    pub(super) inputs: &'static [&'static str],
    /// Tower, if supported.
    pub(super) eyes: Option<Eyes>,
    /// The model only reads pictures.
    pub(super) is_useless_alone: bool,
    /// Renamed keys of the text model.
    pub(super) text_keys: &'static [(&'static str, &'static str)],
    /// Keys without effect on the text model.
    pub(super) no_matter: &'static [&'static str],
    /// Keys of the tower without the usual prefix.
    pub(super) tower_keys: &'static [&'static str],
    /// Renamed endings of the text model's tensors.
    pub(super) text_tensors: &'static [(&'static str, &'static str)],
    /// Adds settings of the text model that the converter leaves out. Gets whether the file has a tower, and the
    /// text model's tensors.
    pub(super) complete: fn(&mut OllamaKeys, bool, &mut [Tensor]) -> Result<(), LoadError>,
}

/// Supported tower.
pub(super) struct Eyes {
    /// `clip.projector_type` in llama.cpp's files.
    pub(super) projector: &'static str,
    /// Key of the activation in llama.cpp's files.
    pub(super) activation: &'static str,
    /// Renamed keys, besides [`KEYS`].
    pub(super) keys: &'static [(&'static str, &'static str)],
    /// Keys with a single supported value, besides [`USUAL`].
    pub(super) usual: &'static [(&'static str, Usual)],
    /// Keys without effect.
    pub(super) no_matter: &'static [&'static str],
    /// Renamed tensors.
    pub(super) tensors: &'static [(&'static str, &'static str)],
    /// Adds settings that the converter leaves out.
    pub(super) complete: fn(&mut BTreeMap<String, Value>, &[Tensor]),
}

/// Keys of all supported towers, with their names in llama.cpp's files.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("vision.attention.head_count", "clip.vision.attention.head_count"),
    ("vision.attention.layer_norm_epsilon", "clip.vision.attention.layer_norm_epsilon"),
    ("vision.block_count", "clip.vision.block_count"),
    ("vision.embedding_length", "clip.vision.embedding_length"),
    ("vision.feed_forward_length", "clip.vision.feed_forward_length"),
    ("vision.image_mean", "clip.vision.image_mean"),
    ("vision.image_size", "clip.vision.image_size"),
    ("vision.image_std", "clip.vision.image_std"),
    ("vision.patch_size", "clip.vision.patch_size"),
    ("vision.spatial_merge_size", "clip.vision.spatial_merge_size"),
];

/// Keys of all supported towers with a single supported value.
pub(super) const USUAL: &[(&str, Usual)] =
    &[("vision.num_channels", Usual::Whole(3)), ("vision.temporal_patch_size", Usual::Whole(2))];

const GEMMA3: Eyes = Eyes {
    projector: "gemma3",
    activation: "clip.use_gelu",
    keys: &[("mm.tokens_per_image", "clip.vision.projector.rows")],
    usual: &[],
    no_matter: &[],
    tensors: &[
        ("v.patch_embedding.", "v.patch_embd."),
        ("v.position_embedding.", "v.position_embd."),
        ("v.post_layernorm.", "v.post_ln."),
        ("mm.mm_input_projection.", "mm.input_projection."),
        ("mm.mm_soft_emb_norm.", "mm.soft_emb_norm."),
        (".layer_norm1.", ".ln1."),
        (".layer_norm2.", ".ln2."),
        (".attn_output.", ".attn_out."),
        (".mlp.fc1.", ".ffn_up."),
        (".mlp.fc2.", ".ffn_down."),
    ],
    complete: |said, _| colored(said, HALF, HALF),
};

const PIXTRAL: Eyes = Eyes {
    projector: "pixtral",
    activation: "clip.use_silu",
    keys: &[
        ("spatial_merge_size", "clip.vision.spatial_merge_size"),
        ("vision.longest_edge", "clip.vision.preproc_image_size"),
        ("vision.rope.freq_base", "clip.rope.freq_base"),
    ],
    usual: &[("mm.projector_hidden_act", Usual::Text("gelu"))],
    no_matter: &["vision.attention.key_length", "mm.projector_bias"],
    tensors: &[
        ("v.patch_conv.", "v.patch_embd."),
        ("v.encoder_norm.", "v.pre_ln."),
        ("mm.linear_1.", "mm.1."),
        ("mm.linear_2.", "mm.2."),
        ("mm.patch_merger.merging_layer.", "mm.patch_merger."),
        ("mm.norm.", "mm.input_norm."),
        (".attn_output.", ".attn_out."),
        (".attn_norm.", ".ln1."),
        (".ffn_norm.", ".ln2."),
    ],
    complete: |said, _| colored(said, CLIP_MEAN, CLIP_STD),
};

const QWEN25: Eyes = Eyes {
    projector: "qwen2.5vl_merger",
    activation: "clip.use_silu",
    keys: &[
        ("vision.fullatt_block_indexes", "clip.vision.fullatt_block_indexes"),
        ("vision.longest_edge", "clip.vision.image_max_pixels"),
        ("vision.shortest_edge", "clip.vision.image_min_pixels"),
        ("vision.window_size", "clip.vision.window_size"),
    ],
    usual: &[("vision.rope.freq_base", Usual::Number(1e4))],
    no_matter: &["vision.spatial_patch_size"],
    tensors: &[
        ("v.merger.ln_q.", "v.post_ln."),
        ("v.merger.mlp.0.", "mm.0."),
        ("v.merger.mlp.2.", "mm.2."),
        ("v.patch_embd_0.weight", "v.patch_embd.weight"),
        ("v.patch_embd_1.weight", "v.patch_embd.weight.1"),
    ],
    complete: |said, _| {
        colored(said, CLIP_MEAN, CLIP_STD);
        let layers = Value::Array(Array::I32(vec![7, 15, 23, 31]));
        said.entry("clip.vision.fullatt_block_indexes".into()).or_insert(layers);
        // Pictures of this family have no fixed size.
        said.entry("clip.vision.image_size".into()).or_insert(Value::U32(560));
    },
};

const QWEN3: Eyes = Eyes {
    projector: "qwen3vl_merger",
    activation: "clip.use_gelu",
    keys: &[
        ("vision.longest_edge", "clip.vision.image_max_pixels"),
        ("vision.shortest_edge", "clip.vision.image_min_pixels"),
    ],
    usual: &[("vision.rope.freq_base", Usual::Number(1e4))],
    no_matter: &["vision.num_positional_embeddings"],
    tensors: &[
        ("v.pos_embed.", "v.position_embd."),
        ("v.patch_embed.", "v.patch_embd."),
        ("v.merger.norm.", "v.post_ln."),
        ("v.merger.linear_fc1.", "mm.0."),
        ("v.merger.linear_fc2.", "mm.2."),
        (".norm1.", ".ln1."),
        (".norm2.", ".ln2."),
        (".mlp.linear_fc1.", ".ffn_up."),
        (".mlp.linear_fc2.", ".ffn_down."),
    ],
    complete: |said, _| {
        colored(said, HALF, HALF);
        // Pictures of this family have no fixed size.
        said.entry("clip.vision.image_size".into()).or_insert(Value::U32(768));
    },
};

const IMAGES: &[&str] = &["images"];
const BOTH: &[&str] = &["images", "audio"];

/// Family whose text model is as llama.cpp's converter writes it, and whose tower is not supported.
const PLAIN: OllamaFamily = OllamaFamily {
    name: "",
    text: "",
    text_of_experts: None,
    inputs: IMAGES,
    eyes: None,
    is_useless_alone: false,
    text_keys: &[],
    no_matter: &[],
    tower_keys: &[],
    text_tensors: &[],
    complete: |_, _, _| Ok(()),
};

/// Keys of Qwen's text models for picture positions.
const QWEN_KEYS: &[(&str, &str)] =
    &[("rope.mrope_section", "rope.dimension_sections"), ("mrope_sections", "rope.dimension_sections")];

const QWEN3VL: OllamaFamily = OllamaFamily {
    eyes: Some(QWEN3),
    text_keys: QWEN_KEYS,
    no_matter: &["rope.mrope_interleaved"],
    complete: |keys, is_embedded, _| {
        if is_embedded {
            keys.default("rope.dimension_sections", Value::Array(Array::I32(vec![24, 20, 20, 0])));
        }
        keys.only("norm_top_k_prob", &Value::Bool(true))
    },
    ..PLAIN
};

const QWEN35: OllamaFamily = OllamaFamily {
    text_keys: QWEN_KEYS,
    no_matter: &["rope.mrope_interleaved"],
    tower_keys: &["image_token_id", "vision_end_token_id", "vision_start_token_id"],
    text_tensors: &[(".ssm_dt", ".ssm_dt.bias")],
    complete: |keys, _, _| {
        keys.largest("attention.head_count_kv")?;
        keys.only("norm_top_k_prob", &Value::Bool(true))?;
        keys.only("ssm.v_head_reordered", &Value::Bool(true))
    },
    ..PLAIN
};

pub(super) const FAMILIES: &[OllamaFamily] = &[
    OllamaFamily {
        name: "gemma3",
        text: "gemma3",
        eyes: Some(GEMMA3),
        text_keys: &[
            ("rope.global.freq_base", "rope.freq_base"),
            ("rope.local.freq_base", "rope.freq_base_swa"),
            ("rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"),
            ("rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"),
        ],
        no_matter: &["mm_tokens_per_image"],
        complete: gemma3,
        ..PLAIN
    },
    OllamaFamily {
        name: "mistral3",
        text: "mistral3",
        eyes: Some(PIXTRAL),
        text_keys: &[
            ("rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"),
            ("rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"),
            ("rope.scaling.mscale_all_dim", "rope.scaling.yarn_log_multiplier"),
            ("rope.scaling_beta", "attention.temperature_scale"),
        ],
        no_matter: &["rope.scaling.mscale"],
        tower_keys: &["image_token_index", "spatial_merge_size"],
        complete: mistral3,
        ..PLAIN
    },
    OllamaFamily { name: "qwen25vl", text: "qwen2vl", eyes: Some(QWEN25), text_keys: QWEN_KEYS, ..PLAIN },
    OllamaFamily { name: "qwen3vl", text: "qwen3vl", ..QWEN3VL },
    OllamaFamily { name: "qwen3vlmoe", text: "qwen3vlmoe", ..QWEN3VL },
    OllamaFamily { name: "qwen35", text: "qwen35", ..QWEN35 },
    OllamaFamily { name: "qwen35moe", text: "qwen35moe", ..QWEN35 },
    OllamaFamily {
        name: "gemma3n",
        text: "gemma3n",
        inputs: BOTH,
        text_keys: &[("head_dim", "attention.key_length"), ("rope.freq_base_local", "rope.freq_base_swa")],
        no_matter: &["altup.correct_scale", "altup.lr_multiplier"],
        complete: gemma3n,
        ..PLAIN
    },
    OllamaFamily {
        name: "gemma4",
        text: "gemma4",
        inputs: BOTH,
        text_tensors: &[(".ffn_gate_inp.per_expert_scale", ".ffn_down_exps.scale")],
        complete: |keys, is_embedded, _| {
            // It uses byte-pair merges, whatever the file says.
            if is_embedded && keys.metadata.string(TOKENIZER)? == Some("llama") {
                keys.metadata.set(TOKENIZER, Value::String("gemma4".into()));
            }
            Ok(())
        },
        ..PLAIN
    },
    OllamaFamily {
        name: "llama4",
        text: "llama4",
        no_matter: &["attention.head_dim", "use_qk_norm"],
        complete: |keys, _, _| keys.only("attention.chunk_size", &Value::U32(8192)),
        ..PLAIN
    },
    OllamaFamily {
        name: "lfm2",
        text: "lfm2",
        text_tensors: &[("output_norm.weight", "token_embd_norm.weight")],
        ..PLAIN
    },
    OllamaFamily {
        name: "nemotron_h_omni",
        text: "nemotron_h",
        text_of_experts: Some("nemotron_h_moe"),
        inputs: BOTH,
        text_tensors: &[
            (".ffn_latent_in.weight", ".ffn_latent_down.weight"),
            (".ffn_latent_out.weight", ".ffn_latent_up.weight"),
        ],
        ..PLAIN
    },
    OllamaFamily { name: "glmocr", text: "glm4", is_useless_alone: true, ..PLAIN },
    OllamaFamily { name: "deepseekocr", text: "deepseek2-ocr", is_useless_alone: true, ..PLAIN },
];

/// Whether the towers in files of an architecture are supported.
pub(crate) fn runs(architecture: &str) -> bool {
    let own = FAMILIES.iter().find(|family| family.text == architecture);
    architecture == mllama::NAME || own.is_some_and(|family| family.eyes.is_some())
}

/// Prefixes of the names of towers' tensors.
const OF_TOWERS: [&str; 5] = ["v.", "mm.", "a.", "s.", "model.vision_tower."];

/// Whether a tensor in a text model's file belongs to a tower inside it.
pub(crate) fn is_of_tower(name: &str) -> bool {
    OF_TOWERS.iter().any(|start| name.starts_with(start))
}

/// Prefix of tensors for multi-token prediction, which is not supported.
const PREDICTING: &str = "mtp.";

const TOKENIZER: &str = "tokenizer.ggml.model";

impl OllamaFamily {
    /// Renames the text model's tensors as llama.cpp's converter does, and drops those that no network has.
    pub(super) fn name_text(&self, tensors: &mut Vec<Tensor>) {
        tensors.retain(|tensor| !tensor.name.starts_with(PREDICTING));
        for tensor in tensors {
            let renamed = self
                .text_tensors
                .iter()
                .find_map(|(end, other)| Some(format!("{}{other}", tensor.name.strip_suffix(end)?)));
            tensor.name = renamed.unwrap_or_else(|| std::mem::take(&mut tensor.name));
        }
    }
}

impl OllamaKeys {
    /// Takes a key that must have its only supported value.
    fn only(&mut self, name: &str, usual: &Value) -> Result<(), LoadError> {
        let key = self.key(name);
        match self.metadata.take(&key) {
            Some(found) if found != *usual => Err(LoadError::Unsupported {
                file: self.metadata.file().to_owned(),
                key,
                value: found.to_string(),
                reason: format!("only {usual} is known"),
            }),
            _ => Ok(()),
        }
    }

    /// Replaces a list over layers by its largest number: the others belong to layers without that part.
    fn largest(&mut self, name: &str) -> Result<(), LoadError> {
        let key = self.key(name);
        if let Some(Value::Array(_)) = self.metadata.get(&key) {
            let largest = self.metadata.integers(&key)?.unwrap_or_default().into_iter().max().unwrap_or(0);
            let largest = u32::try_from(largest).map_err(|_| self.metadata.corrupt(&key, "is no count"))?;
            self.metadata.set(&key, Value::U32(largest));
        }
        Ok(())
    }
}

fn gemma3(keys: &mut OllamaKeys, is_embedded: bool, _: &mut [Tensor]) -> Result<(), LoadError> {
    const CONTEXT: &str = "context_length";
    const END: &str = "tokenizer.ggml.eot_token_id";
    keys.only("rope.scaling.extrapolation_factor", &Value::F32(1.0))?;
    if !is_embedded {
        return Ok(());
    }
    keys.default("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    keys.default("rope.freq_base", Value::F32(1e6));
    // Files of models with vision do not state the scaling of their context.
    if keys.metadata.u32(&keys.key(CONTEXT))?.is_some_and(|tokens| tokens >= 131_072)
        && keys.metadata.get(&keys.key("rope.scaling.type")).is_none()
    {
        keys.default("rope.scaling.type", Value::String("linear".into()));
        keys.default("rope.scaling.factor", Value::F32(8.0));
    }
    let tokens = keys.metadata.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
    let end = tokens.iter().position(|token| token == "<end_of_turn>");
    if let (Some(end), None) = (end, keys.metadata.get(END)) {
        keys.metadata.set(END, Value::U32(end as u32));
    }
    Ok(())
}

fn mistral3(keys: &mut OllamaKeys, is_embedded: bool, _: &mut [Tensor]) -> Result<(), LoadError> {
    const SCALING: &str = "rope.scaling.type";
    const SPLITTER: &str = "tokenizer.ggml.pre";
    // For a model without scaling, the converter writes all of its keys with empty values.
    let kind = keys.metadata.string(&keys.key(SCALING))?;
    if kind.is_some_and(|kind| kind.is_empty() || kind == "default") {
        for name in ["factor", "type", "yarn_beta_fast", "yarn_beta_slow", "yarn_log_multiplier"] {
            keys.metadata.take(&keys.key(&format!("rope.scaling.{name}")));
        }
    }
    let splitter = keys.metadata.string(SPLITTER)?;
    if is_embedded && splitter.is_none_or(|name| name.is_empty() || name == "default") {
        keys.metadata.set(SPLITTER, Value::String("tekken".into()));
    }
    Ok(())
}

/// Cuts the embedding to the tokens that have per-layer inputs: the others stand for pictures and sounds.
fn gemma3n(_: &mut OllamaKeys, _: bool, tensors: &mut [Tensor]) -> Result<(), LoadError> {
    let rows = |name: &str| {
        let found = tensors.iter().find(|tensor| tensor.name == name && tensor.shape.len() == 2);
        found.map(|tensor| tensor.shape[0])
    };
    let (all, inputs) = (rows("token_embd.weight"), rows("per_layer_token_embd.weight"));
    if let (Some(all), Some(inputs)) = (all, inputs)
        && inputs < all
        && let Some(tensor) = tensors.iter_mut().find(|tensor| tensor.name == "token_embd.weight")
    {
        *tensor = tensor.rows(0..inputs);
    }
    Ok(())
}

const HALF: [f32; 3] = [0.5; 3];
pub(super) const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
pub(super) const CLIP_STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// Sets the normalisation of colours if the file lacks it.
fn colored(said: &mut BTreeMap<String, Value>, mean: [f32; 3], std: [f32; 3]) {
    said.entry("clip.vision.image_mean".into()).or_insert(colors(mean));
    said.entry("clip.vision.image_std".into()).or_insert(colors(std));
}
