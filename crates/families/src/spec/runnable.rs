//! Checks of a spec before anything is read with it: numbers must fit each other, and the network must support all
//! features. A family says what a model is; only this file says whether it runs.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_ops::{ExpertGroups, HeadShape, StateShape};

use super::{
    DenseSpec, Distance, ExpertsSpec, HeadSpec, LayerSpec, Mask, MlpSpec, NormKind, NormOrder, Projection,
    QkNorm, RopeSpec, StateSpec, StreamsSpec, TransformerSpec,
};
use crate::limits::{ENCODER_TYPES_MAX, EXPERT_GROUPS_MAX, STREAMS_MAX, WIDTH_MAX};

impl TransformerSpec {
    /// Checks properties that no single setting shows. `file` is for errors.
    ///
    /// # Errors
    /// `Corrupt` if numbers do not fit each other, `Unsupported` naming what cannot be run.
    pub fn checked(self, file: &str) -> Result<Self, LoadError> {
        if let Err((what, reason)) = self.fits() {
            return Err(LoadError::Corrupt { file: file.to_owned(), what: what.to_owned(), reason });
        }
        let spec = self.without_residual_scale();
        match spec.unrunnable() {
            None => Ok(spec),
            Some((key, value)) => Err(LoadError::Unsupported {
                file: file.to_owned(),
                key: key.to_owned(),
                value,
                reason: "this build cannot run models that have it".into(),
            }),
        }
    }

    /// Checks that the numbers fit each other; the error names those that do not, with the reason.
    fn fits(&self) -> Result<(), (&'static str, String)> {
        for (index, layer) in self.layers.iter().enumerate() {
            self.layer_fits(layer)?;
            self.shares_fit(index)?;
        }
        if let Some(streams) = &self.streams {
            self.streams_fit(streams)?;
        }
        if let Some(inputs) = self.layer_inputs
            && inputs.saturating_mul(self.layers.len()) > WIDTH_MAX
        {
            return Err(("inputs of layers", format!("{inputs} for each of {} layers", self.layers.len())));
        }
        if self.type_vocab > ENCODER_TYPES_MAX {
            let reason = format!("there are {}; at most {ENCODER_TYPES_MAX} are allowed", self.type_vocab);
            return Err(("token types", reason));
        }
        if let Some(table) = self.positions
            && table.rows < table.offset as usize + self.context_tokens_max as usize
        {
            let reason = format!(
                "{} rows do not hold {} positions from row {}",
                table.rows, self.context_tokens_max, table.offset
            );
            return Err(("position embedding", reason));
        }
        if self.context_tokens_max == 0 {
            return Err(("position embedding", "it leaves no room for a single token".into()));
        }
        Ok(())
    }

    fn streams_fit(&self, streams: &StreamsSpec) -> Result<(), (&'static str, String)> {
        let &StreamsSpec { count, active, laurel_rank, ref outliers, .. } = streams;
        if !(2..=STREAMS_MAX).contains(&count) || active >= count || count * self.hidden > WIDTH_MAX {
            return Err((
                "streams",
                format!("the one numbered {active} of {count}, of {} elements", self.hidden),
            ));
        }
        if laurel_rank == 0 || laurel_rank > WIDTH_MAX {
            return Err(("streams", format!("a way of {laurel_rank} elements beside attention")));
        }
        if outliers.len() != self.layers.len() || outliers.iter().flatten().any(|many| !many.is_finite()) {
            return Err(("streams", "sparse activations that are not said of each layer".into()));
        }
        Ok(())
    }

    /// Checks that a layer that shares another's keys and values comes after it and reads them in the same way.
    fn shares_fit(&self, index: usize) -> Result<(), (&'static str, String)> {
        let attention = &self.layers[index].attention;
        let Some(of) = attention.shares else { return Ok(()) };
        let own = self.layers.get(of).filter(|_| of < index).map(|layer| &layer.attention);
        let alike = own.is_some_and(|own| {
            own.shares.is_none()
                && own.kv_layout() == attention.kv_layout()
                && own.chunked == attention.chunked
                && matches!(attention.projection, Projection::Heads(_))
        });
        match alike {
            true => Ok(()),
            false => {
                Err(("attention", format!("layer {index} cannot share the keys and values of layer {of}")))
            }
        }
    }

    fn layer_fits(&self, layer: &LayerSpec) -> Result<(), (&'static str, String)> {
        let shape @ HeadShape { heads, kv_heads, head_dim } = layer.attention.projection.head_shape();
        if !heads.is_multiple_of(kv_heads) {
            let reason = format!("{heads} query heads are not a multiple of {kv_heads} key-value heads");
            return Err(("attention heads", reason));
        }
        if shape.qkv_width() > WIDTH_MAX {
            return Err(("attention heads", format!("{heads} heads of {head_dim} are too wide")));
        }
        if let Some(rope) = layer.attention.rope {
            let turned = match layer.attention.projection {
                Projection::Heads(_) => head_dim,
                Projection::Latent(latent) => latent.rope_dim,
                Projection::State(_) => 0,
            };
            rope_fits(&self.ropes[rope], turned)?;
        }
        if let Some(state) = layer.attention.projection.state() {
            state_fits(state)?;
        }
        if let MlpSpec::Experts(experts) = &layer.mlp {
            let &ExpertsSpec { count, used, ffn, .. } = experts;
            if used > count {
                return Err(("experts", format!("a token goes to {used} of {count}")));
            }
            if let Some(ExpertGroups { count: groups, used: groups_used, best }) = experts.groups {
                let fits = (1..=EXPERT_GROUPS_MAX).contains(&groups) && count.is_multiple_of(groups);
                let size = count / groups.max(1);
                if !fits || !(1..=groups).contains(&groups_used) || groups_used * size < used || best > size {
                    let reason = format!("{used} of {count}, from {groups_used} of {groups} groups");
                    return Err(("experts", reason));
                }
            }
            if experts.scales_input && used != 1 {
                return Err(("experts", format!("an input that is scaled goes to {used}, not to one")));
            }
            let shared = experts.shared.map_or(0, |shared| shared.ffn);
            if shared > WIDTH_MAX {
                return Err((
                    "experts",
                    format!("a shared one of {shared}; at most {WIDTH_MAX} are allowed"),
                ));
            }
            if experts.ffn_used() > WIDTH_MAX {
                let reason =
                    format!("{used} times {ffn} elements for a token; at most {WIDTH_MAX} are allowed");
                return Err(("experts", reason));
            }
        }
        Ok(())
    }

    /// Feature of the spec that the network cannot run.
    pub(crate) fn unrunnable(&self) -> Option<(&'static str, String)> {
        let first = self.layers.first()?;
        let causal = matches!(first.attention.mask, Mask::Causal { .. });
        let of_network = if causal { self.not_in_a_decoder() } else { self.not_in_an_encoder() };
        // Layers with attention are compared with each other, and so are layers with states.
        let like = |layer: &LayerSpec| {
            let keeps = layer.attention.projection.state().is_some();
            self.layers.iter().find(|of| of.attention.projection.state().is_some() == keeps).unwrap_or(first)
        };
        of_network
            .or_else(|| {
                let mut layers = self.layers.iter().enumerate();
                layers.find_map(|(index, layer)| refused(index, layer, first, like(layer), self.norm.kind))
            })
            .or_else(|| {
                // A parallel layer needs one before it without an MLP and with `Pre` norms.
                let stands = |at: usize| {
                    let before = at.checked_sub(1).map(|before| &self.layers[before]);
                    before.is_some_and(|before| before.order == NormOrder::Pre && before.mlp.is_none())
                };
                let beside = |&at: &usize| self.layers[at].order == NormOrder::Beside && !stands(at);
                let found = (0..self.layers.len()).find(beside);
                found.map(|at| {
                    ("norms", format!("Beside in layer {at}, and nothing before it to stand beside"))
                })
            })
    }

    fn not_in_a_decoder(&self) -> Option<(&'static str, String)> {
        let what = match self {
            _ if self.type_vocab > 0 => "an embedding of token types",
            _ if !matches!(self.distance, Distance::None | Distance::Alibi(_)) => {
                "learned scores of distances"
            }
            _ if self.distance != Distance::None && self.has_latents() => "distances, and latent attention",
            _ if self.convolution.is_some() => "a convolution",
            _ if self.head.masked_lm().is_some() => "a masked language model's head",
            _ if self.head == HeadSpec::None => "no head",
            _ if self.curved && !self.layers.iter().all(|layer| layer.mlp.dense().is_some_and(is_plain)) => {
                "xIELU in MLPs with gates or biases"
            }
            _ if self.streams.is_some() && !self.streams_run() => "streams in layers that are not Gemma's",
            _ => return None,
        };
        Some(("decoder", what.to_owned()))
    }

    /// Whether streams can run: layers need norms on both sides of sublayers, dense gated MLPs, and separate inputs.
    fn streams_run(&self) -> bool {
        let alike = |layer: &LayerSpec| {
            layer.order == NormOrder::Sandwich
                && matches!(layer.attention.projection, Projection::Heads(_))
                && layer.mlp.dense().is_some_and(|dense| dense.gated && !dense.down_bias)
        };
        self.layers.iter().all(alike) && self.layer_inputs.is_some() && !self.layers_scaled
    }

    fn has_latents(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.attention.projection, Projection::Latent(_)))
    }

    fn not_in_an_encoder(&self) -> Option<(&'static str, String)> {
        let any = |has: fn(&LayerSpec) -> bool| self.layers.iter().any(has);
        let what = match self.head {
            HeadSpec::Logits(_) => "a decoder's head",
            _ if any(|layer| layer.attention.softcap.is_some()) => "a softcap of scores",
            _ if any(|layer| layer.attention.sinks) => "sinks",
            _ if any(|layer| layer.attention.qk_norm == QkNorm::HeadsApart) => "norms of heads of their own",
            _ if any(|layer| layer.attention.chunked) => "attention within chunks",
            _ if any(|layer| layer.attention.output_gate) => "a gate of what attention gives",
            _ if self.keeps_states() => "states",
            _ if any(|layer| layer.order.is_parallel() || layer.order == NormOrder::Branch) => {
                "halves side by side, or norms of what halves add alone"
            }
            _ if self.layer_inputs.is_some()
                || self.layers_scaled
                || self.curved
                || self.streams.is_some() =>
            {
                "inputs or factors of single layers"
            }
            _ if any(|layer| layer.attention.values_normed || layer.attention.shares.is_some()) => {
                "values that are normed, or another layer's"
            }
            _ if self.convolution.is_some() && any(|layer| !layer.order.on_sum()) => {
                "a convolution, and norms before halves"
            }
            _ => return None,
        };
        Some(("encoder", what.to_owned()))
    }
}

fn is_plain(dense: &DenseSpec) -> bool {
    !dense.gated && !dense.up_bias && !dense.down_bias
}

/// Feature of a layer that cannot run in a network with this first layer.
fn refused(
    index: usize,
    layer: &LayerSpec,
    first: &LayerSpec,
    like: &LayerSpec,
    norm: NormKind,
) -> Option<(&'static str, String)> {
    let attention = &layer.attention;
    let causal = matches!(like.attention.mask, Mask::Causal { .. });
    let heads = [attention, &like.attention].map(|of| matches!(of.projection, Projection::Heads(_)));
    if attention.projection != like.attention.projection && !(causal && heads == [true; 2]) {
        let what = if attention.projection.state().is_some() { "states" } else { "attention heads" };
        return Some((what, format!("other ones in layer {index}")));
    }
    if attention.output_gate && !matches!(attention.projection, Projection::Heads(_)) {
        return Some(("attention", "a gate of what latents or a state give".into()));
    }
    if let Projection::Latent(_) = attention.projection {
        let what = match attention {
            _ if !matches!(attention.mask, Mask::Causal { window: None }) => "a window",
            _ if attention.rope.is_none() => "no rotary embedding",
            _ if attention.softcap.is_some() => "a softcap of scores",
            _ if attention.sinks => "sinks",
            _ if attention.qkv_bias => "biases",
            _ if attention.query_scale.is_some() => "a factor on queries that grows with their position",
            _ if attention.norm_after_rope => "a norm after the rotary embedding",
            _ => return refused_half(index, layer, first),
        };
        return Some(("latent attention", what.to_owned()));
    }
    if attention.norm_after_rope && matches!(attention.qk_norm, QkNorm::Whole | QkNorm::HeadsApart) {
        return Some(("attention", "such a norm of heads after the rotary embedding".into()));
    }
    if matches!(attention.qk_norm, QkNorm::Heads | QkNorm::Unit) && norm.is_layer() {
        return Some(("attention", "RMS norms of heads, beside layer norms".into()));
    }
    refused_half(index, layer, first)
}

fn refused_half(index: usize, layer: &LayerSpec, first: &LayerSpec) -> Option<(&'static str, String)> {
    let sees_ahead = |layer: &LayerSpec| matches!(layer.attention.mask, Mask::Whole { .. });
    if sees_ahead(layer) != sees_ahead(first) {
        return Some(("attention", format!("causal in some layers, to both sides in others, as in {index}")));
    }
    // A residual sum is added and normed by one op, whose norm is the next sublayer's.
    let bare = layer.order == NormOrder::Branch;
    if layer.order.on_sum() != first.order.on_sum()
        || bare != (first.order == NormOrder::Branch)
        || index > 0 && !bare && layer.order.attention_reads_sum() != layer.order.on_sum()
    {
        return Some(("norms", format!("{:?} in layer {index}", layer.order)));
    }
    if layer.residual_scale != 1.0 {
        return Some(("factor on what layers add", layer.residual_scale.to_string()));
    }
    match &layer.mlp {
        // Towers have them, with sequential sublayers.
        MlpSpec::Dense(dense)
            if dense.gated && dense.up_bias && (!sees_ahead(layer) || layer.order.is_parallel()) =>
        {
            Some(("MLP", "gated, with a bias on up".into()))
        }
        MlpSpec::None if layer.order != NormOrder::Pre => {
            Some(("MLP", format!("none, where norms stand as in {:?}", layer.order)))
        }
        MlpSpec::Dense(_) | MlpSpec::None => None,
        MlpSpec::Experts(experts) if experts.apart && (experts.shared.is_none() || experts.bias) => {
            Some(("experts", "norms of their own without an MLP beside them".into()))
        }
        MlpSpec::Experts(_) if layer.order.is_parallel() && layer.mlp.is_apart() => {
            Some(("experts", "norms of their own, beside attention".into()))
        }
        MlpSpec::Experts(experts) if experts.correction_bias && experts.router_bias => {
            Some(("experts", "a bias of scores beside one of the choice".into()))
        }
        MlpSpec::Experts(_) => None,
    }
}

fn state_fits(state: &StateSpec) -> Result<(), (&'static str, String)> {
    let StateShape { key_heads, value_heads, key_dim, value_dim, taps, .. } = state.shape;
    let wrong = |reason| Err(("states", reason));
    if !value_heads.is_multiple_of(key_heads) {
        return wrong(format!("{value_heads} heads of values are not a multiple of {key_heads} of keys"));
    }
    if state.shape.width() > WIDTH_MAX || key_dim * value_dim > WIDTH_MAX {
        return wrong(format!("{value_heads} heads of {key_dim} by {value_dim} are too wide"));
    }
    if !(2..=StateShape::TAPS_MAX).contains(&taps) {
        let most = StateShape::TAPS_MAX;
        return wrong(format!("a convolution of {taps} tokens; from 2 to {most} are possible"));
    }
    if state.norm_part > 0 && !state.shape.value_width().is_multiple_of(state.norm_part) {
        return wrong(format!("a norm of {} elements, which do not divide a row", state.norm_part));
    }
    Ok(())
}

fn rope_fits(rope: &RopeSpec, head_dim: usize) -> Result<(), (&'static str, String)> {
    const WHAT: &str = "rotary embedding";
    if rope.dim == 0 || !rope.dim.is_multiple_of(2) || rope.dim > head_dim {
        let reason = format!("{} dimensions; an even number up to the head's {head_dim} is needed", rope.dim);
        return Err((WHAT, reason));
    }
    let long = rope.long.as_ref();
    let factors = [rope.factors.as_ref(), long.map(|long| &long.factors)];
    if let Some(factors) = factors.into_iter().flatten().find(|factors| factors.len() != rope.dim / 2) {
        let reason = format!("expected {} factors, found {}", rope.dim / 2, factors.len());
        return Err(("tensor rope_freqs.weight", reason));
    }
    if !rope.magnitude.is_finite() || long.is_some_and(|long| !long.magnitude.is_finite()) {
        return Err((WHAT, "its factor on cosine and sine is not finite".into()));
    }
    if !rope.tables().iter().all(|frequency| frequency.is_finite()) {
        return Err((WHAT, "its frequencies are not finite".into()));
    }
    Ok(())
}
