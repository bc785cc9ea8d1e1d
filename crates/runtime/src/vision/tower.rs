//! One frame's way through a tower: patches, layers, squares of patches, rows of the text model. It is cut into pieces, so that
//! others' steps go on between them.

use hanzo_engine_kernels::{
    Batch, BufferRole, EncoderOps, KernelError, MatrixShape, MatrixSource, PositionBias, RowSource,
    SelfAttentionParams, SequenceSpan, StepLimits,
};

use super::families::COLORS;
use super::{TowerFiles, TowerSpec};
use crate::encoder::{WeightType, turn};
use crate::engine::EngineMemory;
use crate::error::LoadError;
use crate::limits::PICTURE_ROWS_BYTES;
use crate::network::{self, Loader, Network};
use crate::tensor::Tensor;

/// What makes rows of frames, a piece at a time, on whatever device.
pub trait Towers: Send {
    /// Layers of the way of a frame.
    fn layers(&self) -> usize;

    /// Begins with a frame, `(height, width, 3)`; one that was under way is forgotten.
    ///
    /// # Errors
    /// The device's.
    fn begin(&mut self, frame: &[u8]) -> Result<(), KernelError>;

    /// Goes so many layers further. The frame's rows where that was its end, `(rows, text hidden)`.
    ///
    /// # Errors
    /// The device's.
    fn advance(&mut self, layers: usize) -> Result<Option<Vec<f32>>, KernelError>;
}

/// A tower's weights on a backend of its own, and what it takes to run them.
pub struct Tower<B: EncoderOps> {
    backend: B,
    network: Network<B>,
    spec: TowerSpec,
    scale: [[f32; 256]; COLORS],
    patch: B::Matrix,      // (hidden, patch_width)
    patch_bias: B::Vector, // (hidden)
    projection: B::Matrix, // (text_hidden, joined_width)
    pixels: B::Buffer,     // (patches, patch_width)
    squares: B::Buffer,    // (rows, joined_width)
    given: B::Buffer,      // (rows, text_hidden)
    seen: Batch,           // the patches of a frame
    joined: Batch,         // the rows that they become
    done: usize,           // layers
}

fn batch_of(rows: usize) -> Batch {
    let count = rows as u32;
    Batch {
        sources: vec![RowSource::Embedding; rows],
        positions: (0..count).collect(),
        sequences: vec![SequenceSpan { row_first: 0, rows: count, context: count, table_first: 0 }],
        ..Batch::default()
    }
}

fn limits(spec: &TowerSpec) -> StepLimits {
    let patches = spec.patches();
    let limits = spec.layers.step_limits(patches, 1, patches);
    let width = limits.width.max(spec.patch_width()).max(spec.joined_width()).max(spec.text_hidden);
    StepLimits { width, ..limits }
}

fn shape_of(tensor: &Tensor) -> MatrixShape {
    MatrixShape { dtype: tensor.dtype, rows: tensor.shape[0], cols: tensor.shape[1] }
}

impl<B: EncoderOps> Tower<B> {
    /// What [`Tower::load`] takes.
    pub fn memory(backend: &B, files: &TowerFiles) -> EngineMemory {
        let spec = &files.spec;
        let plan =
            network::plan(backend, &spec.layers, &files.tensors, WeightType::Stored, spec.patch_width());
        let matrices: usize = [&files.patch, &files.projection]
            .map(|tensor| match backend.supports(tensor.dtype) {
                true => backend.matrix_bytes(&[shape_of(tensor)]),
                false => tensor.bytes.len(),
            })
            .iter()
            .sum();
        let behind: usize = [spec.joined_width(), spec.text_hidden]
            .map(|cols| backend.buffer_bytes(BufferRole::Operand, spec.rows(), cols))
            .iter()
            .sum();
        EngineMemory {
            weights_bytes: plan.weights_bytes + (matrices + backend.vector_bytes(spec.layers.hidden)) as u64,
            kv_bytes: 0,
            scratch_bytes: plan.scratch_bytes(backend, &limits(spec)) + (behind + PICTURE_ROWS_BYTES) as u64,
        }
    }

    /// Reads and packs all weights, and makes all buffers.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot pack a type or give the memory.
    pub fn load(mut backend: B, files: &TowerFiles) -> Result<Self, LoadError> {
        let spec = files.spec.clone();
        let pack = |tensor: &Tensor| -> Result<B::Matrix, LoadError> {
            let (name, shape) = (&tensor.name, shape_of(tensor));
            if !backend.supports(tensor.dtype) {
                let (tensor, dtype, device) = (name.clone(), shape.dtype, backend.device());
                return Err(KernelError::UnsupportedType { tensor, dtype, device }.into());
            }
            let packed = backend.pack(&[MatrixSource { name, shape, bytes: &tensor.bytes.read() }])?;
            tensor.bytes.release();
            Ok(packed)
        };
        let (patch, projection) = (pack(&files.patch)?, pack(&files.projection)?);
        let patch_bias = backend.vector(&files.patch_bias.to_f32()?)?;
        let mut silent = |_| ();
        let mut loader =
            Loader::new(&backend, &spec.layers, &files.tensors, WeightType::Stored, &mut silent)?;
        let mut network = loader.network()?;
        let limits = limits(&spec);
        network.prepare(&backend, limits.rows)?;
        backend.reserve(&limits)?;
        let buffer = |rows, cols| backend.buffer(BufferRole::Operand, rows, cols);
        Ok(Tower {
            pixels: buffer(spec.patches(), spec.patch_width())?,
            squares: buffer(spec.rows(), spec.joined_width())?,
            given: buffer(spec.rows(), spec.text_hidden)?,
            scale: files.processor.scale().table(),
            seen: batch_of(spec.patches()),
            joined: batch_of(spec.rows()),
            done: 0,
            patch,
            patch_bias,
            projection,
            network,
            spec,
            backend,
        })
    }

    /// A frame's patches, row by row: of each its colours, row by row.
    fn patches_of(&self, frame: &[u8]) -> Vec<f32> {
        let (side, patch, line) = (self.spec.side(), self.spec.patch, self.spec.frame * COLORS);
        let mut numbers = Vec::with_capacity(self.spec.patches() * self.spec.patch_width());
        for place in 0..side * side {
            let (top, left) = (place / side * patch, place % side * patch);
            for (color, scale) in self.scale.iter().enumerate() {
                for row in top..top + patch {
                    let pixels = &frame[row * line + left * COLORS..][..patch * COLORS];
                    let values = pixels.iter().skip(color).step_by(COLORS);
                    numbers.extend(values.map(|&value| scale[usize::from(value)]));
                }
            }
        }
        numbers
    }

    /// Patches joined to squares: a square's patches row by row, one behind the other.
    fn squares_of(&self, patches: &[f32]) -> Vec<f32> {
        let (side, joined, hidden) = (self.spec.side(), self.spec.joined, self.spec.layers.hidden);
        let mut numbers = Vec::with_capacity(patches.len());
        for place in 0..self.spec.rows() {
            let (top, left) = (place / (side / joined) * joined, place % (side / joined) * joined);
            for row in top..top + joined {
                numbers.extend_from_slice(&patches[(row * side + left) * hidden..][..joined * hidden]);
            }
        }
        numbers
    }

    /// Squares through the last matrix.
    fn project(&mut self) -> Result<Vec<f32>, KernelError> {
        let mut patches = vec![0.0; self.spec.patches() * self.spec.layers.hidden];
        self.backend.read_rows(self.network.hidden(), 0, &mut patches)?;
        let squares = self.squares_of(&patches);
        self.backend.begin(&self.joined)?;
        let written = self.backend.write_rows(&mut self.squares, 0, &squares);
        self.backend.matmul(&self.projection, None, &self.squares, &mut self.given);
        self.backend.end().and(written)?;
        let mut rows = vec![0.0; self.spec.rows() * self.spec.text_hidden];
        self.backend.read_rows(&self.given, 0, &mut rows)?;
        Ok(rows)
    }
}

impl<B: EncoderOps> Towers for Tower<B> {
    fn layers(&self) -> usize {
        self.network.layers.len()
    }

    fn begin(&mut self, frame: &[u8]) -> Result<(), KernelError> {
        assert_eq!(frame.len(), self.spec.frame_bytes(), "a frame of this tower's size");
        let patches = self.patches_of(frame);
        self.done = 0;
        self.backend.begin(&self.seen)?;
        let written = self.backend.write_rows(&mut self.pixels, 0, &patches);
        let out = self.network.residual();
        self.backend.matmul(&self.patch, Some(&self.patch_bias), &self.pixels, out);
        self.network.embed(&mut self.backend, self.seen.rows());
        self.network.begin(&mut self.backend);
        self.backend.end().and(written)
    }

    fn advance(&mut self, layers: usize) -> Result<Option<Vec<f32>>, KernelError> {
        let end = self.layers().min(self.done + layers);
        self.backend.begin(&self.seen)?;
        for index in self.done..end {
            self.network.layer(&mut self.backend, index, |backend, attention, rows, attended| {
                let qkv = rows.own;
                turn(backend, attention, qkv);
                let params = SelfAttentionParams {
                    heads: attention.shape,
                    scale: attention.spec.scale,
                    reach: None,
                    bias: PositionBias::None,
                };
                backend.self_attention(qkv, &params, attended);
            });
        }
        self.backend.end()?;
        self.done = end;
        if end < self.layers() { Ok(None) } else { self.project().map(Some) }
    }
}
