//! Llama 3.2 Vision in one GGUF file, as Ollama's converter writes it (`convert_mllama.go`). llama.cpp has no file
//! format for this tower, so its tensors and settings are converted to the form of the model's own files.
//! Cross-attention layers get the names of the others. They are left out if no pictures are used.

use std::collections::BTreeMap;
use std::sync::Arc;

use hanzo_engine_ops::DType;
use serde_json::{Map, Value as Json, json};

use super::families::{CLIP_MEAN, CLIP_STD};
use super::{FileParts, InsideTower, OwnForm, is_of_tower};
use crate::error::LoadError;
use crate::gguf::{Gguf, Metadata, Value};
use crate::limits::{HEADS_MAX, LAYERS_MAX};
use crate::spec::{Config, ROWS_OF_IMAGES};
use crate::tensor::Tensor;
use crate::vision::mmproj;

/// Name of the architecture.
pub(super) const NAME: &str = "mllama";

/// Keys below `mllama.vision.`, and their names in `vision_config`.
const WORDS: [(&str, &str); 9] = [
    ("attention.head_count", "attention_heads"),
    ("attention.layer_norm_epsilon", "norm_eps"),
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("global.block_count", "num_global_layers"),
    ("image_size", "image_size"),
    ("max_num_tiles", "max_num_tiles"),
    ("patch_size", "patch_size"),
];

/// Other keys that are read.
const READ: [&str; 4] = ["image_mean", "image_std", "intermediate_layers_indices", "num_channels"];

/// Tensors of the tower outside its layers.
const BESIDE: [(&str, &str); 12] = [
    ("v.patch_embd.", "vision_model.patch_embedding."),
    ("v.class_embd", "vision_model.class_embedding"),
    ("v.position_embd.weight", "vision_model.gated_positional_embedding.embedding"),
    ("v.position_embd.gate", "vision_model.gated_positional_embedding.gate"),
    ("v.tile_position_embd.", "vision_model.gated_positional_embedding.tile_embedding."),
    ("v.pre_tile_position_embd.weight", "vision_model.pre_tile_positional_embedding.embedding.weight"),
    ("v.pre_tile_position_embd.gate", "vision_model.pre_tile_positional_embedding.gate"),
    ("v.post_tile_position_embd.weight", "vision_model.post_tile_positional_embedding.embedding.weight"),
    ("v.post_tile_position_embd.gate", "vision_model.post_tile_positional_embedding.gate"),
    ("v.pre_ln.", "vision_model.layernorm_pre."),
    ("v.post_ln.", "vision_model.layernorm_post."),
    ("mm.0.", "multi_modal_projector."),
];

/// Tensors of the tower's layers.
const IN_LAYERS: [(&str, &str); 10] = [
    ("attn_norm.", "input_layernorm."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("attn_q.", "self_attn.q_proj."),
    ("attn_k.", "self_attn.k_proj."),
    ("attn_v.", "self_attn.v_proj."),
    ("attn_output.", "self_attn.o_proj."),
    ("ffn_up.", "mlp.fc1."),
    ("ffn_down.", "mlp.fc2."),
    ("attn_gate", "gate_attn"),
    ("ffn_gate", "gate_ffn"),
];

/// Tensors of the text model's cross-attention layers.
const CROSSING: [(&str, &str); 8] = [
    ("cross_attn_q_proj.", "attn_q."),
    ("cross_attn_k_proj.", "attn_k."),
    ("cross_attn_v_proj.", "attn_v."),
    ("cross_attn_o_proj.", "attn_output."),
    ("cross_attn_q_norm.", "attn_q_norm."),
    ("cross_attn_k_norm.", "attn_k_norm."),
    ("cross_attn_attn_gate", "half_factor.0"),
    ("cross_attn_mlp_gate", "half_factor.1"),
];

/// Key of the number of layers.
const COUNT: &str = "mllama.block_count";
/// Key of the list of cross-attention layers.
const CROSSING_LAYERS: &str = "mllama.attention.cross_attention_layers";

/// Splits a file, for use with pictures or as a text model only.
///
/// # Errors
/// [`LoadError`] naming the file and the key or tensor in it.
pub(super) fn split(gguf: Gguf, sees: bool) -> Result<FileParts, LoadError> {
    let Gguf { version, metadata, tensors } = gguf;
    let mut metadata = Arc::unwrap_or_clone(metadata);
    let (of_tower, mut text): (Vec<Tensor>, Vec<Tensor>) =
        tensors.into_iter().partition(|tensor| is_of_tower(&tensor.name));
    let sees = sees && !of_tower.is_empty();
    let said = take_said(&mut metadata)?;
    let crossing = crossing_layers(&metadata)?;
    let behind = cut_off(&mut text);
    if sees {
        let kv_heads = metadata.u32("mllama.attention.head_count_kv")?;
        let heads = metadata.u32("mllama.attention.head_count")?;
        name_crossing(&mut text, [heads, kv_heads.or(heads)])?;
    } else {
        pass_by(&mut metadata, &mut text, &crossing)?;
    }
    let tower = match sees {
        false => InsideTower::Absent,
        true => {
            let vocab = text.iter().find(|tensor| tensor.name == "token_embd.weight");
            let vocab = vocab.and_then(|tensor| tensor.shape.first()).copied().unwrap_or(0);
            let mut own = OwnForm {
                config: config(&metadata, &said, vocab, &of_tower)?,
                settings: settings(&metadata, &said)?,
                tensors: of_tower.into_iter().filter_map(own_tensor).collect::<Result<_, _>>()?,
            };
            own.tensors.extend(behind);
            InsideTower::Own(Box::new(own))
        }
    };
    Ok(FileParts { text: Gguf { version, metadata: Arc::new(metadata), tensors: text }, tower })
}

/// Takes the keys of the tower, without their prefix.
fn take_said(metadata: &mut Metadata) -> Result<Metadata, LoadError> {
    const PREFIX: &str = "mllama.vision.";
    let keys: Vec<String> =
        metadata.iter().map(|(key, _)| key.to_owned()).filter(|key| key.starts_with(PREFIX)).collect();
    let mut said = BTreeMap::new();
    for key in keys {
        let Some(value) = metadata.take(&key) else { continue };
        let own = key[PREFIX.len()..].to_owned();
        let is_read = READ.contains(&own.as_str()) || WORDS.iter().any(|(name, _)| *name == own);
        if !is_read || own == "num_channels" && value != Value::U32(3) {
            return Err(LoadError::Unsupported {
                file: metadata.file().to_owned(),
                key,
                value: value.to_string(),
                reason: "it is not known, so what it changes would be lost".into(),
            });
        }
        said.insert(own, value);
    }
    Ok(Metadata::new(metadata.file(), said))
}

fn crossing_layers(metadata: &Metadata) -> Result<Vec<usize>, LoadError> {
    let list = metadata.integers(CROSSING_LAYERS)?.ok_or_else(|| metadata.missing(CROSSING_LAYERS))?;
    let layer = |number: i64| usize::try_from(number).ok().filter(|&layer| layer < LAYERS_MAX);
    let layers = list.into_iter().map(layer).collect::<Option<Vec<usize>>>();
    let mut layers = layers.ok_or_else(|| metadata.corrupt(CROSSING_LAYERS, "expected a list of layers"))?;
    layers.sort_unstable();
    layers.dedup();
    let count = metadata.u32(COUNT)?.ok_or_else(|| metadata.missing(COUNT))? as usize;
    if layers.len() >= count || layers.last().is_some_and(|&last| last >= count) {
        return Err(metadata.corrupt(CROSSING_LAYERS, format!("{layers:?} of {count} layers")));
    }
    Ok(layers)
}

/// Cuts off the embedding rows that the output head lacks: they are for pictures.
fn cut_off(text: &mut [Tensor]) -> Option<Tensor> {
    let head = text.iter().find(|tensor| tensor.name == "output.weight" && tensor.shape.len() == 2);
    let vocab = head?.shape[0];
    let embedding = text.iter_mut().find(|tensor| tensor.name == "token_embd.weight")?;
    let all = embedding.shape[0];
    if embedding.shape.len() != 2 || vocab == 0 || all <= vocab {
        return None;
    }
    let behind = Tensor { name: ROWS_OF_IMAGES.to_owned(), ..embedding.rows(vocab..all) };
    *embedding = embedding.rows(0..vocab);
    Some(behind)
}

/// Renames cross-attention layers like the others. Their queries and keys have no rotary embedding, and their norms
/// have the order of the model's own files, so the converter's reordering is undone.
fn name_crossing(text: &mut [Tensor], heads: [Option<u32>; 2]) -> Result<(), LoadError> {
    for tensor in text {
        let Some((start, own)) = in_layer(&tensor.name, "blk.") else { continue };
        let Some((from, to)) = CROSSING.iter().find(|(from, _)| own.starts_with(from)) else { continue };
        let name = format!("{start}{}", own.replacen(from, to, 1));
        let of = ["attn_q.", "attn_k."].iter().position(|start| to == start);
        if let Some(heads) = of.and_then(|of| heads[of]) {
            *tensor = mmproj::halves_behind(tensor, (heads as usize).min(HEADS_MAX))?;
        }
        tensor.name = name;
    }
    Ok(())
}

/// Splits a name after its layer's number and dot.
fn in_layer<'a>(name: &'a str, start: &str) -> Option<(&'a str, &'a str)> {
    let rest = name.strip_prefix(start)?;
    let end = start.len() + rest.find('.')? + 1;
    Some(name.split_at(end))
}

/// Drops the cross-attention layers.
fn pass_by(metadata: &mut Metadata, text: &mut Vec<Tensor>, crossing: &[usize]) -> Result<(), LoadError> {
    let count = metadata.u32(COUNT)?.ok_or_else(|| metadata.missing(COUNT))?;
    metadata.set(COUNT, Value::U32(count.saturating_sub(crossing.len() as u32)));
    metadata.take(CROSSING_LAYERS);
    let place = |tensor: &Tensor| {
        let (start, _) = in_layer(&tensor.name, "blk.")?;
        let layer: usize = start.get(4..start.len() - 1)?.parse().ok()?;
        Some((layer, crossing.binary_search(&layer)))
    };
    text.retain(|tensor| !matches!(place(tensor), Some((_, Ok(_)))));
    for tensor in text {
        if let (Some((layer, Err(before))), Some((_, own))) = (place(tensor), in_layer(&tensor.name, "blk."))
        {
            tensor.name = format!("blk.{}.{own}", layer - before);
        }
    }
    Ok(())
}

/// Converts a tensor of the tower to the model's own form; `None` if it repeats another one.
fn own_tensor(tensor: Tensor) -> Option<Result<Tensor, LoadError>> {
    // One minus the other gate.
    if tensor.name == "v.tile_position_embd.gate" {
        return None;
    }
    let layers = [("v.blk.", "transformer"), ("v.global.blk.", "global_transformer")];
    let in_layers = layers.iter().find_map(|(start, kind)| {
        let (numbered, own) = in_layer(&tensor.name, start)?;
        let (from, to) = IN_LAYERS.iter().find(|(from, _)| own.starts_with(from))?;
        let number = &numbered[start.len()..];
        Some(format!("vision_model.{kind}.layers.{number}{}", own.replacen(from, to, 1)))
    });
    let beside = || {
        let (from, to) = BESIDE.iter().find(|(from, _)| tensor.name.starts_with(from))?;
        Some(tensor.name.replacen(from, to, 1))
    };
    let name = in_layers.or_else(beside).unwrap_or_else(|| tensor.name.clone());
    let is_gate = name.ends_with(".gate") || name.ends_with(".gate_attn") || name.ends_with(".gate_ffn");
    let is_rest = tensor.name == "v.position_embd.gate";
    let named = Tensor { name, ..tensor };
    Some(if is_gate { ungated(named, is_rest) } else { Ok(named) })
}

/// Inverts the hyperbolic tangent in which a gate is stored, or one minus it.
fn ungated(tensor: Tensor, is_rest: bool) -> Result<Tensor, LoadError> {
    /// Largest value below 1 in this precision; the tangents of all larger numbers are 1.
    const LARGEST: f32 = 1.0 - f32::EPSILON / 2.0;
    let values = tensor.to_f32()?.into_iter().map(|stored| {
        let tangent = if is_rest { 1.0 - stored } else { stored };
        tangent.clamp(-LARGEST, LARGEST).atanh()
    });
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    Ok(Tensor { dtype: DType::F32, bytes: bytes.into(), ..tensor })
}

/// Settings of `config.json`.
fn config(
    metadata: &Metadata,
    said: &Metadata,
    vocab: usize,
    tensors: &[Tensor],
) -> Result<Config, LoadError> {
    let missing = |key: &str| metadata.missing(&format!("mllama.vision.{key}"));
    let mut vision = Map::new();
    for (key, word) in WORDS {
        let value = match said.get(key) {
            Some(Value::F32(_)) => said.f32(key)?.map(Json::from),
            _ => said.u32(key)?.map(Json::from),
        };
        vision.insert(word.to_owned(), value.ok_or_else(|| missing(key))?);
    }
    const BETWEEN: &str = "intermediate_layers_indices";
    let between = said.integers(BETWEEN)?.ok_or_else(|| missing(BETWEEN))?;
    let hidden = said.u32("embedding_length")?.unwrap_or(0) as usize;
    vision.insert("vision_output_dim".to_owned(), hidden.saturating_mul(1 + between.len()).into());
    vision.insert(BETWEEN.to_owned(), between.into());
    // Number of tile arrangements: all rows of this table but the first belong to one.
    let ways = tensors.iter().find(|tensor| tensor.name == "v.pre_tile_position_embd.weight");
    let ways = ways.and_then(|tensor| tensor.shape.first()).map_or(0, |rows| rows.saturating_sub(1));
    vision.insert("supported_aspect_ratios".to_owned(), vec![Json::Null; ways.min(LAYERS_MAX)].into());
    let tokens = metadata.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
    let place = tokens.iter().position(|token| token == "<|image|>").unwrap_or(vocab);
    let padding = metadata.u32("tokenizer.ggml.padding_token_id")?.unwrap_or(0);
    let config = json!({
        "model_type": NAME,
        "image_token_index": place,
        "pad_token_id": padding,
        "text_config": {"vocab_size": vocab},
        "vision_config": vision,
    });
    Ok(Config::new(metadata.file(), mmproj::object(config)))
}

/// Settings of `preprocessor_config.json`.
fn settings(metadata: &Metadata, said: &Metadata) -> Result<Config, LoadError> {
    let (image, tiles) = (said.u32("image_size")?, said.u32("max_num_tiles")?);
    let mut settings = json!({
        "image_processor_type": "MllamaImageProcessor",
        "size": {"height": image, "width": image},
        "max_image_tiles": tiles,
    });
    let usual = [CLIP_MEAN, CLIP_STD];
    for (key, usual) in ["image_mean", "image_std"].into_iter().zip(usual) {
        settings[key] = said.floats(key)?.unwrap_or(usual.to_vec()).into();
    }
    Ok(Config::new(metadata.file(), mmproj::object(settings)))
}
