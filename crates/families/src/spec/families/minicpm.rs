//! MiniCPM 1 to 3: factors on embeddings, logits and sublayers; the third has latent attention.

use super::*;

pub(super) const MINICPM: Family = Family {
    title: "MiniCPM 1, 2",
    hugging_face: &[ModelType {
        name: "minicpm",
        class: "MiniCPMForCausalLM",
        tied: true,
        own: |config, spec| {
            Factors {
                embedding: config.positive("scale_emb")?.unwrap_or(1.0),
                base: config.positive("dim_model_base")?,
                depth: Some(config.positive("scale_depth")?.unwrap_or(1.0)),
            }
            .set(spec);
            Ok(())
        },
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "minicpm",
        logit_scale: LogitScale::Divisor,
        required: &["embedding_scale", "logit_scale", "residual_scale"],
        ..Architecture::PERMUTED
    }],
    goldens: &[both("dense/minicpm")],
};

pub(super) const MINICPM3: Family = Family {
    title: "MiniCPM 3",
    hugging_face: &[ModelType {
        name: "minicpm3",
        class: "MiniCPM3ForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        biases: Choice::NEVER,
        tied: true,
        settle: |config| {
            // Only the rotated part of a head counts for the rotary embedding.
            config.set("head_dim", config.required("qk_rope_head_dim", HEAD_DIM_MAX)?.into());
            Ok(())
        },
        own: latent_of_settings,
        refused: &["attention_bias", "mlp_bias"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "minicpm3",
        reads: &[DENSE_KEYS, &["attention.kv_lora_rank", "attention.q_lora_rank"]],
        own: latent_of_metadata,
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/minicpm3")],
};

/// Factors of a model.
struct Factors {
    /// Factor on embeddings.
    embedding: f32,
    /// Numerator of the factor on logits, over the hidden size.
    base: Option<f32>,
    /// Numerator of the factor on what sublayers add, over the square root of the number of layers.
    depth: Option<f32>,
}

impl Factors {
    /// Factors of MiniCPM 3, which GGUF files do not contain.
    const THIRD: Factors = Factors { embedding: 12.0, base: Some(256.0), depth: Some(1.4) };

    fn set(&self, spec: &mut TransformerSpec) {
        spec.embedding_scale = self.embedding;
        set_logits(spec, self.base.map_or(1.0, |base| base / spec.hidden as f32), None);
        let residual = self.depth.map_or(1.0, |depth| depth / (spec.layers.len() as f32).sqrt());
        spec.layers.iter_mut().for_each(|layer| layer.residual_scale = residual);
    }
}

/// Epsilon of the class for norms of latents, whatever that of the other norms is.
const LATENT_EPS: f32 = 1e-6;

/// Gives all layers latent attention, whose rotation pairs the halves of a head.
fn set_latent(spec: &mut TransformerSpec, shape: LatentShape) {
    for layer in &mut spec.layers {
        layer.attention.projection = Projection::Latent(shape);
        layer.attention.scale = 1.0 / (shape.query_dim() as f32).sqrt();
        layer.attention.latent_eps = Some(LATENT_EPS);
    }
}

fn latent_of_settings(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let third = Factors::THIRD;
    Factors {
        embedding: config.positive("scale_emb")?.unwrap_or(third.embedding),
        base: unless_null(config, "dim_model_base", third.base)?,
        depth: unless_null(config, "scale_depth", third.depth)?,
    }
    .set(spec);
    let file = SettingsFile::from(config);
    let heads = file.required(&HEADS)?;
    let shape = LatentShape {
        heads,
        // Published files have it; null means that there is none.
        query_rank: file.count(&QUERY_RANK)?,
        rank: file.required(&LATENT_RANK)?,
        nope_dim: config.required("qk_nope_head_dim", HEAD_DIM_MAX)?,
        rope_dim: config.required("qk_rope_head_dim", HEAD_DIM_MAX)?,
        value_dim: match config.count("v_head_dim", HEAD_DIM_MAX)? {
            Some(length) => length,
            None => spec.hidden / heads,
        },
        split_up: false,
    };
    set_latent(spec, shape);
    Ok(())
}

/// Sets the latent shape and the factors, for which the format has no keys. Values have the length that hidden states
/// imply.
fn latent_of_metadata(keys: &Keys<'_>, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let file = SettingsFile::from(keys);
    let whole = spec.heads();
    let rope_dim = spec.ropes[0].dim;
    let Some(nope_dim) = whole.head_dim.checked_sub(rope_dim).filter(|&left| left > 0) else {
        let reason = format!("{rope_dim} of it are turned, and none is left");
        return Err(keys.unsupported("attention.key_length", whole.head_dim, &reason));
    };
    let shape = LatentShape {
        heads: whole.heads,
        query_rank: file.count(&QUERY_RANK)?,
        rank: file.required(&LATENT_RANK)?,
        nope_dim,
        rope_dim,
        value_dim: spec.hidden / whole.heads,
        split_up: false,
    };
    set_latent(spec, shape);
    Factors::THIRD.set(spec);
    Ok(())
}
