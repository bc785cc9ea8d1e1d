//! BERT and the families that differ from it in names, positions or the MLP: RoBERTa, DistilBERT, MPNet, GTE, Jina.

use hanzo_engine_ops::{Activation, RopeKind};

use super::{
    Plan, SIZE_KEYS, SizeKeys, activation, dense, dense_classifier, epsilon, gated, masked_lm, only, plain,
    post_norm, refuse, saved_rope, type_vocab, with_positions,
};
use crate::error::LoadError;
use crate::head::HeadActivation;
use crate::limits::{HEADS_MAX, VOCAB_MAX};
use crate::spec::{
    Alibi, Config, Distance, GateUp, Names, NormOrder, QkNorm, RopeScaling, RopeSpec, TransformerSpec,
};

const POSITIONS: &str = "position_embedding_type";

const BERT: Names = Names {
    prefix: "bert.",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
    lm_dense: "cls.predictions.transform.dense",
    lm_norm: "cls.predictions.transform.LayerNorm",
    head: "cls.predictions.decoder",
    head_bias: "cls.predictions.bias",
    ..Names::NONE
};

const ROBERTA: Names = Names {
    prefix: "roberta.",
    lm_dense: "lm_head.dense",
    lm_norm: "lm_head.layer_norm",
    head: "lm_head.decoder",
    head_bias: "lm_head.bias",
    ..BERT
};

const MPNET: Names = Names {
    prefix: "mpnet.",
    query: "attention.attn.q",
    key: "attention.attn.k",
    value: "attention.attn.v",
    attention_output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    distance_bias: "encoder.relative_attention_bias",
    ..ROBERTA
};

const DISTILBERT: Names = Names {
    prefix: "distilbert.",
    layer: "transformer.layer.",
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    attention_output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    mlp_norm: "output_layer_norm",
    lm_dense: "vocab_transform",
    lm_norm: "vocab_layer_norm",
    head: "vocab_projector",
    head_bias: "vocab_projector.bias",
    ..Names::NONE
};

const GTE: Names = Names {
    prefix: "new.",
    qkv: Some("attention.qkv_proj"),
    query: "attention.q_proj",
    key: "attention.k_proj",
    value: "attention.v_proj",
    attention_output: "attention.o_proj",
    attention_norm: "attn_ln",
    gate_up: Some(GateUp { name: "mlp.up_gate_proj", gate_first: false }),
    down: "mlp.down_proj",
    mlp_norm: "mlp_ln",
    lm_dense: "lm_head.dense",
    lm_norm: "lm_head.norm",
    head: "lm_head.decoder",
    head_bias: "lm_head.decoder.bias",
    ..Names::NONE
};

const JINA: Names = Names {
    gate_up: Some(GateUp { name: "mlp.gated_layers", gate_first: true }),
    gate: "mlp.gate",
    up: "mlp.up",
    down: "mlp.wo",
    mlp_norm: "mlp.layernorm",
    ..BERT
};

/// What opening sets where a file has [`JINA_CODE_TENSOR`].
pub(in crate::encoder) const JINA_CODE_KEY: &str = "layer_norm_q";
/// How the names of tensors end that only Jina's models for code have.
pub(in crate::encoder) const JINA_CODE_TENSOR: &str = ".attention.self.layer_norm_q.weight";

/// Jina's models for code.
const JINA_CODE: Names = Names {
    query_norm: "attention.self.layer_norm_q",
    key_norm: "attention.self.layer_norm_k",
    attention_post_norm: "attention.output.LayerNorm",
    attention_norm: "layer_norm_1",
    gate_up: Some(GateUp { name: "mlp.up_gated_layer", gate_first: false }),
    down: "mlp.down_layer",
    mlp_norm: "layer_norm_2",
    ..JINA
};

const BERT_HEADS: &[&str] = &["pooler.", "cls.", "classifier."];
const ROBERTA_HEADS: &[&str] = &["pooler.", "lm_head.", "classifier."];

pub(super) fn bert(config: &Config) -> Result<Plan, LoadError> {
    only(config, POSITIONS, "absolute")?;
    let activation = activation(config, "hidden_act", "gelu")?;
    let eps = epsilon(config, "layer_norm_eps", 1e-12)?;
    let spec = TransformerSpec {
        type_vocab: type_vocab(config, 2)?,
        ..with_positions(post_norm(config, &SIZE_KEYS, eps, plain(activation))?, 0)
    };
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names: BERT,
        classifier: dense_classifier(dense("pooler.dense", true, HeadActivation::Tanh), "classifier"),
        masked_lm: masked_lm(config, activation)?,
        heads: BERT_HEADS,
    })
}

/// RoBERTa, XLM-RoBERTa and CamemBERT: positions begin behind the padding token's.
pub(super) fn roberta(config: &Config) -> Result<Plan, LoadError> {
    only(config, POSITIONS, "absolute")?;
    let mlp = plain(activation(config, "hidden_act", "gelu")?);
    let eps = epsilon(config, "layer_norm_eps", 1e-12)?;
    let pad = config.whole("pad_token_id", VOCAB_MAX)?.unwrap_or(1) as u32;
    let spec = TransformerSpec {
        type_vocab: type_vocab(config, 2)?,
        ..with_positions(post_norm(config, &SIZE_KEYS, eps, mlp)?, pad + 1)
    };
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names: ROBERTA,
        classifier: dense_classifier(
            dense("classifier.dense", false, HeadActivation::Tanh),
            "classifier.out_proj",
        ),
        // Its non-linearity is not a setting.
        masked_lm: masked_lm(config, Activation::GeluErf)?,
        heads: ROBERTA_HEADS,
    })
}

/// Positions begin at row 2, whatever the padding token.
pub(super) fn mpnet(config: &Config) -> Result<Plan, LoadError> {
    const BUCKETS: &str = "relative_attention_num_buckets";
    let mlp = plain(activation(config, "hidden_act", "gelu")?);
    let eps = epsilon(config, "layer_norm_eps", 1e-12)?;
    let buckets = config.count(BUCKETS, HEADS_MAX)?.unwrap_or(32);
    if buckets < 4 || !buckets.is_multiple_of(4) {
        return Err(config.unsupported(
            BUCKETS,
            buckets,
            "a multiple of four can be split by sign and by half",
        ));
    }
    let spec = TransformerSpec {
        // From 128 tokens on all distances are alike, which is no setting.
        distance: Distance::Learned { buckets, distance_max: 128 },
        ..with_positions(post_norm(config, &SIZE_KEYS, eps, mlp)?, 2)
    };
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names: MPNET,
        classifier: dense_classifier(
            dense("classifier.dense", false, HeadActivation::Tanh),
            "classifier.out_proj",
        ),
        masked_lm: masked_lm(config, Activation::GeluErf)?,
        heads: ROBERTA_HEADS,
    })
}

pub(super) fn distilbert(config: &Config) -> Result<Plan, LoadError> {
    const KEYS: SizeKeys = SizeKeys {
        hidden: "dim",
        layers: "n_layers",
        heads: "n_heads",
        ffn: "hidden_dim",
        positions: "max_position_embeddings",
        head_dim: None,
    };
    let activation = activation(config, "activation", "gelu")?;
    // Its epsilon is no setting. Sinusoidal positions are stored like learned ones.
    let spec = post_norm(config, &KEYS, 1e-12, plain(activation))?;
    Ok(Plan {
        spec: with_positions(spec, 0).checked(&config.file)?,
        names: DISTILBERT,
        classifier: dense_classifier(dense("pre_classifier", false, HeadActivation::Relu), "classifier"),
        masked_lm: masked_lm(config, activation)?,
        heads: &[
            "pre_classifier.",
            "classifier.",
            "vocab_transform.",
            "vocab_layer_norm.",
            "vocab_projector.",
        ],
    })
}

/// GTE's own class, `New` or `Gte`: rotary positions, a gated MLP.
pub(super) fn gte(config: &Config) -> Result<Plan, LoadError> {
    only(config, POSITIONS, "rope")?;
    only(config, "layer_norm_type", "layer_norm")?;
    refuse(config, &["logn_attention_scale", "logn_attention_clip1"])?;
    let activation = activation(config, "hidden_act", "gelu")?;
    let eps = epsilon(config, "layer_norm_eps", 1e-12)?;
    let spec = post_norm(config, &SIZE_KEYS, eps, gated(activation, true))?;
    let spec = TransformerSpec {
        type_vocab: type_vocab(config, 1)?,
        ropes: vec![gte_rope(config, spec.heads().head_dim)?],
        ..spec.with_layers(|_, layer| layer.attention.rope = Some(0))
    };
    let packed = config.bool("pack_qkv")?.unwrap_or(true);
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names: Names { qkv: GTE.qkv.filter(|_| packed), ..GTE },
        classifier: dense_classifier(dense("pooler.dense", true, HeadActivation::Tanh), "classifier"),
        masked_lm: masked_lm(config, activation)?,
        heads: &["pooler.", "lm_head.", "classifier."],
    })
}

/// The library's class keeps it in `rope_parameters`; elsewhere its stretch by `ntk` is a larger base and a smaller factor on all frequencies, whatever the input's length.
fn gte_rope(config: &Config, head_dim: usize) -> Result<RopeSpec, LoadError> {
    if let Some(rope) = saved_rope(config, 160_000.0, head_dim)? {
        return Ok(rope);
    }
    let mut base = config.positive("rope_theta")?.unwrap_or(10_000.0);
    let mut scaling = RopeScaling::None;
    if let Some(settings) = config.object("rope_scaling")? {
        for (key, value) in &settings.settings {
            if !["type", "factor", "mixed_b"].contains(&key.as_str()) {
                return Err(settings.unsupported(key, value, "this build does not know what to do with it"));
            }
        }
        refuse(&settings, &["mixed_b"])?;
        match settings.string("type")?.ok_or_else(|| settings.missing("type"))? {
            "ntk" => {}
            other => return Err(settings.unsupported("type", other, "ntk is known")),
        }
        let factor = settings.positive("factor")?.ok_or_else(|| settings.missing("factor"))?;
        if factor > 1.0 {
            base *= factor;
            scaling = RopeScaling::Linear { factor: factor.powf(2.0 / head_dim as f32) };
        }
    }
    Ok(RopeSpec {
        kind: RopeKind::Neox,
        base,
        dim: head_dim,
        scaling,
        factors: None,
        magnitude: 1.0,
        axes: None,
        long: None,
    })
}

/// Jina's BERT: slopes over distances in place of positions, a gated MLP; its models for code norm queries and keys, and
/// what attention gives twice. No setting says which of the two it is ([`JINA_CODE_KEY`]).
pub(super) fn jina(config: &Config) -> Result<Plan, LoadError> {
    only(config, POSITIONS, "alibi")?;
    let code = config.bool(JINA_CODE_KEY)?.unwrap_or(false);
    let hidden_act = activation(config, "hidden_act", "gelu")?;
    let kind = config.string("feed_forward_type")?.unwrap_or("original");
    let (mlp, names) = match kind {
        "geglu" | "reglu" => {
            let activation = if kind == "geglu" { Activation::GeluErf } else { Activation::Relu };
            let names = if code { JINA_CODE } else { JINA };
            (gated(activation, true), names)
        }
        "original" if !code => (plain(hidden_act), BERT),
        other => {
            let known =
                if code { "geglu and reglu are known" } else { "original, geglu and reglu are known" };
            return Err(config.unsupported("feed_forward_type", other, known));
        }
    };
    let eps = epsilon(config, "layer_norm_eps", 1e-12)?;
    let spec = TransformerSpec {
        architecture: "jina_bert".into(),
        type_vocab: type_vocab(config, 2)?,
        distance: Distance::Alibi(Alibi::PLAIN),
        ..post_norm(config, &SIZE_KEYS, eps, mlp)?
    };
    let spec = match code {
        true => spec.with_layers(|_, layer| {
            (layer.order, layer.attention.qk_norm) = (NormOrder::PostTwice, QkNorm::Whole);
        }),
        false => spec,
    };
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names,
        classifier: dense_classifier(dense("pooler.dense", true, HeadActivation::Tanh), "classifier"),
        masked_lm: masked_lm(config, hidden_act)?,
        heads: BERT_HEADS,
    })
}
