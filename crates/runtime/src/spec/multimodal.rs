//! Text models inside of checkpoints that see or hear: which settings of `config.json` are the text's, and which tensors. What
//! only reads images or sound is not run, and is told by name. A text's rotary embedding of several axes (M-RoPE) has the
//! same position on each, so that it is a plain one.

use serde_json::{Map, Value};

use super::Config;
use super::crossing::{PASSED_BY, cut_off, layers_of_images};
use crate::audio;
use crate::error::LoadError;
use crate::tensor::Tensor;
use crate::vision;

/// A class with a text model inside.
#[derive(Debug)]
struct Wrapper {
    model_type: &'static str,
    classes: &'static [&'static str],
    /// Where the text's settings are; where the key is absent, they are among the wrapper's own.
    nested: &'static str,
    /// The text's model type where its settings do not say.
    text: &'static str,
    /// Beginnings of the names of tensors that are not the text's, without `model.`.
    others: &'static [&'static str],
    /// What those are for.
    inputs: &'static [&'static str],
}

/// Classes whose head is the embedding unless their own settings, beside the text's, say otherwise.
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
    // As its makers' own class saves it.
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

/// A class of text models: what is run for it, and its settings where they are not given, because the library writes only
/// those that differ.
#[derive(Debug)]
struct TextType {
    model_type: &'static str,
    /// The family that it is.
    family: &'static str,
    /// Of [`SIZES`].
    sizes: [u32; 7],
    more: &'static [(&'static str, Setting)],
}

#[derive(Clone, Copy, Debug)]
enum Setting {
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
    more: &[("rms_norm_eps", Setting::Number(1e-5)), ("rope_theta", Setting::Number(1e6))],
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
        more: &[("rms_norm_eps", Setting::Number(1e-5)), ("rope_theta", Setting::Number(5e5))],
    },
    TextType {
        model_type: "mistral",
        family: "mistral",
        sizes: [32_000, 4096, 14_336, 32, 32, 8, 131_072],
        more: &[("sliding_window", Setting::Whole(4096))],
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
    // Where the settings lie among the wrapper's own.
    TextType { model_type: "qwen2_vl", ..QWEN2_VL },
    TextType { model_type: "qwen2_5_vl", ..QWEN2_VL },
    TextType {
        model_type: "qwen3_vl_text",
        family: "qwen3",
        sizes: [151_936, 4096, 22_016, 32, 32, 32, 128_000],
        more: &[("rope_theta", Setting::Number(5e5))],
    },
    TextType {
        model_type: "qwen3_vl_moe_text",
        family: "qwen3_moe",
        sizes: [151_936, 2048, 5632, 24, 16, 16, 128_000],
        more: &[
            ("rope_theta", Setting::Number(5e5)),
            ("head_dim", Setting::Whole(128)),
            ("num_experts", Setting::Whole(60)),
            ("num_experts_per_tok", Setting::Whole(4)),
            ("moe_intermediate_size", Setting::Whole(1408)),
        ],
    },
    TextType {
        model_type: "gemma3_text",
        family: "gemma3_text",
        sizes: [262_208, 2304, 9216, 26, 8, 4, 131_072],
        more: &[("sliding_window", Setting::Whole(4096))],
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
        more: &[("sliding_window", Setting::Whole(4096))],
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
            ("head_dim", Setting::Whole(128)),
            ("intermediate_size_mlp", Setting::Whole(16_384)),
            ("num_local_experts", Setting::Whole(16)),
            ("num_experts_per_tok", Setting::Whole(1)),
        ],
    },
    TextType {
        model_type: "glm4v_text",
        family: "glm4",
        sizes: [151_552, 4096, 13_696, 40, 32, 2, 32_768],
        more: &[("rms_norm_eps", Setting::Number(1e-5))],
    },
    TextType {
        model_type: "glm4v_moe_text",
        family: "glm4_moe",
        sizes: [151_424, 4096, 10_944, 46, 96, 8, 65_536],
        more: &[
            ("attention_bias", Setting::Truth(true)),
            ("n_routed_experts", Setting::Whole(128)),
            ("num_experts_per_tok", Setting::Whole(8)),
            ("moe_intermediate_size", Setting::Whole(1408)),
            ("n_shared_experts", Setting::Whole(1)),
            ("first_k_dense_replace", Setting::Whole(1)),
        ],
    },
];

/// What a class does whatever its settings say.
const ALWAYS: &[(&str, &str, Setting)] = &[("qwen3_vl_moe_text", "norm_topk_prob", Setting::Truth(true))];

/// Settings that the wrapper's own go before the text's, where it has them.
const OUTER: &[&str] =
    &["bos_token_id", "eos_token_id", "pad_token_id", "quantization", "quantization_config"];

/// Names of the text's tensors: how they begin in files, and as if there were nothing around it.
const PREFIXES: &[(&str, &str)] = &[
    ("model.language_model.lm_head.", "lm_head."),
    ("model.language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.model.", "model."),
];

/// A text model found inside of another.
#[derive(Debug)]
pub(crate) struct Multimodal {
    wrapper: &'static Wrapper,
    /// Its class's model type, by which its tensors are named.
    pub(crate) text_type: String,
    /// What its settings say of the head: that it is the embedding, that it is not, or neither.
    tied: Option<bool>,
    /// Layers that attend to images, ascending.
    pub(super) crossing: Vec<usize>,
    /// Nobody shows it any, so that a text passes those layers by, and they are not among its layers.
    pub(super) passes_by: bool,
}

/// The names of model types whose text is run.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    let runs = |wrapper: &&Wrapper| TEXT_TYPES.iter().any(|known| known.model_type == wrapper.text);
    WRAPPERS.iter().filter(runs).map(|wrapper| wrapper.model_type)
}

/// What the model of a GGUF file was made to read and this build does not, where its architecture says.
pub(crate) fn not_read(architecture: &str) -> &'static [&'static str] {
    match architecture {
        "mllama" | "qwen2vl" | "qwen3vl" | "qwen3vlmoe" => IMAGES,
        _ => &[],
    }
}

impl Multimodal {
    /// Puts the text's settings in place of those of what it is inside of; nothing where it is inside of nothing.
    ///
    /// # Errors
    /// `Corrupt` where they are no object, `Unsupported` for a class that is not known.
    pub(crate) fn take(config: &mut Config) -> Result<Option<Multimodal>, LoadError> {
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
                // What the class of the text takes for granted and that of the whole does not is no word on it.
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

    /// What it was made to read and this build does not.
    pub(crate) fn not_read(&self) -> &'static [&'static str] {
        self.wrapper.inputs
    }

    /// Whether it is of a family whose pictures are read.
    pub(crate) fn sees(&self) -> bool {
        vision::knows(self.wrapper.model_type)
    }

    /// Whether it is of a family whose sounds are read.
    pub(crate) fn hears(&self) -> bool {
        audio::knows(self.wrapper.model_type)
    }

    /// Leaves the text's tensors, and gives the others.
    pub(crate) fn leave_text(&self, tensors: &mut Vec<Tensor>) -> Vec<Tensor> {
        let is_other = |tensor: &mut Tensor| {
            let own = tensor.name.strip_prefix("model.").unwrap_or(&tensor.name);
            self.wrapper.others.iter().any(|start| own.starts_with(start))
        };
        tensors.extract_if(.., is_other).collect()
    }

    /// Names the text's tensors as if it were inside of nothing, and says in `config` whether its head may be the embedding. Gives the rows
    /// of the embedding that are not the vocabulary's, where there are some that stand for images.
    pub(crate) fn unwrap(&self, tensors: &mut Vec<Tensor>, config: &mut Config) -> Option<Tensor> {
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

/// Puts in what the class of the text takes for granted.
fn complete(settings: &mut Map<String, Value>, text_type: &str) {
    let Some(known) = TEXT_TYPES.iter().find(|known| known.model_type == text_type) else {
        settings.insert("model_type".to_owned(), text_type.into());
        return;
    };
    settings.insert("model_type".to_owned(), known.family.into());
    let sizes = SIZES.into_iter().zip(known.sizes.map(Setting::Whole));
    // The library has called it both ways for the same class.
    let counted = settings.contains_key("num_local_experts");
    for (key, setting) in sizes.chain(known.more.iter().copied()) {
        if key == "num_experts" && counted {
            continue;
        }
        // One that is null says so itself.
        settings.entry(key).or_insert_with(|| setting.value());
    }
    if text_type == "glm4v_text" {
        // The class makes its heads as large as hidden states say, whatever the settings do.
        let size = |key: &str| settings.get(key).and_then(Value::as_u64).unwrap_or(0);
        if let Some(head_dim) = size("hidden_size").checked_div(size("num_attention_heads")) {
            settings.insert("head_dim".to_owned(), head_dim.into());
        }
    }
    for (_, key, setting) in ALWAYS.iter().filter(|(of, ..)| *of == text_type) {
        settings.insert((*key).to_owned(), setting.value());
    }
}

impl Setting {
    fn value(self) -> Value {
        match self {
            Setting::Whole(number) => number.into(),
            Setting::Number(number) => number.into(),
            Setting::Truth(truth) => truth.into(),
        }
    }
}

/// A text has the same position on all axes, so how frequencies are shared out between them changes nothing.
fn along_one_axis(rope: &mut Map<String, Value>) {
    rope.remove("mrope_section");
    rope.remove("mrope_interleaved");
    for key in ["rope_type", "type"] {
        if rope.get(key).is_some_and(|kind| kind == "mrope") {
            rope.insert(key.to_owned(), "default".into());
        }
    }
}
