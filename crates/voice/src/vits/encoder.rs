//! Text encoder: a transformer over symbols, whose attention uses relative positions up to a small distance.

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use super::VitsConfig;
use super::names::NamedWeights;
use crate::nn::{ChannelAffine, Compute, Conv, ConvShape, Matrix, Signal, layer_norm};

pub(super) struct TextEncoder {
    signs: Vec<f32>, // (signs, hidden), scaled
    hidden: usize,
    layers: Vec<EncoderLayer>,
    project: Matrix,
    eps: f32,
}

struct EncoderLayer {
    attention: Attention,
    attention_norm: ChannelAffine,
    up: Conv,
    down: Conv,
    norm: ChannelAffine,
}

struct Attention {
    qkv: Matrix,
    out: Matrix,
    near_keys: Vec<f32>,   // (2 * near + 1, head_dim)
    near_values: Vec<f32>, // same shape
    near: usize,           // maximum relative distance
    heads: usize,
}

/// Geometry that keeps the length, for any kernel.
fn same(kernel: usize) -> ConvShape {
    ConvShape { stride: 1, dilation: 1, padding: ((kernel - 1) / 2, kernel / 2) }
}

impl TextEncoder {
    pub(super) fn load(
        compute: &Compute,
        named: &NamedWeights<'_>,
        config: &VitsConfig,
    ) -> Result<TextEncoder, LoadError> {
        let hidden = config.hidden;
        let mut signs = named.embedding(hidden)?;
        let scale = (hidden as f32).sqrt();
        signs.iter_mut().for_each(|number| *number *= scale);
        let layer = |at: usize| -> Result<EncoderLayer, LoadError> {
            let name = |part: &str| format!("text_encoder.encoder.layers.{at}.{part}");
            let up = named.conv(compute, &name("feed_forward.conv_1"), [config.inner, hidden], same)?;
            Ok(EncoderLayer {
                attention: Attention::load(compute, named, &name("attention"), config)?,
                attention_norm: named.norm(&name("layer_norm"), hidden)?,
                up,
                down: named.conv(compute, &name("feed_forward.conv_2"), [hidden, config.inner], same)?,
                norm: named.norm(&name("final_layer_norm"), hidden)?,
            })
        };
        Ok(TextEncoder {
            signs,
            hidden,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            project: named.linear(compute, "text_encoder.project", [2 * config.latents, hidden])?,
            eps: config.norm_eps,
        })
    }

    /// Number of symbols.
    pub(super) fn signs(&self) -> usize {
        self.signs.len() / self.hidden
    }

    /// Hidden states of symbols, and the means and log deviations of their latents.
    pub(super) fn run(&self, compute: &mut Compute, tokens: &[u32]) -> Result<(Signal, Signal), KernelError> {
        let mut x = Signal::zeros(tokens.len(), self.hidden);
        for (at, &token) in tokens.iter().enumerate() {
            let token = (token as usize).min(self.signs() - 1);
            x.row_mut(at).copy_from_slice(&self.signs[token * self.hidden..][..self.hidden]);
        }
        for layer in &self.layers {
            let mut attended = layer.attention.run(compute, &x)?;
            attended.add(&x);
            layer_norm(&mut attended, self.eps, &layer.attention_norm);
            let mut inner = layer.up.run(compute, &attended)?;
            inner.data.iter_mut().for_each(|x| *x = x.max(0.0));
            let mut out = layer.down.run(compute, &inner)?;
            out.add(&attended);
            layer_norm(&mut out, self.eps, &layer.norm);
            x = out;
        }
        let stats = compute.linear(&self.project, &x)?;
        Ok((x, stats))
    }
}

impl Attention {
    fn load(
        compute: &Compute,
        named: &NamedWeights<'_>,
        name: &str,
        config: &VitsConfig,
    ) -> Result<Attention, LoadError> {
        let hidden = config.hidden;
        let (mut numbers, mut bias) = (Vec::new(), Vec::new());
        for part in ["q_proj", "k_proj", "v_proj"] {
            let (weight, addends) = named.matrix(&format!("{name}.{part}"), [hidden, hidden])?;
            numbers.extend(weight);
            bias.extend(addends);
        }
        let keys_name = format!("{name}.emb_rel_k");
        let ([_, places, head_dim], near_keys) = named.shaped(&keys_name, [1, 0, 0])?;
        let (_, near_values) = named.shaped(&format!("{name}.emb_rel_v"), [1, places, head_dim])?;
        if places % 2 == 0 || head_dim == 0 || !hidden.is_multiple_of(head_dim) {
            return Err(
                named.corrupt(&keys_name, format!("{places} places of {head_dim} numbers, of {hidden}"))
            );
        }
        Ok(Attention {
            qkv: compute.pack(name, (3 * hidden, hidden), &numbers, Some(&bias))?,
            out: named.linear(compute, &format!("{name}.out_proj"), [hidden, hidden])?,
            near_keys,
            near_values,
            near: places / 2,
            heads: hidden / head_dim,
        })
    }

    /// Computes `softmax(q · (k + near key)) · (v + near value)`, row by row, because texts are short.
    fn run(&self, compute: &mut Compute, x: &Signal) -> Result<Signal, KernelError> {
        let qkv = compute.linear(&self.qkv, x)?;
        let (rows, hidden) = (x.rows, x.cols);
        let width = hidden / self.heads;
        let scale = 1.0 / (width as f32).sqrt();
        let mut seen = Signal::zeros(rows, hidden);
        compute.rows(&mut seen.data, hidden, &|first, piece| {
            let mut scores = vec![0.0f32; rows];
            for (index, out) in piece.chunks_exact_mut(hidden).enumerate() {
                let at = first + index;
                for (head, out) in out.chunks_exact_mut(width).enumerate() {
                    let part =
                        |row: usize, side: usize| &qkv.row(row)[side * hidden + head * width..][..width];
                    // Index of the relative position for this row, if within the distance.
                    let near = |row: usize| {
                        (row + self.near).checked_sub(at).filter(|&place| place <= 2 * self.near)
                    };
                    let of = |numbers: &'_ [f32], place: usize| -> std::ops::Range<usize> {
                        debug_assert!((place + 1) * width <= numbers.len());
                        place * width..(place + 1) * width
                    };
                    let query: Vec<f32> = part(at, 0).iter().map(|x| x * scale).collect();
                    for (row, score) in scores.iter_mut().enumerate() {
                        *score = dot(&query, part(row, 1));
                        if let Some(place) = near(row) {
                            *score += dot(&query, &self.near_keys[of(&self.near_keys, place)]);
                        }
                    }
                    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    scores.iter_mut().for_each(|score| *score = (*score - most).exp());
                    let sum: f32 = scores.iter().sum();
                    for (row, score) in scores.iter().enumerate() {
                        let share = score / sum;
                        add_scaled(out, share, part(row, 2));
                        if let Some(place) = near(row) {
                            add_scaled(out, share, &self.near_values[of(&self.near_values, place)]);
                        }
                    }
                }
            }
        });
        compute.linear(&self.out, &seen)
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add_scaled(out: &mut [f32], factor: f32, numbers: &[f32]) {
    out.iter_mut().zip(numbers).for_each(|(out, number)| *out += factor * number);
}
