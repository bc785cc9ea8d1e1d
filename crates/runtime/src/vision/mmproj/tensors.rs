//! Converts tensors of llama.cpp's tower files to the names and order of a model's own files.

use std::collections::BTreeSet;

use hanzo_engine_ops::DType;

use super::Projector::{self, Gemma3, Idefics3, Mlp, Pixtral, Qwen2, Qwen3, Qwen25};
use super::Tower;
use crate::error::LoadError;
use crate::tensor::Tensor;
use crate::vision::spec::COLORS;

impl Projector {
    /// Name in the model's own files of a tensor outside layers.
    fn beside(self, name: &str) -> Option<String> {
        let joiner = |stem: &str, rest: &str| Some(format!("{stem}.{rest}"));
        let names = self.names();
        let (stem, rest) = name.rsplit_once('.').unwrap_or((name, ""));
        match (self, stem) {
            (_, "v.pre_ln") => joiner(&format!("{}{}", names.prefix, names.embedding_norm), rest),
            (_, "v.post_ln") => joiner(&format!("{}{}", names.prefix, names.final_norm), rest),
            (Qwen2 | Qwen25 | Qwen3, "v.patch_embd") => joiner("visual.patch_embed.proj", rest),
            (Pixtral, "v.patch_embd") => joiner("vision_tower.patch_conv", rest),
            (_, "v.patch_embd") => joiner(&format!("{}embeddings.patch_embedding", names.prefix), rest),
            (Qwen3, "v.position_embd") => joiner("visual.pos_embed", rest),
            (_, "v.position_embd") => joiner(&format!("{}{}", names.prefix, names.position_embedding), rest),
            (_, "v") if rest == "class_embd" => Some("vision_tower.embeddings.class_embedding".to_owned()),
            (_, "v" | "model") if rest == "image_newline" => Some("image_newline".to_owned()),
            (Mlp, "mm.0") | (Pixtral, "mm.1") => joiner("multi_modal_projector.linear_1", rest),
            (Mlp | Pixtral, "mm.2") => joiner("multi_modal_projector.linear_2", rest),
            (Qwen2 | Qwen25, "mm.0" | "mm.2") => joiner(&format!("visual.merger.mlp.{}", &stem[3..]), rest),
            (Qwen3, "mm.0") => joiner("visual.merger.linear_fc1", rest),
            (Qwen3, "mm.2") => joiner("visual.merger.linear_fc2", rest),
            (Gemma3, "mm.input_projection") => {
                Some("multi_modal_projector.mm_input_projection_weight".to_owned())
            }
            (Gemma3, "mm.soft_emb_norm") => joiner("multi_modal_projector.mm_soft_emb_norm", rest),
            (Idefics3, "mm.model.fc") => joiner("connector.modality_projection.proj", rest),
            (Pixtral, "mm.input_norm") => joiner("multi_modal_projector.norm", rest),
            (Pixtral, "mm.patch_merger") => joiner("multi_modal_projector.patch_merger.merging_layer", rest),
            _ => None,
        }
    }
}

impl Tower<'_> {
    /// Tensors by their names in the model's own files.
    pub(super) fn tensors(&self) -> Result<Vec<Tensor>, LoadError> {
        let hidden = self.count("embedding_length")? as usize;
        let heads = self.count("attention.head_count")? as usize;
        let swaps = self.swaps_mlp(hidden);
        let deep = self.deep();
        let twofold = matches!(self.projector, Qwen2 | Qwen25 | Qwen3);
        let mut tensors = Vec::with_capacity(self.gguf.tensors.len());
        for tensor in &self.gguf.tensors {
            let mut tensor = tensor.clone();
            match tensor.name.as_str() {
                "v.patch_embd.weight.1" if twofold => continue,
                // The text model's vocabulary has the same row.
                "v.token_embd.img_break" if self.projector == Pixtral => continue,
                // Ollama's converter has both frames in one tensor, like the model's own files.
                "v.patch_embd.weight" if twofold && tensor.shape.len() < 5 => {
                    tensor = beside_each_other(&tensor, self.needed("v.patch_embd.weight.1")?)?;
                }
                "mm.soft_emb_norm.weight" if self.projector == Gemma3 => tensor = less_one(&tensor)?,
                _ => {}
            }
            if self.projector == Pixtral
                && !self.is_embedded
                && (tensor.name.ends_with("attn_q.weight") || tensor.name.ends_with("attn_k.weight"))
            {
                tensor = halves_behind(&tensor, heads)?;
            }
            if let Some(name) = self.name(&tensor.name, swaps, &deep) {
                tensor.name = name;
            }
            tensors.push(tensor);
        }
        Ok(tensors)
    }

    /// Name of a tensor in the model's own files; `None` if they have no such tensor.
    fn name(&self, name: &str, swaps: bool, deep: &BTreeSet<usize>) -> Option<String> {
        if let Some(rest) = name.strip_prefix("v.deepstack.") {
            let (layer, part) = rest.split_once('.')?;
            let layer: usize = layer.parse().ok()?;
            let index = deep.iter().position(|&of| of == layer)?;
            let (part, end) = part.split_once('.')?;
            let part = match part {
                "norm" => "norm",
                "fc1" => "linear_fc1",
                "fc2" => "linear_fc2",
                _ => return None,
            };
            return Some(format!("visual.deepstack_merger_list.{index}.{part}.{end}"));
        }
        let Some(rest) = name.strip_prefix("v.blk.") else { return self.projector.beside(name) };
        let names = self.projector.names();
        let (layer, part) = rest.split_once('.')?;
        let (part, end) = part.rsplit_once('.')?;
        let own = match (part, swaps) {
            ("attn_q", _) => names.query,
            ("attn_k", _) => names.key,
            ("attn_v", _) => names.value,
            ("attn_qkv", _) => names.qkv?,
            ("attn_out", _) => names.attention_output,
            ("ln1", _) => names.attention_norm,
            ("ln2", _) => names.mlp_norm,
            ("ffn_gate", _) => names.gate,
            ("ffn_up", false) | ("ffn_down", true) => names.up,
            ("ffn_down", false) | ("ffn_up", true) => names.down,
            _ => return None,
        };
        Some(format!("{}{}{layer}.{own}.{end}", names.prefix, names.layer))
    }
}

/// Replaces a tensor's shape and values.
fn with(tensor: &Tensor, shape: Vec<usize>, values: Vec<f32>) -> Tensor {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    Tensor { dtype: DType::F32, shape, bytes: bytes.into(), ..tensor.clone() }
}

/// Patch embedding over two video frames, from one tensor for each frame.
fn beside_each_other(first: &Tensor, second: &Tensor) -> Result<Tensor, LoadError> {
    second.check_shape(&first.shape)?;
    let &[hidden, COLORS, height, width] = first.shape.as_slice() else {
        return Err(first.corrupt(format!("{:?} are no patches of three colours", first.shape)));
    };
    let pixels = height * width;
    let (first_values, second_values) = (first.to_f32()?, second.to_f32()?);
    let mut values = Vec::with_capacity(2 * first_values.len());
    if pixels > 0 {
        for (one, other) in first_values.chunks_exact(pixels).zip(second_values.chunks_exact(pixels)) {
            values.extend_from_slice(one);
            values.extend_from_slice(other);
        }
    }
    Ok(with(first, vec![hidden, COLORS, 2, height, width], values))
}

/// Weights of a norm that the model's own files store minus one.
fn less_one(tensor: &Tensor) -> Result<Tensor, LoadError> {
    let values = tensor.to_f32()?.into_iter().map(|factor| factor - 1.0).collect();
    Ok(with(tensor, tensor.shape.clone(), values))
}

/// Reorders rows of heads for rotation: from adjacent pairs to pairs half a head apart, as in the model's own
/// files.
pub(in crate::vision) fn halves_behind(tensor: &Tensor, heads: usize) -> Result<Tensor, LoadError> {
    let rows = tensor.shape.first().copied().unwrap_or(0);
    if heads == 0 || rows == 0 || !rows.is_multiple_of(2 * heads) {
        return Err(tensor.corrupt(format!("{rows} rows are no {heads} heads of pairs")));
    }
    let pairs = rows / heads / 2;
    let bytes = tensor.bytes.read();
    let row = bytes.len() / rows;
    let mut ordered = Vec::with_capacity(bytes.len());
    for head in 0..heads {
        for half in 0..2 {
            for pair in 0..pairs {
                let from = (head * pairs + pair) * 2 + half;
                ordered.extend_from_slice(&bytes[from * row..][..row]);
            }
        }
    }
    Ok(Tensor { bytes: ordered.into(), ..tensor.clone() })
}
