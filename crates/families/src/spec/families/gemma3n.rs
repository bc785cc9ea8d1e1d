//! Gemma 3n: several parallel streams, of which each layer computes one, and the features of Gemma 4's small models.

use GemmaPart::*;

use super::gemma4::{GemmaSettings, INPUTS, Kinds};
use super::*;

pub(super) const GEMMA3N: Family = Family {
    title: "Gemma 3n (text)",
    hugging_face: &[ModelType {
        name: "gemma3n_text",
        class: "Gemma3nForCausalLM",
        names: &Names {
            gemma: &[
                (InputEmbedding, "embed_tokens_per_layer.weight"),
                (InputProjection, "per_layer_model_projection.weight"),
                (InputProjectionNorm, "per_layer_projection_norm.weight"),
                (InputGate, "per_layer_input_gate.weight"),
                (InputUp, "per_layer_projection.weight"),
                (InputNorm, "post_per_layer_input_norm.weight"),
                (StreamUp(0), "altup_projections.{}.weight"),
                (StreamDown(0), "altup_unembed_projections.{}.weight"),
                (StreamRouter, "altup.modality_router.weight"),
                (StreamRouterNorm, "altup.router_norm.weight"),
                (StreamPrediction, "altup.prediction_coefs.weight"),
                (StreamCorrection, "altup.correction_coefs.weight"),
                (StreamScale, "altup.correct_output_scale"),
                (LaurelDown, "laurel.linear_left.weight"),
                (LaurelUp, "laurel.linear_right.weight"),
                (LaurelNorm, "laurel.post_laurel_norm.weight"),
            ],
            ..Names::GEMMA
        },
        spec: Some(spec),
        ..gemma4::TYPE
    }],
    gguf: &[Architecture {
        name: "gemma3n",
        names: &Names {
            gemma: &[
                (InputEmbedding, "per_layer_token_embd.weight"),
                (InputProjection, "per_layer_model_proj.weight"),
                (InputProjectionNorm, "per_layer_proj_norm.weight"),
                (InputGate, "inp_gate.weight"),
                (InputUp, "proj.weight"),
                (InputNorm, "post_norm.weight"),
                // One matrix of a stack.
                (StreamUp(0), "altup_proj.weight[{}]"),
                (StreamDown(0), "altup_unembd_proj.weight[{}]"),
                (StreamRouter, "altup_router.weight"),
                (StreamRouterNorm, "altup_router_norm.weight"),
                (StreamPrediction, "altup_predict_coef.weight"),
                (StreamCorrection, "altup_correct_coef.weight"),
                (StreamScale, "altup_correct_scale.weight"),
                (LaurelDown, "laurel_l.weight"),
                (LaurelUp, "laurel_r.weight"),
                (LaurelNorm, "laurel_post_norm.weight"),
            ],
            ..Names::GGUF
        },
        ..gemma4::ARCHITECTURE
    }],
    goldens: &[both("dense/gemma3n")],
};

const COUNT: Setting<usize> = count("altup_num_inputs", "altup.num_inputs", LAYERS_MAX).or_of_class(4);
const ACTIVE: Setting<usize> = count("altup_active_idx", "altup.active_idx", LAYERS_MAX);

fn spec(base: &Base<'_>) -> Result<TransformerSpec, LoadError> {
    let (count, active) = (base.file.required(&COUNT)?, base.file.whole(&ACTIVE)?);
    let (parts, streams) = match base.file {
        SettingsFile::HuggingFace(config) => {
            let streams = StreamsSpec {
                count,
                active,
                scaled: config.bool("altup_correct_scale")?.unwrap_or(true),
                laurel_rank: config.count("laurel_rank", WIDTH_MAX)?.unwrap_or(64),
                outliers: outliers(config, base.layers)?,
            };
            (of_settings(base, config)?, streams)
        }
        SettingsFile::Gguf(keys) => {
            (gemma4::of_metadata(base, keys)?, streams(keys, base.layers, [count, active])?)
        }
    };
    Ok(TransformerSpec { streams: Some(streams), ..gemma4::network(base, parts)? })
}

fn of_settings(base: &Base<'_>, config: &Config) -> Result<GemmaSettings, LoadError> {
    let layers = base.layers;
    let shape = HeadShape {
        heads: config.required("num_attention_heads", HEADS_MAX)?,
        kv_heads: config.count("num_key_value_heads", HEADS_MAX)?.unwrap_or(2),
        head_dim: config.count("head_dim", HEAD_DIM_MAX)?.unwrap_or(256),
    };
    // Tokens past the table's end, those of images and sound, use the row of padding.
    config.count("vocab_size_per_layer_input", VOCAB_MAX)?;
    let rope = |kind, key, usual| rope(config, shape.head_dim, kind, key, usual);
    Ok(GemmaSettings {
        kinds: Kinds {
            windows: gemma4::windows(config, layers, 5)?,
            heads: [shape; 2],
            sharing: gemma4::sharing(base, &gemma4::SHARING.or_of_class(15))?,
        },
        values_are_keys: vec![false; layers],
        ffn: widths(config, layers)?,
        ropes: [rope(gemma4::FULL, "rope_theta", 1e6)?, rope(gemma4::SLIDING, "rope_local_base_freq", 1e4)?],
        inputs: config.count(INPUTS, WIDTH_MAX)?.unwrap_or(256),
        softcap: Some(config.positive("final_logit_softcapping")?.unwrap_or(30.0)),
    })
}

/// Rotary embedding of a kind of layers, with the older key of its base and the default.
fn rope(config: &Config, head_dim: usize, kind: &str, key: &str, usual: f32) -> Result<RopeSpec, LoadError> {
    let settings = match config.object("rope_parameters")? {
        Some(settings) => settings.object(kind)?,
        None => None,
    };
    let stretched = config.object("rope_scaling")?.filter(|_| kind == gemma4::FULL);
    for settings in settings.iter().chain(&stretched) {
        if let Some(named) = settings.string("rope_type")?.filter(|named| *named != "default") {
            return Err(settings.unsupported("rope_type", named, "default is known here"));
        }
    }
    let own = settings.map(|settings| settings.positive("rope_theta")).transpose()?.flatten();
    let base = own.or(config.positive(key)?).unwrap_or(usual);
    Ok(RopeSpec::plain(RopeKind::Neox, base, head_dim))
}

/// MLP width of each layer: a list, or one number for all.
fn widths(config: &Config, layers: usize) -> Result<Vec<usize>, LoadError> {
    const KEY: &str = "intermediate_size";
    let Some(Value::Array(list)) = config.get(KEY) else {
        return Ok(vec![config.count(KEY, WIDTH_MAX)?.unwrap_or(16_384); layers]);
    };
    let width = |value: &Value| {
        let width = value.as_u64().and_then(|width| usize::try_from(width).ok());
        width.filter(|width| (1..=WIDTH_MAX).contains(width))
    };
    match list.iter().map(width).collect::<Option<Vec<usize>>>() {
        Some(widths) if widths.len() == layers => Ok(widths),
        Some(widths) => Err(config.corrupt(KEY, format!("{} numbers for {layers} layers", widths.len()))),
        None => Err(config.corrupt(KEY, format!("a number is not from 1 to {WIDTH_MAX}"))),
    }
}

/// Threshold of each layer's gate above its mean, in standard deviations, such that the given share of a normal
/// distribution exceeds it.
fn outliers(config: &Config, layers: usize) -> Result<Vec<Option<f32>>, LoadError> {
    const KEY: &str = "activation_sparsity_pattern";
    let share = |value: &Value| value.as_f64().filter(|share| (0.0..1.0).contains(share));
    let shares = match config.get(KEY) {
        None => (0..layers).map(|layer| if layers > 10 && layer < 10 { 0.95 } else { 0.0 }).collect(),
        Some(Value::Array(list)) => {
            let shares = list.iter().map(share).collect::<Option<Vec<f64>>>();
            shares.ok_or_else(|| config.corrupt(KEY, "a number is not from 0 to below 1"))?
        }
        Some(value) => {
            vec![share(value).ok_or_else(|| config.corrupt(KEY, "it is not from 0 to below 1"))?; layers]
        }
    };
    if shares.len() != layers {
        return Err(config.corrupt(KEY, format!("{} numbers for {layers} layers", shares.len())));
    }
    Ok(shares.into_iter().map(|share| (share > 0.0).then(|| deviations(share))).collect())
}

/// Number of standard deviations below which a share of a normal distribution lies.
fn deviations(share: f64) -> f32 {
    // `1/2 + φ(x) Σ xⁿ / n!!` over odd n.
    let below = |x: f64| {
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term.abs() > sum.abs() * 1e-17 {
            n += 2.0;
            term *= x * x / n;
            sum += term;
        }
        0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
    };
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        if below(middle) < share { low = middle } else { high = middle }
    }
    low as f32
}

/// Streams of a GGUF file.
fn streams(keys: &Keys<'_>, layers: usize, [count, active]: [usize; 2]) -> Result<StreamsSpec, LoadError> {
    const SCALE: &str = "activation_sparsity_scale";
    let name_of = |part| keys.of.names.of("", Part::Layer(0, LayerPart::Gemma(part)).weight());
    let find = |part| keys.find(&name_of(part));
    let rank = find(LaurelDown).map(|tensor| tensor.shape[0]);
    let Some(laurel_rank) = rank else {
        let what = format!("tensor {}", name_of(LaurelDown));
        return Err(LoadError::Missing { file: keys.metadata.file().to_owned(), what, hint: String::new() });
    };
    let key = keys.key(SCALE);
    let outliers = match keys.metadata.get(&key) {
        Some(gguf::Value::Array(gguf::Array::F32(list))) if list.len() == layers => {
            // A threshold of -∞: all numbers count.
            list.iter().map(|&many| Some(many).filter(|many| *many > f32::NEG_INFINITY)).collect()
        }
        Some(value) => return Err(keys.unsupported(SCALE, value, "a number for each layer is known")),
        None => return Err(keys.metadata.missing(&key)),
    };
    Ok(StreamsSpec { count, active, scaled: find(StreamScale).is_some(), laurel_rank, outliers })
}

#[cfg(test)]
mod tests {
    #[test]
    fn deviations_are_those_of_tables() {
        for (share, expected) in [(0.5, 0.0), (0.95, 1.644_853_6), (0.841_344_746, 1.0), (0.025, -1.959_964)]
        {
            let found = super::deviations(share);
            assert!((found - expected).abs() < 1e-6, "{share}: {found}");
        }
    }
}
