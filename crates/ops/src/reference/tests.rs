//! Tests of the reference against numbers worked out by hand.

mod grid;
mod line;
mod vocoder;

use super::formulas::{activate, attend, dot, rms_norm, rotate, route, score};
use super::*;
use crate::{
    DType, ExpertScoring, HeadShape, KvLayout, KvType, LogitsHead, MoeOperands, Rope, RopeKind, RowSource,
    SequenceSpan,
};

fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "element {i}: {found:?} is not {expected:?}");
    }
}

#[test]
fn dot_covers_the_remainder() {
    let a: Vec<f32> = (1..=19).map(|i| i as f32).collect();
    assert_eq!(dot(&a, &[1.0; 19]), 190.0);
    assert_eq!(dot(&a[..3], &[2.0, -1.0, 1.0]), 3.0);
    assert_eq!(dot(&[], &[]), 0.0);
}

#[test]
fn rms_norm_by_hand() {
    let mut out = [0.0; 2];
    rms_norm(&[3.0, 4.0], &[1.0, 2.0], 0.0, &mut out); // rms = sqrt(12.5) = 3.5355339
    close(&out, &[0.848_528_1, 2.262_741_7]);
    rms_norm(&[3.0, 4.0], &[1.0, 2.0], 12.5, &mut out); // rms = 5
    close(&out, &[0.6, 1.6]);
    rms_norm(&[0.0, 0.0], &[1.0, 2.0], 1e-6, &mut out);
    close(&out, &[0.0, 0.0]);
}

#[test]
fn rotation_pairs_by_kind() {
    let quarter = std::f32::consts::FRAC_PI_2;
    let turned = |kind, inv_freq: &[f32], magnitude, position| {
        let mut head = [1.0, 2.0, 3.0, 4.0];
        rotate(&mut head, kind, inv_freq, magnitude, position);
        head
    };
    close(&turned(RopeKind::Neox, &[quarter, 0.0], 1.0, 1), &[-3.0, 2.0, 1.0, 4.0]);
    close(&turned(RopeKind::Interleaved, &[quarter, 0.0], 1.0, 1), &[-2.0, 1.0, 3.0, 4.0]);
    close(&turned(RopeKind::Neox, &[quarter, 0.0], 1.0, 2), &[-1.0, 2.0, -3.0, 4.0]);
    close(&turned(RopeKind::Neox, &[quarter], 1.0, 1), &[-2.0, 1.0, 3.0, 4.0]);
    close(&turned(RopeKind::Neox, &[quarter], 0.5, 1), &[-1.0, 0.5, 3.0, 4.0]);
    close(&turned(RopeKind::Interleaved, &[quarter, quarter], 1.0, 0), &[1.0, 2.0, 3.0, 4.0]);
}

/// Two of the experts, with their weights unchanged.
const MIXTURE: MoeParams = MoeParams {
    experts_used: 2,
    scoring: ExpertScoring::Softmax,
    normalized: false,
    scale: 1.0,
    activation: Activation::Silu,
    gated: true,
    groups: None,
    scales_input: false,
};

#[test]
fn experts_are_chosen_by_score_then_index() {
    let chosen = |scores: &[f32], params: MoeParams| -> (Vec<usize>, Vec<f32>) {
        let chosen = route(scores, &params, None).unwrap().into_iter();
        chosen.map(|(expert, weight)| (expert, weight as f32)).unzip()
    };
    // Softmax of ln 1, ln 2, ln 5, ln 2.
    let scores = [1f32, 2.0, 5.0, 2.0].map(f32::ln);
    let (experts, weights) = chosen(&scores, MIXTURE);
    assert_eq!(experts, [2, 1]);
    close(&weights, &[0.5, 0.2]);
    let (experts, weights) = chosen(&scores, MoeParams { normalized: true, scale: 7.0, ..MIXTURE });
    assert_eq!(experts, [2, 1]);
    close(&weights, &[5.0, 2.0]);
    let sigmoid = MoeParams { scoring: ExpertScoring::Sigmoid, ..MIXTURE };
    close(&chosen(&scores, sigmoid).1, &[5.0 / 6.0, 2.0 / 3.0]);
    assert_eq!(chosen(&[0.0, -0.0, 1.0, 0.0], MoeParams { experts_used: 4, ..MIXTURE }).0, [2, 0, 1, 3]);
    let none = chosen(&[f32::NEG_INFINITY; 2], MoeParams { normalized: true, ..sigmoid });
    assert_eq!(none, (vec![0, 1], vec![0.0, 0.0]), "weights of zero stay zero");
    assert_eq!(route(&[0.0, f32::NAN, 1.0], &MIXTURE, None), None);
}

#[test]
fn a_mixture_by_hand() {
    let mut backend = ready(SHAPE);
    let matrix = |rows, cols, weights: &[f32]| ReferenceMatrix { rows, cols, weights: weights.to_vec() };
    // Expert e computes (e + 1) * silu(x0) * x1 in both outputs; the router scores ln 1, ln 2 and ln 6 where x0 is 1.
    let router = matrix(3, 2, &[0.0, 0.0, 2f32.ln(), 0.0, 6f32.ln(), 0.0]);
    let gate_up = vec![matrix(2, 2, &[1.0, 0.0, 0.0, 1.0]); 3];
    let down: Vec<_> = (1..=3).map(|e| matrix(2, 1, &[e as f32; 2])).collect();
    let mut x = backend.buffer(BufferRole::Operand, 2, 2).unwrap();
    let (mut hidden, mut out) = (
        backend.buffer(BufferRole::Operand, 2, 2).unwrap(),
        backend.buffer(BufferRole::Operand, 2, 2).unwrap(),
    );
    backend.write_rows(&mut x, 0, &[1.0, 4.0, f32::NAN, 1.0]).unwrap();
    backend.begin(&prompt(2)).unwrap();
    let experts = ReferenceExperts { gate_up, down };
    backend.moe(&MoeOperands::plain(&router, &experts), &MIXTURE, &x, &mut hidden, &mut out);
    // 6/9 of the third expert and 2/9 of the second: (18 + 4) / 9.
    let silu = 1.0 / (1.0 + (-1f32).exp());
    close(&out.values[..2], &[22.0 / 9.0 * 4.0 * silu; 2]);
    assert!(out.values[2..].iter().all(|v| v.is_nan()), "a row of NaN has no experts");
}

#[test]
fn attention_of_one_head_by_hand() {
    let values = [[4.0f32, 0.0], [8.0, 1.0]];
    let mut out = [0.0; 2];
    let scores = [0.0, 3f64.ln()];
    attend(&mut scores.clone(), values.iter().map(|v| &v[..]), None, &mut out); // weights 1/4 and 3/4
    close(&out, &[7.0, 0.75]);
    attend(&mut scores.clone(), values.iter().map(|v| &v[..]), Some(4f32.ln()), &mut out); // 1/8 and 3/8
    close(&out, &[3.5, 0.375]);
    attend(&mut [1000.0, 0.0], values.iter().map(|v| &v[..]), None, &mut out);
    close(&out, &[4.0, 0.0]);
    close(&[score(&[1.0, 3.0], &[1.0, 1.0], 0.5, None) as f32], &[2.0]);
    close(&[score(&[1.0, 3.0], &[1.0, 1.0], 0.5, Some(2.0)) as f32], &[1.523_188_3]); // 2 tanh(1)
}

#[test]
fn activations_by_hand() {
    for (activation, x, expected) in [
        (Activation::Silu, 1.0, 0.731_058_578_630_004_9),
        (Activation::Silu, -2.0, -0.238_405_844_044_234_3),
        (Activation::GeluTanh, 1.0, 0.841_191_990_608_276_8),
        (Activation::GeluTanh, -2.0, -0.045_402_305_912_224_98),
        (Activation::GeluErf, 1.0, 0.841_344_746_068_542_9),
        (Activation::GeluErf, -2.0, -0.045_500_263_896_358_42),
        (Activation::GeluErf, -3.0, -0.004_049_694_094_890_3),
        (Activation::GeluErf, 9.0, 9.0),
        (Activation::GeluErf, 0.0, 0.0),
        (Activation::QuickGelu, 1.0, 0.845_795_765_932_821_2),
        (Activation::QuickGelu, -2.0, -0.064_341_376_855_791_86),
    ] {
        let found = activate(activation, x);
        assert!((found - expected).abs() < 1e-14, "{activation:?}({x}) is {found}, not {expected}");
    }
}

const SHAPE: HeadShape = HeadShape { heads: 2, kv_heads: 2, head_dim: 2 };

fn ready(heads: HeadShape) -> ReferenceBackend {
    let mut backend = ReferenceBackend::new();
    let limits = StepLimits {
        rows: 64,
        sequences: 4,
        logit_rows: 4,
        context: 64,
        width: 64,
        vocab: 8,
        heads,
        experts: 4,
        experts_used: 4,
        experts_width: 64,
        kv_groups: 1,
        heads_matmul_width: 0,
    };
    backend.reserve(&limits).unwrap();
    backend
}

/// A batch of one sequence, prefilled at once, in blocks 3, 2, 1, ….
fn prompt(rows: u32) -> Batch {
    let blocks: Vec<u32> = (1..=rows.div_ceil(16)).rev().collect();
    Batch {
        sources: (0..rows).map(RowSource::Token).collect(),
        positions: (0..rows).collect(),
        axes: Vec::new(),
        types: Vec::new(),
        slots: (0..rows).map(|p| blocks[p as usize / 16] * 16 + p % 16).collect(),
        sequences: vec![SequenceSpan { row_first: 0, rows, context: rows, table_first: 0 }],
        adapters: Vec::new(),
        sees: Vec::new(),
        memories: Vec::new(),
        memory_tables: Vec::new(),
        states: Vec::new(),
        block_tables: blocks,
        logit_rows: vec![rows - 1],
        windows: Vec::new(),
    }
}

fn f32_matrix(backend: &ReferenceBackend, rows: usize, weights: &[f32]) -> ReferenceMatrix {
    let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
    let shape = MatrixShape { rows, cols: weights.len() / rows, dtype: DType::F32 };
    backend.pack(&[MatrixSource { name: "w", shape, bytes: &bytes }]).unwrap()
}

fn buffer(backend: &mut ReferenceBackend, cols: usize, values: &[f32]) -> ReferenceBuffer {
    let mut buffer = backend.buffer(BufferRole::Residual, values.len() / cols, cols).unwrap();
    backend.write_rows(&mut buffer, 0, values).unwrap();
    buffer
}

#[test]
fn matrices_by_hand() {
    let mut backend = ready(SHAPE);
    let weight = f32_matrix(&backend, 2, &[1.0, 2.0, 3.0, -1.0, 0.5, 4.0]);
    let x = buffer(&mut backend, 3, &[1.0, 1.0, 1.0, 2.0, 0.0, -1.0]);
    let mut out = backend.buffer(BufferRole::Operand, 2, 2).unwrap();
    backend.begin(&prompt(2)).unwrap();
    backend.matmul(&weight, None, &x, &mut out);
    close(&out.values, &[6.0, 3.5, -1.0, -6.0]);
    backend.matmul(&weight, Some(&vec![10.0, 20.0]), &x, &mut out);
    close(&out.values, &[16.0, 23.5, 9.0, 14.0]);

    let mut logits = [0.0; 2];
    backend.logits(LogitsHead::of(&weight), &x, &mut logits).unwrap();
    close(&logits, &[-1.0, -6.0]);

    let mut embedded = backend.buffer(BufferRole::Operand, 2, 3).unwrap();
    backend.embed(&weight, 2.0, &mut embedded);
    close(&embedded.values, &[2.0, 4.0, 6.0, -2.0, 1.0, 8.0]);

    // gate = 1 and up = 5 for the first row, 2 and -1 for the second; down doubles and negates.
    let gate_up = f32_matrix(&backend, 2, &[1.0, 0.0, 0.0, 3.0, 0.0, 2.0]);
    let x = buffer(&mut backend, 3, &[1.0, 1.0, 1.0, 2.0, 7.0, -3.5]);
    let down = f32_matrix(&backend, 2, &[2.0, -1.0]);
    let mut hidden = backend.buffer(BufferRole::Operand, 2, 1).unwrap();
    let (gate_up, down, hidden_rows) = (&gate_up, &down, &mut hidden);
    backend.run(Op::GatedMlp {
        gate_up,
        down,
        activation: Activation::Silu,
        x: &x,
        hidden: hidden_rows,
        out: &mut out,
    });
    close(&hidden.values, &[3.655_293, -1.761_594_2]); // 5 silu(1), -silu(2)
    close(&out.values, &[7.310_586, -3.655_293, -3.523_188_4, 1.761_594_2]);

    let mut residual = buffer(&mut backend, 2, &[1.0, 2.0, 0.0, 0.0]);
    let x = buffer(&mut backend, 2, &[2.0, 2.0, 0.0, 5.0]);
    backend.add_rms_norm(&mut residual, &x, &[1.0, 2.0], 0.0, &mut out);
    close(&residual.values, &[3.0, 4.0, 0.0, 5.0]);
    close(&out.values, &[0.848_528_1, 2.262_741_7, 0.0, 2.828_427]);
    backend.end().unwrap();
}

#[test]
fn a_mixed_matrix_stacks_its_parts() {
    let backend = ReferenceBackend::new();
    let eights: Vec<u8> = [0x00, 0x3C].into_iter().chain(0..32).collect(); // scale 1, codes 0, 1, 2, …
    let ones: Vec<u8> = [0x00, 0x3C].repeat(32);
    let shape = |dtype| MatrixShape { rows: 1, cols: 32, dtype };
    let parts = [
        MatrixSource { name: "a", shape: shape(DType::F16), bytes: &ones },
        MatrixSource { name: "b", shape: shape(DType::Q8_0), bytes: &eights },
    ];
    let matrix = backend.pack(&parts).unwrap();
    assert_eq!((matrix.rows(), matrix.cols()), (2, 32));
    assert_eq!(matrix.row(0), [1.0; 32]);
    assert_eq!(matrix.row(1)[31], 31.0);
    assert_eq!(backend.bytes(&Allocation::Matrix(&[parts[0].shape, parts[1].shape])), 256);
}

/// Keys of zero make every visible key count alike, so attention is the mean of the visible values; the value at
/// position p is `(p, -p)` in key-value head 0 and `(100 + p, 0)` in head 1.
fn means(window: Option<u32>) -> Vec<f32> {
    let rows = 40u32;
    let shape = HeadShape { heads: 4, kv_heads: 2, head_dim: 2 };
    let mut backend = ready(shape);
    let row = |p: u32| {
        let p = p as f32;
        [vec![1.0; 8], vec![0.0; 4], vec![p, -p, 100.0 + p, 0.0]].concat()
    };
    let mut qkv = buffer(&mut backend, 16, &(0..rows).flat_map(row).collect::<Vec<_>>());
    let spec = KvSpec {
        layers: vec![KvLayout::Heads { kv_heads: 2, head_dim: 2, window: None }; 2],
        blocks: 4,
        kv_type: KvType::F16,
        ..KvSpec::default()
    };
    let mut kv = backend.kv(&spec).unwrap();
    let mut out = backend.buffer(BufferRole::Operand, 40, 8).unwrap();
    backend.begin(&prompt(rows)).unwrap();
    let params = QkvParams::plain(shape);
    backend.rope_to_cache(&mut qkv, &params, &mut kv, 1);
    let params = AttentionParams { window, ..AttentionParams::of(shape, 1.0) };
    backend.attention(&qkv, &params, &kv, 1, &mut out);
    backend.end().unwrap();
    out.row(20).to_vec()
}

#[test]
fn attention_sees_what_it_should() {
    // Heads 0 and 1 read key-value head 0, heads 2 and 3 head 1.
    let mean = |m: f32| [m, -m, m, -m, 100.0 + m, 0.0, 100.0 + m, 0.0];
    close(&means(None), &mean(10.0)); // positions 0..=20
    close(&means(Some(3)), &mean(19.0)); // 18, 19, 20
    close(&means(Some(1)), &mean(20.0));
    close(&means(Some(100)), &mean(10.0));
}

#[test]
fn rope_to_cache_norms_turns_and_stores() {
    let mut backend = ready(SHAPE);
    let mut qkv = buffer(&mut backend, 12, &[3.0, 4.0, 0.0, 2.0, 3.0, 4.0, 1.0, 1.0, 5.0, 6.0, 0.1, 70000.0]);
    let spec = KvSpec {
        layers: vec![KvLayout::Heads { kv_heads: 2, head_dim: 2, window: None }; 1],
        blocks: 2,
        kv_type: KvType::F16,
        ..KvSpec::default()
    };
    let mut kv = backend.kv(&spec).unwrap();
    let mut batch = prompt(1);
    batch.positions = vec![3];
    let frequency = vec![std::f32::consts::FRAC_PI_2];
    let rope = Rope { kind: RopeKind::Neox, inv_freq: &frequency, magnitude: 1.0, axes: None, long: None };
    let (q_norm, k_norm) = (vec![1.0, 1.0], vec![1.0, 2.0]);
    let params = QkvParams {
        q_norm: Some(&q_norm),
        k_norm: Some(&k_norm),
        norm_eps: 0.0,
        rope: Some(rope),
        ..QkvParams::plain(SHAPE)
    };
    backend.begin(&batch).unwrap();
    backend.rope_to_cache(&mut qkv, &params, &mut kv, 0);
    // Three quarter turns make (a, b) into (b, -a).
    close(&qkv.values[..4], &[1.131_370_9, -0.848_528_1, std::f32::consts::SQRT_2, 0.0]);
    let slot = 16; // block 1, offset 0
    let halves = |x: f32| half::f16::from_f32(x).to_f32();
    close(&kv.keys[kv.at(0, slot, 0)], &[halves(2.262_741_7), halves(-0.848_528_1)]);
    close(&kv.keys[kv.at(0, slot, 1)], &[2.0, -1.0]);
    assert_eq!(kv.values[kv.at(0, slot, 0)], [5.0, 6.0]);
    assert_eq!(kv.values[kv.at(0, slot, 1)], [0.099_975_586, f32::INFINITY]);
    assert!(kv.keys[kv.at(0, 17, 0)][0].is_nan(), "a slot not in the batch was written");
}

#[test]
#[should_panic(expected = "an op outside a step")]
fn ops_need_a_step() {
    let mut backend = ready(SHAPE);
    let x = backend.buffer(BufferRole::Operand, 1, 2).unwrap();
    let mut out = backend.buffer(BufferRole::Operand, 1, 2).unwrap();
    backend.rms_norm(&x, &[1.0; 2], 0.0, &mut out);
}

#[test]
#[should_panic(expected = "a sum in a buffer of operands")]
fn sums_are_no_operands() {
    let mut backend = ready(SHAPE);
    let x = buffer(&mut backend, 2, &[1.0, 2.0]);
    let mut residual = backend.buffer(BufferRole::Operand, 1, 2).unwrap();
    let mut out = backend.buffer(BufferRole::Operand, 1, 2).unwrap();
    backend.begin(&prompt(1)).unwrap();
    backend.add_rms_norm(&mut residual, &x, &[1.0; 2], 0.0, &mut out);
}

#[test]
#[should_panic(expected = "a slot beside its block table")]
fn slots_must_match_the_table() {
    let mut batch = prompt(20);
    batch.slots[17] += 1;
    ready(SHAPE).begin(&batch).unwrap();
}

#[test]
#[should_panic(expected = "65 rows, reserved 64")]
fn limits_are_kept() {
    ready(SHAPE).begin(&prompt(65)).unwrap();
}

/// `torch.nn.functional.group_norm` of each sequence with these weights and biases.
#[test]
fn group_norm_is_that_of_pytorch() {
    const ROWS: [[f32; 4]; 6] = [
        [-2.5, 1.0, -1.0, 2.5],
        [0.5, -1.5, 2.0, 0.0],
        [-2.0, 1.5, -0.5, -2.5],
        [1.0, -1.0, 2.5, 0.5],
        [-1.5, 2.0, 0.0, -2.0],
        [1.5, -0.5, -2.5, 1.0],
    ];
    const EXPECTED: [[f32; 4]; 6] = [
        [-1.310_553, 1.567_906, 1.560_553, 1.771_625],
        [0.786_332, 0.694_204, -0.536_332, -1.723_183],
        [-1.463_124, 1.473_364, 0.287_088, -2.947_8],
        [0.602_463, 0.612_703, -1.493_131, 0.612_637],
        [-1.118_859, 1.645_496, -0.009_615, -2.354_394],
        [0.946_727, 0.784_835, 1.473_9, 1.206_043],
    ];
    let mut backend = ready(SHAPE);
    let weight = backend.vector(&[1.0, 0.5, -1.0, 2.0]).unwrap();
    let bias = backend.vector(&[0.0, 1.0, 0.25, -0.5]).unwrap();
    let mut x = backend.buffer(BufferRole::Operand, 6, 4).unwrap();
    let mut out = backend.buffer(BufferRole::Operand, 6, 4).unwrap();
    backend.write_rows(&mut x, 0, ROWS.as_flattened()).unwrap();
    let mut batch = Batch { sources: vec![RowSource::Embedding; 6], ..Batch::default() };
    batch.push_sequence(2, 2, |_, _| 0);
    batch.push_sequence(4, 4, |_, _| 1);
    backend.begin(&batch).unwrap();
    let params = LayerNormParams { weight: &weight, bias: Some(&bias), eps: 1e-5 };
    backend.run(Op::GroupNorm { x: &x, groups: 2, params, out: &mut out });
    backend.end().unwrap();
    let mut found = vec![0.0; 24];
    backend.read_rows(&out, 0, &mut found).unwrap();
    for (found, expected) in found.iter().zip(EXPECTED.as_flattened()) {
        assert!((found - expected).abs() <= 2e-6, "{found}, not {expected}");
    }
}

/// `x * (1 + by[s, 5:9]) + by[s, 1:5]` by PyTorch, where s is 0, 0, 1, 1, 1, 1.
#[test]
fn modulate_is_that_of_pytorch() {
    const ROWS: [[f32; 4]; 6] = [
        [2.5, 1.0, -2.0, -1.0],
        [1.5, -1.0, -0.5, -2.5],
        [0.5, 1.5, 2.0, -0.5],
        [-1.5, 0.0, 1.5, 0.5],
        [0.0, 2.5, 2.5, 2.5],
        [-1.5, -1.0, 1.5, -1.0],
    ];
    const BY: [[f32; 10]; 2] = [
        [-0.9, -0.9, 1.1, 1.35, 1.1, 1.1, -1.15, -0.15, 0.85, -0.4],
        [1.1, -1.15, -0.4, 0.85, -0.9, -0.4, 0.85, 1.35, 1.1, 0.6],
    ];
    const EXPECTED: [[f32; 4]; 6] = [
        [4.35, 0.95, -0.35, -0.75],
        [2.25, 1.25, 0.925, -3.525],
        [-0.85, 2.375, 5.55, -1.95],
        [-2.05, -0.4, 4.375, 0.15],
        [-1.15, 4.225, 6.725, 4.35],
        [-2.05, -2.25, 4.375, -3.0],
    ];
    let mut backend = ready(SHAPE);
    let mut by = backend.buffer(BufferRole::Operand, 6, 10).unwrap();
    backend.write_rows(&mut by, 0, BY.as_flattened()).unwrap();
    let mut out = buffer(&mut backend, 4, ROWS.as_flattened());
    let mut batch = Batch { sources: vec![RowSource::Embedding; 6], ..Batch::default() };
    batch.push_sequence(2, 2, |_, _| 0);
    batch.push_sequence(4, 4, |_, _| 1);
    backend.begin(&batch).unwrap();
    backend.run(Op::Modulate { by: &by, scale: 5, shift: 1, out: &mut out });
    backend.end().unwrap();
    close(&out.values, EXPECTED.as_flattened());
}
