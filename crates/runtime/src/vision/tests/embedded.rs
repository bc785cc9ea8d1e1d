//! GGUF files with their tower inside, written here as Ollama's converter does (github.com/ollama/ollama,
//! `convert`): names are replaced by its lists of replacements, with the weights of the models' own files. Text
//! tensors and tokenizers, which are the same as in llama.cpp's files, come from `text.gguf`.

use half::f16;
use hanzo_engine_ops::{AnyBackend, DType, quant};

mod alone;
mod mllama;

use super::*;
use crate::gguf::{Array, TensorEntry, Value as Setting, Writer};
use crate::tensor::Tensor;

/// Storage type of the towers' tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    /// Same types as from the converter: biases, norms and position tables in F32, others in F16.
    AsConverted,
    F32,
    /// 8 bits, for rows of whole blocks.
    Packed,
}

/// A form of a model's file.
struct Form {
    case: &'static str,
    architecture: &'static str,
    /// `Replacements()` of the family's converter, which replaces the first that is found at each place.
    replacements: &'static [&'static str],
    /// Tensor names before the library's version 5.
    published: &'static [[&'static str; 2]],
    keys: fn() -> Vec<(&'static str, Setting)>,
    /// Keys of llama.cpp's file that the converter renames or leaves out.
    without: &'static [&'static str],
}

fn whole(number: u32) -> Setting {
    Setting::U32(number)
}

fn layers(list: &[i32]) -> Setting {
    Setting::Array(Array::I32(list.to_vec()))
}

fn numbers_of(list: &[f32]) -> Setting {
    Setting::Array(Array::F32(list.to_vec()))
}

const QWEN3_KEYS: fn() -> Vec<(&'static str, Setting)> = || {
    vec![
        ("rope.mrope_section", layers(&[6, 5, 5])),
        ("vision.block_count", whole(3)),
        ("vision.embedding_length", whole(48)),
        ("vision.attention.head_count", whole(3)),
        ("vision.num_channels", whole(3)),
        ("vision.patch_size", whole(8)),
        ("vision.spatial_merge_size", whole(2)),
        ("vision.attention.layer_norm_epsilon", Setting::F32(1e-6)),
        ("vision.rope.freq_base", Setting::F32(1e4)),
        ("vision.temporal_patch_size", whole(2)),
        ("vision.deepstack_visual_indexes", layers(&[0, 1])),
        ("vision.shortest_edge", whole(600)),
        ("vision.longest_edge", whole(9000)),
        ("vision.image_mean", numbers_of(&[0.5; 3])),
        ("vision.image_std", numbers_of(&[0.5; 3])),
    ]
};

const FORMS: &[Form] = &[
    Form {
        case: "gemma3",
        architecture: "gemma3",
        replacements: &[
            "vision_tower.vision_model.embeddings",
            "v",
            "vision_tower.vision_model",
            "v",
            "encoder.layers",
            "blk",
            "self_attn.q_proj",
            "attn_q",
            "self_attn.k_proj",
            "attn_k",
            "self_attn.v_proj",
            "attn_v",
            "self_attn.out_proj",
            "attn_output",
            "input_projection_weight",
            "input_projection.weight",
            "multi_modal_projector",
            "mm",
        ],
        published: &[["vision_tower.", "vision_tower.vision_model."]],
        keys: || {
            vec![
                // From this length on the context is scaled, without a key that says so.
                ("context_length", whole(131_072)),
                ("attention.sliding_window_pattern", Setting::Array(Array::Bool(vec![true, false]))),
                ("rope.local.freq_base", Setting::F32(1e4)),
                ("rope.global.freq_base", Setting::F32(1e6)),
                ("mm.tokens_per_image", whole(16)),
                ("vision.block_count", whole(2)),
                ("vision.embedding_length", whole(48)),
                ("vision.feed_forward_length", whole(80)),
                ("vision.image_size", whole(64)),
                ("vision.patch_size", whole(8)),
                ("vision.num_channels", whole(3)),
                ("vision.attention.head_count", whole(3)),
                ("vision.attention.layer_norm_epsilon", Setting::F32(1e-6)),
            ]
        },
        without: &[
            "attention.layer_norm_rms_epsilon",
            "rope.freq_base",
            "rope.freq_base_swa",
            "rope.scaling.factor",
            "rope.scaling.type",
        ],
    },
    Form {
        case: "mistral3",
        architecture: "mistral3",
        replacements: &[
            "layers",
            "blk",
            "transformer.layers",
            "blk",
            "vision_tower",
            "v",
            "ln_pre",
            "encoder_norm",
            "attention.q_proj",
            "attn_q",
            "attention.k_proj",
            "attn_k",
            "attention.v_proj",
            "attn_v",
            "attention.o_proj",
            "attn_output",
            "attention_norm",
            "attn_norm",
            "feed_forward.gate_proj",
            "ffn_gate",
            "feed_forward.down_proj",
            "ffn_down",
            "feed_forward.up_proj",
            "ffn_up",
            "multi_modal_projector",
            "mm",
        ],
        published: &[],
        keys: || {
            vec![
                ("rope.scaling.type", Setting::String(String::new())),
                ("rope.scaling.factor", Setting::F32(0.0)),
                ("rope.scaling.beta_fast", Setting::F32(0.0)),
                ("rope.scaling.beta_slow", Setting::F32(0.0)),
                ("vision.block_count", whole(2)),
                ("vision.embedding_length", whole(48)),
                ("vision.feed_forward_length", whole(80)),
                ("vision.attention.head_count", whole(3)),
                ("vision.attention.key_length", whole(16)),
                ("vision.image_size", whole(96)),
                ("vision.patch_size", whole(8)),
                ("vision.num_channels", whole(3)),
                ("vision.rope.freq_base", Setting::F32(1e4)),
                ("image_token_index", whole(265)),
                ("spatial_merge_size", whole(2)),
                ("mm.projector_bias", Setting::Bool(false)),
                ("mm.projector_hidden_act", Setting::String("gelu".into())),
            ]
        },
        without: &[],
    },
    Form {
        case: "qwen2_5_vl",
        architecture: "qwen25vl",
        replacements: &[
            "mlp.down_proj",
            "ffn_down",
            "mlp.gate_proj",
            "ffn_gate",
            "mlp.up_proj",
            "ffn_up",
            "visual",
            "v",
            "blocks",
            "blk",
            "attn.proj",
            "attn_out",
            "norm1",
            "ln1",
            "norm2",
            "ln2",
        ],
        published: &[],
        keys: || {
            vec![
                ("rope.mrope_section", layers(&[4, 6, 6])),
                ("vision.block_count", whole(3)),
                ("vision.embedding_length", whole(48)),
                ("vision.attention.head_count", whole(3)),
                ("vision.num_channels", whole(0)),
                ("vision.patch_size", whole(8)),
                ("vision.spatial_merge_size", whole(2)),
                ("vision.spatial_patch_size", whole(0)),
                ("vision.window_size", whole(32)),
                ("vision.attention.layer_norm_epsilon", Setting::F32(1e-6)),
                ("vision.rope.freq_base", Setting::F32(1e4)),
                ("vision.fullatt_block_indexes", layers(&[1])),
                ("vision.temporal_patch_size", whole(2)),
                // Same values as for the related model above; the tiny model's own bounds differ.
                ("vision.shortest_edge", whole(600)),
                ("vision.longest_edge", whole(9000)),
            ]
        },
        without: &["rope.dimension_sections"],
    },
    // The form of its first releases.
    Form {
        case: "qwen3_vl",
        architecture: "qwen3vl",
        replacements: &[
            "model.visual",
            "v",
            "patch_embed.proj",
            "patch_embed",
            "blocks",
            "blk",
            "attn.qkv",
            "attn_qkv",
            "attn.proj",
            "attn_out",
            "deepstack_merger_list",
            "deepstack_merger",
        ],
        published: &[],
        keys: QWEN3_KEYS,
        without: &["n_deepstack_layers", "rope.dimension_sections"],
    },
    // And of its last.
    Form {
        case: "qwen3_vl",
        architecture: "qwen3vl",
        replacements: &[
            "model.visual",
            "v",
            "patch_embed.proj",
            "patch_embd",
            "pos_embed",
            "position_embd",
            "blocks",
            "blk",
            "attn.qkv",
            "attn_qkv",
            "attn.proj",
            "attn_out",
            "norm1",
            "ln1",
            "norm2",
            "ln2",
            "mlp.linear_fc1",
            "ffn_up",
            "mlp.linear_fc2",
            "ffn_down",
            "deepstack_merger_list",
            "deepstack",
        ],
        published: &[],
        keys: QWEN3_KEYS,
        without: &["rope.dimension_sections"],
    },
];

/// Same result as Go's `strings.NewReplacer`: at each place the first match in the list.
fn replaced(name: &str, pairs: &[&str]) -> String {
    let (mut made, mut rest) = (String::new(), name);
    while let Some(letter) = rest.chars().next() {
        let found = pairs.chunks_exact(2).find(|pair| rest.starts_with(pair[0]));
        let taken = found.map_or(letter.len_utf8(), |pair| pair[0].len());
        made.push_str(found.map_or(&rest[..taken], |pair| pair[1]));
        rest = &rest[taken..];
    }
    made
}

/// Part of a tensor: the tensor is cut into `of` equal parts along its first axis.
fn part(name: String, tensor: &Tensor, index: usize, of: usize) -> Tensor {
    let rows = tensor.shape[0] / of;
    Tensor { name, ..tensor.rows(index * rows..(index + 1) * rows) }
}

impl Form {
    /// Tensors of the tower.
    fn tower(&self) -> Vec<Tensor> {
        let bytes = fs::read(folder(self.case).join("model.safetensors")).unwrap();
        let mut tensors = Vec::new();
        for mut tensor in crate::safetensors::parse("model", &bytes.into()).unwrap() {
            for [own, published] in self.published {
                if let Some(rest) = tensor.name.strip_prefix(own) {
                    tensor.name = format!("{published}{rest}");
                }
            }
            let name = replaced(&tensor.name, self.replacements);
            if !name.starts_with("v.") && !name.starts_with("mm.") {
                continue;
            }
            let tensor = f32s("model", name, tensor.to_f32().unwrap()).shaped(&tensor.shape);
            tensors.extend(self.converted(tensor));
        }
        tensors
    }

    /// Tensors that the converter makes from one.
    fn converted(&self, tensor: Tensor) -> Vec<Tensor> {
        let name = tensor.name.clone();
        if let Some(start) = ["attn.qkv", "attn_qkv"].into_iter().find(|start| name.contains(start)) {
            let of = ["attn_q", "attn_k", "attn_v"].into_iter().enumerate();
            return of.map(|(index, own)| part(name.replace(start, own), &tensor, index, 3)).collect();
        }
        let patches = name.contains("patch_emb") && tensor.shape.len() == 5;
        let &[hidden, colors, frames, high, wide] = tensor.shape.as_slice() else {
            // Norms of the text model and of the projector are stored plus one.
            let is_norm = self.case == "gemma3" && name.ends_with("_norm.weight") && name.starts_with("mm.");
            let values = tensor.to_f32().unwrap().into_iter().map(|n| n + f32::from(u8::from(is_norm)));
            return vec![f32s("model", name, values.collect()).shaped(&tensor.shape)];
        };
        assert!(patches && frames == 2);
        if self.case != "qwen2_5_vl" {
            return vec![tensor.shaped(&[hidden * colors, frames, high, wide])];
        }
        let values = tensor.to_f32().unwrap();
        let of_frame = |frame: usize| {
            let kept = values.chunks_exact(high * wide).skip(frame).step_by(frames).flatten().copied();
            f32s("model", name.replace("patch_embed.proj", &format!("patch_embd_{frame}")), kept.collect())
                .shaped(&[hidden, colors, high, wide])
        };
        vec![of_frame(0), of_frame(1)]
    }

    /// Writes the file.
    fn write(&self, to: &Path, stored: Stored, more: &[(&str, Setting)]) {
        let (text, _) = crate::gguf::open(&folder(self.case).join("text.gguf")).unwrap();
        let of_text = text.metadata.string("general.architecture").unwrap().unwrap();
        let mut entries: BTreeMap<String, Setting> = BTreeMap::new();
        for (key, value) in text.metadata.iter() {
            match key.strip_prefix(&format!("{of_text}.")) {
                Some(own) if self.without.contains(&own) => {}
                Some(own) => drop(entries.insert(format!("{}.{own}", self.architecture), value.clone())),
                None => drop(entries.insert(key.to_owned(), value.clone())),
            }
        }
        entries.insert("general.architecture".into(), Setting::String(self.architecture.into()));
        for (key, value) in (self.keys)().into_iter().chain(more.iter().cloned()) {
            entries.insert(format!("{}.{key}", self.architecture), value);
        }
        let tower = self.tower().into_iter().map(|tensor| tensor.kept(stored));
        write(to, &entries, text.tensors.into_iter().chain(tower).collect());
    }
}

/// Changes of a tensor before it is written.
trait Rewrite {
    fn shaped(self, shape: &[usize]) -> Tensor;
    fn kept(self, stored: Stored) -> Tensor;
}

impl Rewrite for Tensor {
    fn shaped(self, shape: &[usize]) -> Tensor {
        Tensor { shape: shape.to_vec(), ..self }
    }

    fn kept(self, stored: Stored) -> Tensor {
        let (values, columns) = (self.to_f32().unwrap(), *self.shape.last().unwrap());
        let is_plain = self.shape.len() == 1
            || self.name.ends_with(".bias")
            || self.name == "v.position_embd.weight"
            || stored == Stored::F32;
        let dtype = match stored {
            Stored::Packed if self.shape.len() > 1 && columns.is_multiple_of(32) => DType::Q8_0,
            _ if is_plain => DType::F32,
            _ => DType::F16,
        };
        let row = |values: &[f32]| -> Vec<u8> {
            match dtype {
                DType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                DType::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
                _ => {
                    let mut made = vec![0; dtype.bytes_of(columns).unwrap()];
                    quant::quantize_row(dtype, values, &mut made);
                    made
                }
            }
        };
        let bytes: Vec<u8> = values.chunks_exact(columns).flat_map(row).collect();
        Tensor { dtype, bytes: bytes.into(), ..self }
    }
}

fn write(to: &Path, entries: &BTreeMap<String, Setting>, tensors: Vec<Tensor>) {
    let planned: Vec<TensorEntry> = tensors
        .iter()
        .map(|tensor| TensorEntry {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        })
        .collect();
    let entries = entries.iter().map(|(key, value)| (key.as_str(), value));
    let mut writer = Writer::create(to, entries, &planned).unwrap();
    tensors.iter().for_each(|tensor| writer.write(&tensor.bytes.read()).unwrap());
    writer.finish().unwrap();
}

#[test]
fn a_tower_in_the_models_file_is_the_models_and_answers_as_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    for form in FORMS {
        for stored in [Stored::AsConverted, Stored::F32, Stored::Packed] {
            form.write(&path, stored, &[]);
            answers_as_its_own_files(form.case, &path, stored);
        }
    }
}

/// Compares a model in one file with the model in a folder, and its answers with the library's.
fn answers_as_its_own_files(case: &str, path: &Path, stored: Stored) {
    let (own, _) = open(case);
    let model = open_at(path);
    let (own, found) = (files(&own), files(&model.0));
    assert_eq!(found.spec, own.spec, "{case}");
    assert_eq!(found.processor, own.processor, "{case}");
    let bound = if stored == Stored::Packed { 0.02 } else { 1e-6 };
    for (at, (found, own)) in plain_numbers(found).into_iter().zip(plain_numbers(own)).enumerate() {
        assert_eq!(found.0, own.0, "{case}: tensor {at}");
        let (mut found, mut own) = (found, own);
        if case == "mllama" {
            // Rows of its queries and keys have another order, the same for both, and no rotary embedding.
            found.1.sort_unstable_by(f32::total_cmp);
            own.1.sort_unstable_by(f32::total_cmp);
        }
        let differs = found.1.iter().zip(&own.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(differs < bound, "{case} {stored:?}: tensor {at} {:?} differs by {differs}", own.0);
    }
    let info = model.0.info();
    assert!(info.files.len() == 1 && info.not_read.is_empty(), "{info:?}");
    let overrides = Overrides { mmproj: Mmproj::None, ..Overrides::default() };
    let alone = OpenedModel::open_with(path, &overrides).unwrap();
    let is_less = alone.info().parameters < info.parameters;
    assert!(alone.decoder().unwrap().tower.is_none() && is_less, "{case}");
    if stored == Stored::Packed {
        return;
    }
    let mut engine = engine(&model, 64);
    for (id, talk) in talks(case).iter().enumerate() {
        let (tokens, spans) = prompt(&model.1, talk);
        let stand_in = found.spec.stand_in;
        let known = |&token: &u32| match token as usize >= model.1.vocab {
            true => stand_in.unwrap(),
            false => token,
        };
        assert_eq!(tokens, talk.tokens.iter().map(known).collect::<Vec<_>>(), "{case}");
        let rows = rows_of(AnyBackend::new(ReferenceBackend::new()), &model.0, &spans, ALL);
        let range = talk.rows.iter().fold(0.0f32, |a, &b| a.max(b.abs()));
        let differs = rows.iter().zip(&talk.rows).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let is_near = rows.len() == talk.rows.len() && differs <= 1e-3 * range;
        assert!(is_near, "{case} {stored:?} {id}: {differs} of {range}");
        engine.submit(job(id as u64, &model.1, talk));
        let found = finish(&mut engine).remove(&JobId(id as u64)).unwrap();
        // GGUF files name more end tokens, which are never sampled.
        let ends = &model.1.eos;
        let before = talk.greedy.iter().position(|token| ends.contains(token)).unwrap_or(talk.greedy.len());
        assert!(before > 5, "{case} {id}: {before}");
        assert_eq!(found.tokens[..before], talk.greedy[..before], "{case} {stored:?} {id}");
    }
}

/// Tensors of a tower as floats, whatever their stored type.
fn plain_numbers(files: &TowerFiles) -> Vec<(Vec<usize>, Vec<f32>)> {
    let all = files.tensors.all().chain(files.beside());
    all.map(|tensor| {
        let columns = *tensor.shape.last().unwrap();
        let (mut values, stored) = (vec![0.0; tensor.elements()], tensor.bytes.read());
        let row_bytes = tensor.dtype.bytes_of(columns).unwrap();
        for (stored, values) in stored.chunks_exact(row_bytes).zip(values.chunks_exact_mut(columns)) {
            quant::dequantize_row(tensor.dtype, stored, values);
        }
        (tensor.shape.clone(), values)
    })
    .collect()
}

#[test]
fn a_setting_of_a_tower_that_is_not_known_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    for (at, key, value, named) in [
        (0, "vision.swiglu_clamp", whole(1), "gemma3.vision.swiglu_clamp"),
        (0, "vision.num_channels", whole(4), "only 3 is known"),
        (1, "mm.projector_hidden_act", Setting::String("silu".into()), "only gelu is known"),
        (2, "vision.rope.freq_base", Setting::F32(5e3), "only 10000 is known"),
        (2, "vision.fullatt_block_indexes", layers(&[7]), "below 3"),
        (3, "vision.temporal_patch_size", whole(3), "only 2 is known"),
        (3, "vision.deepstack_visual_indexes", layers(&[-1]), "list of layers"),
        (3, "norm_top_k_prob", Setting::Bool(false), "qwen3vl.norm_top_k_prob"),
    ] {
        FORMS[at].write(&path, Stored::F32, &[(key, value)]);
        let refused = OpenedModel::open(&path).map(drop).unwrap_err().to_string();
        assert!(refused.contains(named) && refused.contains("m.gguf"), "{key}: {refused}");
    }
}

#[test]
fn a_tower_of_its_own_file_may_be_named_in_the_place_of_the_one_inside() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    FORMS[0].write(&path, Stored::F32, &[]);
    let tower = folder("gemma3").join("mmproj.gguf");
    let overrides = Overrides { mmproj: Mmproj::File(tower.clone()), ..Overrides::default() };
    let opened = OpenedModel::open_with(&path, &overrides).unwrap();
    assert_eq!(opened.info().files, [path, tower]);
}

/// A stand-in token replaces an image token without a row in the text model.
#[test]
fn a_place_beyond_the_embedding_is_held_by_another_token() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    FORMS[0].write(&path, Stored::F32, &[]);
    let (gguf, _) = crate::gguf::open(&path).unwrap();
    let entries = gguf.metadata.iter().map(|(key, value)| (key.to_owned(), value.clone()));
    let mut entries: BTreeMap<String, Setting> = entries.collect();
    // The image token is the last one, as in published files.
    let Some(Setting::Array(Array::String(tokens))) = entries.get_mut("tokenizer.ggml.tokens") else {
        panic!("it has tokens");
    };
    let place = tokens.iter().position(|token| token == "<image_soft_token>").unwrap();
    let last = tokens.len() - 1;
    tokens.swap(place, last);
    let Some(Setting::Array(Array::I32(kinds))) = entries.get_mut("tokenizer.ggml.token_type") else {
        panic!("it has kinds of tokens");
    };
    kinds.swap(place, last);
    let cut = |tensor: Tensor| match tensor.name.as_str() {
        "token_embd.weight" => tensor.rows(0..last),
        _ => tensor,
    };
    write(&path, &entries, gguf.tensors.into_iter().map(cut).collect());
    let model = open_at(&path);
    let talk = &talks("gemma3")[0];
    let (tokens, spans) = prompt(&model.1, talk);
    assert!(tokens.iter().all(|&token| (token as usize) < model.1.vocab) && !spans.is_empty());
    let mut engine = engine(&model, 64);
    engine.submit(job(1, &model.1, talk));
    assert_eq!(finish(&mut engine)[&JobId(1)].tokens[..5], talk.greedy[..5]);
}
