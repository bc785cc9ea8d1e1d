//! Queries and keys between projection and cache: per-head norm, rotation, and writing keys and values to their slots.
//! Sines and cosines are computed once a step for each table of frequencies, by the first layer that needs them.

use super::activations::quantize;
use super::aligned::{AlignedArray, SharedPointer};
use super::cores::Cores;
use super::kv::{GROUP, LayerKv, LayerLayout, padded};
use super::lanes::{Kernel, Lanes, dispatch};
use super::matmul::put;
use super::norm::{rms_factor, scale};
use hanzo_engine_ops::quant::to_e4m3;
use hanzo_engine_ops::{BLOCK_TOKENS, Batch, HeadShape, KernelError, KvType, QueryScale, RopeAxes, RopeKind};

/// Tables kept through a step: local and global layers differ at most in their frequencies.
const TABLES: usize = 2;
const LANES: usize = 16;

/// Key of a table of cosines and sines within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TableKey {
    frequencies: u64,
    magnitudes: [Option<u32>; 2], // bits of the magnitude of the first frequencies, and of the second
    axes: Option<RopeAxes>,
}

/// Cosines and sines of the step's rows.
#[derive(Debug)]
pub(super) struct RopeTables {
    tables: [Table; TABLES],
    width: usize,
    next: usize,
}

#[derive(Debug)]
struct Table {
    /// Key of the table, once computed for the open step.
    key: Option<TableKey>,
    cos_sin: AlignedArray<f32>, // (rows, 2, pairs): cosines, then sines, times magnitude
}

impl RopeTables {
    pub(super) fn bytes(rows: usize, head_dim: usize) -> usize {
        TABLES * rows.saturating_mul(padded(head_dim)) * size_of::<f32>()
    }

    pub(super) fn new(rows: usize, head_dim: usize) -> Result<RopeTables, KernelError> {
        let width = padded(head_dim);
        let table = || -> Result<Table, KernelError> {
            Ok(Table {
                key: None,
                cos_sin: AlignedArray::zeroed(rows.saturating_mul(width), "rotary tables")?,
            })
        };
        Ok(RopeTables { tables: [table()?, table()?], width, next: 0 })
    }

    /// Discards the tables of the last step.
    pub(super) fn clear(&mut self) {
        for table in &mut self.tables {
            table.key = None;
        }
    }

    /// Table for a key, and whether it has yet to be computed.
    fn table(&mut self, key: TableKey) -> (&mut AlignedArray<f32>, bool) {
        let known = self.tables.iter().position(|table| table.key == Some(key));
        let index = known.unwrap_or_else(|| {
            self.next = (self.next + 1) % TABLES;
            self.next
        });
        self.tables[index].key = Some(key);
        (&mut self.tables[index].cos_sin, known.is_none())
    }

    /// Table for a job on `rows` rows, whether it has yet to be computed, and its pairs. Asserts that the job fits its
    /// heads, and that the table fits its rows.
    pub(super) fn of(&mut self, job: &QkvJob<'_>, rows: usize) -> (&mut AlignedArray<f32>, bool, usize) {
        let HeadShape { heads, kv_heads, head_dim } = job.shape;
        for (norm, heads) in [(job.q_norm, heads), (job.k_norm, kv_heads)] {
            let fits = |norm: &[f32]| {
                norm.len() == head_dim || norm.len() == heads * head_dim && !job.norm_after_rope
            };
            assert!(norm.is_none_or(fits), "a norm has one weight an element, of a head or of all");
        }
        let pairs = job.rotation.map_or(0, |rotation| rotation.inv_freq.len());
        assert!(2 * pairs <= head_dim, "rotary embedding of {pairs} pairs on a head of {head_dim}");
        assert!(head_dim <= self.width, "heads wider than the step limits");
        let (cos_sin, fresh) = match &job.rotation {
            Some(rotation) => self.table(rotation.key()),
            None => (&mut self.tables[0].cos_sin, false),
        };
        assert!(cos_sin.len() >= rows * 2 * pairs, "more rows than the step limits");
        (cos_sin, fresh, pairs)
    }
}

/// Parameters of a rotation.
#[derive(Clone, Copy)]
pub(super) struct Rotation<'a> {
    pub(super) kind: RopeKind,
    pub(super) inv_freq: &'a [f32],
    /// Unique id of the table of frequencies.
    pub(super) id: u64,
    pub(super) magnitude: f32,
    pub(super) axes: Option<RopeAxes>,
    /// Frequencies and magnitude for rows whose type is not 0, if they differ.
    pub(super) long: Option<(&'a [f32], f32)>,
}

impl Rotation<'_> {
    fn key(&self) -> TableKey {
        let magnitudes = [Some(self.magnitude), self.long.map(|(_, magnitude)| magnitude)];
        TableKey {
            frequencies: self.id,
            magnitudes: magnitudes.map(|magnitude| magnitude.map(f32::to_bits)),
            axes: self.axes,
        }
    }
}

/// Parameters of `rope` on rows of `[q | k | v]`.
pub(super) struct QkvJob<'a> {
    pub(super) shape: HeadShape,
    pub(super) q_norm: Option<&'a [f32]>,
    pub(super) k_norm: Option<&'a [f32]>,
    pub(super) norm_eps: f32,
    pub(super) norm_after_rope: bool,
    pub(super) rotation: Option<Rotation<'a>>,
    pub(super) query_scale: Option<QueryScale>,
    pub(super) values_normed: bool,
}

impl QkvJob<'_> {
    /// Factor on the queries of a row.
    fn query_factor(&self, batch: &Batch, row: usize) -> Option<f32> {
        self.query_scale.map(|scale| scale.at(batch.positions[row]))
    }
}

/// Kernel for one row.
struct QkvRow<'a> {
    job: &'a QkvJob<'a>,
    row: *mut f32,       // (qkv_width)
    cos_sin: *const f32, // (2, pairs)
    query_factor: Option<f32>,
    keys: *mut u8,     // the slot's block, KV head 0
    values: *mut u8,   // the same for values
    offset: usize,     // the slot's token in the block
    key_stride: usize, // bytes from a KV head to the next
    value_stride: usize,
    kv_type: KvType,
}

impl Kernel for QkvRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let HeadShape { heads, kv_heads, head_dim } = self.job.shape;
        // SAFETY: the maker vouches for a row of all heads, and for cos_sin of the rotation's pairs.
        unsafe { rotate_row::<L>(self.job, self.row, self.cos_sin, self.query_factor) };
        for head in 0..kv_heads {
            // SAFETY: the maker vouches for the slot in every KV head.
            unsafe {
                let key = self.row.add((heads + head) * head_dim);
                let value = key.add(kv_heads * head_dim);
                if self.job.values_normed {
                    let factor = rms_factor::<L>(value, head_dim, self.job.norm_eps);
                    multiply::<L>(value, factor, head_dim);
                }
                let (keys, values) =
                    (self.keys.add(head * self.key_stride), self.values.add(head * self.value_stride));
                match self.kv_type {
                    KvType::F16 => store_halves::<L>(key, value, keys, values, self.offset, head_dim),
                    KvType::Q8_0 => store_bytes::<L>(key, value, keys, values, self.offset, head_dim),
                    KvType::Fp8 => store_fp8(key, value, keys, values, self.offset, head_dim),
                }
            }
        }
    }
}

/// Norms and rotates the queries and keys of a row.
///
/// # Safety
/// Inside `L::vectorize`; `row` holds all heads, `cos_sin` two numbers for each of the rotation's pairs, and a norm
/// has a weight for each element of a head, or of all heads.
#[inline(always)]
unsafe fn rotate_row<L: Lanes>(
    job: &QkvJob<'_>,
    row: *mut f32,
    cos_sin: *const f32,
    query_factor: Option<f32>,
) {
    let HeadShape { heads, kv_heads, head_dim } = job.shape;
    for head in 0..heads + kv_heads {
        let (norm, of, count) =
            if head < heads { (job.q_norm, head, heads) } else { (job.k_norm, head - heads, kv_heads) };
        // SAFETY: the caller's promise.
        unsafe {
            let x = row.add(head * head_dim);
            let (before, after) = if job.norm_after_rope { (None, norm) } else { (norm, None) };
            match before {
                Some(weight) if weight.len() == head_dim => {
                    let factor = rms_factor::<L>(x, head_dim, job.norm_eps);
                    scale::<L>(x, factor, weight.as_ptr(), head_dim, x);
                }
                Some(weight) if of == 0 => {
                    let width = count * head_dim;
                    let factor = rms_factor::<L>(x, width, job.norm_eps);
                    scale::<L>(x, factor, weight.as_ptr(), width, x);
                }
                _ => {}
            }
            if let Some(rotation) = &job.rotation {
                rotate_head::<L>(rotation.kind, x, cos_sin, rotation.inv_freq.len());
            }
            if let Some(weight) = after {
                let factor = rms_factor::<L>(x, head_dim, job.norm_eps);
                scale::<L>(x, factor, weight.as_ptr(), head_dim, x);
            }
            if let Some(factor) = query_factor
                && head < heads
            {
                multiply::<L>(x, factor, head_dim);
            }
        }
    }
}

/// `x *= factor` over `count` numbers.
///
/// # Safety
/// Inside `L::vectorize`; `x` holds `count` numbers.
#[inline(always)]
unsafe fn multiply<L: Lanes>(x: *mut f32, factor: f32, count: usize) {
    for at in (0..count).step_by(LANES) {
        let part = LANES.min(count - at);
        // SAFETY: the caller's promise.
        unsafe { put::<L>(x.add(at), L::mul(load_part::<L>(x.add(at), part), L::splat(factor)), part) };
    }
}

/// Writes one head's key and value to token `offset` of a block of f16.
///
/// # Safety
/// Inside `L::vectorize`; `key` and `value` hold `head_dim` numbers, `keys` and `values` are that head's parts of a
/// block of [`KvType::F16`].
#[inline(always)]
unsafe fn store_halves<L: Lanes>(
    key: *const f32,
    value: *const f32,
    keys: *mut u8,
    values: *mut u8,
    offset: usize,
    head_dim: usize,
) {
    // SAFETY: the caller's promise; `halves` is as long as a vector, and a value's row is padded to whole vectors.
    unsafe {
        let keys = keys.cast::<u16>().add(offset);
        let values = values.cast::<u16>().add(offset * padded(head_dim));
        for at in (0..head_dim).step_by(LANES) {
            let count = LANES.min(head_dim - at);
            let mut halves = [0u16; LANES];
            L::store_f16(halves.as_mut_ptr(), load_part::<L>(key.add(at), count));
            for (i, half) in halves[..count].iter().enumerate() {
                keys.add((at + i) * BLOCK_TOKENS).write(*half);
            }
            L::store_f16(values.add(at), load_part::<L>(value.add(at), count));
        }
    }
}

/// Writes one head's key and value to token `offset` of a block in 8-bit floats.
///
/// # Safety
/// As for [`store_halves`], for a block of [`KvType::Fp8`].
#[inline(always)]
unsafe fn store_fp8(
    key: *const f32,
    value: *const f32,
    keys: *mut u8,
    values: *mut u8,
    offset: usize,
    head_dim: usize,
) {
    // SAFETY: the caller's promise; a value's row has room for all of its elements.
    unsafe {
        for at in 0..head_dim {
            keys.add(at * BLOCK_TOKENS + offset).write(to_e4m3(key.add(at).read()));
            values.add(offset * padded(head_dim) + at).write(to_e4m3(value.add(at).read()));
        }
    }
}

/// Writes one head's key and value to token `offset` of a block of bytes and scales.
///
/// # Safety
/// As for [`store_halves`], for a block of [`KvType::Q8_0`].
#[inline(always)]
unsafe fn store_bytes<L: Lanes>(
    key: *const f32,
    value: *const f32,
    keys: *mut u8,
    values: *mut u8,
    offset: usize,
    head_dim: usize,
) {
    // SAFETY: the caller's promise; scales lie behind the block's codes.
    unsafe {
        let codes_bytes = BLOCK_TOKENS * head_dim;
        let scales = |part: *mut u8| part.add(codes_bytes).cast::<u16>().add(offset);
        for at in (0..head_dim).step_by(GROUP) {
            let mut sums = [0; 2];
            let mut codes = [0u32; GROUP / 4];
            let scale = quantize::<L, 2>(key.add(at), codes.as_mut_ptr().cast(), &mut sums);
            for (i, four) in codes.iter().enumerate() {
                let to = keys.cast::<u32>().add((at / 4 + i) * BLOCK_TOKENS + offset);
                to.write_unaligned(four ^ 0x8080_8080);
            }
            store_scale::<L>(scales(keys).add(at / GROUP * BLOCK_TOKENS), scale);
            let row = values.add(offset * head_dim + at).cast();
            let scale = quantize::<L, 2>(value.add(at), row, &mut sums);
            store_scale::<L>(scales(values).add(at / GROUP * BLOCK_TOKENS), scale);
        }
    }
}

/// Writes one f16 scale.
///
/// # Safety
/// Inside `L::vectorize`; `to` can be written.
#[inline(always)]
pub(super) unsafe fn store_scale<L: Lanes>(to: *mut u16, scale: f32) {
    let mut halves = [0u16; LANES];
    // SAFETY: `halves` is as long as a vector; the caller's promise.
    unsafe {
        L::store_f16(halves.as_mut_ptr(), L::splat(scale));
        to.write_unaligned(halves[0]);
    }
}

/// The first `count` numbers at `x`, then zeros.
///
/// # Safety
/// Inside `L::vectorize`; `x` holds `count` numbers.
#[inline(always)]
pub(super) unsafe fn load_part<L: Lanes>(x: *const f32, count: usize) -> L::F {
    // SAFETY: the caller's promise; the whole vector is read only where it is there.
    unsafe {
        if count == LANES {
            return L::load(x);
        }
        let mut lanes = [0.0f32; LANES];
        std::ptr::copy_nonoverlapping(x, lanes.as_mut_ptr(), count);
        L::load(lanes.as_ptr())
    }
}

/// Rotates the pairs of one head.
///
/// # Safety
/// Inside `L::vectorize`; `x` holds `2 * pairs` numbers, `cos_sin` as many.
#[inline(always)]
pub(super) unsafe fn rotate_head<L: Lanes>(kind: RopeKind, x: *mut f32, cos_sin: *const f32, pairs: usize) {
    let (first, second, step) = match kind {
        RopeKind::Neox => (0, pairs, 1),
        RopeKind::Interleaved => (0, 1, 2),
    };
    let whole = if kind == RopeKind::Neox { pairs / LANES * LANES } else { 0 };
    // SAFETY: pair i's elements are below `2 * pairs`, its cosine at i, its sine at `pairs + i`.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            let (cos, sin) = (L::load(cos_sin.add(i)), L::load(cos_sin.add(pairs + i)));
            let (a, b) = (L::load(x.add(i)), L::load(x.add(pairs + i)));
            L::store(x.add(i), L::fnma(b, sin, L::mul(a, cos)));
            L::store(x.add(pairs + i), L::fma(a, sin, L::mul(b, cos)));
        }
        for i in whole..pairs {
            let (cos, sin) = (cos_sin.add(i).read(), cos_sin.add(pairs + i).read());
            let (at, bt) = (x.add(first + i * step), x.add(second + i * step));
            let (a, b) = (at.read(), bt.read());
            at.write(a * cos - b * sin);
            bt.write(a * sin + b * cos);
        }
    }
}

/// Norms and rotates the batch's rows of `qkv`, and writes their keys and values to the layer's cache.
pub(super) fn rope_to_cache(
    Cores { tier, turn }: Cores<'_>,
    tables: &mut RopeTables,
    batch: &Batch,
    job: &QkvJob<'_>,
    qkv: &mut [f32],
    kv: LayerKv<&mut [u8]>,
) {
    let (rows, width) = (batch.rows(), job.shape.qkv_width());
    let LayerKv { layout, keys, values } = kv;
    let LayerLayout { kv_type, blocks, key_stride, value_stride, key_block, value_block, group, .. } = layout;
    assert!(qkv.len() >= rows * width, "qkv holds fewer rows than the batch");
    let slots = blocks * BLOCK_TOKENS;
    assert!(group < batch.groups(), "a layer of a group that the batch does not have");
    assert!(batch.slots.iter().all(|&slot| (slot as usize) < slots), "a slot outside the cache");
    let (cos_sin, fresh, pairs) = tables.of(job, rows);
    let (cos_sin, qkv) = (cos_sin.shared(), SharedPointer::new(qkv));
    let (keys, values) = (SharedPointer::new(keys), SharedPointer::new(values));
    turn.run(rows, grain(width), &|_, range| {
        for row in range {
            let slot = batch.row_slot(row, group);
            let (block, offset) = (slot / BLOCK_TOKENS, slot % BLOCK_TOKENS);
            // SAFETY: row, slot and table row are inside their arrays by the assertions above. A row belongs to one
            // range of one thread, and a batch gives every row a slot of its own.
            unsafe {
                let cos_sin = cos_sin.get().add(row * 2 * pairs);
                if fresh && let Some(rotation) = &job.rotation {
                    let cos_sin = std::slice::from_raw_parts_mut(cos_sin, 2 * pairs);
                    fill(rotation, batch, row, cos_sin);
                }
                let row = QkvRow {
                    job,
                    row: qkv.get().add(row * width),
                    cos_sin,
                    query_factor: job.query_factor(batch, row),
                    keys: keys.get().add(block * key_block),
                    values: values.get().add(block * value_block),
                    offset,
                    key_stride,
                    value_stride,
                    kv_type,
                };
                dispatch(tier, row);
            }
        }
    });
}

/// Kernel for one row whose queries and keys are only normed and rotated.
struct RotatedRow<'a> {
    job: &'a QkvJob<'a>,
    row: *mut f32,       // (qkv_width)
    cos_sin: *const f32, // (2, pairs)
    query_factor: Option<f32>,
}

impl Kernel for RotatedRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the maker vouches for a row of all heads, and for cos_sin of the rotation's pairs.
        unsafe { rotate_row::<L>(self.job, self.row, self.cos_sin, self.query_factor) }
    }
}

/// Norms and rotates queries and keys of the batch's rows of `qkv`.
pub(super) fn rope(
    Cores { tier, turn }: Cores<'_>,
    tables: &mut RopeTables,
    batch: &Batch,
    job: &QkvJob<'_>,
    qkv: &mut [f32],
) {
    let (rows, width) = (batch.rows(), job.shape.qkv_width());
    assert!(qkv.len() >= rows * width, "qkv holds fewer rows than the batch");
    let (cos_sin, fresh, pairs) = tables.of(job, rows);
    let (cos_sin, qkv) = (cos_sin.shared(), SharedPointer::new(qkv));
    turn.run(rows, grain(width), &|_, range| {
        for row in range {
            // SAFETY: the row and its part of the table are inside their arrays by the assertions above and in `of`,
            // and belong to one range of one thread.
            unsafe {
                let cos_sin = cos_sin.get().add(row * 2 * pairs);
                if fresh && let Some(rotation) = &job.rotation {
                    fill(rotation, batch, row, std::slice::from_raw_parts_mut(cos_sin, 2 * pairs));
                }
                let query_factor = job.query_factor(batch, row);
                dispatch(tier, RotatedRow { job, row: qkv.get().add(row * width), cos_sin, query_factor });
            }
        }
    });
}

/// Rows of a chunk of around 20 microseconds; computing a table costs ten times a rotation.
fn grain(width: usize) -> usize {
    (1 << 13) / width.max(1) + 1
}

/// Computes cosines, then sines, of one row's positions. The angle is a product in f32, as in training.
pub(super) fn fill(rotation: &Rotation<'_>, batch: &Batch, row: usize, cos_sin: &mut [f32]) {
    let (inv_freq, magnitude) = match rotation.long {
        Some(long) if batch.type_of(row) != 0 => long,
        _ => (rotation.inv_freq, rotation.magnitude),
    };
    let (cosines, sines) = cos_sin.split_at_mut(inv_freq.len());
    let turned = cosines.iter_mut().zip(sines).zip(inv_freq).enumerate();
    for (pair, ((cosine, sine), frequency)) in turned {
        let position = batch.turn_position(row, rotation.axes, pair);
        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
        *cosine = (cos * f64::from(magnitude)) as f32;
        *sine = (sin * f64::from(magnitude)) as f32;
    }
}
