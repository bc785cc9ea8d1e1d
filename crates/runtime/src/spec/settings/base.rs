//! Settings that all decoders have, and the network of layers that a family's reader describes.

use hanzo_engine_kernels::{Activation, HeadShape};

use super::dense::activation;
use super::{Checks, ModelType};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::rope::{check_settings, settings_of, stretch, stretched_context};
use crate::spec::{
    AttentionSpec, Config, HeadSpec, LayerSpec, LogitsSpec, MlpSpec, NormOrder, NormSpec, RopeSpec,
    TransformerSpec,
};

/// Settings common to all decoders.
pub(crate) struct Base<'a> {
    pub(crate) of: &'a ModelType,
    pub(crate) config: &'a Config,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) context: usize,
    pub(crate) activation: Activation,
}

impl<'a> Base<'a> {
    pub(crate) fn read(of: &'a ModelType, config: &'a Config) -> Result<Self, LoadError> {
        Ok(Self {
            of,
            config,
            hidden: config.required("hidden_size", WIDTH_MAX)?,
            layers: config.required("num_hidden_layers", LAYERS_MAX)?,
            context: config.required("max_position_embeddings", CONTEXT_TOKENS_MAX)?,
            activation: activation(of, config)?,
        })
    }

    pub(crate) fn heads(&self) -> Result<HeadShape, LoadError> {
        let heads = self.config.required("num_attention_heads", HEADS_MAX)?;
        // Absent from configurations older than grouped queries.
        let kv_heads = self.config.count("num_key_value_heads", HEADS_MAX)?.unwrap_or(heads);
        let hidden = self.hidden;
        let head_dim = match self.config.count("head_dim", HEAD_DIM_MAX)?.or(self.of.head_dim) {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) && hidden / heads <= HEAD_DIM_MAX => hidden / heads,
            None => {
                let reason = format!("hidden states of {hidden} do not split into {heads} heads");
                return Err(self.config.corrupt("num_attention_heads", reason));
            }
        };
        Ok(HeadShape { heads, kv_heads, head_dim })
    }

    /// Attention of these heads, with the biases and norms of the model type.
    pub(crate) fn attention(&self, heads: HeadShape) -> Result<AttentionSpec, LoadError> {
        Ok(AttentionSpec {
            qkv_bias: self.of.biases[0].read(self.config)?,
            output_bias: self.of.biases[1].read(self.config)?,
            qk_norm: self.of.qk_norm,
            norm_after_rope: self.of.norm_after_rope,
            ..AttentionSpec::causal(heads)
        })
    }

    pub(crate) fn eps(&self) -> Result<f32, LoadError> {
        Ok(self.config.positive(self.of.eps.0)?.unwrap_or(self.of.eps.1))
    }

    /// Width of dense MLPs, if there are any.
    pub(crate) fn ffn(&self, is_dense: bool) -> Result<usize, LoadError> {
        if is_dense { self.config.required("intermediate_size", WIDTH_MAX) } else { Ok(0) }
    }

    /// Rotary embedding of `dim` elements of a head, and the settings it was read from.
    pub(crate) fn rope(&self, dim: usize) -> Result<(RopeSpec, Config), LoadError> {
        let (of, config) = (self.of, self.config);
        let kind_of_layers = if of.checks == Checks::Dense { "full_attention" } else { "" };
        let settings = settings_of(config, kind_of_layers)?;
        let rope_type = match settings.string("rope_type")? {
            Some(rope_type) => rope_type,
            None => settings.string("type")?.unwrap_or("default"),
        };
        if of.checks == Checks::Llama {
            check_settings(&settings, rope_type)?;
        }
        let base = match settings.positive("rope_theta")? {
            Some(base) => base,
            None => config.positive("rope_theta")?.unwrap_or(of.rope_base),
        };
        let plain = RopeSpec::plain(of.rope_kind, base, dim);
        let rope = stretch(plain, (config, &settings), rope_type, self.context)?;
        Ok((rope, settings))
    }

    /// Number of rotated elements of a head.
    pub(crate) fn turned(&self, head_dim: usize) -> Result<usize, LoadError> {
        let inside = match self.config.object("rope_parameters")? {
            Some(settings) => settings.positive("partial_rotary_factor")?,
            None => None,
        };
        let factor = match inside {
            Some(factor) => factor,
            None => self.config.positive("partial_rotary_factor")?.unwrap_or(self.of.turned),
        };
        Ok((head_dim as f32 * factor) as usize)
    }

    fn order(&self) -> Result<NormOrder, LoadError> {
        if self.of.parallel == [None; 2] {
            return Ok(self.of.order);
        }
        let said = self.config.bool("use_parallel_residual")?;
        Ok(said.and_then(|said| self.of.parallel[usize::from(said)]).unwrap_or(self.of.order))
    }

    /// A network of these layers.
    pub(crate) fn spec(
        &self,
        rope: RopeSpec,
        layer: impl Fn(usize) -> (AttentionSpec, MlpSpec),
    ) -> Result<TransformerSpec, LoadError> {
        let (of, config) = (self.of, self.config);
        let order = self.order()?;
        let layers = (0..self.layers).map(|index| {
            let (attention, mlp) = layer(index);
            LayerSpec { order, attention, mlp, residual_scale: 1.0 }
        });
        let norm = NormSpec { kind: of.norm, eps: self.eps()? };
        let sizes = [config.required("vocab_size", VOCAB_MAX)?, self.hidden];
        let context = stretched_context(&rope.scaling, self.context);
        Ok(TransformerSpec {
            ropes: vec![rope],
            embedding_scale: if of.embeds_by_root { (self.hidden as f32).sqrt() } else { 1.0 },
            head: HeadSpec::Logits(LogitsSpec {
                bias: of.head_bias,
                ..LogitsSpec::plain(config.bool("tie_word_embeddings")?.unwrap_or(of.tied))
            }),
            ..TransformerSpec::bare(of.name, sizes, layers.collect(), norm, context)
        })
    }

    /// A network of the model type's attention, with whole heads rotated, and these MLPs.
    pub(crate) fn with_mlps(&self, mlp: impl Fn(usize) -> MlpSpec) -> Result<TransformerSpec, LoadError> {
        let heads = self.heads()?;
        let attention = self.attention(heads)?;
        let (rope, _) = self.rope(heads.head_dim)?;
        self.spec(rope, |layer| (attention.clone(), mlp(layer)))
    }
}
