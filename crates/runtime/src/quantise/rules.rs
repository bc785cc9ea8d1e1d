//! Types of a mix's tensors by llama.cpp's rules, which give more bits to the most sensitive tensors. Rules depend on
//! a tensor's role, on its layer, and on the few numbers of [`Facts`].

use hanzo_engine_ops::DType;

use super::mixes::Mix;
use crate::error::LoadError;
use crate::gguf::{Array, Metadata, Value};
use crate::vision::embedded;

/// Role of a tensor, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Embedding,
    Output,
    Qkv,
    KvB,
    Value,
    Key,
    AttentionOutput,
    Down,
    Other,
}

/// Parts of names and their roles; the first match counts.
const PLACES: [(&str, Place); 6] = [
    ("attn_qkv.weight", Place::Qkv),
    ("attn_kv_b.weight", Place::KvB),
    ("attn_v.weight", Place::Value),
    ("attn_k.weight", Place::Key),
    ("attn_output.weight", Place::AttentionOutput),
    ("ffn_down", Place::Down),
];

impl Place {
    pub(super) fn of(name: &str) -> Place {
        match name {
            "output.weight" => Place::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Place::Embedding,
            _ => {
                PLACES.iter().find(|(part, _)| name.contains(part)).map_or(Place::Other, |(_, place)| *place)
            }
        }
    }

    fn is_value(self) -> bool {
        matches!(self, Place::Value | Place::Qkv | Place::KvB)
    }
}

/// Matrices that stay as they are: small, and the most sensitive.
const KEPT_NAMES: [&str; 2] = ["position_embd.weight", "token_types.weight"];
const KEPT_PARTS: [&str; 35] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];
/// The same for glm5-next.
const KEPT_PARTS_GLM: [&str; 14] = [
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// Whether a mix changes a tensor.
pub(super) fn is_quantised(name: &str, shape: &[usize], architecture: &str) -> bool {
    let dimensions = shape.len() - shape.iter().take_while(|&&size| size == 1).count();
    let own = if architecture == "glm5-next" { &KEPT_PARTS_GLM[..] } else { &[] };
    dimensions >= 2
        && name.ends_with("weight")
        && !KEPT_NAMES.contains(&name)
        && !KEPT_PARTS.iter().chain(own).any(|part| name.contains(part))
        && !is_of_embedded_tower(name, architecture)
}

/// Whether a tensor belongs to a tower inside a text model's file, which stays as it is.
fn is_of_embedded_tower(name: &str, architecture: &str) -> bool {
    architecture != "clip" && embedded::is_of_tower(name)
}

/// Properties of a model that the rules need.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) architecture: String,
    layers: usize,
    experts: usize,
    /// Query heads for each key-value head.
    queries_per_kv: usize,
    /// Whether it is a model of 70 B parameters, whose many queries share few values.
    is_70b: bool,
    /// Number of value tensors in all layers.
    values: usize,
    tied: bool,
}

impl Facts {
    pub(super) fn new<'a>(
        metadata: &Metadata,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Facts, LoadError> {
        let architecture = metadata.string("general.architecture")?;
        let architecture = architecture.ok_or_else(|| metadata.missing("general.architecture"))?.to_owned();
        let of = |key: &str| format!("{architecture}.{key}");
        let number = |key: &str| metadata.u32(&of(key)).map(|number| number.unwrap_or(0) as usize);
        let heads = first(metadata, &of("attention.head_count"))?.unwrap_or(0);
        let kv_heads = first(metadata, &of("attention.head_count_kv"))?.unwrap_or(heads);
        let layers = number("block_count")?;
        let is_70b = match (architecture.as_str(), layers) {
            ("llama", 80) => heads != kv_heads,
            ("qwen2" | "deci" | "olmo", 80) | ("jais2", 68) => true,
            _ => false,
        };
        let (mut values, mut tied) = (0, true);
        for name in names.filter(|name| !is_of_embedded_tower(name, &architecture)) {
            values += usize::from(Place::of(name).is_value());
            tied &= Place::of(name) != Place::Output;
        }
        let experts = number("expert_count")?;
        let queries_per_kv = heads.checked_div(kv_heads).unwrap_or(0);
        Ok(Facts { layers, experts, queries_per_kv, is_70b, values, tied, architecture })
    }
}

/// A number, or the first layer's.
fn first(metadata: &Metadata, key: &str) -> Result<Option<usize>, LoadError> {
    let number = match metadata.get(key) {
        Some(Value::Array(array)) if !matches!(array, Array::Array(_) | Array::String(_)) => {
            metadata.integers(key)?.and_then(|numbers| numbers.first().copied())
        }
        _ => metadata.integer(key)?,
    };
    Ok(number.and_then(|number| usize::try_from(number).ok()))
}

/// State of the rules during a file: tensors are passed in order of layers.
pub(super) struct Rules<'a> {
    mix: Mix,
    facts: &'a Facts,
    has_importance: bool,
    values_seen: usize,
    downs_seen: usize,
}

/// Whether a layer gets more bits: the first and last eighth of the layers, and every third between.
fn more_bits(layer: usize, layers: usize) -> bool {
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
}

impl<'a> Rules<'a> {
    pub(super) fn new(mix: Mix, facts: &'a Facts, has_importance: bool) -> Self {
        Self { mix, facts, has_importance, values_seen: 0, downs_seen: 0 }
    }

    /// Type of the next tensor that the mix decides about. `output` is the requested type of the output matrix.
    pub(super) fn choose(&mut self, name: &str, shape: &[usize], output: Option<DType>) -> DType {
        let (facts, base) = (self.facts, self.mix.base);
        let place = Place::of(name);
        let glm_floor = ["attn_q_a", "attn_q_b", "nextn.eh_proj"];
        if facts.architecture == "glm5-next" && glm_floor.iter().any(|part| name.contains(part)) {
            return DType::Q8_0;
        }
        if place == Place::Output || (facts.tied && place == Place::Embedding) {
            return output.unwrap_or_else(|| self.head(shape));
        }
        if self.mix.name == "MXFP4_MOE" {
            let stacked = shape.len() > 2 && shape[shape.len() - 3] > 1;
            let is_expert = facts.architecture != "bailingmoe3"
                || ["ffn_up", "ffn_gate", "ffn_down"].iter().any(|part| name.contains(part));
            return if stacked && is_expert { DType::MXFP4 } else { DType::Q8_0 };
        }
        match place {
            Place::Embedding if matches!(base, DType::TQ1_0 | DType::TQ2_0) => DType::Q4_K,
            _ if place.is_value() => self.value(),
            Place::Key if facts.experts == 8 => DType::Q8_0,
            Place::Down => self.down(name),
            Place::AttentionOutput => self.attention_output(),
            _ => base,
        }
    }

    fn head(&self, shape: &[usize]) -> DType {
        let base = self.mix.base;
        let columns = shape.last().copied().unwrap_or_default();
        let whole = columns.is_multiple_of(base.block_weights());
        if self.mix.name == "MXFP4_MOE" || self.facts.architecture == "falcon" || !whole {
            return DType::Q8_0;
        }
        if base == DType::Q8_0 { base } else { DType::Q6_K }
    }

    fn value(&mut self) -> DType {
        let facts = self.facts;
        let (seen, many) = (self.values_seen, facts.queries_per_kv >= 4);
        self.values_seen += 1;
        let chosen = match self.mix.name {
            "Q2_K" if many => DType::Q4_K,
            "Q2_K" => DType::Q3_K,
            "Q3_K_M" if seen < 2 => DType::Q5_K,
            "Q3_K_M" => DType::Q4_K,
            "Q3_K_L" => DType::Q5_K,
            "IQ4_NL" | "IQ4_XS" if many => DType::Q5_K,
            "Q4_K_M" | "Q5_K_M" if more_bits(seen, facts.values) => DType::Q6_K,
            "Q4_K_S" if seen < 4 => DType::Q5_K,
            _ => self.mix.base,
        };
        match chosen {
            _ if facts.experts == 8 => DType::Q8_0,
            DType::Q3_K | DType::Q4_K if facts.is_70b => DType::Q5_K,
            chosen => chosen,
        }
    }

    fn down(&mut self, name: &str) -> DType {
        let (facts, seen) = (self.facts, self.downs_seen);
        self.downs_seen += 1;
        // Experts of a layer may be several tensors.
        let layer = if facts.experts > 1 { layer_of(name).unwrap_or(seen) } else { seen };
        let (layers, is_falcon) = (facts.layers, facts.architecture == "falcon");
        match self.mix.name {
            "Q2_K" => DType::Q3_K,
            "Q3_K_M" if layer < layers / 16 => DType::Q5_K,
            "Q3_K_M" if !is_falcon || more_bits(layer, layers) => DType::Q4_K,
            "Q3_K_L" if is_falcon => DType::Q4_K,
            "Q3_K_L" => DType::Q5_K,
            "Q4_K_M" if is_falcon && layer < layers / 16 => DType::Q6_K,
            "Q4_K_M" if more_bits(layer, layers) && is_falcon => DType::Q5_K,
            "Q4_K_M" | "Q5_K_M" if more_bits(layer, layers) => DType::Q6_K,
            "IQ4_NL" | "IQ4_XS" if layer < layers / 8 && !self.has_importance => DType::Q5_K,
            "Q4_0" if layer < layers / 8 && self.has_importance => DType::Q4_1,
            "Q5_0" if layer < layers / 8 && self.has_importance => DType::Q5_1,
            "Q4_K_S" if !is_falcon && layer < layers / 8 => DType::Q5_K,
            _ => self.mix.base,
        }
    }

    fn attention_output(&self) -> DType {
        let few_bits = ["Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS"];
        match (self.mix.name, self.facts.architecture.as_str()) {
            ("Q3_K_L", "falcon") => DType::Q4_K,
            (_, "falcon") => self.mix.base,
            (name, _) if self.facts.experts == 8 && few_bits.contains(&name) => DType::Q5_K,
            _ if self.facts.experts == 8 => self.mix.base,
            ("Q2_K", _) => DType::Q3_K,
            ("Q3_K_M", _) => DType::Q4_K,
            ("Q3_K_L", _) => DType::Q5_K,
            _ => self.mix.base,
        }
    }
}

/// Layer number in a name.
pub(super) fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The type itself or, if rows are not whole blocks of it, a type of about as many bits with fitting blocks.
pub(super) fn fitting(dtype: DType, columns: usize) -> DType {
    let fits = |dtype: DType| columns.is_multiple_of(dtype.block_weights());
    let smaller = match dtype {
        _ if fits(dtype) => return dtype,
        DType::IQ4_XS => DType::IQ4_NL,
        DType::Q2_K | DType::Q3_K | DType::TQ1_0 | DType::TQ2_0 | DType::Q2_0 => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        _ => DType::F16,
    };
    if fits(smaller) { smaller } else { DType::F16 }
}
