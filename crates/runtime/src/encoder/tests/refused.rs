//! Settings, tensors and files that make no encoder, each named.

use hanzo_engine_ops::{AnyBackend, DType};
use safetensors::tensor::TensorView;
use serde_json::{Map, json};
use tempfile::TempDir;

use super::*;
use crate::gguf::{Gguf, Value as Setting};
use crate::gguf_tests::Builder;
use crate::spec::LayerSpec;

/// A copy of a checkpoint's settings, vocabulary and weights, to be spoilt.
fn copy(case: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        fs::copy(directory(case).join(name), copy.path().join(name)).unwrap();
    }
    copy
}

fn open_at(directory: &std::path::Path) -> Result<EncoderFiles, String> {
    EncoderFiles::from_directory(directory, &config_of(directory)).map_err(|error| error.to_string())
}

/// The error of a checkpoint with some settings changed; null takes one away.
fn error_with(case: &str, settings: Value) -> String {
    let mut map: Map<String, Value> =
        TextFile::Settings.read_object(&directory(case).join("config.json")).unwrap();
    map.extend(settings.as_object().unwrap().clone());
    let config = Config::new("config.json", map);
    match EncoderFiles::from_directory(&directory(case), &config) {
        Ok(_) => panic!("{case} loads with {settings}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn settings_that_make_another_model_are_named() {
    let cases = [
        ("bert-mean", json!({"position_embedding_type": "relative_key"}), "position_embedding_type"),
        ("bert-mean", json!({"is_decoder": true}), "is_decoder = true"),
        ("bert-mean", json!({"add_cross_attention": true}), "add_cross_attention"),
        ("bert-mean", json!({"hidden_act": "mish"}), "hidden_act = mish"),
        (
            "bert-mean",
            json!({"architectures": ["BertForTokenClassification"]}),
            "architectures = BertForToken",
        ),
        ("bert-mean", json!({"architectures": ["GPT2Model"]}), "architectures = GPT2Model"),
        ("bert-mean", json!({"auto_map": {"AutoModel": "x/y--modeling.OddModel"}}), "auto_map = OddModel"),
        ("bert-mean", json!({"quantization_config": {"bits": 4}}), "key quant_method is missing"),
        ("bert-mean", json!({"quantization_config": {"quant_method": "aqlm"}}), "quant_method = aqlm is not"),
        ("bert-mean", json!({"num_attention_heads": 5}), "num_attention_heads"),
        ("bert-mean", json!({"hidden_size": null}), "key hidden_size is missing"),
        ("bert-mean", json!({"layer_norm_eps": "small"}), "key layer_norm_eps: expected a number"),
        ("bert-mean", json!({"type_vocab_size": 100_000}), "type_vocab_size"),
        ("roberta", json!({"pad_token_id": 66}), "position embedding"),
        ("roberta", json!({"lora_adaptations": ["retrieval"]}), "lora_adaptations"),
        ("mpnet", json!({"relative_attention_num_buckets": 30}), "relative_attention_num_buckets = 30"),
        ("modernbert", json!({"mlp_bias": true}), "mlp_bias = true"),
        ("modernbert", json!({"rope_scaling": {"rope_type": "yarn"}}), "rope_scaling"),
        ("modernbert", json!({"layer_types": ["full_attention"]}), "layer_types"),
        ("modernbert-classifier", json!({"classifier_pooling": "max"}), "classifier_pooling = max"),
        ("bert-mean", json!({"num_experts": 8}), "num_experts = 8"),
        ("nomic-bert", json!({"num_experts": 8}), "num_experts = 8"),
        ("nomic-bert", json!({"moe_every_n_layers": 2}), "moe_every_n_layers = 2"),
        ("nomic-bert-moe", json!({"moe_every_n_layers": 1}), "moe_every_n_layers = 1"),
        ("nomic-bert-moe", json!({"moe_every_n_layers": 3}), "layers.3.mlp.fc1.weight"),
        ("nomic-bert-moe", json!({"num_experts": null}), "key num_experts is missing"),
        ("nomic-bert-moe", json!({"num_experts": 7}), "mlp.experts.mlp.w1"),
        ("nomic-bert-moe", json!({"moe_top_k": 9}), "moe_top_k: 9 of 8 experts"),
        ("nomic-bert-moe", json!({"moe_normalize_expert_weights": 1.0}), "moe_normalize_expert_weights"),
        ("nomic-bert-moe", json!({"num_shared_experts": 1}), "num_shared_experts = 1"),
        ("nomic-bert-moe", json!({"expert_choice_router": true}), "expert_choice_router"),
        ("nomic-bert-moe", json!({"ffn_div": 2}), "ffn_div = 2"),
        ("nomic-bert-moe", json!({"mlp_fc2_bias": false}), "mlp_fc1_bias = true"),
        ("nomic-bert", json!({"prenorm": true}), "prenorm"),
        ("nomic-bert", json!({"mlp_fc1_bias": true}), "mlp_fc1_bias"),
        ("nomic-bert", json!({"rotary_emb_scale_base": 512}), "rotary_emb_scale_base"),
        ("nomic-bert", json!({"rotary_emb_fraction": 0.0}), "rotary_emb_fraction"),
        ("nomic-bert", json!({"activation_function": "glu"}), "activation_function = glu"),
        ("gte-new", json!({"position_embedding_type": "absolute"}), "position_embedding_type"),
        ("gte-new", json!({"layer_norm_type": "rms_norm"}), "layer_norm_type"),
        ("gte-new", json!({"logn_attention_scale": true}), "logn_attention_scale"),
        ("gte-new", json!({"rope_scaling": {"type": "linear", "factor": 2}}), "type = linear"),
        ("gte-new", json!({"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 0.6}}), "mixed_b"),
        ("jina-bert-v2", json!({"position_embedding_type": "absolute"}), "position_embedding_type"),
        ("jina-bert-v2", json!({"feed_forward_type": "glu"}), "feed_forward_type = glu"),
        ("jina-bert-v2-code", json!({"feed_forward_type": "original"}), "feed_forward_type = original"),
        ("deberta-v2", json!({"conv_kernel_size": 3}), "conv_act = tanh"),
        ("deberta-v2", json!({"conv_kernel_size": 3, "conv_act": "gelu"}), "encoder.conv.conv.weight"),
        ("deberta-v2-classifier", json!({"conv_kernel_size": 5}), "encoder.conv.conv.weight"),
        ("deberta-v2-classifier", json!({"conv_kernel_size": 4}), "conv_kernel_size = 4"),
        ("deberta-v2-classifier", json!({"conv_groups": 2}), "conv_groups = 2"),
        ("deberta-v2", json!({"embedding_size": 16}), "embedding_size = 16"),
        ("deberta-v2", json!({"pos_att_type": ["p2p"]}), "pos_att_type = p2p"),
        ("deberta-v2", json!({"norm_rel_ebd": "rms"}), "norm_rel_ebd = rms"),
        ("deberta-v2", json!({"relative_attention": false}), "pos_att_type"),
        ("embeddinggemma", json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping"),
        ("embeddinggemma", json!({"rope_scaling": {"rope_type": "yarn", "factor": 4}}), "rope_type = yarn"),
        ("embeddinggemma", json!({"sliding_window": null}), "key sliding_window is missing"),
        ("bert-classifier", json!({"problem_type": "ordinal"}), "problem_type = ordinal"),
        ("bert-classifier", json!({"id2label": {"0": "a", "2": "b"}}), "key id2label"),
        ("bert-classifier", json!({"id2label": {"0": "a", "1": "b"}}), "classifier.weight: expected [2, 32]"),
    ];
    for (case, settings, expected) in cases {
        let error = error_with(case, settings);
        assert!(error.contains(expected), "{expected:?} in {error:?}");
    }
}

#[test]
fn what_is_no_encoder_is_told_apart() {
    let is = |settings: Value| {
        let Value::Object(map) = settings else { panic!("an object") };
        is_encoder(&Config::new("config.json", map)).unwrap()
    };
    assert!(is(json!({"model_type": "bert"})));
    assert!(is(json!({"model_type": "gemma3_text", "use_bidirectional_attention": true})));
    assert!(!is(json!({"model_type": "gemma3_text"})));
    assert!(!is(json!({"model_type": "xlm-roberta-xl"})));
    assert!(!is(json!({"model_type": "qwen3"})));
    assert!(!is(json!({})));
}

/// A tensor's new name and shape.
type Renamed = (String, Vec<usize>);

/// Rewrites a checkpoint's tensors: `change` gives each its new name and shape, or takes it away.
fn rewrite(at: &std::path::Path, change: impl Fn(&str, &[usize]) -> Option<Renamed>) {
    let path = at.join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let tensors = ::safetensors::SafeTensors::deserialize(&file).unwrap();
    let views: Vec<(String, TensorView<'_>)> = tensors
        .tensors()
        .into_iter()
        .filter_map(|(name, view)| {
            let (name, shape) = change(&name, view.shape())?;
            Some((name, TensorView::new(view.dtype(), shape, view.data()).unwrap()))
        })
        .collect();
    fs::write(&path, ::safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn missing_misshapen_and_strange_tensors_are_named() {
    let key = "encoder.layer.1.attention.self.key.weight";
    let error = |change: &dyn Fn(&str, &[usize]) -> Option<Renamed>| {
        let model = copy("bert-mean");
        rewrite(model.path(), change);
        open_at(model.path()).unwrap_err()
    };
    let keep = |name: &str, shape: &[usize]| Some((name.to_owned(), shape.to_vec()));
    let missing = error(&|name, shape| if name == key { None } else { keep(name, shape) });
    assert!(missing.ends_with(&format!("tensor {key} [32, 32] is missing")), "{missing}");
    let misshapen = error(&|name, shape| keep(name, if name == key { &[16, 64] } else { shape }));
    assert!(
        misshapen.ends_with(&format!("tensor {key}: expected [32, 32], file has [16, 64]")),
        "{misshapen}"
    );
    let strange =
        error(&|name, shape| keep(if name == "pooler.dense.bias" { "adapter.bias" } else { name }, shape));
    assert!(
        strange.contains("tensor adapter.bias = [32] of F32 is not supported: a bert model"),
        "{strange}"
    );
}

#[test]
fn what_is_left_out_is_listed() {
    assert_eq!(
        open("bert-mean").left_out,
        ["embeddings.position_ids", "pooler.dense.bias", "pooler.dense.weight"]
    );
    assert!(open("bert-classifier").left_out.is_empty());
    // A head that a configuration does not name.
    let model = copy("bert-splade");
    let mut config = TextFile::Settings.read_object(&model.path().join("config.json")).unwrap();
    config.insert("architectures".into(), json!(["BertModel"]));
    fs::write(model.path().join("config.json"), Value::Object(config).to_string()).unwrap();
    let files = open_at(model.path()).unwrap();
    assert_eq!(files.head, None);
    assert!(
        files.left_out.contains(&"cls.predictions.transform.dense.weight".to_owned()),
        "{:?}",
        files.left_out
    );
}

#[test]
fn names_of_the_first_releases_are_known() {
    let model = copy("bert-mean");
    rewrite(model.path(), |name, shape| {
        let old =
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        Some((old, shape.to_vec()))
    });
    assert_eq!(open_at(model.path()).unwrap().spec, open("bert-mean").spec);
}

/// The smallest GGUF encoder of an architecture, with a second half of its own.
fn tiny(architecture: &str, more: impl Fn(Builder) -> Builder) -> Result<EncoderFiles, String> {
    let key = |name: &str| format!("{architecture}.{name}");
    let mut builder = Builder::new()
        .string("general.architecture", architecture)
        .u32(&key("block_count"), 1)
        .u32(&key("context_length"), 16)
        .u32(&key("embedding_length"), 4)
        .u32(&key("feed_forward_length"), 8)
        .u32(&key("attention.head_count"), 2)
        .f32(&key("attention.layer_norm_epsilon"), 1e-12)
        .strings("tokenizer.ggml.tokens", &["a", "b"])
        .zeros("token_embd.weight", &[10, 4])
        .zeros("token_types.weight", &[2, 4]);
    for name in ["token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"] {
        builder = builder.zeros(&format!("{name}.weight"), &[4]).zeros(&format!("{name}.bias"), &[4]);
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        builder = builder.zeros(&format!("blk.0.{name}.weight"), &[4, 4]);
    }
    let bytes = more(builder.zeros("blk.0.ffn_down.weight", &[4, 8])).build();
    let gguf = Gguf::parse("tiny", &bytes.into()).unwrap();
    assert!(is_encoder_gguf(&gguf.metadata).unwrap());
    EncoderFiles::from_gguf("tiny", gguf, Vec::new()).map_err(|error| error.to_string())
}

fn tiny_bert(more: impl Fn(Builder) -> Builder) -> Result<EncoderFiles, String> {
    tiny("bert", |builder| {
        more(builder.zeros("blk.0.ffn_up.weight", &[8, 4])).zeros("position_embd.weight", &[16, 4])
    })
}

#[test]
fn gguf_encoders_open_as_their_tensors_say() {
    let bert = tiny_bert(|builder| builder).unwrap();
    assert_eq!((bert.info.format, bert.info.quantization.as_str()), ("gguf", "F32"));
    assert_eq!((bert.spec.vocab, bert.spec.type_vocab, bert.spec.context_tokens_max), (10, 2, 16));
    assert!(!bert.spec.layers[0].attention.qkv_bias && bert.head.is_none());
    let nomic = tiny("nomic-bert", |builder| {
        builder
            .f32("nomic-bert.rope.freq_base", 1000.0)
            .zeros("blk.0.ffn_up.weight", &[8, 4])
            .zeros("blk.0.ffn_gate.weight", &[8, 4])
    });
    let nomic = nomic.unwrap();
    assert_eq!((nomic.spec.ropes[0].base, nomic.spec.layers[0].attention.rope), (1000.0, Some(0)));
    // Gate and up in one tensor.
    let jina = tiny("jina-bert-v2", |builder| builder.zeros("blk.0.ffn_up.weight", &[16, 4])).unwrap();
    assert_eq!(jina.spec.distance, Distance::Alibi(crate::spec::Alibi::PLAIN));
    let halves = |files: &EncoderFiles| {
        let name = |part| files.tensors.get(Part::Layer(0, part).weight()).name.clone();
        [LayerPart::Gate, LayerPart::Up].map(name)
    };
    assert_eq!(jina.tensors.get(Part::Layer(0, LayerPart::Gate).weight()).shape, [8, 4]);
    assert_eq!(halves(&jina), ["blk.0.ffn_up.weight[0..8]", "blk.0.ffn_up.weight[8..16]"]);
    // In its models for code the gate comes behind.
    let code = tiny("jina-bert-v2", |builder| {
        let norms = ["attn_q_norm", "attn_k_norm", "attn_norm_2"];
        let builder = norms.iter().fold(builder, |builder, norm| {
            let builder = builder.zeros(&format!("blk.0.{norm}.weight"), &[4]);
            builder.zeros(&format!("blk.0.{norm}.bias"), &[4])
        });
        builder.zeros("blk.0.ffn_up.weight", &[16, 4])
    });
    let code = code.unwrap();
    let LayerSpec { order, attention, .. } = &code.spec.layers[0];
    assert_eq!((*order, attention.qk_norm), (NormOrder::PostTwice, QkNorm::Whole));
    assert_eq!(halves(&code), ["blk.0.ffn_up.weight[8..16]", "blk.0.ffn_up.weight[0..8]"]);
    let ranked = tiny_bert(|builder| {
        builder
            .zeros("cls.weight", &[4, 4])
            .zeros("cls.bias", &[4])
            .zeros("cls.output.weight", &[1, 4])
            .zeros("cls.output.bias", &[1])
    });
    let Some(Head::Classifier(classifier)) = ranked.unwrap().head else { panic!("a classifier") };
    assert_eq!((classifier.layers.len(), classifier.scores), (2, Scores::Sigmoid));
    assert_eq!(classifier.layers[0].activation, HeadActivation::Tanh);
}

#[test]
fn gguf_keys_and_tensors_that_make_another_model_are_named() {
    let error = |more: &dyn Fn(Builder) -> Builder| tiny_bert(more).unwrap_err();
    let causal = error(&|builder| builder.value("bert.attention.causal", Setting::Bool(true)));
    assert!(causal.contains("bert.attention.causal = true is not supported"), "{causal}");
    let unknown = error(&|builder| builder.u32("bert.expert_count", 8));
    assert!(unknown.contains("bert.expert_count = 8 is not supported"), "{unknown}");
    let strange = error(&|builder| builder.zeros("blk.0.attn_q_norm.weight", &[4]));
    assert!(strange.contains("tensor blk.0.attn_q_norm.weight"), "{strange}");
    let half = error(&|builder| builder.zeros("cls.weight", &[1, 4]));
    assert!(half.contains("cls.output.weight"), "{half}");
    let unlisted = Builder::new().string("general.architecture", "neo-bert").build();
    let gguf = Gguf::parse("tiny", &unlisted.into()).unwrap();
    assert!(!is_encoder_gguf(&gguf.metadata).unwrap());
}

#[test]
fn a_type_without_kernels_is_refused_before_anything_is_packed() {
    let mut files = tiny_bert(|builder| builder).unwrap();
    let weight = Part::Layer(0, LayerPart::Query).weight();
    files.tensors.all_mut().find(|(name, _)| **name == weight).unwrap().1.dtype = DType::I32;
    let mut progress = |_| panic!("nothing is packed");
    let error =
        Encoder::load(&AnyBackend::new(ReferenceBackend::new()), &files, WeightType::Q8_0, &mut progress);
    let error = error.err().unwrap().to_string();
    assert!(error.contains("tensor blk.0.attn_q.weight: element type I32 cannot be computed"), "{error}");
}
