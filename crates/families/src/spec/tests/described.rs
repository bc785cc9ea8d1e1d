//! Published families written as specs: what a spec must be able to express. The sizes of their weights add up to the
//! published sizes.

use hanzo_engine_ops::{
    Activation, Batch, Draws, ExpertGroups, HeadShape, KvLayout, KvType, RopeKind, RowSource, SampledToken,
};

use super::super::rope::yarn_magnitude;
use super::super::*;

fn rope(kind: RopeKind, base: f32, dim: usize, scaling: RopeScaling) -> RopeSpec {
    RopeSpec { kind, base, dim, scaling, factors: None, magnitude: 1.0, axes: None, long: None }
}

fn rms(from_one: bool) -> NormSpec {
    NormSpec { kind: NormKind::Rms { from_one }, eps: 1e-6 }
}

/// Gemma 3 1B.
fn gemma3() -> TransformerSpec {
    const WINDOW: u32 = 512;
    let (global, local) = (0, 1);
    let layer = LayerSpec {
        order: NormOrder::Sandwich,
        attention: AttentionSpec {
            qk_norm: QkNorm::Heads,
            scale: 256f32.powf(-0.5),
            ..AttentionSpec::causal(HeadShape { heads: 4, kv_heads: 1, head_dim: 256 })
        },
        mlp: MlpSpec::gated(6912, Activation::GeluTanh),
        residual_scale: 1.0,
    };
    let ropes = [1e6, 1e4].map(|base| rope(RopeKind::Neox, base, 256, RopeScaling::None));
    let plain = TransformerSpec::bare("gemma3_text", [262_144, 1152], vec![layer; 26], rms(true), 32_768);
    // Every sixth layer is global.
    let spec = plain.with_layers(|index, LayerSpec { attention, .. }| {
        let is_global = (index + 1) % 6 == 0;
        attention.mask = Mask::Causal { window: (!is_global).then_some(WINDOW) };
        attention.rope = Some(if is_global { global } else { local });
    });
    TransformerSpec {
        embedding_scale: 1152f32.sqrt(),
        ropes: ropes.into(),
        head: HeadSpec::plain(true),
        ..spec
    }
}

/// DeepSeek-V2-Lite.
fn deepseek_v2_lite() -> TransformerSpec {
    const STRETCH: f32 = 40.0;
    let latent = LatentShape {
        heads: 16,
        query_rank: None,
        rank: 512,
        nope_dim: 128,
        rope_dim: 64,
        value_dim: 128,
        split_up: false,
    };
    let yarn = RopeScaling::Yarn {
        factor: STRETCH,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 4096,
        truncate: true,
    };
    // `mscale` and `mscale_all_dim` are equal, so cosine and sine have no factor, and scores have its square.
    let attention = AttentionSpec {
        projection: Projection::Latent(latent),
        scale: 192f32.powf(-0.5) * yarn_magnitude(STRETCH, 0.707).powi(2),
        ..AttentionSpec::causal(HeadShape { heads: 16, kv_heads: 16, head_dim: 192 })
    };
    let layer = LayerSpec {
        order: NormOrder::Pre,
        attention,
        mlp: MlpSpec::Experts(ExpertsSpec {
            shared: Some(SharedExpert { ffn: 2 * 1408, gate: false }),
            ..ExpertsSpec::softmax(64, 6, 1408, false)
        }),
        residual_scale: 1.0,
    };
    let sizes = [102_400, 2048];
    let plain = TransformerSpec::bare("deepseek_v2", sizes, vec![layer; 27], rms(false), 163_840);
    let spec = plain.with_layers(|index, layer| {
        if index == 0 {
            layer.mlp = MlpSpec::gated(10_944, Activation::Silu);
        }
    });
    let ropes = vec![rope(RopeKind::Interleaved, 1e4, 64, yarn)];
    TransformerSpec { ropes, head: HeadSpec::plain(false), ..spec }
}

fn parameters(spec: &TransformerSpec) -> usize {
    spec.weights().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
}

/// Weights of a layer by their names in files, with their shapes.
fn layer_listed(spec: &TransformerSpec, names: &Names, layer: usize) -> Vec<String> {
    let of_layer = |weight: &Weight| matches!(weight.part, Part::Layer(of, _) if of == layer);
    let weights = spec.weights().into_iter().filter(|(weight, _)| of_layer(weight));
    let prefix = names.in_layer(names.prefix, layer, "");
    weights
        .map(|(weight, shape)| {
            let name = names.of(names.prefix, weight);
            let own = name.strip_prefix(&prefix).expect("a layer's weights begin with its number");
            format!("{} {shape:?}", own.trim_end_matches(".weight"))
        })
        .collect()
}

/// Bytes that all layers keep of a sequence of so many tokens.
fn kept_bytes(spec: &TransformerSpec, tokens: usize) -> usize {
    spec.kv_layouts().map(|layout| layout.tokens_kept(tokens) * layout.bytes_per_token(KvType::F16)).sum()
}

#[test]
fn gemma_3_can_be_described_and_run() {
    let spec = gemma3().checked("config.json").unwrap();
    assert_eq!(parameters(&spec), 999_885_952);
    assert_eq!(
        layer_listed(&spec, &Names::GEMMA, 25),
        [
            "input_layernorm [1152]",
            "self_attn.q_proj [1024, 1152]",
            "self_attn.k_proj [256, 1152]",
            "self_attn.v_proj [256, 1152]",
            "self_attn.q_norm [256]",
            "self_attn.k_norm [256]",
            "self_attn.o_proj [1152, 1024]",
            "post_attention_layernorm [1152]",
            "pre_feedforward_layernorm [1152]",
            "mlp.gate_proj [6912, 1152]",
            "mlp.up_proj [6912, 1152]",
            "mlp.down_proj [1152, 6912]",
            "post_feedforward_layernorm [1152]",
        ]
    );
    let ends: Vec<String> = [&spec.weights()[0], spec.weights().last().unwrap()]
        .map(|(weight, shape)| format!("{} {shape:?}", Names::GEMMA.of("model.", *weight)))
        .into();
    assert_eq!(ends, ["model.embed_tokens.weight [262144, 1152]", "model.norm.weight [1152]"]);
    // Five local layers, then a global one.
    let ropes: Vec<f32> =
        spec.layers.iter().map(|layer| spec.ropes[layer.attention.rope.unwrap()].base).collect();
    assert_eq!(ropes[..12], [1e4, 1e4, 1e4, 1e4, 1e4, 1e6, 1e4, 1e4, 1e4, 1e4, 1e4, 1e6]);
    assert_eq!(spec.layers.iter().filter(|layer| layer.attention.window().is_none()).count(), 4);
    // A token takes 1024 bytes of each layer, and 22 layers forget all but the last 512.
    let local = KvLayout::Heads { kv_heads: 1, head_dim: 256, window: Some(512) };
    assert_eq!(spec.kv_layouts().next(), Some(local));
    assert_eq!(kept_bytes(&spec, 512), 26 * 512 * 1024);
    assert_eq!(kept_bytes(&spec, 32_768), (4 * 32_768 + 22 * 512) * 1024);
}

/// Checks an image in a prompt of Gemma 3: the rows of its soft tokens come from the vision model, all others are
/// tokens, and the first token of the answer is drawn by the device.
#[test]
fn a_step_of_gemma_3_takes_rows_that_a_vision_model_made() {
    const SOFT_TOKENS: usize = 256;
    let spec = gemma3();
    let limits = spec.step_limits(512, 2, 2048);
    assert_eq!((limits.kv_groups, limits.width), (spec.kv_groups().count(), 2 * 6912));
    let mut batch = Batch { windows: spec.kv_groups().windows, ..Batch::default() };
    // <bos><start_of_turn>user\n\n\n<start_of_image>, the image, <end_of_image> and eight tokens of a question.
    let before = [2, 105, 2364, 107, 108, 255_999].map(RowSource::Token);
    let after = [256_000, 108, 7, 8, 9, 10, 11, 106, 107].map(RowSource::Token);
    batch.sources.extend(before);
    batch.sources.extend([RowSource::Embedding; SOFT_TOKENS]);
    batch.sources.extend(after);
    let rows = batch.rows();
    batch.push_sequence(rows, rows, |group, index| (group * 64 + index) as u32);
    // A second sequence, which continues with the last step's draw.
    batch.sources.push(RowSource::Sampled(0));
    batch.push_sequence(1, 900, |group, index| (1000 + group * 64 + index) as u32);
    batch.logit_rows = vec![rows as u32 - 1, rows as u32];
    batch.check(&limits, &mut Vec::new());
    let mut last = Draws::default();
    last.put([Some(SampledToken { token: 77, ..SampledToken::default() })].into_iter());
    let tokens: Vec<Option<u32>> = batch.tokens(&last).collect();
    assert!(tokens[before.len()..][..SOFT_TOKENS].iter().all(Option::is_none), "rows of the host");
    assert_eq!(tokens.iter().flatten().count(), before.len() + after.len() + 1);
    assert_eq!(tokens.last(), Some(&Some(77)));
}

#[test]
fn deepseek_v2_lite_can_be_described() {
    let spec = deepseek_v2_lite();
    assert_eq!(parameters(&spec), 15_706_484_224);
    let names = &Names::HUGGING_FACE;
    let attention = [
        "input_layernorm [2048]",
        "self_attn.q_proj [3072, 2048]",
        "self_attn.kv_a_proj_with_mqa [576, 2048]",
        "self_attn.kv_a_layernorm [512]",
        "self_attn.kv_b_proj [4096, 512]",
        "self_attn.o_proj [2048, 2048]",
        "post_attention_layernorm [2048]",
    ];
    let dense = layer_listed(&spec, names, 0);
    assert_eq!(dense[..7], attention);
    let mlp = ["mlp.gate_proj [10944, 2048]", "mlp.up_proj [10944, 2048]", "mlp.down_proj [2048, 10944]"];
    assert_eq!(dense[7..], mlp);
    let sparse = layer_listed(&spec, names, 26);
    assert_eq!(sparse[..7], attention);
    assert_eq!(sparse[7], "mlp.gate [64, 2048]");
    let last_expert = [
        "mlp.experts.63.gate_proj [1408, 2048]",
        "mlp.experts.63.up_proj [1408, 2048]",
        "mlp.experts.63.down_proj [2048, 1408]",
    ];
    assert_eq!(sparse[8 + 3 * 63..8 + 3 * 64], last_expert);
    let shared = [
        "mlp.shared_experts.gate_proj [2816, 2048]",
        "mlp.shared_experts.up_proj [2816, 2048]",
        "mlp.shared_experts.down_proj [2048, 2816]",
    ];
    assert_eq!(sparse[8 + 3 * 64..], shared);
    // GGUF files have the same under other names.
    let in_gguf = layer_listed(&spec, &Names::GGUF, 26);
    assert_eq!(
        in_gguf[1..5],
        ["attn_q [3072, 2048]", "attn_kv_a_mqa [576, 2048]", "attn_kv_a_norm [512]", "attn_kv_b [4096, 512]",]
    );
    assert_eq!(in_gguf.last().unwrap(), "ffn_down_shexp [2048, 2816]");

    // Scores: 1 / sqrt(128 + 64), times the square of 0.1 * 0.707 * ln(40) + 1.
    let LayerSpec { attention, .. } = &spec.layers[0];
    assert!((attention.scale - 0.114_721_3).abs() < 1e-6, "{}", attention.scale);
    assert!(spec.kv_layouts().all(|layout| layout == KvLayout::Latent { rank: 512, rope_dim: 64 }));
    assert_eq!(spec.kv_layouts().next().unwrap().elements_per_token(), 576);
    assert_eq!(kept_bytes(&spec, 1000), 27 * 1000 * 576 * 2);
    // With its heads expanded a token would take nearly nine times that.
    let spread = KvLayout::Heads { kv_heads: 16, head_dim: 160, window: None };
    assert_eq!(spread.elements_per_token(), 5120);
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let refused = |spec: TransformerSpec| spec.checked("config.json").unwrap_err().to_string();
    let gemma = |change: fn(usize, &mut LayerSpec)| refused(gemma3().with_layers(change));
    let experts = |experts: ExpertsSpec| {
        refused(gemma3().with_layers(|_, layer| layer.mlp = MlpSpec::Experts(experts)))
    };
    let softmax = ExpertsSpec::softmax(8, 2, 64, true);
    for (error, expected) in [
        (
            refused(deepseek_v2_lite().with_layers(|_, layer| layer.attention.sinks = true)),
            "latent attention = sinks is not supported",
        ),
        (refused(TransformerSpec { head: HeadSpec::None, ..gemma3() }), "decoder = no head"),
        (
            experts(ExpertsSpec { correction_bias: true, router_bias: true, ..softmax }),
            "experts = a bias of scores beside one of the choice",
        ),
        (
            experts(ExpertsSpec { groups: Some(ExpertGroups { count: 3, used: 2, best: 1 }), ..softmax }),
            "experts: 2 of 8, from 2 of 3 groups",
        ),
        (
            experts(ExpertsSpec { scales_input: true, ..softmax }),
            "experts: an input that is scaled goes to 2, not to one",
        ),
        (gemma(|_, layer| layer.residual_scale = 0.22), "factor on what layers add = 0.22"),
        (
            refused(deepseek_v2_lite().with_layers(|index, layer| {
                if index == 7 {
                    layer.attention =
                        AttentionSpec::causal(HeadShape { heads: 16, kv_heads: 16, head_dim: 192 });
                }
            })),
            "attention heads = other ones in layer 7",
        ),
        (
            gemma(|index, layer| layer.attention.shares = (index == 7).then_some(5)),
            "attention: layer 7 cannot share the keys and values of layer 5",
        ),
        (
            gemma(|index, layer| layer.attention.shares = (index == 7).then_some(8)),
            "attention: layer 7 cannot share the keys and values of layer 8",
        ),
        (
            experts(ExpertsSpec { apart: true, ..softmax }),
            "experts = norms of their own without an MLP beside them",
        ),
        (
            gemma(|index, layer| {
                layer.order = if index == 3 { NormOrder::Post } else { NormOrder::Pre };
            }),
            "norms = Post in layer 3",
        ),
        (gemma(|_, layer| layer.order = NormOrder::PreMlp), "norms = PreMlp in layer 1"),
        (
            gemma(|index, layer| {
                if index == 9 {
                    layer.attention.mask = Mask::Whole { reach: None };
                }
            }),
            "attention = causal in some layers, to both sides in others, as in 9",
        ),
        (
            refused(TransformerSpec { type_vocab: 2, ..gemma3() }),
            "decoder = an embedding of token types is not supported",
        ),
        (
            gemma(|_, layer| {
                layer.attention.mask = Mask::Whole { reach: None };
            }),
            "encoder = a decoder's head is not supported",
        ),
    ] {
        assert!(error.starts_with("config.json: ") && error.contains(expected), "{expected:?} in {error:?}");
    }
}
