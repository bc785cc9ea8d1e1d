//! Typed access to the metadata under an architecture's name: a value of the wrong type or out of its range is an error
//! that names file and key. Unknown keys are refused, because they could change the computation.

use hanzo_engine_model_files::error::{LoadError, shorten};
use hanzo_engine_model_files::gguf::{Array, Gguf, Metadata, Value};
use hanzo_engine_model_files::tensor::Tensor;
use hanzo_engine_ops::RopeKind;

use super::Architecture;

use crate::limits::{CONTEXT_TOKENS_MAX, HEAD_DIM_MAX, LAYERS_MAX, VOCAB_MAX};
use crate::spec::rope::yarn_magnitude;
use crate::spec::settings::ModelType;
use crate::spec::{LongRope, NormKind, Part, RopeScaling, RopeSpec, Weight};

/// Keys that every decoder's reader reads.
const READ: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    ROPE_DIM,
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

/// Keys that do not change a decoder's computation. The vocabulary is given by the embedding's rows; others describe
/// the making of the file or the pipeline around the decoder, or are of images: a text has the same position on all
/// axes.
const HARMLESS: &[&str] = &[
    "classifier.output_labels",
    "n_deepstack_layers",
    "pooling_type",
    "rope.dimension_sections",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "vocab_size",
];

/// Keys that are neutral if they are zero or false.
const HARMLESS_AT_ZERO: &[&str] = &[
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "expert_count",
    "expert_used_count",
    "rope.scaling.yarn_log_multiplier",
    "use_parallel_residual",
];

/// Divisors of rope's frequencies for texts longer than the original context, and for others (LongRoPE).
pub const LONG_FACTORS: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];
/// Number of rotated elements of a head.
const ROPE_DIM: &str = "rope.dimension_count";

/// Divisors of rope's frequencies: the converter's form of Llama 3.1's scaling.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Keys under the architecture's name, and the tensors of the same file.
pub(crate) struct Keys<'a> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) metadata: &'a Metadata,
    /// Model type whose network the file has.
    pub(crate) form: &'a ModelType,
    /// Architecture of the file.
    pub(crate) of: &'a Architecture,
}

impl Keys<'_> {
    /// Pairing of a head's elements. Files of vision models have rows of queries and keys regrouped.
    pub(crate) fn rope_kind(&self) -> RopeKind {
        let regrouped =
            self.of.is_dense() && self.metadata.get(&self.key("rope.dimension_sections")).is_some();
        match self.of.permuted {
            _ if regrouped => RopeKind::Neox,
            true => RopeKind::Interleaved,
            false => self.form.rope_kind,
        }
    }

    /// Kind of the norms. Converters add the one to weights that are stored less one.
    pub(crate) fn norm_kind(&self) -> NormKind {
        match self.form.norm {
            NormKind::Rms { .. } => NormKind::Rms { from_one: false },
            NormKind::LayerFromOne => NormKind::Layer { bias: true },
            other => other,
        }
    }

    /// A tensor of the file.
    pub(crate) fn find(&self, name: &str) -> Option<&Tensor> {
        self.gguf.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Whether the file has a weight.
    pub(crate) fn has(&self, weight: Weight) -> bool {
        self.find(&self.of.names.of("", weight)).is_some()
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.of.name)
    }

    pub(crate) fn unsupported(&self, name: &str, value: impl ToString, reason: &str) -> LoadError {
        LoadError::Unsupported {
            file: self.metadata.file().to_owned(),
            key: self.key(name),
            value: shorten(value.to_string()),
            reason: reason.to_owned(),
        }
    }

    /// Vocabulary size: the number of the embedding's rows.
    pub(crate) fn vocab(&self) -> Result<usize, LoadError> {
        let (file, name) = (self.metadata.file(), self.of.names.of("", Part::TokenEmbedding.weight()));
        match self.find(&name).map(|tensor| tensor.shape[0]) {
            Some(rows) if rows <= VOCAB_MAX => Ok(rows),
            Some(rows) => Err(LoadError::Corrupt {
                file: file.to_owned(),
                what: format!("tensor {name}"),
                reason: format!("{rows} rows; at most {VOCAB_MAX} are allowed"),
            }),
            None => Err(LoadError::Missing {
                file: file.to_owned(),
                what: format!("tensor {name}"),
                hint: String::new(),
            }),
        }
    }

    /// Number of layers, without those after the last that predict several tokens at once; and of all.
    pub(crate) fn layers(&self) -> Result<[usize; 2], LoadError> {
        const MORE: &str = "nextn_predict_layers";
        let all = self.required("block_count", LAYERS_MAX)?;
        match self.whole(MORE, LAYERS_MAX)?.unwrap_or(0) {
            more if more < all => Ok([all - more, all]),
            more => Err(self.unsupported(MORE, more, "there would be no layer before them")),
        }
    }

    /// A truth value for each of so many layers. The list may also have entries for layers after the last that predict
    /// several tokens at once.
    pub(crate) fn truths(&self, name: &str, layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
        match self.metadata.get(&self.key(name)) {
            None => Ok(None),
            Some(Value::Array(Array::Bool(of)))
                if of.len() == layers || self.of.predicts_more && of.len() > layers =>
            {
                Ok(Some(of[..layers].to_vec()))
            }
            Some(_) => Err(self.unsupported(name, "another list", "a truth value for each layer is known")),
        }
    }

    /// A whole number up to `max`.
    pub(crate) fn whole(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        match self.metadata.get(&self.key(name)) {
            Some(value) if is_zero(value) => Ok(Some(0)),
            _ => self.count(name, max),
        }
    }

    /// Refuses keys that neither every decoder has nor this family reads.
    pub(super) fn refuse_unknown(&self, read: impl Fn(&str) -> bool) -> Result<(), LoadError> {
        let prefix = self.key("");
        for (key, value) in self.metadata.iter() {
            let Some(name) = key.strip_prefix(&prefix) else { continue };
            let known = READ.contains(&name)
                || read(name)
                || HARMLESS.contains(&name)
                || (HARMLESS_AT_ZERO.contains(&name) && is_zero(value))
                || (name == "attention.causal" && *value == Value::Bool(true));
            if !known {
                return Err(self.unsupported(name, value, "this build does not know what to do with it"));
            }
        }
        Ok(())
    }

    /// A count from 1 to `max`, possibly given as a list with the same count for every layer.
    pub(crate) fn count(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        let key = self.key(name);
        let number = match self.metadata.get(&key) {
            None => return Ok(None),
            Some(Value::Array(Array::String(_))) | Some(Value::Array(Array::Array(_))) => {
                self.metadata.integer(&key)?
            }
            Some(Value::Array(_)) => {
                let per_layer = self.metadata.integers(&key)?.unwrap_or_default();
                let first = per_layer.first().copied();
                if per_layer.iter().any(|&count| Some(count) != first) {
                    return Err(self.unsupported(
                        name,
                        format!("{per_layer:?}"),
                        "all layers must have the same",
                    ));
                }
                first
            }
            Some(_) => self.metadata.integer(&key)?,
        };
        match number.map(usize::try_from) {
            Some(Ok(number)) if (1..=max).contains(&number) => Ok(Some(number)),
            _ => Err(self
                .metadata
                .corrupt(&key, format!("{} is not from 1 to {max}", number.unwrap_or_default()))),
        }
    }

    pub(crate) fn required(&self, name: &str, max: usize) -> Result<usize, LoadError> {
        self.count(name, max)?.ok_or_else(|| self.metadata.missing(&self.key(name)))
    }

    /// A finite float above zero.
    pub(crate) fn positive(&self, name: &str) -> Result<Option<f32>, LoadError> {
        let key = self.key(name);
        match self.metadata.f32(&key)? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.metadata.corrupt(&key, format!("{value} is not a number above 0")))
            }
            value => Ok(value),
        }
    }

    pub(crate) fn epsilon(&self) -> Result<f32, LoadError> {
        const NAME: &str = "attention.layer_norm_rms_epsilon";
        self.positive(NAME)?.ok_or_else(|| self.metadata.missing(&self.key(NAME)))
    }

    fn divisors(&self, tensor: &Tensor) -> Result<Vec<f32>, LoadError> {
        let factors = tensor.to_f32()?;
        match factors.iter().all(|factor| factor.is_finite() && *factor > 0.0) {
            true => Ok(factors),
            false => Err(tensor.corrupt("a factor is not a number above 0")),
        }
    }

    /// Rotary embedding of a file that may have divisors of its frequencies: for all texts, or LongRoPE's, which
    /// differ for texts longer than the original context.
    pub(crate) fn rope_of(
        &self,
        kind: RopeKind,
        head_dim: usize,
        context: usize,
    ) -> Result<RopeSpec, LoadError> {
        let [long, short] = LONG_FACTORS.map(|name| self.find(name));
        let mut rope = self.rope(kind, head_dim, context, short.or_else(|| self.find(ROPE_FACTORS)))?;
        let original = self.count("rope.scaling.original_context_length", CONTEXT_TOKENS_MAX)?;
        if let (Some(long), Some(original)) = (long, original.filter(|&original| original < context)) {
            let (factors, magnitude) = (self.divisors(long)?, rope.magnitude);
            rope.long = Some(LongRope { original_context: original as u32, factors, magnitude });
        }
        Ok(rope)
    }

    pub(crate) fn rope(
        &self,
        kind: RopeKind,
        head_dim: usize,
        context: usize,
        factors: Option<&Tensor>,
    ) -> Result<RopeSpec, LoadError> {
        let factor = match self.positive("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.positive("rope.scale_linear")?.unwrap_or(1.0),
        };
        let mut magnitude = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        // A factor without a type has always meant linear.
        let scaling_type = self.metadata.string(&self.key("rope.scaling.type"))?.unwrap_or("linear");
        let scaling = match scaling_type {
            "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor },
            "yarn" => {
                magnitude *= yarn_magnitude(factor, 1.0);
                RopeScaling::Yarn {
                    factor,
                    beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    original_context: self
                        .count("rope.scaling.original_context_length", CONTEXT_TOKENS_MAX)?
                        .unwrap_or(context) as u32,
                    truncate: true,
                }
            }
            // The factors contain everything.
            "longrope" if factors.is_some() => RopeScaling::None,
            other => {
                let reason = "none, linear, yarn and, with its factors, longrope are known";
                return Err(self.unsupported("rope.scaling.type", other, reason));
            }
        };
        let factors = factors.map(|factors| self.divisors(factors)).transpose()?;
        let base = self.positive("rope.freq_base")?.unwrap_or(10_000.0);
        let dim = match self.count(ROPE_DIM, HEAD_DIM_MAX)? {
            Some(dim) => dim,
            // A guess would rotate the wrong elements.
            None if self.form.turned != 1.0 => return Err(self.metadata.missing(&self.key(ROPE_DIM))),
            None => head_dim,
        };
        Ok(RopeSpec { scaling, factors, magnitude, ..RopeSpec::plain(kind, base, dim) })
    }
}

pub(super) fn is_zero(value: &Value) -> bool {
    match *value {
        Value::Bool(truth) => !truth,
        Value::F32(x) => x == 0.0,
        Value::F64(x) => x == 0.0,
        Value::U8(n) => n == 0,
        Value::U16(n) => n == 0,
        Value::U32(n) => n == 0,
        Value::U64(n) => n == 0,
        Value::I8(n) => n == 0,
        Value::I16(n) => n == 0,
        Value::I32(n) => n == 0,
        Value::I64(n) => n == 0,
        Value::String(_) | Value::Array(_) => false,
    }
}
