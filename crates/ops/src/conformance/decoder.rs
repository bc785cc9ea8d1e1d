//! Check of whole steps: a small decoder of two layers, with all ops in a row.

use super::bounds::{operand_sigma, same_bits};
use super::extent::every;
use super::random::Random;
use super::rig::{Rig, ok};
use super::scene::{Chunk, Scene};
use super::weights::{Weights, supported};
use crate::reference::ReferenceBackend;
use crate::{
    Activation, AnyBackend, AttentionParams, Batch, BufferRole, DType, HeadOperands, HeadShape, KvLayout,
    KvSpec, KvType, QkvParams, Rope, RopeKind, RowSource, StepLimits,
};

const LAYERS: usize = 2;
const WIDTH: usize = 256;
const HIDDEN: usize = 256;
const VOCAB: usize = 100;
const EPS: f32 = 1e-6;
const SHAPE: HeadShape = HeadShape { heads: 4, kv_heads: 2, head_dim: 64 };
/// Tokens of each sequence: a prompt, then the tokens decoded one by one.
const LENGTHS: [u32; 5] = [5, 17, 2, 34, 20];
/// Length of the longest sequence.
const LENGTH_MAX: usize = 34;
/// Number of decoded tokens in each sequence.
const DECODED: u32 = 2;

/// Checks the logits of every token of five sequences: the same bits however they share steps, and near the
/// reference's if the weights are plain floats. Quantised types are checked op by op, because their errors compound
/// here.
///
/// # Panics
/// If a bit differs or a number is out of bounds.
pub fn check_decoder(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(50);
    let (types, rounding) = (supported(&make()), make().facts().rounding);
    for pair in types.chunks(2).step_by(every(4)) {
        let model = DecoderModel::random([pair[0], pair[pair.len() - 1]], &mut random);
        let mut scene = Scene::new(SHAPE, KvType::F16, rounding, &LENGTHS, None, &mut random);
        let mut rig = Rig::new(make(), &limits());
        let packed = PackedDecoder::new(&rig, &model);
        let all = [0, 1, 2, 3, 4];
        let expected = packed.run(&mut rig, &scene, &served(&all, u32::MAX));
        let mut same = |scene: &Scene, name: &str, sequences: &[usize], chunk: u32| {
            let found = packed.run(&mut rig, scene, &served(sequences, chunk));
            for &sequence in sequences {
                let what = format!("decoder of {:?}, sequence {sequence}, {name}", model.types);
                assert!(expected[sequence].iter().all(|logit| logit.is_finite()), "{what}: not a number");
                same_bits(&what, &found[sequence], &expected[sequence], VOCAB);
            }
        };
        same(&scene, "alone", &[3], u32::MAX);
        same(&scene, "token by token", &[1], 1);
        scene.move_blocks(&mut random);
        same(&scene, "in another order, in chunks of 7, in other blocks", &[4, 2, 0, 3, 1], 7);
    }
    if let Some(&dtype) = types.iter().find(|dtype| dtype.block_weights() == 1) {
        let model = DecoderModel::random([dtype; 2], &mut random);
        let scene = Scene::new(SHAPE, KvType::F16, rounding, &LENGTHS, None, &mut random);
        let steps = served(&[0, 1, 2, 3, 4], 30);
        let mut rig = Rig::new(make(), &limits());
        let found = PackedDecoder::new(&rig, &model).run(&mut rig, &scene, &steps);
        let mut reference = Rig::new(AnyBackend::new(ReferenceBackend::new()), &limits());
        let expected = PackedDecoder::new(&reference, &model).run(&mut reference, &scene, &steps);
        // Each layer rounds its operands some ten times, up as often as down.
        let roundings = (10 * LAYERS) as f64;
        let allowed = 2e-3 + 8.0 * roundings.sqrt() * operand_sigma(rounding);
        for (found, expected) in found.iter().zip(&expected) {
            let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert!(
                    f64::from((found - expected).abs()) <= allowed * f64::from(largest),
                    "decoder of {dtype}, position {}, token {}: {found} is not {expected}",
                    i / VOCAB,
                    i % VOCAB
                );
            }
        }
    }
}

fn limits() -> StepLimits {
    let rows = LENGTHS.iter().sum::<u32>() as usize;
    StepLimits {
        rows,
        sequences: LENGTHS.len(),
        logit_rows: rows,
        context: LENGTH_MAX,
        width: 2 * HIDDEN,
        vocab: VOCAB,
        heads: SHAPE,
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// Steps as a scheduler makes them: each sequence's prompt in chunks of at most `chunk`, then its tokens one by one,
/// all sequences in parallel, so that one decodes while another is still in prefill.
fn served(sequences: &[usize], chunk: u32) -> Vec<Vec<Chunk>> {
    let mut done = vec![0; LENGTHS.len()];
    let mut steps = Vec::new();
    while sequences.iter().any(|&s| done[s] < LENGTHS[s]) {
        let mut step = Vec::new();
        for &sequence in sequences {
            let start = done[sequence];
            if start == LENGTHS[sequence] {
                continue;
            }
            let prompt = LENGTHS[sequence].saturating_sub(DECODED);
            let rows = if start < prompt { chunk.min(prompt - start) } else { 1 };
            step.push(Chunk { sequence, start, rows });
            done[sequence] += rows;
        }
        steps.push(step);
    }
    steps
}

struct DecoderLayer {
    qkv: [Weights; 3],
    out: [Weights; 1],
    gate_up: [Weights; 2],
    down: [Weights; 1],
    norms: [Vec<f32>; 4], // before attention, before the MLP: (WIDTH); queries, keys: (head_dim)
    bias: Vec<f32>,       // (qkv_width)
}

struct DecoderModel {
    types: [DType; 2],
    embedding: [Weights; 1],
    layers: Vec<DecoderLayer>,
    norm: Vec<f32>,
    inv_freq: Vec<f32>,
}

/// A layer on the device.
struct PackedLayer {
    matrices: [crate::Matrix; 4],
    vectors: [crate::Vector; 5],
}

/// A model on the device.
struct PackedDecoder {
    embedding: crate::Matrix,
    layers: Vec<PackedLayer>,
    norm: crate::Vector,
    inv_freq: crate::Vector,
}

impl DecoderModel {
    fn random(types: [DType; 2], random: &mut Random) -> Self {
        let mut matrix = |which: usize, rows, cols| Weights::random(types[which], rows, cols, random);
        let (q, k) = (SHAPE.q_width(), SHAPE.kv_heads * SHAPE.head_dim);
        let matrices: Vec<_> = (0..LAYERS)
            .map(|_| {
                let qkv = [matrix(0, q, WIDTH), matrix(0, k, WIDTH), matrix(1, k, WIDTH)];
                let gate_up = [matrix(0, HIDDEN, WIDTH), matrix(1, HIDDEN, WIDTH)];
                (qkv, [matrix(0, WIDTH, q)], gate_up, [matrix(1, WIDTH, HIDDEN)])
            })
            .collect();
        let embedding = [matrix(0, VOCAB, WIDTH)];
        let mut norm = |count| (0..count).map(|_| 0.5 + random.uniform()).collect::<Vec<f32>>();
        let layers = matrices
            .into_iter()
            .map(|(qkv, out, gate_up, down)| DecoderLayer {
                qkv,
                out,
                gate_up,
                down,
                norms: [norm(WIDTH), norm(WIDTH), norm(SHAPE.head_dim), norm(SHAPE.head_dim)],
                bias: norm(SHAPE.qkv_width()),
            })
            .collect();
        let inv_freq = (0..SHAPE.head_dim / 2).map(|pair| 10_000f32.powf(-(pair as f32) / 32.0)).collect();
        Self { types, embedding, layers, norm: norm(WIDTH), inv_freq }
    }
}

impl PackedDecoder {
    fn new(rig: &Rig, model: &DecoderModel) -> Self {
        let pack = |layer: &DecoderLayer| PackedLayer {
            matrices: [&layer.qkv[..], &layer.out, &layer.gate_up, &layer.down]
                .map(|parts| rig.matrix(parts)),
            vectors: [&layer.norms[0], &layer.norms[1], &layer.norms[2], &layer.norms[3], &layer.bias]
                .map(|values| rig.vector(values)),
        };
        Self {
            embedding: rig.matrix(&model.embedding),
            layers: model.layers.iter().map(pack).collect(),
            norm: rig.vector(&model.norm),
            inv_freq: rig.vector(&model.inv_freq),
        }
    }

    /// Logits of every position of every sequence; NaN for positions that no step reached.
    fn run(&self, rig: &mut Rig, scene: &Scene, steps: &[Vec<Chunk>]) -> Vec<Vec<f32>> {
        let blocks =
            scene.sequences.iter().flat_map(|s| &s.blocks[0]).max().map_or(1, |&last| last as usize + 1);
        let HeadShape { kv_heads, head_dim, .. } = SHAPE;
        let spec = KvSpec {
            layers: vec![KvLayout::Heads { kv_heads, head_dim, window: None }; LAYERS],
            blocks,
            kv_type: KvType::F16,
            ..KvSpec::default()
        };
        let mut kv = ok("kv", rig.backend.kv(&spec));
        // Buffers are made once for the largest step, as a runtime does: smaller steps find the remains of larger
        // ones.
        let rows = limits().rows;
        let made = |role, cols| ok("buffer", rig.backend.buffer(role, rows, cols));
        let buffer = |cols| made(BufferRole::Operand, cols);
        let mut residual = made(BufferRole::Residual, WIDTH);
        let (mut x, mut qkv) = (buffer(WIDTH), buffer(SHAPE.qkv_width()));
        let (mut attended, mut hidden, mut y) = (buffer(SHAPE.q_width()), buffer(HIDDEN), buffer(WIDTH));

        let mut logits: Vec<Vec<f32>> = LENGTHS.iter().map(|&n| vec![f32::NAN; n as usize * VOCAB]).collect();
        for step in steps {
            let batch = tokens(scene, step);
            let mut out = vec![f32::NAN; batch.rows() * VOCAB];
            rig.step(&batch, |rig| {
                let device = &mut rig.backend;
                device.embed(&self.embedding, 2.0, &mut residual);
                for (i, layer) in self.layers.iter().enumerate() {
                    let [qkv_weight, out_weight, gate_up, down] = &layer.matrices;
                    let [attention_norm, mlp_norm, q_norm, k_norm, bias] = &layer.vectors;
                    if i == 0 {
                        device.rms_norm(&residual, attention_norm, EPS, &mut x);
                    } else {
                        device.add_rms_norm(&mut residual, &y, attention_norm, EPS, &mut x);
                    }
                    device.matmul(qkv_weight, Some(bias), &x, &mut qkv);
                    let rope = Some(Rope {
                        kind: RopeKind::Neox,
                        inv_freq: &self.inv_freq,
                        magnitude: 1.0,
                        axes: None,
                        long: None,
                    });
                    let (q_norm, k_norm) = (Some(q_norm), Some(k_norm));
                    let params = QkvParams { q_norm, k_norm, norm_eps: EPS, rope, ..QkvParams::plain(SHAPE) };
                    device.rope_to_cache(&mut qkv, &params, &mut kv, i);
                    let window = (i == 1).then_some(24);
                    let params = AttentionParams { window, ..AttentionParams::of(SHAPE, 0.125) };
                    device.attention(&qkv, &params, &kv, i, &mut attended);
                    device.matmul(out_weight, None, &attended, &mut y);
                    device.all_reduce(&mut y);
                    device.add_rms_norm(&mut residual, &y, mlp_norm, EPS, &mut x);
                    device.gated_mlp(gate_up, down, Activation::Silu, &x, &mut hidden, &mut y);
                }
                device.add_rms_norm(&mut residual, &y, &self.norm, EPS, &mut x);
                ok("logits", device.logits(&HeadOperands::of(&self.embedding), x.id(), &mut out));
            });
            let mut rest = &out[..];
            for chunk in step {
                let (rows, after) = rest.split_at(chunk.rows as usize * VOCAB);
                logits[chunk.sequence][chunk.start as usize * VOCAB..][..rows.len()].copy_from_slice(rows);
                rest = after;
            }
        }
        logits
    }
}

/// Batch of a step, with tokens that depend on sequence and position alone, and logits of every row.
fn tokens(scene: &Scene, step: &[Chunk]) -> Batch {
    let mut batch = scene.batch(step);
    let token = |chunk: &Chunk, position: u32| (chunk.sequence as u32 * 31 + position * 17) % VOCAB as u32;
    batch.sources = step
        .iter()
        .flat_map(|chunk| (chunk.start..chunk.start + chunk.rows).map(|p| RowSource::Token(token(chunk, p))))
        .collect();
    batch.logit_rows = (0..batch.rows() as u32).collect();
    batch
}
