//! PL-BERT (arxiv.org/abs/2301.08810): an ALBERT (arxiv.org/abs/1909.11942) over phonemes. All its layers share
//! their weights.

use hanzo_engine_ops::{Activation, HeadShape, KernelError, PointActivation};
use hanzo_engine_runtime::LoadError;

use super::{Kokoro, KokoroConfig};
use crate::nn::{ChannelAffine, DenseWeights, Device, NormWeights, Program, Signal};
use crate::weights::Weights;

/// As in transformers' `AlbertConfig`.
const EPS: f32 = 1e-12;

pub(super) struct Albert {
    words: Vec<f32>,     // (vocab, embedding)
    positions: Vec<f32>, // (positions, embedding), plus the embedding of token type 0
    embedding: usize,
    norm: NormWeights,
    to_hidden: DenseWeights,
    qkv: DenseWeights,
    dense: DenseWeights,
    attention_norm: NormWeights,
    up: DenseWeights,
    down: DenseWeights,
    full_norm: NormWeights,
    layers: usize,
    heads: HeadShape,
}

fn norm(device: &Device, weights: &Weights, name: &str, width: usize) -> Result<NormWeights, LoadError> {
    let affine = ChannelAffine {
        scale: weights.vector(&format!("{name}.weight"), width)?,
        shift: weights.vector(&format!("{name}.bias"), width)?,
    };
    Ok(device.norm(&affine, EPS)?)
}

fn linear(
    device: &Device,
    weights: &Weights,
    names: &[String],
    shape: [usize; 2],
) -> Result<DenseWeights, LoadError> {
    let (mut numbers, mut bias, mut rows, mut cols) = (Vec::new(), Vec::new(), 0, 0);
    for name in names {
        let ([outputs, inputs], part) = weights.shaped(&format!("{name}.weight"), shape)?;
        numbers.extend(part);
        bias.extend(weights.vector(&format!("{name}.bias"), outputs)?);
        (rows, cols) = (rows + outputs, inputs);
    }
    Ok(device.dense(&names[0], [rows, cols], &numbers, Some(&bias))?)
}

impl Albert {
    pub(super) fn load(
        device: &Device,
        weights: &Weights,
        config: &KokoroConfig,
    ) -> Result<Albert, LoadError> {
        let hidden = config.albert_hidden;
        let ([_, embedding], words) = weights.shaped("bert.embeddings.word_embeddings.weight", [0, 0])?;
        let ([places, _], mut positions) =
            weights.shaped("bert.embeddings.position_embeddings.weight", [0, embedding])?;
        if places < config.tokens_max {
            let reason = format!("{places} positions; config.json says {}", config.tokens_max);
            return Err(weights.corrupt("tensor bert.embeddings.position_embeddings.weight", reason));
        }
        let (_, types) = weights.shaped("bert.embeddings.token_type_embeddings.weight", [0, embedding])?;
        for row in positions.chunks_exact_mut(embedding) {
            row.iter_mut().zip(&types).for_each(|(position, kind)| *position += kind);
        }
        let layer = "bert.encoder.albert_layer_groups.0.albert_layers.0";
        let one = |name: &str, shape| linear(device, weights, &[name.to_owned()], shape);
        let up = one(&format!("{layer}.ffn"), [0, hidden])?;
        let inner = up.outputs;
        let qkv = ["query", "key", "value"].map(|part| format!("{layer}.attention.{part}"));
        Ok(Albert {
            words,
            positions,
            embedding,
            norm: norm(device, weights, "bert.embeddings.LayerNorm", embedding)?,
            to_hidden: one("bert.encoder.embedding_hidden_mapping_in", [hidden, embedding])?,
            qkv: linear(device, weights, &qkv, [hidden, hidden])?,
            dense: one(&format!("{layer}.attention.dense"), [hidden, hidden])?,
            attention_norm: norm(device, weights, &format!("{layer}.attention.LayerNorm"), hidden)?,
            up,
            down: one(&format!("{layer}.ffn_output"), [hidden, inner])?,
            full_norm: norm(device, weights, &format!("{layer}.full_layer_layer_norm"), hidden)?,
            layers: config.albert_layers,
            heads: Kokoro::heads(config),
        })
    }

    /// Records the ops to hidden states of tokens, all of which must be in the vocabulary.
    pub(super) fn record(&self, p: &mut Program<'_>, tokens: &[u32]) -> Result<Signal, KernelError> {
        let width = self.embedding;
        let mut sums = Vec::with_capacity(tokens.len() * width);
        for (&token, place) in tokens.iter().zip(self.positions.chunks_exact(width)) {
            let word = &self.words[token as usize * width..][..width];
            sums.extend(word.iter().zip(place).map(|(word, place)| word + place));
        }
        let sums = p.given(&sums, width)?;
        let normed = p.norm(&self.norm, &sums)?;
        let mut x = p.dense(&self.to_hidden, &normed)?;
        p.free(sums);
        p.free(normed);
        for _ in 0..self.layers {
            let qkv = p.dense(&self.qkv, &x)?;
            let seen = p.self_attention(self.heads, &qkv)?;
            let attended = p.dense(&self.dense, &seen)?;
            let normed = p.add_norm(&self.attention_norm, &x, &attended)?;
            let inner = p.dense(&self.up, &normed)?;
            p.activate(PointActivation::Mlp(Activation::GeluTanh), &inner);
            let down = p.dense(&self.down, &inner)?;
            let out = p.add_norm(&self.full_norm, &normed, &down)?;
            let spent = [qkv, seen, attended, normed, inner, down, std::mem::replace(&mut x, out)];
            spent.into_iter().for_each(|value| p.free(value));
        }
        Ok(x)
    }
}
