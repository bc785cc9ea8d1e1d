//! Texts of Llama 4. Most layers attend within chunks and have a rotary embedding; the others see the whole context,
//! have none, and their queries grow with position. Each token uses one expert and the shared expert.

use super::*;

/// Tokens of the chunks of attention, and of the steps in which queries grow, of GGUF files; llama.cpp assumes this
/// value.
const CHUNK: u32 = 8192;

pub(super) const LLAMA4: Family = Family {
    title: "Llama 4 (text)",
    hugging_face: &[ModelType {
        name: "llama4_text",
        class: "Llama4ForCausalLM",
        names: &Names {
            gate: "feed_forward.gate_proj",
            up: "feed_forward.up_proj",
            down: "feed_forward.down_proj",
            router: "feed_forward.router",
            experts: ExpertNames {
                gate: "feed_forward.experts.{}.gate_proj.weight",
                up: "feed_forward.experts.{}.up_proj.weight",
                down: "feed_forward.experts.{}.down_proj.weight",
                pack: Some(ExpertPack {
                    inputs_first: true,
                    ..ExpertPack::new("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj")
                }),
                ..ExpertNames::NONE
            },
            shared_gate: "feed_forward.shared_expert.gate_proj",
            shared_up: "feed_forward.shared_expert.up_proj",
            shared_down: "feed_forward.shared_expert.down_proj",
            ..Names::HUGGING_FACE
        },
        read: from_settings,
        eps: ("rms_norm_eps", 1e-5),
        rope_kind: RopeKind::Interleaved,
        rope_base: 5e5,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "llama4",
        windows: |keys, layers| {
            // No window: every layer sees everything and rotates. No key: the chunks of training.
            let window = match keys.whole("attention.sliding_window", CONTEXT_TOKENS_MAX)? {
                Some(0) => None,
                _ => Some(CHUNK),
            };
            Ok(every(window, 4, layers))
        },
        scoring: ExpertScoring::Sigmoid,
        normalized: Some(false),
        interleaved: true,
        own_experts: |keys, experts| {
            experts.scales_input = true;
            if keys.whole("expert_shared_feed_forward_length", WIDTH_MAX)?.is_none() {
                experts.shared = Some(SharedExpert { ffn: experts.ffn, gate: false });
            }
            Ok(())
        },
        reads: &[EXPERT_KEYS, LATENT_KEYS, &["interleave_moe_layer_step"]],
        own: chunk,
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/llama4-long"), alone("mixtures/llama4"), alone("mixtures/llama4-plain")],
};

/// If some layers have chunks, all but each fourth rotate queries and keys, and queries of the others grow.
fn chunk(keys: &Keys<'_>, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let chunks = spec.layers.iter().any(|layer| layer.attention.window().is_some());
    // The larger model, of 128 experts, norms neither queries nor keys; no key says so.
    let unit = keys.required("expert_count", EXPERTS_MAX)? != 128;
    let grows = QueryScale { factor: 0.1, every: CHUNK, offset: 1 };
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let turns = !chunks || !(index + 1).is_multiple_of(4);
        let attention = &mut layer.attention;
        attention.rope = turns.then_some(0);
        attention.chunked = chunks && attention.window().is_some();
        attention.query_scale = (!turns).then_some(grows);
        if unit && turns {
            attention.qk_norm = QkNorm::Unit;
        }
    }
    Ok(())
}

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    let heads = base.heads()?;
    let turned = rotated_layers(config, base.layers)?;
    // Layers with chunked attention: as a list says, or those with rotation.
    let (chunked, full): (&[&str], &[&str]) = (&["chunked_attention"], &["full_attention"]);
    let chunked =
        layers_by_type(config, "layer_types", base.layers, chunked, full)?.unwrap_or_else(|| turned.clone());
    // Layers that are mixtures: as a list says, or each nth.
    let each = config.count("interleave_moe_layer_step", LAYERS_MAX)?.unwrap_or(1);
    let sparse = layers_in(config, "moe_layers", base.layers)?;
    let is_dense: Vec<bool> = (0..base.layers)
        .map(|layer| !sparse.as_ref().map_or((layer + 1).is_multiple_of(each), |sparse| sparse[layer]))
        .collect();
    let ffn = config.required("intermediate_size", WIDTH_MAX)?;
    let dense = match is_dense.contains(&true) {
        true => config.required("intermediate_size_mlp", WIDTH_MAX)?,
        false => 0,
    };
    let experts = ExpertsSpec {
        scoring: ExpertScoring::Sigmoid,
        scales_input: true,
        shared: Some(SharedExpert { ffn, gate: false }),
        ..softmax(base, &LOCAL_EXPERTS, false)?
    };
    let mlp = among(is_dense, MlpSpec::gated(dense, base.activation), experts);
    let query_scale = match config.bool("attn_temperature_tuning")?.unwrap_or(true) {
        true => Some(QueryScale {
            factor: config.f32("attn_scale")?.unwrap_or(0.1),
            every: config.count("floor_scale", CONTEXT_TOKENS_MAX)?.unwrap_or(8192) as u32,
            offset: 1,
        }),
        false => None,
    };
    let chunk = match config.settings.get("attention_chunk_size") {
        Some(Value::Null) => None,
        _ => Some(config.count("attention_chunk_size", CONTEXT_TOKENS_MAX)?.unwrap_or(8192) as u32),
    };
    let normed = config.bool("use_qk_norm")?.unwrap_or(true);
    let attention = base.attention(heads)?;
    let rope = base.rope(heads.head_dim)?;
    base.spec(rope, |layer| {
        let attention = AttentionSpec {
            mask: Mask::Causal { window: chunk.filter(|_| chunked[layer]) },
            chunked: chunk.is_some() && chunked[layer],
            qk_norm: if normed && turned[layer] { QkNorm::Unit } else { QkNorm::None },
            query_scale: query_scale.filter(|_| !turned[layer]),
            rope: turned[layer].then_some(0),
            ..attention.clone()
        };
        (attention, mlp(layer))
    })
}
