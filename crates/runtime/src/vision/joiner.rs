//! Projector from rows of a tower to rows of a text model: where there are some, a norm and a matrix that merges rows, then a
//! matrix or an MLP.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{Activation, AnyBackend, Batch, BufferId, BufferRole, KernelError, Op};

use super::tower::pack;
use crate::error::LoadError;
use crate::network::{Norm, ProgramBuilder};
use crate::spec::{NormKind, NormSpec};
use crate::tensor::Tensor;

/// Tensors of a projector. A row that it reads is a square of patches, or the joined rows of a sound.
#[derive(Debug)]
pub(crate) struct JoinerFiles {
    /// Weight and bias of a layer norm, (square) each.
    pub(crate) norm: Option<[Tensor; 2]>,
    /// Matrix that merges a square to one patch, (hidden, square).
    pub(crate) merge: Option<Tensor>,
    /// First matrix of an MLP, (inner, square or hidden), and its bias, (inner).
    pub(crate) up: Option<(Tensor, Option<Tensor>)>,
    /// Last matrix, (text hidden, inner or square).
    pub(crate) down: Tensor,
    /// Bias of the last matrix, (text hidden).
    pub(crate) down_bias: Option<Tensor>,
}

impl JoinerFiles {
    /// All tensors.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Tensor> {
        let up = self.up.iter().flat_map(|(up, bias)| [up].into_iter().chain(bias));
        let before = self.norm.iter().flatten().chain(&self.merge);
        before.chain(up).chain([&self.down]).chain(&self.down_bias)
    }
}

/// Projector on a backend.
pub(crate) struct Joiner {
    norm: Option<Norm>,
    merge: Option<ops::Matrix>,
    up: Option<(ops::Matrix, Option<ops::Vector>)>,
    down: ops::Matrix,
    down_bias: Option<ops::Vector>,
    program: Vec<Op>, // from the buffers' `read` to `given`
}

/// Columns of a projector's buffers.
#[derive(Clone, Copy)]
pub(crate) struct JoinerWidths {
    /// Columns of a row that is read.
    pub(crate) read: usize,
    /// Columns of a normed row.
    pub(crate) normed: Option<usize>,
    /// Columns of a merged row.
    pub(crate) merged: Option<usize>,
    /// Columns inside an MLP.
    pub(crate) inner: Option<usize>,
    /// Columns of a row of the text model.
    pub(crate) given: usize,
}

impl JoinerWidths {
    /// Columns of all buffers.
    pub(crate) fn all(self) -> impl Iterator<Item = usize> {
        let Self { read, normed, merged, inner, given } = self;
        [Some(read), normed, merged, inner, Some(given)].into_iter().flatten()
    }
}

/// Buffers of projectors of a tower.
pub(crate) struct JoinerBuffers {
    read: ops::Buffer,           // (rows, square)
    normed: Option<ops::Buffer>, // (rows, square)
    merged: Option<ops::Buffer>, // (rows, hidden)
    inner: Option<ops::Buffer>,  // (rows, inner)
    given: ops::Buffer,          // (rows, text hidden)
    given_width: usize,
}

impl JoinerBuffers {
    /// Buffers for at most this many rows.
    ///
    /// # Errors
    /// The backend's, if it cannot give the memory.
    pub(crate) fn new(
        backend: &AnyBackend,
        rows: usize,
        JoinerWidths { read, normed, merged, inner, given }: JoinerWidths,
    ) -> Result<Self, KernelError> {
        let buffer = |cols| backend.buffer(BufferRole::Operand, rows, cols);
        Ok(Self {
            read: buffer(read)?,
            normed: normed.map(buffer).transpose()?,
            merged: merged.map(buffer).transpose()?,
            inner: inner.map(buffer).transpose()?,
            given: buffer(given)?,
            given_width: given,
        })
    }
}

impl Joiner {
    /// Reads and packs the weights, and builds the ops. `eps` is that of the norm.
    ///
    /// # Errors
    /// `Kernel` if the backend cannot pack a type or give the memory.
    pub(crate) fn load(
        backend: &AnyBackend,
        files: &JoinerFiles,
        eps: f32,
        buffers: &JoinerBuffers,
    ) -> Result<Self, LoadError> {
        let vector = |tensor: &Tensor| Ok::<_, LoadError>(backend.vector(&tensor.to_f32()?)?);
        let mut joiner = Joiner {
            norm: match &files.norm {
                Some([factors, addends]) => Some(Norm::new(vector(factors)?, Some(vector(addends)?))),
                None => None,
            },
            merge: files.merge.as_ref().map(|merge| pack(backend, merge)).transpose()?,
            up: match &files.up {
                Some((weight, bias)) => {
                    Some((pack(backend, weight)?, bias.as_ref().map(vector).transpose()?))
                }
                None => None,
            },
            down: pack(backend, &files.down)?,
            down_bias: files.down_bias.as_ref().map(vector).transpose()?,
            program: Vec::new(),
        };
        joiner.program = joiner.build(eps, buffers);
        Ok(joiner)
    }

    fn build(&self, eps: f32, b: &JoinerBuffers) -> Vec<Op> {
        let mut p = ProgramBuilder::default();
        let mut x: BufferId = b.read.id();
        if let (Some(norm), Some(normed)) = (&self.norm, &b.normed) {
            p.norm(norm, NormSpec { kind: NormKind::Layer { bias: true }, eps }, x, normed.id());
            x = normed.id();
        }
        if let (Some(merge), Some(merged)) = (&self.merge, &b.merged) {
            p.matmul(merge, None, x, merged.id());
            x = merged.id();
        }
        if let (Some((up, bias)), Some(inner)) = (&self.up, &b.inner) {
            p.activated(up, bias.as_ref(), Activation::GeluErf, x, inner.id());
            x = inner.id();
        }
        p.matmul(&self.down, self.down_bias.as_ref(), x, b.given.id());
        p.finish_ops()
    }

    /// Projects the rows of a batch, `(rows, square)`, to `(rows, text hidden)`.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn join(
        &self,
        backend: &mut AnyBackend,
        batch: &Batch,
        buffers: &mut JoinerBuffers,
        rows: &[f32],
    ) -> Result<Vec<f32>, KernelError> {
        backend.begin(batch)?;
        let written = backend.write_rows(&mut buffers.read, 0, rows);
        backend.run_all(&self.program);
        backend.end().and(written)?;
        let mut given = vec![0.0; batch.rows() * buffers.given_width];
        backend.read_rows(&buffers.given, 0, &mut given)?;
        Ok(given)
    }
}
