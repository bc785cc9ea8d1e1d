//! Convolutions of long lines, which are computed in chunks, at some places of them.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{
    AnyBackend, Batch, BufferRole, ConvParams, DType, KernelError, KernelUse, MatrixShape, MatrixSource, Op,
    RowSource, SequenceSpan,
};

use super::limits;

const PLACES: usize = 20_000;
/// Outputs from one that is compared to the next: no divisor of a chunk.
const EVERY: usize = 37;

/// Numbers between -1 and 1.
fn numbers(count: usize, mut seed: u32) -> Vec<f32> {
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A batch of one line.
fn line(places: usize) -> Batch {
    let rows = places as u32;
    Batch {
        sources: vec![RowSource::Embedding; places],
        positions: (0..rows).collect(),
        sequences: vec![SequenceSpan { row_first: 0, rows, context: rows, table_first: 0 }],
        ..Batch::default()
    }
}

/// Outputs of a convolution of `channels` to as many, and the greatest difference of some of them from their sums.
fn difference(tier: Tier, channels: usize, of: KernelUse) -> Result<f64, KernelError> {
    let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier));
    backend.reserve(&limits(PLACES, 16))?;
    let taps = of.params.taps();
    let (weights, x) = (numbers(channels * channels * taps, 1), numbers(PLACES * channels, 2));
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let shape = MatrixShape { rows: channels, cols: channels * taps, dtype: DType::F32 };
    let kernel = backend.pack_kernel(&MatrixSource { name: "kernel", shape, bytes: &bytes }, &of)?;
    let params = of.params.of(PLACES, 1);
    let places = if of.transposed { params.output_transposed()[2] } else { params.output()[2] };
    let mut input = backend.buffer(BufferRole::Operand, PLACES, channels)?;
    backend.write_rows(&mut input, 0, &x)?;
    let out = backend.buffer(BufferRole::Operand, places, channels)?;
    let (x_id, weight, to) = (input.id(), kernel.id(), out.id());
    let (affine, before, bias, add) = (None, None, None, None);
    backend.begin(&line(PLACES))?;
    backend.run(&match of.transposed {
        false => Op::Conv { x: x_id, affine, before, weight, bias, params, add, out: to },
        true => Op::ConvTranspose { x: x_id, affine, before, weight, bias, params, out: to },
    });
    backend.end()?;
    let mut found = vec![0.0; places * channels];
    backend.read_rows(&out, 0, &mut found)?;
    let (stride, dilation, padding) = (params.stride[2], params.dilation[2], params.padding[2][0]);
    let mut most: f64 = 0.0;
    for at in (0..places * channels).step_by(EVERY) {
        let (place, output) = (at / channels, at % channels);
        let mut sum = 0.0;
        for tap in 0..taps {
            let from = match of.transposed {
                false => (place * stride + tap * dilation).checked_sub(padding),
                true => (place + padding).checked_sub(tap).filter(|from| from % stride == 0),
            };
            let from = if of.transposed { from.map(|from| from / stride) } else { from };
            let Some(from) = from.filter(|&from| from < PLACES) else { continue };
            for channel in 0..channels {
                let weight = match of.transposed {
                    false => weights[(output * channels + channel) * taps + tap],
                    true => weights[(channel * channels + output) * taps + tap],
                };
                sum += f64::from(weight) * f64::from(x[from * channels + channel]);
            }
        }
        most = most.max((f64::from(found[at]) - sum).abs());
    }
    Ok(most)
}

#[test]
fn chunks_of_a_long_line_fit_together() {
    let of = |taps, stride, dilation, padding, transposed| {
        let params = ConvParams {
            stride: [1, 1, stride],
            dilation: [1, 1, dilation],
            padding: [[0; 2], [0; 2], [padding, padding]],
            ..ConvParams::along(taps)
        };
        KernelUse { params, transposed }
    };
    for tier in Tier::available() {
        for (channels, of) in [
            (48, of(3, 1, 1, 1, false)),
            (48, of(7, 1, 5, 15, false)),
            (32, of(15, 1, 3, 21, false)),
            (64, of(15, 2, 1, 7, false)),
            (32, of(16, 8, 1, 4, true)),
        ] {
            let most = difference(tier, channels, of).unwrap();
            assert!(most < 2e-4, "{tier}, {of:?}: off by {most}");
        }
    }
}
