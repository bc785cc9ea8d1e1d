//! Packed weights: 16 rows interleaved into a panel, so that one vector load gives 16 outputs their next inputs.
//!
//! A panel is `(codes of all blocks | scales of all blocks)` for blocks of 32 inputs. For blocks of 256 and of 8-bit
//! floats it is `(scales | codes)` block after block. Memory is thus read in order, or nearly so, and codes lie on
//! cache lines. In the codes, a 64-byte *vector* holds four consecutive inputs of rows 0 to 15, four bytes a row: the
//! operand of an int8 dot-product instruction, with four broadcast activation bytes as the other. Codes narrower than
//! a byte share the bytes of stored vectors within a sub-block of 32 inputs, that is, eight vectors. They are cut into
//! *planes* of 4, 2 or 1 bits (see [`PanelKind::planes`]). A plane of w bits is w stored vectors, and vector v lies in
//! stored vector `v % w`, from bit `v / w * w` of each byte on.
//!
//! The scales of a block are described at each [`PanelKind`]. Rows past the last are zeros. A packed matrix takes at
//! most a tenth more than the file's blocks.

mod pack;
mod unpack;

use super::aligned::{ALIGN, AlignedArray};
use super::convolution::CpuKernel;
use super::pool::PoolTurn;
use hanzo_engine_ops::quant::{FP4_VALUES, IQ4_VALUES, has_groups};
use hanzo_engine_ops::{DType, KernelError, MatrixShape, MatrixSource};

pub(super) use unpack::unpack_row;

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 16;
/// Panels that are streamed together when there are few columns, each from a separate part of memory: far apart, they
/// keep more of the memory's banks busy than neighbours would.
pub(super) const STREAM_PANELS: usize = 4;

/// Matrix in the layout of the CPU kernels: segments stacked by rows.
#[derive(Debug)]
pub struct CpuMatrix {
    rows: usize,
    cols: usize,
    segments: Vec<Segment>,
    kernel: Option<Box<CpuKernel>>, // of a convolution; then there are no segments
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
    /// Whether all weights are finite, even rounded to bfloat16; used for floats only.
    pub(super) finite: bool,
    data: AlignedArray<u8>, // (panels, panel_bytes), in the order of `place`
}

/// Content of a panel. If a kind has a *zero*, a weight is `scale * (code - zero)`, or `scale * table[code]` with the
/// zero already added to the table's values. If it has minimums instead, a weight is `scale * code` plus or minus the
/// minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PanelKind {
    /// A f32 for each weight, no scales.
    F32,
    /// An IEEE half (f16) for each weight.
    F16,
    /// A bfloat16 for each weight.
    Bf16,
    /// Q4_0: blocks of 32 codes of 4 bits, zero 8; an f16 scale.
    Q4,
    /// Q4_1: blocks of 32 codes of 4 bits; an f16 scale and an f16 minimum that is added.
    Q4Min,
    /// Q5_0: blocks of 32 codes of 5 bits, zero 16; an f16 scale.
    Q5,
    /// Q5_1: blocks of 32 codes of 5 bits; an f16 scale and an f16 minimum that is added.
    Q5Min,
    /// Q8_0: blocks of 32 bytes, zero 128; an f16 scale.
    Q8,
    /// IQ4_NL: blocks of 32 indices of 4 bits, zero 128; an f16 scale.
    Nl4,
    /// MXFP4: blocks of 32 indices of 4 bits, zero 12; a bfloat16 scale.
    Mx4,
    /// Q2_K: blocks of 256 codes of 2 bits; `d`, `dmin` as f16, then `(16, 16)` bytes with a group's scale in the low
    /// nibble and its minimum in the high nibble.
    Q2K,
    /// Q3_K: blocks of 256 codes of 3 bits, zero 4; `d` as f16, then scales `(16, 16)` as signed bytes.
    Q3K,
    /// Q4_K: blocks of 256 codes of 4 bits; `d`, `dmin` as f16, then scales `(8, 16)` as bytes, then minimums `(4, 16,
    /// 2)` as bytes.
    Q4K,
    /// Q5_K: same as Q4K with 5 bits.
    Q5K,
    /// Q6_K: same as Q3K with 6 bits, zero 32.
    Q6K,
    /// IQ4_XS: blocks of 256 indices of 4 bits, zero 128; `d` as f16, then scales `(8, 16)` as signed bytes.
    Nl4K,
    /// Affine types: blocks of 32 codes of so many bits; an f32 scale and an f32 minimum that is added, for every `1
    /// << shift` blocks. With 8 bits the zero is 128, and the minimum makes up for it.
    Affine { bits: u8, shift: u8 },
    /// 8-bit floats in blocks of so many; an f32 scale, which is NaN if one of the block's floats is. Two inputs of a
    /// row are adjacent, so a vector holds two inputs of 16 rows twice.
    Fp8 { block: u8 },
    /// Codebook and ternary types: the file's blocks of 256, `(block, 16, block_bytes)`. Each is decoded where it is
    /// used.
    Stored(DType),
}

/// Form in which activations must be prepared for a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActKind {
    /// Floats, unchanged.
    Float,
    /// Signed bytes, with a scale for each 32.
    Int32,
    /// Signed bytes, with a scale for each 256.
    Int256,
}

impl ActKind {
    /// Every kind.
    pub(super) const ALL: [ActKind; 3] = [ActKind::Float, ActKind::Int32, ActKind::Int256];

    /// Bytes of the activations of a row of `cols`.
    pub(super) fn bytes(self, cols: usize) -> usize {
        if self == ActKind::Float { 4 * cols } else { cols }
    }
}

/// Bits of a code that are stored together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plane {
    /// Number of bits: 8, 4, 2 or 1.
    pub(super) width: usize,
    /// Index of the lowest bit.
    pub(super) first: usize,
    /// Offset of the plane in the sub-block's bytes.
    pub(super) at: usize,
}

impl PanelKind {
    /// Panel kind for a file's element type.
    pub(super) const fn of(dtype: DType) -> Option<PanelKind> {
        if let Some((bits, group)) = dtype.affine() {
            return Some(PanelKind::Affine { bits: bits as u8, shift: (group / 32).ilog2() as u8 });
        }
        Some(match dtype {
            DType::F32 => PanelKind::F32,
            DType::F16 => PanelKind::F16,
            DType::BF16 => PanelKind::Bf16,
            DType::FP8 | DType::FP8_G32 => PanelKind::Fp8 { block: dtype.block_weights() as u8 },
            DType::Q1_0 => PanelKind::Affine { bits: 2, shift: 2 },
            DType::Q2_0 => PanelKind::Affine { bits: 2, shift: 1 },
            DType::Q4_0 => PanelKind::Q4,
            DType::Q4_1 => PanelKind::Q4Min,
            DType::Q5_0 => PanelKind::Q5,
            DType::Q5_1 => PanelKind::Q5Min,
            DType::Q8_0 => PanelKind::Q8,
            DType::IQ4_NL => PanelKind::Nl4,
            DType::MXFP4 => PanelKind::Mx4,
            DType::Q2_K => PanelKind::Q2K,
            DType::Q3_K => PanelKind::Q3K,
            DType::Q4_K => PanelKind::Q4K,
            DType::Q5_K => PanelKind::Q5K,
            DType::Q6_K => PanelKind::Q6K,
            DType::IQ4_XS => PanelKind::Nl4K,
            _ if has_groups(dtype) => PanelKind::Stored(dtype),
            _ => return None,
        })
    }

    /// Inputs of a block.
    pub(super) const fn block(self) -> usize {
        use PanelKind::*;
        match self {
            F32 | F16 | Bf16 => 1,
            Fp8 { block } => block as usize,
            Q4 | Q4Min | Q5 | Q5Min | Q8 | Nl4 | Mx4 | Affine { .. } => 32,
            Q2K | Q3K | Q4K | Q5K | Q6K | Nl4K | Stored(_) => 256,
        }
    }

    /// Bits of a stored code.
    const fn bits(self) -> usize {
        use PanelKind::*;
        match self {
            F32 => 32,
            F16 | Bf16 => 16,
            Q8 | Fp8 { .. } | Stored(_) => 8,
            Q6K => 6,
            Q5 | Q5Min | Q5K => 5,
            Q4 | Q4Min | Nl4 | Mx4 | Q4K | Nl4K => 4,
            Q3K => 3,
            Q2K => 2,
            Affine { bits, .. } => bits as usize,
        }
    }

    /// Bits of a code after unpacking and table look-up: the width of a dot product's factor.
    pub(super) const fn dot_bits(self) -> u32 {
        match self {
            PanelKind::Nl4 | PanelKind::Nl4K => 8,
            PanelKind::Mx4 => 5,
            _ => self.bits() as u32,
        }
    }

    /// Unpacked code that stands for zero.
    pub(super) const fn zero(self) -> i32 {
        use PanelKind::*;
        match self {
            Q8 | Nl4 | Nl4K | Affine { bits: 8, .. } => 128,
            Q6K => 32,
            Q5 => 16,
            Mx4 => 12,
            Q4 => 8,
            Q3K => 4,
            _ => 0,
        }
    }

    /// Table that codes index, if there is one: weights plus the zero.
    pub(super) const fn table(self) -> Option<&'static [u8; 16]> {
        const IQ4: [u8; 16] = raised(IQ4_VALUES, PanelKind::Nl4.zero());
        const FP4: [u8; 16] = raised(FP4_VALUES, PanelKind::Mx4.zero());
        match self {
            PanelKind::Nl4 | PanelKind::Nl4K => Some(&IQ4),
            PanelKind::Mx4 => Some(&FP4),
            _ => None,
        }
    }

    /// Planes of a code in a sub-block of 32. The second has width 0 if there is only one.
    pub(super) const fn planes(self) -> [Plane; 2] {
        let (low, high) = match self.bits() {
            2 => (2, 0),
            3 => (2, 1),
            4 => (4, 0),
            5 => (4, 1),
            6 => (4, 2),
            _ => (8, 0),
        };
        [Plane { width: low, first: 0, at: 0 }, Plane { width: high, first: low, at: 64 * low }]
    }

    /// Whether codes must be unpacked before use.
    pub(super) const fn packed(self) -> bool {
        self.bits() < 8
    }

    /// Whether blocks have minimums.
    pub(super) const fn has_min(self) -> bool {
        use PanelKind::*;
        matches!(self, Q4Min | Q5Min | Q2K | Q4K | Q5K | Affine { .. })
    }

    /// Inputs that share a scale within a block of 256.
    pub(super) const fn group(self) -> usize {
        use PanelKind::*;
        if matches!(self, Q2K | Q3K | Q6K | Stored(_)) { 16 } else { 32 }
    }

    /// Bytes of the codes of a block of 16 rows.
    pub(super) const fn code_bytes(self) -> usize {
        match self {
            PanelKind::Stored(dtype) => PANEL_ROWS * dtype.block_bytes(),
            _ => PANEL_ROWS * self.block() * self.bits() / 8,
        }
    }

    /// Bytes of the scales of a block of 16 rows.
    pub(super) const fn scale_bytes(self) -> usize {
        use PanelKind::*;
        match self {
            F32 | F16 | Bf16 | Stored(_) => 0,
            Q4 | Q5 | Q8 | Nl4 | Mx4 => 32,
            Q4Min | Q5Min => 64,
            Affine { .. } => 128,
            Fp8 { .. } => 64,
            Q2K => 32 + 32 + 256,
            Q4K | Q5K => 32 + 32 + 128 + 128,
            Q3K | Q6K => 32 + 256,
            Nl4K => 32 + 128,
        }
    }

    /// Bytes of a panel.
    pub(super) const fn panel_bytes(self, cols: usize) -> usize {
        let blocks = cols / self.block();
        let scales = (blocks >> self.scale_shift()).saturating_mul(self.scale_stride());
        blocks.saturating_mul(self.code_stride()).saturating_add(scales).next_multiple_of(ALIGN)
    }

    /// Number of blocks that share scales, as a power of two.
    pub(super) const fn scale_shift(self) -> u32 {
        match self {
            PanelKind::Affine { shift, .. } => shift as u32,
            _ => 0,
        }
    }

    /// Whether each block's scales precede its codes.
    const fn interleaved(self) -> bool {
        self.block() == 256 || matches!(self, PanelKind::Fp8 { .. })
    }

    /// Bytes of the scales before the codes of their block.
    const fn scale_space(self) -> usize {
        self.scale_bytes().next_multiple_of(ALIGN)
    }

    /// Bytes from a block's codes to the next block's.
    pub(super) const fn code_stride(self) -> usize {
        if self.interleaved() { self.scale_space() + self.code_bytes() } else { self.code_bytes() }
    }

    /// Bytes of scales of a block that are stored apart from codes.
    const fn scale_stride(self) -> usize {
        if self.interleaved() { 0 } else { self.scale_bytes() }
    }

    /// Offset of a block's codes in a panel.
    pub(super) const fn codes_at(self, block: usize) -> usize {
        block * self.code_stride() + if self.interleaved() { self.scale_space() } else { 0 }
    }

    /// Offset of a block's scales in a panel of `blocks`.
    pub(super) const fn scales_at(self, blocks: usize, block: usize) -> usize {
        if self.interleaved() {
            block * self.code_stride()
        } else {
            blocks * self.code_bytes() + (block >> self.scale_shift()) * self.scale_bytes()
        }
    }

    pub(super) const fn acts(self) -> ActKind {
        match self {
            PanelKind::F32 | PanelKind::F16 | PanelKind::Bf16 | PanelKind::Fp8 { .. } => ActKind::Float,
            _ if self.block() == 32 => ActKind::Int32,
            _ => ActKind::Int256,
        }
    }
}

/// Storage index of a panel among `panels`: panels 0, 4, 8, … one after the other, then 1, 5, 9, … and so on; those
/// past the last whole four come at the end.
const fn place(panel: usize, panels: usize) -> usize {
    let streams = panels / STREAM_PANELS;
    if panel < streams * STREAM_PANELS {
        panel % STREAM_PANELS * streams + panel / STREAM_PANELS
    } else {
        panel
    }
}

const fn raised(values: [i8; 16], zero: i32) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (values[i] as i32 + zero) as u8;
        i += 1;
    }
    table
}

impl Segment {
    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// Bytes of a panel.
    pub(super) fn panel(&self, panel: usize) -> &[u8] {
        &self.data[place(panel, self.panels()) * self.panel_bytes..][..self.panel_bytes]
    }

    /// Number of panels from `panel` on, at most `count`, that are stored at equal distances, and the distance in
    /// bytes.
    pub(super) fn even_panels(&self, panel: usize, count: usize) -> (usize, usize) {
        let streams = self.panels() / STREAM_PANELS;
        if panel < streams * STREAM_PANELS {
            (count.min(STREAM_PANELS - panel % STREAM_PANELS), streams * self.panel_bytes)
        } else {
            (count, self.panel_bytes)
        }
    }

    /// Number of times that STREAM_PANELS panels from `panel` on, at most `count` panels in all, have the next panels
    /// of the same streams behind them; at least 1.
    pub(super) fn stream_steps(&self, panel: usize, count: usize) -> usize {
        let streamed = self.panels() / STREAM_PANELS * STREAM_PANELS;
        if !panel.is_multiple_of(STREAM_PANELS) || panel >= streamed {
            return 1;
        }
        (count.min(streamed - panel) / STREAM_PANELS).max(1)
    }

    /// Address of a panel to prefetch, or null past the last.
    pub(super) fn after(&self, panel: usize) -> *const u8 {
        if panel < self.panels() { self.panel(panel).as_ptr() } else { std::ptr::null() }
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

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let kernel = self.kernel.as_ref().map_or(0, |kernel| kernel.held_bytes());
        kernel + self.segments.iter().map(|segment| segment.data.len()).sum::<usize>()
    }

    /// A kernel of a convolution, with weights of this shape.
    pub(super) fn of_kernel(shape: MatrixShape, kernel: CpuKernel) -> CpuMatrix {
        CpuMatrix { rows: shape.rows, cols: shape.cols, segments: Vec::new(), kernel: Some(Box::new(kernel)) }
    }

    /// The kernel of a convolution.
    ///
    /// # Panics
    /// If it was packed as a matrix.
    pub(super) fn kernel(&self) -> &CpuKernel {
        self.kernel.as_ref().expect("a convolution of a kernel that was packed as such")
    }

    /// Checks that a tensor can be packed.
    pub(super) fn check_source(source: &MatrixSource<'_>, device: &str) -> Result<(), KernelError> {
        check(source, source.shape.cols, device)
    }

    /// Form in which activations must be prepared, if it is the same for all rows.
    pub(super) fn acts(&self) -> Option<ActKind> {
        let kind = self.segments.first()?.kind.acts();
        self.segments.iter().all(|segment| segment.kind.acts() == kind).then_some(kind)
    }

    pub(super) fn segments(&self) -> &[Segment] {
        assert!(self.kernel.is_none(), "a product with the kernel of a convolution");
        &self.segments
    }

    /// Packs the parts, with a pool task for every panel.
    pub(super) fn pack(
        parts: &[MatrixSource<'_>],
        turn: &mut PoolTurn,
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
            let mut data = AlignedArray::untouched(bytes, "weights")?;
            let finite = pack::pack_segment(kind, part, &mut data, panel_bytes, turn);
            segments.push(Segment { kind, row_first, rows, cols, panel_bytes, finite, data });
            row_first += rows;
        }
        Ok(CpuMatrix { rows: row_first, cols, segments, kernel: None })
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

/// Checks that a part can be packed together with others of `cols` inputs.
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
