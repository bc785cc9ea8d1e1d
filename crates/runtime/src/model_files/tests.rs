//! Tests of models that open, and of files, keys and tensors that make them fail.

pub(crate) mod tied;

use std::fs;
use std::path::Path;

use hanzo_engine_ops::reference::ReferenceBackend;
use hanzo_engine_ops::{AnyBackend, DType};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::decoder::Decoder;
use crate::decoder::tests::{data, with_weights_as};
use crate::gguf_tests::Builder;
use crate::load::{GenerationDefaults, TextFile, TokenizerSource};
use crate::spec::{LayerPart, Part};

fn error_of(path: &Path) -> String {
    ModelFiles::open(path).unwrap_err().to_string()
}

/// A copy of a tiny model's directory, to be damaged.
fn copy(case: &str) -> tempfile::TempDir {
    with_weights_as(case, DType::BF16, 1)
}

fn edit(directory: &Path, file: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    let path = directory.join(file);
    let mut settings = TextFile::Settings.read_object(&path).unwrap();
    change(&mut settings);
    fs::write(path, Value::Object(settings).to_string()).unwrap();
}

#[test]
fn a_directory_opens() {
    let files = ModelFiles::open(&data("tiny/qwen3")).unwrap();
    let weights = data("tiny/qwen3/model.safetensors");
    assert_eq!(
        files.info,
        ModelInfo {
            name: "qwen3".into(),
            format: "safetensors",
            architecture: "qwen3".into(),
            quantization: "BF16".into(),
            parameters: 160 * 64 + 2 * (64 * (128 + 64 + 64 + 128) + 3 * 64 * 96 + 2 * 64 + 2 * 32) + 64,
            size_bytes: fs::metadata(&weights).unwrap().len(),
            context_tokens_max: 128,
            license: None,
            not_read: &[],
            files: vec![weights],
        }
    );
    assert_eq!((files.text.bos, &files.text.eos[..]), (Some(1), &[2][..]));
    assert_eq!(files.text.chat_template, None);
    assert_eq!(
        files.text.generation,
        GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            ..GenerationDefaults::default()
        }
    );
    let TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config } = files.text.tokenizer else {
        panic!("the tokenizer is the directory's")
    };
    assert!(tokenizer_json.starts_with(b"{"));
    assert_eq!(tokenizer_config.unwrap()["eos_token"], "</s>");
}

#[test]
fn a_gguf_file_opens_from_disk_and_from_memory() {
    let path = data("tiny/llama3/model.gguf");
    let files = ModelFiles::open(&path).unwrap();
    let info = &files.info;
    assert_eq!(
        (info.name.as_str(), info.format, info.quantization.as_str()),
        ("tiny-llama3", "gguf", "BF16")
    );
    assert_eq!((info.architecture.as_str(), info.license.as_deref()), ("llama", Some("apache-2.0")));
    assert_eq!((info.files.as_slice(), info.context_tokens_max), (&[path.clone()][..], 128));
    assert_eq!((files.text.bos, &files.text.eos[..]), (Some(1), &[2][..]));
    assert!(files.spec.ropes[0].factors.is_some());
    let bytes: &'static [u8] = fs::read(&path).unwrap().leak();
    let embedded = ModelFiles::from_static("embedded", bytes).unwrap();
    assert_eq!(embedded.spec, files.spec);
    assert!(embedded.info.files.is_empty());
    // Parameters do not count rope's factors.
    let directory = ModelFiles::open(&data("tiny/llama3")).unwrap();
    assert_eq!(info.parameters, directory.info.parameters);
}

#[test]
fn what_is_not_a_model_says_what_is() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    assert!(error_of(&at("absent.gguf")).contains("absent.gguf"));
    assert!(
        error_of(directory.path()).contains("config.json is missing; a model is a GGUF file, or a directory")
    );
    fs::write(at("empty.gguf"), []).unwrap();
    assert!(error_of(&at("empty.gguf")).contains("the file ends at byte 0"));
    fs::write(at("text.gguf"), "hello, this is text").unwrap();
    assert!(error_of(&at("text.gguf")).contains("does not begin with the letters GGUF"));
    fs::write(at("model.safetensors"), "x").unwrap();
    assert!(error_of(&at("model.safetensors")).contains("give the directory it is in"));
}

#[test]
fn files_missing_or_broken_in_a_directory_are_named() {
    let model = copy("qwen3");
    let broken = |name: &str, content: Option<&[u8]>| {
        let path = model.path().join(name);
        let kept = fs::read(&path).ok();
        match content {
            Some(content) => fs::write(&path, content).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = error_of(model.path());
        match kept {
            Some(kept) => fs::write(&path, kept).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        error
    };
    assert!(broken("tokenizer.json", None).contains("tokenizer.json is missing"));
    assert!(broken("model.safetensors", None).contains("model.safetensors is missing"));
    assert!(broken("config.json", Some(b"{")).contains("config.json: file: expected a JSON object"));
    assert!(broken("config.json", Some(b"[]")).contains("config.json: file: expected a JSON object"));
    assert!(broken("generation_config.json", Some(b"\xff")).contains("generation_config.json"));
    assert!(broken("tokenizer_config.json", Some(b"1")).contains("tokenizer_config.json"));
    let deep = "[".repeat(100_000);
    assert!(broken("config.json", Some(deep.as_bytes())).contains("config.json"));
    assert!(broken("chat_template.jinja", Some(b"\xff")).contains("chat_template.jinja"));
    let eos = br#"{"eos_token_id": [2, 160]}"#;
    assert!(broken("generation_config.json", Some(eos)).contains("token 160 is not among the 160"));
    let eos = br#"{"eos_token_id": "</s>"}"#;
    assert!(
        broken("generation_config.json", Some(eos)).contains("key eos_token_id: \"</s>\" is not a token")
    );
    assert!(ModelFiles::open(model.path()).is_ok(), "the copy itself is sound");
}

#[test]
fn chat_templates_are_found_where_they_may_be() {
    let model = copy("qwen3");
    let template = || ModelFiles::open(model.path()).unwrap().text.chat_template;
    let set = |value: Value| {
        edit(model.path(), "tokenizer_config.json", |settings| {
            settings.insert("chat_template".into(), value);
        });
    };
    set(json!("one"));
    assert_eq!(template().as_deref(), Some("one"));
    set(json!([{ "name": "tool_use", "template": "no" }, { "name": "default", "template": "two" }]));
    assert_eq!(template().as_deref(), Some("two"));
    fs::write(model.path().join("chat_template.jinja"), "three").unwrap();
    assert_eq!(template().as_deref(), Some("three"));
}

#[test]
fn shapes_and_tensors_must_be_those_of_the_spec() {
    let model = copy("qwen3");
    edit(model.path(), "config.json", |config| {
        config.insert("intermediate_size".into(), json!(97));
    });
    assert!(
        error_of(model.path())
            .ends_with("tensor model.layers.0.mlp.gate_proj.weight: expected [97, 64], file has [96, 64]")
    );
    edit(model.path(), "config.json", |config| {
        config.insert("intermediate_size".into(), json!(96));
        config.insert("num_hidden_layers".into(), json!(3));
        config.insert("layer_types".into(), Value::Null);
    });
    assert!(error_of(model.path()).contains("tensor model.layers.2.input_layernorm.weight [64] is missing"));
    edit(model.path(), "config.json", |config| {
        config.insert("num_hidden_layers".into(), json!(1));
    });
    assert!(
        error_of(model.path()).contains("tensor model.layers.1.input_layernorm.weight = [64] of BF16 is not")
    );

    let path = data("tiny/llama-linear");
    let biased = with_weights_as("llama-linear", DType::BF16, 1);
    edit(biased.path(), "config.json", |config| {
        config.insert("attention_bias".into(), json!(false));
    });
    assert!(error_of(biased.path()).contains("tensor model.layers.0.self_attn.k_proj.bias"), "{path:?}");
}

/// The smallest llama that opens, with its head in an additional tensor.
fn tiny_gguf(extra: impl FnOnce(Builder) -> Builder) -> Result<ModelFiles, LoadError> {
    let mut builder = Builder::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 32)
        .u32("llama.embedding_length", 4)
        .u32("llama.feed_forward_length", 8)
        .u32("llama.attention.head_count", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .zeros("token_embd.weight", &[10, 4])
        .zeros("output_norm.weight", &[4]);
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        builder = builder.zeros(&format!("blk.0.{name}.weight"), &[4, 4]);
    }
    for (name, shape) in
        [("attn_norm", &[4][..]), ("ffn_norm", &[4]), ("ffn_gate", &[8, 4]), ("ffn_up", &[8, 4])]
    {
        builder = builder.zeros(&format!("blk.0.{name}.weight"), shape);
    }
    ModelFiles::from_bytes("tiny", extra(builder).build().into())
}

#[test]
fn gguf_tensors_and_defaults() {
    let down = |builder: Builder| builder.zeros("blk.0.ffn_down.weight", &[4, 8]);
    let files = tiny_gguf(|builder| {
        down(builder)
            .u32("general.file_type", 15)
            .u32("tokenizer.ggml.eos_token_id", 9)
            .u32("tokenizer.ggml.eot_token_id", 3)
            .u32("tokenizer.ggml.eom_token_id", 9)
            .string("tokenizer.chat_template", "{{ x }}")
            .f32("general.sampling.temp", 0.75)
            .u32("general.sampling.top_k", 40)
    })
    .unwrap();
    assert_eq!(files.info.quantization, "Q4_K_M");
    assert_eq!(files.info.name, "tiny");
    assert_eq!(files.text.eos, [3, 9]);
    assert_eq!(files.text.chat_template.as_deref(), Some("{{ x }}"));
    assert_eq!((files.text.generation.temperature, files.text.generation.top_k), (Some(0.75), Some(40)));
    assert_eq!(tiny_gguf(down).unwrap().info.quantization, "F32");

    let error = |extra: &dyn Fn(Builder) -> Builder| tiny_gguf(extra).unwrap_err().to_string();
    assert_eq!(error(&|builder| builder), "tiny: tensor blk.0.ffn_down.weight [4, 8] is missing");
    assert_eq!(
        error(&|builder| builder.zeros("blk.0.ffn_down.weight", &[8, 4])),
        "tiny: tensor blk.0.ffn_down.weight: expected [4, 8], file has [8, 4]"
    );
    assert!(error(&|builder| down(builder).zeros("blk.0.ffn_gate_inp.weight", &[2, 4])).starts_with(
        "tiny: tensor blk.0.ffn_gate_inp.weight = [2, 4] of F32 is not supported: a llama model"
    ));
    assert!(
        error(&|builder| down(builder).u32("tokenizer.ggml.bos_token_id", 10))
            .contains("token 10 is not among the 10 of the vocabulary")
    );
    assert!(
        error(&|builder| down(builder).string("tokenizer.ggml.eos_token_id", "</s>"))
            .contains("key tokenizer.ggml.eos_token_id: expected an integer, found string")
    );
}

/// The smallest mixture of three experts, in Mixtral's form, with these tensors of the experts.
fn mixture_gguf(tensors: &[(&str, &[usize])]) -> Result<ModelFiles, String> {
    let mut builder = Builder::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 32)
        .u32("llama.embedding_length", 4)
        .u32("llama.feed_forward_length", 8)
        .u32("llama.expert_count", 3)
        .u32("llama.expert_used_count", 2)
        .u32("llama.attention.head_count", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .zeros("token_embd.weight", &[10, 4])
        .zeros("output_norm.weight", &[4])
        .zeros("blk.0.attn_norm.weight", &[4])
        .zeros("blk.0.ffn_norm.weight", &[4]);
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        builder = builder.zeros(&format!("blk.0.{name}.weight"), &[4, 4]);
    }
    for (name, shape) in tensors {
        builder = builder.zeros(&format!("blk.0.{name}.weight"), shape);
    }
    ModelFiles::from_bytes("tiny", builder.build().into()).map_err(|error| error.to_string())
}

#[test]
fn stacked_experts_must_have_the_shapes_of_the_spec() {
    type Named<'a> = (&'a str, &'a [usize]);
    let router: Named = ("ffn_gate_inp", &[3, 4]);
    let (gate, up): (Named, Named) = (("ffn_gate_exps", &[3, 8, 4]), ("ffn_up_exps", &[3, 8, 4]));
    let down: Named = ("ffn_down_exps", &[3, 4, 8]);
    let files = mixture_gguf(&[router, gate, up, down]).unwrap();
    assert_eq!(files.info.parameters, 10 * 4 + 4 + 2 * 4 + 4 * 16 + 12 + 3 * 96);
    let one = files.tensors.get(Part::Layer(0, LayerPart::ExpertDown(2)).weight());
    assert_eq!((one.name.as_str(), one.shape.as_slice()), ("blk.0.ffn_down_exps.weight[2]", &[4, 8][..]));
    assert_eq!(one.bytes.len(), 4 * 32);

    let cases: [(&[Named], &str); 8] = [
        (
            &[router, up, down],
            "tensor blk.0.ffn_gate.0.weight [8, 4] is missing, and so is blk.0.ffn_gate_exps.weight",
        ),
        (&[gate, up, down], "tensor blk.0.ffn_gate_inp.weight [3, 4] is missing"),
        (&[("ffn_gate_inp", &[2, 4]), gate, up, down], "expected [3, 4], file has [2, 4]"),
        (
            &[router, gate, up, ("ffn_down_exps", &[2, 4, 8])],
            "tensor blk.0.ffn_down_exps.weight: expected [3, 4, 8], file has [2, 4, 8]",
        ),
        (
            &[router, gate, ("ffn_up_exps", &[3, 4, 8]), down],
            "tensor blk.0.ffn_up_exps.weight: expected [3, 8, 4], file has [3, 4, 8]",
        ),
        (
            &[router, ("ffn_gate_exps", &[24, 4]), up, down],
            "tensor blk.0.ffn_gate_exps.weight: expected [3, 8, 4], file has [24, 4]",
        ),
        (
            &[router, gate, ("ffn_gate.1", &[8, 4]), up, down],
            "tensor blk.0.ffn_gate.1.weight: it is in blk.0.ffn_gate_exps.weight too",
        ),
        (
            &[router, gate, up, down, ("ffn_gate_shexp", &[8, 4])],
            "tensor blk.0.ffn_gate_shexp.weight = [8, 4] of F32 is not supported",
        ),
    ];
    for (tensors, expected) in cases {
        let error = mixture_gguf(tensors).unwrap_err();
        assert!(error.contains(expected), "{expected:?} in {error:?}");
    }
}

#[test]
fn experts_of_old_files_are_tensors_of_their_own() {
    let names: Vec<String> =
        (0..3).flat_map(|expert| ["gate", "up", "down"].map(|part| format!("ffn_{part}.{expert}"))).collect();
    let mut tensors: Vec<(&str, &[usize])> = vec![("ffn_gate_inp", &[3, 4])];
    for name in &names {
        tensors.push((name, if name.contains("down") { &[4, 8] } else { &[8, 4] }));
    }
    let files = mixture_gguf(&tensors).unwrap();
    assert_eq!(
        files.tensors.get(Part::Layer(0, LayerPart::ExpertUp(1)).weight()).name,
        "blk.0.ffn_up.1.weight"
    );
    let without = |name: &str| {
        let left: Vec<_> = tensors.iter().copied().filter(|(tensor, _)| *tensor != name).collect();
        mixture_gguf(&left).unwrap_err()
    };
    assert!(without("ffn_down.2").contains("tensor blk.0.ffn_down.2.weight [4, 8] is missing"));
}

#[test]
fn a_stack_is_cut_where_its_experts_meet() {
    let bytes: Vec<u8> = (0..2 * 3 * 34).map(|byte| byte as u8).collect();
    let stack = Tensor {
        file: "a".into(),
        name: "t".into(),
        dtype: DType::Q8_0,
        shape: vec![2, 3, 32],
        bytes: bytes.clone().into(),
    };
    let parts: Vec<Tensor> = stack.parts().collect();
    assert_eq!(parts.len(), 2);
    for (part, bytes) in parts.iter().zip(bytes.chunks(3 * 34)) {
        assert_eq!((part.shape.as_slice(), &part.bytes[..]), (&[3, 32][..], bytes));
    }
}

#[test]
fn experts_of_a_directory_must_be_those_of_the_configuration() {
    for (case, key, router, expert) in [
        ("qwen3-moe", "num_experts", "mlp.gate.weight", "mlp.experts.7.down_proj.weight"),
        (
            "mixtral",
            "num_local_experts",
            "block_sparse_moe.gate.weight",
            "block_sparse_moe.experts.4.w2.weight",
        ),
    ] {
        let model = copy(case);
        let files = ModelFiles::open(model.path()).unwrap();
        let experts = files.spec.layers[1].mlp.experts().unwrap();
        let last = Part::Layer(1, LayerPart::ExpertDown(experts.count - 1)).weight();
        assert_eq!(files.tensors.get(last).name, format!("model.layers.1.{expert}"));
        let with_experts = |count: usize| {
            edit(model.path(), "config.json", |config| {
                config.insert(key.into(), json!(count));
            });
            error_of(model.path())
        };
        for count in [experts.count + 1, experts.count - 1] {
            let expected = format!(
                "tensor model.layers.0.{router}: expected [{count}, 64], file has [{}, 64]",
                experts.count
            );
            let error = with_experts(count);
            assert!(error.ends_with(&expected), "{expected:?} in {error:?}");
        }

        let model = copy(case);
        let path = model.path().join("model.safetensors");
        let file = fs::read(&path).unwrap();
        let tensors = ::safetensors::SafeTensors::deserialize(&file).unwrap();
        let name = format!("model.layers.1.{expert}");
        let views: Vec<_> = tensors.tensors().into_iter().filter(|(tensor, _)| *tensor != name).collect();
        fs::write(&path, ::safetensors::serialize(views, None).unwrap()).unwrap();
        let expected = format!("tensor {name} [64, {}] is missing", experts.ffn);
        let error = error_of(model.path());
        assert!(error.ends_with(&expected), "{expected:?} in {error:?}");
    }
}

/// Opens and loads the tiny qwen3 with an additional tensor of the embedding's shape, made from its bytes.
fn load_with(name: &str, bytes: impl Fn(&[u8]) -> Vec<u8>) -> Result<(), String> {
    let model = copy("qwen3");
    let path = model.path().join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let tensors = ::safetensors::SafeTensors::deserialize(&file).unwrap();
    let embedding = tensors.tensor("model.embed_tokens.weight").unwrap();
    let (dtype, shape, bytes) = (embedding.dtype(), embedding.shape().to_vec(), bytes(embedding.data()));
    let view = ::safetensors::tensor::TensorView::new(dtype, shape, &bytes).unwrap();
    let mut views = tensors.tensors();
    views.push((name.into(), view));
    let with_tensor = ::safetensors::serialize(views, None).unwrap();
    fs::write(&path, with_tensor).unwrap();
    let loaded = ModelFiles::open(model.path()).and_then(|files| {
        Decoder::load(&AnyBackend::new(ReferenceBackend::new()), &files, &mut |_| ()).map(|_| ())
    });
    loaded.map_err(|error| error.to_string())
}

#[test]
fn only_known_buffers_may_be_left_out() {
    let zeros = |embedding: &[u8]| vec![0; embedding.len()];
    assert_eq!(load_with("model.layers.0.self_attn.rotary_emb.inv_freq", zeros), Ok(()));
    let error = load_with("model.layers.0.mlp.gate_proj.weight_scale", zeros).unwrap_err();
    assert!(
        error.contains("tensor model.layers.0.mlp.gate_proj.weight_scale = [160, 64] of BF16"),
        "{error}"
    );
}

#[test]
fn an_index_and_its_files_must_agree() {
    const INDEX: &str = "model.safetensors.index.json";
    const NORM: &str = "model.norm.weight";
    let model = with_weights_as("qwen3", DType::F16, 2);
    assert!(ModelFiles::open(model.path()).is_ok());
    let with_entry = |tensor: &str, file: &str| {
        let model = with_weights_as("qwen3", DType::F16, 2);
        edit(model.path(), INDEX, |index| {
            index["weight_map"][tensor] = json!(file);
        });
        error_of(model.path())
    };
    let part = "model-00001-of-00002.safetensors";
    assert!(
        with_entry("more", part).contains(&format!("tensor more: it is not in {part}, as the index says"))
    );
    assert!(with_entry(NORM, "absent.safetensors").contains("file absent.safetensors is missing"));
    assert!(with_entry(NORM, "../elsewhere").contains("../elsewhere is not a plain file name"));
    assert!(with_entry(NORM, "..").contains(".. is not a plain file name"));
    edit(model.path(), INDEX, |index| {
        index["weight_map"].as_object_mut().unwrap().remove(NORM);
    });
    assert!(error_of(model.path()).contains(&format!("tensor {NORM}: it is in model-0000")));
    fs::write(model.path().join(INDEX), r#"{"weight_map": {"a": 1}}"#).unwrap();
    assert!(error_of(model.path()).contains("key weight_map: expected an object"));
}

#[test]
fn broken_safetensors_headers_name_the_tensor() {
    let file = |header: &str, data: usize| {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat();
        crate::safetensors::parse("m.safetensors", &bytes.into()).map_err(|error| error.to_string())
    };
    let entry = |shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"F16","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    assert_eq!(file(&entry("[2,2]", "[0,8]"), 8).unwrap()[0].shape, [2, 2]);
    let cases = [
        (entry("[2,2]", "[0,6]"), 6, "m.safetensors: tensor w: its offsets do not fit its shape and type"),
        (entry("[9000000000,9000000000]", "[0,8]"), 8, "tensor w: its offsets do not fit its shape and type"),
        (entry("[2,2]", "[2,10]"), 10, "tensor w: its offsets do not follow"),
        (entry("[2,2]", "[0,8]"), 7, "header: its tensors do not end where the file does, at "),
        (entry("[0,2]", "[0,0]"), 0, "tensor w: shape [0, 2]"),
        (entry("[1,1,1,1,1,1,4]", "[0,8]"), 8, "tensor w: shape [1, 1, 1, 1, 1, 1, 4]"),
        (
            entry("[2,2]", "[0,8]").replace("F16", "BOOL").replace("[0,8]", "[0,4]"),
            4,
            "tensor w: element type",
        ),
        ("{".into(), 0, "header: invalid JSON in header"),
    ];
    for (header, data, expected) in cases {
        let error = file(&header, data).unwrap_err();
        assert!(error.contains(expected), "{expected:?} in {error:?}");
    }
    let claimed = crate::safetensors::parse("m", &vec![0xff; 64].into()).unwrap_err().to_string();
    assert!(claimed.contains("header"), "{claimed}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Truncated and changed models give an error or a model, however they were damaged.
    #[test]
    fn damaged_models_give_a_result(
        case in prop::sample::select(vec!["qwen3", "llama-linear", "qwen3-moe"]),
        cut in prop::option::of(any::<prop::sample::Index>()),
        // The headers are in the first 8 KiB, followed by weights.
        changes in prop::collection::vec((0usize..8192, any::<u8>()), 0..8),
    ) {
        for name in ["model.gguf", "model.safetensors"] {
            let mut bytes = fs::read(data("tiny").join(case).join(name)).unwrap();
            for &(at, byte) in &changes {
                bytes[at] = byte;
            }
            let length = bytes.len();
            if let Some(cut) = &cut {
                bytes.truncate(cut.index(length));
            }
            // A GGUF file may end with padding.
            let cut_off = length - bytes.len() > 32;
            let opened = if name == "model.gguf" {
                ModelFiles::from_bytes("damaged", bytes.into()).map(|_| ())
            } else {
                crate::safetensors::parse("damaged", &bytes.into()).map(|_| ())
            };
            prop_assert!(opened.is_err() || !cut_off, "a cut file was taken");
        }
    }
}

#[test]
fn stop_strings_of_a_generation_config_are_defaults() {
    let model = copy("qwen3");
    let stops = |value: Value| {
        fs::write(model.path().join("generation_config.json"), json!({"stop_strings": value}).to_string())
            .unwrap();
        ModelFiles::open(model.path())
            .map(|files| files.text.generation.stop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(stops(json!("END")), Ok(vec!["END".to_owned()]));
    assert_eq!(stops(json!(["a", "b"])), Ok(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(stops(Value::Null), Ok(Vec::new()));
    for wrong in [json!(1), json!([1]), json!([""]), json!(vec!["x"; 1000])] {
        assert!(stops(wrong).unwrap_err().contains("generation_config.json: key stop_strings"));
    }
}

#[test]
fn more_experts_than_the_files_hold_are_refused_before_they_are_listed() {
    let copy = copy("qwen3-moe");
    edit(copy.path(), "config.json", |settings| {
        settings.insert("num_hidden_layers".into(), json!(1024));
        settings.insert("num_experts".into(), json!(4096));
    });
    let began = std::time::Instant::now();
    let error = error_of(copy.path());
    assert!(error.contains("experts") && error.contains("those of its 1024 layers need"), "{error}");
    // Listing them took ten seconds and a gigabyte.
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "{:?}", began.elapsed());
}
