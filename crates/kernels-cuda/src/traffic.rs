//! Memory traffic of a launch, computed from its parameters and the small tables they name: bytes of memory that its
//! blocks touch, each counted once however many blocks touch it, and operations of its tensor cores. Covers the
//! kernels that decoding with dense layers uses; prompts and other networks are not counted.

use std::ops::AddAssign;

use bytemuck::{Pod, pod_read_unaligned};
use hanzo_engine_ops::{BLOCK_TOKENS, DType};

use crate::device::{Device, DeviceError};
use crate::params::*;
use crate::plan::{Kernel, Launch};
use crate::shapes::SPAN;

/// Bytes of one piece of a row's 32 columns; of 256 columns; and, for each block of f16 pieces, of its inverse power
/// of two and of each sum of 16 columns.
const GROUP_BYTES: u64 = 64;
const BLOCK_BYTES: u64 = 8 * GROUP_BYTES;
const INVERSE_BYTES: u64 = 4;
const SUM_BYTES: u64 = 4;
/// Bytes of the number of rows.
const COUNT_BYTES: u64 = 4;
/// Rows and outputs of a tile of products, rows of a block of the kernels for many, and columns of groups and blocks.
const TILE_ROWS: u64 = 8;
const TILE_OUTPUTS: u64 = 16;
const BLOCK_ROWS: u64 = 64;
const GROUP_COLS: u64 = 32;
const BLOCK_COLS: u64 = 256;
/// Queries of a tile of attention, and keys of a tile, which is skipped if nobody sees one of them.
const TILE_QUERIES: u64 = 16;
const TILE_KEYS: u64 = 32;

/// Traffic of a launch, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of matrices read, including the tables of their parts.
    pub weights: u64,
    /// Bytes of keys and values read.
    pub cache: u64,
    /// Bytes of everything else read: activations, pieces of them, vectors, the batch.
    pub others: u64,
    /// Bytes written, including the cache's.
    pub written: u64,
    /// Operations of the tensor cores, two for each product, including rows and outputs that only fill up tiles.
    pub operations: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.weights += other.weights;
        self.cache += other.cache;
        self.others += other.others;
        self.written += other.written;
        self.operations += other.operations;
    }
}

impl Traffic {
    /// Traffic of a launch whose batch and tables of parts are on the device; `None` if its kernel is not counted.
    ///
    /// # Errors
    /// The device's error, if they cannot be read.
    pub fn of<D: Device>(device: &D, launch: &Launch<'_>) -> Result<Option<Traffic>, DeviceError> {
        use Kernel::*;
        let tables = Tables { device };
        let traffic = match launch.kernel {
            Norm => tables.norm(&pod_read_unaligned(launch.params), launch.grid.blocks[1].into())?,
            Embed => tables.embed(launch)?,
            Pieces => tables.pieces(launch)?,
            ProductFew | ProductFewBlocks => return tables.few(launch),
            ProductSome | ProductBatch | ProductSomeBlocks | ProductBatchBlocks => {
                return tables.product(&pod_read_unaligned(launch.params), TILE_ROWS);
            }
            ProductMany | ProductManyBlocks => {
                return tables.product(&pod_read_unaligned(launch.params), BLOCK_ROWS);
            }
            Gate => tables.gate(&pod_read_unaligned(launch.params))?,
            Heads => tables.heads(&pod_read_unaligned(launch.params), launch.grid.blocks[1].into())?,
            AttentionFew | AttentionFewQ8 => return tables.attention(launch),
            AttentionJoin | AttentionJoinPieces => return tables.join(launch),
            Draw => tables.draw(launch)?,
            _ => return Ok(None),
        };
        Ok(Some(traffic))
    }

    /// Bytes read.
    pub fn read(&self) -> u64 {
        self.weights + self.cache + self.others
    }

    /// Bytes read or written.
    pub fn bytes(&self) -> u64 {
        self.read() + self.written
    }
}

/// Bytes of rows in pieces.
fn pieces_written(cut: &PiecesToParams, rows: u64) -> u64 {
    let of_block = match cut.form & IN_BF16S {
        0 => 2 * BLOCK_BYTES + INVERSE_BYTES + BLOCK_COLS / 16 * SUM_BYTES,
        _ => 3 * BLOCK_BYTES,
    };
    if cut.pieces == Address::NONE { 0 } else { rows * u64::from(cut.blocks) * of_block }
}

/// Whether kernels read sums of columns for weights of this type, because it has a minimum for each group.
fn has_minimums(dtype: u32) -> bool {
    use DType::*;
    let affine = DType::ALL.iter().filter(|dtype| dtype.affine().is_some());
    [Q4_1, Q5_1, Q2_K, Q4_K, Q5_K].iter().chain(affine).any(|&of| of as u32 == dtype)
}

/// Bytes of so many numbers of the cache; `kv_type` is the kernels' numbering.
fn kv_bytes(kv_type: u32, elements: u32) -> u64 {
    u64::from(match kv_type {
        0 => 2 * elements,
        2 => elements,
        _ => elements / 32 * 34,
    })
}

/// Access to the batch and to other data that determines a launch's amount of work.
struct Tables<'a, D: Device> {
    device: &'a D,
}

impl<D: Device> Tables<'_, D> {
    fn read<T: Pod>(&self, at: Address, count: usize) -> Result<Vec<T>, DeviceError> {
        let mut values = vec![T::zeroed(); count];
        if count > 0 {
            // SAFETY: a launch names memory that is allocated, as large as its kernel takes it for.
            unsafe { self.device.download(at, bytemuck::cast_slice_mut(&mut values)) }?;
        }
        Ok(values)
    }

    /// Number of rows, sequences and logit rows.
    fn counts(&self, batch: &BatchParams) -> Result<[u64; 3], DeviceError> {
        let counts: Vec<u32> = self.read(batch.counts, 3)?;
        Ok([0, 1, 2].map(|at| u64::from(counts[at])))
    }

    /// Context of each sequence; `None` if one has several rows.
    fn contexts(&self, batch: &BatchParams) -> Result<Option<Vec<u64>>, DeviceError> {
        let [rows, sequences, _] = self.counts(batch)?;
        let spans: Vec<[u32; 4]> = self.read(batch.spans, sequences as usize)?;
        Ok((rows == sequences).then(|| spans.iter().map(|span| u64::from(span[2])).collect()))
    }

    fn parts(&self, stack: &StackParams) -> Result<Vec<PartParams>, DeviceError> {
        // Read separately, as they were written.
        let at = |part: u32| stack.parts.offset(part as usize * size_of::<PartParams>());
        (0..stack.count).map(|part| Ok(self.read(at(part), 1)?[0])).collect()
    }

    /// Traffic of a norm of so many parts of a row.
    fn norm(&self, p: &NormParams, parts: u64) -> Result<Traffic, DeviceError> {
        let [rows, ..] = self.counts(&p.batch)?;
        let width = u64::from(p.width);
        let row_bytes = 4 * rows * width * parts;
        let vector = 4 * width * if p.repeats == 0 { parts } else { 1 };
        let vectors = 1 + u64::from(p.bias != Address::NONE);
        let rows_of = 1 + u64::from(p.residual != Address::NONE);
        Ok(Traffic {
            others: 4 + rows_of * row_bytes + vectors * vector,
            written: rows_of * row_bytes + pieces_written(&p.cut, rows),
            ..Traffic::default()
        })
    }

    fn embed(&self, launch: &Launch<'_>) -> Result<Traffic, DeviceError> {
        let p: EmbedParams = pod_read_unaligned(launch.params);
        let [rows, ..] = self.counts(&p.batch)?;
        let ids = match p.ids {
            0 => p.batch.tokens,
            1 => p.batch.positions,
            _ => p.batch.types,
        };
        let offset = if p.ids == 1 { p.offset } else { 0 };
        let mut ids: Vec<u32> = self.read(ids, rows as usize)?;
        ids.retain(|&id| id != NONE && id + offset < p.table.rows);
        let written = 4 * ids.len() as u64 * u64::from(p.table.cols);
        ids.sort_unstable();
        ids.dedup();
        let parts = self.parts(&p.table)?;
        let part_of = |id: u32| parts.iter().rfind(|part| part.row_first <= id + offset);
        let row_bytes = ids.iter().filter_map(|&id| part_of(id)).map(|part| u64::from(part.row_bytes));
        // Everything of a part's entry except its number of rows.
        let entries = parts.len() as u64 * (size_of::<PartParams>() - 4) as u64;
        Ok(Traffic {
            weights: row_bytes.sum::<u64>() + entries,
            others: 4 + 4 * rows + if p.adds == 0 { 0 } else { written },
            written,
            ..Traffic::default()
        })
    }

    fn pieces(&self, launch: &Launch<'_>) -> Result<Traffic, DeviceError> {
        let p: PiecesParams = pod_read_unaligned(launch.params);
        let [all, _, logit_rows] = self.counts(&p.batch)?;
        let (rows, ids) = if p.logits == 0 { (all, 0) } else { (logit_rows, 4 * logit_rows) };
        let blocks = p.cols.div_ceil(BLOCK_COLS as u32);
        let cut =
            PiecesToParams { pieces: p.pieces, inverses: p.inverses, sums: p.sums, blocks, form: p.form };
        Ok(Traffic {
            others: 4 + ids + 4 * rows * u64::from(p.cols),
            written: pieces_written(&cut, rows),
            ..Traffic::default()
        })
    }

    /// Traffic of a product. Blocks have `whole` rows, of which missing tiles are skipped, or 64, all of which are
    /// read.
    fn product(&self, p: &ProductParams, whole: u64) -> Result<Option<Traffic>, DeviceError> {
        if p.weights.codebooks != Address::NONE || p.adapter != NONE {
            return Ok(None);
        }
        let [rows, _, logit_rows] = self.counts(&p.batch)?;
        let rows = if p.logits == 0 { rows } else { logit_rows };
        let (outputs, cols) = (u64::from(p.weights.rows), u64::from(p.weights.cols));
        let groups = cols.div_ceil(GROUP_COLS);
        let tiles = rows.next_multiple_of(whole) / TILE_ROWS;
        let read = if whole == BLOCK_ROWS { TILE_ROWS * tiles } else { rows };
        let pieces = if p.bf16s == 0 { 2 } else { 3 };
        let mut traffic = Traffic {
            others: 4 + read * groups * pieces * GROUP_BYTES,
            written: 4 * rows * outputs,
            ..Traffic::default()
        };
        let mut minimums = false;
        for part in self.parts(&p.weights)? {
            let tall = u64::from(part.rows).next_multiple_of(TILE_OUTPUTS);
            // The part of a product of code and factor that an f16 does not hold is multiplied separately.
            let times = pieces + u64::from(part.dtype == DType::Q6_K as u32);
            traffic.weights += u64::from(part.rows) * u64::from(part.row_bytes);
            traffic.operations += 2 * TILE_ROWS * tiles * tall * GROUP_COLS * groups * times;
            minimums |= has_minimums(part.dtype);
        }
        traffic.weights += u64::from(p.weights.count) * size_of::<PartParams>() as u64;
        if p.bf16s == 0 {
            traffic.others += tiles * TILE_ROWS * groups.div_ceil(8) * INVERSE_BYTES;
        }
        if minimums {
            traffic.others += tiles * TILE_ROWS * groups * 2 * SUM_BYTES;
        }
        traffic.others += if p.bias == Address::NONE { 0 } else { 4 * outputs };
        traffic.others += if p.adds == 0 { 0 } else { traffic.written };
        Ok(Some(traffic))
    }

    /// Traffic of a product of few rows with its fused op. Each byte counts once: data read for the product may be
    /// read again for the op, and heads may be written in place of the product.
    fn few(&self, launch: &Launch<'_>) -> Result<Option<Traffic>, DeviceError> {
        let FewParams { product, then } = pod_read_unaligned(launch.params);
        let Some(mut traffic) = self.product(&product, TILE_ROWS)? else { return Ok(None) };
        let [rows, ..] = self.counts(&product.batch)?;
        let written = 4 * rows * u64::from(product.weights.rows);
        let (besides, again) = match (then.norm(), then.gate(), then.heads()) {
            (Some(norm), ..) => (self.norm(&norm, 1)?, 0),
            (_, Some(gate), _) => (self.gate(&gate)?, 0),
            (.., Some((heads, count))) => {
                let in_place = if heads.key_plane == Address::NONE { count } else { heads.heads };
                (self.heads(&heads, count.into())?, 4 * rows * u64::from(in_place * heads.head_dim))
            }
            _ => return Ok(Some(traffic)),
        };
        traffic += besides;
        // Number of rows.
        traffic.others -= COUNT_BYTES + if product.adds == 0 { 0 } else { written };
        traffic.written -= again;
        Ok(Some(traffic))
    }

    fn gate(&self, p: &GateParams) -> Result<Traffic, DeviceError> {
        let [rows, ..] = self.counts(&p.batch)?;
        let row_bytes = 4 * rows * u64::from(p.width);
        Ok(Traffic {
            others: 4 + 2 * row_bytes,
            written: row_bytes + pieces_written(&p.cut, rows),
            ..Traffic::default()
        })
    }

    /// Traffic for so many heads, including those of keys and values.
    fn heads(&self, p: &HeadParams, heads: u64) -> Result<Traffic, DeviceError> {
        let [rows, ..] = self.counts(&p.batch)?;
        let head_bytes = 4 * rows * u64::from(p.head_dim);
        let vectors = [(p.q_weight, p.q_normed), (p.k_weight, p.k_normed)];
        let vectors = vectors.iter().filter(|(weight, _)| *weight != Address::NONE);
        let positions = match (p.pairs > 0, p.sections[0] == NONE) {
            (true, true) => 4 * rows,
            (true, false) => 12 * rows,
            _ => 0,
        };
        let (cached, slots) = match p.key_plane {
            Address::NONE => (0, 0),
            _ => (2 * rows * u64::from(p.kv_heads) * kv_bytes(p.kv_type, p.head_dim), 4 * rows),
        };
        let in_place = if cached > 0 { u64::from(p.heads) } else { heads };
        Ok(Traffic {
            others: 4
                + heads * head_bytes
                + vectors.map(|(_, normed)| 4 * u64::from(*normed)).sum::<u64>()
                + 4 * u64::from(p.pairs) * (1 + u64::from(p.two_tables))
                + 4 * rows * u64::from(p.two_tables)
                + positions
                + slots,
            written: in_place * head_bytes + cached,
            ..Traffic::default()
        })
    }

    /// Traffic of attention for sequences of one row each that see everything before them.
    fn attention(&self, launch: &Launch<'_>) -> Result<Option<Traffic>, DeviceError> {
        let p: PagedAttentionParams = pod_read_unaligned(launch.params);
        let contexts = self.contexts(&p.batch)?;
        let extras = [p.sinks, p.slopes].iter().any(|of| *of != Address::NONE);
        let Some(contexts) = contexts.filter(|_| p.window == 0 && !extras && p.short_rows == 0) else {
            return Ok(None);
        };
        let (heads, kv_heads) = (u64::from(p.heads), u64::from(p.kv_heads));
        let width = u64::from(p.head_dim);
        // Sequences outside the launch's rows are looked at and skipped.
        let end = (p.row_end as usize).min(contexts.len());
        let own = &contexts[(p.row_first as usize).min(end)..end];
        let rows = own.len() as u64;
        let of_each = heads / kv_heads;
        let tiles = kv_heads * of_each.div_ceil(of_each.min(TILE_QUERIES));
        // Queries, keys, weights and values in f16 pieces: a cache in Q8_0 has two pieces each, and the smallest
        // product is left out.
        let times = if p.kv_type == 0 { 2 } else { 3 };
        let mut traffic = Traffic {
            others: 8 + 8 * contexts.len() as u64 + (4 + 8) * rows + 4 * rows * heads * width,
            ..Traffic::default()
        };
        for &context in own {
            traffic.others += 4 * context.div_ceil(BLOCK_TOKENS as u64);
            traffic.cache += 2 * context * kv_heads * kv_bytes(p.kv_type, p.head_dim);
            let keys = context.next_multiple_of(TILE_KEYS);
            traffic.operations += 2 * 2 * tiles * TILE_QUERIES * keys * width * times;
            traffic.written += 4
                * heads
                * match p.parts {
                    Address::NONE => width,
                    _ => context.div_ceil(SPAN.into()) * (width + 2),
                };
        }
        if p.arrived == Address::NONE {
            traffic.written += pieces_written(&p.cut, rows);
            return Ok(Some(traffic));
        }
        // Merging of the blocks' partial results; they have read the batch already.
        let Some(joined) = self.join(launch)? else { return Ok(None) };
        traffic += joined;
        traffic.others -= COUNT_BYTES + (4 + 12) * rows;
        Ok(Some(traffic))
    }

    fn join(&self, launch: &Launch<'_>) -> Result<Option<Traffic>, DeviceError> {
        let p: PagedAttentionParams = pod_read_unaligned(launch.params);
        let contexts = self.contexts(&p.batch)?;
        let Some(contexts) = contexts.filter(|_| p.window == 0 && p.sinks == Address::NONE) else {
            return Ok(None);
        };
        let end = (p.row_end as usize).min(contexts.len());
        let own = &contexts[(p.row_first as usize).min(end)..end];
        let (rows, heads, width) = (own.len() as u64, u64::from(p.heads), u64::from(p.value_dim));
        let parts: u64 = own.iter().map(|context| context.div_ceil(SPAN.into()) * (width + 2)).sum();
        Ok(Some(Traffic {
            others: 4 + (4 + 12) * rows + 4 * heads * parts,
            written: 4 * rows * heads * width + pieces_written(&p.cut, rows),
            ..Traffic::default()
        }))
    }

    /// Traffic of sampling. Unless the most likely token is taken, logits are read several times, from nearer memory.
    fn draw(&self, launch: &Launch<'_>) -> Result<Traffic, DeviceError> {
        let p: DrawParams = pod_read_unaligned(launch.params);
        let [.., rows] = self.counts(&p.batch)?;
        Ok(Traffic {
            others: 4 + rows * (size_of::<DrawSpecParams>() as u64 + 4 * u64::from(p.vocab)),
            written: 4 * rows,
            ..Traffic::default()
        })
    }
}
