//! Tensors of a model by name, as the networks request them. Weight norms are resolved here, in both forms that
//! files use.

use std::collections::HashMap;

use hanzo_engine_runtime::LoadError;
use hanzo_engine_runtime::tensor::Tensor;

/// Tensors by name.
pub(crate) struct Weights {
    file: String,
    tensors: HashMap<String, Tensor>,
}

/// Values with their shape.
pub(crate) struct Numbers {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

impl Weights {
    pub(crate) fn new(file: &str, tensors: &[Tensor]) -> Weights {
        let tensors = tensors.iter().map(|tensor| (tensor.name.clone(), tensor.clone())).collect();
        Weights { file: file.to_owned(), tensors }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Error for an invalid file.
    pub(crate) fn corrupt(&self, what: impl Into<String>, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.file.clone(), what: what.into(), reason: reason.into() }
    }

    /// Shape of a tensor, or of a weight under weight norm.
    pub(crate) fn shape(&self, name: &str) -> Result<Vec<usize>, LoadError> {
        let direction = norm_names(name).map(|[_, direction]| direction);
        let names = [name.to_owned()].into_iter().chain(direction);
        let found = names.into_iter().find_map(|name| self.tensors.get(&name));
        found.map(|tensor| tensor.shape.clone()).ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> LoadError {
        LoadError::Missing { file: self.file.clone(), what: format!("tensor {name}"), hint: String::new() }
    }

    /// Reads a tensor of any shape. A weight stored as norm and direction is combined.
    pub(crate) fn numbers(&self, name: &str) -> Result<Numbers, LoadError> {
        if let Some(tensor) = self.tensors.get(name) {
            return Ok(Numbers { shape: tensor.shape.clone(), data: tensor.to_f32()? });
        }
        for [norm, direction] in norm_names(name) {
            let (Some(norm), Some(direction)) = (self.tensors.get(&norm), self.tensors.get(&direction))
            else {
                continue;
            };
            let (norms, mut data) = (norm.to_f32()?, direction.to_f32()?);
            let outermost = direction.shape[0];
            if norms.len() != outermost || data.is_empty() {
                let reason = format!("{} norms of {outermost} parts", norms.len());
                return Err(self.corrupt(format!("tensor {name}"), reason));
            }
            for (part, norm) in data.chunks_exact_mut(direction.elements() / outermost).zip(norms) {
                let length = part.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
                part.iter_mut().for_each(|x| *x *= norm / length);
            }
            return Ok(Numbers { shape: direction.shape.clone(), data });
        }
        Err(self.missing(name))
    }

    /// Reads a tensor of this shape; 0 stands for any size.
    ///
    /// # Errors
    /// `Missing`, or `Corrupt` with both shapes.
    pub(crate) fn shaped<const N: usize>(
        &self,
        name: &str,
        expected: [usize; N],
    ) -> Result<([usize; N], Vec<f32>), LoadError> {
        let Numbers { shape, data } = self.numbers(name)?;
        let fits =
            shape.len() == N && shape.iter().zip(&expected).all(|(&is, &must)| must == 0 || is == must);
        match <[usize; N]>::try_from(shape.as_slice()) {
            Ok(shape) if fits => Ok((shape, data)),
            _ => {
                Err(self
                    .corrupt(format!("tensor {name}"), format!("expected {expected:?}, file has {shape:?}")))
            }
        }
    }

    /// Reads a vector of this length.
    pub(crate) fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
        let Numbers { shape, data } = self.numbers(name)?;
        if data.len() != length {
            return Err(self.corrupt(
                format!("tensor {name}"),
                format!("expected {length} numbers, file has {shape:?}"),
            ));
        }
        Ok(data)
    }

    /// Reads a vector of this length, or None if the tensor does not exist.
    pub(crate) fn vector_if(&self, name: &str, length: usize) -> Result<Option<Vec<f32>>, LoadError> {
        if self.has(name) { self.vector(name, length).map(Some) } else { Ok(None) }
    }
}

/// Names of the norm and direction of a weight under weight norm, in both forms.
fn norm_names(name: &str) -> [[String; 2]; 2] {
    let module = name.strip_suffix(".weight").unwrap_or(name);
    [
        [format!("{name}_g"), format!("{name}_v")],
        ["original0", "original1"].map(|part| format!("{module}.parametrizations.weight.{part}")),
    ]
}
