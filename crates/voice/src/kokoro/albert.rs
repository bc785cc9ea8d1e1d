//! PL-BERT (arxiv.org/abs/2301.08810): an ALBERT (arxiv.org/abs/1909.11942) over phonemes. All its layers share
//! their weights.

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use super::{Kokoro, KokoroConfig};
use crate::nn::{ChannelAffine, Compute, Matrix, Signal, layer_norm, tanh};
use crate::weights::Weights;

/// As in transformers' `AlbertConfig`.
const EPS: f32 = 1e-12;

pub(super) struct Albert {
    words: Vec<f32>,     // (vocab, embedding)
    positions: Vec<f32>, // (positions, embedding), plus the embedding of token type 0
    embedding: usize,
    norm: ChannelAffine,
    to_hidden: Matrix,
    qkv: Matrix,
    dense: Matrix,
    attention_norm: ChannelAffine,
    up: Matrix,
    down: Matrix,
    full_norm: ChannelAffine,
    layers: usize,
    heads: hanzo_engine_kernels::HeadShape,
}

fn affine(weights: &Weights, name: &str, width: usize) -> Result<ChannelAffine, LoadError> {
    Ok(ChannelAffine {
        scale: weights.vector(&format!("{name}.weight"), width)?,
        shift: weights.vector(&format!("{name}.bias"), width)?,
    })
}

fn linear(
    compute: &Compute,
    weights: &Weights,
    names: &[String],
    shape: [usize; 2],
) -> Result<Matrix, LoadError> {
    let (mut numbers, mut bias, mut rows, mut cols) = (Vec::new(), Vec::new(), 0, 0);
    for name in names {
        let ([outputs, inputs], part) = weights.shaped(&format!("{name}.weight"), shape)?;
        numbers.extend(part);
        bias.extend(weights.vector(&format!("{name}.bias"), outputs)?);
        (rows, cols) = (rows + outputs, inputs);
    }
    Ok(compute.pack(&names[0], (rows, cols), &numbers, Some(&bias))?)
}

impl Albert {
    pub(super) fn load(
        compute: &Compute,
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
        let one = |name: &str, shape| linear(compute, weights, &[name.to_owned()], shape);
        let up = one(&format!("{layer}.ffn"), [0, hidden])?;
        let inner = up.rows;
        let qkv = ["query", "key", "value"].map(|part| format!("{layer}.attention.{part}"));
        Ok(Albert {
            words,
            positions,
            embedding,
            norm: affine(weights, "bert.embeddings.LayerNorm", embedding)?,
            to_hidden: one("bert.encoder.embedding_hidden_mapping_in", [hidden, embedding])?,
            qkv: linear(compute, weights, &qkv, [hidden, hidden])?,
            dense: one(&format!("{layer}.attention.dense"), [hidden, hidden])?,
            attention_norm: affine(weights, &format!("{layer}.attention.LayerNorm"), hidden)?,
            up,
            down: one(&format!("{layer}.ffn_output"), [hidden, inner])?,
            full_norm: affine(weights, &format!("{layer}.full_layer_layer_norm"), hidden)?,
            layers: config.albert_layers,
            heads: Kokoro::heads(config),
        })
    }

    /// Hidden states of tokens, all of which must be in the vocabulary.
    pub(super) fn run(&self, compute: &mut Compute, tokens: &[u32]) -> Result<Signal, KernelError> {
        let width = self.embedding;
        let mut x = Signal::zeros(tokens.len(), width);
        for (at, &token) in tokens.iter().enumerate() {
            let (word, place) = (&self.words[token as usize * width..], &self.positions[at * width..]);
            let row = x.row_mut(at).iter_mut().zip(word.iter().zip(place));
            row.for_each(|(out, (word, place))| *out = word + place);
        }
        layer_norm(&mut x, EPS, &self.norm);
        let mut x = compute.linear(&self.to_hidden, &x)?;
        let scale = 1.0 / (self.heads.head_dim as f32).sqrt();
        for _ in 0..self.layers {
            let qkv = compute.linear(&self.qkv, &x)?;
            let seen = compute.attention(&qkv, self.heads, scale)?;
            let mut attended = compute.linear(&self.dense, &seen)?;
            attended.add(&x);
            layer_norm(&mut attended, EPS, &self.attention_norm);
            let mut inner = compute.linear(&self.up, &attended)?;
            let cols = inner.cols;
            compute.rows(&mut inner.data, cols, &|_, piece| {
                piece.iter_mut().for_each(|x| *x = gelu_tanh(*x));
            });
            let mut out = compute.linear(&self.down, &inner)?;
            out.add(&attended);
            layer_norm(&mut out, EPS, &self.full_norm);
            x = out;
        }
        Ok(x)
    }
}

/// GELU with the tanh approximation (`gelu_new`).
fn gelu_tanh(x: f32) -> f32 {
    let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
    0.5 * x * (1.0 + tanh(inner))
}
