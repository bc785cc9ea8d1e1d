//! The base model of an adapter: its spec and its weights, which some adapters depend on.

use std::borrow::Cow;
use std::cell::OnceCell;

use hanzo_engine_ops::quant;

use crate::error::LoadError;
use crate::load::Tensors;
use crate::spec::{TransformerSpec, Weight};
use crate::tensor::Tensor;

/// Base model that adapters are opened for.
pub struct AdapterBase<'a> {
    pub(super) spec: &'a TransformerSpec,
    files: BaseFiles<'a>,
}

/// Weights of a base model.
#[derive(Debug)]
pub struct BaseWeights {
    /// Spec of the network.
    pub spec: TransformerSpec,
    /// All weights that the spec lists.
    pub tensors: Tensors,
    /// Whether the files are GGUF.
    pub is_gguf: bool,
}

/// Files of a base model.
enum BaseFiles<'a> {
    Open {
        tensors: &'a Tensors,
        is_gguf: bool,
    },
    /// Opened at the first use: most adapters need none of the model's weights.
    ToOpen {
        open: &'a dyn Fn() -> Result<Option<BaseWeights>, LoadError>,
        opened: OnceCell<Option<Box<BaseWeights>>>,
    },
}

impl<'a> AdapterBase<'a> {
    /// A model whose files are open.
    pub fn of(spec: &'a TransformerSpec, tensors: &'a Tensors, is_gguf: bool) -> Self {
        Self { spec, files: BaseFiles::Open { tensors, is_gguf } }
    }

    /// A model whose files `open` opens again, once, if an adapter depends on its weights. It returns `None` if the model
    /// is no longer a decoder.
    pub fn reopened(
        spec: &'a TransformerSpec,
        open: &'a dyn Fn() -> Result<Option<BaseWeights>, LoadError>,
    ) -> Self {
        Self { spec, files: BaseFiles::ToOpen { open, opened: OnceCell::new() } }
    }

    /// The weights, and whether their files are GGUF.
    fn weights(&self) -> Result<(&Tensors, bool), LoadError> {
        let (open, kept) = match &self.files {
            BaseFiles::Open { tensors, is_gguf } => return Ok((tensors, *is_gguf)),
            BaseFiles::ToOpen { open, opened } => (open, opened),
        };
        let opened = match kept.get() {
            Some(opened) => opened,
            None => {
                let opened = open()?;
                kept.get_or_init(|| opened.map(Box::new))
            }
        };
        let is_same = |base: &&BaseWeights| {
            base.spec.weights() == self.spec.weights() && base.spec.permuted == self.spec.permuted
        };
        let same = opened.as_deref().filter(is_same).ok_or_else(|| LoadError::Corrupt {
            file: self.spec.architecture.clone(),
            what: "the model's files".into(),
            reason: "they were changed since the model was loaded; load the model again".into(),
        })?;
        Ok((&same.tensors, same.is_gguf))
    }

    /// Whether the model's files are GGUF.
    pub(super) fn is_gguf(&self) -> Result<bool, LoadError> {
        Ok(self.weights()?.1)
    }

    /// A weight of the model, which its spec lists.
    pub(super) fn tensor(&self, weight: Weight) -> Result<&Tensor, LoadError> {
        Ok(self.weights()?.0.get(weight))
    }

    /// Elements of a weight, as loaded.
    pub(super) fn numbers(&self, weight: Weight) -> Result<Vec<f32>, LoadError> {
        self.tensor(weight)?.decoded()
    }
}

/// Rows of a matrix, to be read as floats.
struct RowsAsFloats<'t> {
    matrix: &'t Tensor,
    bytes: Cow<'t, [u8]>,
    row_bytes: usize,
    floats: Vec<f32>, // all elements, for types that are not read row by row
    rows: usize,
    cols: usize,
}

impl<'t> RowsAsFloats<'t> {
    fn of(matrix: &'t Tensor) -> Result<Self, LoadError> {
        let &[rows, cols] = matrix.shape.as_slice() else {
            return Err(matrix.unsupported_type("adapters change the rows of matrices"));
        };
        let row_bytes = matrix.dtype.bytes_of(cols).filter(|_| quant::can_dequantize(matrix.dtype));
        let (bytes, floats) = match row_bytes {
            Some(_) => (matrix.bytes.read(), Vec::new()),
            None => (Cow::Borrowed(&[][..]), matrix.to_f32()?),
        };
        Ok(Self { matrix, bytes, row_bytes: row_bytes.unwrap_or(0), floats, rows, cols })
    }

    fn read(&self, row: usize, numbers: &mut [f32]) {
        let Self { matrix, bytes, row_bytes, floats, cols, .. } = self;
        match floats.get(row * cols..(row + 1) * cols) {
            Some(floats) => numbers.copy_from_slice(floats),
            None => quant::dequantize_row(matrix.dtype, &bytes[row * row_bytes..][..*row_bytes], numbers),
        }
    }
}

/// Calls `take` with each row of a matrix in turn.
pub(super) fn rows_of(matrix: &Tensor, mut take: impl FnMut(usize, &mut [f32])) -> Result<(), LoadError> {
    let rows = RowsAsFloats::of(matrix)?;
    let mut numbers = vec![0.0; rows.cols];
    for row in 0..rows.rows {
        rows.read(row, &mut numbers);
        take(row, &mut numbers);
    }
    matrix.bytes.release();
    Ok(())
}

/// Calls `take` with each row of a matrix, and returns the results in order.
pub(super) fn each_row<T>(
    matrix: &Tensor,
    mut take: impl FnMut(usize, &mut [f32]) -> T,
) -> Result<Vec<T>, LoadError> {
    let rows = RowsAsFloats::of(matrix)?;
    let mut numbers = vec![0.0; rows.cols];
    let of_row = |row: usize| {
        rows.read(row, &mut numbers);
        take(row, &mut numbers)
    };
    let made = (0..rows.rows).map(of_row).collect();
    matrix.bytes.release();
    Ok(made)
}
