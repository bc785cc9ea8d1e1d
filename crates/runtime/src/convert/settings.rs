//! Conversion of a spec to GGUF's keys, and the check that they are complete: the keys are read back like a file's,
//! and the two specs are compared.

use std::collections::BTreeMap;
use std::path::Path;

use hanzo_engine_ops::DType;

use crate::error::{LoadError, shorten};
use crate::gguf::{Gguf, Value};
use crate::limits::WIDTH_MAX;
use crate::load::huggingface;
use crate::mapped::ModelBytes;
use crate::model_files::ModelFiles;
use crate::spec::{
    self, LayerSpec, Mask, MlpSpec, NormKind, Projection, RopeScaling, RopeSpec, TransformerSpec,
};
use crate::tensor::Tensor;

/// Keys of the model and of its makers' sampling settings.
pub(super) fn keys(
    directory: &Path,
    files: &ModelFiles,
    architecture: &'static str,
) -> Result<BTreeMap<String, Value>, LoadError> {
    let spec = &files.spec;
    let mut keys = Keys { name: architecture, entries: BTreeMap::new() };
    let text = |text: &str| Value::String(text.to_owned());
    keys.general("architecture", Some(text(architecture)));
    keys.general("type", Some(text("model")));
    keys.general("name", Some(text(&files.info.name)));
    keys.sampling(files);
    let Some(first) = spec.layers.first() else { return Ok(keys.entries) };
    let Projection::Heads(heads) = first.attention.projection else {
        return Err(unsaid(directory, "attention", "latent".into()));
    };
    if spec.picture_rows > 0 {
        return Err(unsaid(directory, "layers", "some that read what is remembered of pictures".into()));
    }
    keys.count("block_count", spec.layers.len());
    keys.count("context_length", spec.context_tokens_max as usize);
    keys.count("embedding_length", spec.hidden);
    keys.count("vocab_size", spec.vocab);
    keys.count("attention.head_count", heads.heads);
    keys.count("attention.head_count_kv", heads.kv_heads);
    keys.count("attention.key_length", heads.head_dim);
    keys.count("attention.value_length", heads.head_dim);
    keys.float("attention.layer_norm_rms_epsilon", spec.norm.eps);
    let experts = spec.layers.iter().find_map(|layer| layer.mlp.experts());
    match (&first.mlp, experts) {
        (_, Some(experts)) => {
            let whole = huggingface::read_config(directory, "config.json")?;
            let whole = whole.map(|config| config.whole("intermediate_size", WIDTH_MAX)).transpose()?;
            keys.count("feed_forward_length", whole.flatten().unwrap_or(experts.ffn));
            keys.count("expert_count", experts.count);
            keys.count("expert_used_count", experts.used);
            if architecture != "llama" {
                keys.count("expert_feed_forward_length", experts.ffn);
            }
        }
        (MlpSpec::Dense(dense), None) => keys.count("feed_forward_length", dense.ffn),
        (MlpSpec::Experts(_) | MlpSpec::None, None) => {}
    }
    let window = |layer: &LayerSpec| match layer.attention.mask {
        Mask::Causal { window } => window,
        Mask::Whole { .. } => None,
    };
    if let Some(window) = spec.layers.iter().find_map(window) {
        keys.count("attention.sliding_window", window as usize);
    }
    if let Some(softcap) = first.attention.softcap {
        keys.float("attn_logit_softcapping", softcap);
    }
    if let spec::HeadSpec::Logits(head) = spec.head
        && let Some(softcap) = head.softcap
    {
        keys.float("final_logit_softcapping", softcap);
    }
    let rope = |layer: &LayerSpec| layer.attention.rope.and_then(|rope| spec.ropes.get(rope));
    let full = spec.layers.iter().filter(|layer| window(layer).is_none()).find_map(rope);
    let windowed = spec.layers.iter().filter(|layer| window(layer).is_some()).find_map(rope);
    if let Some(rope) = full.or(windowed) {
        keys.rope(rope);
        if let Some(windowed) = windowed.filter(|windowed| *windowed != rope) {
            keys.float("rope.freq_base_swa", windowed.base);
        }
    }
    Ok(keys.entries)
}

/// Keys under construction.
struct Keys {
    name: &'static str,
    entries: BTreeMap<String, Value>,
}

impl Keys {
    fn general(&mut self, key: &str, value: Option<Value>) {
        if let Some(value) = value {
            self.entries.insert(format!("general.{key}"), value);
        }
    }

    fn set(&mut self, key: &str, value: Value) {
        self.entries.insert(format!("{}.{key}", self.name), value);
    }

    fn count(&mut self, key: &str, count: usize) {
        self.set(key, Value::U32(u32::try_from(count).unwrap_or(u32::MAX)));
    }

    fn float(&mut self, key: &str, number: f32) {
        self.set(key, Value::F32(number));
    }

    fn sampling(&mut self, files: &ModelFiles) {
        let made = &files.text.generation;
        // Greedy, whatever the other settings say.
        let temperature = if made.do_sample == Some(false) { Some(0.0) } else { made.temperature };
        let count = |number: Option<u32>| number.and_then(|n| i32::try_from(n).ok()).map(Value::I32);
        self.general("sampling.top_k", count(made.top_k));
        self.general("sampling.top_p", made.top_p.map(Value::F32));
        self.general("sampling.min_p", made.min_p.map(Value::F32));
        self.general("sampling.temp", temperature.map(Value::F32));
        self.general("sampling.penalty_repeat", made.repetition_penalty.map(Value::F32));
    }

    fn rope(&mut self, rope: &RopeSpec) {
        self.count("rope.dimension_count", rope.dim);
        self.float("rope.freq_base", rope.base);
        if let Some(long) = &rope.long {
            self.count("rope.scaling.original_context_length", long.original_context as usize);
        }
        match rope.scaling {
            RopeScaling::None if rope.magnitude != 1.0 => {
                self.float("rope.scaling.attn_factor", rope.magnitude);
            }
            RopeScaling::None | RopeScaling::Llama3 { .. } => {}
            RopeScaling::Linear { factor } => {
                self.set("rope.scaling.type", Value::String("linear".into()));
                self.float("rope.scaling.factor", factor);
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, .. } => {
                self.set("rope.scaling.type", Value::String("yarn".into()));
                self.float("rope.scaling.factor", factor);
                self.count("rope.scaling.original_context_length", original_context as usize);
                self.float("rope.scaling.yarn_beta_fast", beta_fast);
                self.float("rope.scaling.yarn_beta_slow", beta_slow);
                // Readers multiply the factor by this.
                let usual = spec::yarn_magnitude(factor, 1.0);
                if rope.magnitude != usual {
                    self.float("rope.scaling.attn_factor", rope.magnitude / usual);
                }
            }
        }
    }
}

/// Divisors of frequencies that GGUF files have as tensors: Llama 3.1's scaling, and LongRoPE's.
pub(super) fn rope_factors(spec: &TransformerSpec, file: &str) -> Vec<Tensor> {
    let tensor = |name: &str, factors: &[f32]| Tensor {
        file: file.into(),
        name: name.to_owned(),
        dtype: DType::F32,
        shape: vec![factors.len()],
        bytes: ModelBytes::from(bytemuck::cast_slice(factors).to_vec()),
    };
    let Some(rope) = spec.ropes.first() else { return Vec::new() };
    if let (Some(long), Some(short)) = (&rope.long, &rope.factors) {
        let factors = spec::LONG_FACTORS.into_iter().zip([&long.factors, short]);
        return factors.map(|(name, factors)| tensor(name, factors)).collect();
    }
    let Some(rope) = spec.ropes.iter().find(|rope| matches!(rope.scaling, RopeScaling::Llama3 { .. })) else {
        return Vec::new();
    };
    let plain = RopeSpec { scaling: RopeScaling::None, ..rope.clone() };
    let factors: Vec<f32> = plain.inv_freq().iter().zip(rope.inv_freq()).map(|(a, b)| a / b).collect();
    vec![tensor(spec::ROPE_FACTORS, &factors)]
}

/// Checks that a file describes a spec completely.
///
/// # Errors
/// `Unsupported` naming the missing part.
pub(super) fn check(own: &TransformerSpec, gguf: &Gguf) -> Result<(), LoadError> {
    let read = spec::from_gguf(gguf, [])?;
    for (own, read) in facets(own).into_iter().zip(facets(&read)) {
        if own.words != read.words || !near(&own.numbers, &read.numbers) {
            let value = format!("{} {:?}", own.words, own.numbers);
            return Err(unsaid(Path::new(gguf.metadata.file()), &own.what, value));
        }
    }
    Ok(())
}

fn unsaid(directory: &Path, what: &str, value: String) -> LoadError {
    LoadError::Unsupported {
        file: directory.display().to_string(),
        key: what.to_owned(),
        value: shorten(value),
        reason: "no key of its GGUF architecture says so".into(),
    }
}

/// Comparable part of a network's computation.
struct Facet {
    what: String,
    words: String,
    /// Computed differently on the two sides.
    numbers: Vec<f32>,
}

fn near(own: &[f32], read: &[f32]) -> bool {
    let same = |(own, read): (&f32, &f32)| (own - read).abs() <= 1e-5 * own.abs();
    own.len() == read.len() && own.iter().zip(read).all(same)
}

/// All facets: equally many for two specs with the same number of layers.
fn facets(spec: &TransformerSpec) -> Vec<Facet> {
    let kind = match spec.norm.kind {
        NormKind::Rms { .. } => NormKind::Rms { from_one: false },
        kind => kind,
    };
    let facet = |what: &str, words: String, numbers: &[f32]| Facet {
        what: what.to_owned(),
        words,
        numbers: numbers.to_vec(),
    };
    let mut facets = vec![
        facet("layers", spec.layers.len().to_string(), &[]),
        facet("vocabulary and hidden size", format!("{} {}", spec.vocab, spec.hidden), &[]),
        facet("embedding scale", String::new(), &[spec.embedding_scale]),
        facet("positions", format!("{:?} {:?}", spec.positions, spec.distance), &[]),
        facet("head", format!("{:?}", spec.head), &[]),
        facet("norms", format!("{kind:?}"), &[spec.norm.eps]),
        facet("context", spec.context_tokens_max.to_string(), &[]),
    ];
    for (index, layer) in spec.layers.iter().enumerate() {
        let rope = layer.attention.rope.and_then(|rope| spec.ropes.get(rope));
        let frequencies = rope.map(RopeSpec::tables).unwrap_or_default();
        facets.push(facet(&format!("rope of layer {index}"), String::new(), &frequencies));
        let long = rope.and_then(|rope| rope.long.as_ref());
        let long = long.map(|long| [long.original_context as f32, long.magnitude]);
        let magnitude = rope.map(|rope| rope.magnitude);
        let mut layer = layer.clone();
        let mut scales = vec![magnitude.unwrap_or(0.0), layer.attention.scale, layer.residual_scale];
        scales.extend(long.into_iter().flatten());
        (layer.attention.rope, layer.attention.scale, layer.residual_scale) = (None, 1.0, 1.0);
        facets.push(facet(&format!("layer {index}"), format!("{layer:?}"), &scales));
    }
    facets
}
