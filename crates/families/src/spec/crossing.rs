//! Cross-attention layers of a text model that attend to images alone (Llama 3.2 Vision). Without images they are
//! skipped; with images they are named like other layers and read the cross-attention cache.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_model_files::tensor::Tensor;
use serde_json::{Map, Value};

use super::{Config, Multimodal, QkNorm, TransformerSpec};

/// Prefix of the names of tensors in skipped layers.
pub(super) const PASSED_BY: &str = "passed by: ";

/// Name of the embedding's rows past the vocabulary.
pub const ROWS_OF_IMAGES: &str = "rows of images";

/// Splits those rows off the embedding.
pub(super) fn cut_off(tensor: &mut Tensor, vocab: usize) -> Option<Tensor> {
    if tensor.name != "model.embed_tokens.weight" || tensor.shape.len() != 2 || tensor.shape[0] <= vocab {
        return None;
    }
    let behind = Tensor { name: ROWS_OF_IMAGES.to_owned(), ..tensor.rows(vocab..tensor.shape[0]) };
    *tensor = tensor.rows(0..vocab);
    Some(behind)
}

impl TransformerSpec {
    /// Makes these layers attend to the cross-attention cache of images, and to nothing else.
    pub(super) fn cross(&mut self, layers: &[usize]) {
        for &layer in layers {
            let Some(attention) = self.layers.get_mut(layer).map(|layer| &mut layer.attention) else {
                return;
            };
            attention.rope = None;
            attention.qk_norm = QkNorm::Heads;
            attention.memory = true;
            attention.gated_halves = true;
        }
    }
}

impl Multimodal {
    /// Removes the cross-attention layers from a text's settings, because no images are read.
    pub fn pass_by(&mut self, config: &mut Config) {
        let layers = config.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
        if !self.crossing.is_empty() {
            self.passes_by = true;
            config.set("num_hidden_layers", layers.saturating_sub(self.crossing.len()).into());
        }
    }

    /// Marks the cross-attention layers of a model that reads images.
    pub fn cross(&self, spec: &mut TransformerSpec) {
        if !self.passes_by {
            spec.cross(&self.crossing);
        }
    }

    /// Renumbers a layer's tensor without the skipped layers. In layers that are not skipped, tensors are renamed to
    /// those of other layers in the same place.
    pub(super) fn renumber(&self, tensor: &mut Tensor) {
        const LAYERS: &str = "model.layers.";
        let Some(rest) = tensor.name.strip_prefix(LAYERS) else { return };
        let Some((number, own)) = rest.split_once('.') else { return };
        let Ok(layer) = number.parse::<usize>() else { return };
        tensor.name = match self.crossing.binary_search(&layer) {
            Err(_) if !self.passes_by => return,
            Ok(_) if !self.passes_by => {
                let own = match own {
                    "cross_attn_attn_gate" => "half_factor.0".to_owned(),
                    "cross_attn_mlp_gate" => "half_factor.1".to_owned(),
                    _ => own.replace("cross_attn.", "self_attn."),
                };
                format!("{LAYERS}{layer}.{own}")
            }
            Ok(_) => format!("{PASSED_BY}{}", tensor.name),
            Err(before) => format!("{LAYERS}{}.{own}", layer - before),
        };
    }
}

/// Numbers of the cross-attention layers, which are removed from the settings.
pub(super) fn layers_of_images(
    config: &Config,
    settings: &mut Map<String, Value>,
) -> Result<Vec<usize>, LoadError> {
    const LIST: &str = "cross_attention_layers";
    let layers = settings.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
    let mut skipped: Vec<usize> = match settings.remove(LIST) {
        None | Some(Value::Null) => vec![3, 8, 13, 18, 23, 28, 33, 38],
        Some(Value::Array(list)) => {
            let number = |value: &Value| value.as_u64().and_then(|layer| usize::try_from(layer).ok());
            let numbers = list.iter().map(number).collect::<Option<Vec<usize>>>();
            numbers.ok_or_else(|| config.corrupt(LIST, "expected a list of layers"))?
        }
        Some(other) => return Err(config.corrupt(LIST, format!("expected a list of layers, found {other}"))),
    };
    skipped.sort_unstable();
    skipped.dedup();
    if skipped.len() >= layers || skipped.last().is_some_and(|&last| last >= layers) {
        return Err(config.corrupt(LIST, format!("{skipped:?} of {layers} layers")));
    }
    Ok(skipped)
}
