//! Products and attention of many rows by warpgroups (`cuda/product_wide.cu`, `cuda/attention_groups.cu`), if a device
//! has the kernels.
//!
//! A row's results must not depend on the number of rows. They do not if the tensor cores sum 16 products in the same
//! way for a warpgroup as for a warp, which no manual promises. So the device is tested: both kinds of kernels compute
//! with numbers whose sums reveal every bit that one keeps and the other does not. Warpgroup kernels are used if all
//! bits are the same.

use half::{bf16, f16};
use hanzo_engine_ops::{AnyBackend, BLOCK_TOKENS, DType, KvLayout, KvType};

use super::*;
use crate::shapes::WIDE_ROWS;

/// Sizes of the compared products.
const OUTPUTS: usize = 192;
const COLS: usize = 512;
/// Rows of the compared attention, over several spans of keys. `ATTENTION_SCALE` makes scores of some size, so that
/// weights show their bits.
const ATTENTION_ROWS: usize = 288;
const ATTENTION_SCALE: f32 = 1.0 / 1024.0;

impl<D: Device> CudaBackend<D> {
    /// Whether products of many rows use warpgroups.
    pub fn is_wide(&self) -> bool {
        self.wide_above < u32::MAX
    }

    /// Whether they also use them for few rows.
    pub(super) fn has_few_rows_wide(&self) -> bool {
        self.wide_above == 0
    }

    /// Makes warpgroups also multiply few rows and compute attention of few, if they do so for many.
    pub fn with_few_rows_wide(self) -> Self {
        Self { wide_above: if self.is_wide() { 0 } else { u32::MAX }, ..self }
    }
}

/// Whether a device with both kinds of kernels gives the same bits with both. False if it fails, which it then reports
/// when it is used.
pub(super) fn agrees<D: Device>(device: &D) -> bool {
    let same = |of: &dyn Fn(CudaBackend<D>) -> Result<Vec<f32>, KernelError>, wide_above| {
        let [narrow, wide] = [u32::MAX, wide_above].map(|above| of(CudaBackend::with(device.clone(), above)));
        matches!((narrow, wide), (Ok(narrow), Ok(wide)) if bits_of(&narrow).eq(bits_of(&wide)))
    };
    [DType::F16, DType::BF16].into_iter().all(|dtype| same(&|backend| products(backend, dtype), BATCH_ROWS))
        && [64, 128].into_iter().all(|head_dim| same(&|backend| attention(backend, head_dim), 0))
}

fn bits_of(numbers: &[f32]) -> impl Iterator<Item = u32> {
    numbers.iter().map(|number| number.to_bits())
}

/// Numbers of either sign, from 2^-`apart` to 2^`apart`, with full mantissas.
fn numbers(count: usize, apart: i32) -> impl Iterator<Item = f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 33) as u32;
        let exponent = 127 - apart + (bits >> 24 & 63) as i32 % (2 * apart);
        f32::from_bits(bits << 8 & 0x8000_0000 | (exponent as u32) << 23 | bits & 0x7f_ffff)
    })
}

fn limits(rows: usize, width: usize, head_dim: usize) -> StepLimits {
    StepLimits {
        rows,
        sequences: 1,
        logit_rows: 1,
        context: rows,
        width,
        vocab: 1,
        heads: HeadShape { heads: 1, kv_heads: 1, head_dim },
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// A batch of one sequence, from its first token on.
fn batch_of(rows: usize) -> Batch {
    let mut batch = Batch::default();
    batch.sources.extend((0..rows as u32).map(RowSource::Token));
    batch.push_sequence(rows, rows, |_, at| at as u32);
    batch
}

fn products<D: Device>(mut backend: CudaBackend<D>, dtype: DType) -> Result<Vec<f32>, KernelError> {
    let rows = WIDE_ROWS as usize;
    backend.reserve(&limits(rows, COLS, 32))?;
    let bits = |value| match dtype {
        DType::F16 => f16::from_f32(value).to_bits(),
        _ => bf16::from_f32(value).to_bits(),
    };
    let stored: Vec<u8> = numbers(OUTPUTS * COLS, 8).flat_map(|value| bits(value).to_le_bytes()).collect();
    let shape = MatrixShape { rows: OUTPUTS, cols: COLS, dtype };
    let matrix = backend.pack(&[MatrixSource { name: "numbers to be compared", shape, bytes: &stored }])?;
    let mut x = backend.buffer(BufferRole::Operand, rows, COLS)?;
    let mut out = backend.buffer(BufferRole::Operand, rows, OUTPUTS)?;
    backend.write_rows(&mut x, 0, &numbers(rows * COLS, 12).collect::<Vec<_>>())?;
    backend.begin(&batch_of(rows))?;
    backend.matmul(&matrix, None, &x, &mut out);
    backend.end()?;
    let mut found = vec![0.0; rows * OUTPUTS];
    backend.read_rows(&out, 0, &mut found)?;
    Ok(found)
}

fn attention<D: Device>(backend: CudaBackend<D>, head_dim: usize) -> Result<Vec<f32>, KernelError> {
    let mut backend = AnyBackend::new(backend);
    let (rows, shape) = (ATTENTION_ROWS, HeadShape { heads: 1, kv_heads: 1, head_dim });
    backend.reserve(&limits(rows, shape.qkv_width(), head_dim))?;
    let layers = vec![KvLayout::Heads { kv_heads: 1, head_dim, window: None }];
    let blocks = rows.div_ceil(BLOCK_TOKENS);
    let kv = backend.kv(&KvSpec { layers, blocks, kv_type: KvType::F16, ..KvSpec::default() })?;
    let mut qkv = backend.buffer(BufferRole::Operand, rows, shape.qkv_width())?;
    let out = backend.buffer(BufferRole::Operand, rows, head_dim)?;
    backend.write_rows(&mut qkv, 0, &numbers(rows * shape.qkv_width(), 6).collect::<Vec<_>>())?;
    backend.begin(&batch_of(rows))?;
    let (qkv, kv, layer) = (qkv.id(), kv.id(), 0);
    let params = AttentionParams::of(shape, ATTENTION_SCALE);
    backend.run_all(&[
        Op::RopeToCache { qkv, params: QkvParams::plain(shape), kv, layer },
        Op::Attention { qkv, params, kv, layer, out: out.id() },
    ]);
    backend.end()?;
    let mut found = vec![0.0; rows * head_dim];
    backend.read_rows(&out, 0, &mut found)?;
    Ok(found)
}
