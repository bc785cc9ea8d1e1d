//! What the conformance suite does not reach: steps so large that products are computed in several runs, on more and
//! fewer threads and by matrix instructions.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::quant::quantize_row;
use hanzo_engine_ops::{
    Activation, AnyBackend, Batch, BufferRole, DType, ExpertParts, ExpertScoring, KernelError, MatrixShape,
    MatrixSource, MoeOperands, MoeParams, RowSource, SequenceSpan, StepLimits,
};

use super::limits;

const WIDTH: usize = 512;
const HIDDEN: usize = 256;
const EXPERTS: usize = 10;
const ROWS: usize = 300;
const PARAMS: MoeParams = MoeParams {
    experts_used: 8,
    scoring: ExpertScoring::Softmax,
    normalized: true,
    scale: 1.0,
    activation: Activation::Silu,
    gated: true,
    groups: None,
    scales_input: false,
};

/// What a matrix of parts of `rows` each is packed from, unlike those of another seed.
fn stored_parts(types: &[DType], rows: usize, cols: usize, seed: usize) -> Vec<(MatrixShape, Vec<u8>)> {
    let weights: Vec<f32> =
        (0..rows * cols).map(|i| (((i + 97 * seed) * 7919 % 1013) as f32 - 506.0) * 1e-4).collect();
    let encode = |&dtype: &DType| {
        let mut bytes = vec![0; dtype.bytes_of(rows * cols).expect("whole blocks")];
        quantize_row(dtype, &weights, &mut bytes);
        (MatrixShape { rows, cols, dtype }, bytes)
    };
    types.iter().map(encode).collect()
}

fn sources(parts: &[(MatrixShape, Vec<u8>)]) -> Vec<MatrixSource<'_>> {
    parts.iter().map(|(shape, bytes)| MatrixSource { name: "w", shape: *shape, bytes }).collect()
}

/// Outputs of all rows, and those of some rows each alone.
struct Outputs {
    all: Vec<f32>, // (rows, WIDTH)
    alone: Vec<(usize, Vec<f32>)>,
}

fn run(tier: Tier, threads: usize, kind: usize) -> Result<Outputs, KernelError> {
    let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(threads)), tier));
    // As narrow as can be, so that copies of f32 rows are made in several runs.
    backend.reserve(&StepLimits {
        experts: EXPERTS,
        experts_used: PARAMS.experts_used,
        experts_width: WIDTH,
        ..limits(ROWS, WIDTH)
    })?;
    let gate_types = |expert: usize| match kind {
        0 => [DType::Q4_K; 2],
        1 | 3 => [DType::F16; 2],
        _ => [[DType::Q4_K, DType::F16], [DType::Q8_0, DType::Q8_0], [DType::F16, DType::Q6_K]][expert % 3],
    };
    let params = MoeParams { gated: kind < 3, ..PARAMS };
    let parts = if params.gated { 2 } else { 1 };
    let router = backend.pack(&sources(&stored_parts(&[DType::F32], EXPERTS, WIDTH, 0)))?;
    let stored: Vec<_> = (0..EXPERTS)
        .map(|expert| {
            let gate_up = stored_parts(&gate_types(expert)[..parts], HIDDEN, WIDTH, 1 + expert);
            // More parts than there are experts: more than a plan holds.
            (gate_up, stored_parts(&[DType::Q4_K, DType::Q6_K], WIDTH / 2, HIDDEN, 50 + expert))
        })
        .collect();
    let shapes = |parts: &[(MatrixShape, Vec<u8>)]| parts.iter().map(|(shape, _)| *shape).collect();
    let shapes: Vec<_> = stored
        .iter()
        .map(|(gate_up, down)| ExpertParts { gate_up: shapes(gate_up), down: shapes(down) })
        .collect();
    let mut experts = backend.experts(&shapes)?;
    for (gate_up, down) in &stored {
        let parts = ExpertParts { gate_up: sources(gate_up), down: sources(down) };
        backend.pack_expert(&mut experts, &parts)?;
    }
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| 4.0 * ((i as f32 * 0.37).sin() + 0.1)).collect();
    let mut mix = |x: &[f32]| -> Result<Vec<f32>, KernelError> {
        let rows = x.len() / WIDTH;
        let (mut input, mut out) = (
            backend.buffer(BufferRole::Operand, rows, WIDTH)?,
            backend.buffer(BufferRole::Operand, rows, WIDTH)?,
        );
        let mut hidden = backend.buffer(BufferRole::Operand, rows, PARAMS.experts_used * HIDDEN)?;
        backend.write_rows(&mut input, 0, x)?;
        let count = rows as u32;
        backend.begin(&Batch {
            sources: vec![RowSource::Token(0); rows],
            positions: (0..count).collect(),
            axes: Vec::new(),
            types: Vec::new(),
            slots: (0..count).collect(),
            sequences: vec![SequenceSpan { row_first: 0, rows: count, context: count, table_first: 0 }],
            adapters: Vec::new(),
            sees: Vec::new(),
            memories: Vec::new(),
            memory_tables: Vec::new(),
            states: Vec::new(),
            block_tables: (0..count.div_ceil(16)).collect(),
            logit_rows: Vec::new(),
            windows: Vec::new(),
        })?;
        backend.moe(&MoeOperands::plain(&router, &experts), &params, &input, &mut hidden, &mut out);
        backend.end()?;
        let mut result = vec![0.0; rows * WIDTH];
        backend.read_rows(&out, 0, &mut result)?;
        Ok(result)
    };
    let all = mix(&x)?;
    let alone = [0, 17, 151, 299].map(|row| Ok((row, mix(&x[row * WIDTH..][..WIDTH])?)));
    Ok(Outputs { all, alone: alone.into_iter().collect::<Result<_, KernelError>>()? })
}

#[test]
fn large_steps_have_the_bits_of_single_rows() -> Result<(), KernelError> {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let tier =
        Tier::available().filter(|&tier| tier != Tier::Amx).last().expect("the portable tier always is");
    let amx = Tier::Amx.is_available().then_some(Tier::Amx);
    for (tier, kind) in
        [Some(tier), amx].into_iter().flatten().flat_map(|tier| (0..4).map(move |kind| (tier, kind)))
    {
        let Outputs { all, alone } = run(tier, 3, kind)?;
        assert!(
            all.iter().all(|v| v.is_finite()) && all.iter().any(|v| v.abs() > 1e-3),
            "{tier}, experts {kind}"
        );
        for (row, alone) in alone {
            assert!(
                bits(&alone) == bits(&all[row * WIDTH..][..WIDTH]),
                "{tier}, experts {kind}, row {row} alone"
            );
        }
        assert!(bits(&run(tier, 1, kind)?.all) == bits(&all), "{tier}, experts {kind} on one thread");
    }
    Ok(())
}
