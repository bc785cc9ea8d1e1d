//! Recurrent states from the settings of files in either format.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_ops::{StateRule, StateShape};

use super::base::Base;
use super::setting::{Setting, SettingsFile, count, flag};
use super::{LayerPart, Part, StateSpec};
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, WIDTH_MAX};

/// Settings of a layer's recurrent state.
pub(crate) struct StateSettings {
    pub(crate) key_heads: Setting<usize>,
    pub(crate) value_heads: Setting<usize>,
    pub(crate) key_dim: Setting<usize>,
    /// Elements of a value; if absent, the width over the number of heads.
    pub(crate) value_dim: Setting<usize>,
    /// Width of all values together.
    pub(crate) inner: Setting<usize>,
    /// Ratio of that width to the hidden size, if the width is absent.
    pub(crate) expand: Setting<usize>,
    pub(crate) taps: Setting<usize>,
    /// Whether the convolution has biases; in GGUF files its tensors say.
    pub(crate) bias: Setting<bool>,
}

/// Mamba 2's layers among others, with settings named separately from attention's.
pub(crate) const MAMBA: StateSettings = StateSettings {
    key_heads: count("mamba_n_groups", "ssm.group_count", HEADS_MAX).or_of_class(1),
    value_heads: count("mamba_n_heads", "ssm.time_step_rank", HEADS_MAX),
    key_dim: count("mamba_d_state", "ssm.state_size", HEAD_DIM_MAX),
    value_dim: count("mamba_d_head", "", HEAD_DIM_MAX),
    inner: count("mamba_d_ssm", "ssm.inner_size", WIDTH_MAX),
    expand: count("mamba_expand", "", WIDTH_MAX).or_of_class(2),
    taps: count("mamba_d_conv", "ssm.conv_kernel", StateShape::TAPS_MAX),
    bias: flag("mamba_conv_bias", "").or_of_class(true),
};

/// Mamba 2's layers in files with no other layers.
pub(crate) const MAMBA_ALONE: StateSettings = StateSettings {
    key_heads: count("n_groups", "ssm.group_count", HEADS_MAX).or_of_class(8),
    value_heads: count("num_heads", "ssm.time_step_rank", HEADS_MAX),
    key_dim: count("state_size", "ssm.state_size", HEAD_DIM_MAX),
    value_dim: count("head_dim", "", HEAD_DIM_MAX),
    inner: count("", "ssm.inner_size", WIDTH_MAX),
    expand: count("expand", "", WIDTH_MAX).or_of_class(2),
    taps: count("conv_kernel", "ssm.conv_kernel", StateShape::TAPS_MAX).or_of_class(4),
    bias: flag("use_conv_bias", "").or_of_class(true),
};

impl StateSettings {
    /// Sizes of a state.
    pub(crate) fn shape(&self, base: &Base<'_>, rule: StateRule) -> Result<StateShape, LoadError> {
        let file = base.file;
        let value_heads = file.required(&self.value_heads)?;
        let inner = match file.count(&self.inner)? {
            Some(inner) => Some(inner),
            None => file.count(&self.expand)?.map(|expand| expand.saturating_mul(base.hidden)),
        };
        let value_dim = match (file.count(&self.value_dim)?, inner, file) {
            (Some(value_dim), ..) => value_dim,
            (None, Some(inner), _) => inner / value_heads,
            (None, None, SettingsFile::HuggingFace(_)) => return Err(file.missing(&self.value_dim)),
            (None, None, SettingsFile::Gguf(_)) => return Err(file.missing(&self.inner)),
        };
        if let Some(inner) = inner.filter(|&inner| value_heads * value_dim != inner) {
            let reason = format!("{value_heads} heads of {value_dim} for a width of {inner}");
            return Err(file.corrupt(&self.value_heads, reason));
        }
        Ok(StateShape {
            rule,
            key_heads: file.required(&self.key_heads)?,
            value_heads,
            key_dim: file.required(&self.key_dim)?,
            value_dim,
            taps: file.required(&self.taps)?,
            tiled: false,
        })
    }

    /// A state of Mamba 2. In GGUF files it has biases if that of layer `first` has.
    pub(crate) fn ssd(&self, base: &Base<'_>, first: usize) -> Result<StateSpec, LoadError> {
        let (shape, eps) = (self.shape(base, StateRule::Ssd)?, base.norm()?.eps);
        match base.file {
            SettingsFile::HuggingFace(_) => {
                Ok(StateSpec::ssd(shape, base.file.bool(&self.bias)?.unwrap_or(false), eps))
            }
            SettingsFile::Gguf(keys) => {
                let biased = keys.has(Part::Layer(first, LayerPart::StateConvolution).bias());
                Ok(StateSpec { decay_as_log: false, ..StateSpec::ssd(shape, biased, eps) })
            }
        }
    }
}
