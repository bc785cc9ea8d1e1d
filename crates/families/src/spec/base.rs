//! Parts that a decoder's reader joins, of files in either format: the settings that all decoders have, attention, and
//! the network of layers.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_ops::{Activation, HeadShape};

use super::rope::{check_settings, rope_type, settings_of, stretch, stretched_context};
use super::setting::{
    CONTEXT, FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, PARALLEL, SettingsFile, VALUE_DIM, factor,
};
use super::settings::{Checks, ModelType, activation};
use super::{
    AttentionSpec, Config, HeadSpec, LayerSpec, LogitsSpec, Mask, MlpSpec, NormOrder, NormSpec, RopeSpec,
    StateSpec, TransformerSpec,
};
use crate::limits::{HEAD_DIM_MAX, VOCAB_MAX};

/// Settings common to all decoders.
#[derive(Clone, Copy)]
pub(crate) struct Base<'a> {
    pub(crate) of: &'a ModelType,
    pub(crate) file: SettingsFile<'a>,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) context: usize,
    pub(crate) activation: Activation,
}

impl<'a> Base<'a> {
    pub(crate) fn read(of: &'a ModelType, file: impl Into<SettingsFile<'a>>) -> Result<Self, LoadError> {
        let file = file.into();
        let hidden = file.required(&HIDDEN)?;
        let layers = match file {
            SettingsFile::HuggingFace(_) => file.required(&LAYERS)?,
            SettingsFile::Gguf(keys) => keys.layers()?[0],
        };
        let context = file.required(&CONTEXT)?;
        let activation = match file {
            SettingsFile::HuggingFace(config) => activation(of, config)?,
            SettingsFile::Gguf(_) => of.usual_activation(),
        };
        Ok(Self { of, file, hidden, layers, context, activation })
    }

    pub(crate) fn heads(&self) -> Result<HeadShape, LoadError> {
        let (file, hidden) = (self.file, self.hidden);
        let heads = file.required(&HEADS)?;
        // Absent from files older than grouped queries.
        let kv_heads = file.count(&KV_HEADS)?.unwrap_or(heads);
        let usual = match file {
            SettingsFile::HuggingFace(_) => self.of.head_dim,
            SettingsFile::Gguf(_) => None,
        };
        let head_dim = match file.count(&HEAD_DIM)?.or(usual) {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) && hidden / heads <= HEAD_DIM_MAX => hidden / heads,
            None => {
                let reason = format!("hidden states of {hidden} do not split into {heads} heads");
                return Err(file.corrupt(&HEADS, reason));
            }
        };
        match file.count(&VALUE_DIM)?.filter(|&value_dim| value_dim != head_dim) {
            Some(value_dim) => {
                let reason = format!("values must be as long as keys, {head_dim}");
                Err(file.unsupported(&VALUE_DIM, value_dim, &reason))
            }
            None => Ok(HeadShape { heads, kv_heads, head_dim }),
        }
    }

    /// Attention of these heads, with the biases and norms of the model type.
    pub(crate) fn attention(&self, heads: HeadShape) -> Result<AttentionSpec, LoadError> {
        let plain = AttentionSpec {
            qk_norm: self.of.qk_norm,
            norm_after_rope: self.of.norm_after_rope,
            ..AttentionSpec::causal(heads)
        };
        match self.file {
            SettingsFile::HuggingFace(config) => Ok(AttentionSpec {
                qkv_bias: self.of.biases[0].read(config)?,
                output_bias: self.of.biases[1].read(config)?,
                ..plain
            }),
            SettingsFile::Gguf(keys) => keys.attention(self, plain),
        }
    }

    /// Settings of the norms.
    pub(crate) fn norm(&self) -> Result<NormSpec, LoadError> {
        match self.file {
            SettingsFile::HuggingFace(config) => {
                let (key, usual) = self.of.eps;
                Ok(NormSpec { kind: self.of.norm, eps: config.positive(key)?.unwrap_or(usual) })
            }
            SettingsFile::Gguf(keys) => (keys.of.norms)(keys),
        }
    }

    /// Width of dense MLPs, if there are any.
    pub(crate) fn ffn(&self, is_dense: bool) -> Result<usize, LoadError> {
        if is_dense { self.file.required(&FFN) } else { Ok(0) }
    }

    /// Rotary embedding of `dim` elements of a head.
    pub(crate) fn rope(&self, dim: usize) -> Result<RopeSpec, LoadError> {
        let of = self.of;
        let config = match self.file {
            SettingsFile::HuggingFace(config) => config,
            SettingsFile::Gguf(keys) => return keys.rope_of(keys.rope_kind(), dim, self.context),
        };
        let settings = self.rope_settings(config)?;
        let rope_type = rope_type(&settings)?.unwrap_or("default");
        if of.checks == Checks::Llama {
            check_settings(&settings, rope_type)?;
        }
        let base = match settings.positive("rope_theta")? {
            Some(base) => base,
            None => config.positive("rope_theta")?.unwrap_or(of.rope_base),
        };
        stretch(RopeSpec::plain(of.rope_kind, base, dim), config, &settings, rope_type, self.context)
    }

    /// Number of rotated elements of a head. In GGUF files the rotary embedding's own setting says
    /// ([`Keys::rope`]).
    pub(crate) fn turned(&self, head_dim: usize) -> Result<usize, LoadError> {
        const FRACTION: &str = "partial_rotary_factor";
        let fraction = match self.file {
            SettingsFile::Gguf(_) => return Ok(head_dim),
            // The check of a Llama's settings refuses another fraction in the file.
            SettingsFile::HuggingFace(_) if self.of.checks == Checks::Llama => self.of.turned,
            SettingsFile::HuggingFace(config) => match self.rope_settings(config)?.positive(FRACTION)? {
                Some(fraction) => fraction,
                None => config.positive(FRACTION)?.unwrap_or(self.of.turned),
            },
        };
        Ok((head_dim as f32 * fraction) as usize)
    }

    fn rope_settings(&self, config: &Config) -> Result<Config, LoadError> {
        settings_of(config, if self.of.checks == Checks::Dense { "full_attention" } else { "" })
    }

    fn order(&self) -> Result<NormOrder, LoadError> {
        let of = self.of;
        let said = match self.file {
            SettingsFile::HuggingFace(_) if of.parallel == [None; 2] => None,
            SettingsFile::Gguf(keys) if !keys.of.is_dense() => None,
            file => file.bool(&PARALLEL)?,
        };
        match said.and_then(|said| of.parallel[usize::from(said)]) {
            Some(order) => Ok(order),
            None if said == Some(true) && !of.order.is_parallel() => {
                Err(self.file.unsupported(&PARALLEL, true, "this architecture has none"))
            }
            None => Ok(of.order),
        }
    }

    /// A network of these layers.
    pub(crate) fn spec(
        &self,
        rope: impl Into<Option<RopeSpec>>,
        layer: impl Fn(usize) -> (AttentionSpec, MlpSpec),
    ) -> Result<TransformerSpec, LoadError> {
        let (of, file, rope) = (self.of, self.file, rope.into());
        let (order, residual_scale) = (self.order()?, file.factor(&factor("", "residual_scale"))?);
        let layers = (0..self.layers).map(|index| {
            let (attention, mlp) = layer(index);
            LayerSpec { order, attention, mlp, residual_scale }
        });
        let root = if of.embeds_by_root { (self.hidden as f32).sqrt() } else { 1.0 };
        let (name, vocab, head, context) = match file {
            SettingsFile::HuggingFace(config) => {
                let tied = config.bool("tie_word_embeddings")?.unwrap_or(of.tied);
                let head = LogitsSpec { bias: of.head_bias, ..LogitsSpec::plain(tied) };
                let stretched = rope.as_ref().map(|rope| stretched_context(&rope.scaling, self.context));
                let vocab = config.required("vocab_size", VOCAB_MAX)?;
                (of.name, vocab, head, stretched.unwrap_or(self.context))
            }
            SettingsFile::Gguf(keys) => (keys.of.name, keys.vocab()?, keys.head()?, self.context),
        };
        let sizes = [vocab, self.hidden];
        Ok(TransformerSpec {
            ropes: rope.into_iter().collect(),
            embedding_scale: file.factor(&factor("", "embedding_scale").or(root))?,
            head: HeadSpec::Logits(head),
            ..TransformerSpec::bare(name, sizes, layers.collect(), self.norm()?, context)
        })
    }

    /// A network of layers with these windows. `turns` gives the rope of each, if it rotates queries and keys.
    pub(crate) fn with_windows(
        &self,
        rope: impl Into<Option<RopeSpec>>,
        attention: &AttentionSpec,
        windows: &[Option<u32>],
        turns: impl Fn(usize) -> Option<usize>,
        mlp: impl Fn(usize) -> MlpSpec,
    ) -> Result<TransformerSpec, LoadError> {
        self.spec(rope, |layer| {
            let mask = Mask::Causal { window: windows[layer] };
            (AttentionSpec { mask, rope: turns(layer), ..attention.clone() }, mlp(layer))
        })
    }

    /// A network of the model type's attention, with whole heads rotated, and these MLPs.
    pub(crate) fn with_mlps(&self, mlp: impl Fn(usize) -> MlpSpec) -> Result<TransformerSpec, LoadError> {
        let heads = self.heads()?;
        let attention = self.attention(heads)?;
        self.spec(self.rope(heads.head_dim)?, |layer| (attention.clone(), mlp(layer)))
    }

    /// A network whose layers have a recurrent state or attention, and these MLPs.
    pub(crate) fn hybrid(
        &self,
        rope: RopeSpec,
        recurs: &[bool],
        state: StateSpec,
        attention: AttentionSpec,
        mlp: impl Fn(usize) -> MlpSpec,
    ) -> Result<TransformerSpec, LoadError> {
        self.spec(rope, |layer| match recurs[layer] {
            true => (AttentionSpec::of_state(state), mlp(layer)),
            false => (attention.clone(), mlp(layer)),
        })
    }
}
