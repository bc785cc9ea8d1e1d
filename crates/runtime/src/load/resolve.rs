//! Matching of a file's tensors with the weights of a spec: stacks of several parts are split, every shape is checked,
//! and remaining tensors must be known to change nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use hanzo_engine_ops::{DType, HeadShape};

use super::packed::{PackedType, packed_summary};
use super::{experts, halves, stacked, turned};
use crate::error::LoadError;
use crate::importance::Importance;
use crate::spec::{
    ConvolutionSpec, HeadSpec, LayerPart, LayerSpec, LogitsSpec, MlpSpec, Names, Part, Projection, QkNorm,
    TransformerSpec, Weight,
};
use crate::tensor::Tensor;

/// Tensors of a network, each checked against its spec.
#[derive(Debug)]
pub struct Tensors {
    by_weight: BTreeMap<Weight, Tensor>,
    /// Types of the matrices that are packed as another type than stored.
    pub(super) packed: BTreeMap<Weight, PackedType>,
    /// Importance of their columns.
    pub(super) importance: Option<Arc<Importance>>,
}

impl Tensors {
    /// A weight that [`TransformerSpec::weights`] lists.
    pub fn get(&self, weight: Weight) -> &Tensor {
        self.by_weight
            .get(&weight)
            .expect("every weight of the spec is there because opening refuses otherwise")
    }

    /// Type that a matrix is packed as, unless the device changes it: its stored type, or the one that a load
    /// quantises it to.
    pub(crate) fn packed_type(&self, weight: Weight) -> DType {
        self.packed.get(&weight).map_or_else(|| self.get(weight).dtype, |target| target.dtype)
    }

    /// Whether a load quantises it by HQQ.
    pub(crate) fn by_hqq(&self, weight: Weight) -> bool {
        self.packed.get(&weight).is_some_and(|target| target.hqq)
    }

    /// Sets the types as which matrices are packed, if different from the stored ones.
    pub(crate) fn pack_as(&mut self, types: BTreeMap<Weight, PackedType>) {
        self.packed = types;
    }

    /// Number of matrices that a load quantises to each type, and that stay in each; none if it quantises nothing.
    pub(crate) fn packed_summary(&self) -> Option<String> {
        let matrices = self.by_weight.iter().filter(|(_, tensor)| tensor.shape.len() > 1);
        packed_summary(matrices.map(|(weight, tensor)| (self.packed.get(weight).copied(), tensor.dtype)))
    }

    /// All tensors.
    pub fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.by_weight.values()
    }

    /// Size of all tensors in bytes, as stored.
    pub fn bytes(&self) -> u64 {
        self.all().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    /// Number of elements in all tensors.
    pub(crate) fn parameters(&self) -> u64 {
        self.all().map(|tensor| tensor.elements() as u64).sum()
    }

    /// Type in which most bytes of the matrices are stored.
    pub(crate) fn dominant_type(&self) -> String {
        let mut bytes_of = BTreeMap::new();
        for tensor in self.all().filter(|tensor| tensor.shape.len() > 1) {
            *bytes_of.entry(tensor.dtype).or_insert(0u64) += tensor.bytes.len() as u64;
        }
        let dominant = bytes_of.into_iter().max_by_key(|&(_, bytes)| bytes);
        dominant.map_or_else(|| "unknown".to_owned(), |(dtype, _)| dtype.to_string())
    }

    #[cfg(test)]
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = (&Weight, &mut Tensor)> {
        self.by_weight.iter_mut()
    }
}

/// Suffixes of names in the first releases of BERT, and their present forms.
const OLD_NAMES: [(&str, &str); 2] = [(".gamma", ".weight"), (".beta", ".bias")];

/// Whether a file's names have the prefix: that of the embedding has it or, if only a head is stored, those of layers
/// have.
fn is_prefixed(names: &Names, by_name: &HashMap<String, Tensor>) -> bool {
    let embedding = |prefix: &str| by_name.contains_key(&names.of(prefix, Part::TokenEmbedding.weight()));
    let layers = format!("{}{}", names.prefix, names.layer);
    embedding(names.prefix) || !embedding("") && by_name.keys().any(|name| name.starts_with(&layers))
}

/// Tensors of a file by name; those that have been used are removed.
pub(crate) struct Found<'a> {
    file: String,
    names: &'a Names,
    /// Prefix of all names except heads: the table's, or empty.
    prefix: &'static str,
    by_name: HashMap<String, Tensor>,
    /// Whether tensors that hold several parts may be missing.
    partial: bool,
}

impl<'a> Found<'a> {
    pub(crate) fn new(file: &str, names: &'a Names, tensors: Vec<Tensor>) -> Result<Self, LoadError> {
        let mut by_name = HashMap::with_capacity(tensors.len());
        for mut tensor in tensors {
            // Checkpoints made from the first releases of BERT have the paper's names; in families with xIELU, `beta`
            // is a parameter of that.
            let old_names = if names.curve.is_empty() { &OLD_NAMES[..] } else { &[] };
            for &(old, new) in old_names {
                if let Some(stem) = tensor.name.strip_suffix(old) {
                    tensor.name = format!("{stem}{new}");
                }
            }
            if let Some(twice) = by_name.insert(tensor.name.clone(), tensor) {
                return Err(twice.corrupt("it is there twice"));
            }
        }
        let prefix = if is_prefixed(names, &by_name) { names.prefix } else { "" };
        Ok(Self { file: file.to_owned(), names, prefix, by_name, partial: false })
    }

    /// A single tensor, which the file calls `name`.
    pub(super) fn one(names: &'a Names, prefix: &'static str, name: String, tensor: Tensor) -> Self {
        let file = tensor.file.to_string();
        Self { file, names, prefix, by_name: HashMap::from([(name, tensor)]), partial: true }
    }

    /// All remaining tensors, by name.
    pub(super) fn into_tensors(self) -> impl Iterator<Item = (String, Tensor)> {
        self.by_name.into_iter()
    }

    /// Whether an optional tensor is missing.
    pub(super) fn lacks(&self, name: &str) -> bool {
        self.partial && !self.by_name.contains_key(name)
    }

    /// Naming scheme of its family.
    pub(super) fn names(&self) -> &'a Names {
        self.names
    }

    /// Name of a weight in this file.
    pub(crate) fn name(&self, weight: Weight) -> String {
        self.names.of(self.prefix, weight)
    }

    /// Prefix of the names inside the network's class.
    pub(crate) fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// The file or directory, for errors.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Puts back a tensor that was taken and changed.
    pub(crate) fn put_back(&mut self, tensor: Tensor) {
        self.by_name.insert(tensor.name.clone(), tensor);
    }

    /// Renames tensors.
    pub(super) fn rename(&mut self, new: impl Fn(&str) -> Option<String>) {
        let tensors = std::mem::take(&mut self.by_name).into_iter();
        self.by_name = tensors.map(|(name, tensor)| (new(&name).unwrap_or(name), tensor)).collect();
    }

    /// Puts a tensor under another name than its own.
    pub(super) fn put_as(&mut self, name: String, tensor: Tensor) {
        self.by_name.insert(name, tensor);
    }

    /// Takes a tensor of any shape.
    pub(crate) fn take_any(&mut self, name: &str) -> Option<Tensor> {
        self.by_name.remove(name)
    }

    /// Number of elements in all unused tensors.
    pub(super) fn numbers(&self) -> usize {
        self.by_name.values().map(Tensor::elements).fold(0, usize::saturating_add)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name)
    }

    /// Takes a tensor that must exist.
    pub(crate) fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        self.take_if_there(name, shape)?.ok_or_else(|| self.missing(name, shape, String::new()))
    }

    /// Takes an optional tensor.
    pub(crate) fn take_if_there(&mut self, name: &str, shape: &[usize]) -> Result<Option<Tensor>, LoadError> {
        let mut tensor = self.by_name.remove(name);
        if let Some(tensor) = &mut tensor {
            tensor.take_shape(shape)?;
        }
        Ok(tensor)
    }

    fn missing(&self, name: &str, shape: &[usize], hint: String) -> LoadError {
        LoadError::Missing { file: self.file.clone(), what: format!("tensor {name} {shape:?}"), hint }
    }

    /// Takes every weight of a network.
    pub(crate) fn resolve(&mut self, spec: &TransformerSpec) -> Result<Tensors, LoadError> {
        experts::check_count(self, spec)?;
        halves::join(self, spec);
        self.unstack(spec)?;
        self.settle_head_bias(spec)?;
        let mut by_weight = BTreeMap::new();
        for (weight, shape) in spec.weights() {
            let name = self.name(weight);
            let hint = match weight.part {
                Part::Layer(layer, part) if !self.names.stack(part).is_empty() => {
                    let stack = self.names.in_layer(self.prefix, layer, self.names.stack(part));
                    format!(", and so is {stack}")
                }
                _ => String::new(),
            };
            let tensor = self.take_if_there(&name, &shape)?;
            let tensor = tensor.ok_or_else(|| self.missing(&name, &shape, hint))?;
            let factors = spec.row_factors_of(weight);
            let tensor = if factors.is_empty() { tensor } else { turned::scaled(tensor, &factors)? };
            by_weight.insert(weight, tensor);
        }
        Ok(Tensors { by_weight, packed: BTreeMap::new(), importance: None })
    }

    /// Moves the head's bias, which some files have under the head's name and some under both names.
    fn settle_head_bias(&mut self, spec: &TransformerSpec) -> Result<(), LoadError> {
        let Names { head, head_bias, .. } = *self.names;
        let second_name = format!("{head}.bias");
        if second_name == head_bias || !spec.head.masked_lm().is_some_and(|head| head.decoder_bias) {
            return Ok(());
        }
        let Some(mut second) = self.by_name.remove(&second_name) else { return Ok(()) };
        match self.by_name.get(head_bias) {
            None => {
                second.name = head_bias.to_owned();
                self.by_name.insert(head_bias.to_owned(), second);
                Ok(())
            }
            Some(first) if first.bytes[..] == second.bytes[..] => Ok(()),
            Some(first) => Err(LoadError::Corrupt {
                file: first.file.to_string(),
                what: format!("tensor {second_name}"),
                reason: format!("it differs from {head_bias}, which stands for the same"),
            }),
        }
    }

    /// Splits tensors that hold several parts, under separate names.
    fn unstack(&mut self, spec: &TransformerSpec) -> Result<(), LoadError> {
        let hidden = spec.hidden;
        stacked::cut_streams(self, spec)?;
        stacked::pad_inputs(self, spec)?;
        if let HeadSpec::Logits(LogitsSpec { tied: false, unit_rows: true, .. }) = spec.head {
            turned::unit_rows(self, &self.name(Part::Head.weight()), [spec.vocab, hidden])?;
        }
        for (index, layer) in spec.layers.iter().enumerate() {
            if self.names.inputs_first {
                self.turn_layer(index, layer, hidden)?;
            }
            if layer.attention.qk_norm == QkNorm::HeadsApart {
                let HeadShape { heads, kv_heads, head_dim } = layer.attention.projection.head_shape();
                for (part, count) in [(LayerPart::QueryNorm, heads), (LayerPart::KeyNorm, kv_heads)] {
                    self.join_head_norms(Part::Layer(index, part).weight(), [count, head_dim])?;
                }
            }
            self.cut_attention(index, layer, hidden)?;
            self.name_queries(index, layer)?;
            if let Projection::Latent(latent) = layer.attention.projection
                && latent.split_up
            {
                let (heads, rank) = (latent.heads, latent.rank);
                self.flatten(index, LayerPart::LatentKeyUp, [heads, rank, latent.nope_dim])?;
                self.flatten(index, LayerPart::LatentValueUp, [heads, latent.value_dim, rank])?;
            }
            match &layer.mlp {
                MlpSpec::None => {}
                MlpSpec::Dense(dense) => self.cut_gate_up(index, dense.ffn, hidden)?,
                MlpSpec::Experts(experts) => {
                    experts::unpack(self, index, experts, hidden)?;
                    for (part, shape) in experts.matrices(hidden) {
                        self.unstack_experts(index, part, experts.count, shape)?;
                        if experts.expert_bias {
                            self.unstack_biases(index, part, experts.count)?;
                        }
                    }
                    self.cut_shared_gate_up(index, experts, hidden)?;
                    // A matrix of one row if the library keeps it so (ERNIE).
                    let correction = self.name(Part::Layer(index, LayerPart::Router).bias());
                    if let Some(tensor) =
                        self.by_name.get_mut(&correction).filter(|tensor| tensor.shape == [1, experts.count])
                    {
                        tensor.shape = vec![experts.count];
                    }
                    // A vector in GGUF files.
                    let router = self.name(Part::Layer(index, LayerPart::SharedRouter).weight());
                    if let Some(tensor) =
                        self.by_name.get_mut(&router).filter(|tensor| tensor.shape == [hidden])
                    {
                        tensor.shape = vec![1, hidden];
                    }
                }
            }
        }
        if let Some(ConvolutionSpec { window, .. }) = spec.convolution {
            let name = self.name(Part::Convolution.weight());
            let mut tensor = self.take(&name, &[hidden, hidden, window])?;
            tensor.shape = vec![hidden, hidden * window];
            self.by_name.insert(name, tensor);
        }
        Ok(())
    }

    /// Makes one vector of the factors of each head's norm, which files have as a matrix or under separate names.
    fn join_head_norms(&mut self, weight: Weight, [heads, head_dim]: [usize; 2]) -> Result<(), LoadError> {
        let name = self.name(weight);
        if let Some(tensor) = self.by_name.get_mut(&name) {
            if tensor.shape == [heads, head_dim] {
                tensor.shape = vec![heads * head_dim];
            }
            return Ok(());
        }
        let stem = name.trim_end_matches(".weight");
        let of_head = |head: usize| format!("{stem}.norms.{head}.weight");
        if !self.by_name.contains_key(&of_head(0)) {
            return Ok(());
        }
        let mut joined = Vec::new();
        let mut first = None;
        for head in 0..heads {
            let tensor = self.take(&of_head(head), &[head_dim])?;
            joined.extend(tensor.to_f32()?.iter().flat_map(|factor| factor.to_le_bytes()));
            first.get_or_insert(tensor);
        }
        if let Some(first) = first {
            let shape = vec![heads * head_dim];
            self.put_back(Tensor { name, dtype: DType::F32, shape, bytes: joined.into(), ..first });
        }
        Ok(())
    }

    /// Transposes a layer's matrices.
    fn turn_layer(&mut self, index: usize, layer: &LayerSpec, hidden: usize) -> Result<(), LoadError> {
        let ffn = layer.mlp.inner_width();
        let projection = layer.attention.projection;
        let qkv = self.names.qkv.unwrap_or_default();
        let name = |stem: &str| self.names.in_layer(self.prefix, index, &format!("{stem}.weight"));
        let matrices = [
            (name(qkv), [projection.qkv_width(), hidden]),
            (name(self.names.attention_output), [hidden, projection.attended_width()]),
            (name(self.names.up), [ffn, hidden]),
            (name(self.names.down), [hidden, ffn]),
        ];
        matrices.iter().try_for_each(|(name, shape)| turned::turn(self, name, *shape))
    }

    /// Splits the tensor that holds one matrix of all of a layer's experts, if it exists.
    fn unstack_experts(
        &mut self,
        layer: usize,
        part: fn(usize) -> LayerPart,
        count: usize,
        [rows, cols]: [usize; 2],
    ) -> Result<(), LoadError> {
        let stack = self.names.stack(part(0));
        if stack.is_empty() {
            return Ok(());
        }
        let name = self.names.in_layer(self.prefix, layer, stack);
        // If single experts' matrices have no names, all of them may be stored as one matrix.
        let apart = |expert| self.name(Part::Layer(layer, part(expert)).weight());
        let only_stacked = apart(0).starts_with(&name);
        let flat = only_stacked && self.get(&name).is_some_and(|tensor| tensor.shape.len() == 2);
        let shape = if flat { vec![count * rows, cols] } else { vec![count, rows, cols] };
        let Some(mut whole) = self.take_if_there(&name, &shape)? else {
            return if only_stacked { Err(self.missing(&name, &shape, String::new())) } else { Ok(()) };
        };
        whole.shape = vec![count, rows, cols];
        for (expert, tensor) in whole.parts().enumerate() {
            self.insert_part(Part::Layer(layer, part(expert)).weight(), tensor, &name)?;
        }
        Ok(())
    }

    /// Splits the tensor that holds one bias of all of a layer's experts, if it exists.
    fn unstack_biases(
        &mut self,
        layer: usize,
        part: fn(usize) -> LayerPart,
        count: usize,
    ) -> Result<(), LoadError> {
        let stack = self.names.stack(part(0));
        let Some(stem) = stack.strip_suffix(".weight") else { return Ok(()) };
        let name = self.names.in_layer(self.prefix, layer, &format!("{stem}.bias"));
        let Some(whole) = self.by_name.remove(&name) else { return Ok(()) };
        if whole.shape.len() != 2 || whole.shape[0] != count {
            return Err(LoadError::Corrupt {
                file: whole.file.to_string(),
                what: format!("tensor {name}"),
                reason: format!("expected a bias of each of {count} experts, file has {:?}", whole.shape),
            });
        }
        for (expert, tensor) in whole.parts().enumerate() {
            self.insert_part(Part::Layer(layer, part(expert)).bias(), tensor, &name)?;
        }
        Ok(())
    }

    /// Makes one matrix of the matrices of all heads, one below the other.
    fn flatten(&mut self, layer: usize, part: LayerPart, shape: [usize; 3]) -> Result<(), LoadError> {
        let name = self.name(Part::Layer(layer, part).weight());
        let mut tensor = self.take(&name, &shape)?;
        tensor.shape = vec![shape[0] * shape[1], shape[2]];
        self.by_name.insert(name, tensor);
        Ok(())
    }

    /// Puts one part of the tensor `whole` where it would be if it were stored separately.
    pub(super) fn insert_part(
        &mut self,
        weight: Weight,
        tensor: Tensor,
        whole: &str,
    ) -> Result<(), LoadError> {
        let name = self.name(weight);
        match self.by_name.insert(name.clone(), tensor) {
            None => Ok(()),
            Some(twice) => Err(LoadError::Corrupt {
                file: twice.file.to_string(),
                what: format!("tensor {name}"),
                reason: format!("it is in {whole} too"),
            }),
        }
    }

    /// Names of the remaining tensors, all of which must be known to change nothing: buffers, and those that begin
    /// with one of `harmless`, with or without the prefix.
    pub(crate) fn left_out(self, architecture: &str, harmless: &[&str]) -> Result<Vec<String>, LoadError> {
        let is_harmless = |tensor: &Tensor| {
            let own = tensor.name.strip_prefix(self.prefix).unwrap_or(&tensor.name);
            is_buffer(tensor)
                || harmless.iter().any(|start| own.starts_with(start) || tensor.name.starts_with(start))
        };
        let left = self.by_name.values().filter(|tensor| !is_harmless(tensor));
        if let Some(tensor) = left.min_by_key(|tensor| &tensor.name) {
            return Err(LoadError::Unsupported {
                file: tensor.file.to_string(),
                key: format!("tensor {}", tensor.name),
                value: format!("{:?} of {}", tensor.shape, tensor.dtype),
                reason: format!(
                    "a {architecture} model with these settings does not use it, and leaving it out could change the \
                     model"
                ),
            });
        }
        let mut names: Vec<String> = self.by_name.into_keys().collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// Whether a tensor is a buffer: numbers that follow from the configuration and that the library saved with the
/// weights, or zero biases that some quantisers write for matrices without a bias.
fn is_buffer(tensor: &Tensor) -> bool {
    let integers = matches!(tensor.dtype, DType::I64 | DType::I32);
    let ends = |end: &str| tensor.name.ends_with(end);
    let adds_nothing =
        || ends(".bias") && tensor.shape.len() == 1 && tensor.bytes.read().iter().all(|&byte| byte == 0);
    (integers && (ends("position_ids") || ends("token_type_ids")))
        || ends("rotary_emb.inv_freq")
        || ends("rotary_pos_emb.inv_freq")
        // Causal mask of GPT-NeoX and GPT-2, and its fill value.
        || ([".attention.bias", ".attn.bias"].into_iter().any(ends) && tensor.shape.len() == 4)
        || ends(".attention.masked_bias")
        // Upper bound of the argument of xIELU's exponential.
        || ends(".act_fn.eps")
        || ends(".attn.masked_bias")
        || adds_nothing()
}
