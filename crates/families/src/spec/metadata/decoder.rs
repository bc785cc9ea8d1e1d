//! Reader of decoders whose architecture is data alone: dense ones and mixtures of experts.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_model_files::gguf::Value;
use hanzo_engine_ops::QueryScale;

use super::{Architecture, Experts, Keys, LogitScale, Positions, Turns};
use crate::limits::{CONTEXT_TOKENS_MAX, LAYERS_MAX};
use crate::spec::base::Base;
use crate::spec::rope::yarn_magnitude;
use crate::spec::{
    Alibi, AttentionSpec, Distance, LayerPart, LogitsSpec, NormKind, NormSpec, Part, PositionTable, QkNorm,
    RopeScaling, RopeSpec, TransformerSpec,
};

/// Reads a file whose architecture is data alone.
pub(super) fn read(base: &Base<'_>, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
    let of = keys.of;
    for key in of.required {
        keys.positive(key)?.ok_or_else(|| keys.metadata.missing(&keys.key(key)))?;
    }
    let windows = (of.windows)(keys, base.layers)?;
    let mlp = of.mlp(keys, base)?;
    let (attention, rope) = (of.attention)(base, keys)?;
    let (positions, distance) = positions(keys, base.layers)?;
    let turns_nothing = positions.is_some() || distance != Distance::None;
    let has_window = keys.metadata.get(&keys.key("attention.sliding_window")).is_some();
    let any_window = windows.iter().any(Option::is_some);
    let turns = |layer: usize| match of.turns {
        _ if turns_nothing => None,
        Turns::WindowsApart(_) => Some(usize::from(windows[layer].is_some())),
        Turns::Windows if has_window => windows[layer].map(|_| 0),
        Turns::WindowsIfAny if any_window => windows[layer].map(|_| 0),
        Turns::AllButEach(each) => (!(layer + 1).is_multiple_of(each)).then_some(0),
        Turns::All | Turns::Windows | Turns::WindowsIfAny => Some(0),
    };
    let rope = Some(rope).filter(|_| !turns_nothing);
    let mut spec = base.with_windows(rope, &attention, &windows, turns, mlp)?;
    if let (Turns::WindowsApart(base), Some(full)) = (of.turns, spec.ropes.first()) {
        let base = keys.positive("rope.freq_base_swa")?.or(base).unwrap_or(full.base);
        let local = RopeSpec { base, factors: full.factors.clone(), ..full.unstretched() };
        spec.ropes.push(local);
    }
    spec.embedding_norm = of.is_dense() && keys.has(Part::EmbeddingNorm.weight());
    (spec.positions, spec.distance) = (positions, distance);
    (of.own)(keys, &mut spec)?;
    Ok(spec)
}

impl Architecture {
    pub(crate) fn is_dense(&self) -> bool {
        matches!(self.experts, Experts::Dense)
    }

    /// Whether it computes as Llama does, which has no further tensors.
    pub(super) fn is_llama(&self) -> bool {
        matches!(self.experts, Experts::Never | Experts::IfCounted | Experts::Always)
    }
}

/// Settings of an architecture's norms.
pub(super) fn norms(keys: &Keys<'_>) -> Result<NormSpec, LoadError> {
    const NAME: &str = "attention.layer_norm_epsilon";
    let eps = match keys.form.norm {
        NormKind::Rms { .. } => keys.epsilon()?,
        _ => keys.positive(NAME)?.ok_or_else(|| keys.metadata.missing(&keys.key(NAME)))?,
    };
    Ok(NormSpec { kind: keys.norm_kind(), eps })
}

/// Attention with keys and values of heads, and the rotary embedding.
pub(super) fn heads(base: &Base<'_>, keys: &Keys<'_>) -> Result<(AttentionSpec, RopeSpec), LoadError> {
    let shape = base.heads()?;
    let mut rope = base.rope(shape.head_dim)?;
    let query_scale = if keys.of.is_dense() { query_scale(keys, &mut rope)? } else { None };
    Ok((AttentionSpec { query_scale, ..base.attention(shape)? }, rope))
}

impl Keys<'_> {
    /// Attention with the biases and norms of its tensors.
    pub(crate) fn attention(
        &self,
        base: &Base<'_>,
        plain: AttentionSpec,
    ) -> Result<AttentionSpec, LoadError> {
        let (of, in_first) = (self.of, |part| Part::Layer(0, part));
        let fused = of.names.qkv.map(|stem| of.names.in_layer("", 0, &format!("{stem}.bias")));
        let biased = || {
            self.has(in_first(LayerPart::Query).bias())
                || fused.is_some_and(|name| self.find(&name).is_some())
        };
        // In Gemma's largest files the factor on scores does not follow from the size of a head, and no key says so.
        let usual = match base.layers == of.largest {
            true => 1.0 / ((base.hidden / plain.projection.head_shape().heads) as f32).sqrt(),
            false => plain.scale,
        };
        Ok(AttentionSpec {
            qkv_bias: of.qkv_bias.unwrap_or_else(biased),
            output_bias: self.has(in_first(LayerPart::AttentionOutput).bias()),
            qk_norm: match of.qk_norm_if_stored {
                Some(_) if !self.has(in_first(LayerPart::QueryNorm).weight()) => QkNorm::None,
                stored => stored.unwrap_or(plain.qk_norm),
            },
            softcap: self.positive("attn_logit_softcapping")?,
            scale: self.positive("attention.scale")?.unwrap_or(usual),
            ..plain
        })
    }

    /// The head, with the biases of its tensors.
    pub(crate) fn head(&self) -> Result<LogitsSpec, LoadError> {
        let scale = self.positive("logit_scale")?.unwrap_or(1.0);
        Ok(LogitsSpec {
            scale: if self.of.logit_scale == LogitScale::Divisor { 1.0 / scale } else { scale },
            softcap: self.positive("final_logit_softcapping")?,
            bias: !self.of.is_llama() && self.has(Part::Head.bias()),
            ..LogitsSpec::plain(!self.has(Part::Head.weight()))
        })
    }
}

/// Growth of queries beyond the original context, and the matching factor on cosine and sine.
fn query_scale(keys: &Keys<'_>, rope: &mut RopeSpec) -> Result<Option<QueryScale>, LoadError> {
    const FACTOR: &str = "attention.temperature_scale";
    const MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
    const ORIGINAL: &str = "rope.scaling.original_context_length";
    let set = |name| Ok::<_, LoadError>(keys.metadata.f32(&keys.key(name))?.filter(|&value| value != 0.0));
    let (factor, multiplier) = (set(FACTOR)?, set(MULTIPLIER)?);
    if !keys.of.queries_grow {
        let found = [(FACTOR, factor), (MULTIPLIER, multiplier)];
        return match found.into_iter().find_map(|(name, value)| Some((name, value?))) {
            None => Ok(None),
            Some((name, value)) => Err(keys.unsupported(name, value, "this architecture does not read it")),
        };
    }
    if let (Some(multiplier), RopeScaling::Yarn { factor, .. }) = (multiplier, &rope.scaling) {
        rope.magnitude /= yarn_magnitude(*factor, multiplier);
    }
    match (factor, keys.count(ORIGINAL, CONTEXT_TOKENS_MAX)?) {
        (None, _) => Ok(None),
        (Some(factor), Some(original)) => Ok(Some(QueryScale { factor, every: original as u32, offset: 0 })),
        (Some(_), None) => Err(keys.metadata.missing(&keys.key(ORIGINAL))),
    }
}

/// Embedding of positions, or the decrease of scores with distance.
fn positions(keys: &Keys<'_>, layers: usize) -> Result<(Option<PositionTable>, Distance), LoadError> {
    let of = keys.of;
    const ALIBI: &str = "attention.max_alibi_bias";
    if !of.is_dense() {
        return Ok((None, Distance::None));
    }
    let stated = keys.metadata.f32(&keys.key(ALIBI))?.filter(|&exponent| exponent != 0.0);
    let plain = Distance::Alibi(Alibi::PLAIN);
    match (of.positions, stated) {
        (Positions::AlibiByKey, Some(exponent)) if exponent > 0.0 && exponent.fract() == 0.0 => {
            Ok((None, Distance::Alibi(Alibi { exponent_max: exponent as u32 })))
        }
        (Positions::AlibiByKey, None) => {
            Err(keys.unsupported(ALIBI, 0, "this build knows this architecture's ALiBi alone"))
        }
        (_, Some(exponent)) if exponent != 8.0 || of.positions == Positions::Rotary => {
            Err(keys.unsupported(ALIBI, exponent, "this architecture does not read it"))
        }
        (Positions::Learned, None) => {
            let table = keys.find("position_embd.weight");
            let rows = table.and_then(|table| table.shape.first()).copied().unwrap_or_default();
            Ok((Some(PositionTable { rows, offset: 0 }), Distance::None))
        }
        (Positions::Alibi, _) => Ok((None, plain)),
        (Positions::AlibiInLayers(count), _) if count == layers => Ok((None, plain)),
        _ => Ok((None, Distance::None)),
    }
}

/// A window in all of so many layers but each nth.
pub(crate) fn every(window: Option<u32>, each: usize, layers: usize) -> Vec<Option<u32>> {
    (1..=layers).map(|layer| window.filter(|_| each == 1 || !layer.is_multiple_of(each))).collect()
}

/// Window of each layer.
pub(super) fn windows(keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
    let of = keys.of;
    const PATTERN: &str = "attention.sliding_window_pattern";
    const WINDOW: &str = "attention.sliding_window";
    let window = keys.whole(WINDOW, CONTEXT_TOKENS_MAX)?.map(|window| window as u32);
    let window = window.or(of.window).filter(|&window| window > 0);
    match (keys.metadata.get(&keys.key(PATTERN)), window) {
        (_, None) if of.full_each == 0 => Ok(vec![None; layers]),
        // Qwen windows only some layers, and the metadata does not say which.
        (_, Some(window)) if of.full_each == 0 && of.is_llama() => {
            Err(keys.unsupported(WINDOW, window, "only llama's is known"))
        }
        (_, Some(window)) if of.full_each == 0 => {
            Err(keys.unsupported(WINDOW, window, "this architecture has none"))
        }
        (None, window) => Ok(every(window, of.full_each, layers)),
        (Some(Value::Array(_)), window) => {
            let sees = keys.truths(PATTERN, layers)?.unwrap_or_default();
            Ok(sees.into_iter().map(|sees| window.filter(|_| sees)).collect())
        }
        (Some(_), window) => Ok(every(window, keys.required(PATTERN, LAYERS_MAX)?, layers)),
    }
}
