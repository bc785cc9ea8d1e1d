//! Matrices on a device: blocks as stored, part after part, each aligned to 16 bytes, after a table of the parts.

use std::borrow::Cow;
use std::sync::Arc;

use hanzo_engine_ops::{
    DType, ExpertParts, KernelError, LowRankPair, LowRankShape, MatrixShape, MatrixSource, OutputChange,
    OutputDelta,
};

use crate::codebooks::Codebooks;
use crate::device::{Device, Memory, address_of};
use crate::params::{PartParams, StackParams};
use crate::shapes::{TILE_OUTPUTS, WIDE_OUTPUTS};

/// Alignment of parts.
const ALIGNMENT: usize = 16;

/// Bytes of a part as held on the device: as stored, except that a block of 8-bit floats with a NaN gets a NaN scale,
/// because no kernel looks for NaN among the floats.
fn held_bytes<'a>(part: &MatrixSource<'a>) -> Cow<'a, [u8]> {
    let dtype = part.shape.dtype;
    if !dtype.is_fp8() {
        return Cow::Borrowed(part.bytes);
    }
    // The scale is four bytes.
    let has_nan = |block: &[u8]| block[4..].iter().fold(false, |any, byte| any | (byte & 0x7f == 0x7f));
    let mut held = Cow::Borrowed(part.bytes);
    for (at, block) in part.bytes.chunks_exact(dtype.block_bytes()).enumerate() {
        if has_nan(block) {
            held.to_mut()[at * dtype.block_bytes()..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
    }
    held
}

/// Whether `cuda/weights.cuh` reads this type.
pub(crate) fn supports(dtype: DType) -> bool {
    use DType::*;
    dtype.affine().is_some()
        || dtype.is_fp8()
        || matches!(
            dtype,
            F32 | F16
                | BF16
                | Q4_0
                | Q4_1
                | Q5_0
                | Q5_1
                | Q8_0
                | Q2_K
                | Q3_K
                | Q4_K
                | Q5_K
                | Q6_K
                | IQ4_NL
                | IQ4_XS
                | MXFP4
                | NVFP4
                | IQ1_S
                | IQ1_M
                | IQ2_XXS
                | IQ2_XS
                | IQ2_S
                | IQ3_XXS
                | IQ3_S
                | TQ1_0
                | TQ2_0
                | Q1_0
                | Q2_0
        )
}

/// Whether products use split precision of 16 bits, and if so whether of BF16. All weights except 32-bit floats do,
/// apart from mixtures of BF16 with others.
fn pieces_of(shapes: &[MatrixShape]) -> Option<bool> {
    let has = |dtype: DType| shapes.iter().any(|shape| shape.dtype == dtype);
    let all = |dtype: DType| shapes.iter().all(|shape| shape.dtype == dtype);
    match (has(DType::F32), has(DType::BF16)) {
        (false, false) => Some(false),
        (false, true) if all(DType::BF16) => Some(true),
        _ => None,
    }
}

/// Properties of products with matrices of these shapes, each a stack of parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductShape {
    pub(crate) floats: bool,
    pub(crate) pieces: Option<bool>, // split precision, of BF16 or not, or none
    pub(crate) tiles: u32,           // of 16 outputs, counted part by part; the largest count
    pub(crate) whole_tiles: bool,    // whether each part ends with a whole tile
    pub(crate) wide_tiles: u32,      // the same for tiles of 64
}

impl ProductShape {
    fn of<'a>(matrices: impl Iterator<Item = &'a [MatrixShape]>) -> Self {
        let (mut all, mut tiles, mut wide_tiles) = (Vec::new(), 0, 0);
        for parts in matrices {
            let of = |outputs| parts.iter().map(|shape| shape.rows.div_ceil(outputs) as u32).sum();
            tiles = tiles.max(of(TILE_OUTPUTS));
            wide_tiles = wide_tiles.max(of(WIDE_OUTPUTS));
            all.extend_from_slice(parts);
        }
        Self {
            floats: all.iter().all(|shape| shape.dtype.block_weights() == 1),
            pieces: pieces_of(&all),
            tiles,
            whole_tiles: all.iter().all(|shape| shape.rows.is_multiple_of(TILE_OUTPUTS)),
            wide_tiles,
        }
    }
}

/// Matrix of parts stacked by rows.
#[derive(Debug)]
pub struct CudaMatrix<D: Device> {
    pub(crate) memory: Arc<Memory<D>>,
    codebooks: Option<Arc<Memory<D>>>,
    pub(crate) stack: StackParams,
    pub(crate) product: ProductShape, // in tf32 if there is no split precision
}

/// Experts of a layer: two stacks for each, gate and up, and down.
#[derive(Debug)]
pub struct CudaExperts<D: Device> {
    pub(crate) memory: Arc<Memory<D>>,
    pub(crate) count: usize,
    pub(crate) up_rows: usize,
    pub(crate) cols: usize, // inputs of the first product
    pub(crate) ffn: usize,  // inputs of the second
    pub(crate) up: ProductShape,
    pub(crate) down: ProductShape,
    shapes: Vec<ExpertParts<MatrixShape>>,
    codebooks: Option<Arc<Memory<D>>>, // of the packed experts
    packed: usize,
    place: StackPlace,
}

/// Everything that one adapter does to the outputs of one matrix.
#[derive(Debug)]
pub struct CudaLowRank<D: Device> {
    pub(crate) changes: Vec<ChangedOutputs<D>>,
    pub(crate) pairs: Vec<LowRankMatrices<D>>,
}

/// Factors of some outputs, followed by as many addends.
#[derive(Debug)]
pub(crate) struct ChangedOutputs<D: Device> {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) reads_input: bool,
    pub(crate) memory: Arc<Memory<D>>,
}

#[derive(Debug)]
pub(crate) struct LowRankMatrices<D: Device> {
    pub(crate) a: Option<CudaMatrix<D>>,
    pub(crate) b: CudaMatrix<D>,
    pub(crate) scale: f32,
    pub(crate) first: usize,
}

/// Destination of the next of several stacks.
#[derive(Clone, Copy, Debug)]
struct StackPlace {
    part: usize,  // offset of the next entry in the table of parts
    bytes: usize, // offset of the next part
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

fn stored_bytes(shape: &MatrixShape) -> usize {
    shape.dtype.bytes_of(shape.cols).map_or(0, |row| row * shape.rows)
}

fn data_bytes(shapes: &[MatrixShape]) -> usize {
    shapes.iter().map(|shape| aligned(stored_bytes(shape))).sum()
}

fn table_bytes(parts: usize) -> usize {
    aligned(parts * size_of::<PartParams>())
}

pub(crate) fn matrix_bytes(shapes: &[MatrixShape]) -> usize {
    table_bytes(shapes.len()) + data_bytes(shapes)
}

/// Writes parts and their table entries at `place`, and advances it.
fn put<D: Device>(
    memory: &Memory<D>,
    codebooks: Option<&Arc<Memory<D>>>,
    parts: &[MatrixSource<'_>],
    place: &mut StackPlace,
) -> Result<StackParams, KernelError> {
    let mut stack = StackParams {
        parts: memory.address().offset(place.part),
        codebooks: address_of(codebooks),
        count: parts.len() as u32,
        rows: 0,
        cols: parts.first().map_or(0, |part| part.shape.cols) as u32,
        unused: 0,
    };
    for part in parts {
        let MatrixShape { rows, dtype, .. } = part.shape;
        let bytes = held_bytes(part);
        let entry = PartParams {
            bytes: memory.address().offset(place.bytes),
            dtype: dtype as u32,
            row_first: stack.rows,
            rows: rows as u32,
            row_bytes: bytes.len().checked_div(rows).unwrap_or(0) as u32,
        };
        memory.write(place.bytes, &bytes)?;
        memory.write(place.part, bytemuck::bytes_of(&entry))?;
        place.bytes += aligned(bytes.len());
        place.part += size_of::<PartParams>();
        stack.rows += rows as u32;
    }
    Ok(stack)
}

impl<D: Device> CudaMatrix<D> {
    pub(crate) fn new(
        device: &D,
        codebooks: &Codebooks<D>,
        parts: &[MatrixSource<'_>],
    ) -> Result<Self, KernelError> {
        check_all(device, parts)?;
        let codebooks = codebooks.of(device, types_of(parts))?;
        let shapes: Vec<MatrixShape> = parts.iter().map(|part| part.shape).collect();
        let memory = Memory::unknown(device, matrix_bytes(&shapes), "a matrix")?;
        let mut place = StackPlace { part: 0, bytes: table_bytes(parts.len()) };
        let stack = put(&memory, codebooks.as_ref(), parts, &mut place)?;
        assert_eq!(place.bytes, memory.bytes(), "matrix_bytes is what a matrix takes");
        Ok(Self { memory, codebooks, stack, product: ProductShape::of(std::iter::once(&shapes[..])) })
    }

    /// Memory that launches name to read the matrix.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &Arc<Memory<D>>> {
        std::iter::once(&self.memory).chain(&self.codebooks)
    }

    /// Outputs.
    pub(crate) fn rows(&self) -> usize {
        self.stack.rows as usize
    }

    /// Inputs.
    pub(crate) fn cols(&self) -> usize {
        self.stack.cols as usize
    }
}

impl<D: Device> CudaExperts<D> {
    /// Bytes of stacks, of parts, and of weights.
    fn sizes(shapes: &[ExpertParts<MatrixShape>]) -> [usize; 3] {
        let parts = shapes.iter().map(|expert| expert.gate_up.len() + expert.down.len()).sum();
        let data = shapes.iter().map(|expert| data_bytes(&expert.gate_up) + data_bytes(&expert.down)).sum();
        [aligned(2 * shapes.len() * size_of::<StackParams>()), table_bytes(parts), data]
    }

    pub(crate) fn bytes(shapes: &[ExpertParts<MatrixShape>]) -> usize {
        Self::sizes(shapes).iter().sum()
    }

    pub(crate) fn new(device: &D, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self, KernelError> {
        let [stacks, parts, data] = Self::sizes(shapes);
        let memory = Memory::unknown(device, stacks + parts + data, "experts")?;
        let rows = |of: &[MatrixShape]| of.iter().map(|shape| shape.rows).sum();
        let first = shapes.first();
        Ok(Self {
            memory,
            count: shapes.len(),
            up_rows: first.map_or(0, |expert| rows(&expert.gate_up)),
            cols: first.and_then(|expert| expert.gate_up.first()).map_or(0, |shape| shape.cols),
            ffn: first.and_then(|expert| expert.down.first()).map_or(0, |shape| shape.cols),
            up: ProductShape::of(shapes.iter().map(|expert| &expert.gate_up[..])),
            down: ProductShape::of(shapes.iter().map(|expert| &expert.down[..])),
            shapes: shapes.to_vec(),
            codebooks: None,
            packed: 0,
            place: StackPlace { part: stacks, bytes: stacks + parts },
        })
    }

    pub(crate) fn pack(
        &mut self,
        device: &D,
        codebooks: &Codebooks<D>,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        for stack in [&parts.gate_up, &parts.down] {
            check_all(device, stack)?;
            if let Some(codebooks) = codebooks.of(device, types_of(stack))? {
                self.codebooks = Some(codebooks);
            }
        }
        let shapes = |of: &[MatrixSource<'_>]| of.iter().map(|part| part.shape).collect::<Vec<_>>();
        let expert = ExpertParts { gate_up: shapes(&parts.gate_up), down: shapes(&parts.down) };
        assert_eq!(
            self.shapes.get(self.packed),
            Some(&expert),
            "an expert that room was made for, in its turn"
        );
        let mut place = self.place;
        for (i, stack) in [&parts.gate_up, &parts.down].into_iter().enumerate() {
            let stack = put(&self.memory, self.codebooks.as_ref(), stack, &mut place)?;
            let at = (2 * self.packed + i) * size_of::<StackParams>();
            self.memory.write(at, bytemuck::bytes_of(&stack))?;
        }
        self.place = place;
        self.packed += 1;
        Ok(())
    }

    /// Memory that launches name to read the experts.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &Arc<Memory<D>>> {
        std::iter::once(&self.memory).chain(&self.codebooks)
    }

    /// Asserts that all experts have been packed.
    pub(crate) fn check(&self) {
        assert_eq!(self.packed, self.count, "experts that were not packed");
    }
}

impl<D: Device> CudaLowRank<D> {
    pub(crate) fn bytes(pairs: &[LowRankShape], changes: &[usize]) -> usize {
        let of_pair = |pair: &LowRankShape| {
            pair.a.map_or(0, |a| matrix_bytes(&[a])).saturating_add(matrix_bytes(&[pair.b]))
        };
        let of_changes = changes.iter().map(|&count| 2 * size_of::<f32>() * count).sum();
        pairs.iter().map(of_pair).fold(of_changes, usize::saturating_add)
    }

    pub(crate) fn new(
        device: &D,
        codebooks: &Codebooks<D>,
        delta: &OutputDelta<'_>,
    ) -> Result<Self, KernelError> {
        delta.check_changes();
        let inputs = delta.pairs.first().map_or(0, |pair| pair.shape().inputs());
        let of = |pair: &LowRankPair<'_>| {
            let bad = |source: &MatrixSource<'_>, other: usize| {
                let reason = format!("{} columns beside {other}", source.shape.cols);
                Err(KernelError::BadShape { tensor: source.name.to_owned(), reason })
            };
            if let Some(a) = pair.a.filter(|a| a.shape.rows != pair.b.shape.cols) {
                return bad(&pair.b, a.shape.rows);
            }
            if pair.shape().inputs() != inputs {
                return bad(pair.a.as_ref().unwrap_or(&pair.b), inputs);
            }
            let matrix = |part| CudaMatrix::new(device, codebooks, &[part]);
            let (a, b) = (pair.a.map(matrix).transpose()?, matrix(pair.b)?);
            Ok(LowRankMatrices { a, b, scale: pair.scale, first: pair.first })
        };
        let change = |&OutputChange { first, factors, addends, reads_input }: &OutputChange<'_>| {
            let memory = Memory::unknown(device, 2 * size_of_val(factors), "changes of outputs")?;
            memory.write(0, bytemuck::cast_slice(factors))?;
            memory.write(size_of_val(factors), bytemuck::cast_slice(addends))?;
            Ok(ChangedOutputs { first, count: factors.len(), reads_input, memory })
        };
        Ok(Self {
            changes: delta.changes.iter().map(change).collect::<Result<_, KernelError>>()?,
            pairs: delta.pairs.iter().map(of).collect::<Result<_, _>>()?,
        })
    }
}

fn types_of(parts: &[MatrixSource<'_>]) -> impl Iterator<Item = DType> {
    parts.iter().map(|part| part.shape.dtype)
}

/// Refuses parts that do not have their stated form or not the first part's width.
fn check_all<D: Device>(device: &D, parts: &[MatrixSource<'_>]) -> Result<(), KernelError> {
    let cols_all = parts.first().map_or(0, |part| part.shape.cols);
    for part in parts {
        let MatrixShape { rows, cols, dtype } = part.shape;
        let tensor = part.name.to_owned();
        if !supports(dtype) {
            return Err(KernelError::UnsupportedType { tensor, dtype, device: device.name() });
        }
        if cols != cols_all {
            let reason = format!("{cols} columns beside a part of {cols_all}");
            return Err(KernelError::BadShape { tensor, reason });
        }
        let Some(expected) = dtype.bytes_of(cols).and_then(|row| row.checked_mul(rows)) else {
            let reason =
                format!("a row of {cols} is not whole blocks of {} ({dtype})", dtype.block_weights());
            return Err(KernelError::BadShape { tensor, reason });
        };
        if part.bytes.len() != expected {
            let found = part.bytes.len();
            return Err(KernelError::WrongSize { tensor, rows, cols, dtype, expected, found });
        }
        if u32::try_from(rows).is_err() || u32::try_from(cols).is_err() {
            let reason = format!("[{rows}, {cols}] is more than kernels count");
            return Err(KernelError::BadShape { tensor, reason });
        }
    }
    Ok(())
}
