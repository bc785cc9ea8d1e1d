//! Packed weights: 16 rows interleaved into a panel, so that one vector load gives 16 outputs their next inputs.
//!
//! A panel is `(codes of all blocks | scales of all blocks)` where blocks are of 32 inputs, and `(scales | codes)` block
//! after block where they are of 256: memory is then read in order, or nearly so, and codes lie on cache lines. In the
//! codes, a 64-byte vector holds four consecutive
//! inputs of rows 0 to 15, four bytes a row: what an int8 dot-product instruction multiplies with four broadcast
//! activation bytes. Codes narrower than a byte share vectors within a sub-block of 32 inputs, that is eight vectors:
//!
//! - low nibbles: byte b of stored vector j (0..4) holds that byte of vector j in its low half and of vector j + 4 in
//!   its high half;
//! - a fifth bit: bit j of byte b of one stored vector is the bit of byte b of vector j;
//! - a fifth and sixth: two stored vectors, for vectors 0..4 and 4..8, two bits each.
//!
//! What the scales of a block are is said at each [`PanelKind`]. Rows past the last are zeros.

mod pack;
mod unpack;

use super::aligned::{ALIGN, Aligned};
use super::pool::Turn;
use crate::{DType, KernelError, MatrixShape, MatrixSource};

pub(super) use unpack::unpack_row;

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 16;

/// A matrix in the layout the CPU kernels read: segments stacked by rows.
#[derive(Debug)]
pub struct CpuMatrix {
    rows: usize,
    cols: usize,
    segments: Vec<Segment>,
}

/// Rows of one element type.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) kind: PanelKind,
    /// First row in the matrix.
    pub(super) row_first: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) panel_bytes: usize,
    data: Aligned<u8>, // (panels, panel_bytes)
}

/// What a panel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PanelKind {
    /// One f32 a weight, no scales.
    F32,
    /// One half a weight.
    F16,
    /// One bfloat16 a weight.
    Bf16,
    /// Blocks of 32 bytes plus 128; a half scale. Also Q4_0, Q5_0 and IQ4_NL, whose weights are whole bytes times a
    /// half as well, so nothing is lost.
    Q8,
    /// As Q8 with an f32 scale: IQ4_XS and MXFP4, whose scales no half can hold.
    Q8Wide,
    /// Blocks of 32 unsigned bytes below 32; a half scale and a half minimum that is added: Q4_1, Q5_1.
    Q8Min,
    /// 256 codes of 4 bits; `d`, `dmin` halves, then scales `(8, 16)` bytes, then minimums `(4, 16, 2)` bytes.
    Q4K,
    /// As Q4K with 5 bits.
    Q5K,
    /// 256 codes of 6 bits, plus 32; `d` halves, then scales `(16, 16)` signed bytes. Also Q3_K, losslessly.
    Q6K,
}

/// How activations must be prepared for a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActKind {
    /// As they are.
    Float,
    /// Signed bytes, one scale per 32.
    Int32,
    /// Signed bytes, one scale per 256.
    Int256,
}

impl PanelKind {
    /// The panel for a file's element type. Q2_K, whose groups of 16 have minimums, is kept as halves for now: its
    /// weights are rounded to 11 bits.
    pub(super) fn of(dtype: DType) -> Option<PanelKind> {
        Some(match dtype {
            DType::F32 => PanelKind::F32,
            DType::F16 | DType::Q2_K => PanelKind::F16,
            DType::BF16 => PanelKind::Bf16,
            DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::IQ4_NL => PanelKind::Q8,
            DType::IQ4_XS | DType::MXFP4 => PanelKind::Q8Wide,
            DType::Q4_1 | DType::Q5_1 => PanelKind::Q8Min,
            DType::Q4_K => PanelKind::Q4K,
            DType::Q5_K => PanelKind::Q5K,
            DType::Q6_K | DType::Q3_K => PanelKind::Q6K,
            _ => return None,
        })
    }

    /// Inputs of a block.
    pub(super) const fn block(self) -> usize {
        match self {
            PanelKind::F32 | PanelKind::F16 | PanelKind::Bf16 => 1,
            PanelKind::Q8 | PanelKind::Q8Wide | PanelKind::Q8Min => 32,
            PanelKind::Q4K | PanelKind::Q5K | PanelKind::Q6K => 256,
        }
    }

    /// Bytes of the codes of a block of 16 rows.
    pub(super) const fn code_bytes(self) -> usize {
        match self {
            PanelKind::F32 => 64,
            PanelKind::F16 | PanelKind::Bf16 => 32,
            PanelKind::Q8 | PanelKind::Q8Wide | PanelKind::Q8Min => 8 * 64,
            PanelKind::Q4K => 8 * 4 * 64,
            PanelKind::Q5K => 8 * 5 * 64,
            PanelKind::Q6K => 8 * 6 * 64,
        }
    }

    /// Bytes of the scales of a block of 16 rows.
    pub(super) const fn scale_bytes(self) -> usize {
        match self {
            PanelKind::F32 | PanelKind::F16 | PanelKind::Bf16 => 0,
            PanelKind::Q8 => 32,
            PanelKind::Q8Wide | PanelKind::Q8Min => 64,
            PanelKind::Q4K | PanelKind::Q5K => 32 + 32 + 128 + 128,
            PanelKind::Q6K => 32 + 256,
        }
    }

    /// Bytes of a panel.
    pub(super) const fn panel_bytes(self, cols: usize) -> usize {
        let blocks = cols / self.block();
        blocks.saturating_mul(self.code_stride() + self.scale_stride()).next_multiple_of(ALIGN)
    }

    /// Whether each block's scales precede its codes.
    const fn interleaved(self) -> bool {
        self.block() == 256
    }

    /// Bytes that scales take before the codes of their block.
    const fn scale_space(self) -> usize {
        self.scale_bytes().next_multiple_of(ALIGN)
    }

    /// Bytes from a block's codes to the next block's.
    pub(super) const fn code_stride(self) -> usize {
        if self.interleaved() { self.scale_space() + self.code_bytes() } else { self.code_bytes() }
    }

    /// Bytes that scales on their own take for a block.
    const fn scale_stride(self) -> usize {
        if self.interleaved() { 0 } else { self.scale_bytes() }
    }

    /// Where in a panel of `blocks` the codes of a block are.
    pub(super) const fn codes_at(self, block: usize) -> usize {
        block * self.code_stride() + if self.interleaved() { self.scale_space() } else { 0 }
    }

    /// Where in a panel of `blocks` the scales of a block are.
    pub(super) const fn scales_at(self, blocks: usize, block: usize) -> usize {
        if self.interleaved() {
            block * self.code_stride()
        } else {
            blocks * self.code_bytes() + block * self.scale_bytes()
        }
    }

    pub(super) const fn acts(self) -> ActKind {
        match self {
            PanelKind::F32 | PanelKind::F16 | PanelKind::Bf16 => ActKind::Float,
            PanelKind::Q8 | PanelKind::Q8Wide | PanelKind::Q8Min => ActKind::Int32,
            PanelKind::Q4K | PanelKind::Q5K | PanelKind::Q6K => ActKind::Int256,
        }
    }
}

impl Segment {
    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    pub(super) fn panel(&self, panel: usize) -> &[u8] {
        &self.data[panel * self.panel_bytes..][..self.panel_bytes]
    }

    /// The panels from one on.
    pub(super) fn panels_from(&self, panel: usize) -> &[u8] {
        &self.data[panel * self.panel_bytes..]
    }

    pub(super) fn blocks(&self) -> usize {
        self.cols / self.kind.block()
    }
}

impl CpuMatrix {
    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.data.len()).sum()
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Packs the parts, every panel a task of the pool.
    pub(super) fn pack(
        parts: &[MatrixSource<'_>],
        turn: &mut Turn,
        device: &str,
    ) -> Result<CpuMatrix, KernelError> {
        let cols = parts.first().map_or(0, |part| part.shape.cols);
        for part in parts {
            check(part, cols, device)?;
        }
        let mut segments = Vec::with_capacity(parts.len());
        let mut row_first = 0;
        for part in parts {
            let kind = supported(part, device)?;
            let (rows, panel_bytes) = (part.shape.rows, kind.panel_bytes(cols));
            let bytes = rows.div_ceil(PANEL_ROWS).saturating_mul(panel_bytes);
            let mut data = Aligned::zeroed(bytes, "weights")?;
            pack::pack_segment(kind, part, &mut data, panel_bytes, turn);
            segments.push(Segment { kind, row_first, rows, cols, panel_bytes, data });
            row_first += rows;
        }
        Ok(CpuMatrix { rows: row_first, cols, segments })
    }
}

/// Bytes of a packed part, or 0 for a type that cannot be packed.
pub(super) fn packed_bytes(shape: &MatrixShape) -> usize {
    PanelKind::of(shape.dtype)
        .map_or(0, |kind| shape.rows.div_ceil(PANEL_ROWS).saturating_mul(kind.panel_bytes(shape.cols)))
}

fn supported(part: &MatrixSource<'_>, device: &str) -> Result<PanelKind, KernelError> {
    PanelKind::of(part.shape.dtype).ok_or_else(|| KernelError::UnsupportedType {
        tensor: part.name.to_owned(),
        dtype: part.shape.dtype,
        device: device.to_owned(),
    })
}

/// Whether a part can be packed beside others of `cols` inputs.
fn check(part: &MatrixSource<'_>, cols: usize, device: &str) -> Result<(), KernelError> {
    let MatrixShape { rows, cols: part_cols, dtype } = part.shape;
    let bad_shape = |reason: String| KernelError::BadShape { tensor: part.name.to_owned(), reason };
    supported(part, device)?;
    if rows == 0 || part_cols == 0 {
        return Err(bad_shape(format!("a matrix of [{rows}, {part_cols}] has no weights")));
    }
    if part_cols != cols {
        return Err(bad_shape(format!("{part_cols} columns, stacked on a matrix of {cols}")));
    }
    let row_bytes = dtype.bytes_of(cols).ok_or_else(|| {
        bad_shape(format!("rows of {cols} are not whole blocks of {} {dtype} weights", dtype.block_weights()))
    })?;
    let expected = rows.saturating_mul(row_bytes);
    if part.bytes.len() != expected {
        let found = part.bytes.len();
        return Err(KernelError::WrongSize {
            tensor: part.name.to_owned(),
            rows,
            cols,
            dtype,
            expected,
            found,
        });
    }
    Ok(())
}
