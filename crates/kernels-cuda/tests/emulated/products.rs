//! Tests of matrix products: the choice of the kernel does not change the results.

use std::slice::from_ref;

use half::{bf16, f16};
use hanzo_engine_cuda_emulator::Sources;
use hanzo_engine_kernels_cuda::{CudaBackend, Device};
use hanzo_engine_ops::{
    Backend, Batch, BufferRole, DType, DeviceMemory, MatrixShape, MatrixSource, RowSource, StepLimits,
};

use crate::driver::card;
use crate::replay::{limits, numbers};
use crate::typed::TypedOps;

/// Rows of the largest batch: more than one tile of the kernel for many rows.
pub(crate) const ROWS: usize = 150;
/// Outputs that end within a tile. `COLS` is a number of columns that no number of segments divides.
pub(crate) const OUTPUTS: usize = 43;
const COLS: usize = 32 * 7;

/// Products of rows with matrices stacked by outputs, each with [`OUTPUTS`] of them.
pub(crate) fn products<D: Device>(
    mut backend: CudaBackend<D>,
    matrices: &[(DType, Vec<u8>)],
    (x, cols): (&[f32], usize),
) -> Vec<f32> {
    let rows = x.len() / cols;
    backend.reserve(&StepLimits { rows: ROWS, context: ROWS, width: cols, ..limits() }).expect("memory");
    let sources = matrices.iter().map(|(dtype, bytes)| MatrixSource {
        name: "numbers",
        shape: MatrixShape { rows: OUTPUTS, cols, dtype: *dtype },
        bytes,
    });
    let outputs = OUTPUTS * matrices.len();
    let matrix = backend.pack(&sources.collect::<Vec<_>>()).expect("memory");
    let mut from = backend.buffer(BufferRole::Operand, rows, cols).expect("memory");
    let mut to = backend.buffer(BufferRole::Operand, rows, outputs).expect("memory");
    backend.write_rows(&mut from, 0, x).expect("a copy");
    let mut batch = Batch::default();
    batch.sources.extend((0..rows as u32).map(RowSource::Token));
    batch.push_sequence(rows, rows, |_, at| at as u32);
    backend.begin(&batch).expect("a step");
    backend.matmul(&matrix, &from, &mut to);
    backend.end().expect("a step");
    let mut out = vec![0.0; rows * outputs];
    backend.read_rows(&to, 0, &mut out).expect("a copy");
    out
}

/// Checks that the kernels for few, some, tens of and many rows give a row the same bits, and the right numbers up to
/// rounding: F32 and mixtures with it in tf32, others in split precision.
pub(crate) fn check_products<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    let x = numbers(1, ROWS * COLS);
    let weights = numbers(2, OUTPUTS * COLS);
    let stored = |bytes: &dyn Fn(f32) -> Vec<u8>| weights.iter().flat_map(|&value| bytes(value)).collect();
    let half = |value: f32| f32::from_bits(value.to_bits() & 0xffff_0000);
    // A block of 32 is its scale, one eighth, and codes.
    let codes = |values: &[f32]| {
        let codes = values.iter().map(|value| (value * 100.0) as i8 as u8);
        f16::from_f32(0.125).to_le_bytes().into_iter().chain(codes).collect::<Vec<u8>>()
    };
    let f32s = (DType::F32, stored(&|value| value.to_le_bytes().to_vec()));
    let f16s = (DType::F16, stored(&|value| f16::from_f32(value).to_le_bytes().to_vec()));
    let bf16s = (DType::BF16, stored(&|value| bf16::from_f32(half(value)).to_le_bytes().to_vec()));
    let bytes = (DType::Q8_0, weights.chunks(32).flat_map(codes).collect());
    let stacks: [&[(DType, Vec<u8>)]; 5] = [
        from_ref(&f32s),
        from_ref(&bf16s),
        from_ref(&f16s),
        &[f32s.clone(), bf16s.clone()],
        &[bytes, f16s.clone()],
    ];
    for matrices in stacks {
        let outputs = OUTPUTS * matrices.len();
        let all = products(make(), matrices, (&x, COLS));
        let kept = |value: f32| match matrices[0].0 {
            DType::F32 => value,
            DType::F16 => f16::from_f32(value).to_f32(),
            DType::Q8_0 => f32::from((value * 100.0) as i8) / 8.0,
            _ => half(value),
        };
        for (row, found) in all.chunks(outputs).enumerate() {
            let (x, output) = (&x[row * COLS..][..COLS], row % OUTPUTS);
            let pairs = weights[output * COLS..].iter().zip(x);
            let right: f64 = pairs.map(|(&w, &x)| f64::from(kept(w)) * f64::from(x)).sum();
            assert!(
                (f64::from(found[output]) - right).abs() < 1e-4 * right.abs().max(1.0),
                "row {row} of {}: {} for {right}",
                matrices[0].0,
                found[output]
            );
        }
        for rows in [1, 9, 16, 17, 64] {
            let few = products(make(), matrices, (&x[..rows * COLS], COLS));
            let same = few.iter().zip(&all).all(|(few, all)| few.to_bits() == all.to_bits());
            assert!(same, "{rows} rows of {} matrices differ from the same of {ROWS}", matrices.len());
        }
    }
}

/// Sources without the kernels for products of blocks, which need not be compiled if weights are floats.
pub(crate) fn of_floats(sources: Sources) -> Sources {
    let few = "FEW_KERNEL(product_few_blocks, BLOCKS, 2)\nSOME_KERNEL(product_some_blocks, BLOCKS, 2, 2, 2)\n\
               SOME_KERNEL(product_batch_blocks, BLOCKS, 8, 2, 1)\n";
    let many = "WIDE_KERNEL(product_many_blocks, ProductParams, THREADS, 2) {\n  SHARED(unsigned char, room);\n  \
                multiply_many_rows<BLOCKS>(p, room);\n}\n";
    sources.with("product.cu", few, "").with("product.cu", many, "")
}

#[test]
fn kernels_of_products_agree_to_the_bit() {
    let card = card();
    check_products(&|| CudaBackend::new(card.clone()));
}
