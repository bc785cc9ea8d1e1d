//! Tests of weights in 8-bit floats, which a GPU holds as stored and must read as the reference does.

use hanzo_engine_kernels_cuda::CudaBackend;
use hanzo_engine_ops::reference::ReferenceBackend;
use hanzo_engine_ops::{
    Allocation, Backend, Batch, BufferRole, DType, DeviceMemory, MatrixShape, MatrixSource, Op, RowSource,
    StepLimits,
};

use crate::driver::card;
use crate::few_bits::{blocks, check_types};
use crate::products::{OUTPUTS, products};
use crate::replay::{limits, numbers};

const COLS: usize = 512;

#[test]
fn products_of_8_bit_floats_agree_to_the_bit() {
    use DType::*;
    let card = card();
    let make = || CudaBackend::new(card.clone());
    // Alone; with types that f16 represents, in split precision; with BF16 and F32, in tf32.
    let stacks: [&[DType]; 5] = [&[FP8], &[FP8_G32], &[FP8, Q8_0, F16], &[FP8_G32, BF16], &[F32, FP8]];
    for types in stacks {
        check_types(&make, types);
    }
}

/// Rows of a table.
fn embedded<B: Backend>(mut backend: B, source: MatrixSource<'_>) -> Vec<f32> {
    let MatrixShape { rows, cols, .. } = source.shape;
    backend.reserve(&StepLimits { rows, context: rows, width: cols, ..limits() }).expect("memory");
    let table = backend.pack(&[source]).expect("memory");
    let mut to = backend.buffer(BufferRole::Operand, rows, cols).expect("memory");
    let mut batch = Batch::default();
    batch.sources.extend((0..rows as u32).map(RowSource::Token));
    batch.push_sequence(rows, rows, |_, at| at as u32);
    backend.begin(&batch).expect("a step");
    backend.run(Op::Embed { table: &table, scale: 1.0, out: &mut to });
    backend.end().expect("a step");
    let mut out = vec![0.0; rows * cols];
    backend.read_rows(&to, 0, &mut out).expect("a copy");
    out
}

/// Checks each of the codes against the reference.
#[test]
fn tables_of_8_bit_floats_are_the_reference_s_to_the_bit() {
    for dtype in [DType::FP8, DType::FP8_G32] {
        let bytes = blocks(dtype, 5, OUTPUTS * COLS);
        let shape = MatrixShape { rows: OUTPUTS, cols: COLS, dtype };
        let source = MatrixSource { name: "a table", shape, bytes: &bytes };
        let found = embedded(CudaBackend::new(card()), source);
        let expected = embedded(ReferenceBackend::new(), source);
        let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "a table in {dtype}");
    }
}

/// Checks that a NaN shows wherever a product reads it, and nowhere else.
#[test]
fn what_is_no_number_stays_none() {
    const NAN_AT: usize = 7;
    for (dtype, beside) in [(DType::FP8, None), (DType::FP8_G32, None), (DType::FP8, Some(DType::F32))] {
        let mut bytes = blocks(dtype, 6, OUTPUTS * COLS);
        let (row, block) = (bytes.len() / OUTPUTS, dtype.block_bytes());
        bytes[NAN_AT * row + 2 * block - 1] = 0xff;
        let mut matrices = vec![(dtype, bytes)];
        matrices.extend(beside.map(|dtype| (dtype, vec![0; OUTPUTS * COLS * dtype.block_bytes()])));
        for rows in [1, 20, 70] {
            let found = products(CudaBackend::new(card()), &matrices, (&numbers(8, rows * COLS), COLS));
            for (at, value) in found.iter().enumerate() {
                let output = at % (matrices.len() * OUTPUTS);
                assert_eq!(
                    value.is_nan(),
                    output == NAN_AT,
                    "output {output} of {rows} rows of {dtype}: {value}"
                );
            }
        }
    }
}

/// Checks the size: one byte a weight, and the scales.
#[test]
fn a_card_has_8_bit_floats_as_files_have_them() {
    let backend = CudaBackend::new(card());
    let bytes = |dtype| backend.bytes(&Allocation::Matrix(&[MatrixShape { rows: 4096, cols: 4096, dtype }]));
    const TABLE: usize = 32;
    assert_eq!(bytes(DType::FP8), 4096 * 4096 / 128 * 132 + TABLE);
    assert_eq!(bytes(DType::FP8_G32), 4096 * 4096 / 32 * 36 + TABLE);
    assert!(2 * bytes(DType::FP8) < bytes(DType::BF16) * 104 / 100);
}
