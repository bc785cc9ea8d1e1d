//! Tests with settings of published models, and with settings that must be refused.

mod described;
mod gguf;
mod multiplied;
mod partial;

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_model_files::gguf::{Array, Value as Setting};
use hanzo_engine_ops::{HeadShape, RopeKind};
use serde_json::{Value, json};

use super::*;
use gguf::Builder;

fn read(config: Value) -> Result<TransformerSpec, LoadError> {
    let Value::Object(settings) = config else { panic!("a configuration is an object") };
    from_config(&Config::new("config.json", settings), [])
}

/// Mixture of experts of each layer, if any.
fn experts_of(spec: &TransformerSpec) -> Vec<Option<ExpertsSpec>> {
    spec.layers.iter().map(|layer| layer.mlp.experts().copied()).collect()
}

fn windows_of(spec: &TransformerSpec) -> Vec<Option<u32>> {
    spec.layers.iter().map(|layer| layer.attention.window()).collect()
}

fn changed(base: &Value, changes: Value) -> Value {
    let mut config = base.clone();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Settings published with Qwen3-0.6B.
fn qwen3() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
        "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936
    })
}

/// Settings published with Llama-3.2-1B.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-5,
        "rope_scaling": { "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                          "original_max_position_embeddings": 8192, "rope_type": "llama3" },
        "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256
    })
}

/// Settings published with Qwen3-30B-A3B.
fn qwen3_moe() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-6, "rope_scaling": null,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
        "use_cache": true, "use_sliding_window": false, "vocab_size": 151936
    })
}

/// Settings published with Mixtral-8x7B-v0.1.
fn mixtral() -> Value {
    json!({
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
        "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0",
        "use_cache": true, "vocab_size": 32000
    })
}

#[test]
fn published_mixtures_of_experts_are_understood() {
    let spec = read(qwen3_moe()).unwrap();
    assert_eq!(spec.heads(), HeadShape { heads: 32, kv_heads: 4, head_dim: 128 });
    assert_eq!((spec.hidden, spec.layers[0].attention.qk_norm), (2048, QkNorm::Heads));
    assert_eq!(experts_of(&spec), vec![Some(ExpertsSpec::softmax(128, 8, 768, true)); 48]);
    let limits = spec.step_limits(64, 4, 1000);
    assert_eq!(
        (limits.width, limits.experts, limits.experts_used, limits.experts_width),
        (5120, 128, 8, 2048)
    );
    let weights = spec.weights();
    assert_eq!(weights.len(), 3 + 48 * (2 + 6 + 1 + 3 * 128));
    assert!(weights.contains(&(Part::Layer(47, LayerPart::ExpertDown(127)).weight(), vec![2048, 768])));

    let spec = read(mixtral()).unwrap();
    assert_eq!(spec.heads(), HeadShape { heads: 32, kv_heads: 8, head_dim: 128 });
    let experts = spec.layers[31].mlp.experts().unwrap();
    assert_eq!((experts.count, experts.used, experts.ffn), (8, 2, 14_336));
    assert_eq!((experts.normalized, experts.ffn_used()), (true, 28_672));
    assert_eq!(spec.step_limits(64, 4, 1000).width, 28_672);
    // The class's defaults for absent settings.
    let mut bare = mixtral();
    bare.as_object_mut().unwrap().retain(|key, _| key != "rope_theta" && key != "rms_norm_eps");
    assert_eq!(read(bare).unwrap(), spec);
    assert_eq!(read(qwen3()).unwrap().step_limits(64, 4, 1000).experts, 0);
}

#[test]
fn some_layers_are_mixtures_of_experts_and_some_are_not() {
    let with = |changes: Value| read(changed(&qwen3_moe(), changes)).unwrap();
    let sparse =
        |changes: Value| -> Vec<bool> { experts_of(&with(changes)).iter().map(Option::is_some).collect() };
    let four = |step: usize, dense: &[usize]| {
        sparse(json!({ "num_hidden_layers": 4, "decoder_sparse_step": step, "mlp_only_layers": dense }))
    };
    assert_eq!(four(1, &[]), [true; 4]);
    assert_eq!(four(2, &[]), [false, true, false, true]);
    assert_eq!(four(2, &[3, 0]), [false, true, false, false]);
    assert_eq!(four(5, &[]), [false; 4]);
    assert_eq!(sparse(json!({ "num_experts": 0 })), [false; 48]);
    assert_eq!(sparse(json!({ "mlp_only_layers": null, "decoder_sparse_step": null })), [true; 48]);

    let mixed = with(json!({ "num_hidden_layers": 4, "decoder_sparse_step": 2 }));
    assert_eq!(mixed.layers[0].mlp, MlpSpec::gated(6144, Activation::Silu));
    let has = |layer, part| mixed.weights().iter().any(|(name, _)| name.part == Part::Layer(layer, part));
    assert!(has(0, LayerPart::Gate) && !has(0, LayerPart::Router));
    assert!(!has(1, LayerPart::Gate) && has(1, LayerPart::Router));

    // The newest name of the number, and a default that differs from published models.
    let newer = with(json!({ "num_experts": null, "num_local_experts": 128 }));
    assert_eq!(newer, with(json!({})));
    assert!(!experts_of(&with(json!({ "norm_topk_prob": null })))[0].unwrap().normalized);
}

#[test]
fn published_configurations_are_understood() {
    let spec = read(qwen3()).unwrap();
    assert_eq!(spec.heads(), HeadShape { heads: 16, kv_heads: 8, head_dim: 128 });
    assert_eq!((spec.vocab, spec.hidden, spec.layers.len(), spec.head.tied()), (151_936, 1024, 28, true));
    let LayerSpec { attention, mlp, .. } = &spec.layers[27];
    assert_eq!((attention.qk_norm, attention.qkv_bias, attention.output_bias), (QkNorm::Heads, false, false));
    assert_eq!(mlp, &MlpSpec::gated(3072, Activation::Silu));
    let rope = &spec.ropes[0];
    assert_eq!((rope.kind, rope.base, rope.dim), (RopeKind::Neox, 1e6, 128));
    assert_eq!(spec.context_tokens_max, 40_960);
    assert_eq!(windows_of(&spec), vec![None; 28]);
    let limits = spec.step_limits(64, 4, 1000);
    assert_eq!((limits.width, limits.vocab, limits.logit_rows), (6144, 151_936, 4));

    let spec = read(llama()).unwrap();
    assert_eq!(spec.heads(), HeadShape { heads: 32, kv_heads: 8, head_dim: 64 });
    assert_eq!(spec.layers[0].attention.qk_norm, QkNorm::None);
    // The fastest pair is not scaled, the slowest by the whole factor.
    let frequencies = spec.ropes[0].inv_freq();
    assert_eq!(frequencies.len(), 32);
    assert_eq!(frequencies[0], 1.0);
    let slowest = 500_000f64.powf(-62.0 / 64.0) / 32.0;
    assert!((f64::from(frequencies[31]) / slowest - 1.0).abs() < 1e-6);
}

#[test]
fn newer_spellings_mean_the_same() {
    let mut newer = llama();
    let settings = newer.as_object_mut().unwrap();
    let mut rope = settings.remove("rope_scaling").unwrap();
    rope["rope_theta"] = settings.remove("rope_theta").unwrap();
    settings.insert("rope_parameters".into(), rope);
    assert_eq!(read(newer).unwrap(), read(llama()).unwrap());
}

#[test]
fn yarn_stretches_context_and_magnitude() {
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768 });
    let spec = read(changed(&qwen3(), json!({ "rope_scaling": yarn }))).unwrap();
    assert_eq!(spec.context_tokens_max, 131_072);
    assert!((spec.ropes[0].magnitude - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
    // Fast pairs unchanged, slow ones stretched.
    let (plain, stretched) = (read(qwen3()).unwrap().ropes[0].inv_freq(), spec.ropes[0].inv_freq());
    assert_eq!(plain[0], stretched[0]);
    assert!((plain[63] / stretched[63] - 4.0).abs() < 1e-5);

    let given = json!({ "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 0.5 });
    assert_eq!(read(changed(&qwen3(), json!({ "rope_scaling": given }))).unwrap().ropes[0].magnitude, 0.5);
}

#[test]
fn windows_follow_the_family() {
    let windowed = |base: &Value, changes: Value| windows_of(&read(changed(base, changes)).unwrap());
    let mistral = changed(
        &llama(),
        json!({ "model_type": "mistral", "architectures": ["MistralForCausalLM"], "rope_scaling": null }),
    );
    assert_eq!(windowed(&mistral, json!({ "sliding_window": 4096 })), vec![Some(4096); 16]);
    assert_eq!(windowed(&mistral, json!({ "sliding_window": null })), vec![None; 16]);
    assert_eq!(windowed(&mixtral(), json!({ "sliding_window": 4096 })), vec![Some(4096); 32]);
    // This class does not read `max_window_layers`.
    let used = json!({ "sliding_window": 100, "use_sliding_window": true });
    assert_eq!(windowed(&qwen3_moe(), used), vec![Some(100); 48]);
    assert_eq!(windowed(&qwen3_moe(), json!({ "sliding_window": 100 })), vec![None; 48]);
    let upper = json!({ "sliding_window": 100, "use_sliding_window": true, "max_window_layers": 27 });
    let mut expected = vec![None; 28];
    expected[27] = Some(100);
    assert_eq!(windowed(&qwen3(), upper), expected);
    let off = json!({ "sliding_window": 100, "use_sliding_window": false, "max_window_layers": 0 });
    assert_eq!(windowed(&qwen3(), off), vec![None; 28]);
    let types: Vec<&str> =
        (0..28).map(|layer| if layer == 3 { "sliding_attention" } else { "full_attention" }).collect();
    let named = json!({ "sliding_window": 7, "use_sliding_window": true, "layer_types": types });
    let mut expected = vec![None; 28];
    expected[3] = Some(7);
    assert_eq!(windowed(&qwen3(), named), expected);
}

#[test]
fn settings_that_cannot_be_honoured_are_refused_by_name() {
    let rope = |changes: Value| changed(&llama(), json!({ "rope_scaling": changes }));
    let l = |changes: Value| changed(&llama(), changes);
    let q = |changes: Value| changed(&qwen3(), changes);
    let e = |changes: Value| changed(&qwen3_moe(), changes);
    let x = |changes: Value| changed(&mixtral(), changes);
    let cases = [
        (l(json!({ "model_type": "dbrx" })), "model_type = dbrx is not supported"),
        (q(json!({ "num_experts": 8 })), "num_experts = 8 is not supported: this family does not read it"),
        (q(json!({ "moe_intermediate_size": 8 })), "moe_intermediate_size = 8 is not supported"),
        (x(json!({ "num_experts": 8 })), "num_experts = 8 is not supported"),
        (x(json!({ "num_local_experts": 0 })), "key num_local_experts: it is 0"),
        (x(json!({ "num_local_experts": null })), "key num_local_experts is missing"),
        (e(json!({ "num_experts": null })), "key num_experts is missing"),
        (e(json!({ "num_experts": 4097 })), "key num_experts: it is more than 4096"),
        (e(json!({ "num_local_experts": 8 })), "key num_experts: it is 128, and num_local_experts is 8"),
        (e(json!({ "num_experts_per_tok": 0 })), "key num_experts_per_tok: it is 0"),
        (e(json!({ "num_experts_per_tok": null })), "key num_experts_per_tok is missing"),
        (e(json!({ "num_experts_per_tok": 129 })), "experts: a token goes to 129 of 128"),
        (e(json!({ "moe_intermediate_size": null })), "key moe_intermediate_size is missing"),
        (e(json!({ "moe_intermediate_size": 1 << 20 })), "experts: 8 times 1048576 elements"),
        (e(json!({ "shared_expert_intermediate_size": 8 })), "shared_expert_intermediate_size = 8 is not"),
        (e(json!({ "n_shared_experts": 1 })), "n_shared_experts = 1 is not supported"),
        (e(json!({ "decoder_sparse_step": 0 })), "key decoder_sparse_step: it is 0"),
        (e(json!({ "mlp_only_layers": 3 })), "key mlp_only_layers: expected a list of layers, found 3"),
        (e(json!({ "mlp_only_layers": [48] })), "key mlp_only_layers: 48 is not one of 48 layers"),
        (e(json!({ "mlp_only_layers": [-1] })), "key mlp_only_layers: -1 is not one of 48 layers"),
        (e(json!({ "mlp_only_layers": [0], "intermediate_size": null })), "key intermediate_size is missing"),
        (e(json!({ "norm_topk_prob": 1 })), "key norm_topk_prob: expected true or false, found 1"),
        (l(json!({ "model_type": null })), "key model_type is missing"),
        (l(json!({ "architectures": ["LlamaForSequenceClassification"] })), "architectures = "),
        (l(json!({ "mlp_bias": true })), "mlp_bias = true is not supported"),
        (l(json!({ "num_local_experts": 8 })), "num_local_experts = 8 is not supported"),
        (l(json!({ "quantization_config": { "bits": 4 } })), "quantization_config = {\"bits\":4} is not"),
        (l(json!({ "final_logit_softcapping": 30.0 })), "final_logit_softcapping = 30.0 is not supported"),
        (l(json!({ "partial_rotary_factor": 0.5 })), "partial_rotary_factor = 0.5 is not supported"),
        (l(json!({ "hidden_act": "relu2" })), "hidden_act = relu2 is not supported"),
        (
            rope(json!({ "rope_type": "longrope", "factor": 2.0 })),
            "key original_max_position_embeddings is missing",
        ),
        (rope(json!({ "type": "dynamic", "alpha": 2.0 })), "alpha = 2.0 is not supported"),
        (rope(json!({ "type": "linear" })), "key factor is missing"),
        (rope(json!({ "type": "linear", "factor": -2.0 })), "key factor: -2 is not above 0"),
        (rope(json!({ "type": "linear", "factor": 2.0, "short_factor": [] })), "short_factor = [] is not"),
        (
            rope(json!({ "type": "yarn", "factor": 1e30, "mscale": 3e38, "mscale_all_dim": 1.0 })),
            "rotary embedding: its factor on cosine and sine",
        ),
        (q(json!({ "layer_types": ["full_attention"] })), "key layer_types: 1 types for 28 layers"),
        (
            q(json!({ "layer_types": vec!["linear_attention"; 28] })),
            "layer_types = \"linear_attention\" is not",
        ),
        (q(json!({ "hidden_size": 0 })), "key hidden_size: it is 0"),
        (q(json!({ "hidden_size": "1024" })), "key hidden_size: expected a whole number"),
        (q(json!({ "hidden_size": -1 })), "key hidden_size: expected a whole number"),
        (q(json!({ "hidden_size": 1e300 })), "key hidden_size: expected a whole number"),
        (q(json!({ "num_hidden_layers": u64::MAX })), "key num_hidden_layers: it is more than 1024"),
        (q(json!({ "num_key_value_heads": 5 })), "16 query heads are not a multiple of 5 key-value heads"),
        (q(json!({ "head_dim": 127 })), "127 dimensions; an even number"),
        (q(json!({ "rms_norm_eps": 1e300 })), "key rms_norm_eps: it is too large"),
        (q(json!({ "vocab_size": null })), "key vocab_size is missing"),
        (q(json!({ "tie_word_embeddings": 1 })), "key tie_word_embeddings: expected true or false, found 1"),
    ];
    for (config, expected) in cases {
        let error = read(config).unwrap_err().to_string();
        assert!(error.starts_with("config.json: ") && error.contains(expected), "{expected:?} in {error:?}");
    }
}

/// Checks the behaviour of classes whose settings are absent or contradict them.
#[test]
fn settings_under_names_of_their_own_are_understood_or_refused() {
    let falcon = json!({
        "model_type": "falcon", "architectures": ["FalconForCausalLM"], "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "vocab_size": 65024, "multi_query": true, "parallel_attn": true, "alibi": false,
        "bias": false, "new_decoder_architecture": false, "layer_norm_epsilon": 1e-5,
    });
    let spec = read(falcon.clone()).unwrap();
    assert_eq!((spec.heads().kv_heads, spec.context_tokens_max, spec.head.tied()), (1, 2048, true));
    assert_eq!(spec.layers[0].mlp.dense().unwrap().ffn, 4 * 4544);
    let qwen = json!({
        "model_type": "qwen", "architectures": ["QWenLMHeadModel"], "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "intermediate_size": 22016, "kv_channels": 128, "vocab_size": 151936, "no_bias": true,
        "seq_length": 8192, "max_position_embeddings": 32768, "use_dynamic_ntk": true, "use_logn_attn": true,
    });
    let spec = read(qwen.clone()).unwrap();
    assert_eq!((spec.context_tokens_max, spec.layers[0].mlp.dense().unwrap().ffn), (8192, 11008));
    let baichuan = json!({
        "model_type": "baichuan", "architectures": ["BaiChuanForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 64000, "max_position_embeddings": 4096,
    });
    assert_eq!(read(baichuan.clone()).unwrap().distance, Distance::None);
    let larger = changed(
        &baichuan,
        json!({"max_position_embeddings": null, "model_max_length": 2048, "vocab_size": 125_696}),
    );
    let spec = read(larger).unwrap();
    assert_eq!((spec.distance, spec.context_tokens_max), (Distance::Alibi(Alibi::PLAIN), 2048));
    assert!(spec.layers.iter().all(|layer| layer.attention.rope.is_none()));
    assert!(matches!(spec.head, HeadSpec::Logits(LogitsSpec { tied: false, unit_rows: true, .. })));
    let spec = read(changed(&falcon, json!({"new_decoder_architecture": true}))).unwrap();
    assert_eq!(spec.layers[0].order, NormOrder::ParallelApart);
    let mpt = json!({
        "model_type": "mpt", "architectures": ["MPTForCausalLM"], "d_model": 4096, "n_layers": 32, "n_heads": 32,
        "vocab_size": 50432, "max_seq_len": 2048, "expansion_ratio": 4, "no_bias": true,
        "attn_config": {"alibi": true, "alibi_bias_max": 8, "clip_qkv": null, "prefix_lm": false, "qk_ln": false,
                        "softmax_scale": null, "attn_type": "multihead_attention"},
    });
    assert_eq!(read(mpt.clone()).unwrap().distance, Distance::Alibi(Alibi::PLAIN));
    let of_attention = |key: &str, value: Value| {
        let mut config = mpt.clone();
        config["attn_config"][key] = value;
        config
    };
    let gpt2 = json!({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12, "n_head": 12,
        "n_positions": 1024, "n_ctx": 1024, "n_inner": null, "vocab_size": 50257,
    });
    let spec = read(gpt2.clone()).unwrap();
    assert_eq!(spec.positions, Some(PositionTable { rows: 1024, offset: 0 }));
    assert_eq!((spec.layers[0].mlp.dense().unwrap().ffn, spec.ropes.len()), (3072, 0));
    let opt = json!({
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "ffn_dim": 4096, "max_position_embeddings": 2048, "vocab_size": 50272,
    });
    assert_eq!(read(opt.clone()).unwrap().positions, Some(PositionTable { rows: 2050, offset: 2 }));
    for (config, key) in [
        (changed(&falcon, json!({"alibi": true})), "alibi"),
        (changed(&falcon, json!({"num_ln_in_parallel_attn": 2})), "num_ln_in_parallel_attn"),
        (of_attention("alibi", false.into()), "alibi"),
        (of_attention("alibi_bias_max", 4.into()), "alibi_bias_max"),
        (of_attention("clip_qkv", 6.into()), "clip_qkv"),
        (of_attention("qk_ln", true.into()), "qk_ln"),
        (of_attention("attn_type", "multiquery_attention".into()), "attn_type"),
        (changed(&mpt, json!({"no_bias": false})), "no_bias"),
        (changed(&mpt, json!({"expansion_ratio": 2})), "expansion_ratio"),
        (changed(&gpt2, json!({"scale_attn_by_inverse_layer_idx": true})), "scale_attn_by_inverse_layer_idx"),
        // As published with OPT 350M.
        (changed(&opt, json!({"do_layer_norm_before": false})), "do_layer_norm_before"),
        (changed(&opt, json!({"word_embed_proj_dim": 512})), "word_embed_proj_dim"),
        (changed(&qwen, json!({"no_bias": false})), "no_bias"),
    ] {
        let error = read(config).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

fn gguf_llama() -> Builder {
    Builder::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 128)
        .u32("llama.embedding_length", 16)
        .u32("llama.feed_forward_length", 32)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .zeros("token_embd.weight", &[10, 16])
}

fn read_gguf(builder: &Builder) -> Result<TransformerSpec, LoadError> {
    from_gguf(&builder.build(), [])
}

#[test]
fn gguf_metadata_is_understood() {
    let spec = read_gguf(&gguf_llama()).unwrap();
    assert_eq!(spec.heads(), HeadShape { heads: 4, kv_heads: 2, head_dim: 4 });
    assert_eq!((spec.vocab, spec.ropes[0].kind, spec.ropes[0].base), (10, RopeKind::Interleaved, 10_000.0));
    let attention = &spec.layers[0].attention;
    assert!(spec.head.tied() && !attention.qkv_bias && !attention.output_bias);

    let rich = gguf_llama()
        .u32("llama.rope.dimension_count", 2)
        .string("llama.rope.scaling.type", "linear")
        .f32("llama.rope.scaling.factor", 4.0)
        .u32("llama.expert_count", 0)
        .u32("llama.vocab_size", 10)
        .zeros("output.weight", &[10, 16])
        .zeros("blk.0.attn_q.bias", &[16]);
    let spec = read_gguf(&rich).unwrap();
    assert!(!spec.head.tied() && spec.layers[1].attention.qkv_bias);
    assert_eq!(spec.ropes[0].inv_freq(), [0.25]);
}

#[test]
fn gguf_mixtures_of_experts_are_understood() {
    let mixture = |ffn| vec![Some(ExpertsSpec::softmax(8, 2, ffn, true)); 2];
    let counted = gguf_llama().u32("llama.expert_count", 8).u32("llama.expert_used_count", 2);
    let spec = read_gguf(&counted).unwrap();
    assert_eq!(experts_of(&spec), mixture(32));
    let spec = read_gguf(&gguf_qwen3moe().u32("qwen3moe.expert_feed_forward_length", 12)).unwrap();
    assert_eq!(experts_of(&spec), mixture(12));
    assert_eq!((spec.ropes[0].kind, spec.layers[0].attention.qk_norm), (RopeKind::Neox, QkNorm::Heads));
}

fn gguf_qwen3moe() -> Builder {
    let mut builder = Builder::new()
        .string("general.architecture", "qwen3moe")
        .f32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6)
        .zeros("token_embd.weight", &[10, 16]);
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", 16),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
        ("expert_count", 8),
        ("expert_used_count", 2),
    ] {
        builder = builder.u32(&format!("qwen3moe.{key}"), value);
    }
    builder
}

#[test]
fn rope_factors_divide_frequencies() {
    let factors: Vec<u8> = [1.0f32, 8.0].iter().flat_map(|factor| factor.to_le_bytes()).collect();
    let spec = read_gguf(&gguf_llama().tensor("rope_freqs.weight", &[2], &factors)).unwrap();
    assert_eq!(spec.ropes[0].inv_freq(), [1.0, 0.01 / 8.0]);
    let wrong = gguf_llama().tensor("rope_freqs.weight", &[1], &factors[..4]);
    assert!(read_gguf(&wrong).unwrap_err().to_string().contains("expected 2 factors, found 1"));
    let zero = gguf_llama().tensor("rope_freqs.weight", &[2], &[0; 8]);
    assert!(read_gguf(&zero).unwrap_err().to_string().contains("a factor is not a number above 0"));
}

#[test]
fn gguf_settings_that_cannot_be_honoured_are_refused_by_name() {
    let embedding = [10, 16];
    let bare = |architecture: &str| {
        Builder::new().string("general.architecture", architecture).zeros("token_embd.weight", &embedding)
    };
    let cases = [
        (Builder::new(), "key general.architecture is missing"),
        (bare("rwkv7"), "general.architecture = rwkv7 is not supported: it is none of the "),
        (bare("llama"), "key llama.embedding_length is missing"),
        (bare("llama").u32("llama.embedding_length", 0), "key llama.embedding_length: 0 is not from 1"),
        (gguf_llama().u32("llama.expert_count", 8), "key llama.expert_used_count is missing"),
        (gguf_llama().u32("llama.expert_used_count", 2), "key llama.expert_count is missing"),
        (
            gguf_llama().u32("llama.expert_count", 2).u32("llama.expert_used_count", 3),
            "experts: a token goes to 3 of 2",
        ),
        (
            gguf_llama().u32("llama.expert_feed_forward_length", 8),
            "llama.expert_feed_forward_length = 8 is not supported",
        ),
        (gguf_qwen3moe(), "key qwen3moe.expert_feed_forward_length is missing"),
        (
            gguf_qwen3moe().u32("qwen3moe.expert_shared_count", 1),
            "qwen3moe.expert_shared_count = 1 is not supported",
        ),
        (
            gguf_qwen3moe().f32("qwen3moe.expert_weights_scale", 2.5),
            "qwen3moe.expert_weights_scale = 2.5 is not supported",
        ),
        (
            gguf_qwen3moe().u32("qwen3moe.attention.sliding_window", 9),
            "qwen3moe.attention.sliding_window = 9 is not supported",
        ),
        (gguf_llama().f32("llama.logit_scale", 0.5), "llama.logit_scale = 0.5 is not supported"),
        (gguf_llama().u32("llama.attention.value_length", 8), "llama.attention.value_length = 8 is not"),
        (
            gguf_llama().string("llama.rope.scaling.type", "longrope"),
            "llama.rope.scaling.type = longrope is not",
        ),
        (
            gguf_llama().f32("llama.rope.freq_base", f32::NAN),
            "llama.rope.freq_base: NaN is not a number above 0",
        ),
        (
            gguf_llama().u32("llama.rope.dimension_count", 6),
            "6 dimensions; an even number up to the head's 4",
        ),
        (gguf_llama().u32("llama.attention.key_length", 5), "5 dimensions; an even number"),
        (
            gguf_llama().value("llama.attention.causal", Setting::Bool(false)),
            "llama.attention.causal = false is not supported",
        ),
    ];
    for (builder, expected) in cases {
        let error = read_gguf(&builder).unwrap_err().to_string();
        assert!(error.starts_with("a.gguf: ") && error.contains(expected), "{expected:?} in {error:?}");
    }
}

#[test]
fn counts_given_for_every_layer_must_agree() {
    let with = |counts: &[u32]| {
        let mut builder = Builder::new()
            .string("general.architecture", "qwen3")
            .value("qwen3.feed_forward_length", Setting::Array(Array::U32(counts.to_vec())))
            .f32("qwen3.attention.layer_norm_rms_epsilon", 1e-6)
            .zeros("token_embd.weight", &[10, 16]);
        for (key, value) in [
            ("block_count", 2),
            ("context_length", 64),
            ("embedding_length", 16),
            ("attention.head_count", 4),
        ] {
            builder = builder.u32(&format!("qwen3.{key}"), value);
        }
        read_gguf(&builder)
    };
    assert_eq!(with(&[32, 32]).unwrap().layers[0].mlp, MlpSpec::gated(32, Activation::Silu));
    assert!(with(&[32, 48]).unwrap_err().to_string().contains("qwen3.feed_forward_length = [32, 48] is not"));
    let long: Vec<u32> = (1..100_000).collect();
    assert!(with(&long).unwrap_err().to_string().len() < 400, "an error a person can read");
    assert!(with(&[]).unwrap_err().to_string().contains("qwen3.feed_forward_length"));
}
