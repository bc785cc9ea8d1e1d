//! Latent attention apart from its scores: products of each head with a separate matrix, and the writing of latents to
//! the cache.

use super::activations::Input;
use super::aligned::{AlignedArray, SharedPointer};
use super::cores::Cores;
use super::kv::{GROUP, LayerKv, LayerLayout, padded};
use super::lanes::{Kernel, Lanes, dispatch};
use super::matmul::{Epilogue, Groups, Product};
use super::matrix::CpuMatrix;
use super::norm::{rms_factor, scale};
use super::rope::{QkvJob, RopeTables, load_part, rotate_head, store_scale};
use super::rows::Rows;
use hanzo_engine_ops::quant::to_e4m3;
use hanzo_engine_ops::{BLOCK_TOKENS, Batch, HeadShape, KernelError, KvType, LatentHeads, StepLimits};

const LANES: usize = 16;
/// Rows whose heads are multiplied together.
const ROWS: usize = 64;

/// Rows of a window, regrouped by head, as products need them.
#[derive(Debug)]
pub(super) struct LatentScratch {
    heads: AlignedArray<f32>, // (heads, rows, inputs), then (heads, rows, outputs)
    firsts: Vec<u32>,         // (heads + 1): first columns of the heads
}

impl LatentScratch {
    fn floats(limits: &StepLimits) -> usize {
        limits.rows.min(ROWS).saturating_mul(limits.heads_matmul_width)
    }

    fn heads(limits: &StepLimits) -> usize {
        if limits.heads_matmul_width == 0 { 0 } else { limits.heads.heads + 1 }
    }

    /// Bytes of [`LatentScratch::new`].
    pub(super) fn bytes(limits: &StepLimits) -> usize {
        Self::floats(limits).saturating_mul(4).saturating_add(4 * Self::heads(limits))
    }

    pub(super) fn new(limits: &StepLimits) -> Result<LatentScratch, KernelError> {
        Ok(LatentScratch {
            heads: AlignedArray::zeroed(Self::floats(limits), "the heads' scratch")?,
            firsts: Vec::with_capacity(Self::heads(limits)),
        })
    }
}

/// The contract's `heads_matmul`.
pub(super) fn heads_matmul(
    product: &mut Product<'_>,
    scratch: &mut LatentScratch,
    rows: usize,
    weights: &[CpuMatrix],
    x: Rows<&[f32]>,
    out: Rows<&mut [f32]>,
) {
    let heads = weights.len();
    assert!(heads > 0, "a matrix for each head");
    let (outputs, cols) = (weights[0].rows(), weights[0].cols());
    let (x_stride, out_stride) = (x.stride / heads, out.stride / heads);
    assert!(x_stride >= cols && x.stride == heads * x_stride, "{} columns for {heads} heads", x.stride);
    let rest = x_stride - cols;
    assert!(
        out_stride == outputs + rest && out.stride == heads * out_stride,
        "what heads give and have more"
    );
    assert!(
        x.numbers.len() >= rows * x.stride && out.numbers.len() >= rows * out.stride,
        "rows in the buffers"
    );
    let (from, to) = (SharedPointer::new_const(x.numbers.as_ptr()), SharedPointer::new(out.numbers));
    for first in (0..rows).step_by(ROWS) {
        let window = ROWS.min(rows - first);
        let (inputs, given) = scratch.heads.split_at_mut(heads * window * cols);
        let grain = (1 << 14) / x.stride.max(out.stride) + 1;
        let gathered = SharedPointer::new(inputs);
        product.turn.run(window, grain, &|_, range| {
            for row in range {
                for head in 0..heads {
                    // SAFETY: the row is in both buffers (asserted), and in one range of one thread; the scratch holds
                    // each head's rows of the window, as `split_at_mut` and the product's assertion show.
                    unsafe {
                        let from = from.get().add((first + row) * heads * x_stride + head * x_stride);
                        let to = to.get().add((first + row) * heads * out_stride + head * out_stride);
                        let gathered = gathered.get().add((head * window + row) * cols);
                        std::ptr::copy_nonoverlapping(from, gathered, cols);
                        std::ptr::copy_nonoverlapping(from.add(cols), to.add(outputs), rest);
                    }
                }
            }
        });
        scratch.firsts.clear();
        scratch.firsts.extend((0..=heads).map(|head| (head * window) as u32));
        let groups = Groups { matrices: weights, firsts: &scratch.firsts };
        let input = Input { x: inputs.as_ptr(), rows: heads * window, step: None, places: None };
        // SAFETY: the inputs of each head's rows were gathered above; nothing is prepared.
        unsafe { product.store_rows(groups, 0..outputs, Epilogue::default(), input, &mut None, given) };
        let given = SharedPointer::new_const(given.as_ptr());
        product.turn.run(window, grain, &|_, range| {
            for row in range {
                for head in 0..heads {
                    // SAFETY: as above; the product has written each head's rows.
                    unsafe {
                        let to = to.get().add((first + row) * heads * out_stride + head * out_stride);
                        let given = given.get().add((head * window + row) * outputs);
                        std::ptr::copy_nonoverlapping(given, to, outputs);
                    }
                }
            }
        });
    }
}

/// Parameters of `latent_to_cache`.
pub(super) struct LatentJob<'a> {
    pub(super) shape: LatentHeads,
    pub(super) norm: &'a [f32],
    /// Rotation, for heads that are as long as their rotated part.
    pub(super) turned: QkvJob<'a>,
}

impl<'a> LatentJob<'a> {
    pub(super) fn new(
        shape: LatentHeads,
        norm: &'a [f32],
        norm_eps: f32,
        rotation: super::rope::Rotation<'a>,
    ) -> Self {
        let of_rope = HeadShape { heads: 1, kv_heads: 1, head_dim: shape.rope_dim };
        let turned = QkvJob {
            shape: of_rope,
            q_norm: None,
            k_norm: None,
            norm_eps,
            norm_after_rope: false,
            rotation: Some(rotation),
            query_scale: None,
            values_normed: false,
        };
        LatentJob { shape, norm, turned }
    }
}

/// Kernel for one row.
struct LatentRow<'a> {
    job: &'a LatentJob<'a>,
    latent: *mut f32,    // (rank + rope_dim)
    queries: *mut f32,   // (heads, rank + rope_dim)
    cos_sin: *const f32, // (2, pairs)
    block: *mut u8,      // the slot's block
    offset: usize,       // the slot's token in the block
    kv_type: KvType,
}

impl Kernel for LatentRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let LatentHeads { heads, rank, .. } = self.job.shape;
        let width = self.job.shape.width();
        // SAFETY: the maker vouches for the latent, all queries, cos_sin of the rotation's pairs, and the slot.
        unsafe {
            let factor = rms_factor::<L>(self.latent, rank, self.job.turned.norm_eps);
            scale::<L>(self.latent, factor, self.job.norm.as_ptr(), rank, self.latent);
            if let Some(rotation) = &self.job.turned.rotation {
                let pairs = rotation.inv_freq.len();
                rotate_head::<L>(rotation.kind, self.latent.add(rank), self.cos_sin, pairs);
                for head in 0..heads {
                    let query = self.queries.add(head * width + rank);
                    rotate_head::<L>(rotation.kind, query, self.cos_sin, pairs);
                }
            }
            match self.kv_type {
                KvType::F16 => {
                    let to = self.block.cast::<u16>().add(self.offset * padded(width));
                    for at in (0..width).step_by(LANES) {
                        let part = load_part::<L>(self.latent.add(at), LANES.min(width - at));
                        L::store_f16(to.add(at), part);
                    }
                }
                KvType::Fp8 => {
                    let to = self.block.add(self.offset * padded(width));
                    for at in 0..width {
                        to.add(at).write(to_e4m3(self.latent.add(at).read()));
                    }
                }
                KvType::Q8_0 => {
                    let scales = self.block.add(BLOCK_TOKENS * width).cast::<u16>().add(self.offset);
                    for at in (0..width).step_by(GROUP) {
                        let mut sums = [0; 2];
                        let codes = self.block.add(self.offset * width + at).cast();
                        let scale =
                            super::activations::quantize::<L, 2>(self.latent.add(at), codes, &mut sums);
                        store_scale::<L>(scales.add(at / GROUP * BLOCK_TOKENS), scale);
                    }
                }
            }
        }
    }
}

/// The contract's `latent_to_cache`.
pub(super) fn to_cache(
    Cores { tier, turn }: Cores<'_>,
    tables: &mut RopeTables,
    batch: &Batch,
    job: &LatentJob<'_>,
    latent: &mut [f32],
    queries: &mut [f32],
    kv: LayerKv<&mut [u8]>,
) {
    let (rows, width, heads) = (batch.rows(), job.shape.width(), job.shape.heads);
    assert!(latent.len() >= rows * width, "fewer latents than the batch has rows");
    assert!(queries.len() >= rows * heads * width, "fewer queries than the batch has rows");
    assert_eq!(job.norm.len(), job.shape.rank, "a weight for each number of a latent");
    let LayerKv { layout: LayerLayout { kv_type, blocks, value_block, group, .. }, values, .. } = kv;
    assert!(group < batch.groups(), "a layer of a group that the batch does not have");
    let slots = blocks * BLOCK_TOKENS;
    assert!(batch.slots.iter().all(|&slot| (slot as usize) < slots), "a slot outside the cache");
    let (cos_sin, fresh, pairs) = tables.of(&job.turned, rows);
    let (cos_sin, values) = (cos_sin.shared(), SharedPointer::new(values));
    let (latent, queries) = (SharedPointer::new(latent), SharedPointer::new(queries));
    turn.run(rows, (1 << 13) / (heads * width).max(1) + 1, &|_, range| {
        for row in range {
            let slot = batch.row_slot(row, group);
            // SAFETY: row, slot and table row are inside their arrays by the assertions above. A row belongs to one
            // range of one thread, and a batch gives every row a slot of its own.
            unsafe {
                let cos_sin = cos_sin.get().add(row * 2 * pairs);
                if fresh && let Some(rotation) = &job.turned.rotation {
                    let table = std::slice::from_raw_parts_mut(cos_sin, 2 * pairs);
                    super::rope::fill(rotation, batch, row, table);
                }
                let latent = latent.get().add(row * width);
                let queries = queries.get().add(row * heads * width);
                let (block, offset) =
                    (values.get().add(slot / BLOCK_TOKENS * value_block), slot % BLOCK_TOKENS);
                dispatch(tier, LatentRow { job, latent, queries, cos_sin, block, offset, kv_type });
            }
        }
    });
}
