//! Llama 3.2 Vision in one file, text and tower, as Ollama's converter writes it (`convert_mllama.go`).

use super::*;

const REPLACEMENTS: &[&str] = &[
    "lm_head",
    "output",
    "model.embed_tokens",
    "token_embd",
    "model.norm",
    "output_norm",
    "model.layers",
    "blk",
    "input_layernorm",
    "attn_norm",
    "self_attn.q_proj",
    "attn_q",
    "self_attn.k_proj",
    "attn_k",
    "self_attn.v_proj",
    "attn_v",
    "self_attn.o_proj",
    "attn_output",
    "mlp.gate_proj",
    "ffn_gate",
    "mlp.down_proj",
    "ffn_down",
    "mlp.up_proj",
    "ffn_up",
    "post_attention_layernorm",
    "ffn_norm",
    "language_model.",
    "",
    "gate_attn",
    "attn_gate",
    "gate_ffn",
    "ffn_gate",
    "cross_attn.",
    "cross_attn_",
    "vision_model",
    "v",
    "class_embedding",
    "class_embd",
    "patch_embedding",
    "patch_embd",
    "gated_positional_embedding.tile_embedding",
    "tile_position_embd",
    "gated_positional_embedding.embedding",
    "position_embd.weight",
    "gated_positional_embedding",
    "position_embd",
    "embedding.weight",
    "weight",
    "pre_tile_positional_embedding",
    "pre_tile_position_embd",
    "post_tile_positional_embedding",
    "post_tile_position_embd",
    "layernorm_pre",
    "pre_ln",
    "layernorm_post",
    "post_ln",
    "global_transformer.layers",
    "global.blk",
    "transformer.layers",
    "blk",
    "mlp.fc1",
    "ffn_up",
    "mlp.fc2",
    "ffn_down",
    "multi_modal_projector",
    "mm.0",
];

/// Reorders rows of heads so that rotary pairs are adjacent, like `repack`.
fn permuted(tensor: Tensor, heads: usize) -> Tensor {
    let (rows, columns) = (tensor.shape[0], tensor.shape[1]);
    let (values, half) = (tensor.to_f32().unwrap(), rows / heads / 2);
    let row = |row: usize| {
        let (head, pair, second) = (row / (2 * half), row % (2 * half) / 2, row % 2);
        let from = head * 2 * half + second * half + pair;
        values[from * columns..][..columns].to_vec()
    };
    f32s("model", tensor.name.clone(), (0..rows).flat_map(row).collect()).shaped(&tensor.shape)
}

/// Tensors that the converter makes from one.
fn converted(tensor: Tensor) -> Vec<Tensor> {
    let name = tensor.name.clone();
    let (of_tower, ends) = (crate::vision::embedded::is_of_tower(&name), |end: &str| name.ends_with(end));
    let mapped = |name: &str, change: fn(f32) -> f32| {
        let values = tensor.to_f32().unwrap().into_iter().map(change);
        f32s("model", name.to_owned(), values.collect()).shaped(&tensor.shape)
    };
    match () {
        () if name == "v.position_embd.gate" => vec![
            mapped(&name, |gate| 1.0 - gate.tanh()),
            mapped("v.tile_position_embd.gate", |gate| gate.tanh()),
        ],
        () if of_tower && ["_embd.gate", "attn_gate", "ffn_gate"].into_iter().any(ends) => {
            vec![mapped(&name, |gate| gate.tanh())]
        }
        () if of_tower && (ends("attn_q.weight") || ends("attn_k.weight")) => vec![permuted(tensor, 3)],
        () if ends("attn_q.weight") || ends("attn_q_proj.weight") => vec![permuted(tensor, 4)],
        () if ends("attn_k.weight") || ends("attn_k_proj.weight") => vec![permuted(tensor, 2)],
        () => vec![tensor],
    }
}

/// Divisors of Llama 3's rotary frequencies, like `ropeFactors`, for the tiny model's settings.
fn rope_factors() -> Tensor {
    let (factor, low, high, original, dim) = (4.0, 64.0, 16.0, 64.0, 16);
    let divisor = |pair: usize| {
        let length = 2.0 * std::f64::consts::PI * 1e4_f64.powf(2.0 * pair as f64 / f64::from(dim));
        match () {
            () if length < high => 1.0,
            () if length > low => factor,
            () => {
                let smooth = (original / length - 1.0) / (4.0 - 1.0);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        }
    };
    f32s("model", "rope_freqs.weight".into(), (0..8).map(|pair| divisor(pair) as f32).collect())
}

/// The keys of a tokenizer's file.
fn tokenizer() -> Vec<(&'static str, Setting)> {
    let file = folder("mllama").join("tokenizer.json");
    let tokenizer: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let mut tokens = BTreeMap::new();
    for (token, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        tokens.insert(id.as_u64().unwrap(), (token.clone(), 1));
    }
    for added in tokenizer["added_tokens"].as_array().unwrap() {
        let kind = if added["special"] == true { 3 } else { 4 };
        let token = (added["content"].as_str().unwrap().to_owned(), kind);
        tokens.insert(added["id"].as_u64().unwrap(), token);
    }
    assert_eq!(tokens.keys().copied().collect::<Vec<_>>(), (0..tokens.len() as u64).collect::<Vec<_>>());
    let merge = |merge: &Value| match merge {
        Value::Array(parts) => format!("{} {}", parts[0].as_str().unwrap(), parts[1].as_str().unwrap()),
        other => other.as_str().unwrap().to_owned(),
    };
    let merges = tokenizer["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let (texts, kinds) = tokens.into_values().unzip();
    let template = fs::read_to_string(folder("mllama").join("chat_template.jinja")).unwrap();
    vec![
        ("tokenizer.ggml.model", Setting::String("gpt2".into())),
        ("tokenizer.ggml.pre", Setting::String("gpt-2".into())),
        ("tokenizer.ggml.tokens", Setting::Array(Array::String(texts))),
        ("tokenizer.ggml.token_type", Setting::Array(Array::I32(kinds))),
        ("tokenizer.ggml.merges", Setting::Array(Array::String(merges))),
        ("tokenizer.ggml.bos_token_id", whole(261)),
        ("tokenizer.ggml.eos_token_id", whole(265)),
        ("tokenizer.ggml.padding_token_id", whole(267)),
        ("tokenizer.chat_template", Setting::String(template)),
    ]
}

fn keys() -> Vec<(&'static str, Setting)> {
    vec![
        ("general.architecture", Setting::String("mllama".into())),
        ("mllama.vocab_size", whole(268)),
        ("mllama.block_count", whole(5)),
        ("mllama.context_length", whole(1024)),
        ("mllama.embedding_length", whole(64)),
        ("mllama.feed_forward_length", whole(96)),
        ("mllama.attention.head_count", whole(4)),
        ("mllama.attention.head_count_kv", whole(2)),
        ("mllama.attention.layer_norm_rms_epsilon", Setting::F32(1e-5)),
        ("mllama.attention.cross_attention_layers", layers(&[1, 3])),
        ("mllama.rope.dimension_count", whole(16)),
        ("mllama.rope.freq_base", Setting::F32(1e4)),
        ("mllama.vision.block_count", whole(3)),
        ("mllama.vision.global.block_count", whole(2)),
        ("mllama.vision.intermediate_layers_indices", layers(&[2, 0])),
        ("mllama.vision.embedding_length", whole(48)),
        ("mllama.vision.feed_forward_length", whole(80)),
        ("mllama.vision.attention.head_count", whole(3)),
        ("mllama.vision.attention.layer_norm_epsilon", Setting::F32(1e-5)),
        ("mllama.vision.image_size", whole(32)),
        ("mllama.vision.patch_size", whole(8)),
        ("mllama.vision.max_num_tiles", whole(4)),
        ("mllama.vision.num_channels", whole(3)),
        // The tiny model's values differ from those of the published models.
        ("mllama.vision.image_mean", numbers_of(&[0.5; 3])),
        ("mllama.vision.image_std", numbers_of(&[0.5; 3])),
    ]
}

fn write_model(to: &Path, stored: Stored) {
    let bytes = fs::read(folder("mllama").join("model.safetensors")).unwrap();
    let tensors = crate::safetensors::parse("model", &bytes.into()).unwrap().into_iter();
    let tensors = tensors.flat_map(|tensor| {
        let name = replaced(&tensor.name, REPLACEMENTS);
        converted(f32s("model", name, tensor.to_f32().unwrap()).shaped(&tensor.shape))
    });
    let tensors = tensors.chain([rope_factors()]).map(|tensor| tensor.kept(stored));
    let entries = keys().into_iter().chain(tokenizer()).map(|(key, value)| (key.to_owned(), value));
    write(to, &entries.collect(), tensors.collect());
}

#[test]
fn llama_3_2_vision_in_one_file_answers_as_its_own_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    for stored in [Stored::AsConverted, Stored::F32] {
        write_model(&path, stored);
        answers_as_its_own_files("mllama", &path, stored);
    }
    // The text model alone has no cross-attention layers.
    let overrides = Overrides { mmproj: Mmproj::None, ..Overrides::default() };
    let alone = OpenedModel::open_with(&path, &overrides).unwrap();
    let spec = &alone.decoder().unwrap().spec;
    assert_eq!((spec.layers.len(), spec.vocab), (3, 268));
    assert!(spec.layers.iter().all(|layer| !layer.attention.memory) && alone.text_model().is_ok());
}
