//! Tests of families with additional factors, or whose layers are only states: the meaning of their settings, and
//! refused settings.

use hanzo_engine_ops::ExpertScoring;
use serde_json::{Value, json};

use super::super::*;
use super::{changed, read, windows_of};

/// Settings published with MiniCPM3-4B, except its factors for long texts.
fn minicpm3() -> Value {
    json!({
        "architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3", "vocab_size": 73448, "hidden_size": 2560,
        "intermediate_size": 6400, "num_hidden_layers": 62, "num_attention_heads": 40, "num_key_value_heads": 40,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "hidden_act": "silu", "q_lora_rank": 768,
        "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "scale_emb": 12, "scale_depth": 1.4,
        "dim_model_base": 256,
    })
}

fn near(found: f32, wanted: f32) {
    assert!((found - wanted).abs() <= 1e-5 * wanted.abs(), "{found}, not {wanted}");
}

#[test]
fn factors_on_what_halves_add_leave_norms_of_latents_alone() {
    let spec = read(minicpm3()).unwrap();
    let residual = 1.4 / 62f32.sqrt();
    near(spec.embedding_scale, 12.0 / residual);
    near(spec.norm.eps, 1e-5 / (residual * residual));
    near(spec.head.logit_scale(), 0.1);
    let attention = &spec.layers[61].attention;
    let Projection::Latent(shape) = attention.projection else { panic!("latents") };
    assert_eq!((shape.query_dim(), shape.value_dim, spec.ropes[0].dim), (96, 64, 32));
    assert_eq!((attention.latent_eps, spec.layers[61].residual_scale), (Some(1e-6), 1.0));
    near(attention.scale, 1.0 / 96f32.sqrt());
    // Null means no factor, and an absent setting the makers' default.
    let spec = read(changed(&minicpm3(), json!({"scale_depth": null, "dim_model_base": null}))).unwrap();
    assert_eq!((spec.embedding_scale, spec.head.logit_scale(), spec.norm.eps), (12.0, 1.0, 1e-5));
    let mut unsaid = minicpm3();
    for key in ["scale_emb", "scale_depth", "dim_model_base"] {
        unsaid.as_object_mut().unwrap().remove(key);
    }
    assert_eq!(read(unsaid).unwrap(), read(minicpm3()).unwrap());
    let error = read(changed(&minicpm3(), json!({"attention_bias": true}))).unwrap_err().to_string();
    assert!(error.contains("attention_bias"), "{error}");
}

/// Settings of Falcon-H1, with factors of 1 except for some.
fn falcon_h1() -> Value {
    json!({
        "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "vocab_size": 320, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "mamba_d_ssm": 48, "mamba_n_heads": 6,
        "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "key_multiplier": 0.5,
        "attention_in_multiplier": 2.0, "attention_out_multiplier": 0.5, "ssm_multipliers": [1.0, 1.0, 3.0, 1.0, 1.0],
        "mlp_multipliers": [1.0, 0.25],
    })
}

#[test]
fn a_state_beside_attention_is_a_layer_before_it() {
    let spec = read(falcon_h1()).unwrap();
    let orders: Vec<NormOrder> = spec.layers.iter().map(|layer| layer.order).collect();
    assert_eq!(orders, [NormOrder::Pre, NormOrder::Beside].repeat(3));
    let states: Vec<bool> =
        spec.layers.iter().map(|layer| layer.attention.projection.state().is_some()).collect();
    assert_eq!(states, [true, false].repeat(3));
    near(spec.layers[1].attention.scale, 0.5 * 4.0 / 4.0);
    // If the factors of input and output cancel, nothing is multiplied.
    let factors = [(LayerPart::Down, 0..64, 0.25), (LayerPart::StateInput, 48..80, 3.0)];
    let factors = factors.map(|(part, rows, factor)| RowFactor { part, rows, factor });
    assert_eq!(spec.row_factors, factors);
    assert_eq!(spec.state().unwrap().norm_part, 0);
    for (change, key) in [
        (json!({"projectors_bias": true}), "projectors_bias"),
        (json!({"mamba_rms_norm": true}), "mamba_norm_before_gate"),
        (json!({"ssm_multipliers": [1.0, 1.0, 1.0, 1.0]}), "ssm_multipliers"),
        (json!({"ssm_multipliers": [1.0, "1", 1.0, 1.0, 1.0]}), "ssm_multipliers"),
        (json!({"mlp_multipliers": [1.0, 0.0]}), "mlp_multipliers"),
        (json!({"mamba_d_ssm": 40}), "mamba_n_heads"),
        (json!({"time_step_limit": [0.0, 1.0]}), "time_step_limit"),
    ] {
        let error = read(changed(&falcon_h1(), change)).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    let alone = TransformerSpec { layers: spec.layers[1..].to_vec(), ..spec.clone() };
    assert_eq!(alone.unrunnable().unwrap().0, "norms");
    assert!(spec.unrunnable().is_none());
}

#[test]
fn layers_of_states_alone_are_understood_or_refused() {
    let mamba2 = json!({
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "vocab_size": 32768, "hidden_size": 4096,
        "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4,
        "expand": 2, "layer_norm_epsilon": 1e-5, "hidden_act": "silu", "use_bias": false, "use_conv_bias": true,
        "tie_word_embeddings": false,
    });
    let spec = read(mamba2.clone()).unwrap();
    assert!(spec.layers.iter().all(|layer| layer.mlp == MlpSpec::None));
    assert_eq!((spec.state().unwrap().norm_part, spec.context_tokens_max), (1024, 1 << 20));
    for (change, key) in [
        (json!({"use_bias": true}), "use_bias"),
        (json!({"hidden_act": "gelu"}), "hidden_act"),
        (json!({"num_heads": 64}), "num_heads"),
        (json!({"time_step_limit": [0.1, 1.0]}), "time_step_limit"),
    ] {
        let error = read(changed(&mamba2, change)).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    for other in ["mamba", "jamba"] {
        let error = read(changed(&mamba2, json!({"model_type": other}))).unwrap_err().to_string();
        assert!(error.contains(other) && error.contains("Mamba 2"), "{error}");
    }
}

#[test]
fn experts_of_cohere_are_averaged_with_the_one_beside_them() {
    let cohere = json!({
        "architectures": ["Cohere2MoeForCausalLM"], "model_type": "cohere2_moe", "vocab_size": 320, "hidden_size": 64,
        "intermediate_size": 32, "prefix_dense_intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "sliding_window": 32,
        "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 2, "first_k_dense_replace": 1,
    });
    let spec = read(cohere.clone()).unwrap();
    assert_eq!(windows_of(&spec), [None, Some(32), Some(32), Some(32), None, Some(32)]);
    let turns: Vec<bool> = spec.layers.iter().map(|layer| layer.attention.rope.is_some()).collect();
    assert_eq!(turns, [true, true, true, true, false, true]);
    let experts = spec.layers[1].mlp.experts().unwrap();
    assert!(experts.averaged && experts.normalized && experts.shared.unwrap().ffn == 64);
    assert_eq!(spec.layers[0].mlp.dense().unwrap().ffn, 96);
    assert_eq!((spec.norm.kind, spec.head.logit_scale()), (NormKind::Layer { bias: false }, 0.0625));
    let other = json!({"expert_selection_fn": "sigmoid", "norm_topk_prob": false, "rms_norm_eps": 1e-6,
                       "shared_expert_combination_strategy": "sum"});
    let spec = read(changed(&cohere, other)).unwrap();
    let experts = spec.layers[1].mlp.experts().unwrap();
    assert_eq!(
        (experts.scoring, experts.normalized, experts.averaged),
        (ExpertScoring::Sigmoid, false, false)
    );
    assert_eq!(spec.norm, NormSpec { kind: NormKind::Rms { from_one: false }, eps: 1e-6 });
    for (change, key) in [
        (json!({"expert_selection_fn": "sparsemax"}), "expert_selection_fn"),
        (json!({"shared_expert_combination_strategy": "max"}), "shared_expert_combination_strategy"),
    ] {
        let error = read(changed(&cohere, change)).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn a_soft_cap_that_is_null_is_none() {
    let gemma2 = json!({
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": 320, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 512, "sliding_window": 32,
    });
    let caps = |spec: TransformerSpec| match spec.head {
        HeadSpec::Logits(head) => (spec.layers[0].attention.softcap, head.softcap),
        _ => panic!("logits"),
    };
    assert_eq!(caps(read(gemma2.clone()).unwrap()), (Some(50.0), Some(30.0)));
    let none = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    assert_eq!(caps(read(changed(&gemma2, none)).unwrap()), (None, None));
}
