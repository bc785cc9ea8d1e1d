//! Text models inside checkpoints for images or sound: the settings of `config.json` and the tensors that belong to
//! the text. Inputs that are not supported are reported by name. A text's rotary embedding of several axes (M-RoPE)
//! has the same position on each, so it is a plain one.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_model_files::tensor::Tensor;
use serde_json::{Map, Value};

use super::crossing::{PASSED_BY, cut_off, layers_of_images};
use super::{Config, Names, families};

/// A class that contains a text model.
#[derive(Debug)]
struct Wrapper {
    model_type: &'static str,
    classes: &'static [&'static str],
    /// Key of the text's settings; if absent, they are among the wrapper's own.
    nested: &'static str,
    /// Model type of the text if its settings do not say.
    text: &'static str,
    /// Prefixes of the names of tensors that are not the text's, without `model.`.
    others: &'static [&'static str],
    /// Inputs that those tensors are for.
    inputs: &'static [&'static str],
}

/// Classes whose head is the embedding unless their own settings, apart from the text's, say otherwise.
const TIED: &[&str] =
    &["aya_vision", "cohere2_vision", "gemma3", "gemma3n", "gemma4", "internvl", "mistral3", "qwen3_asr"];

const IMAGES: &[&str] = &["images"];
const SOUND: &[&str] = &["audio"];
const BOTH: &[&str] = &["images", "audio"];

const LLAVA: Wrapper = Wrapper {
    model_type: "llava",
    classes: &["LlavaForConditionalGeneration"],
    nested: "text_config",
    text: "llama",
    others: &["vision_tower.", "multi_modal_projector.", "image_newline"],
    inputs: IMAGES,
};

const QWEN_VL: Wrapper = Wrapper { others: &["visual."], ..LLAVA };

const IDEFICS3: Wrapper = Wrapper { others: &["vision_model.", "connector."], ..LLAVA };

const WRAPPERS: &[Wrapper] = &[
    LLAVA,
    Wrapper { model_type: "llava_next", classes: &["LlavaNextForConditionalGeneration"], ..LLAVA },
    Wrapper {
        model_type: "llava_onevision",
        classes: &["LlavaOnevisionForConditionalGeneration"],
        text: "qwen2",
        ..LLAVA
    },
    Wrapper {
        model_type: "gemma3",
        classes: &["Gemma3ForConditionalGeneration"],
        text: "gemma3_text",
        ..LLAVA
    },
    Wrapper {
        model_type: "gemma3n",
        classes: &["Gemma3nForConditionalGeneration"],
        text: "gemma3n_text",
        others: &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."],
        inputs: BOTH,
        ..LLAVA
    },
    Wrapper {
        model_type: "gemma4",
        classes: &["Gemma4ForConditionalGeneration"],
        text: "gemma4_text",
        others: &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."],
        inputs: BOTH,
        ..LLAVA
    },
    Wrapper {
        model_type: "mllama",
        classes: &["MllamaForConditionalGeneration"],
        text: "mllama_text_model",
        others: &["vision_model.", "multi_modal_projector."],
        ..LLAVA
    },
    Wrapper {
        model_type: "mistral3",
        classes: &["Mistral3ForConditionalGeneration"],
        text: "mistral",
        ..LLAVA
    },
    Wrapper {
        model_type: "llama4",
        classes: &["Llama4ForConditionalGeneration"],
        text: "llama4_text",
        others: &["vision_model.", "multi_modal_projector."],
        ..LLAVA
    },
    Wrapper {
        model_type: "qwen2_vl",
        classes: &["Qwen2VLForConditionalGeneration"],
        text: "qwen2_vl_text",
        ..QWEN_VL
    },
    Wrapper {
        model_type: "qwen2_5_vl",
        classes: &["Qwen2_5_VLForConditionalGeneration"],
        text: "qwen2_5_vl_text",
        ..QWEN_VL
    },
    Wrapper {
        model_type: "qwen3_vl",
        classes: &["Qwen3VLForConditionalGeneration"],
        text: "qwen3_vl_text",
        ..QWEN_VL
    },
    Wrapper {
        model_type: "qwen3_vl_moe",
        classes: &["Qwen3VLMoeForConditionalGeneration"],
        text: "qwen3_vl_moe_text",
        ..QWEN_VL
    },
    Wrapper {
        model_type: "qwen3_5",
        classes: &["Qwen3_5ForConditionalGeneration"],
        text: "qwen3_5_text",
        ..QWEN_VL
    },
    Wrapper {
        model_type: "qwen3_5_moe",
        classes: &["Qwen3_5MoeForConditionalGeneration"],
        text: "qwen3_5_moe_text",
        ..QWEN_VL
    },
    Wrapper {
        model_type: "glm4v",
        classes: &["Glm4vForConditionalGeneration"],
        text: "glm4v_text",
        ..QWEN_VL
    },
    Wrapper {
        model_type: "glm4v_moe",
        classes: &["Glm4vMoeForConditionalGeneration"],
        text: "glm4v_moe_text",
        ..QWEN_VL
    },
    Wrapper {
        model_type: "idefics2",
        classes: &["Idefics2ForConditionalGeneration"],
        text: "mistral",
        ..IDEFICS3
    },
    Wrapper { model_type: "idefics3", classes: &["Idefics3ForConditionalGeneration"], ..IDEFICS3 },
    Wrapper { model_type: "smolvlm", classes: &["SmolVLMForConditionalGeneration"], ..IDEFICS3 },
    Wrapper {
        model_type: "internvl",
        classes: &["InternVLForConditionalGeneration"],
        text: "qwen2",
        ..LLAVA
    },
    // As saved by its makers' class.
    Wrapper {
        model_type: "internvl_chat",
        classes: &["InternVLChatModel"],
        nested: "llm_config",
        text: "qwen2",
        others: &["vision_model.", "mlp1."],
        inputs: IMAGES,
    },
    Wrapper {
        model_type: "cohere2_vision",
        classes: &["Cohere2VisionForConditionalGeneration"],
        text: "cohere2",
        ..LLAVA
    },
    Wrapper {
        model_type: "aya_vision",
        classes: &["AyaVisionForConditionalGeneration"],
        text: "cohere2",
        ..LLAVA
    },
    Wrapper {
        model_type: "voxtral",
        classes: &["VoxtralForConditionalGeneration"],
        others: &["audio_tower.", "multi_modal_projector."],
        inputs: SOUND,
        ..LLAVA
    },
    Wrapper {
        model_type: "qwen2_audio",
        classes: &["Qwen2AudioForConditionalGeneration"],
        text: "qwen2",
        others: &["audio_tower.", "multi_modal_projector."],
        inputs: SOUND,
        ..LLAVA
    },
    Wrapper {
        model_type: "qwen3_asr",
        classes: &["Qwen3ASRForConditionalGeneration"],
        text: "qwen3",
        others: &["audio_tower.", "multi_modal_projector."],
        inputs: SOUND,
        ..LLAVA
    },
];

/// A class of text models: the family that runs it, and the defaults of its settings, because the library writes only
/// those that differ.
#[derive(Debug)]
struct TextType {
    model_type: &'static str,
    /// The family.
    family: &'static str,
    /// Values of [`SIZES`].
    sizes: [u32; 7],
    more: &'static [(&'static str, DefaultValue)],
}

/// Default of a setting.
#[derive(Clone, Copy, Debug)]
enum DefaultValue {
    Whole(u32),
    Number(f64),
    Truth(bool),
}

const SIZES: [&str; 7] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
];

const QWEN2_VL: TextType = TextType {
    model_type: "qwen2_vl_text",
    family: "qwen2",
    sizes: [152_064, 8192, 29_568, 80, 64, 8, 32_768],
    more: &[("rms_norm_eps", DefaultValue::Number(1e-5)), ("rope_theta", DefaultValue::Number(1e6))],
};

const TEXT_TYPES: &[TextType] = &[
    TextType {
        model_type: "llama",
        family: "llama",
        sizes: [32_000, 4096, 11_008, 32, 32, 32, 2048],
        more: &[],
    },
    TextType {
        model_type: "mllama_text_model",
        family: "llama",
        sizes: [128_256, 4096, 14_336, 40, 32, 8, 131_072],
        more: &[("rms_norm_eps", DefaultValue::Number(1e-5)), ("rope_theta", DefaultValue::Number(5e5))],
    },
    TextType {
        model_type: "mistral",
        family: "mistral",
        sizes: [32_000, 4096, 14_336, 32, 32, 8, 131_072],
        more: &[("sliding_window", DefaultValue::Whole(4096))],
    },
    TextType {
        model_type: "ministral3",
        family: "ministral3",
        sizes: [131_072, 4096, 14_336, 34, 32, 8, 262_144],
        more: &[],
    },
    TextType {
        model_type: "qwen2",
        family: "qwen2",
        sizes: [151_936, 4096, 22_016, 32, 32, 32, 32_768],
        more: &[],
    },
    TextType {
        model_type: "qwen3",
        family: "qwen3",
        sizes: [151_936, 4096, 22_016, 32, 32, 32, 32_768],
        more: &[],
    },
    QWEN2_VL,
    TextType { model_type: "qwen2_5_vl_text", ..QWEN2_VL },
    // For settings among the wrapper's own.
    TextType { model_type: "qwen2_vl", ..QWEN2_VL },
    TextType { model_type: "qwen2_5_vl", ..QWEN2_VL },
    TextType {
        model_type: "qwen3_vl_text",
        family: "qwen3",
        sizes: [151_936, 4096, 22_016, 32, 32, 32, 128_000],
        more: &[("rope_theta", DefaultValue::Number(5e5))],
    },
    TextType {
        model_type: "qwen3_vl_moe_text",
        family: "qwen3_moe",
        sizes: [151_936, 2048, 5632, 24, 16, 16, 128_000],
        more: &[
            ("rope_theta", DefaultValue::Number(5e5)),
            ("head_dim", DefaultValue::Whole(128)),
            ("num_experts", DefaultValue::Whole(60)),
            ("num_experts_per_tok", DefaultValue::Whole(4)),
            ("moe_intermediate_size", DefaultValue::Whole(1408)),
        ],
    },
    TextType {
        model_type: "gemma3_text",
        family: "gemma3_text",
        sizes: [262_208, 2304, 9216, 26, 8, 4, 131_072],
        more: &[("sliding_window", DefaultValue::Whole(4096))],
    },
    TextType {
        model_type: "gemma3n_text",
        family: "gemma3n_text",
        sizes: [262_400, 2048, 16_384, 35, 8, 2, 32_768],
        more: &[],
    },
    TextType {
        model_type: "gemma4_text",
        family: "gemma4_text",
        sizes: [262_144, 2304, 9216, 30, 8, 4, 131_072],
        more: &[],
    },
    TextType {
        model_type: "cohere2",
        family: "cohere2",
        sizes: [256_000, 8192, 22_528, 40, 64, 64, 8192],
        more: &[("sliding_window", DefaultValue::Whole(4096))],
    },
    TextType {
        model_type: "granite",
        family: "granite",
        sizes: [32_000, 4096, 11_008, 32, 32, 32, 2048],
        more: &[],
    },
    TextType {
        model_type: "llama4_text",
        family: "llama4_text",
        sizes: [202_048, 5120, 8192, 48, 40, 8, 131_072],
        more: &[
            ("head_dim", DefaultValue::Whole(128)),
            ("intermediate_size_mlp", DefaultValue::Whole(16_384)),
            ("num_local_experts", DefaultValue::Whole(16)),
            ("num_experts_per_tok", DefaultValue::Whole(1)),
        ],
    },
    TextType {
        model_type: "glm4v_text",
        family: "glm4",
        sizes: [151_552, 4096, 13_696, 40, 32, 2, 32_768],
        more: &[("rms_norm_eps", DefaultValue::Number(1e-5))],
    },
    TextType {
        model_type: "glm4v_moe_text",
        family: "glm4_moe",
        sizes: [151_424, 4096, 10_944, 46, 96, 8, 65_536],
        more: &[
            ("attention_bias", DefaultValue::Truth(true)),
            ("n_routed_experts", DefaultValue::Whole(128)),
            ("num_experts_per_tok", DefaultValue::Whole(8)),
            ("moe_intermediate_size", DefaultValue::Whole(1408)),
            ("n_shared_experts", DefaultValue::Whole(1)),
            ("first_k_dense_replace", DefaultValue::Whole(1)),
        ],
    },
];

/// Settings that a class fixes whatever its configuration says.
const ALWAYS: &[(&str, &str, DefaultValue)] =
    &[("qwen3_vl_moe_text", "norm_topk_prob", DefaultValue::Truth(true))];

/// Settings of the wrapper that take precedence over the text's.
const OUTER: &[&str] =
    &["bos_token_id", "eos_token_id", "pad_token_id", "quantization", "quantization_config"];

/// Prefixes of the text's tensors in files, and the prefixes they would have without a wrapper.
const PREFIXES: &[(&str, &str)] = &[
    ("model.language_model.lm_head.", "lm_head."),
    ("model.language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.model.", "model."),
];

/// A text model found inside another.
#[derive(Debug)]
pub struct Multimodal {
    wrapper: &'static Wrapper,
    /// Model type of its class, which determines its tensors' names.
    pub(crate) text_type: String,
    /// Whether the settings say that the head is the embedding, that it is not, or neither.
    tied: Option<bool>,
    /// Cross-attention layers, ascending.
    pub(super) crossing: Vec<usize>,
    /// Whether those layers are skipped, because no images are read; they are then not among its layers.
    pub(super) passes_by: bool,
}

/// Names of the model types whose text is run.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    let runs = |wrapper: &&Wrapper| TEXT_TYPES.iter().any(|known| known.model_type == wrapper.text);
    WRAPPERS.iter().filter(runs).map(|wrapper| wrapper.model_type)
}

/// Inputs of a GGUF file's model that are not supported, if its architecture tells.
pub fn not_read(architecture: &str) -> &'static [&'static str] {
    match architecture {
        "mllama" | "qwen2vl" | "qwen3vl" | "qwen3vlmoe" => IMAGES,
        _ => &[],
    }
}

impl Multimodal {
    /// Replaces a wrapper's settings by those of the text; nothing without a wrapper.
    ///
    /// # Errors
    /// `Corrupt` if they are no object, `Unsupported` for an unknown class.
    pub fn take(config: &mut Config) -> Result<Option<Multimodal>, LoadError> {
        let model_type = config.string("model_type")?.unwrap_or_default();
        let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.model_type == model_type) else {
            return Ok(None);
        };
        let classes = config.get("architectures").and_then(Value::as_array);
        if let Some(classes) = classes.filter(|classes| !classes.is_empty())
            && !classes.iter().any(|class| wrapper.classes.iter().any(|known| class == known))
        {
            let known = wrapper.classes.join(", ");
            let named = Value::from(classes.clone());
            return Err(config.unsupported("architectures", named, format!("{known} is known")));
        }
        let nested = config.object(wrapper.nested)?;
        let mut settings = match &nested {
            Some(nested) => nested.settings.clone(),
            None => config.settings.clone(),
        };
        let tied = match (nested.as_ref(), config.bool("tie_word_embeddings")?) {
            (Some(nested), outer) => match (nested.bool("tie_word_embeddings")?, outer) {
                // A default of the text's class that the wrapper's class contradicts does not count.
                (Some(inner), Some(outer)) if inner != outer => None,
                (Some(false), None) if TIED.contains(&wrapper.model_type) => None,
                (inner, outer) => inner.or(outer),
            },
            (None, outer) => outer,
        };
        for key in ["architectures", "vision_config", "audio_config"] {
            settings.remove(key);
        }
        for &key in OUTER {
            if let Some(value) = config.get(key) {
                settings.insert(key.to_owned(), value.clone());
            }
        }
        let text_type = match (&nested, settings.get("model_type").and_then(Value::as_str)) {
            (Some(_), Some(named)) => named.to_owned(),
            _ => wrapper.text.to_owned(),
        };
        complete(&mut settings, &text_type);
        settings.remove("tie_word_embeddings");
        let crossing = match text_type.as_str() {
            "mllama_text_model" => layers_of_images(config, &mut settings)?,
            _ => Vec::new(),
        };
        for key in ["rope_scaling", "rope_parameters"] {
            if let Some(Value::Object(rope)) = settings.get_mut(key) {
                along_one_axis(rope);
            }
        }
        config.settings = settings;
        Ok(Some(Multimodal { wrapper, text_type, tied, crossing, passes_by: false }))
    }

    /// Names of the text's tensors, without the wrapper's prefixes.
    pub fn names(&self) -> &'static Names {
        match TEXT_TYPES.iter().find(|known| known.model_type == self.text_type) {
            Some(TextType { model_type: "qwen3_vl_moe_text", .. }) => &families::QWEN3_VL_MOE_NAMES,
            Some(known) => families::huggingface_names(known.family),
            None => families::huggingface_names(&self.text_type),
        }
    }

    /// Inputs that are not supported.
    pub fn not_read(&self) -> &'static [&'static str] {
        self.wrapper.inputs
    }

    /// Model type of the wrapper.
    pub fn model_type(&self) -> &'static str {
        self.wrapper.model_type
    }

    /// Keeps the text's tensors, and returns the others.
    pub fn leave_text(&self, tensors: &mut Vec<Tensor>) -> Vec<Tensor> {
        let is_other = |tensor: &mut Tensor| {
            let own = tensor.name.strip_prefix("model.").unwrap_or(&tensor.name);
            self.wrapper.others.iter().any(|start| own.starts_with(start))
        };
        tensors.extract_if(.., is_other).collect()
    }

    /// Renames the text's tensors as if there were no wrapper, and records in `config` whether its head may be the
    /// embedding. Returns the embedding's rows past the vocabulary, if some stand for images.
    pub fn unwrap(&self, tensors: &mut Vec<Tensor>, config: &mut Config) -> Option<Tensor> {
        let vocab = config.get("vocab_size").and_then(Value::as_u64).unwrap_or(0) as usize;
        let mut behind = None;
        for tensor in tensors.iter_mut() {
            let found =
                PREFIXES.iter().find_map(|(start, own)| Some((tensor.name.strip_prefix(start)?, own)));
            if let Some((rest, own)) = found {
                tensor.name = format!("{own}{rest}");
            }
            if !self.crossing.is_empty() {
                self.renumber(tensor);
                behind = behind.or(cut_off(tensor, vocab));
            }
        }
        tensors.retain(|tensor| !tensor.name.starts_with(PASSED_BY));
        config.set("tie_word_embeddings", (self.tied != Some(false)).into());
        behind
    }
}

/// Adds the defaults of the text's class.
fn complete(settings: &mut Map<String, Value>, text_type: &str) {
    let Some(known) = TEXT_TYPES.iter().find(|known| known.model_type == text_type) else {
        settings.insert("model_type".to_owned(), text_type.into());
        return;
    };
    settings.insert("model_type".to_owned(), known.family.into());
    let sizes = SIZES.into_iter().zip(known.sizes.map(DefaultValue::Whole));
    // The library has used both names for the same class.
    let counted = settings.contains_key("num_local_experts");
    for (key, setting) in sizes.chain(known.more.iter().copied()) {
        if key == "num_experts" && counted {
            continue;
        }
        // A null setting stays null.
        settings.entry(key).or_insert_with(|| setting.value());
    }
    if text_type == "glm4v_text" {
        // The class derives the size of heads from the hidden size, whatever the settings say.
        let size = |key: &str| settings.get(key).and_then(Value::as_u64).unwrap_or(0);
        if let Some(head_dim) = size("hidden_size").checked_div(size("num_attention_heads")) {
            settings.insert("head_dim".to_owned(), head_dim.into());
        }
    }
    for (_, key, setting) in ALWAYS.iter().filter(|(of, ..)| *of == text_type) {
        settings.insert((*key).to_owned(), setting.value());
    }
}

impl DefaultValue {
    fn value(self) -> Value {
        match self {
            DefaultValue::Whole(number) => number.into(),
            DefaultValue::Number(number) => number.into(),
            DefaultValue::Truth(truth) => truth.into(),
        }
    }
}

/// Removes the division of frequencies between axes, which has no effect: a text has the same position on all axes.
fn along_one_axis(rope: &mut Map<String, Value>) {
    rope.remove("mrope_section");
    rope.remove("mrope_interleaved");
    for key in ["rope_type", "type"] {
        if rope.get(key).is_some_and(|kind| kind == "mrope") {
            rope.insert(key.to_owned(), "default".into());
        }
    }
}
