//! Checks of latent attention: products of each head with its matrix, writing to the cache, and attention over it.

use super::bounds::{CaseErrors, dot_sigma, operand_sigma, same_bits};
use super::random::Random;
use super::rig::{Rig, ok, rows_batch};
use super::weights::Weights;
use crate::reference::formulas::{attend, dot, rms_norm, rotate, score};
use crate::{
    AnyBackend, Batch, DType, HeadShape, KvLayout, KvSpec, KvType, LatentHeads, LatentParams, Rope, RopeKind,
    Rounding, RowSource, StepLimits,
};

const EPS: f32 = 1e-5;
const STEP_ROWS_MAX: usize = 200;

/// Checks `heads_matmul` for every float type, with ragged and with DeepSeek's shapes.
///
/// # Panics
/// If a number is out of bounds, a number that stays has changed, or a bit depends on the batch.
pub fn check_heads_matmul(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(71);
    for (heads, outputs, cols, rest) in [(3, 20, 12, 7), (16, 512, 128, 64), (16, 128, 512, 0)] {
        let width = heads * (outputs + cols);
        let limits = StepLimits { heads_matmul_width: width, ..limits(heads, outputs.max(cols), 1) };
        let mut rig = Rig::new(make(), &limits);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            if !rig.backend.supports(dtype) {
                continue;
            }
            let weights: Vec<Weights> =
                (0..heads).map(|_| Weights::random(dtype, outputs, cols, &mut random)).collect();
            let packed: Vec<crate::Matrix> =
                weights.iter().map(|of| rig.matrix(std::slice::from_ref(of))).collect();
            let packed = rig.backend.heads(packed);
            let (x_cols, out_cols) = (heads * (cols + rest), heads * (outputs + rest));
            let rows = 130;
            let mut x = random.normals(rows * x_cols);
            super::bounds::hold(rig.rounding, &mut x);
            let mut run = |x: &[f32]| {
                let rows = x.len() / x_cols;
                let (buffer, mut out) = (rig.upload(x, x_cols), rig.blank(rows, out_cols));
                rig.step(&rows_batch(&vec![0; rows]), |rig| {
                    rig.backend.heads_matmul(&packed, &buffer, &mut out)
                });
                rig.download("heads_matmul", &out, rows, out_cols)
            };
            let all = run(&x);
            let what = format!("heads_matmul of {heads} {dtype} [{outputs}, {cols}], {rest} more");
            for row in [0, 77] {
                let found = run(&x[row * x_cols..][..x_cols]);
                same_bits(&what, &found, &all[row * out_cols..][..out_cols], out_cols);
            }
            let mut errors = CaseErrors::of_operands(what.clone(), rig.rounding);
            for row in [0, 1, 63, 64, 129] {
                for (head, weights) in weights.iter().enumerate() {
                    let x = &x[(row * heads + head) * (cols + rest)..][..cols + rest];
                    let found = &all[(row * heads + head) * (outputs + rest)..][..outputs + rest];
                    for (output, &found) in found[..outputs].iter().enumerate() {
                        let (of, x) = (weights.row(output), &x[..cols]);
                        let sigma = dot_sigma(rig.rounding, of, x, false);
                        errors.check(row, output, found, dot(of, x) as f32, sigma, 1e-30);
                    }
                    same_bits(&format!("{what}: what stays"), &found[outputs..], &x[cols..], rest.max(1));
                }
            }
            errors.finish();
        }
    }
}

fn limits(heads: usize, head_dim: usize, sequences: usize) -> StepLimits {
    StepLimits {
        rows: STEP_ROWS_MAX,
        sequences,
        logit_rows: 0,
        context: 1024,
        width: 64,
        vocab: 1,
        heads: HeadShape { heads, kv_heads: 1, head_dim },
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// Checks `latent_to_cache` and `latent_attention` with short and long sequences, cut in every way, for every cache
/// type.
///
/// # Panics
/// If a number is out of bounds, or a bit depends on the batch or on how a prompt was cut.
pub fn check_latent_attention(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(72);
    let ragged = LatentHeads { heads: 3, rank: 20, rope_dim: 8 };
    let small = LatentHeads { heads: 5, rank: 32, rope_dim: 32 };
    let lite = LatentHeads { heads: 16, rank: 512, rope_dim: 64 };
    for (shape, kv_type, lengths) in [
        (ragged, KvType::F16, vec![1, 40, 3]),
        (small, KvType::Q8_0, vec![70, 17]),
        (small, KvType::F16, vec![700, 5, 129]),
        (lite, KvType::F16, vec![150]),
        (lite, KvType::Q8_0, vec![90]),
        (ragged, KvType::Fp8, vec![70, 3]),
    ] {
        let what = format!("latent attention, {shape:?}, {kv_type}");
        let play = Play::random(shape, kv_type, &lengths, &mut random);
        let whole = play.run(make(), |_| vec![0]);
        play.check(&what, make().facts().rounding, &whole);
        for (cut, name) in [(1, "one by one"), (7, "seven at a time"), (64, "in tiles")] {
            if cut == 1 && lengths[0] > 200 {
                continue;
            }
            let found = play.run(make(), |length| (0..length).step_by(cut).collect());
            for (found, whole) in found.iter().zip(&whole) {
                same_bits(&format!("{what}, {name}"), found, whole, shape.heads * shape.rank);
            }
        }
    }
}

/// Sequences with known latents and queries.
struct Play {
    shape: LatentHeads,
    kv_type: KvType,
    lengths: Vec<usize>,
    blocks: Vec<u32>,       // (blocks), shuffled; sequence s has those from s * 64 on
    latents: Vec<Vec<f32>>, // (position, rank + rope_dim) of each sequence
    queries: Vec<Vec<f32>>, // (position, heads, rank + rope_dim) of each
    norm: Vec<f32>,
    inv_freq: Vec<f32>,
}

const SCALE: f32 = 0.11;
const MAGNITUDE: f32 = 1.1;

impl Play {
    fn random(shape: LatentHeads, kv_type: KvType, lengths: &[usize], random: &mut Random) -> Self {
        let width = shape.width();
        let blocks = random.permutation(64 * lengths.len()).into_iter().map(|block| block as u32).collect();
        let small = |mut values: Vec<f32>| {
            values.iter_mut().for_each(|q| *q *= 0.6);
            values
        };
        Self {
            shape,
            kv_type,
            lengths: lengths.to_vec(),
            blocks,
            latents: lengths.iter().map(|length| random.normals(length * width)).collect(),
            queries: lengths
                .iter()
                .map(|length| small(random.normals(length * shape.heads * width)))
                .collect(),
            norm: random.normals(shape.rank).iter().map(|w| 1.0 + 0.3 * w).collect(),
            inv_freq: (0..shape.rope_dim / 2).map(|pair| 0.7f32.powi(pair as i32)).collect(),
        }
    }

    /// Attention output of each sequence, `(position, heads * rank)`, cut at `starts`. A step takes the next part of
    /// every sequence that has one.
    fn run(&self, backend: AnyBackend, starts: impl Fn(usize) -> Vec<usize>) -> Vec<Vec<f32>> {
        let (shape, width) = (self.shape, self.shape.width());
        let mut rig = Rig::new(backend, &limits(shape.heads, width, self.lengths.len()));
        let spec = KvSpec {
            layers: vec![KvLayout::Latent { rank: shape.rank, rope_dim: shape.rope_dim }; 2],
            blocks: self.blocks.len(),
            kv_type: self.kv_type,
            ..KvSpec::default()
        };
        let mut kv = ok("kv", rig.backend.kv(&spec));
        let (norm, inv_freq) = (rig.vector(&self.norm), rig.vector(&self.inv_freq));
        let mut out = vec![Vec::new(); self.lengths.len()];
        let mut done = vec![0; self.lengths.len()];
        while (0..done.len()).any(|sequence| done[sequence] < self.lengths[sequence]) {
            let mut batch = Batch::default();
            let (mut latents, mut queries, mut parts) = (Vec::new(), Vec::new(), Vec::new());
            for (sequence, &length) in self.lengths.iter().enumerate() {
                let first = done[sequence];
                let cuts = starts(length);
                let next = cuts.iter().copied().find(|&start| start > first).unwrap_or(length);
                let rows = (next - first).min(STEP_ROWS_MAX / self.lengths.len());
                if rows == 0 {
                    continue;
                }
                batch.sources.extend(vec![RowSource::Token(0); rows]);
                batch.push_sequence(rows, first + rows, |_, index| self.blocks[sequence * 64 + index]);
                latents.extend_from_slice(&self.latents[sequence][first * width..][..rows * width]);
                let each = shape.heads * width;
                queries.extend_from_slice(&self.queries[sequence][first * each..][..rows * each]);
                parts.push((sequence, rows));
                done[sequence] += rows;
            }
            let rows = batch.rows();
            let mut latent = rig.upload(&latents, width);
            let mut query = rig.upload(&queries, shape.heads * width);
            let mut attended = rig.blank(rows, shape.heads * shape.rank);
            rig.step(&batch, |rig| {
                let kind = RopeKind::Interleaved;
                let rope = Rope { kind, inv_freq: &inv_freq, magnitude: MAGNITUDE, axes: None, long: None };
                let params = LatentParams { shape, norm: &norm, norm_eps: EPS, rope };
                rig.backend.latent_to_cache(&mut latent, &mut query, &params, &mut kv, 1);
                rig.backend.latent_attention(&query, shape, SCALE, &kv, 1, &mut attended);
            });
            rig.download("queries", &query, rows, shape.heads * width);
            let found = rig.download("latent_attention", &attended, rows, shape.heads * shape.rank);
            let mut rest = &found[..];
            for (sequence, rows) in parts {
                let (of, after) = rest.split_at(rows * shape.heads * shape.rank);
                out[sequence].extend_from_slice(of);
                rest = after;
            }
        }
        out
    }

    /// Compares with the formulas, over latents that are not rounded. The effect of rounding is bounded by its effect
    /// on a value and on a score.
    fn check(&self, what: &str, rounding: Rounding, found: &[Vec<f32>]) {
        let LatentHeads { heads, rank, .. } = self.shape;
        let width = self.shape.width();
        let mut errors = CaseErrors::of_operands(what.to_owned(), rounding);
        let sigma: f64 = match self.kv_type {
            KvType::F16 => 6e-4,
            KvType::Q8_0 => 1e-2,
            KvType::Fp8 => 3e-2,
        };
        // Rounded operands round latents and queries before the cache rounds what it keeps.
        let sigma = sigma.hypot(2.0 * operand_sigma(rounding));
        for (sequence, found) in found.iter().enumerate() {
            let turn = |of: &mut [f32], position: usize| {
                let kind = RopeKind::Interleaved;
                rotate(&mut of[rank..], kind, &self.inv_freq, MAGNITUDE, position as u32);
            };
            let mut latents = self.latents[sequence].clone();
            for (position, latent) in latents.chunks_exact_mut(width).enumerate() {
                let plain = latent[..rank].to_vec();
                rms_norm(&plain, &self.norm, EPS, &mut latent[..rank]);
                turn(latent, position);
            }
            let length = self.lengths[sequence];
            for position in [0, length / 2, length - 1] {
                for head in [0, heads - 1] {
                    let at = (position * heads + head) * width;
                    let mut query = self.queries[sequence][at..][..width].to_vec();
                    turn(&mut query, position);
                    let seen = || latents.chunks_exact(width).take(position + 1);
                    let mut scores: Vec<f64> = seen().map(|key| score(&query, key, SCALE, None)).collect();
                    let mut expected = vec![0.0; rank];
                    attend(&mut scores, seen().map(|latent| &latent[..rank]), None, &mut expected);
                    let found = &found[(position * heads + head) * rank..][..rank];
                    for (col, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                        errors.check(
                            position,
                            col,
                            found,
                            expected,
                            sigma * (0.3 + f64::from(expected.abs())),
                            1e-30,
                        );
                    }
                }
            }
        }
        errors.finish();
    }
}
