//! Tests of mixtures of experts: a row has the same bits whichever kernels compute it and whatever other rows its
//! experts have, and the formulas' numbers.

use hanzo_engine_kernels_cuda::{CudaBackend, Device};
use hanzo_engine_ops::reference::ReferenceBackend;
use hanzo_engine_ops::{
    Activation, Backend, Batch, BufferRole, DType, ExpertParts, ExpertScoring, MatrixShape, MatrixSource,
    MoeOperands, MoeParams, Op, RowSource, StepLimits, quant,
};

use crate::driver::card;
use crate::few_bits::blocks;
use crate::replay::{limits, numbers};

/// Number of rows. An expert of all rows has more than the kernel for many takes at once, and that kernel is chosen,
/// from an average of 48 pairs for each expert.
const ROWS: usize = 72;
/// Columns: whole blocks of every type.
const COLS: usize = 256;
const FFN: usize = 256;
const EXPERTS: usize = 3;
const PARAMS: MoeParams = MoeParams {
    experts_used: 2,
    scoring: ExpertScoring::Softmax,
    normalized: true,
    scale: 1.5,
    activation: Activation::Silu,
    gated: true,
    groups: None,
    scales_input: false,
};

/// Types of gate, up and down.
type Types = [DType; 3];

fn stored(dtype: DType, seed: usize, rows: usize, cols: usize) -> Vec<u8> {
    if !quant::can_quantize(dtype) {
        return blocks(dtype, seed, rows * cols);
    }
    let mut bytes = vec![0; dtype.bytes_of(cols).expect("whole blocks") * rows];
    quant::quantize_row(dtype, &numbers(seed, rows * cols), &mut bytes);
    bytes
}

/// Results of rows, in steps of so many.
fn mixture<B: Backend>(
    mut backend: B,
    (types, params): (Types, MoeParams),
    x: &[f32],
    step: usize,
) -> Vec<f32> {
    let used = params.experts_used;
    backend
        .reserve(&StepLimits {
            rows: ROWS,
            context: ROWS,
            width: 2 * FFN,
            experts: EXPERTS,
            experts_used: used,
            experts_width: 2 * FFN,
            ..limits()
        })
        .expect("memory");
    let shapes = [(FFN, COLS), (FFN, COLS), (COLS, FFN)];
    let shape = |i: usize| MatrixShape { rows: shapes[i].0, cols: shapes[i].1, dtype: types[i] };
    let parts = ExpertParts { gate_up: vec![shape(0), shape(1)], down: vec![shape(2)] };
    let mut experts = backend.experts(&vec![parts; EXPERTS]).expect("memory");
    for expert in 0..EXPERTS {
        let bytes = [0, 1, 2].map(|i| stored(types[i], 10 * expert + i, shapes[i].0, shapes[i].1));
        let source = |i: usize| MatrixSource { name: "numbers", shape: shape(i), bytes: &bytes[i] };
        let parts = ExpertParts { gate_up: vec![source(0), source(1)], down: vec![source(2)] };
        backend.pack_expert(&mut experts, &parts).expect("a copy");
    }
    // Each expert's score is the row's element in its column.
    let router: Vec<u8> = (0..EXPERTS * COLS)
        .flat_map(|at| f32::from(u8::from(at / COLS == at % COLS)).to_le_bytes())
        .collect();
    let shape = MatrixShape { rows: EXPERTS, cols: COLS, dtype: DType::F32 };
    let router = backend.pack(&[MatrixSource { name: "router", shape, bytes: &router }]).expect("memory");
    // They stay where they are, so that steps of one bucket are replayed, whatever experts their rows choose.
    let buffer = |cols| backend.buffer(BufferRole::Operand, step, cols).expect("memory");
    let [mut from, mut hidden, mut to] = [COLS, used * FFN, COLS].map(buffer);
    let mut out = Vec::new();
    for x in x.chunks(step * COLS) {
        let rows = x.len() / COLS;
        backend.write_rows(&mut from, 0, x).expect("a copy");
        let mut batch = Batch::default();
        batch.sources.extend((0..rows as u32).map(RowSource::Token));
        batch.push_sequence(rows, rows, |_, at| at as u32);
        backend.begin(&batch).expect("a step");
        let weights = MoeOperands::plain(&router, &experts);
        backend.run(Op::Moe { weights, params, x: &from, hidden: &mut hidden, out: &mut to });
        backend.end().expect("a step");
        let first = out.len();
        out.resize(first + rows * COLS, 0.0);
        backend.read_rows(&to, 0, &mut out[first..]).expect("a copy");
    }
    out
}

/// Checks rows alone, in batches and in chunks.
fn check<D: Device>(make: &dyn Fn() -> CudaBackend<D>, types: Types, params: MoeParams) {
    let mut x = numbers(7, ROWS * COLS);
    // The third expert is chosen by every row.
    x.chunks_mut(COLS).for_each(|row| row[2] = 2.0);
    let all = mixture(make(), (types, params), &x, ROWS);
    let expected = mixture(ReferenceBackend::new(), (types, params), &x, ROWS);
    let most = expected.iter().fold(0.0f32, |most, of| most.max(of.abs()));
    for (at, (found, expected)) in all.iter().zip(&expected).enumerate() {
        let (row, off) = (at / COLS, (found - expected).abs());
        assert!(
            off <= 1e-5 * most,
            "experts of {types:?}, row {row}: {found} for {expected}, of up to {most}"
        );
    }
    for step in [1, 5, 16, 17, 40] {
        // The last rows, so that few are computed alone.
        let rows = ROWS.min(2 * step + 1);
        let found = mixture(make(), (types, params), &x[(ROWS - rows) * COLS..], step);
        let same = found.iter().zip(&all[(ROWS - rows) * COLS..]).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "experts of {types:?}: {step} rows differ from the same of {ROWS}");
    }
}

/// Checks types with specialised loops, types of few bits, others, floats, and mixtures in which one product or both
/// are computed pair by pair.
pub(crate) fn check_experts<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    use DType::*;
    for types in [
        [Q4_K; 3],
        [Q8_0; 3],
        [F16; 3],
        [BF16; 3],
        [MXFP4; 3],
        [FP8; 3],
        [FP8_G32, BF16, FP8],
        [IQ2_XS; 3],
        [IQ3_S, TQ2_0, IQ1_M],
        [F32, IQ3_XXS, IQ2_S],
        [Q4_K, Q6_K, Q5_K],
        [Q8_0, F16, F32],
        [F32, F16, Q8_0],
        [F32; 3],
    ] {
        check(make, types, PARAMS);
    }
    check(
        make,
        [Q8_0, Q8_0, F16],
        MoeParams { experts_used: 1, scales_input: true, normalized: false, ..PARAMS },
    );
}

/// The same checks for two types.
pub(crate) fn check_some_experts<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    check(make, [DType::F16; 3], PARAMS);
    check(make, [DType::Q8_0; 3], PARAMS);
}

/// Runs each kernel of experts, for observers of its behaviour, with all rows and with a few.
pub(crate) fn run_some_experts<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    for rows in [ROWS, 3] {
        mixture(make(), ([DType::Q8_0; 3], PARAMS), &numbers(7, rows * COLS), rows);
    }
}

#[test]
fn kernels_of_experts_agree_to_the_bit() {
    let card = card();
    check_experts(&|| CudaBackend::new(card.clone()));
}
